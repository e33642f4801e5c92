"""What earlier turns of a conversation mean for the next: what Planner and Summarizer are told of them, and the rule
for a query that only points on ("And the sky?"). Pure: text in, text out."""

import json
import re
from collections.abc import Sequence
from typing import Any

from agentic_iqa_local.nodes.query import region_in
from agentic_iqa_local.nodes.replies import whole_sentences
from agentic_iqa_local.state import PlannerOutput, revised

MOST_TURNS = 4
LONGEST_QUERY, LONGEST_ANSWER = 300, 200  # characters of an earlier turn

_THE = r"(?:the|an?|its?|his|her|their|my|our|this|that|these|those|der|die|das|le|la|les|el|los|las) "
# "And the sky?", "What about her face", "The sky?", but nothing with a verb or a comparison
_POINTS_ON = re.compile(
    r"(?:(?:ok(?:ay)?|and|but|also|now|und|et|y)[\s,]+)*(?:(?:what|how) about |same for )?"
    rf"{_THE}(?!.*\b(?:is|are|was|were|do|does|did|has|have|can|could|should|would|will|looks?|seems?|why|how|if|not|more"
    r"|less|better|worse|ones?|ist|sind|est|es|son|very)\b)(?P<what>[\w'’-]+(?: [\w'’&-]+){0,5}) ?[.?!]*",
    re.IGNORECASE,
)


def regions_pointed_to(query: str) -> list[str]:
    """The regions that a query points to which says nothing else: "sky" in "And the sky?". None for a quality
    word ("And the noise?") and for any other query."""
    found = _POINTS_ON.fullmatch(" ".join(query.strip(" ¿").split()))
    parts = re.split(rf"(?: ?& ?| (?:and|or|und|oder|et|ou|y) )(?:{_THE})?", found["what"]) if found else []
    return list(dict.fromkeys(filter(None, (region_in(query, part) for part in parts))))


def going_on(plan: PlannerOutput, query: str, context: dict[str, Any]) -> tuple[PlannerOutput, list[str]]:
    """(the plan, distortions that the last turn's query named and this one goes on to ask about). A query that
    only points to regions is of the last turn's type and about them; any other plan stays as it is."""
    turns, regions = context.get("turns"), regions_pointed_to(query)
    if not (turns and regions):
        return plan, []
    return revised(plan, query_type=turns[-1]["query_type"], query_scope=regions), turns[-1]["distortions"]


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
    told = [
        " was answered ".join(json.dumps(one[part], ensure_ascii=False) for part in ("query", "answer"))
        for one in (context or {}).get("turns", [])
    ]
    return ["Earlier in this conversation:", *told] if told else []
