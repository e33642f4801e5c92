"""What earlier turns of a conversation mean for the next: the context that Planner and Summarizer are given,
and the rule for a query that only points on ("And the sky?"). Pure: text in, text out."""

import json
import re
from collections.abc import Sequence
from typing import Any

from agentic_iqa_local.nodes.query import named_metrics, region_called
from agentic_iqa_local.state import PlannerOutput, revised
from agentic_iqa_local.text import whole_sentences

MOST_TURNS = 4
LONGEST_QUERY, LONGEST_ANSWER = 300, 200  # characters of an earlier turn

_MOST_WORDS = 6  # of what a query points to
_LEAD = re.compile(
    r"[ ¿]*(?:ok(?:ay)?[\s,]+)?(?:"
    r"(?:(?:and|but|also|now|then)[\s,]+)?(?:what|how)\s+about\b"
    r"|(?:and\s+|now\s+)?(?:the\s+)?same\s+(?:question\s+)?(?:for|about|with)\b"
    r"|(?:and|also|but|now)\b(?:\s+(?:for|in|about|now)\b)?"
    r"|und\b|et\b|y\b|e\b|och\b|а\b|и\b|那么?|还有"
    r")[\s,]*",
    re.IGNORECASE,
)
_DETERMINER = re.compile(
    r"[ ¿]*(?:the|an?|its?|his|her|their|my|our|this|that|these|those|der|die|das|den|le|la|les|l['’]|el|los"
    r"|las|il|lo|o|os|as)(?:\s+|(?<=['’]))",
    re.IGNORECASE,
)
# Words that make a query say more than what it points to, or that point to nothing.
_SAYS_MORE = re.compile(
    r"(is|are|was|were|be|am|do|does|did|has|have|had|can|could|should|would|will|may|might|must|look\w*|seem\w*|appear\w*|need\w*"
    r"|rate|score|explain|tell|give|describe|say|list|assess|judge|compare\w*|check|write|count|evaluate|find|use|run|try|make|show"
    r"|why|how|who|whom|whose|what|when|where|which|if|because|than|or|not|more|less|better|worse|again|now|then|so|else"
    r"|its?|you|me|i|we|they|that|this|here|there|all|both|thanks|thank|please|yes|no|ok"
    r"|warum|wie|wer|was|wo|ist|sind|hat|pourquoi|comment|est|sont|por|qué|es|son|perché|come)",
    re.IGNORECASE,
)
_NOT_TECHNICAL = re.compile(
    r"compositions?|mood|moods|style|styles|atmosphere|emotions?|feeling|feelings|story|subjects?|titles?|meaning|message|artist|author"
    r"|photographer|location|place|season|weather|year|date|time|name|names|price|aesthetics?|beauty",
    re.IGNORECASE,
)


def points_on(query: str) -> str | None:
    """What a query points to that says nothing else: "sky" in "And the sky?", "What about the sky?" or "The
    sky?". None for a query that stands by itself, or whose subject has no technical quality."""
    text = " ".join(query.split()).rstrip(" .?!？。")
    lead = _LEAD.match(text) or (_DETERMINER.match(text) if query.rstrip().endswith("?") else None)
    if lead is None:
        return None
    determiner = _DETERMINER.match(text, lead.end())
    pointed = text[determiner.end() if determiner else lead.end() :].removesuffix("呢")
    words = re.findall(r"[^\W_]+", pointed)
    if not 0 < len(words) <= _MOST_WORDS or re.search(r"[.!?;:,]", pointed) or named_metrics(query, False):
        return None
    return (
        None
        if any(_SAYS_MORE.fullmatch(word) or _NOT_TECHNICAL.fullmatch(word) for word in words)
        else pointed
    )


def regions_pointed_to(query: str) -> list[str]:
    """The regions that a query only points to; none for a quality word ("And the noise?") and for a query
    that says more."""
    pointed = points_on(query)
    # "And for printing?"
    if pointed and re.search(rf"\b(?:in|for)\s+{re.escape(pointed)}", query, re.IGNORECASE):
        return []
    parts = re.split(r"\s*&\s*|\s+(?:and|or|und|oder|et|ou|y|e)\s+", pointed) if pointed else []
    named = (_DETERMINER.sub("", part, count=1) for part in parts)
    return list(dict.fromkeys(region for part in named if (region := region_called(query, part))))


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
    last = turns[-1]
    changes: dict[str, Any] = {"query_type": last["query_type"]}
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
    """What later turns learn of a turn: query, answer, query_type, and the distortions that the query
    named."""
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
