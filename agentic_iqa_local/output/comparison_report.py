"""Comparisons, orders and groups of pictures as text for a terminal and as a table. Pure: results in, lines out."""

import re
from collections.abc import Iterable, Iterator

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.comparison import Comparison, Pair, Ranked, Ranking
from agentic_iqa_local.output.report import account, headline
from agentic_iqa_local.output.tables import Row, as_csv, verdict_cells
from agentic_iqa_local.output.words import bullets, safe_lines, trial_notice, wrapped
from agentic_iqa_local.result import Assessment, Result

_BASES = {
    "same scene, fitted": "the difference of the scores, as fitted to pairs of one scene",
    "intervals": "the intervals of both",
    "fused distributions": "the probabilities of both pictures' levels",
}


def headline_of(result: Result) -> str:
    """A result in short."""
    if isinstance(result, Comparison):
        return safe_lines(wrapped(comparison_headline(result), indent=""))
    if isinstance(result, Ranking):
        lines = [*map(_place, result.order), *map(headline, result.failed)]
        return _group_headline(result) if result.kind == "group" else safe_lines(lines)
    assert isinstance(result, Assessment)
    return headline(result)


def explain(result: Result) -> str:
    """A result in full: the readable account that `--explain` prints."""
    if isinstance(result, Comparison):
        lines = wrapped(comparison_headline(result), indent="")
        for row in (result.first, result.second):
            interval = (
                row.interval
                and f", 90 % interval {row.interval.low:.2f} to {row.interval.high:.2f}"
            )
            lines += wrapped(f"{one_line(row.image)}: {row.answer}{interval or ''}")
        lines += ["", *_pair_lines(result, result.pair)] if result.pair else []
        return safe_lines(lines + bullets("Warnings", result.warnings))
    if isinstance(result, Ranking):
        head = ["", _group_headline(result)] if result.kind == "group" else []
        return safe_lines([*head, *map(_place, result.order), *map(headline, result.failed)])
    assert isinstance(result, Assessment)
    return account(result)


def comparison_headline(found: Comparison) -> str:
    """One line: which picture is better, and how probable that is."""
    names = f"{one_line(found.first.image)} and {one_line(found.second.image)}"
    if found.pair is None:
        return one_line(f"{names}: not compared: {found.error}")
    if found.better is None:
        return one_line(f"{names}: neither is better")
    p = max(found.pair.probability, 1 - found.pair.probability)
    other = found.second if found.better is found.first else found.first
    return one_line(
        f"{found.better.image}: better than {other.image} (probability {_rounded(p)}){trial_notice(other)}"
    )


def _rounded(p: float) -> str:
    return f"{p:.2f}" if p < 0.995 else "above 0.99"


def _pair_lines(found: Comparison, pair: Pair) -> list[str]:
    scene = "The same scene" if pair.same_scene else "Different scenes"
    basis = _BASES[pair.basis] + (f" ({pair.fitted_on})" if pair.fitted_on else "")
    better = f"P({one_line(found.first.image)} is better) = {pair.probability:.3f}, computed from {basis}"
    text = f"{scene}, by perceptual hashes. {better}; so two intervals that overlap can still be told apart."
    how = " Both scores are made without the agent's plan, so assess may give slightly others."
    return wrapped(text + how * (found.first.pipeline == "letters"), indent="")


def _group_headline(found: Ranking) -> str:
    """One line: the best of a group, and how sure that is."""
    best, sure = found.order[0].assessment.image, found.order[0].better_than_next
    if len(found.order) == 1:
        return one_line(f"Group {found.number}: {best} is alone, no other picture shows its scene")
    ahead = (
        "" if sure is None else f" (better than the second best with probability {_rounded(sure)})"
    )
    others = ", ".join(ranked.assessment.image for ranked in found.order[1:]) + trial_notice(
        found.order[0].assessment
    )
    return one_line(
        f"Group {found.number}: {best} is the best of {len(found.order)}{ahead}; then {others}"
    )


def _place(ranked: Ranked) -> str:
    row, sure = ranked.assessment, ranked.better_than_next
    ahead = "" if sure is None else f"; better than the next with probability {_rounded(sure)}"
    return one_line(f"{ranked.place}. {row.image}: {row.answer}{ahead}")


COLUMNS = ("kind", "group", "place", "image", "answer", "level", "q", "q_low", "q_high")
COLUMNS = (*COLUMNS, "better_than_next", "error", "sha256")
CSV = re.compile(rb"\A\xef\xbb\xbf" + ",".join(COLUMNS).encode() + rb"\r?\n")


def comparison_csv(results: Iterable[Result]) -> str:
    """The pictures of each result from the best on, then those that failed, as CSV with a header.

    `place` is 1 for the best and empty for a picture that was not compared; `better_than_next` the probability
    that it is better than the one of the next place.
    """
    rows = (
        {"kind": getattr(result, "kind", "failed")} | verdict_cells(row) | place
        for result in results
        for row, place in _places(result)
    )
    return as_csv(COLUMNS, rows)


def _places(result: Result) -> Iterator[tuple[Assessment, Row]]:
    """Each picture of a result with the cells of its place."""
    if isinstance(result, Ranking):
        for one in result.order:
            yield (
                one.assessment,
                {"group": result.number} | one.model_dump(include={"place", "better_than_next"}),
            )
        yield from ((row, {}) for row in result.failed)
    elif isinstance(result, Comparison) and (p := result.probability) is not None:
        better, other = (result.first, result.second) if p >= 0.5 else (result.second, result.first)
        yield better, {"place": 1, "better_than_next": max(p, 1 - p)}
        yield other, {"place": 1 if result.better is None else 2}
    elif isinstance(result, Comparison):
        yield from ((row, {}) for row in (result.first, result.second))
    elif isinstance(result, Assessment):
        yield result, {}
