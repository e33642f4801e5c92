"""Raw tool scores to the 1..5 quality scale: the five-parameter logistic, its check and its file.

The form is that of Sheikh, Sabir and Bovik, "A Statistical Evaluation of Recent Full Reference
Image Quality Assessment Algorithms", IEEE TIP 15(11), 2006 (the VQEG form):

    f(x) = b1 * (1/2 - 1 / (1 + exp(b2 * (x - b3)))) + b4 * x + b5

AgenticIQA (arXiv 2509.26006) prints it without the `1 +`; with that misprint most rows of its Table
5 map every image to the same value.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ValidationError, model_validator

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, read_yaml, reason
from agentic_iqa_local.iqa_tools.specs import FileRecord

LOWEST, HIGHEST = 1.0, 5.0
MIDDLE = 3.0  # a level that no tool is at an end with
FLAT = 0.05  # a map that spans less, in levels, says nothing
ROUNDING = 1e-9  # levels


class CalibrationError(UserError, ValueError):
    """A map, or a file of maps, that cannot be used; the message is one sentence for the user."""


def logistic_curve(b: Sequence[float] | np.ndarray, x: Any) -> Any:
    """f of this module's head at `x`, a number or an array, for the parameters b1..b5."""
    # 1/2 - 1/(1 + exp(t)) is tanh(t/2)/2, which overflows nowhere
    return b[0] * np.tanh(b[1] * (x - b[2]) / 2) / 2 + b[3] * x + b[4]


class LogisticMap(FileRecord):
    """One tool's map from its raw score to 1..5.

    `domain` is the raw range in which the map is checked and used; `lower_better` says which way
    the raw score runs; `source` says where the parameters come from and `fitted_on` names the data
    set (scores there are in-sample).
    """

    tool: str
    b1: float
    b2: float
    b3: float
    b4: float
    b5: float
    domain: tuple[float, float]
    lower_better: bool
    source: str
    fitted_on: str
    license: str | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _gives_numbers_over_a_range(self) -> Self:
        low, high = self.domain
        if low >= high:
            raise ValueError(f"expected domain [low, high] with low < high, got [{low}, {high}]")
        if not (math.isfinite(self.unclipped(low)) and math.isfinite(self.unclipped(high))):
            raise ValueError("expected numbers over the domain, the parameters are too large")
        return self

    def unclipped(self, raw: Any) -> Any:
        """The bare formula at `raw`, a number or an array: neither held inside the domain nor
        clipped to 1..5."""
        return logistic_curve((self.b1, self.b2, self.b3, self.b4, self.b5), raw)

    def __call__(self, raw: float) -> float:
        """Quality in [1, 5]. A raw score outside the domain counts as the domain's nearer end,
        where the map was checked; the result is clipped to the scale, so different raw scores may
        tie at 1 or 5. Raises CalibrationError for one that is not finite."""
        if not math.isfinite(raw):
            mistake = f"{self.tool}: expected a finite raw score, got {raw}"
            raise CalibrationError(mistake, "measure again.")
        low, high = self.domain
        quality = self.unclipped(min(high, max(low, raw)))
        return float(min(HIGHEST, max(LOWEST, quality)))

    @property
    def reachable(self) -> tuple[float, float]:
        """Lowest and highest quality that the map can return."""
        low, high = self.domain
        ends = self(low), self(high)
        return min(ends), max(ends)

    @property
    def monotone(self) -> bool:
        """Whether the map runs the right way all over the domain, and is not flat: seen at 1001
        places."""
        steps = np.diff(self.unclipped(np.linspace(*self.domain, 1001)))
        if self.lower_better:
            steps = -steps
        return bool(steps.min() >= -ROUNDING and steps.max() > ROUNDING)


class MapFile(FileRecord):
    """What a file of maps holds."""

    maps: tuple[LogisticMap, ...]


def read_map_file(path: str | Path) -> dict[str, LogisticMap]:
    """The maps by tool.

    Raises CalibrationError for an unreadable file, a malformed entry, a second map for a tool, or a
    map that is not monotone: a map that turns would rank a worse picture above a better one.
    """
    try:
        entries = MapFile.model_validate(read_yaml(path)).maps
    except (FileError, ValidationError) as error:
        expected = f"{path}: expected a YAML file with a list `maps` of entries"
        raise CalibrationError(f"{expected}: {reason(error)}.") from None
    maps: dict[str, LogisticMap] = {}
    for entry in entries:
        if entry.tool in maps:
            raise CalibrationError(f"{path}: the map of {entry.tool} is the second one")
        if not entry.monotone:
            raise CalibrationError(f"{path}: the map of {entry.tool} is not monotone")
        maps[entry.tool] = entry
    return maps
