"""The command learn: an eye from a person's ratings, written only if it helps."""

import argparse
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

from agentic_iqa_local.batch.ratings import read_ratings
from agentic_iqa_local.cli.console import Progress, say, tell
from agentic_iqa_local.cli.options import (
    STATE,
    UsageError,
    check_set_up,
    chosen_settings,
    device_of,
)
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.iqa_tools.eye import CARD, EyeCard, local_nr_hash, write_eye
from agentic_iqa_local.judgement.described import Describer, Description, DescriptionError
from agentic_iqa_local.judgement.learning import (
    HELPED,
    check_enough,
    learned,
    rated_of,
)
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import EYE, revised

NOT_SURE = 3  # the exit status where nothing is written
MORE = 40  # ratings that a person is asked for
DESCRIPTIONS = STATE / "agentic-iqa" / "descriptions"


def learn(args: argparse.Namespace) -> int:
    """Learns an eye; the exit status. Raises UserError."""
    ratings = read_ratings(args.ratings, args.scale, lower_is_better=args.lower_is_better)
    check_enough(len(ratings.pictures), ratings.levels)
    check_folder(args.out)
    settings = chosen_settings(args)
    check_set_up(settings, "letters")
    with closing(Services(without_eye(settings), device_of(args))) as services:
        describer = Describer(services, DESCRIPTIONS)
        found = dict(_described(ratings.pictures, describer))
    levels = ratings.levels[list(found)]
    eye, proof = learned(
        rated_of(list(found.values()), levels, relative=ratings.scale is None),
        date=date.today().isoformat(),
        ratings=ratings.given,
        pictures=tuple(one.sha256 for one in found.values()),
        people=ratings.people,
        disagreement=ratings.disagreement,
        scale=ratings.scale,
        local_nr=local_nr_hash(),
        model=folder_hash(settings.folder(settings.summarizer.backend)),
    )
    say(account(eye.card))
    if not proof.holds and not args.force:
        say(
            f"Nothing was written: your {counted(ratings.given, 'rating')} follow q as well as anything"
            f" learned from them (probability that the eye helps: {proof.helped:.2f}, wanted {HELPED});"
            f" rate about {MORE} more, or keep it with --force."
        )
        return NOT_SURE
    write_eye(args.out, eye if proof.holds else eye.as_forced())
    tell(one_line(f"{args.out}: written; assess pictures with --eye {args.out}"))
    return 0


def without_eye(settings: Settings) -> Settings:
    """The settings without an eye, since what is learned must not depend on another one."""
    return revised(settings, tools=revised(settings.tools, eye=None))


def check_folder(folder: Path) -> None:
    """Raises UsageError for a folder that holds something else than an eye."""
    if folder.exists() and not (folder / CARD).is_file() and any(folder.iterdir()):
        wrong = "expected a new folder, or one of an eye, there is something else in it"
        raise UsageError(f"--out {folder}: {wrong}", "choose another name")


def _described(
    pictures: tuple[Path, ...], describer: Describer
) -> Iterator[tuple[int, Description]]:
    """What is to be learned from, by the number of its picture; of what fails it is told why."""
    with Progress(len(pictures)) as progress:
        for number, picture in enumerate(pictures):
            failed = False
            try:
                yield number, describer(picture)
            except DescriptionError as error:
                tell(f"left out: {one_line(str(error))}")
                failed = True
            progress.count(failed)


def account(card: EyeCard) -> str:
    """What was learned, for a person."""
    people = "" if card.people == 1 else f" by {card.people} people"
    lines = [f"{counted(card.ratings, 'rating')}{people} of {counted(card.scenes, 'scene')}."]
    for point in card.curve:
        others = f"on the others {point.srcc:.2f}, without {point.srcc_without:.2f}"
        lines.append(f"SRCC of q learned from {point.ratings}: {others}.")
    lines.append(
        f"SRCC of q with your ratings, on pictures left out: {card.srcc_without:.2f} without the eye,"
        f" {card.srcc:.2f} with it; probability that it helps: {card.helped:.2f}."
    )
    alone = ", ".join(f"{name} {srcc:.2f}" for name, srcc in card.agreement.items())
    lines.append(f"Alone: {alone}. {EYE} is off by about {card.sigma:.2f} levels.")
    return "\n".join(lines)
