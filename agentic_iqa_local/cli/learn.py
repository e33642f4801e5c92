"""The command learn: an eye from a person's ratings, written only if it helps."""

import argparse
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

from agentic_iqa_local.batch.ratings import Ratings, read_ratings
from agentic_iqa_local.cli.console import Progress, say, tell
from agentic_iqa_local.cli.options import (
    STATE,
    UsageError,
    check_set_up,
    chosen_settings,
    device_of,
)
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import counted, one_line, percent
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.iqa_tools.eye import CARD, EyeCard, local_nr_hash, write_eye
from agentic_iqa_local.judgement.described import Describer, Description, DescriptionError
from agentic_iqa_local.judgement.learning import (
    HELPED,
    Proof,
    check_enough,
    learned,
    rated_of,
)
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import EYE, revised

NOT_SURE = 3  # the exit status where nothing is written
MORE = 40  # ratings that a person is asked for
UNRELATED = 0.2  # SRCC, below which ratings follow nothing that is seen
HARDLY = 0.5  # probability that the eye helps, below which more ratings hardly change it
DESCRIPTIONS = STATE / "agentic-iqa" / "descriptions"


def learn(args: argparse.Namespace) -> int:
    """Learns an eye; the exit status. Raises UserError."""
    ratings = read_ratings(args.ratings, args.scale, lower_is_better=args.lower_is_better)
    check_enough(len(ratings.pictures), ratings.levels)
    check_folder(args.out)
    settings = chosen_settings(args)
    check_set_up(settings, "letters")
    found: dict[int, Description] = {}
    try:
        return _learn(args, ratings, settings, found)
    except KeyboardInterrupt:
        done = f"{len(found)} of {counted(len(ratings.pictures), 'picture')}"
        tell(f"interrupted: what was measured of {done} is kept; the same command goes on")
        return 130


def _learn(
    args: argparse.Namespace, ratings: Ratings, settings: Settings, found: dict[int, Description]
) -> int:
    """Fills `found` with the pictures' descriptions and learns from them; the exit status. Raises
    UserError."""
    with closing(Services(without_eye(settings), device_of(args))) as services:
        describer = Describer(services, DESCRIPTIONS)
        for number, one in _described(ratings.pictures, describer):
            found[number] = one
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
        say(one_line(refusal(proof, eye.card, args.out)))
        return NOT_SURE
    write_eye(args.out, eye if proof.holds else eye.as_forced())
    unproven = "" if proof.holds else ", although nothing shows that it helps"
    tell(one_line(f"{args.out}: written{unproven}; assess pictures with --eye {args.out}"))
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


def refusal(proof: Proof, card: EyeCard, out: Path) -> str:
    """Why no eye was written, and what the person can do, in one line."""
    unsure = f"that it helps (at least {percent(HELPED)} is needed)"
    if proof.helped >= HELPED:
        probability = f"probability {percent(proof.positive)}, at least {percent(HELPED)} is needed"
        unsure = f"that q with it follows your ratings at all ({probability})"
    advice = f"Rate about {MORE} more pictures and type the same command again"
    if max(card.srcc, card.srcc_without) < UNRELATED:
        advice = (
            "Your ratings follow nothing that it sees of pictures; look whether each stands beside its picture,"
            f" and else rate for damage and sharpness, about {MORE} more pictures"
        )
    elif proof.helped < HARDLY:
        advice = (
            "q orders these pictures as you do without it; more ratings will hardly change that"
        )
    return (
        f"Nothing was written to {out}: it is not sure enough {unsure}. {advice}. With --force it writes"
        " the eye all the same, and answers will say so."
    )


def account(card: EyeCard) -> str:
    """What was learned, for a person."""
    people = "" if card.people == 1 else f" by {card.people} people"
    lines = [
        f"{counted(card.ratings, 'rating')}{people} of {counted(card.scenes, 'scene')}.",
        "How well q orders your pictures as you do, of those that it had not learned from"
        " (SRCC: 1 is your order, 0 has nothing to do with it):",
    ]
    for point in card.curve:
        orders = f"{point.srcc_without:.2f} without the eye, {point.srcc:.2f} with it"
        lines.append(f"  from {point.ratings} ratings: {orders}")
    orders = f"{card.srcc_without:.2f} without the eye, {card.srcc:.2f} with it"
    lines.append(
        f"  from all: {orders}; the eye helps with a probability of {percent(card.helped)}"
    )
    alone = ", ".join(f"{name} {srcc:.2f}" for name, srcc in card.agreement.items())
    lines.append(f"  each tool alone: {alone}")
    lines.append(f"{EYE} misses your rating by about {card.sigma:.2f} of five levels.")
    return "\n".join(lines)
