"""Comparisons, orders and groups of pictures as text for a terminal and as a table. Pure: results
in, lines out."""

import re
from collections.abc import Iterable

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.comparison import Comparison, Pair, Ranked, Ranking
from agentic_iqa_local.output.report import account, headline
from agentic_iqa_local.output.tables import Cells, as_csv, verdict_cells
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
        return _group_headline(result) if result.kind == "group" else _order(result)
    assert isinstance(result, Assessment)
    return headline(result)


def explain(result: Result) -> str:
    """A result in full: the readable account that `--explain` prints."""
    if isinstance(result, Comparison):
        return _comparison_account(result)
    if isinstance(result, Ranking):
        head = f"\n{_group_headline(result)}\n" if result.kind == "group" else ""
        return head + _order(result)
    assert isinstance(result, Assessment)
    return account(result)


def _comparison_account(found: Comparison) -> str:
    lines = wrapped(comparison_headline(found), indent="")
    for row in (found.first, found.second):
        interval = ""
        if row.interval:
            interval = f", 90 % interval {row.interval.low:.2f} to {row.interval.high:.2f}"
        lines += wrapped(f"{one_line(row.image)}: {row.answer}{interval}")
    if found.pair:
        lines += ["", *_pair_lines(found, found.pair)]
    return safe_lines(lines + bullets("Warnings", found.warnings))


def _order(found: Ranking) -> str:
    return safe_lines([*map(_place, found.order), *map(headline, found.failed)])


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
    fitted = f" ({pair.fitted_on})" if pair.fitted_on else ""
    better = f"P({one_line(found.first.image)} is better) = {pair.probability:.3f}"
    sentences = [
        f"{scene}, by perceptual hashes. {better}, computed from {_BASES[pair.basis]}{fitted};"
        " so two intervals that overlap can still be told apart."
    ]
    if found.first.pipeline == "letters":
        sentences.append(
            "Both scores are made without the agent's plan, so assess may give slightly others."
        )
    return wrapped(" ".join(sentences), indent="")


def _group_headline(found: Ranking) -> str:
    """One line: the best of a group, and how sure that is."""
    first = found.order[0]
    best = first.assessment.image
    if len(found.order) == 1:
        return one_line(f"Group {found.number}: {best} is alone, no other picture shows its scene")
    ahead = ""
    if first.better_than_next is not None:
        p = _rounded(first.better_than_next)
        ahead = f" (better than the second best with probability {p})"
    others = ", ".join(ranked.assessment.image for ranked in found.order[1:])
    said = f"{best} is the best of {len(found.order)}{ahead}; then {others}"
    return one_line(f"Group {found.number}: {said}{trial_notice(first.assessment)}")


def _place(ranked: Ranked) -> str:
    row, ahead = ranked.assessment, ""
    if ranked.better_than_next is not None:
        ahead = f"; better than the next with probability {_rounded(ranked.better_than_next)}"
    return one_line(f"{ranked.place}. {row.image}: {row.answer}{ahead}")


COLUMNS = ("kind", "group", "place", "image", "answer", "level", "q", "q_low", "q_high",
           "better_than_next", "error", "sha256")  # fmt: skip
CSV = re.compile(rb"\A\xef\xbb\xbf" + ",".join(COLUMNS).encode() + rb"\r?\n")


def comparison_csv(results: Iterable[Result]) -> str:
    """The pictures of each result from the best on, then those that failed, as CSV with a header.

    `place` is 1 for the best and empty for a picture that was not compared; `better_than_next` the
    probability that it is better than the one of the next place.
    """
    rows = []
    for result in results:
        for row, place in _places(result):
            rows.append({"kind": getattr(result, "kind", "failed")} | verdict_cells(row) | place)
    return as_csv(COLUMNS, rows)


def _places(result: Result) -> list[tuple[Assessment, Cells]]:
    """Each picture of a result with the cells of its place."""
    if isinstance(result, Ranking):
        return _places_of_order(result)
    if isinstance(result, Comparison):
        return _places_of_two(result)
    assert isinstance(result, Assessment)
    return [(result, {})]


def _places_of_order(found: Ranking) -> list[tuple[Assessment, Cells]]:
    places: list[tuple[Assessment, Cells]] = []
    for ranked in found.order:
        place = ranked.model_dump(include={"place", "better_than_next"})
        places.append((ranked.assessment, {"group": found.number} | place))
    return places + [(row, {}) for row in found.failed]


def _places_of_two(found: Comparison) -> list[tuple[Assessment, Cells]]:
    p, pair = found.probability, [found.first, found.second]
    if p is None:
        return [(row, {}) for row in pair]
    better, other = pair if p >= 0.5 else pair[::-1]
    last = {"place": 1 if found.better is None else 2}
    return [(better, {"place": 1, "better_than_next": max(p, 1 - p)}), (other, last)]
