"""Which of two pictures does the model itself prefer, when it is shown both? One read of two letters, in each
order of the pictures and with each assignment of the letters, averaged by meaning."""

import math
from collections.abc import Sequence

from PIL import Image
from pydantic import BaseModel, Field

from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, comparison_prompt
from agentic_iqa_local.score_fusion import letter_probabilities
from agentic_iqa_local.vlm_client import TokenUsage, VLMClient

LETTERS = ("A", "B")


class PairwiseRead(BaseModel):
    """What the model's letters say of two pictures that it is shown together."""

    probability: float = Field(
        description="That the first picture is better: the mean over both orders and both letterings, 0..1."
    )
    order_bias: float = Field(
        description="By how much the picture that is shown first is preferred whichever it is, -0.5..0.5."
    )
    letter_bias: float = Field(
        description="By how much the letter A is preferred whatever it means, -0.5..0.5."
    )
    flipped: bool = Field(description="Whether another picture is preferred when the order is reversed.")
    off_letter_mass: float = Field(description="Mean probability of other words than A and B.")
    calls: int
    prefilled: int
    reused: int
    seconds: float = Field(description="Of the model's passes.")


def read_pair(client: VLMClient, first: Image.Image, second: Image.Image) -> PairwiseRead:
    """Shows the model both pictures, once in each order. Raises VLMError."""
    (ahead, mass), (behind, other_mass) = (_read(client, pair) for pair in ((first, second), (second, first)))
    usage = mass[1] + other_mass[1]
    # each is P(the one shown first is better), with the letters A, B and B, A
    shown_first = (sum(ahead) / 2, sum(behind) / 2)
    letter_a = (ahead[0] + 1 - ahead[1] + behind[0] + 1 - behind[1]) / 4
    return PairwiseRead(
        probability=(shown_first[0] + 1 - shown_first[1]) / 2,
        order_bias=sum(shown_first) / 2 - 0.5,
        letter_bias=letter_a - 0.5,
        flipped=(shown_first[0] - 0.5) * (shown_first[1] - 0.5) > 0,
        off_letter_mass=(mass[0] + other_mass[0]) / 2,
        calls=usage.calls,
        prefilled=usage.prefilled,
        reused=usage.reused,
        seconds=usage.prefill_seconds + usage.decode_seconds,
    )


def _read(
    client: VLMClient, pictures: Sequence[Image.Image]
) -> tuple[tuple[float, float], tuple[float, TokenUsage]]:
    """P(the first is better) with A for it and with B for it; the mass off the letters, and the work."""
    session = client.open(list(pictures))
    try:
        forward = session.read_letters(comparison_prompt(), ANSWER_PREFIX, LETTERS)
        backward = session.read_letters(comparison_prompt(reversed_letters=True), ANSWER_PREFIX, LETTERS)
        usage = session.usage
    finally:
        session.close()
    as_a = letter_probabilities(forward.logprobs)["A"]
    as_b = letter_probabilities(backward.logprobs)["B"]
    return (as_a, as_b), (math.fsum((forward.off_letter_mass, backward.off_letter_mass)) / 2, usage)
