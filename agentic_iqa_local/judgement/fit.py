"""A fit of a study: the letters' temperature, the tools' η and a calibration of the intervals, as
`study fit` writes them and `assess --fit` reads them, and which calibration applies to a set-up."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import PROGRAM, FileError, folder_hash, read_bytes, reason
from agentic_iqa_local.iqa_tools.specs import FileRecord
from agentic_iqa_local.judgement.intervals import SHIPPED, IntervalCalibration

NO_FIT = f"calibrate this set-up with {PROGRAM} study fit, and give the fit with --fit"
Objective = Literal["rps", "srcc", "temperature", "keep"]
LEAST_PARAMETER, MOST_PARAMETER = 0.1, 10.0  # of temperature and η
# of a temperature alone: the letters are then nearly alike, and q is what the tools say
MOST_TEMPERATURE = 20.0
SCALES: dict[Objective, str] = {
    "rps": "ranked probability score, 0 to 1 (lower is better)",
    "srcc": "SRCC",
    "temperature": "ranked probability score, 0 to 1 (lower is better)",
}
FIT = re.compile(rb'\A\{"temperature":[^{]*"objective":')  # what a file of a fit begins with
LARGEST_FIT = 2**26  # bytes: it names every image that it was made on
Within = Annotated[float, Field(ge=LEAST_PARAMETER, le=MOST_PARAMETER)]


class FitError(UserError, ValueError):
    """Rows that nothing can be fitted on, or a file that is no fit; one sentence for the user."""


class Fit(FileRecord):
    """A fitted temperature and η with where they come from.

    `before` and `after` are the objective, on its scale of SCALES, with the configuration's
    parameters and with these; "keep" fits neither. `intervals` calibrates the intervals of q with
    these parameters; None where there is too little to do so. A report leaves out the rows of
    `keys`, and of the scenes `groups`, of the same `dataset`.
    """

    temperature: Annotated[float, Field(ge=LEAST_PARAMETER, le=MOST_TEMPERATURE)]
    eta: Within | Literal["auto"]
    objective: Objective
    before: float = 0.0
    after: float = 0.0
    dataset: str
    model: str
    keys: tuple[str, ...]
    groups: tuple[str, ...] = ()
    intervals: IntervalCalibration | None = None
    made_with: dict[str, str] | None = None  # of the shipped fit: `identity.fitted_with`
    format: Literal[3] = 3  # of the file

    def used(self, row: Mapping[str, Any]) -> bool:
        """Whether the fit has seen the row, or another of its scene."""
        return row["key"] in self.keys or row["group"] in self.groups

    @property
    def parameters(self) -> dict[str, Any]:
        """What of a configuration's fusion it changes."""
        return {"temperature": self.temperature, "eta": self.eta}

    @property
    def source(self) -> str:
        return one_line(f"{self.objective} on {len(self.keys)} images of {self.dataset}")

    @property
    def account(self) -> str:
        """What was gained, in one sentence."""
        images = f"{len(self.keys)} images of {one_line(self.dataset)}"
        if self.objective == "keep":
            return f"{images}, with temperature and η as configured"
        parameters = f"temperature {self.temperature:.3f}"
        if self.eta != "auto":
            parameters += f" and η {self.eta:.3f}"
        return f"{SCALES[self.objective]} on {images}: {self.before:.4f} → {self.after:.4f}, with {parameters}"


@lru_cache(maxsize=4)  # read with each picture, parsed once
def _parsed(content: bytes) -> Fit:
    return Fit.model_validate_json(content, strict=True)


def read_fit(file: Path) -> Fit:
    """The fit in a file. Raises FitError for a file that is none, or of another format."""
    try:
        return _parsed(read_bytes(file, LARGEST_FIT))
    except (FileError, ValidationError) as error:
        mistake = reason(error)
        raise FitError(f"{file}: expected a fit that study fit wrote, got: {mistake}") from error


def calibration_for(settings: Settings, model: Mapping[str, Any]) -> IntervalCalibration | str:
    """The calibration that applies to a set-up's answers, or why there is none: the configured
    fit's (by default that which ships), for its temperature, its η and the model's folder; `model`
    has the name, dtype and quantization as its client describes them. Raises FitError for a file
    that is no fit."""
    file = Path(settings.decisions.calibration or SHIPPED)
    calibration = read_fit(file).intervals
    if calibration is None:
        return f"{file} calibrates none; fit it anew with {PROGRAM} study fit"
    difference = _difference(calibration, settings, model)
    return f"calibrated with {difference}; {NO_FIT}" if difference else calibration


def _difference(
    calibration: IntervalCalibration, settings: Settings, model: Mapping[str, Any]
) -> str:
    """All that the calibration was made with and this set-up does not have; "" where they are alike."""
    folder, fusion = settings.folder(settings.summarizer.backend), settings.fusion
    if folder.is_dir() and folder_hash(folder) != calibration.model:
        return f"another model than {model.get('name')}"
    here = {"dtype": model.get("dtype"), "quantization": model.get("quantization")}
    here |= {"temperature": fusion.letters_temperature, "eta": fusion.eta}
    said = list[str]()
    for what, ours in here.items():
        theirs = getattr(calibration, what)
        if ours not in (None, theirs):
            said.append(f"{what} {theirs} (here {ours})")
    return ", ".join(said)
