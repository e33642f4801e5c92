"""Raw tool scores to the 1..5 quality scale: the five-parameter logistic, its check, its file and its fit.

The form is that of Sheikh, Sabir and Bovik, "A Statistical Evaluation of Recent Full Reference Image Quality
Assessment Algorithms", IEEE TIP 15(11), 2006 (the VQEG form):

    f(x) = b1 * (1/2 - 1 / (1 + exp(b2 * (x - b3)))) + b4 * x + b5

AgenticIQA (arXiv 2509.26006) prints it without the `1 +`; with that misprint most rows of its Table 5 map
every image to the same value.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, read_bytes, read_yaml

LOWEST, HIGHEST = 1.0, 5.0
FLAT = 0.05  # a map that spans less, in levels, says nothing
ROUNDING = 1e-9  # levels


class CalibrationError(UserError, ValueError):
    """A map, or a file of maps, that cannot be used; the message is one sentence for the user."""


def _sigmoid(t: float) -> float:
    """1 / (1 + exp(-t)) without overflow at either end."""
    return 1.0 / (1.0 + math.exp(-t)) if t >= 0 else math.exp(t) / (1.0 + math.exp(t))


def logistic_curve(b: Sequence[float] | np.ndarray, x: np.ndarray) -> np.ndarray:
    """f of this module's head at `x`, an array, for the parameters b1..b5."""
    from scipy.special import expit  # when something is fitted

    return b[0] * (expit(b[1] * (x - b[2])) - 0.5) + b[3] * x + b[4]


class LogisticMap(BaseModel):
    """One tool's map from its raw score to 1..5.

    `domain` is the raw range in which the map is checked and used; `lower_better` says which way the raw
    score runs; `source` says where the parameters come from and `fitted_on` names the data set (scores there
    are in-sample).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
    def _domain_is_a_range(self) -> LogisticMap:
        if not self.domain[0] < self.domain[1]:
            raise ValueError(f"expected domain [low, high] with low < high, got {list(self.domain)}")
        if not all(math.isfinite(self.unclipped(x)) for x in self.domain):
            raise ValueError("expected parameters that give a number over the domain, got them too large")
        return self

    def unclipped(self, raw: float) -> float:
        """The bare formula at `raw`: neither held inside the domain nor clipped to 1..5."""
        # 1/2 - 1/(1 + exp(t)) is sigmoid(t) - 1/2.
        return self.b1 * (_sigmoid(self.b2 * (raw - self.b3)) - 0.5) + self.b4 * raw + self.b5

    def __call__(self, raw: float) -> float:
        """Quality in [1, 5]. A raw score outside the domain counts as the domain's nearer end, where the map
        was checked; the result is clipped to the scale, so different raw scores may tie at 1 or 5. Raises
        CalibrationError for one that is not finite."""
        if not math.isfinite(raw):
            raise CalibrationError(f"{self.tool}: expected a finite raw score, got {raw}", "measure again.")
        low, high = self.domain
        return min(HIGHEST, max(LOWEST, self.unclipped(min(high, max(low, raw)))))

    @property
    def reachable(self) -> tuple[float, float]:
        """Lowest and highest quality that the map can return."""
        ends = self(self.domain[0]), self(self.domain[1])
        return min(ends), max(ends)

    @property
    def monotone(self) -> bool:
        """Whether the map runs the right way all over the domain, and is not flat: seen at 1001 places."""
        curve = np.array([self.unclipped(x) for x in np.linspace(*self.domain, 1001)])
        steps = -np.diff(curve) if self.lower_better else np.diff(curve)
        return bool(steps.min() >= -ROUNDING and steps.max() > ROUNDING)


def read_map_file(path: str | Path) -> tuple[dict[str, LogisticMap], dict[str, str]]:
    """Usable maps by tool, and the reason for each tool whose entry is marked `status: rejected`.

    Raises CalibrationError for an unreadable file, a malformed entry, a second usable map for a tool, or a
    map that is not monotone and not marked: a map that turns would rank a worse picture above a better one.
    """
    maps: dict[str, LogisticMap] = {}
    rejected: dict[str, str] = {}
    try:
        for entry in read_yaml(path)["maps"]:
            reason = entry.pop("reason", "none was given") if entry.pop("status", None) == "rejected" else ""
            logistic = LogisticMap.model_validate(entry)
            if reason:
                rejected[logistic.tool] = reason
            elif logistic.tool in maps or not logistic.monotone:
                mistake = "is the second usable one" if logistic.tool in maps else "is not monotone"
                advice = "correct it, or mark the entry `status: rejected` with a `reason`."
                raise CalibrationError(f"{path}: the map of {logistic.tool} {mistake}", advice)
            else:
                maps[logistic.tool] = logistic
    except ValidationError as error:
        raise CalibrationError(f"{path}: an entry of maps is malformed: {first_mistake(error)}.") from None
    except (FileError, TypeError, KeyError, AttributeError) as error:
        raise CalibrationError(f"{path}: expected a YAML file with a list `maps` of entries ({error}).") from error
    return maps, rejected


def map_file_hash(path: str | Path) -> str:
    """SHA-256 (hex) of a file of maps. Raises CalibrationError where it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except FileError as error:
        raise CalibrationError(f"{path}: tool maps: {error}", "correct tools.maps.") from error


