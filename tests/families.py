"""Tiny random-weight models of every family, with the embedded model's tokenizer, built where a test needs
them, and one plain pass through transformers to compare letters with."""

import copy
from pathlib import Path

import torch
import transformers as tf
import yaml
from conftest import DATA, EMBEDDED
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

TABLE = yaml.safe_load((DATA / "families.yaml").read_text(encoding="utf-8"))
FAMILIES, PRESETS = tuple(TABLE["families"]), tuple(TABLE["presets"])
SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
REVERSED = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)

CHAT_TEMPLATE = (EMBEDDED / "chat_template.jinja").read_text(encoding="utf-8")
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def load(folder, device: str = "cpu", **options) -> TransformersClient:
    return TransformersClient(Path(folder).name, ModelSettings(path=str(folder), **options), device)


def plain_logprobs(client, images, prompt=SCORING, prefix=ANSWER_PREFIX) -> torch.Tensor:
    """Log-probabilities of one plain pass through processor and model, with no cache of any kind."""
    text = client.renderer.render(prompt, len(images), prefix).text
    batch = client.renderer.processor(text=[text], images=images, return_tensors="pt")
    if hasattr(client.model.model, "rope_deltas"):
        client.model.model.rope_deltas = None
    with torch.inference_mode():
        return client.model(**batch, use_cache=False).logits[0, -1].double().log_softmax(-1)


def apart(read, other) -> float:
    """The largest difference of a letter's log-probability from another read, or from `plain_logprobs`."""
    theirs = (
        other.logprobs
        if hasattr(other, "logprobs")
        else {x: other[i] for x, i in read.token_ids.items()}
    )
    return max(abs(read.logprobs[letter] - float(theirs[letter])) for letter in read.logprobs)


def build(name: str, folder: Path) -> Path:
    """Saves model and processor of a family or a preset of families.yaml."""
    torch.manual_seed(0)
    made = (TABLE["families"] | TABLE["presets"])[name]
    options = made.get("tokenizer", {})
    tokenizer = tf.AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True, **options)
    added = [AddedToken(x, special=True, normalized=False) for x in made.get("added", [])]
    tokenizer.add_tokens(added, special_tokens=True)
    model, processor = _model(made, tokenizer), _processor(made, tokenizer)
    # transformers' default initialisation gives logits that hardly see the image: draw the matrices larger
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                drawn = torch.randn(weight.shape, generator=generator)
                weight.copy_(drawn * 1.4 / weight[0].numel() ** 0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if made["model"] == "Llava":
        # transformers 5 saves LLaVA's tower without the level `vision_model` that published checkpoints have
        weights = load_file(folder / "model.safetensors")
        tower, named = "vision_tower.", "vision_tower.vision_model."
        weights = {
            k if k.startswith(named) else k.replace(tower, named, 1): v for k, v in weights.items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _model(made: dict, tokenizer) -> tf.PreTrainedModel:
    config = copy.deepcopy(made["config"])
    config["text_config"] |= {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    for key, token in made["tokens"].items():
        config[key] = tokenizer.convert_tokens_to_ids(token)
    settings = getattr(tf, f"{made['model']}Config")(**config)
    return getattr(tf, f"{made['model']}ForConditionalGeneration")(settings)


def _processor(made: dict, tokenizer) -> tf.ProcessorMixin:
    parts = {}
    for name, (kind, options) in made["parts"].items():
        parts[name] = getattr(tf, kind)(**copy.deepcopy(options))
    template = CHAT_TEMPLATE.replace(QWEN_IMAGE, made.get("image", QWEN_IMAGE))
    kind = made.get("made_by", f"{made['model']}Processor")
    options = made.get("processor", {})
    return getattr(tf, kind)(tokenizer=tokenizer, chat_template=template, **parts, **options)
