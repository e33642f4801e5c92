"""Which of two pictures the model itself prefers when it is shown both: one read of two letters, in each order of
the pictures and with each assignment of the letters, averaged by meaning."""

from collections.abc import Sequence

import numpy as np
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, comparison_prompt
from agentic_iqa_local.score_fusion import letter_probabilities
from agentic_iqa_local.vlm_client import LetterRead, TokenUsage, VLMClient

LETTERS = ("A", "B")


class PairwiseRead(BaseModel):
    """What the model's letters say of two pictures that it is shown together."""

    # that the first picture is better: the mean over both orders and both letterings, 0..1
    probability: float
    order_bias: float  # by how much the picture that is shown first is preferred whichever it is, -0.5..0.5
    letter_bias: float  # by how much the letter A is preferred whatever it means, -0.5..0.5
    flipped: bool  # whether another picture is preferred when the order is reversed
    off_letter_mass: float  # mean probability of other words than A and B
    calls: int
    prefilled: int
    reused: int
    seconds: float  # of the model's passes


def read_pair(client: VLMClient, first: Image.Image, second: Image.Image) -> PairwiseRead:
    """Shows the model both pictures, once in each order. Raises VLMError."""
    there, usage = _read(client, (first, second))
    back, other_usage = _read(client, (second, first))
    usage += other_usage
    # P(the picture shown first is better), by order and by the letter that stands for it
    p = np.array(
        [
            [letter_probabilities(read.logprobs)[letter] for read, letter in zip(reads, LETTERS, strict=True)]
            for reads in (there, back)
        ]
    )
    shown_first = p.mean(axis=1)
    return PairwiseRead(
        probability=(shown_first[0] + 1 - shown_first[1]) / 2,
        order_bias=shown_first.mean() - 0.5,
        letter_bias=float(np.mean([p[:, 0], 1 - p[:, 1]])) - 0.5,
        flipped=bool((shown_first[0] - 0.5) * (shown_first[1] - 0.5) > 0),
        off_letter_mass=float(np.mean([read.off_letter_mass for read in (*there, *back)])),
        calls=usage.calls,
        prefilled=usage.prefilled,
        reused=usage.reused,
        seconds=usage.prefill_seconds + usage.decode_seconds,
    )


def _read(client: VLMClient, pictures: Sequence[Image.Image]) -> tuple[list[LetterRead], TokenUsage]:
    """The letters with A for the picture shown first and with B for it, and the work."""
    session = client.open(list(pictures))
    try:
        prompts = [comparison_prompt(reversed_letters=turned) for turned in (False, True)]
        return [session.read_letters(prompt, ANSWER_PREFIX, LETTERS) for prompt in prompts], session.usage
    finally:
        session.close()
