"""Comparisons, orders and groups of pictures as text for a terminal. Pure: results in, lines
out."""

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.comparison import Comparison, Group, Pair, Ranked, Ranking
from agentic_iqa_local.output.report import account, headline
from agentic_iqa_local.output.words import safe_lines, trial_notice, wrapped
from agentic_iqa_local.result import Assessment, Result


def headline_of(result: Result) -> str:
    """A result in short."""
    if isinstance(result, Comparison):
        return safe_lines(wrapped(comparison_headline(result), indent=""))
    if isinstance(result, Group):
        return _group_headline(result)
    if isinstance(result, Ranking):
        return _order(result)
    assert isinstance(result, Assessment)
    return headline(result)


def explain(result: Result) -> str:
    """A result in full: the readable account that `--explain` prints."""
    if isinstance(result, Comparison):
        return _comparison_account(result)
    if isinstance(result, Group):
        return f"\n{_group_headline(result)}\n{_order(result)}"
    if isinstance(result, Ranking):
        return _order(result)
    assert isinstance(result, Assessment)
    return account(result)


def _comparison_account(found: Comparison) -> str:
    lines = wrapped(comparison_headline(found), indent="")
    for row in (found.first, found.second):
        lines += wrapped(headline(row))
    if found.pair:
        lines += ["", *_pair_lines(found, found.pair)]
    for row in (found.first, found.second):
        for line in row.warnings:
            lines += wrapped(f"Warning: {row.image}: {line}", indent="")
    return safe_lines(lines)


def _pair_lines(found: Comparison, pair: Pair) -> list[str]:
    scene = "The same scene" if pair.same_scene else "Different scenes"
    fitted = f" on {pair.fitted_on}" if pair.fitted_on else ""
    better = f"P({one_line(found.first.image)} is better) = {pair.probability:.3f}"
    said = f"{scene}, by perceptual hashes. {better}; basis: {pair.basis}{fitted}."
    return wrapped(said, indent="")


def comparison_headline(found: Comparison) -> str:
    """One line: which picture is better, and how probable that is."""
    names = f"{one_line(found.first.image)} and {one_line(found.second.image)}"
    if found.pair is None:
        return one_line(f"{names}: not compared: {found.error}")
    if found.better is None:
        return one_line(f"{names}: neither is better")
    p = max(found.pair.probability, 1 - found.pair.probability)
    other = found.second if found.better is found.first else found.first
    said = f"{found.better.image}: better than {other.image} (probability {rounded(p)})"
    return one_line(f"{said}{trial_notice(other)}")


def rounded(p: float) -> str:
    """A probability as text: above 0.99 it is not told apart."""
    return f"{p:.2f}" if p < 0.995 else "above 0.99"


def _order(found: Ranking) -> str:
    return safe_lines([*map(_place, found.order), *map(headline, found.failed)])


def _place(ranked: Ranked) -> str:
    ahead = ""
    if ranked.better_than_next is not None:
        ahead = f"; better than the next with probability {rounded(ranked.better_than_next)}"
    row = ranked.assessment
    return one_line(f"{ranked.place}. {row.image}: {row.answer}{ahead}")


def _group_headline(found: Group) -> str:
    """Which picture of a group to keep, how sure that is and why."""
    images = [ranked.assessment.image for ranked in found.order]
    notice = trial_notice(found.order[0].assessment)
    return safe_lines(
        wrapped(f"Group {found.number}: {_verdict(found, images)}{notice}", indent="")
    )


def _verdict(found: Group, images: list[str]) -> str:
    if len(images) == 1:
        return f"{images[0]} stands alone"
    if found.series:
        return f"{found.series} of {len(images)}, kept whole: {', '.join(sorted(images))}"
    if found.verdict == "undecided":
        rest = f" of {len(images)}" if len(found.undecided) < len(images) else ""
        return f"undecided between {', '.join(found.undecided)}{rest}"
    assert found.probability is not None
    others = f"the best of {len(images)} with probability {rounded(found.probability)}"
    reason = f": {found.reason}" if found.reason else ""
    return f"keep {images[0]}, {others}{reason}"
