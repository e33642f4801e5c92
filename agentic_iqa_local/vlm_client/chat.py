"""One prompt as chat messages about one or two images. Pure text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentic_iqa_local.state import PromptLayout

TEST_PREAMBLE = "The image is the test image."
PAIR_PREAMBLE = "The first image is the pristine reference, the second image is the test image."


@dataclass(frozen=True)
class ChatPrompt:
    """What a model is asked: its instructions (a template) and the case at hand (query and evidence). `preamble` says
    what the images are, where they are no test image and no reference with one; `words` are the answers that the
    instructions list as A, B, C and so on, for models that say the word; `asker` is who asks, for the log."""

    instructions: str
    case: str
    preamble: str | None = None
    words: tuple[str, ...] = ()
    asker: str = ""


def chat_messages(
    prompt: ChatPrompt,
    images: int,
    layout: PromptLayout,
    parts: Sequence[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """`prompt` as chat messages for `images` (1, or 2 with the reference first). `parts` stand for the images,
    by default as transformers takes them."""
    if images not in (1, 2):
        raise ValueError(
            f"chat_messages: expected 1 image, or 2 with the reference first, got {images}"
        )
    instructions = prompt.instructions.removeprefix("System:\n").rstrip("\n")
    preamble = prompt.preamble or (TEST_PREAMBLE if images == 1 else PAIR_PREAMBLE)
    pictures = parts or [{"type": "image"}] * images
    if layout == "images_first":
        text = f"{preamble}\n{instructions}\n\n{prompt.case}"
        return [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}]
    return [
        {"role": "system", "content": [{"type": "text", "text": instructions}]},
        {
            "role": "user",
            "content": [*pictures, {"type": "text", "text": f"{preamble}\n{prompt.case}"}],
        },
    ]


def in_words(prompt: ChatPrompt) -> tuple[ChatPrompt, dict[str, str]]:
    """`prompt` asking for a word instead of its letter, and the word that is read for each letter. A prompt
    without `words` comes back as it is, with none."""
    if not prompt.words:
        return prompt, {}
    instructions = prompt.instructions.replace("<one letter>", "<one word>")
    words = {chr(ord("A") + i): word for i, word in enumerate(prompt.words)}
    for letter, word in words.items():
        instructions = instructions.replace(f"{letter}. {word}\n", f"{word}\n")
    return replace(prompt, instructions=instructions), words
