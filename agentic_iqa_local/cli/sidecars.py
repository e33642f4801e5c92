"""--xmp and --undo: the sidecars of a command's pictures."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.cli.options import UsageError

if TYPE_CHECKING:
    from agentic_iqa_local.judgement.comparison import Group
    from agentic_iqa_local.output.sidecars import Sidecars


def sidecars_of(args: argparse.Namespace, pictures: Iterable[Path]) -> "Sidecars | None":
    """The sidecars that --xmp asks for. Raises UsageError."""
    if not getattr(args, "xmp", None):  # compare has no such option
        return None
    from agentic_iqa_local.output.sidecars import Sidecars
    from agentic_iqa_local.output.xmp import SidecarError

    try:
        return Sidecars(args.xmp, pictures)
    except SidecarError as error:
        raise UsageError(f"--xmp {args.xmp}: {error.message}", error.remedy) from None


def take_back(pictures: Sequence[Path]) -> int:
    """Undoes what was written to the sidecars of pictures, of both kinds; the exit status."""
    from agentic_iqa_local.output.sidecars import Sidecars

    sidecars = Sidecars("darktable", [])  # whichever kind: nothing is written
    for picture in pictures:
        sidecars.undo(picture)
    return told(sidecars, "taken back")


def mark_best(sidecars: "Sidecars | None", groups: Iterable["Group"]) -> None:
    """Says of each group with several pictures which one is the best; what was said earlier of the
    others is taken back."""
    if sidecars is None:
        return
    for group in groups:
        for ranked in group.order:
            row = ranked.assessment
            if row is group.best and len(group.order) > 1:
                sidecars.pick(row.image, _words_of_best(group))
            else:
                sidecars.pass_over(row.image)


def _words_of_best(group: "Group") -> str:
    """Why the best of a group is that, without the number of the group."""
    from agentic_iqa_local.output.comparison_report import rounded
    from agentic_iqa_local.output.words import trial_notice

    best = group.order[0].assessment
    said = f"the best of {len(group.order)} of one scene"
    if group.probability is not None:
        said += f" with probability {rounded(group.probability)}"
    if group.reason:
        said += f": {group.reason}"
    return f"{said}; {best.answer}{trial_notice(best)}"


def told(sidecars: "Sidecars | None", done: str = "written") -> int:
    """Says what became of the sidecars; the exit status: 1 where one was left alone."""
    if sidecars is None:
        return 0
    for line in sidecars.account(done):
        tell(line)
    return int(bool(sidecars.failed))
