"""Comparisons, orders and groups of pictures as CSV: a row for each picture."""

import io
from collections.abc import Iterable, Iterator
from typing import Any

from agentic_iqa_local.judgement.comparison import Comparison, OrderResult, Ranking
from agentic_iqa_local.judgement.groups import Group
from agentic_iqa_local.output.tables import write_csv
from agentic_iqa_local.result import Assessment

COLUMNS = (
    *("kind", "group", "place", "image", "answer", "level", "q", "q_low", "q_high"),
    *("better_than_next", "error", "sha256"),
)


def comparison_csv(results: Iterable[Comparison | OrderResult | Assessment]) -> str:
    """The pictures of each result from the best on, then those that failed, as CSV with a header.

    `place` is 1 for the best and empty for a picture that was not compared; `better_than_next` the
    probability that it is better than the one of the next place.
    """
    text = io.StringIO()
    write_csv(text, COLUMNS, (row for result in results for row in _rows(result)))
    return text.getvalue()


def _rows(result: Comparison | OrderResult | Assessment) -> Iterator[dict[str, Any]]:
    if isinstance(result, Assessment):
        yield _row("failed", result)
    elif isinstance(result, Comparison):
        yield from _pair(result)
    else:
        group = result.number if isinstance(result, Group) else None
        for ranked in result.order:
            yield _row(
                result.kind,
                ranked.assessment,
                group=group,
                place=ranked.place,
                better_than_next=ranked.better_than_next,
            )
        for row in result.failed if isinstance(result, Ranking) else ():
            yield _row(result.kind, row)


def _pair(found: Comparison) -> Iterator[dict[str, Any]]:
    if found.pair is None:
        yield from (_row(found.kind, row) for row in (found.first, found.second))
        return
    p = found.pair.probability
    ordered = (found.first, found.second) if p >= 0.5 else (found.second, found.first)
    yield _row(found.kind, ordered[0], place=1, better_than_next=max(p, 1 - p))
    yield _row(found.kind, ordered[1], place=1 if found.better is None else 2)


def _row(kind: str, row: Assessment, **cells: Any) -> dict[str, Any]:
    interval = row.interval
    return {
        "kind": kind,
        "image": row.image,
        "answer": None if row.error else row.final_answer,
        "level": row.level,
        "q": row.q,
        "q_low": interval and interval.low,
        "q_high": interval and interval.high,
        "error": row.error,
        "sha256": row.sha256,
    } | cells
