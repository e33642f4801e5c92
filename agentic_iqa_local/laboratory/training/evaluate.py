"""How well a model folder sees: a fixed test set of held-out photographs with synthetic distortions, plans
for queries, and human scores to check against, all through the shipped client. Knows nothing of how the model
was trained."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from PIL import Image

from agentic_iqa_local import score_fusion
from agentic_iqa_local.assessment import assess
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.config_sections import RoleSettings
from agentic_iqa_local.images import load_image
from agentic_iqa_local.laboratory.training.choices import four_choices, yes_or_no
from agentic_iqa_local.laboratory.training.queries import draw_query
from agentic_iqa_local.laboratory.training.sentences import SEVERITY_WORDS, families_named, strengths_named
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTERS, OVERALL, Severity
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.replies import PlannerReply, analysis_reply, detection_reply
from agentic_iqa_local.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    analysis_prompt,
    choice_letters,
    detection_prompt,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import ExecutorOutput
from agentic_iqa_local.studies.statistics import Draws, srcc
from agentic_iqa_local.synthetic.distortions import DISTORTIONS
from agentic_iqa_local.synthetic.photos import (
    SAMPLES_PER_PHOTO,
    SIDE,
    TEST_SEED,
    Crop,
    held_out_crops,
    load_tiles,
)
from agentic_iqa_local.vlm_client import VLMClient, VLMSession

GRAMMAR_QUERIES = 300
REASONINGS = 100
# Where what the program adds to a reasoning begins: numbers that differ between any two pictures are no words
# of the model.
NOTES = re.compile(
    r"\s*(Fused score|No tool scores were|No distortion analysis or tool|Contradictory evidence|Part of the"
    r" evidence)"
)
SCORE_NOISE = 0.7
RESAMPLES = 1000
SEVERITIES = get_args(Severity)
Progress = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Judgement:
    """One test picture: what was done to it, and what the model said. Levels are expectations over the
    letters, 1..5."""

    photo: int
    parts: tuple[tuple[str, int], ...]
    pseudo_mos: float
    level: float
    level_reversed_letters: float
    level_with_scores: float
    level_scores_blank_image: float
    detected: str | None
    severity_steps_off: int | None
    yes_no_right: bool
    four_choice_right: bool


def expected_level(
    session: VLMSession, evidence: ExecutorOutput | None = None, reversed_letters: bool = False
) -> float:
    """E[level] of the letters for the default query; with the letters reassigned, mapped back by meaning."""
    prompt = summarizer_prompt(DEFAULT_QUERY, evidence, scoring=True, reversed_letters=reversed_letters)
    probabilities = score_fusion.letter_probabilities(
        session.read_letters(prompt, ANSWER_PREFIX, LETTERS).logprobs
    )
    level = score_fusion.expected_level(probabilities)
    return 6 - level if reversed_letters else level


def _answered_right(session: VLMSession, sample) -> bool:
    letters = choice_letters(sample.letters)
    read = session.read_letters(sample.prompt, ANSWER_PREFIX, letters).logprobs
    return max(letters, key=lambda letter: read[letter]) == letters[int(sample.letters.argmax())]


def judge(
    client: VLMClient, blank: VLMSession, crop: Crop, photo: int, rng: np.random.Generator
) -> Judgement:
    """Reads the letters in four ways, detects, analyses what is there, and answers two questions, for one
    picture.

    `blank` is a session on an even grey picture.
    """
    sample = crop.sample
    score = float(np.clip(crop.quality + rng.normal(0, SCORE_NOISE), 1, 5))
    evidence = ExecutorOutput(quality_scores={"Global": {OVERALL: ("NIQE", score)}})
    questions = yes_or_no(crop, rng), four_choices(crop, rng)
    session = client.open([Image.fromarray(sample.image)])
    found = ask(
        session, detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"]), RoleSettings()
    )
    detected = found.model_dump(by_alias=True)["Global"]
    steps = None
    if len(sample.parts) == 1:
        asked = {"Global": list(sample.families)}
        reply = ask(session, analysis_prompt(DEFAULT_QUERY, asked), analysis_reply(asked), RoleSettings())
        word = reply.model_dump(by_alias=True)["Global"][0]["severity"]
        steps = abs(SEVERITIES.index(word) - SEVERITIES.index(SEVERITY_WORDS[sample.severity]))
    levels = (
        expected_level(session),
        expected_level(session, reversed_letters=True),
        expected_level(session, evidence),
    )
    right = [_answered_right(session, question) for question in questions]
    session.close()
    without_image = expected_level(blank, evidence)
    parts = tuple((p.kind, p.severity) for p in sample.parts)
    return Judgement(
        photo, parts, crop.quality, *levels, without_image, detected[0] if detected else None, steps, *right
    )


def with_interval(statistic: Callable[[np.ndarray], float], groups: np.ndarray) -> dict[str, float]:
    """`statistic` of all rows (given as indices) and its 95 % percentile bootstrap interval over whole
    groups."""
    draws = Draws.of_units(groups, np.random.default_rng(0), "groups", RESAMPLES)
    sampled = draws.of(lambda rows: statistic(rows.astype(int)), np.arange(len(groups)))
    alone = draws.counts.shape[1] == 1  # then each draw holds all rows
    low, high = np.nanpercentile(sampled.value if alone else sampled.on_draws, [2.5, 97.5])
    return {
        "value": round(sampled.value, 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "n": len(groups),
    }


def summarise(judged: Sequence[Judgement]) -> dict:
    """The figures of the model card from the test set's judgements."""
    photo = np.array([j.photo for j in judged])
    target = np.array([j.pseudo_mos for j in judged])
    severity = np.array([max((s for _, s in j.parts), default=0) for j in judged])
    level = np.array([j.level for j in judged])
    shift = np.abs(level - np.array([j.level_reversed_letters for j in judged]))
    return {
        "samples": len(judged),
        "photographs": len(np.unique(photo)),
        "seed": TEST_SEED,
        "srcc": _ranks(judged, photo, target),
        **_families_and_severities(judged, photo, severity),
        "yes_no": share_with_interval([j.yes_no_right for j in judged], photo),
        "four_choice": share_with_interval([j.four_choice_right for j in judged], photo),
        "order_bias": with_interval(lambda i: float(shift[i].mean()), photo),
        "mean_level_by_severity": _means_by(severity, level),
        "mean_target_by_severity": _means_by(severity, target),
    }


