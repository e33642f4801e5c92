"""Which calibration of the intervals a set-up's answers have: that of a fit, or the one that ships."""

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentic_iqa_local.config import Settings
from agentic_iqa_local.judgement.fit import read_fit
from agentic_iqa_local.judgement.intervals import SHIPPED, IntervalCalibration
from agentic_iqa_local.judgement.sureness import NO_FIT
from agentic_iqa_local.provenance import folder_hash
from agentic_iqa_local.services import Services

CALIBRATIONS: WeakKeyDictionary[Services, tuple[IntervalCalibration | None, str | None]] = WeakKeyDictionary()


def calibration_of(services: Services) -> tuple[IntervalCalibration | None, str | None]:
    """What calibrates the intervals of a set-up's answers, looked up once. Raises FitError, VLMError."""
    if services not in CALIBRATIONS:
        folder = services.settings.folder(services.section("summarizer").backend)
        CALIBRATIONS[services] = calibration_for(
            services.settings, folder, services.client("summarizer").describe()
        )
    return CALIBRATIONS[services]


def calibration_for(
    settings: Settings, folder: Path, model: dict[str, Any]
) -> tuple[IntervalCalibration | None, str | None]:
    """(the calibration of answers by the model in `folder`, which its client describes as `model`; why there
    is none). Raises FitError for a configured file that is no fit."""
    configured = settings.decisions.calibration
    file = Path(configured) if configured else SHIPPED
    if not configured and not file.is_file():
        return None, f"no interval: none was calibrated; {NO_FIT}"
    calibration = read_fit(file).intervals
    if calibration is None:
        return None, f"no interval: {file} calibrates none; fit it anew with study.py fit"
    if reason := _another(calibration, settings, folder, model):
        return None, f"no interval: calibrated {reason}; {NO_FIT}"
    return calibration, None


def _another(
    calibration: IntervalCalibration, settings: Settings, folder: Path, model: dict[str, Any]
) -> str | None:
    """What the calibration was made with in place of this set-up's."""
    if folder.is_dir() and folder_hash(folder) != calibration.model:
        return f"with another model than {model.get('name')}"
    for what, ours in (("dtype", model.get("dtype")), ("quantization", model.get("quantization"))):
        if ours is not None and ours != (theirs := getattr(calibration, what)):
            return f"with {what} {theirs}, this model runs with {ours}"
    fusion = settings.fusion
    if (fusion.temperature, fusion.eta) != (calibration.temperature, calibration.eta):
        return (
            f"with temperature {calibration.temperature:g} and η {calibration.eta}, here they are"
            f" {fusion.temperature:g} and {fusion.eta}"
        )
    return None
