"""Comparisons, orders and groups of pictures as text for a terminal. Pure: results in, lines out."""

from collections.abc import Iterable

from agentic_iqa_local.judgement.comparison import CLOSE, Comparison, OrderResult, PairResult, Ranked, Ranking
from agentic_iqa_local.judgement.groups import Group
from agentic_iqa_local.output.report import headline, safe_lines, wrapped
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.text import one_line

BASES = {
    "same scene, fitted": "the differences between both, as fitted on pairs of one scene",
    "intervals": "the intervals of q, as if of different scenes",
    "fused distributions": "the fused distributions of the levels, as if of different scenes",
    "same pixels": "both being the same",
}


def comparison_headline(found: Comparison) -> str:
    """One line: which is better, and how probable that is."""
    names = one_line(found.first.image), one_line(found.second.image)
    if found.pair is None:
        return one_line(f"{names[0]} and {names[1]}: not compared: {found.error}")
    if found.better is None:
        return one_line(f"{names[0]} and {names[1]}: neither is better")
    p = max(found.pair.probability, 1 - found.pair.probability)
    sure = "hardly better than" if p <= CLOSE else "better than"
    other = found.second if found.better is found.first else found.first
    return one_line(f"{found.better.image}: {sure} {other.image} (probability {p:.2f})")


def comparison_account(found: Comparison) -> str:
    """The readable account of a comparison."""
    lines = wrapped(comparison_headline(found), indent="")
    for row in (found.first, found.second):
        lines += wrapped(_picture(row))
    if found.pair:
        lines += ["", *_pair_lines(found.pair)]
    return safe_lines(lines + _warning_lines(found.warnings))


def _picture(row: Assessment) -> str:
    interval = row.interval and f", 90 % interval {row.interval.low:.2f} to {row.interval.high:.2f}"
    return f"{one_line(row.image)}: {row.answer}{interval or ''}"


def _pair_lines(pair: PairResult) -> list[str]:
    scene = "The same scene" if pair.same_scene else "Different scenes"
    text = (
        f"{scene}: {pair.scene_distance:.0%} of the bits of their perceptual hashes differ. The probability"
        f" {pair.probability:.3f} that the first is better rests on {BASES[pair.basis]}"
        f"{f' ({pair.fitted_on})' if pair.fitted_on else ''}."
    )
    if pair.basis == "same scene, fitted":
        text += f" As pictures of different scenes it would be {pair.independent:.3f}."
    lines = wrapped(text, indent="")
    if read := pair.pairwise:
        lines += wrapped(
            f"Shown both, the model says {read.probability:.3f}; the one shown first gains"
            f" {read.order_bias:+.3f}, the letter A {read.letter_bias:+.3f}; its preference"
            f" {'changes' if read.flipped else 'stays'} when the order is reversed.",
            indent="",
        )
    return lines


def ranking_account(found: Ranking) -> str:
    """The readable account of an order."""
    return safe_lines(_order_lines(found) + _failed_lines(found.failed) + _warning_lines(found.notes))


def group_account(found: Group) -> str:
    """The readable account of a group of near-duplicates."""
    title = group_headline(found)
    return safe_lines(["", title, *_order_lines(found), *_warning_lines(found.notes)])


def group_headline(found: Group) -> str:
    """One line: the best of a group, and how sure that is."""
    if len(found.order) == 1:
        return one_line(f"Group {found.number}: {found.best} has no near-duplicate")
    sure = found.order[0].better_than_next
    return one_line(
        f"Group {found.number}: {found.best} is the best of {len(found.order)}"
        f"{'' if sure is None else f' (better than the next with probability {sure:.2f})'}"
    )


def headline_of(result: Comparison | Ranking | Group | Assessment) -> str:
    """A result in short."""
    if isinstance(result, Comparison):
        return comparison_headline(result)
    if isinstance(result, Group):
        return group_headline(result)
    if isinstance(result, Ranking):
        return safe_lines([*map(_place, result.order), *_failed_lines(result.failed)])
    return headline(result)


def account_of(result: Comparison | Ranking | Group | Assessment) -> str:
    """A result in full."""
    return group_account(result) if isinstance(result, Group) else result.explain()


def _order_lines(found: OrderResult) -> list[str]:
    lines = [_place(ranked) for ranked in found.order]
    if found.pairs:
        lines += ["", f"{len(found.pairs)} pairs compared, {found.pairwise_reads} of them read by the model."]
    return lines


def _place(ranked: Ranked) -> str:
    row = ranked.assessment
    sure = ranked.better_than_next
    ahead = "" if sure is None else f"; better than the next with probability {sure:.2f}"
    if sure is not None and sure < 0.5:  # the order follows from all pairs, and this one alone says otherwise
        ahead = f"; hardly told from the next (probability {sure:.2f})"
    return one_line(f"{ranked.place}. {row.image}: {row.answer}{ahead}")


def _failed_lines(failed: Iterable[Assessment]) -> list[str]:
    """A line for each picture that could not be assessed."""
    return [one_line(f"FAILED: {row.error}") for row in failed]


def _warning_lines(warnings: Iterable[str]) -> list[str]:
    lines = [line for text in warnings for line in wrapped(text)]
    return ["", "Warnings", *lines] if lines else []