def _ranks(judged: Sequence[Judgement], photo: np.ndarray, target: np.ndarray) -> dict[str, dict]:
    """SRCC of E[level] with the pseudo-MOS, in the ways that the letters were read."""
    count = np.array([len(j.parts) for j in judged])
    every = np.full(len(judged), True)

    def against_target(name: str, rows: np.ndarray) -> dict[str, float]:
        level, wanted = np.array([getattr(j, name) for j in judged])[rows], target[rows]
        return with_interval(lambda i: srcc(level[i], wanted[i]), photo[rows])

    return {
        "image_alone": against_target("level", every),
        "image_alone_single": against_target("level", count < 2),
        "image_alone_paired": against_target("level", count == 2),
        "image_alone_reversed_letters": against_target("level_reversed_letters", every),
        "with_scores": against_target("level_with_scores", every),
        "scores_with_blank_image": against_target("level_scores_blank_image", every),
    }


def _families_and_severities(judged: Sequence[Judgement], photo: np.ndarray, severity: np.ndarray) -> dict:
    """How often the family was detected, and the severity judged rightly."""
    count = np.array([len(j.parts) for j in judged])
    family = np.array([DISTORTIONS[j.parts[0][0]].family if j.parts else "none" for j in judged])
    right = np.array([(j.detected or "none") == f for j, f in zip(judged, family, strict=True)])
    steps = np.array([np.nan if j.severity_steps_off is None else j.severity_steps_off for j in judged])
    seen, single = (count < 2) & (severity != 1), count == 1

    def share(flags: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        return share_with_interval(flags[rows], photo[rows])

    return {
        "family_severity_2_and_above_or_clean": share(right, seen),
        "clean_called_clean": share(right, count == 0),
        "family_severity_1": share(right, single & (severity == 1)),
        "family_by_type": {
            str(f): round(float(right[seen & (family == f)].mean()), 3)
            for f in (*DISTORTION_TYPES, "none")
            if (seen & (family == f)).any()
        },
        "severity_within_one_step": share(steps <= 1, single),
        "severity_exact": share(steps == 0, single),
    }


def share_with_interval(flags: Sequence[bool] | np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """The share of true flags, as `with_interval` gives it."""
    values = np.asarray(flags, float)
    return with_interval(lambda i: float(values[i].mean()), groups)


def _means_by(severity: np.ndarray, values: np.ndarray) -> dict[int, float]:
    return {int(s): round(float(values[severity == s].mean()), 3) for s in np.unique(severity)}


def synthetic(client: VLMClient, files: list[Path], progress: Progress = _silent) -> dict:
    """`summarise` of the fixed test set of these photographs."""
    crops = list(held_out_crops(load_tiles(files)))
    rng = np.random.default_rng([TEST_SEED, 1])
    judged = []
    blank = client.open([Image.new("RGB", (SIDE, SIDE), (128, 128, 128))])
    for i, crop in enumerate(crops):
        judged.append(judge(client, blank, crop, i // SAMPLES_PER_PHOTO, rng))
        progress("test pictures", i + 1, len(crops))
    return summarise(judged)


def grammar_queries(count: int = GRAMMAR_QUERIES, seed: int = TEST_SEED) -> list[dict]:
    """Queries drawn from the training grammar with another seed, in the form of the hand-written ones."""
    rng = np.random.default_rng([seed, 2])
    drawn = [draw_query(rng) for _ in range(count)]
    return [
        {
            "query": d.query,
            "reference": d.has_reference,
            "choices": list(d.choices) if d.choices else None,
            "replan_history": list(d.replan_history),
            "plan": d.plan.model_dump(),
        }
        for d in drawn
    ]


def planned(client: VLMClient, picture: np.ndarray, lines: list[dict], progress: Progress = _silent) -> dict:
    """The model's own plans (before any correction by rule) for queries with known plans: right in every
    field, and by field."""
    image = Image.fromarray(picture)
    fields = list(lines[0]["plan"])
    right = np.zeros((len(lines), len(fields)), bool)
    for reference in (False, True):
        session = client.open([image, image] if reference else [image])
        for i, line in enumerate(lines):
            if line["reference"] != reference:
                continue
            prompt = planner_prompt(line["query"], reference, line["choices"], line.get("replan_history", ()))
            plan = ask(session, prompt, PlannerReply, RoleSettings()).model_dump()
            right[i] = [plan[field] == line["plan"][field] for field in fields]
            progress("plans", i + 1, len(lines))
        session.close()
    rows = np.arange(len(lines))
    return {
        "every_field": with_interval(lambda i: float(right[i].all(1).mean()), rows),
        "mean_over_fields": with_interval(lambda i: float(right[i].mean()), rows),
        "by_field": {
            field: round(float(share), 4) for field, share in zip(fields, right.mean(0), strict=True)
        },
    }


def told_truly(text: str, families: Sequence[str], severity: int) -> dict[str, bool]:
    """Whether a reasoning names a family that is there and none that is not, and the strength of the
    strongest one (1..5), exactly or within one step."""
    named, said = families_named(text), {SEVERITIES.index(word) for word in strengths_named(text)}
    true = SEVERITIES.index(SEVERITY_WORDS[severity])
    return {
        "type": bool(named) and named <= set(families),
        "strength": true in said,
        "strength_within_one_step": any(abs(word - true) <= 1 for word in said),
    }


def reasonings(
    client: VLMClient, files: list[Path], progress: Progress = _silent, count: int = REASONINGS
) -> dict:
    """What the whole agent, with the default configuration and `client` as its model, says of `count` damaged
    pictures (severity 2 and above) of the fixed test set: how many different reasonings, and how many of them
    are true. `replaced` is the share that the program put together itself because the model's contradicted
    its evidence."""
    crops = list(held_out_crops(load_tiles(files)))
    damaged = [(i, crop) for i, crop in enumerate(crops) if crop.sample.severity >= 2]
    chosen = [damaged[i] for i in np.linspace(0, len(damaged) - 1, min(count, len(damaged))).astype(int)]
    settings = load_settings()
    backends = {settings.role(role).backend for role in ("planner", "executor", "summarizer")}
    services = Services(settings, "cpu", dict.fromkeys(backends, client))
    texts, flags, replaced = [], [], []
    for done, (_, crop) in enumerate(chosen, start=1):
        row = assess(Image.fromarray(crop.sample.image), services=services)
        text = NOTES.split(row.quality_reasoning or "", maxsplit=1)[0]
        texts.append(text)
        flags.append(told_truly(text, crop.sample.families, crop.sample.severity))
        replaced.append(bool(row.reasoning_corrections))
        progress("reasonings", done, len(chosen))
    photo = np.array([i // SAMPLES_PER_PHOTO for i, _ in chosen])

    return {
        "pictures": len(chosen),
        "distinct": len(set(texts)),
        "true_type": share_with_interval([f["type"] for f in flags], photo),
        "true_strength": share_with_interval([f["strength"] for f in flags], photo),
        "true_strength_within_one_step": share_with_interval(
            [f["strength_within_one_step"] for f in flags], photo
        ),
        "true_type_and_strength": share_with_interval([f["type"] and f["strength"] for f in flags], photo),
        "true_type_and_strength_within_one_step": share_with_interval(
            [f["type"] and f["strength_within_one_step"] for f in flags], photo
        ),
        "replaced": share_with_interval(replaced, photo),
        "texts": texts,
    }


def human_scores(client: VLMClient, folder: Path, progress: Progress = _silent) -> dict:
    """SRCC of E[level], letters alone, with the MOS of `folder`/manifest.csv (columns image, mos and, where
    known, distortion).

    The interval resamples distortion types where the manifest has several, since such a set may be of one
    scene, and images otherwise.
    """
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    levels = []
    for i, row in enumerate(rows):
        session = client.open([load_image(folder / row["image"]).pixels])
        levels.append(expected_level(session))
        session.close()
        progress(folder.name, i + 1, len(rows))
    mos, level = np.array([float(row["mos"]) for row in rows]), np.array(levels)
    kinds = np.array([row.get("distortion") or "" for row in rows])
    several = len(set(kinds)) > 1
    groups = kinds if several else np.arange(len(rows))
    figure = with_interval(lambda i: srcc(level[i], mos[i]), groups)
    return {"srcc": figure, "interval_over": "distortion types, within these scenes" if several else "images"}
