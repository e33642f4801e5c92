"""An eye: what one person's ratings taught about LocalNR's statistics, as a tool that scores other
pictures. `judgement/learning.py` makes one.

A folder holds it: `card.json` says what it was learned from and how far it can be trusted, and
`eye.safetensors` has its numbers. No picture is in either.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from agentic_iqa_local.files import FileError, file_hash, read_bytes, read_json, reason, write_whole
from agentic_iqa_local.iqa_tools.calibration import HIGHEST, LOWEST
from agentic_iqa_local.iqa_tools.specs import LOCAL_NR, FileRecord, ToolError
from agentic_iqa_local.state import revised

CARD, NUMBERS = "card.json", "eye.safetensors"
LARGEST = 2**28  # bytes of the numbers: about 30,000 pictures
FARTHEST = 5.0  # standard deviations from the rated pictures' mean; what lies beyond says no more
SMALLEST = 1e-6  # a standard deviation below it counts as none

Share = Annotated[float, Field(ge=0, le=1)]
Correlation = Annotated[float, Field(ge=-1, le=1)]


class CurvePoint(FileRecord):
    """SRCC of q with an eye that was learned from this many ratings and without it, on the pictures
    left out: means over `draws`, in `worse` of which it was lower with the eye."""

    ratings: int = Field(ge=1)
    srcc: Correlation
    srcc_without: Correlation
    draws: int = Field(ge=1)
    worse: int = Field(ge=0)


class EyeCard(FileRecord):
    """What an eye was learned from, and how it did on ratings that it was not learned from.

    Levels are those of the 1..5 scale. `scale` are the ends of the person's scale, the worst first.
    `srcc` and `srcc_without` are of q with the eye and without it against the ratings, by
    cross-validation over scenes; `agreement` is the SRCC of the eye alone and of each tool, and
    `helped` is the bootstrap probability that the eye raised that of q.
    `sigma` is the standard deviation of the eye's error. `errors` are the ratings minus q with the
    eye, by cross-validation, and `voters` are the tools whose mean that q was made of: intervals
    are made of them. A picture is unlike the rated ones
    if the nearest of them is further away than `farthest`.
    """

    format: Literal[1] = 1
    date: str
    ratings: int = Field(ge=1)
    pictures: tuple[str, ...] = Field(min_length=1)  # SHA-256 of each rated file
    scenes: int = Field(ge=1)
    people: int = Field(ge=1)
    disagreement: float | None = None  # standard deviation between people, in levels
    scale: tuple[float, float] | None = None  # None: pairs were compared
    local_nr: str  # SHA-256 of its weights
    model: str  # hash of the folder of the model whose letters q was made of
    learner: Literal["ridge", "correction"]
    srcc: Correlation
    srcc_without: Correlation
    agreement: dict[str, Correlation]
    helped: Share
    forced: bool = False
    curve: tuple[CurvePoint, ...] = ()
    sigma: float = Field(gt=0)
    errors: tuple[float, ...] = Field(min_length=1)
    voters: tuple[str, ...]
    farthest: float = Field(gt=0)


class EyeReading(NamedTuple):
    """What an eye says of a picture: a level, 1..5; and how far the nearest rated picture is, in
    units of the farthest that still counts as like them."""

    level: float
    distance: float

    @property
    def unlike(self) -> bool:
        """Whether the picture is unlike all that were rated, so that the eye knows nothing of
        it."""
        return self.distance > 1


@dataclass(frozen=True)
class Standard:
    """How statistics are standardised: by the mean and the deviation of the rated pictures', (d,)
    each."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, statistics: np.ndarray) -> "Standard":
        """Of the rated pictures' statistics, (n, d)."""
        deviation = statistics.std(0)
        return cls(statistics.mean(0), np.where(deviation < SMALLEST, 1.0, deviation))

    def __call__(self, statistics: np.ndarray) -> np.ndarray:
        """Standardised statistics, (…, d), within ±FARTHEST."""
        return np.clip((statistics - self.mean) / self.deviation, -FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Eye:
    """A learned eye: level = bias + slope · LocalNR's level + weights · standardised statistics.
    `rated` are the standardised statistics of the rated pictures, (n, d)."""

    card: EyeCard
    standard: Standard
    rated: np.ndarray
    weights: np.ndarray
    bias: float
    slope: float

    def as_forced(self) -> Self:
        """The same, whose card says that it was kept without a proof that it helps."""
        return dataclasses.replace(self, card=revised(self.card, forced=True))

    def read(self, statistics: np.ndarray, local_nr: float) -> EyeReading:
        """What the eye says of a picture by LocalNR's statistics of it, (d,), and its level."""
        standardised = self.standard(statistics)
        level = self.bias + self.slope * local_nr + float(self.weights @ standardised)
        nearest = float(np.sqrt(((self.rated - standardised) ** 2).sum(1).min()))
        return EyeReading(min(max(level, LOWEST), HIGHEST), nearest / self.card.farthest)


def write_eye(folder: Path, eye: Eye) -> None:
    """Writes an eye into a folder, which is made if it is not there. Raises WriteError."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {
        "mean": eye.standard.mean,
        "deviation": eye.standard.deviation,
        "weights": eye.weights,
        "line": np.array([eye.bias, eye.slope]),
    }
    arrays = {name: np.ascontiguousarray(array, np.float64) for name, array in numbers.items()}
    write_whole(folder / NUMBERS, save(arrays | {"rated": eye.rated.astype(np.float16)}))
    write_whole(folder / CARD, eye.card.model_dump_json(indent=2) + "\n")


def local_nr_hash() -> str:
    """The SHA-256 of those of LocalNR's two files of weights, whose statistics and level an eye
    reads."""
    hashes = "".join(file_hash(file) for file in LOCAL_NR)
    return hashlib.sha256(hashes.encode()).hexdigest()


def read_eye(folder: Path) -> Eye:
    """The eye in a folder. Raises ToolError where it is none, or was learned with another
    LocalNR."""
    card = _card(folder / CARD)
    if card.local_nr != local_nr_hash():
        said = f"{folder}: expected an eye of this LocalNR, it was learned with another"
        raise ToolError(said, "learn it anew from the same ratings.")
    try:
        arrays = load(read_bytes(folder / NUMBERS, LARGEST))
        bias, slope = arrays["line"]
        standard = Standard(arrays["mean"], arrays["deviation"])
        rated, weights = arrays["rated"].astype(np.float64), arrays["weights"]
        # one product tells whether the parts fit each other and are numbers
        sound = np.isfinite((standard(rated) @ weights).sum() + bias + slope)
    except (KeyError, ValueError, FileError, SafetensorError) as error:
        raise ToolError(
            f"{folder / NUMBERS}: expected the numbers of an eye", "learn it anew."
        ) from error
    if not sound:
        raise ToolError(f"{folder / NUMBERS}: it holds no numbers", "learn it anew.")
    return Eye(card, standard, rated, weights, float(bias), float(slope))


def _card(file: Path) -> EyeCard:
    if not file.is_file():
        said = f"{file.parent}: expected an eye, but there is no {file.name} in it"
        raise ToolError(said, "name a folder that the command learn made.")
    try:
        return EyeCard.model_validate(read_json(file))
    except (FileError, ValidationError) as error:
        mistake = reason(error)
        said = f"{file}: expected the card of an eye: {mistake}"
        raise ToolError(said, "name a folder that the command learn made.") from error
