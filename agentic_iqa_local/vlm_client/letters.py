"""Answer letters as token ids, resolved in context.

`A` and ` A`, or `"A` and `A`, are different tokens with different distributions, so a letter's id is what the tokenizer
makes of it right after the prompt's own end: encode(tail + letter) must be encode(tail) plus exactly one id.
"""

from collections.abc import Callable, Sequence

from agentic_iqa_local.vlm_client import VLMError


def resolve_letters(encode: Callable[[str], list[int]], tail: str, letters: Sequence[str]) -> dict[str, int]:
    """Letter → token id after `tail`. Raises VLMError where a letter merges with the tail, splits, or shares an id."""
    base = encode(tail)
    ids: dict[str, int] = {}
    for letter in letters:
        longer = encode(tail + letter)
        if longer[:-1] != base:
            raise VLMError(
                f"tokenizer: expected the answer letter {letter!r} to be one token after {tail[-24:]!r}, "
                f"got {longer[len(base) - 1 :]} after {base[-2:]}; this model's letters cannot be read here"
            )
        ids[letter] = longer[-1]
    if len(set(ids.values())) != len(ids):
        raise VLMError(f"tokenizer: expected a token of its own for each of the letters {', '.join(letters)}, got {ids}")
    return ids
