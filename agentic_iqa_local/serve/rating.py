"""A session in which a person rates the pictures of a folder, and what was learned from them so far
is shown: its state, which threads share, and the worker that describes pictures and learns."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local.batch.rating_file import RatingFile
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.described import Description, DescriptionError
from agentic_iqa_local.judgement.learning import (
    FEWEST_SCENES,
    LearningError,
    Trial,
    rated_of,
    tried,
)
from agentic_iqa_local.judgement.suggestion import most_informative
from agentic_iqa_local.serve.asks import Refused

CHOICE = 400  # pictures of a large folder, drawn at random, from which the next one is chosen
AHEAD = 12  # pictures that are described before anything is learned
EVERY = 5  # ratings between two trials
LASTING = 20  # ratings that must have raised SRCC, or more of them change little
LITTLE = 0.01  # of SRCC
SEED = 20261128


@dataclass(frozen=True)
class Step:
    """What was learned from the first ratings: SRCC of q with them, with the eye and without, and
    the probability that it helps."""

    ratings: int
    srcc: float
    srcc_without: float
    helped: float
    holds: bool


class RatingSession:
    """Ratings of `pictures`, which are kept in `file`; `describe` is asked for each picture once,
    by the thread that runs `work`. Several threads may call the methods."""

    def __init__(
        self, pictures: Sequence[Path], file: RatingFile, describe: Callable[[Path], Description]
    ) -> None:
        self.pictures = list(pictures)
        self.file = file
        self._describe = describe
        self._descriptions: dict[int, Description] = {}
        self._failed: set[int] = set()
        self._skipped: set[int] = set()
        self._chosen: list[int] = []  # the picture that is shown, and the next one
        self._steps: list[Step] = []
        self._advice = ""
        self._ended = False
        self._changed = threading.Condition()
        numbers = {picture.resolve(): number for number, picture in enumerate(self.pictures)}
        self._ratings: dict[int, int] = {}
        for name, rating in file.rows:
            number = numbers.get(file.path_of(name).resolve())
            if number is not None:
                self._ratings[number] = rating
        others = [n for n in range(len(self.pictures)) if n not in self._ratings]
        random.Random(SEED).shuffle(others)
        self._choice = others[:CHOICE]

    def state(self) -> dict[str, Any]:
        """What the page shows."""
        with self._changed:
            self._choose()
            picture, following, *_ = [*self._chosen, None, None]
            return {
                "picture": picture,
                "name": None if picture is None else one_line(self.pictures[picture].name),
                "following": following,
                "finished": picture is None and not self._open(),
                "rated": len(self._ratings),
                "of": len(self.pictures),
                "skipped": len(self._skipped),
                "failed": len(self._failed),
                "steps": [vars(step) for step in self._steps],
                "advice": self._advice or _first_advice(len(self._ratings)),
            }

    def rate(self, number: int, rating: int) -> None:
        """Keeps a rating. Raises Refused for a picture that has one, WriteError."""
        with self._changed:
            if number in self._ratings:
                raise Refused(409, "rated", "this picture has a rating", "undo it first")
            self.file.add(self.pictures[number], rating)
            self._ratings[number] = rating
            self._changed.notify_all()

    def skip(self, number: int) -> None:
        """A picture that is not to be shown again in this session."""
        with self._changed:
            self._skipped.add(number)
            self._changed.notify_all()

    def undo(self) -> None:
        """Takes back the latest rating. Raises WriteError."""
        with self._changed:
            picture = self.file.undo()
            for number in list(self._ratings):
                if picture and self.pictures[number].resolve() == picture.resolve():
                    del self._ratings[number]
                    self._choice.append(number)
                    self._chosen.insert(0, number)
            self._steps = [step for step in self._steps if step.ratings <= len(self._ratings)]

    def end(self) -> None:
        """Lets `work` return."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def work(self) -> None:
        """Describes pictures and learns until the session ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._job())
                if self._ended:
                    return
                job = self._job()
            assert job
            job()

    def _open(self) -> list[int]:
        """The pictures that may come next, described or not."""
        done = self._skipped | self._failed | self._ratings.keys()
        return [number for number in self._choice if number not in done]

    def _choose(self) -> None:
        """Keeps the picture that is shown until it is rated or skipped, and chooses what is missing
        of it and the next one, as far as pictures are described."""
        open_pictures = [n for n in self._open() if n in self._descriptions]
        self._chosen = [number for number in self._chosen if number in open_pictures]
        while len(self._chosen) < 2:
            candidates = [number for number in open_pictures if number not in self._chosen]
            if not candidates:
                return
            self._chosen.append(self._most_informative(candidates))

    def _most_informative(self, candidates: list[int]) -> int:
        """Of described pictures the one to rate next, as if those that are chosen had ratings."""
        known = list(self._descriptions)
        place = {number: at for at, number in enumerate(known)}
        rated = [place[n] for n in (*self._ratings, *self._chosen) if n in place]
        statistics = np.array([self._descriptions[n].statistics for n in known], float)
        return known[most_informative(statistics, rated, [place[n] for n in candidates])]

    def _job(self) -> Callable[[], None] | None:
        """What the worker does next: describe what was rated, describe a few pictures ahead, learn,
        describe the rest."""
        for number in (*self._ratings, *self._open()):
            if number in self._descriptions or number in self._failed:
                continue
            ahead = sum(n in self._descriptions for n in self._open())
            if number not in self._ratings and ahead >= AHEAD and self._is_due():
                break
            return lambda: self._describe_one(number)
        return self._learn if self._is_due() else None

    def _is_due(self) -> bool:
        known = sum(number in self._descriptions for number in self._ratings)
        last = self._steps[-1].ratings if self._steps else FEWEST_SCENES - EVERY
        return known >= last + EVERY

    def _describe_one(self, number: int) -> None:
        try:
            description = self._describe(self.pictures[number])
        except DescriptionError:
            with self._changed:
                self._failed.add(number)
            return
        with self._changed:
            self._descriptions[number] = description

    def _learn(self) -> None:
        with self._changed:
            known = [n for n in self._ratings if n in self._descriptions]
            descriptions = [self._descriptions[n] for n in known]
            levels = np.array([self._ratings[n] for n in known], float)
        try:
            trial = tried(rated_of(descriptions, levels, relative=False))
            step = _step(len(known), trial)
            advice = ""
        except LearningError as error:
            step = Step(len(known), 0.0, 0.0, 0.0, False)
            advice = one_line(str(error))
        with self._changed:
            self._steps.append(step)
            self._advice = advice or advice_after(self._steps)


def _step(count: int, trial: Trial) -> Step:
    holds = trial.proof.holds
    return Step(count, trial.srcc, trial.srcc_without, trial.proof.helped, holds)


def _first_advice(count: int) -> str:
    if count >= FEWEST_SCENES:
        return "Learning from your ratings …"
    more = FEWEST_SCENES - count
    return f"{more} more until the first look at what your ratings teach."


def advice_after(steps: Sequence[Step]) -> str:
    """Whether it is worth to rate more."""
    last = steps[-1]
    if not last.holds:
        return f"After {last.ratings} ratings it is not sure yet that an eye orders your pictures better than q."
    before = [step.srcc for step in steps if step.ratings <= last.ratings - LASTING]
    if before and last.srcc - max(before) < LITTLE:
        return "More ratings of this folder change little now: your eye can be learned."
    return "Your eye helps already. More ratings still make it better."
