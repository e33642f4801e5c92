"""Assessments with and without a planted gap, at each limit of replans."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_iqa_local.assessment import assess
from agentic_iqa_local.iqa_tools import ToolReading
from agentic_iqa_local.laboratory.gaps.cases import (
    FORMS,
    NO_REFERENCE,
    REFERENCE,
    TWO_REGIONS,
    Case,
    Question,
    question,
)
from agentic_iqa_local.laboratory.gaps.kinds import GAPS, Gap
from agentic_iqa_local.laboratory.gaps.planting import Plant, PlantedClient, PlantedTools
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services

LIMITS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Outcome:
    """One assessment: its row, and what it took. `replans` counts those that it asked for, one more than it
    was allowed at the most."""

    row: Assessment
    tokens: int
    seconds: float

    @property
    def replans(self) -> int:
        return self.row.iteration_count


@dataclass(frozen=True)
class Run:
    """One planted case at every limit (None for `gap`: nothing was planted), with whether it was recovered
    there."""

    gap: str | None
    variant: str
    case: Case
    asked: Question
    outcomes: dict[int, Outcome]
    recovered: dict[int, bool]

    def lines(self) -> Iterator[dict[str, Any]]:
        """What each limit gave, for a file of JSON lines."""
        for limit, outcome in self.outcomes.items():
            yield {
                "gap": self.gap,
                "variant": self.variant,
                "form": self.asked.form,
                "picture": self.case.number,
                "photo": self.case.photo,
                "mos": self.case.crop.quality,
                "parts": [dataclasses.asdict(part) for part in self.case.crop.sample.parts],
                "limit": limit,
                "recovered": self.recovered.get(limit),
                "tokens": outcome.tokens,
                "seconds": outcome.seconds,
                "row": outcome.row.to_dict(),
            }


class Bench:
    """Runs cases on one model. `services_of` gives the services that answer a question about a case (a script
    knows its truth, a model is always the same); `readings` may be shared between models, for tools read the
    same whatever the model.
    """

    def __init__(
        self,
        services_of: Callable[[Case, Question], Services],
        limits: Sequence[int] = LIMITS,
        readings: dict[tuple[str, str], ToolReading] | None = None,
    ) -> None:
        self._services_of, self.limits = services_of, sorted({0, *limits})
        self._readings = {} if readings is None else readings
        self._sound: dict[tuple[int, str], dict[int, Outcome]] = {}

    def sound(self, case: Case, form: str) -> Run:
        """Nothing planted; computed once for all gaps."""
        asked = question(case, form)
        if (case.number, form) not in self._sound:
            self._sound[case.number, form] = self._at_limits(case, asked, Plant)[0]
        return Run(None, "", case, asked, self._sound[case.number, form], {})

    def planted(self, case: Case, gap: Gap) -> Run | None:
        """`gap` planted in a case; None where it makes no difference, or where the assessment never came to
        what was planted."""
        form = gap.forms[case.number % len(gap.forms)]
        if form == REFERENCE and not case.crop.sample.parts:
            return None
        sound = self.sound(case, form)
        first = sound.outcomes[self.limits[0]].row
        tools = self._services_of(case, sound.asked).tools

        def plant() -> Plant | None:
            return gap.plant(case, sound.asked, first, tools)

        if first.error or plant() is None:
            return None
        outcomes, plants = self._at_limits(case, sound.asked, lambda: plant() or Plant())
        if not all(each.took for each in plants.values()):
            return None
        recovered = {
            limit: gap.recovered(outcome.row, sound.outcomes[limit].row, case, sound.asked, plants[limit])
            for limit, outcome in outcomes.items()
        }
        return Run(gap.name, plants[self.limits[0]].variant, case, sound.asked, outcomes, recovered)

    def _at_limits(
        self, case: Case, asked: Question, plant: Callable[[], Plant]
    ) -> tuple[dict[int, Outcome], dict[int, Plant]]:
        """The outcome at each limit. 0 and 1 are the same computation, and so is every limit above one that
        was not reached."""
        outcomes: dict[int, Outcome] = {}
        plants: dict[int, Plant] = {}
        met, allowed = None, 0
        for limit in self.limits:
            if met is None or (max(1, limit) > allowed and outcomes[met].replans == allowed):
                allowed = max(1, limit)
                plants[limit] = plant()
                outcomes[limit] = self._assess(case, asked, plants[limit], allowed)
            else:
                plants[limit], outcomes[limit] = plants[met], outcomes[met]
            met = limit
        return outcomes, plants

    def _assess(self, case: Case, asked: Question, plant: Plant, limit: int) -> Outcome:
        services = self._services_of(case, asked)
        backends = {
            services.section(role).backend: services.client(role)
            for role in ("planner", "executor", "summarizer")
        }
        clients: dict[str, Any] = {
            backend: PlantedClient(client, plant) for backend, client in backends.items()
        }
        tools: Any = PlantedTools(services.tools, plant, self._readings)
        row = assess(
            case.image,
            asked.reference,
            asked.query,
            max_replan_iterations=limit,
            services=Services(services.settings, services.device, clients, tools),
        )
        tokens = row.tokens.prefilled + row.tokens.decoded if row.tokens else 0
        return Outcome(row, tokens, row.seconds + tools.saved)


def run_cases(
    bench: Bench, cases: Sequence[Case], progress: Callable[[str], None] = lambda _: None
) -> Iterator[Run]:
    """Every gap in every case where it makes a difference, and nothing planted in every form of question."""
    for done, case in enumerate(cases, start=1):
        for form in FORMS if case.crop.sample.parts else (NO_REFERENCE, TWO_REGIONS):
            yield bench.sound(case, form)
        for gap in GAPS:
            if (run := bench.planted(case, gap)) is not None:
                yield run
        progress(f"{done} of {len(cases)} pictures")
