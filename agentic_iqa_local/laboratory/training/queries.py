"""A grammar of user queries with the plan that each one calls for, by the rules of the paper (see
`nodes.planner.derive_flags`).

grammar/*.jsonl holds about 4,600 sentences with slots: {o} {p} {q} regions, {c} a corner, {n} {m} distortions
as nouns, {a} {b} as adjectives, {t} a metric. A sentence that names a distortion without a slot says so in
`types`. questions.jsonl are those that `questions` answers too. The sentences were written without sight of
the hand-written test queries of tests/data/planner_queries.jsonl.
"""

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from agentic_iqa_local.levels import DISTORTION_TYPES, PLACES
from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.state import PlannerOutput

SHARES = {"overall": 0.21, "regions": 0.19, "explicit_global": 0.15, "explicit_regions": 0.13, "tools": 0.12, "other": 0.1,
          "questions": 0.1}  # fmt: skip
TOOLS = ("LocalNR", "LPIPS", "SSIM", "MS-SSIM", "CW-SSIM", "FSIM", "VSI", "PSNR", "VIF", "GMSD", "DISTS", "TOPIQ_FR", "TOPIQ_NR", "AHIQ", "CKDN",
         "QAlign", "MUSIQ", "CLIPIQA", "NIQE", "ILNIQE", "BRISQUE", "PIQE", "MANIQA", "LIQE", "NIMA", "ARNIQA", "HyperIQA", "DBCNN",
         "UNIQUE", "TReS", "PaQ2PiQ", "CNNIQA", "WaDIQaM_FR", "WaDIQaM_NR", "NLPD", "MAD")  # fmt: skip
CHOICES = (("Yes", "No"), ("yes", "no"), ("Excellent", "Good", "Fair", "Poor", "Bad"), ("Low", "Medium", "High"), ("pass", "fail"),
           ("Slight", "Moderate", "Severe"), ("Blur", "Noise", "Compression", "None"), ("none", "some", "a lot"))  # fmt: skip
REASONS = (
    "Missing tool scores for {o} region", "No tool scores available", "Distortion analysis does not cover all query_scope objects",
    "Missing analysis for {o}", "Contradictory evidence: severe {n} but high scores", "Executor reported uncertainty",
)  # fmt: skip
CORNERS = {place: tuple(f"{side} {part}" for side in (place, place.replace("top", "upper").replace("bottom", "lower"))
                        for part in ("corner", "quarter")) for place in PLACES}  # fmt: skip
OWNERS = ("my", "her", "his", "our", "their", "that", "this")
SPOTS = ("in the background", "on the left", "on the right", "in the foreground", "at the back", "in front")
YES_NO_TOPICS = ("whether", "kind", "cause", "part", "clean", "use")
QUALIFIERS = (
    "red",
    "old",
    "small",
    "left",
    "right",
    "wooden",
    "blue",
    "far",
    "tall",
    "second",
    "white",
    "dark-haired",
    "big",
)


@dataclass(frozen=True)
class PlannedQuery:
    """A query with the plan that the rules give it."""

    query: str
    has_reference: bool
    choices: tuple[str, ...] | None
    replan_history: tuple[str, ...]
    plan: PlannerOutput


def _read(name: str) -> str:
    return (files("agentic_iqa_local.laboratory.training") / "grammar" / name).read_text(encoding="utf-8")


@cache
def templates(part: str) -> tuple[dict, ...]:
    """The sentences of one part of SHARES."""
    return tuple(json.loads(line) for line in _read(f"{part}.jsonl").splitlines())


@cache
def _plannable(part: str) -> tuple[dict, ...]:
    """The sentences of a part whose plan is beyond doubt: "Is it sharp?" may ask for blur or for
    sharpening."""
    return tuple(row for row in templates(part) if not row.get("ambiguous"))


