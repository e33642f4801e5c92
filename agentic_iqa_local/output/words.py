"""Text that fits a terminal, and the words for levels and damage that every output shares."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import get_args

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.evidence import Finding, findings, found_damage
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.result import Assessment, Interval
from agentic_iqa_local.state import (
    EYE,
    UNCLEAR,
    Severity,
    ToolExecutionLog,
    plain_words,
)

WIDEST, NARROWEST = 100, 40  # columns of text
NO_BREAK = "\N{NO-BREAK SPACE}"
TRIAL = "[trial model, not for real judgements]"
UNBROKEN = (" %", " of 5", TRIAL)  # what stays on one line


def named(row: Assessment) -> list[str]:
    """The metrics that the query names."""
    return named_metrics(row.query, row.reference is not None)


def damage(row: Assessment) -> list[str]:
    """Each distortion that was seen, the most severe first."""
    severities = get_args(Severity)  # from the mildest on
    found = sorted(_seen(row), key=lambda one: -severities.index(one.severity))
    return [finding.with_severity for finding in found]


def nothing_found(row: Assessment) -> str:
    """What was looked for in vain: "no damage", or "no blur" if the query named that alone."""
    if row.evidence is None or row.evidence.distortion_set is not None:
        return "no damage"
    named = [plain_words(one.type) for one in findings(row.evidence)]
    return f"no {' or '.join(dict.fromkeys(named)) or 'damage'}"


def worst_distortion(row: Assessment) -> str:
    """The most severe distortion, or what was looked for in vain ("no blur seen"); nothing without
    evidence."""
    if not (row.evidence and row.evidence.distortion_analysis):
        return ""
    seen = damage(row)
    return seen[0] if seen else f"{nothing_found(row)} seen"


def types_seen(row: Assessment) -> list[str]:
    """The distortions that were seen, each once, in their order of names."""
    return sorted({finding.words for finding in _seen(row)})


def _seen(row: Assessment) -> list[Finding]:
    return [finding for finding in found_damage(row.evidence) if finding.severity != UNCLEAR]


def raw_with_scale(run: ToolExecutionLog) -> str:
    """A raw score with the direction and range of its tool: "5.1 (lower is better, from 0 to
    50)"."""
    scale = f" ({run.scale})" if run.scale else ""
    return f"{run.raw_score:.4g}{scale}"


def whole_scale(interval: Interval) -> bool:
    """Whether an interval is printed as 1.0 to 5.0, which says nothing."""
    return (round(interval.low, 1), round(interval.high, 1)) == (1.0, 5.0)


def unmeasured(row: Assessment) -> bool:
    """Whether q is the model's opinion alone, since no tool gave a score."""
    return bool(row.fusion and row.fusion.vlm_letter and row.fusion.q_bar is None)


def trial_notice(row: Assessment) -> str:
    """What follows an answer of a small model that only proves an installation; otherwise empty."""
    return f" {TRIAL}" if (row.model or {}).get("notice") else ""


def forced_eye(row: Assessment) -> list[str]:
    """That the eye which scored the picture was written with --force; otherwise nothing."""
    asked = any(run.tool_name == EYE and run.normalized_score is not None for run in row.tools)
    if not (asked and row.eye and row.eye.forced):
        return []
    return [f"forced eye {row.eye.name} (nothing showed that it helps)"]


def wrapped(text: str, indent: str = "  ", hang: str = "  ") -> list[str]:
    """The lines of a text that fits the terminal; `indent` begins the first one, `hang` the
    others."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    safe = one_line(" ".join(text.split()))
    for words in UNBROKEN:
        safe = safe.replace(words, words.replace(" ", NO_BREAK))
    lines = textwrap.wrap(
        safe, width, initial_indent=indent, subsequent_indent=hang, break_on_hyphens=False
    )
    return [line.replace(NO_BREAK, " ") for line in lines]


def safe_lines(lines: Sequence[str]) -> str:
    """Each on a line of its own: file names, queries and models' answers may hold anything."""
    return "\n".join(map(one_line, lines))