@dataclass(frozen=True)
class FitQuality:
    """How well a map predicts: RMSE in quality levels, rank and linear correlation (after mapping), number of
    images."""

    rmse: float
    srcc: float
    plcc: float
    n: int

    def __str__(self) -> str:
        return f"RMSE {self.rmse:.3f}, SRCC {self.srcc:.3f}, PLCC {self.plcc:.3f}, n {self.n}"


def evaluate(logistic: LogisticMap, raw: np.ndarray, quality: np.ndarray) -> FitQuality:
    """Quality of `logistic` on raw scores with known quality (1..5). SRCC is that of the raw scores, signed
    so that a good tool is positive: clipping to 1..5 would make ties."""
    from scipy import stats  # here and below: fits alone need scipy, and its import takes half a second

    raw, quality = np.asarray(raw, float), np.asarray(quality, float)
    mapped = np.array([logistic(x) for x in raw])
    sign = -1.0 if logistic.lower_better else 1.0
    rank: Any = stats.spearmanr(sign * raw, quality)  # scipy does not declare what it returns
    linear: Any = stats.pearsonr(mapped, quality)
    rmse = float(np.sqrt(np.mean((mapped - quality) ** 2)))
    return FitQuality(rmse, float(rank.statistic), float(linear.statistic), len(raw))


def fit_logistic(
    raw: np.ndarray, quality: np.ndarray, *, domain: tuple[float, float], lower_better: bool, **about: Any
) -> tuple[LogisticMap, FitQuality]:
    """Least-squares fit of a monotone map from `raw` to `quality` (1..5), and its quality on the same data.

    Monotone by construction: b2 > 0, and b1 and b4 both carry the sign of the tool's direction, so that no
    term of the slope can oppose another. The fit runs on standardised raw scores, so that one set of starting
    points serves all tools. `about` are the map's other fields: `tool`, `source`, `fitted_on`, `license` and
    `notes`. Raises CalibrationError for fewer than ten finite pairs, constant scores, or scores that do not
    follow quality in the tool's direction, for which the best monotone map is a constant.
    """
    raw, quality = np.asarray(raw, float), np.asarray(quality, float)
    finite = np.isfinite(raw) & np.isfinite(quality)
    x, y = np.clip(raw[finite], *domain), quality[finite]
    if len(x) < 10 or np.ptp(x) == 0:
        raise CalibrationError(f"{about['tool']}: expected ten or more scores that differ, got {len(x)}.")
    centre, scale = float(np.mean(x)), float(np.std(x))
    sign = -1.0 if lower_better else 1.0
    b1, b2, b3, b4, b5 = _least_squares((x - centre) / scale, y, sign)
    slope = sign * b4 / scale
    parameters = (sign * b1, b2 / scale, centre + scale * b3, slope, b5 - slope * centre)
    # As the file of maps holds them, so that what is evaluated is what is written. A slope at its bound comes
    # out as 1e-18 or so and means zero.
    rounded = [float(f"{value:.8g}") if abs(value) > 1e-12 else 0.0 for value in parameters]
    fields = dict(zip(("b1", "b2", "b3", "b4", "b5"), rounded, strict=True)) | about
    logistic = LogisticMap.model_validate(fields | {"domain": domain, "lower_better": lower_better})
    low, high = logistic.reachable
    if high - low < FLAT:
        expected = f"{'lower' if lower_better else 'higher'} raw scores for better images"
        raise CalibrationError(f"{about['tool']}: expected {expected}, got others.")
    return logistic, evaluate(logistic, x, y)


def _least_squares(z: np.ndarray, y: np.ndarray, sign: float) -> np.ndarray:
    """b1..b5 for standardised raw scores `z`, the best fit from several starting points; b1 and b4 without
    their `sign`."""
    from scipy.optimize import least_squares

    def residuals(b: np.ndarray) -> np.ndarray:
        return logistic_curve((sign * b[0], b[1], b[2], sign * b[3], b[4]), z) - y

    # b1 up to twice the scale's length; beyond b2 = 20 the curve is a step.
    bounds = ([0.0, 0.05, float(z.min()) - 1, 0.0, -10.0], [8.0, 20.0, float(z.max()) + 1, 4.0, 10.0])
    starts = itertools.product((1.0, 4.0), (0.8, 3.0), (-0.7, 0.0, 0.7), (0.1,), (y.mean(),))
    fits = [least_squares(residuals, np.clip(start, *bounds), bounds=bounds) for start in starts]
    return min(fits, key=lambda fit: fit.cost).x