@cache
def contexts(place: str) -> tuple[str, ...]:
    """What may stand "before" or "after" any query."""
    return tuple(
        line[place] for line in map(json.loads, _read("contexts.jsonl").splitlines()) if place in line
    )


@cache
def objects() -> tuple[str, ...]:
    """Region names."""
    return tuple(_read("objects.txt").split("\n")[:-1])


@cache
def phrases(form: str) -> dict[str, tuple[str, ...]]:
    """{family: phrases}, as "nouns" or "adjectives"."""
    return {family: tuple(forms[form]) for family, forms in json.loads(_read("distortions.json")).items()}


def pick(rng: np.random.Generator, items):
    """One item of a sequence."""
    return items[int(rng.integers(len(items)))]


def _invented(rng: np.random.Generator) -> str:
    # Names that no list holds teach copying, letter by letter.
    return "".join(pick(rng, "bcdfghjklmnprstvwz") + pick(rng, "aeiou") + pick(rng, ("", "", "n", "r", "st", "l"))
                   for _ in range(int(rng.integers(1, 4))))  # fmt: skip


def draw_object(rng: np.random.Generator) -> str:
    """A region name: mostly from the list, at times with an adjective before it, at times invented or a
    corner."""
    draw = rng.random()
    if draw < 0.05:
        return _invented(rng)
    if draw < 0.07:
        return pick(rng, CORNERS[pick(rng, list(PLACES))])
    name = pick(rng, objects())
    return f"{pick(rng, QUALIFIERS)} {name}" if draw < 0.2 and " " not in name else name


def _with_region_named(text: str, rng: np.random.Generator) -> str:
    """`text` with another word than "the" before its region, or with words behind it that say where it is."""
    draw = rng.random()
    if draw < 0.12:
        owner = pick(rng, OWNERS)
        return text.replace("the {o}", f"{owner} {{o}}").replace("The {o}", f"{owner.capitalize()} {{o}}")
    return text.replace("the {o}", f"the {{o}} {pick(rng, SPOTS)}") if draw < 0.17 else text


def _spelled(tool: str, rng: np.random.Generator) -> tuple[str, str]:
    """(how the query spells a metric, its name in the plan); metrics that nobody knows keep the query's
    spelling."""
    draw = rng.random()
    if draw < 0.08:
        unknown = _invented(rng).upper() + pick(rng, ("", "-2", "IQA", "_NR"))
        return unknown, unknown
    if draw < 0.68:
        return tool, tool
    spelled = tool.lower() if draw < 0.85 else tool.upper()
    return (spelled.replace("-", pick(rng, ("-", " ", ""))).replace("_", pick(rng, ("_", "-", " "))), tool)


def _slip(text: str, kept: list[str], rng: np.random.Generator) -> str:
    """`text` with one letter lost, doubled or swapped with the next, outside of the words in `kept`."""
    words = text.split(" ")
    places = [
        i
        for i, w in enumerate(words)
        if len(w) > 3 and w.isalpha() and not any(w.lower() in k.lower() for k in kept)
    ]
    if not places:
        return text
    i = pick(rng, places)
    word, at = words[i], int(rng.integers(1, len(words[i]) - 1))
    words[i] = pick(rng, (word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:],
                          word[:at] + word[at + 1] + word[at] + word[at + 2 :]))  # fmt: skip
    return " ".join(words)


def draw_query(rng: np.random.Generator) -> PlannedQuery:
    """One query of the grammar; regions are copied into the plan as the query spells them, metrics by their
    names."""
    part = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    template = pick(rng, _plannable(part))
    slots = {name for _, name, _, _ in string.Formatter().parse(template["text"]) if name}
    words, families, tool = _draw_words(rng)
    text = _with_region_named(template["text"], rng).format(**words)
    scope: list[str] | str = [words[s] for s in "opqc" if s in slots] or "Global"
    types = [families[0]] * bool(slots & {"n", "a"}) + [families[1]] * bool(slots & {"m", "b"})
    types += [t for t in template.get("types", ()) if t not in types]
    text, lowered = _written(text, words, rng)
    if lowered:
        scope = scope if isinstance(scope, str) else [name.lower() for name in scope]
        tool = tool if words["t"] != tool or tool in TOOLS else tool.lower()
    choices = _draw_choices(template, rng)
    has_reference = template.get("reference", bool(rng.random() < 0.25))
    other = template.get("other", False)
    history = () if other else _draw_history(words, rng)
    plan = _plan(other, scope, types, has_reference, tool if "t" in slots else None)
    return PlannedQuery(text, has_reference, choices, history, plan)


