"""A fit of a study: the letters' temperature, the tools' η and a calibration of the intervals, as `study fit`
writes them and `assess --fit` reads them, and which calibration applies to a set-up."""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import FileError, first_mistake, folder_hash, read_bytes
from agentic_iqa_local.judgement.intervals import NO_FIT, SHIPPED, IntervalCalibration

Objective = Literal["rps", "srcc", "spread", "keep"]
LOWEST, HIGHEST = 0.1, 10.0  # of temperature and η
SCALES: dict[Objective, tuple[str, str]] = {
    "rps": ("ranked probability score", "lower is better"),
    "srcc": ("SRCC", "higher is better"),
    "spread": ("difference in spread between letters and tools, in levels", "lower is better"),
}
LARGEST_FIT = 2**26  # bytes: it names every image that it was made on
Within = Annotated[float, Field(ge=LOWEST, le=HIGHEST)]


class FitError(UserError, ValueError):
    """Rows that nothing can be fitted on, or a file that is no fit; one sentence for the user."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Fit:
    """A fitted temperature and η with where they come from.

    `before` and `after` are the objective with the configuration's parameters and with these: SRCC in -1..1, the
    ranked probability score in 0..1, or the difference between the spreads of the letters' E[level] and of the
    tools' mean in levels. "keep" fits neither, and both are 0. `intervals` calibrates the intervals of q with
    these parameters; None where there is too little to do so. A report leaves out the rows of `keys`, and of the
    scenes `groups`, of the same `dataset`.
    """

    temperature: Within
    eta: Within | Literal["auto"]
    objective: Objective
    before: float
    after: float
    dataset: str
    model: str
    keys: tuple[str, ...]
    groups: tuple[str, ...] = ()
    intervals: IntervalCalibration | None = None
    format: Literal[2, 3] = 3  # of the file: the second has no intervals

    def used(self, row: Mapping[str, Any]) -> bool:
        """Whether the fit has seen the row, or another of its scene."""
        return row["key"] in self.keys or row["group"] in self.groups

    @property
    def source(self) -> str:
        return one_line(f"{self.objective} on {len(self.keys)} images of {self.dataset}")

    @property
    def account(self) -> str:
        """What was gained, in one sentence."""
        images = f"{len(self.keys)} images of {one_line(self.dataset)}"
        if self.objective == "keep":
            return f"{images}, with temperature and η as configured"
        name, direction = SCALES[self.objective]
        parameters = f"temperature {self.temperature:.3f} and η {self.eta:.3f}"
        return f"{name} on {images}: {self.before:.4f} → {self.after:.4f} ({direction}), with {parameters}"

    def to_json(self) -> str:
        """The content of a fit's file."""
        return _FILE.dump_json(self).decode()


_FILE = TypeAdapter(Fit)
_parsed = lru_cache(maxsize=4)(partial(_FILE.validate_json, strict=True))  # once, not with each picture


def read_fit(file: Path) -> Fit:
    """The fit in a file. Raises FitError for a file that is none, or of another format."""
    try:
        return _parsed(read_bytes(file, LARGEST_FIT))
    except (FileError, ValidationError) as error:
        mistake = first_mistake(error) if isinstance(error, ValidationError) else error
        raise FitError(f"{file}: expected a fit that study.py wrote, got: {mistake}") from error


def calibration_for(settings: Settings, model: Mapping[str, Any]) -> tuple[IntervalCalibration | None, str | None]:
    """The calibration that applies to a set-up's answers.

    Args:
        settings: Which fit is configured (the one that ships by default), temperature and η, and the folder of
            the model that answers.
        model: The model's name, dtype and quantization, as its client describes it.

    Returns:
        The calibration and None, or None and the reason why there is none.

    Raises:
        FitError: The configured file is no fit.
    """
    configured = settings.decisions.calibration
    file = Path(configured) if configured else SHIPPED
    if not configured and not file.is_file():
        return None, f"no interval: none was calibrated; {NO_FIT}"
    calibration = read_fit(file).intervals
    if calibration is None:
        return None, f"no interval: {file} calibrates none; fit it anew with study.py fit"
    if reason := _difference(calibration, settings, model):
        return None, f"no interval: calibrated {reason}; {NO_FIT}"
    return calibration, None


def _difference(calibration: IntervalCalibration, settings: Settings, model: Mapping[str, Any]) -> str | None:
    """What the calibration was made with that this set-up does not have."""
    folder, fusion = settings.folder(settings.summarizer.backend), settings.fusion
    if folder.is_dir() and folder_hash(folder) != calibration.model:
        return f"with another model than {model.get('name')}"
    for what in ("dtype", "quantization"):
        ours, theirs = model.get(what), getattr(calibration, what)
        if ours not in (None, theirs):
            return f"with {what} {theirs}, this model runs with {ours}"
    if (fusion.temperature, fusion.eta) != (calibration.temperature, calibration.eta):
        return (
            f"with temperature {calibration.temperature:g} and η {calibration.eta}, here they are"
            f" {fusion.temperature:g} and {fusion.eta}"
        )
    return None
