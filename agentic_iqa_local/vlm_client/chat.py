"""One prompt as chat messages about one or two images. Pure text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

TEST_PREAMBLE = "The image is the test image."
PAIR_PREAMBLE = "The first image is the pristine reference, the second image is the test image."


@dataclass(frozen=True)
class ChatPrompt:
    """What a model is asked: its instructions (a template) and the case at hand (query and
    evidence). `words` are the answers that the instructions list as A, B, C and so on, for models
    that say the word."""

    instructions: str
    case: str
    words: tuple[str, ...] = ()


def chat_messages(
    prompt: ChatPrompt, images: int, parts: Sequence[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """`prompt` as a chat message about `images` (1, or 2 with the reference first). The images come
    first, so that every role continues from what was computed of them. `parts` stand for them, by
    default as transformers takes them."""
    instructions = prompt.instructions.removeprefix("System:\n").rstrip("\n")
    preamble = TEST_PREAMBLE if images == 1 else PAIR_PREAMBLE
    text = {"type": "text", "text": f"{preamble}\n{instructions}\n\n{prompt.case}"}
    pictures = parts or [{"type": "image"}] * images
    return [{"role": "user", "content": [*pictures, text]}]


def asking_for_words(prompt: ChatPrompt) -> tuple[ChatPrompt, dict[str, str]]:
    """`prompt` asking for a word instead of its letter, and the word that is read for each letter.
    A prompt without `words` comes back as it is, with none."""
    instructions = prompt.instructions
    if prompt.words:
        instructions = instructions.replace("<one letter>", "<one word>")
    words = {}
    for letter, word in zip(ascii_uppercase, prompt.words, strict=False):
        instructions = instructions.replace(f"{letter}. {word}\n", f"{word}\n")
        words[letter] = word
    return replace(prompt, instructions=instructions), words