def _draw_history(words: dict[str, str], rng: np.random.Generator) -> tuple[str, ...]:
    """Mostly none; or the reason for which an earlier pass asked for another."""
    if rng.random() >= 0.06:
        return ()
    return (f"[Iteration 1] {pick(rng, REASONS).format(**words)}",)


def _draw_words(rng: np.random.Generator) -> tuple[dict[str, str], tuple[str, str], str]:
    """What may fill each slot, the families of {n}, {a} and of {m}, {b}, and the plan's name for {t}."""
    first, second = (str(f) for f in rng.choice(DISTORTION_TYPES, 2, replace=False))
    names = [draw_object(rng) for _ in "opq"]
    while len(set(names)) < 3:
        names = [draw_object(rng) for _ in "opq"]
    spelled, tool = _spelled(pick(rng, TOOLS), rng)
    words = dict(zip("opq", names, strict=True)) | {
        "n": pick(rng, phrases("nouns")[first]), "m": pick(rng, phrases("nouns")[second]),
        "a": pick(rng, phrases("adjectives")[first]), "b": pick(rng, phrases("adjectives")[second]), "t": spelled,
        "c": pick(rng, CORNERS[pick(rng, list(PLACES))]),
    }  # fmt: skip
    return words, (first, second), tool


def _written(text: str, words: dict[str, str], rng: np.random.Generator) -> tuple[str, bool]:
    """`text` as a user may write it: in a context, with a slip, without a final stop, in lower case or with a
    capital; and whether it is in lower case."""
    draw = rng.random()
    if draw < 0.12:
        text = f"{pick(rng, contexts('before'))} {text}"
    elif draw < 0.2:
        text = f"{text}{'' if text[-1] in '.?!…' else '.'} {pick(rng, contexts('after'))}"
    if rng.random() < 0.15:
        text = _slip(text, [words[slot] for slot in "opqt"], rng)
    draw = rng.random()
    if draw < 0.15:
        text = text.lower()
    elif draw < 0.6:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.1:
        text = text.rstrip(".?!")
    return text, draw < 0.15


def _draw_choices(template: dict, rng: np.random.Generator) -> tuple[str, ...] | None:
    """Mostly none; those of the template or, for a yes/no question, yes and no, more often."""
    if "choices" in template and rng.random() < 0.7:
        return tuple(pick(rng, template["choices"]))
    if template.get("topic") in YES_NO_TOPICS and rng.random() < 0.35:
        return CHOICES[int(rng.integers(2))]
    return pick(rng, CHOICES) if rng.random() < 0.09 else None


def _plan(
    other: bool, scope: list[str] | str, types: Sequence[str], has_reference: bool, tool: str | None
) -> PlannerOutput:
    """The plan that the rules give a query with these contents."""
    query_type, source = "Other" if other else "IQA", "Explicit" if types else "Inferred"
    regions = [scope] if isinstance(scope, str) else scope
    fields = {
        "query_type": query_type,
        "query_scope": scope,
        "distortion_source": source,
        "distortions": {name: list(types) for name in regions} if types else None,
        "reference_mode": "Full-Reference" if has_reference else "No-Reference",
        "required_tool": tool,
        "plan": derive_flags(query_type, scope, source, tool),
    }
    return PlannerOutput.model_validate(fields)
