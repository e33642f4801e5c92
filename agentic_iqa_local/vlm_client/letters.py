"""The token ids of answer letters, or of words to choose from, in their context.

`A` and ` A`, or `"A` and `A`, are different tokens with different distributions, so a letter's id is what the
tokenizer makes of it right after the prompt's own end: encode(tail + letter) must be encode(tail) plus
exactly one id. A word stands for its first token there, which no other of the words may begin with.
"""

from collections.abc import Callable, Mapping, Sequence

from agentic_iqa_local.vlm_client import VLMError


def resolve_letters(
    encode: Callable[[str], list[int]],
    tail: str,
    letters: Sequence[str],
    words: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Letter, or word → token id after `tail`.

    Args:
        encode: Token ids of a text.
        tail: The end of the prompt, with the answer so far.
        letters: What is read; an entry of several characters is a word.
        words: Read in place of the letters that they stand for.

    Raises:
        VLMError: One merges with the tail, a letter splits, or two share an id.
    """
    base = encode(tail)
    ids: dict[str, int] = {}
    for letter in letters:
        said = (words or {}).get(letter, letter)
        longer = encode(tail + said)
        tokens = longer[len(base) :]
        if longer[: len(base)] != base or not tokens or (len(said) == 1 and len(tokens) > 1):
            expected = f"expected the answer letter {said!r} to be one token after {tail[-24:]!r}"
            got = f"got {longer[len(base) - 1 :]} after {base[-2:]}"
            raise VLMError(f"tokenizer: {expected}, {got}", "this model's letters cannot be read here")
        ids[letter] = tokens[0]
    if len(set(ids.values())) != len(ids):
        said = f"expected a token of its own for each of the letters {', '.join(letters)}, got {ids}"
        raise VLMError(f"tokenizer: {said}")
    return ids
