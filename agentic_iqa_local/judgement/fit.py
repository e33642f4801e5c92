"""A fitted temperature of the letters and η of the tools' weights, and what calibrates the intervals of q, as
`study fit` writes them and `assess --fit` reads them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, read_json, write_whole
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.text import one_line

Objective = Literal["rps", "srcc", "spread", "keep"]
LOWEST, HIGHEST = 0.1, 10.0  # of temperature and η
SCALES: dict[Objective, tuple[str, str]] = {
    "rps": ("ranked probability score", "lower is better"),
    "srcc": ("SRCC", "higher is better"),
    "spread": ("difference in spread between letters and tools, in levels", "lower is better"),
}
LARGEST_FIT = 2**26  # bytes: it names every image that it was made on
FORMAT = 3  # of the file; the first had SRCC with its sign turned around, the second no intervals


class FitError(UserError, ValueError):
    """Rows that nothing can be fitted on, or a file that is no fit; one sentence for the user."""


@dataclass(frozen=True)
class Fit:
    """A fitted temperature and η with where they come from. A report must leave out the rows of `keys` and of
    the scenes `groups` of the same data set (`dataset` is its key).

    `before` and `after` are the objective with the configuration's parameters and with these, as a reader
    knows it: SRCC in -1..1 (higher is better), the ranked probability score in 0..1 (lower is better), or by
    how many levels the spread of the letters' E[level] differs from the spread of the tools' mean (lower is
    better). "keep" fits neither: both stay as configured, and `before` and `after` are 0. `intervals`
    calibrates the intervals of q as these parameters make it; None where there is too little to do so.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    temperature: float
    eta: float | Literal["auto"]
    objective: Objective
    before: float
    after: float
    dataset: str
    model: str
    keys: tuple[str, ...]
    groups: tuple[str, ...] = ()
    intervals: IntervalCalibration | None = None

    def used(self, row: Mapping[str, Any]) -> bool:
        """Whether the fit has seen the row, or another of its scene."""
        return row["key"] in self.keys or row["group"] in self.groups

    @property
    def source(self) -> str:
        return one_line(f"{self.objective} on {len(self.keys)} images of {self.dataset}")

    @property
    def account(self) -> str:
        """What was gained, in one sentence."""
        if self.objective == "keep":
            return (
                f"{len(self.keys)} images of {one_line(self.dataset)}, with temperature and η as configured"
            )
        name, direction = SCALES[self.objective]
        gain = f"{self.before:.4f} → {self.after:.4f} ({direction})"
        if self.before == self.after:
            gain = f"{self.after:.4f} ({direction}) before and after: nothing to gain"
        of = f"{len(self.keys)} images of {one_line(self.dataset)}"
        return f"{name} on {of}: {gain}, with temperature {self.temperature:.3f} and η {self.eta:.3f}"

    def write(self, file: Path) -> None:
        """Raises WriteError."""
        fields = TypeAdapter(Fit).dump_python(self, mode="json")
        write_whole(file, json.dumps({"format": FORMAT} | fields))


def read_fit(file: Path) -> Fit:
    """Raises FitError for a file that is none, or of a later format."""
    try:
        fields = read_json(file, LARGEST_FIT)
        version = fields.pop("format", 1)
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise FileError(f"format {version!s:.20}, which a later version writes")
        fit = TypeAdapter(Fit).validate_json(json.dumps(fields), strict=True)
    except FileError as error:
        raise FitError(f"{file}: expected a fit that study.py wrote, got: {error}") from error
    except ValidationError as error:
        raise FitError(f"{file}: expected a fit that study.py wrote, got: {first_mistake(error)}") from error
    if version == 1 and fit.objective == "srcc":
        fit = replace(fit, before=-fit.before, after=-fit.after)
    fitted = (fit.temperature, *([] if fit.eta == "auto" else [fit.eta]))
    if not all(LOWEST <= value <= HIGHEST for value in fitted):
        raise FitError(
            f"{file}: expected temperature and eta from {LOWEST} to {HIGHEST}, got {fit.temperature} and"
            f" {fit.eta}"
        )
    return fit
