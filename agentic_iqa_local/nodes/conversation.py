"""What Planner and Summarizer are told of the earlier turns of a conversation."""

import json
from collections.abc import Sequence
from typing import Any

from agentic_iqa_local.nodes.replies import whole_sentences

MOST_TURNS = 4
LONGEST_QUERY, LONGEST_ANSWER = 300, 200  # characters of an earlier turn


def turn(query: str, answer: str) -> dict[str, str]:
    """What later turns learn of a turn."""
    return {"query": whole_sentences(query, LONGEST_QUERY), "answer": whole_sentences(answer, LONGEST_ANSWER)}


def prior_context(turns: Sequence[dict[str, str]]) -> dict[str, Any] | None:
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
