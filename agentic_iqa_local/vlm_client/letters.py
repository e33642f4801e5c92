"""Reading answer letters, or words to choose from: their token ids in context, and their log-probabilities.

`A` and ` A`, or `"A` and `A`, are different tokens with different distributions, so a letter's id is what the
tokenizer makes of it right after the prompt's own end: encode(tail + letter) must be encode(tail) plus
exactly one id. A word stands for its first token there, which no other of the words may begin with.
"""

from collections.abc import Callable, Mapping, Sequence

from agentic_iqa_local.vlm_client import LetterRead, VLMError


def read_letters(
    engine: str,
    encode: Callable[[str], list[int]],
    text: str,
    letters: Sequence[str],
    logprobs_of: Callable[[list[int]], Mapping[int, float]],
    words: Mapping[str, str] | None = None,
) -> LetterRead:
    """The letters right after `text`, the same way for every engine. `logprobs_of` runs the engine: it takes
    token ids and gives their log-probabilities (natural log, over the full vocabulary) there, by id. `engine`
    begins the message of a VLMError about them. `words` are read in place of the letters that they stand for.
    Raises VLMError."""
    token_ids = resolve_letters(encode, text, letters, words)
    return LetterRead.of(engine, logprobs_of(list(token_ids.values())), token_ids)


def resolve_letters(
    encode: Callable[[str], list[int]],
    tail: str,
    letters: Sequence[str],
    words: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Letter, or word → token id after `tail`. Raises VLMError where one merges with the tail, a letter
    splits, or two share an id."""
    base = encode(tail)
    ids: dict[str, int] = {}
    for letter in letters:
        said = (words or {}).get(letter, letter)
        longer = encode(tail + said)
        tokens = longer[len(base) :]
        if longer[: len(base)] != base or not tokens or (len(said) == 1 and len(tokens) > 1):
            raise VLMError(
                f"tokenizer: expected the answer letter {said!r} to be one token after"
                f" {tail[-24:]!r}, got {longer[len(base) - 1 :]} after {base[-2:]}",
                "this model's letters cannot be read here",
            )
        ids[letter] = tokens[0]
    if len(set(ids.values())) != len(ids):
        raise VLMError(
            f"tokenizer: expected a token of its own for each of the letters {', '.join(letters)}, got {ids}"
        )
    return ids
