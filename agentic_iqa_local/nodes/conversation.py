"""What earlier turns of a conversation mean for the next: the context that Planner and Summarizer are given,
and the rule for a query that only points on ("And the sky?"). Pure: text in, text out."""

import json
import re
from collections.abc import Sequence
from typing import Any

from agentic_iqa_local.nodes.query import named_metrics, region_in
from agentic_iqa_local.nodes.replies import whole_sentences
from agentic_iqa_local.state import PlannerOutput, revised

MOST_TURNS = 4
LONGEST_QUERY, LONGEST_ANSWER = 300, 200  # characters of an earlier turn

_THE = r"(?:the|an?|its?|his|her|their|my|our|this|that|these|those|der|die|das|le|la|les|el|los|las|il)\s"
# "And the sky?", "What about her face", "The sky?"
_AND = r"(?:(?:ok(?:ay)?|and|but|also|now|und|et|y|e)[\s,]+)"
_POINTS_ON = re.compile(
    rf"(?:{_AND}*(?:(?:what|how)\s+about|same\s+for)\s+{_THE}?|{_AND}+{_THE}|{_THE}(?=.*\?$))"
    r"(?P<what>[\w'’-]+(?:\s+[\w'’&-]+){0,5})\s*[.?!]*",
    re.IGNORECASE,
)
# Words with which a query says more than what it points to, and what has no technical quality
_SAYS_MORE = re.compile(
    r"\b(is|are|was|were|do|does|did|has|have|can|could|should|would|will|looks?|seems?|need|rate|score|explain|tell|describe|assess|judge"
    r"|compare|check|use|using|why|how|who|what|when|where|which|if|not|more|less|better|worse|ones?|it|you|me|i|we|ist|sind|est|es|son|very"
    r"|composition|mood|style|atmosphere|story|subject|meaning|title|aesthetics)\b",
    re.IGNORECASE,
)


def points_on(query: str) -> str | None:
    """What a query points to that says nothing else: "sky" in "And the sky?", "What about the sky?" or "The
    sky?". None for a query that stands by itself, or whose subject has no technical quality."""
    text = " ".join(query.strip(" ¿").split())
    found = _POINTS_ON.fullmatch(text)
    if found is None or _SAYS_MORE.search(found["what"]) or named_metrics(query, False):
        return None
    return found["what"]


def regions_pointed_to(query: str) -> list[str]:
    """The regions that a query only points to; none for a quality word ("And the noise?") and for a query
    that says more."""
    parts = re.split(r"\s*&\s*|\s+(?:and|or|und|oder|et|ou|y)\s+", points_on(query) or "")
    named = (re.sub(rf"^{_THE}", "", part, flags=re.IGNORECASE) for part in parts)
    return list(dict.fromkeys(region for part in named if (region := region_in(query, part))))


def carried_on(query: str, context: dict[str, Any] | None) -> list[str]:
    """The distortions that the last turn's query named, where this one only points on to a region."""
    turns = (context or {}).get("turns")
    return list(turns[-1]["distortions"]) if turns and regions_pointed_to(query) else []


def going_on(
    plan: PlannerOutput, query: str, context: dict[str, Any] | None
) -> tuple[PlannerOutput, list[str]]:
    """The plan of a query that only points on, of the last turn's type, for the distortions that were asked
    about there and with the region that it points to, and a line for each change; any other plan as it is."""
    turns = (context or {}).get("turns")
    if not turns or points_on(query) is None:
        return plan, []
    changes: dict[str, Any] = {"query_type": turns[-1]["query_type"]}
    if regions := regions_pointed_to(query):
        types = carried_on(query, context)
        changes |= {
            "query_scope": regions,
            "distortion_source": "Explicit" if types else "Inferred",
            "distortions": dict.fromkeys(regions, types) if types else None,
        }
    lines = [
        f"{name}: {getattr(plan, name)} → {value} (the query goes on from the last one)"
        for name, value in changes.items()
        if getattr(plan, name) != value
    ]
    return revised(plan, **changes), lines


def turn(query: str, answer: str, plan: PlannerOutput) -> dict[str, Any]:
    """What later turns learn of a turn: query, answer, query_type, and the distortions that the query named."""
    named = (plan.distortions or {}) if plan.distortion_source == "Explicit" else {}
    return {
        "query": whole_sentences(query, LONGEST_QUERY),
        "answer": whole_sentences(answer, LONGEST_ANSWER),
        "query_type": plan.query_type,
        "distortions": list(dict.fromkeys(kind for kinds in named.values() for kind in kinds)),
    }


def prior_context(turns: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """`PlannerInput.prior_context` of the latest turns; None where there are none."""
    return {"turns": list(turns[-MOST_TURNS:])} if turns else None


def earlier_lines(context: dict[str, Any] | None) -> list[str]:
    """The lines of a prompt that tell of earlier turns. Their texts are JSON strings, so that none can pose
    as instructions."""
    turns = (context or {}).get("turns", [])
    lines = (f"{_quoted(turn['query'])} was answered {_quoted(turn['answer'])}" for turn in turns)
    return ["Earlier in this conversation:", *lines] if turns else []


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
