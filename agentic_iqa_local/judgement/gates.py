"""How sure one assessment is and what follows: a closer look at the letters, an answer that is held back, a
gate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from agentic_iqa_local.config import DecisionSettings, Pipeline
from agentic_iqa_local.judgement.fit import NO_FIT
from agentic_iqa_local.judgement.intervals import (
    HIGHEST,
    LOWEST,
    MEASURED,
    IntervalCalibration,
    features,
)
from agentic_iqa_local.result import AnswerSet, Condition, Gate, Interval
from agentic_iqa_local.state import LETTERS, FusionResult, PlannerOutput


@dataclass
class Sureness:
    """How sure one assessment is asked to be. `calibration` is the set-up's, or why it has none."""

    decisions: DecisionSettings
    calibration: IntervalCalibration | str
    pipeline: Pipeline = "agent"
    reference: bool = False
    query: str = ""
    unlike_photograph: bool = False
    of_part: bool = False  # the letters are read on boxes, whatever a plan says

    def wants_more(self, fusion: FusionResult, plan: PlannerOutput | None, reads: int) -> bool:
        """Whether the letters are to be read closer, `reads` times in all, to make the interval narrower: it is wider
        than asked for, and the budget of reads allows that."""
        wanted, most_reads = self.decisions.target_width, self.decisions.most_reads
        interval = None if wanted is None or fusion.q is None else self.interval(fusion, plan)
        if wanted is None or not isinstance(interval, Interval) or interval.width <= wanted:
            return False
        return most_reads is None or reads <= most_reads

    def fields(self, fusion: FusionResult, plan: PlannerOutput | None) -> dict[str, Any]:
        """What a row says of how sure an answer is: of a rating `interval`, `not_sure` and `gate`, of a question
        `answer_set`; in `no_interval` why there is none."""
        if fusion.q is None:
            answers = self.answer_set(fusion, plan)
            without = f"no set of answers: {answers}"
            return (
                {"answer_set": answers}
                if isinstance(answers, AnswerSet)
                else {"no_interval": without}
            )
        interval = self.interval(fusion, plan)
        if isinstance(interval, str):
            return {"no_interval": f"no interval: {interval}", "not_sure": self.not_sure(None)}
        return {
            "interval": interval,
            "not_sure": self.not_sure(interval),
            "gate": self.gate(interval, fusion.q),
        }

    def interval(self, fusion: FusionResult, plan: PlannerOutput | None) -> Interval | str:
        """The interval of a fused score, or why there is none."""
        calibration = self.calibration
        if isinstance(calibration, str):
            return calibration
        if fusion.mode != calibration.mode:
            return f"calibrated in mode {calibration.mode}, this is mode {fusion.mode}"
        if self.of_part or (plan and plan.query_scope != "Global"):
            return "ranges are known for whole pictures only, and the query is about a part"
        look = "crops" if fusion.crops else "both orders" if fusion.both_orders else "one order"
        part = calibration.of(
            Condition(pipeline=self.pipeline, reference=self.reference, look=look)
        )
        if part is None:
            how = f"the pipeline {self.pipeline} {'with' if self.reference else 'without'} a reference"
            return f"no picture of the calibration was assessed by {how}; {NO_FIT}"
        if fusion.q_bar is None and () not in part.tools:
            return "no tool scored this picture, as tools did those of the calibration"
        assert fusion.q is not None
        unlike = "the content is unlike the photographs of the calibration, so the interval is the whole scale"
        others = f"no picture of the calibration was measured by just {', '.join(fusion.voters)}"
        differences = {
            unlike: self.unlike_photograph,
            "it was learnt for another query": self.query != calibration.query,
            "the query asks for particular distortions": plan and plan.distortions,
            others: tuple(fusion.voters) not in part.tools,
        }
        p = np.array([[fusion.p_c[letter] for letter in reversed(LETTERS)]])
        measured = {
            name: np.array([getattr(fusion, name)], float) for name in MEASURED
        }  # None: nan
        difficulty = float(part.difficulty(features(p, measured))[0])
        widened = [reason for reason, holds in differences.items() if holds]
        interval = calibration.interval(part, fusion.q, difficulty, widened)
        if self.unlike_photograph:
            interval.low, interval.high = LOWEST, HIGHEST
        return interval

    def answer_set(self, fusion: FusionResult, plan: PlannerOutput | None) -> AnswerSet | str:
        """The choices that may be right, or why there is no such set."""
        calibration, measured = self.calibration, fusion.product is not None
        if isinstance(calibration, str):
            return calibration
        asked = self.pipeline, self.reference, measured
        known = {
            (part.pipeline, part.reference, part.measured): part for part in calibration.questions
        }
        part = known.get(asked)
        if part is None:
            how = "with a measurement" if measured else "by the letters alone"
            return f"the calibration has no question that was answered {how}; {NO_FIT}"
        if fusion.mode != calibration.mode:
            return f"calibrated in mode {calibration.mode}, this is mode {fusion.mode}"
        widened = []
        if plan and plan.query_type == "Other":
            widened.append(
                "the question is not about technical quality, as those of the calibration are"
            )
        return calibration.answer_set(part, fusion.p, widened)

    def not_sure(self, interval: Interval | None) -> str | None:
        """Why the answer is held back; None where it is not."""
        most, at_least = self.decisions.abstain_wider_than, self.decisions.at_least
        if interval is None:
            return (
                None
                if most is None and at_least is None
                else "not sure: there is no interval to tell"
            )
        if most is None or interval.width <= most:
            return None
        return f"not sure: the interval is {interval.width:.2f} levels wide, more than {most:g}"

    def gate(self, interval: Interval, q: float) -> Gate | None:
        """The verdict on a fused score; None where none is asked for."""
        threshold, error_rate = self.decisions.at_least, self.decisions.error_rate
        if threshold is None or isinstance(self.calibration, str):
            return None
        probability = float(np.mean(self.calibration.predictive(interval, q) >= threshold))
        needed = 1 - (error_rate / 2 if interval.widened else error_rate)
        verdict = (
            "pass" if probability >= needed else "fail" if 1 - probability >= needed else "unsure"
        )
        if self.unlike_photograph:
            verdict = "unsure"
        return Gate(
            at_least=threshold, probability=probability, error_rate=error_rate, verdict=verdict
        )
