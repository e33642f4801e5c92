"""Comparisons, orders and groups of pictures as CSV: a row for each picture."""

import io
from collections.abc import Iterable, Iterator
from typing import Any

from agentic_iqa_local.judgement.comparison import Comparison, Ranking
from agentic_iqa_local.output.tables import verdict_cells, write_csv
from agentic_iqa_local.result import Assessment, Result

COLUMNS = (
    *("kind", "group", "place", "image", "answer", "level", "q", "q_low", "q_high"),
    *("better_than_next", "error", "sha256"),
)


def comparison_csv(results: Iterable[Result]) -> str:
    """The pictures of each result from the best on, then those that failed, as CSV with a header.

    `place` is 1 for the best and empty for a picture that was not compared; `better_than_next` the probability
    that it is better than the one of the next place.
    """
    text = io.StringIO()
    write_csv(text, COLUMNS, (row for result in results for row in _rows(result)))
    return text.getvalue()


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    if isinstance(result, Assessment):
        yield _row("failed", result)
    elif isinstance(result, Comparison) and (p := result.probability) is not None:
        ordered = (result.first, result.second) if p >= 0.5 else (result.second, result.first)
        yield _row(result.kind, ordered[0], place=1, better_than_next=max(p, 1 - p))
        yield _row(result.kind, ordered[1], place=1 if result.better is None else 2)
    elif isinstance(result, Comparison):
        yield from (_row(result.kind, row) for row in (result.first, result.second))
    elif isinstance(result, Ranking):
        for ranked in result.order:
            cells = ranked.model_dump(include={"place", "better_than_next"})
            yield _row(result.kind, ranked.assessment, group=result.number, **cells)
        for row in result.failed:
            yield _row(result.kind, row)


def _row(kind: str, row: Assessment, **cells: Any) -> dict[str, Any]:
    answer = None if row.error else row.final_answer
    return {"kind": kind, "answer": answer} | verdict_cells(row) | cells
