"""How well a model folder sees synthetic distortions: a fixed test set of held-out photographs, through the shipped client."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.stats import spearmanr

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.replies import PlannerReply, detection_reply
from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, detection_prompt, planner_prompt, summarizer_prompt
from agentic_iqa_local.score_fusion import letter_probabilities
from agentic_iqa_local.training.data import load_photos
from agentic_iqa_local.training.distortions import Sample, draw_sample
from agentic_iqa_local.vlm_client import VLMClient

TEST_SEED = 7001
SAMPLES_PER_PHOTO = 10


@dataclass(frozen=True)
class Judgement:
    """One test picture: what was done to it and what the model said."""

    kind: str | None
    family: str | None
    severity: int
    expected_level: float
    detected: str | None


def held_out_samples(photos: list[np.ndarray], per_photo: int = SAMPLES_PER_PHOTO, seed: int = TEST_SEED) -> list[Sample]:
    """`per_photo` samples of each photograph's top left 512×512 pixels: severities uniform 1..5, 12 % clean."""
    rng = np.random.default_rng(seed)
    return [draw_sample(photo[:512, :512], rng) for photo in photos for _ in range(per_photo)]


def judge(client: VLMClient, sample: Sample) -> Judgement:
    """Letters without any evidence in the prompt, and the first distortion type that the model detects."""
    session = client.open([Image.fromarray(sample.image)])
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    probabilities = letter_probabilities(session.read_letters(prompt, ANSWER_PREFIX, LETTERS).logprobs)
    found = ask(session, detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"]), RoleSettings())
    types = found.model_dump(by_alias=True)["Global"]
    session.close()
    level = sum(LETTER_TO_LEVEL[letter] * p for letter, p in probabilities.items())
    return Judgement(sample.kind, sample.family, sample.severity, level, types[0] if types else None)


def planned(client: VLMClient, picture: np.ndarray, lines: list[dict]) -> dict:
    """The model's own plans (before any correction by rule) for queries with known plans: right in every field, and by field."""
    image = Image.fromarray(picture)
    sessions = {False: client.open([image]), True: client.open([image, image])}
    fields = list(lines[0]["plan"])
    right = np.zeros((len(lines), len(fields)), bool)
    for i, line in enumerate(lines):
        prompt = planner_prompt(line["query"], line["reference"], line["choices"])
        plan = ask(sessions[line["reference"]], prompt, PlannerReply, RoleSettings()).model_dump()
        right[i] = [plan[field] == line["plan"][field] for field in fields]
    return {
        "queries": len(lines),
        "every_field": round(float(right.all(1).mean()), 4),
        "mean_over_fields": round(float(right.mean()), 4),
        "by_field": {field: round(float(share), 4) for field, share in zip(fields, right.mean(0), strict=True)},
    }


def evaluate(client: VLMClient, files: list[Path], progress: Callable[[int, int], None] = lambda done, total: None) -> dict:
    """SRCC of the expected level against quality (−severity), and the accuracy of the type among 8, with 95 % intervals.

    Intervals are percentile bootstraps that resample whole photographs.
    """
    samples = held_out_samples(load_photos(files))
    judged = []
    for i, sample in enumerate(samples):
        judged.append(judge(client, sample))
        progress(i + 1, len(samples))
    level = np.array([j.expected_level for j in judged])
    severity = np.array([j.severity for j in judged])
    right = np.array([j.family == j.detected for j in judged])
    groups = np.arange(len(judged)) // SAMPLES_PER_PHOTO
    by_family = {
        str(family): round(float(right[[j.family == family for j in judged]].mean()), 3)
        for family in sorted({j.family for j in judged}, key=str)
    }
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(1000):
        chosen = np.concatenate([np.flatnonzero(groups == g) for g in rng.integers(groups.max() + 1, size=groups.max() + 1)])
        draws.append((spearmanr(level[chosen], -severity[chosen]).statistic, right[chosen].mean()))
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return {
        "samples": len(judged),
        "photographs": len(files),
        "seed": TEST_SEED,
        "srcc_level_severity": round(float(spearmanr(level, -severity).statistic), 4),
        "srcc_interval": [round(float(low[0]), 4), round(float(high[0]), 4)],
        "type_accuracy": round(float(right.mean()), 4),
        "type_interval": [round(float(low[1]), 4), round(float(high[1]), 4)],
        "type_accuracy_by_family": by_family,
        "mean_level_by_severity": {int(s): round(float(level[severity == s].mean()), 3) for s in np.unique(severity)},
    }
