"""How sure one assessment is and what follows: a closer look at the letters, another pass, an answer that is held
back, a gate."""

import time
from dataclasses import dataclass, field

import numpy as np

from agentic_iqa_local.config import DecisionSettings, Pipeline
from agentic_iqa_local.judgement.intervals import (
    HIGHEST,
    LOWEST,
    NO_FIT,
    Errors,
    IntervalCalibration,
    features,
)
from agentic_iqa_local.result import AnswerSet, Condition, Gate, Interval
from agentic_iqa_local.state import LETTERS, FusionResult, PlannerOutput


@dataclass
class Sureness:
    """How sure one assessment is asked to be. `calibration` is None where the set-up has none; `missing` then
    says why. `reads` counts the letter reads of the answer so far."""

    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    calibration: IntervalCalibration | None = None
    missing: str | None = None
    pipeline: Pipeline = "agent"
    reference: bool = False
    query: str = ""
    unlike_photograph: bool = False
    reads: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def may_want_more(self) -> bool:
        """Whether more than one look may be taken."""
        return self.decisions.target_width is not None and self.calibration is not None

    def width(self, fusion: FusionResult, plan: PlannerOutput | None) -> float | None:
        """The width in levels of an answer's interval; None where there is none, or no width is asked for."""
        interval = self.interval(fusion, plan)[0] if self.may_want_more else None
        return interval and interval.width

    def wants_more(self, fusion: FusionResult, plan: PlannerOutput | None, reads: int) -> bool:
        """Whether `reads` more letter reads are to make the interval narrower: it is wider than asked for, and
        the budget allows them."""
        width, wanted = self.width(fusion, plan), self.decisions.target_width
        return width is not None and wanted is not None and width > wanted and self.affords(reads)

    def affords(self, reads: int) -> bool:
        """Whether the budget allows `reads` more letter reads; another pass takes at least one."""
        most_reads, most_seconds = self.decisions.most_reads, self.decisions.most_seconds
        if most_reads is not None and self.reads + reads > most_reads:
            return False
        return most_seconds is None or time.monotonic() - self.began < most_seconds

    def interval(self, fusion: FusionResult, plan: PlannerOutput | None) -> tuple[Interval | None, str | None]:
        """The interval of a fused score and None, or None and why there is none."""
        calibration = self.calibration
        if calibration is None or fusion.q is None:
            return None, self.missing
        if fusion.mode != calibration.mode:
            return None, f"no interval: calibrated in mode {calibration.mode}, this is mode {fusion.mode}"
        if plan and plan.query_scope != "Global":
            return None, "no interval: calibrated on whole pictures, the query is about a part"
        look = "crops" if fusion.crops else "both orders" if fusion.both_orders else "one order"
        part = calibration.of(Condition(pipeline=self.pipeline, reference=self.reference, look=look))
        if part is None:
            return None, (
                f"no interval: no picture of the calibration was assessed by the pipeline {self.pipeline}"
                f" {'with' if self.reference else 'without'} a reference; {NO_FIT}"
            )
        if fusion.q_bar is None and () not in part.tools:
            return None, "no interval: no tool scored this picture, as tools did those of the calibration"
        difficulty = float(part.difficulty(_features(fusion))[0])
        widened = self._differences(calibration, part, fusion, plan)
        interval = calibration.interval(part, fusion.q, difficulty, widened)
        if self.unlike_photograph:
            interval.low, interval.high = LOWEST, HIGHEST
        return interval, None

    def _differences(
        self, calibration: IntervalCalibration, part: Errors, fusion: FusionResult, plan: PlannerOutput | None
    ) -> list[str]:
        """In what this picture differs from those of the calibration."""
        reasons = []
        if self.unlike_photograph:
            reasons.append(
                "the content is unlike the photographs of the calibration, so the interval is the whole scale"
            )
        if self.query != calibration.query:
            reasons.append(f"the query is another than the calibration's ({calibration.query})")
        if plan and plan.distortions:
            reasons.append("the query asks for particular distortions")
        if tuple(fusion.voters) not in part.tools:
            reasons.append(f"no picture of the calibration was measured by just {', '.join(fusion.voters)}")
        return reasons

    def answer_set(
        self, p_c: dict[str, float], mode: str, plan: PlannerOutput | None, *, told_of_map: bool = False
    ) -> tuple[AnswerSet | None, str | None]:
        """The choices that may be right and None, or None and why there is no such set. `told_of_map`: the model
        was told of the worst part of a map before it answered."""
        calibration = self.calibration
        if calibration is None:
            return None, self.missing and self.missing.replace("no interval", "no set of answers")
        part = calibration.answers(self.pipeline, reference=self.reference)
        if part is None:
            return None, f"no set of answers: no such question is in the calibration; {NO_FIT}"
        if mode != calibration.mode:
            return None, f"no set of answers: calibrated in mode {calibration.mode}, this is mode {mode}"
        widened = []
        if plan and plan.query_type == "Other":
            widened.append("the question is not about technical quality, as those of the calibration are")
        if told_of_map:
            widened.append("the model was told of a map, which there was none of in the calibration")
        return calibration.answer_set(part, p_c, widened), None

    def not_sure(self, interval: Interval | None) -> str | None:
        """Why the answer is held back; None where it is not."""
        most = self.decisions.abstain_wider_than
        if most is None or (interval and interval.width <= most):
            return None
        if interval is None:
            return "not sure: there is no interval to tell"
        return f"not sure: the interval is {interval.width:.2f} levels wide, more than {most:g}"

    def gate(self, interval: Interval | None, q: float) -> Gate | None:
        """The verdict on a fused score; None where none is asked for, or there is no interval."""
        threshold, error_rate = self.decisions.at_least, self.decisions.error_rate
        if threshold is None or interval is None or self.calibration is None:
            return None
        probability = float(np.mean(self.calibration.predictive(interval, q) >= threshold))
        needed = 1 - (error_rate / 2 if interval.widened else error_rate)
        if self.unlike_photograph:
            verdict = "unsure"
        else:
            verdict = "pass" if probability >= needed else "fail" if 1 - probability >= needed else "unsure"
        return Gate(at_least=threshold, probability=probability, error_rate=error_rate, verdict=verdict)


def _features(fusion: FusionResult) -> np.ndarray:
    """FEATURES of one answer, (1, features)."""
    names = ("sigma", "disagreement", "order_gap", "crop_spread")
    p = np.array([[fusion.p_c[letter] for letter in reversed(LETTERS)]])
    q_bar, eta, *rest = (np.array([getattr(fusion, name)], float) for name in ("q_bar", "eta", *names))  # None: nan
    return features(p, q_bar, np.nan_to_num(eta, nan=1.0), **dict(zip(names, rest, strict=True)))
