"""How sure one assessment is and what follows: a closer look at the letters, an answer that is held
back, a gate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from agentic_iqa_local.config import DecisionSettings, Pipeline
from agentic_iqa_local.judgement.fit import NO_FIT
from agentic_iqa_local.judgement.intervals import (
    FEATURES,
    HIGHEST,
    LOWEST,
    MEASURED,
    Errors,
    IntervalCalibration,
    features,
)
from agentic_iqa_local.result import OTHER_QUERY, AnswerSet, Condition, Gate, Interval
from agentic_iqa_local.state import EYE, LETTERS, FusionResult, PlannerOutput

UNLIKE = (
    "the content is unlike the photographs of the calibration, so the interval is the whole scale"
)
# Of FEATURES, those that tell of a disagreement, in words
DISAGREEMENTS = {
    "disagreement": "the tools disagree by {:.1f} levels",
    "gap": "the model and the tools disagree by {:.1f} levels",
    "order_gap": "the two orders of the letters disagree by {:.1f} levels",
    "crop_spread": "parts of the picture differ by {:.1f} levels",
}
MUCH = 0.25  # of a difficulty
OTHER = "the question is not about technical quality, as those of the calibration are"


class NotCalibrated(Exception):
    """Why nothing is known of how sure an answer is."""


@dataclass
class Sureness:
    """How sure one assessment is asked to be. `calibration` is the set-up's, or why it has none,
    and `by_eye` that of answers in which the user's eye voted."""

    decisions: DecisionSettings
    calibration: IntervalCalibration | str
    pipeline: Pipeline = "agent"
    reference: bool = False
    query: str = ""
    unlike_photograph: bool = False
    by_eye: IntervalCalibration | None = None
    of_part: bool = False  # the letters are read on boxes, whatever a plan says

    def wants_more(self, fusion: FusionResult, plan: PlannerOutput | None, reads: int) -> bool:
        """Whether the letters are to be read closer, `reads` times in all, to make the interval
        narrower: it is wider than asked for, and the budget of reads allows that."""
        wanted, most_reads = self.decisions.target_width, self.decisions.most_reads
        if wanted is None or fusion.q is None or (most_reads is not None and reads > most_reads):
            return False
        try:
            return self.interval(fusion, fusion.q, plan).width > wanted
        except NotCalibrated:
            return False

    def fields(self, fusion: FusionResult, plan: PlannerOutput | None) -> dict[str, Any]:
        """What a row says of how sure an answer is: of a rating `interval`, `not_sure` and `gate`,
        of a question `answer_set`; in `no_interval` why there is none."""
        if fusion.q is None:
            try:
                return {"answer_set": self.answer_set(fusion, plan)}
            except NotCalibrated as reason:
                return {"no_interval": f"no set of answers: {reason}"}
        try:
            interval = self.interval(fusion, fusion.q, plan)
        except NotCalibrated as reason:
            return {"no_interval": f"no interval: {reason}", "not_sure": self.not_sure(None)}
        gate = self.gate(interval, fusion)
        return {"interval": interval, "not_sure": self.not_sure(interval), "gate": gate}

    def interval(self, fusion: FusionResult, q: float, plan: PlannerOutput | None) -> Interval:
        """The interval of a fused score. Raises NotCalibrated."""
        calibration = self._calibration(fusion)
        if self.of_part or (plan and plan.query_scope != "Global"):
            raise NotCalibrated(
                "ranges are known for whole pictures only, and the query is about a part"
            )
        part = calibration.of(self._condition(fusion))
        if part is None:
            how = f"{self.pipeline} {'with' if self.reference else 'without'} a reference"
            raise NotCalibrated(
                f"no picture of the calibration was assessed by the pipeline {how}; {NO_FIT}"
            )
        if fusion.q_bar is None and () not in part.tools:
            raise NotCalibrated(
                "no tool scored this picture, as tools did those of the calibration"
            )
        widened = self._differences(calibration, part, fusion, plan)
        table = _features(fusion)
        difficulty = float(part.difficulty(table)[0])
        interval = calibration.interval(part, q, difficulty, widened)
        interval.disagreements = _disagreements(part, table[0], difficulty)
        if self.unlike_photograph:
            interval.low, interval.high = LOWEST, HIGHEST
        return interval

    def _differences(
        self,
        calibration: IntervalCalibration,
        part: Errors,
        fusion: FusionResult,
        plan: PlannerOutput | None,
    ) -> list[str]:
        """What makes an answer unlike those of the calibration."""
        widened = []
        if self.unlike_photograph:
            widened.append(UNLIKE)
        if self.query != calibration.query:
            widened.append(OTHER_QUERY)
        if plan and plan.distortion_source == "Explicit":
            widened.append("the query asks for particular distortions")
        if tuple(fusion.voters) not in part.tools:
            voters = ", ".join(fusion.voters)
            widened.append(f"no picture of the calibration was measured by just {voters}")
        return widened

    def _calibration(self, fusion: FusionResult) -> IntervalCalibration:
        calibration = self.calibration
        if self.by_eye and EYE in fusion.voters:
            return self.by_eye
        if isinstance(calibration, str):
            raise NotCalibrated(calibration)
        if fusion.mode != calibration.mode:
            modes = f"calibrated in mode {calibration.mode}, this is mode {fusion.mode}"
            raise NotCalibrated(modes)
        return calibration

    def _condition(self, fusion: FusionResult) -> Condition:
        look = "one order"
        if fusion.crops:
            look = "crops"
        elif fusion.both_orders:
            look = "both orders"
        return Condition(pipeline=self.pipeline, reference=self.reference, look=look)

    def answer_set(self, fusion: FusionResult, plan: PlannerOutput | None) -> AnswerSet:
        """The choices that may be right. Raises NotCalibrated."""
        calibration = self._calibration(fusion)
        measured = fusion.product is not None
        asked = (self.pipeline, self.reference, measured)
        for part in calibration.questions:
            if (part.pipeline, part.reference, part.measured) == asked:
                widened = [OTHER] if plan and plan.query_type == "Other" else []
                return calibration.answer_set(part, fusion.p, widened)
        how = "with a measurement" if measured else "by the letters alone"
        raise NotCalibrated(f"the calibration has no question that was answered {how}; {NO_FIT}")

    def not_sure(self, interval: Interval | None) -> str | None:
        """Why the answer is held back; None where it is not."""
        most = self.decisions.abstain_wider_than
        if interval is None:
            asked = most is not None or self.decisions.at_least is not None
            return "not sure: there is no interval to tell" if asked else None
        if most is None or interval.width <= most:
            return None
        return f"not sure: the interval is {interval.width:.2f} levels wide, more than {most:g}"

    def gate(self, interval: Interval, fusion: FusionResult) -> Gate | None:
        """The verdict on a fused score; None where none is asked for."""
        threshold, error_rate = self.decisions.at_least, self.decisions.error_rate
        if threshold is None or fusion.q is None:
            return None
        values = self._calibration(fusion).predictive(interval, fusion.q)
        probability = float(np.mean(values >= threshold))
        needed = 1 - (error_rate / 2 if interval.widened else error_rate)
        verdict = "unsure"
        if not self.unlike_photograph and probability >= needed:
            verdict = "pass"
        elif not self.unlike_photograph and 1 - probability >= needed:
            verdict = "fail"
        return Gate(
            at_least=threshold, probability=probability, error_rate=error_rate, verdict=verdict
        )


def _features(fusion: FusionResult) -> np.ndarray:
    """FEATURES of one picture in levels, (1, features), by what was read and measured."""
    p = np.array([[fusion.p_c[letter] for letter in reversed(LETTERS)]])
    measured = {name: np.array([getattr(fusion, name)], float) for name in MEASURED}  # None: nan
    return features(p, measured)


def _disagreements(part: Errors, values: np.ndarray, difficulty: float) -> list[str]:
    """The disagreements that make up a good part of a picture's difficulty, in words; `values` are its
    FEATURES."""
    lines = []
    for name, weight, value in zip(FEATURES, part.weights, values, strict=True):
        if name in DISAGREEMENTS and weight * value >= MUCH * difficulty:
            lines.append(DISAGREEMENTS[name].format(value))
    return lines
