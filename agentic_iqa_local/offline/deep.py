"""`doctor --deep`: are the letters those of a plain forward pass?

The plain pass uses only the prompt's words of this package, so that a fault anywhere between a
picture and its letters shows. Bounds are those of the coarser number format: rounding in float32,
two or three steps of a half-precision format at the size of a logit. Quantised models are reported,
not judged.
"""

from collections.abc import Mapping
from typing import Any

from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.offline.checks import Finding, Setup, pictures
from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
from agentic_iqa_local.state import LETTERS

Letters = Mapping[str, float]  # log-probability of each letter, over the whole vocabulary

# format → (nats of any letter, levels of the letters' own mean q), of others those of bfloat16.
# float32 on a GPU counts as TF32, to which cuDNN rounds convolutions unless it is told not to, and
# in llama.cpp too: it rounds the pixels of the first convolution to as many bits
BOUNDS = {"float32": (1e-4, 1e-3), "TF32": (0.01, 0.01), "float16": (0.05, 0.03)}
COARSEST = (0.25, 0.1)
REMEDY = "do not compare scores of this set-up with others; report it with the versions above"
SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)


def _read_alone(client: Any) -> list[Letters]:
    """The letters of each picture as assessments read them: in a session of its own, after another
    prompt, from the cache that the two share."""
    found = []
    earlier = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)
    for picture in pictures():
        session = client.open([picture])
        session.read_letters(earlier, ANSWER_PREFIX, LETTERS)
        found.append(session.read_letters(SCORING, ANSWER_PREFIX, LETTERS).logprobs)
        session.close()
    return found


def compared(ours: list[Letters], theirs: list[Letters], about: Mapping[str, Any]) -> Finding:
    """Two readings of the same pictures, by the bound of the number format that a client computes
    in; it is the client that `about` describes. Quantised ones only warn."""
    number_format = about["dtype"]
    rounds = about["device"].startswith("cuda") or about["engine"].startswith("llama.cpp")
    if number_format == "float32" and rounds:
        number_format = "TF32"
    most_nats, most_levels = BOUNDS.get(number_format, COARSEST)
    nats = levels = 0.0
    for a, b in zip(ours, theirs, strict=True):
        nats = max(nats, *(abs(a[letter] - b[letter]) for letter in LETTERS))
        levels = max(levels, abs(_level(a) - _level(b)))
    found = (
        f"letters of {about['engine']} against a plain float32 pass on the CPU:"
        f" |Δ log-probability| ≤ {nats:.2g} (bound {most_nats:g}),"
        f" |Δq| ≤ {levels:.2g} levels (bound {most_levels:g})"
    )
    if nats <= most_nats and levels <= most_levels:
        return Finding("pass", found)
    quantised = about.get("quantization", "none") != "none"
    return Finding("warn" if quantised else "fail", found, REMEDY)


def _level(letters: Letters) -> float:
    return expected_level(letter_probabilities(letters))


def probe(setup: Setup) -> Finding | None:
    """What llama.cpp's server was probed for when it started."""
    from agentic_iqa_local.vlm_client.llamacpp_probe import said

    if not setup.settings.summarizer.backend.startswith("llamacpp."):
        return None
    client: Any = setup.services.client("summarizer")
    return Finding("pass", said(client, client.probe))


def plain_forward(setup: Setup) -> Finding | None:
    """The letters against one pass of transformers over the whole prompt: no cache, no batch,
    float32."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from agentic_iqa_local.vlm_client.chat import asking_for_words, chat_messages

    backend = setup.settings.summarizer.backend
    options, folder = setup.settings.model(backend), setup.settings.folder(backend)
    lie_beside = any(folder.glob("*.safetensors"))
    if backend.startswith("server.") or (backend.startswith("llamacpp.") and not lie_beside):
        return None  # its weights are elsewhere
    processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)  # nosec B615 # a local folder
    model: Any = AutoModelForImageTextToText.from_pretrained(  # nosec B615 # a local folder
        folder,
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    ).eval()
    if getattr(model.config, "quantization_config", None) is not None:
        found = "the folder holds quantised weights, and no plain float32 pass can be made of them"
        return Finding("warn", found, "none")
    scoring, words = asking_for_words(SCORING) if options.answers == "words" else (SCORING, {})
    messages = chat_messages(scoring, 1)
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    text += ANSWER_PREFIX
    encode = processor.tokenizer.encode
    end = len(encode(text, add_special_tokens=False))
    tokens = {
        letter: encode(text + words.get(letter, letter), add_special_tokens=False)[end]
        for letter in LETTERS
    }
    plain: list[Letters] = []
    for picture in pictures():
        inputs = processor(
            text=[text], images=[picture], return_tensors="pt", add_special_tokens=False
        )
        with torch.inference_mode():
            logprobs = model(**inputs, use_cache=False).logits[0, -1].double().log_softmax(-1)
        plain.append({letter: logprobs[token].item() for letter, token in tokens.items()})
    client = setup.services.client("summarizer")
    return compared(_read_alone(client), plain, client.describe())
