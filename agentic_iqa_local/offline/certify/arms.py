"""Engines and number formats against each other, on one model: may their scores be compared?"""

import itertools
from collections.abc import Mapping
from typing import Any

from agentic_iqa_local.offline.certify.check import Check, judged, not_run
from agentic_iqa_local.offline.certify.drift import BOUNDS, bound_for, drift, figures, format_of, in_words
from agentic_iqa_local.offline.certify.letters import label_of

FORMATS = (
    ("float32", "none"),
    ("bfloat16", "none"),
    ("float16", "none"),
    ("float32", "8bit"),
    ("float32", "4bit"),
)
"""(dtype, quantization). On a GPU the quantised ones compute in half precision, see `formats_on`."""


def formats_on(device: str, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The formats to try beside a set-up's own; quantised weights compute in its dtype on a GPU."""
    dtype = about["dtype"] if device != "cpu" and about["dtype"] in BOUNDS else "float32"
    formats = [(kind if quantization == "none" else dtype, quantization) for kind, quantization in FORMATS]
    return [(kind, how) for kind, how in formats if format_of(about) != (kind if how == "none" else how)]


def judge_engines(base: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> Check:
    """Every two engines that ran, by the bound of the coarser one's format; engines that did not run have
    their reason as "missing"."""
    missing = [f"{name} not run: {one['missing']}" for name, one in others.items() if "missing" in one]
    ran = {label_of(base["about"]): base} | {
        label_of(one["about"]): one for one in others.values() if "missing" not in one
    }
    if len(ran) < 2:
        return not_run("engines", "; ".join(text.replace(" not run", "", 1) for text in missing))
    rows, problems, sentences = [], [], []
    for (first, ours), (second, theirs) in itertools.combinations(ran.items(), 2):
        told = [one["about"] for one in (ours, theirs) if one["about"]["dtype"] in BOUNDS]
        bound = bound_for(*told)
        found = drift(theirs["letters"], ours["letters"])
        rows.append(figures(f"{second} against {first}", found, bound))
        if found.within(bound):
            sentences.append(f"Scores of {second} and {first} may be compared: |Δq| ≤ {found.q:.3g}")
        else:
            problems.append(
                f"scores of {second} and {first} may not be compared: {in_words(found, bound)}, worst"
                f" {found.worst}"
            )
    return judged("engines", problems, "; ".join(sentences), rows, [*sentences, *missing])


def judge_formats(base: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]]) -> Check:
    """Each number format against the set-up's own, told as a verdict on comparing, not judged as a fault."""
    own = format_of(base["about"])
    rows, sentences, missing = [], [], []
    told: dict[bool, list[str]] = {True: [], False: []}
    for name, arm in arms.items():
        if "missing" in arm:
            missing.append(f"{name} not run: {arm['missing']}")
            continue
        bound = bound_for(*(one["about"] for one in (arm, base)))
        found = drift(arm["letters"], base["letters"])
        rows.append(figures(f"transformers {name} against {label_of(base['about'])}", found, bound))
        may = found.comparable(bound)
        told[may].append(name)
        srcc = f", SRCC {found.srcc:.3f}" if found.srcc == found.srcc else ""
        sentences.append(
            f"Scores of {name} and {own} {'may' if may else 'may not'} be compared: |Δq| ≤ {found.q:.3g}"
            f" (bound {bound.q:g}){srcc}"
        )
    if not rows:
        return not_run("number formats", "; ".join(missing))
    words = [
        f"{', '.join(names)} {'may' if may else 'may not'} be compared"
        for may, names in told.items()
        if names
    ]
    verdict = f"With scores of {own} those of {'; those of '.join(words)}"
    return Check("number formats", "reported", verdict, (), tuple(rows), (*sentences, *missing))
