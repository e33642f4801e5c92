"""The letters by transformers alone: one pass over the whole prompt, no cache, no batch, float32. Of this
package only the words of the prompt are used, so that a fault anywhere between a file and its letters
shows."""

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from transformers import AutoModelForImageTextToText, AutoProcessor

from agentic_iqa_local.config_sections import PlacedModel
from agentic_iqa_local.devices import memory_ran_out
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.nodes.workbench import Box
from agentic_iqa_local.offline.certify.apart import ApartError
from agentic_iqa_local.offline.certify.reading import CAPTURED, SCORING, as_arrays
from agentic_iqa_local.vlm_client.chat import chat_messages, in_words


def plain_forward(
    options: PlacedModel, device: str, folder: Path, boxes: Mapping[str, Box]
) -> dict[str, Any]:
    """The letters of each probe, or of the part of it in its box (left, top, right, bottom in pixels), the
    prompt, the letters' tokens and, of the last probes, the model's inputs, also with red and blue exchanged.

    On a device without room for float32 the pass is made on the CPU. Raises ApartError for a folder of
    quantised weights.
    """
    processor = AutoProcessor.from_pretrained(options.path, local_files_only=True)  # nosec B615 # a local folder
    set_pixels(processor, options)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, used = _loaded(options.path, device)
    scoring, words = in_words(SCORING) if options.answers == "words" else (SCORING, {})
    messages = chat_messages(scoring, 1, options.prompt_layout)
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) + ANSWER_PREFIX
    end = len(_encode(processor, text))
    ids = {letter: _encode(processor, text + words.get(letter, letter))[end] for letter in LETTERS}
    found: dict[str, Any] = {"prompt": text, "letters_tokens": ids, "device": used, "letters": {}}
    found |= {"inputs": {}, "exchanged": {}, "most_pixels": most_pixels(processor)}
    for number, (name, box) in enumerate(boxes.items()):
        with Image.open(folder / f"{name}.png") as file:
            image = ImageOps.exif_transpose(file).convert("RGB").crop(box)
        inputs = processor(text=[text], images=[image], return_tensors="pt", add_special_tokens=False)
        if number >= len(boxes) - CAPTURED:
            found["inputs"][name] = as_arrays(inputs)
            turned = Image.merge("RGB", image.split()[::-1])
            found["exchanged"][name] = as_arrays(
                processor(text=[text], images=[turned], return_tensors="pt", add_special_tokens=False)
            )
        with torch.inference_mode():
            logits = model(**inputs.to(used), use_cache=False).logits[0, -1]
        logprobs = logits.double().log_softmax(-1)
        found["letters"][name] = {letter: logprobs[token].item() for letter, token in ids.items()}
    return found


def most_pixels(processor: Any) -> int | None:
    """The largest picture that the processor leaves as it is, in pixels; None where it sets no such limit."""
    images = processor.image_processor
    return dict(images.size or {}).get("longest_edge") if hasattr(images, "merge_size") else None


def _encode(processor: Any, text: str) -> list[int]:
    return processor.tokenizer.encode(text, add_special_tokens=False)


def set_pixels(processor: Any, options: PlacedModel) -> None:
    """Gives a processor the range of pixels that the configuration sets, where it sets one."""
    images = processor.image_processor
    size = dict(images.size or {})
    if not (options.min_pixels or options.max_pixels) or "longest_edge" not in size:
        return
    if hasattr(images, "merge_size"):  # Qwen's: numbers of pixels; others give sides
        images.size = {
            "shortest_edge": options.min_pixels or size["shortest_edge"],
            "longest_edge": options.max_pixels or size["longest_edge"],
        }


def _loaded(path: str, device: str) -> tuple[Any, str]:
    """(the model in float32, the device that it is on)."""
    model: Any = AutoModelForImageTextToText.from_pretrained(  # nosec B615 # a local folder
        path, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()
    if getattr(model.config, "quantization_config", None) is not None:
        raise ApartError("the folder holds quantised weights, of which no plain float32 pass can be made")
    try:
        return model.to(device), device
    except RuntimeError as error:
        if device == "cpu" or not memory_ran_out(error):
            raise
        model = model.to("cpu")
        gc.collect()
        torch.cuda.empty_cache()
        return model, "cpu"
