"""A client that knows what was done to a synthetic picture and answers every role soundly. It is a
benchmark's script: with it a run shows what the agent's own mechanism does, apart from any model's mistakes.
It never stands in for the product.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.nodes.detection import YES_NO
from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.state import PlannerOutput
from agentic_iqa_local.synthetic.photos import SEVERITY_WORDS, Crop
from agentic_iqa_local.vlm_client import (
    LetterRead,
    ManyReads,
    PixelLimits,
    SeenImage,
    TokenUsage,
    VLMError,
    read_each,
)
from agentic_iqa_local.vlm_client.chat import ChatPrompt

LEVEL_WIDTH = 0.7
ON_LETTERS = (
    0.999  # of the probability; the rest lies on other tokens, as with a model that answers as it is asked to
)


class Oracle:
    """Answers for one picture (`crop`) and one query, whose regions are `scope`. Its letters are a
    Gaussian of 0.7 levels around the pseudo-MOS. It counts calls and no tokens.
    """

    name = "oracle"
    reads_logits = True
    reads_words = False
    trust = 1.0
    limits = PixelLimits(factor=32, min_pixels=32 * 32, max_pixels=1024 * 1024)

    def __init__(self, crop: Crop, scope: Sequence[str] | None, full_reference: bool) -> None:
        self.crop, self.full_reference = crop, full_reference
        self.scope: list[str] | Literal["Global"] = list(scope) if scope else "Global"

    def open(self, images: Sequence[Image.Image]) -> "OracleSession":
        return OracleSession(self, images)

    def read_many(
        self,
        pictures: Sequence[Sequence[Image.Image]],
        prompt: ChatPrompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        return read_each(self, pictures, prompt, answer_prefix, letters)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "device": "cpu",
            "dtype": "none",
            "notice": "a benchmark's script answered, no model",
        }

    def close(self) -> None:
        """Nothing is loaded."""


class OracleSession:
    constrained = True

    def __init__(self, oracle: Oracle, images: Sequence[Image.Image]) -> None:
        self.oracle, self.usage = oracle, TokenUsage()
        self.seen = [
            SeenImage(image.width, image.height, image.width * image.height // 32**2) for image in images
        ]

    def generate(
        self,
        prompt: ChatPrompt,
        schema: type[BaseModel],
        *,
        answer_prefix: str = "",
        temperature: float = 0.0,
        max_tokens: int = 512,
    ) -> str:
        self.usage.calls += 1
        if answer_prefix:  # up to the letter
            return f'{answer_prefix}", "quality_reasoning": "Judged by the evidence."}}'
        return json.dumps(_ANSWERS[schema.__name__](self.oracle, schema))

    def read_letters(self, prompt: ChatPrompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        if tuple(letters) == YES_NO:
            raise VLMError("oracle: it lists distortions and answers no Yes or No")
        self.usage.calls += 1
        levels = np.array([LETTER_TO_LEVEL[letter] for letter in LETTERS])
        target = np.exp(-0.5 * ((levels - self.oracle.crop.quality) / LEVEL_WIDTH) ** 2)
        target /= target.sum()
        if "A. Bad" in prompt.instructions:
            target = target[::-1]
        logprobs = {letter: math.log(ON_LETTERS * p) for letter, p in zip(LETTERS, target, strict=True)}
        return LetterRead(logprobs, 1 - ON_LETTERS, {})

    def close(self) -> None:
        """Nothing is kept."""


def keys(schema: type[BaseModel]) -> dict[str, Any]:
    """JSON key → type of the fields of a reply that was built for its prompt (`nodes.replies`)."""
    return {field.alias or name: field.annotation for name, field in schema.model_fields.items()}


def _plan(oracle: Oracle, schema: type[BaseModel]) -> dict[str, Any]:
    return PlannerOutput(
        query_type="IQA",
        query_scope=oracle.scope,
        distortion_source="Inferred",
        reference_mode="Full-Reference" if oracle.full_reference else "No-Reference",
        plan=derive_flags("IQA", oracle.scope, "Inferred", None),
    ).model_dump()


def _detection(oracle: Oracle, schema: type[BaseModel]) -> dict[str, list[str]]:
    return {key: [part.family for part in oracle.crop.visible_parts] for key in keys(schema)}


def _analysis(oracle: Oracle, schema: type[BaseModel]) -> dict[str, list[dict[str, str]]]:
    parts = {part.family: part for part in oracle.crop.sample.parts}

    def item(distortion: str) -> dict[str, str]:
        part = parts.get(distortion)
        return {
            "type": distortion,
            "severity": SEVERITY_WORDS[part.severity if part else 0],
            "explanation": "It disturbs the picture." if part else "It is not visible.",
        }

    asked = {
        name: [get_args(each.model_fields["type"].annotation)[0] for each in get_args(items)]
        for name, items in keys(schema).items()
    }
    return {name: [item(distortion) for distortion in distortions] for name, distortions in asked.items()}


def _selection(oracle: Oracle, schema: type[BaseModel]) -> dict[str, dict[str, str]]:
    """For each distortion the first tool of the list that is good for it, else the first."""

    def best(distortion: str, tools: Sequence[str]) -> str:
        return next((tool for tool in tools if distortion in TOOLS[tool].good_for), tools[0])

    return {
        name: {distortion: best(distortion, get_args(tools)) for distortion, tools in keys(choices).items()}
        for name, choices in keys(schema).items()
    }


_ANSWERS = {
    "PlannerReply": _plan,
    "DetectionReply": _detection,
    "AnalysisReply": _analysis,
    "SelectionReply": _selection,
}
