"""Planted gaps: one thing goes wrong in the first pass of an assessment, and the replans are to make it good.

The pictures are synthetic (photographs with the training's distortions, and their pseudo-MOS), so that what a
sound first pass would have found is known. A gap is planted at the seams of the agent, in the services that
it is given: the first answer to one schema is changed, or one tool gives another reading or fails. A tool
that misjudges or fails does so in every pass, as a real one would; everything else goes wrong once. Each gap
is planted only where it makes a difference: on pictures and questions that its `plant` accepts, which
compares them with the unplanted assessment of the same picture.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.assessment import assess
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.iqa_tools import ToolError, ToolReading, ToolRunner
from agentic_iqa_local.laboratory.training.data import vary
from agentic_iqa_local.levels import OVERALL
from agentic_iqa_local.prompts import DEFAULT_QUERY, Prompt
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.studies.statistics import Draws, Figure, interval, paired_difference
from agentic_iqa_local.synthetic.distortions import draw_sample
from agentic_iqa_local.synthetic.photos import Crop, load_tiles, photo_files
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos
from agentic_iqa_local.vlm_client import VLMClient, VLMSession

SEED = 20261123
LIMITS = (0, 1, 2, 3)
MISJUDGED = 2.0  # levels between the truth and what a wrong tool reads
AS_SOUND = 0.25  # levels of q within which a planted assessment counts as the unplanted one
FAIR = 3.0
VISIBLE = 3  # severity (1..5) of the strongest distortion from which missing it is a gap
RECOVERED = {"scripted": 0.95}  # share recovered at the highest limit; other models:
RECOVERED_BY_A_MODEL = 0.50
REPLANNED_SOUND = 0.05  # share of sound first passes that may be replanned
REGIONS = (
    ("foreground", "background"),
    ("left side", "right side"),
    ("upper half", "lower half"),
    ("centre", "corners"),
)
WORDINGS = (
    "Rate the quality of the {} and the {}.",
    "Rate the {} and the {}.",
    "How good are the {} and the {}?",
)
NOT_NAMED = "bicycle"  # no query here names it

REFERENCE, NO_REFERENCE, TWO_REGIONS = FORMS = ("with a reference", "without a reference", "two regions")


# Pictures and questions


@dataclass(frozen=True)
class Case:
    """One synthetic picture: its crop with what was done to it and its pseudo-MOS, its files, and the
    photograph that it is of."""

    number: int
    crop: Crop
    photo: str
    image: Path
    reference: Path


@dataclass(frozen=True)
class Question:
    """What is asked of a case; `scope` is None for the whole picture."""

    form: str
    query: str
    scope: tuple[str, ...] | None
    reference: Path | None


def make_cases(photos: Path, count: int, folder: Path, progress: Callable[[str], None]) -> list[Case]:
    """`count` pictures of 384×384 in `folder`, made of the photographs in the folder `photos` in turn.

    Each is another crop, scale and tone of its photograph, with distortions drawn as for the training: 12 %
    clean, a third of the others with two, severities uniform in 1..5. Raises UserError for a folder without
    photographs, and for one that cannot be used.
    """
    files = photo_files(photos) if photos.is_dir() else []
    if not files:
        raise UserError(
            f"{photos}: expected a folder of photographs of at least 512×512 pixels, found none; check the"
            " path"
        )
    order = np.random.default_rng(SEED).permutation(len(files))[:count]
    measure, cases, tiles = PseudoMos(), [], {}
    for number in range(count):
        file = files[order[number % len(order)]]
        rng = np.random.default_rng([SEED, number])
        if file not in tiles:
            try:
                tiles[file] = load_tiles([file])
            except ValueError as error:  # too small
                raise UserError(f"{error}; take it out of the folder") from error
        clean = vary(tiles[file][int(rng.integers(len(tiles[file])))], rng)
        sample = draw_sample(clean, rng)
        case = Case(
            number,
            Crop(sample, clean, measure(sample.image, clean)),
            file.name,
            folder / f"{number}.png",
            folder / f"{number}_clean.png",
        )
        Image.fromarray(sample.image).save(case.image)
        Image.fromarray(clean).save(case.reference)
        cases.append(case)
        progress(f"picture {number + 1} of {count}")
    return cases


def question(case: Case, form: str) -> Question:
    """The question of one of FORMS. A clean picture is its own reference, so that it can be asked about
    without one alone."""
    if form == TWO_REGIONS:
        rng = np.random.default_rng([SEED, case.number, 1])
        scope = REGIONS[int(rng.integers(len(REGIONS)))]
        return Question(form, WORDINGS[int(rng.integers(len(WORDINGS)))].format(*scope), scope, None)
    return Question(form, DEFAULT_QUERY, None, case.reference if form == REFERENCE else None)


# Planting


@dataclass
class Plant:
    """What goes wrong in one assessment: `edit` changes the first answer to `schema`, and `tool` reads
    `reading` (1..5), or fails where that is None. `variant` tells the ways apart in which one gap is planted.
    """

    schema: str | None = None
    edit: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    tool: str | None = None
    reading: float | None = None
    variant: str = ""
    edited: bool = field(default=False, init=False)
    misread: bool = field(default=False, init=False)

    @property
    def took(self) -> bool:
        """Whether the assessment met all that was planted."""
        return self.edited == (self.schema is not None) and self.misread == (self.tool is not None)


class PlantedClient:
    """A client whose sessions change the first answer to the plant's schema; all else is the inner
    client's."""

    def __init__(self, inner: VLMClient, plant: Plant) -> None:
        self._inner, self._plant = inner, plant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, images: Sequence[Image.Image]) -> "PlantedSession":
        return PlantedSession(self._inner.open(images), self._plant)


class PlantedSession:
    """A session of `PlantedClient`."""

    def __init__(self, inner: VLMSession, plant: Plant) -> None:
        self._inner, self._plant = inner, plant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def generate(self, prompt: Prompt, schema: type[BaseModel], **options: Any) -> str:
        text = self._inner.generate(prompt, schema, **options)
        if self._plant.schema != schema.__name__ or self._plant.edited:
            return text
        try:
            answer = json.loads(text)
        except ValueError:  # broken off; the agent asks again
            return text
        self._plant.edited = True
        return json.dumps(self._plant.edit(answer))


class PlantedTools:
    """A tool runner whose planted tool misreads or fails. `readings` holds what was measured already, for all
    assessments of a run; `saved` counts the seconds that this one would have taken for what it found there.
    """

    def __init__(self, inner: ToolRunner, plant: Plant, readings: dict[tuple[str, str], ToolReading]) -> None:
        self._inner, self._plant, self._readings = inner, plant, readings
        self.saved = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def score(self, name: str, image: Image.Image, reference: Image.Image | None = None) -> ToolReading:
        planted = name == self._plant.tool
        self._plant.misread |= planted
        if planted and self._plant.reading is None:
            raise ToolError(f"{name}: made to fail by the benchmark")
        key = name, hashlib.sha256(image.tobytes()).hexdigest()
        if key in self._readings:
            self.saved += self._readings[key].seconds
        else:
            self._readings[key] = self._inner.score(name, image, reference)
        reading = self._readings[key]
        return dataclasses.replace(reading, normalized=self._plant.reading) if planted else reading


# The gaps


class Gap:
    """One kind of gap. `forms` are the questions it is planted in, a picture taking one of them in turn."""

    name: str
    forms: tuple[str, ...]

    def plant(self, case: Case, asked: Question, sound: Assessment, tools: ToolRunner) -> Plant | None:
        """A new plant, None where it would make no difference. `sound` is the unplanted assessment without
        replans."""
        raise NotImplementedError

    def recovered(
        self, row: Assessment, sound: Assessment, case: Case, asked: Question, plant: Plant
    ) -> bool:
        """Whether the planted assessment `row` ended as if nothing had been planted; `sound` is the unplanted
        one at its limit."""
        raise NotImplementedError


class WrongTool(Gap):
    """The model chooses a tool that misjudges this picture: one of the panel, in turn, that reads two levels
    beside the pseudo-MOS.

    Only where the tool's map has room for two levels. Recovered: q is within 0.25 of the unplanted one, or
    the reading has no vote and q is no more than 0.25 further from the pseudo-MOS than the unplanted one (the
    tools that join may know better). With a reference only: without one two tools are all there is without
    weights, and none can tell which of them is wrong.
    """

    name, forms = "wrong tool", (REFERENCE,)

    def plant(self, case, asked, sound, tools):
        tool = _panel_tool(case, sound)
        if tool is None or (reading := self.misreading(case, tools.maps[tool].reachable)) is None:
            return None
        return Plant(
            "SelectionReply",
            lambda answer: {name: dict.fromkeys(chosen, tool) for name, chosen in answer.items()},
            tool,
            reading,
            tool,
        )

    @staticmethod
    def misreading(case: Case, reachable: tuple[float, float]) -> float | None:
        """What the tool reads instead, on the side of the pseudo-MOS with more room; None where there is too
        little on both."""
        low, high = reachable
        mos = case.crop.quality
        reading = mos - MISJUDGED if mos - low > high - mos else mos + MISJUDGED
        return reading if low <= reading <= high else None

    def recovered(self, row, sound, case, asked, plant):
        if row.q is None or sound.q is None:
            return False
        further = abs(row.q - case.crop.quality) - abs(sound.q - case.crop.quality)
        no_vote = any(log.tool_name == plant.tool and log.outvoted for log in row.tools)
        return abs(row.q - sound.q) <= AS_SOUND or (no_vote and further <= AS_SOUND)


class ContradictoryScores(WrongTool):
    """A tool of the panel, in turn, reads at the end of its scale that is farther from the pseudo-MOS; the
    model's choice is its own. Recovered, and with a reference only, as for the wrong tool."""

    name = "contradictory scores"

    def plant(self, case, asked, sound, tools):
        tool = _panel_tool(case, sound)
        if tool is None:
            return None
        low, high = tools.maps[tool].reachable
        mos = case.crop.quality
        return Plant(tool=tool, reading=low if mos - low > high - mos else high, variant=tool)


class FailedTool(Gap):
    """The tool that the model chooses raises an error. Recovered: another tool's score stands in for each of
    its entries."""

    name, forms = "failed tool", (REFERENCE, NO_REFERENCE)

    def plant(self, case, asked, sound, tools):
        chosen = _chosen_tools(sound)
        return Plant(tool=chosen[0], variant=chosen[0]) if chosen else None

    def recovered(self, row, sound, case, asked, plant):
        wanted = {run.distortion for run in row.tools if run.tool_name == plant.tool and run.error}
        scores = (row.evidence.quality_scores if row.evidence else None) or {}
        stood_in = {
            entry for entries in scores.values() for entry, (tool, _) in entries.items() if tool != plant.tool
        }
        return row.q is not None and bool(wanted) and wanted <= stood_in


class MissedObject(Gap):
    """The query names two regions and the first plan has one of them. Where the model's own plan has both.
    Recovered: the analysis covers both."""

    name, forms = "missed object", (TWO_REGIONS,)

    def plant(self, case, asked, sound, tools):
        if not _sound_scope(sound, asked):
            return None
        return Plant("PlannerReply", lambda answer: answer | {"query_scope": [asked.scope[case.number % 2]]})

    def recovered(self, row, sound, case, asked, plant):
        return not set(asked.scope) - set((row.evidence.distortion_analysis if row.evidence else None) or {})


class MissedDistortion(Gap):
    """The first detection finds nothing. Where the strongest distortion has severity 3 or more and the model
    finds a true one by itself. Recovered: the analysis holds a true type, or one that the unplanted detection
    found, with a severity above none.
    """

    name, forms = "missed distortion", (REFERENCE, NO_REFERENCE)

    def plant(self, case, asked, sound, tools):
        if case.crop.sample.severity < VISIBLE or not _found(sound) & set(case.crop.sample.families):
            return None
        # what scores and letters can show
        variant = "quality below 3" if case.crop.quality < FAIR else "quality of 3 or better"
        return Plant("DetectionReply", lambda answer: {name: [] for name in answer}, variant=variant)

    def recovered(self, row, sound, case, asked, plant):
        return bool(_found(row) & (_found(sound) | set(case.crop.sample.families)))


class WrongScope(Gap):
    """The first plan has a wrong scope, in turn: the whole picture or a region that the query does not name
    where it names two regions, and such a region where it names none. Where the model's own plan has the
    query's. Recovered: the plan's scope is the query's."""

    name, forms = "wrong scope", (TWO_REGIONS, TWO_REGIONS, NO_REFERENCE, REFERENCE)
    invented = "a region that the query does not name"

    def plant(self, case, asked, sound, tools):
        if not _sound_scope(sound, asked):
            return None
        whole = asked.form == TWO_REGIONS and case.number % len(self.forms) == 0
        scope, variant = (
            ("Global", "Global instead of two regions") if whole else ([NOT_NAMED], self.invented)
        )
        if not whole:
            variant += " instead of two" if asked.scope else " instead of Global"
        return Plant("PlannerReply", lambda answer: answer | {"query_scope": scope}, variant=variant)

    def recovered(self, row, sound, case, asked, plant):
        return _sound_scope(row, asked)


GAPS: tuple[Gap, ...] = (
    WrongTool(),
    FailedTool(),
    MissedObject(),
    MissedDistortion(),
    ContradictoryScores(),
    WrongScope(),
)


def _chosen_tools(row: Assessment) -> list[str]:
    """The tools that the model chose, without those that the panel adds."""
    selected = (row.evidence.selected_tools if row.evidence else None) or {}
    return [
        tool
        for chosen in selected.values()
        for entry, tool in chosen.items()
        if not entry.startswith(f"{OVERALL} (")
    ]


def _panel_tool(case: Case, sound: Assessment) -> str | None:
    """One of the tools that voted in the unplanted assessment, in turn; None where fewer than two did."""
    voted = sorted({run.tool_name for run in sound.tools if run.error is None})
    return voted[case.number % len(voted)] if len(voted) > 1 else None


def _sound_scope(row: Assessment, asked: Question) -> bool:
    return row.plan is not None and set(row.plan.objects) == set(asked.scope or ["Global"])


def is_sound(row: Assessment, case: Case, asked: Question) -> bool:
    """Whether an unplanted first pass has no gap that the truth shows: the scope is the query's, a true type
    is found where the strongest distortion has severity 3 or more, and nothing is found on a clean picture. A
    model's own first pass may fall short.
    """
    found, true = _found(row), set(case.crop.sample.families)
    seen = bool(found & true) if case.crop.sample.severity >= VISIBLE else bool(true) or not found
    return row.error is None and _sound_scope(row, asked) and seen


def _found(row: Assessment) -> set[str]:
    """The distortion types of any object with a severity above none."""
    analysis = (row.evidence.distortion_analysis if row.evidence else None) or {}
    return {item.type for items in analysis.values() for item in items if item.severity != "none"}


# Running


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
        outcomes, plants = self._at_limits(case, sound.asked, plant)
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
        clients = {backend: PlantedClient(client, plant) for backend, client in backends.items()}
        tools = PlantedTools(services.tools, plant, self._readings)
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


# Statistics


def summary(
    runs: Sequence[Run], limits: Sequence[int], least_recovered: float, draws: int = 1000
) -> dict[str, Any]:
    """What `bench.py gaps` writes of one model: each gap's figures at each limit, and how often a sound first
    pass is replanned."""
    found: dict[str, Any] = {"gaps": {}, "sound": {}}
    for gap in dict.fromkeys(run.gap for run in runs if run.gap):
        found["gaps"][gap] = _gap_summary(
            [run for run in runs if run.gap == gap], limits, least_recovered, draws
        )
    for form in FORMS:
        if sound := [run for run in runs if run.gap is None and run.asked.form == form]:
            found["sound"][form] = _sound_summary(sound, limits, draws)
    return found


def _gap_summary(
    runs: Sequence[Run], limits: Sequence[int], least_recovered: float, draws: int
) -> dict[str, Any]:
    first, last = limits[0], limits[-1]
    sample = _draws(runs, draws)
    shares = {
        limit: interval(sample.of(_mean, np.array([run.recovered[limit] for run in runs], float)))
        for limit in limits
    }
    change = _error_change(runs, sample, first, last)
    parts = {}
    for part in sorted({(run.asked.form, run.variant) for run in runs}):
        of = [run for run in runs if (run.asked.form, run.variant) == part]
        parts[", ".join(filter(None, part))] = {"n": len(of)} | {
            str(x): _share(of, lambda run, x=x: run.recovered[x]) for x in limits
        }
    lost = [run for run in runs if not run.recovered[last]]
    return {
        "n": len(runs),
        "noticed": _share(runs, _noticed),
        "limits": {
            str(limit): {
                "recovered": _figure(shares[limit]),
                "error": _plain(_mean(_errors(runs, limit))),
                "error_change": _figure(_error_change(runs, sample, first, limit)),
                "added_tokens": _mean_change(runs, first, limit, "tokens"),
                "added_seconds": _mean_change(runs, first, limit, "seconds"),
            }
            for limit in limits
        },
        "parts": parts,
        "not_recovered": {
            "not noticed": sum(not _noticed(run) for run in lost),
            "replanned in vain": sum(_noticed(run) for run in lost),
        },
        "bars": {
            "recovered": bool(shares[last].value >= least_recovered),
            "error": bool(not change.low > 0),
        },
    }


def _sound_summary(runs: Sequence[Run], limits: Sequence[int], draws: int) -> dict[str, Any]:
    first, last = limits[0], limits[-1]
    sample = _draws(runs, draws)
    sound = [is_sound(run.outcomes[first].row, run.case, run.asked) for run in runs]
    replanned = interval(
        sample.of(_mean, np.array([_noticed(run) for run in runs], float), among=np.array(sound))
    )
    reasons: dict[str, int] = {}
    for run in compress(runs, sound):
        for entry in run.outcomes[last].row.replan_history[:1]:
            reason = entry.partition("] ")[2].partition(":")[0].split(" of ")[0][:60]
            reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "n": sum(sound),
        "replanned": _figure(replanned),
        "reasons": reasons,
        "all": {"n": len(runs), "replanned": _share(runs, _noticed)},
        "error_change": _figure(_error_change(runs, sample, first, last)),
        "added_tokens": _mean_change(runs, first, last, "tokens"),
        "added_seconds": _mean_change(runs, first, last, "seconds"),
        "bars": {"replanned": not replanned.value > REPLANNED_SOUND},
    }


def _draws(runs: Sequence[Run], count: int) -> Draws:
    kinds = [run.case.crop.sample.parts[0].kind if run.case.crop.sample.parts else "none" for run in runs]
    return Draws.make(len(runs), np.random.default_rng(SEED), [run.case.photo for run in runs], kinds, count)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _errors(runs: Sequence[Run], limit: int) -> np.ndarray:
    """|q − pseudo-MOS| of the rows that have a q."""
    rows = [(run.outcomes[limit].row.q, run.case.crop.quality) for run in runs]
    return np.array([abs(q - mos) for q, mos in rows if q is not None])


def _error_change(runs: Sequence[Run], sample: Draws, first: int, limit: int) -> Figure:
    """Mean |q − pseudo-MOS| at `limit` less that at `first`, where both have a q."""
    pairs = np.array(
        [
            [run.outcomes[x].row.q if run.outcomes[x].row.q is not None else math.nan for x in (first, limit)]
            for run in runs
        ]
    )
    answered = np.isfinite(pairs).all(1)
    errors = np.abs(np.nan_to_num(pairs) - np.array([[run.case.crop.quality] for run in runs]))
    of = [sample.of(_mean, errors[:, column], answered=answered) for column in (1, 0)]
    return paired_difference(*of)


def _noticed(run: Run) -> bool:
    return max(outcome.replans for outcome in run.outcomes.values()) > 0


def _share(runs: Sequence[Run], holds: Callable[[Run], bool]) -> float:
    return sum(map(holds, runs)) / len(runs)


def _mean_change(runs: Sequence[Run], first: int, limit: int, of: str) -> float:
    return _mean(
        np.array([getattr(run.outcomes[limit], of) - getattr(run.outcomes[first], of) for run in runs])
    )


def _plain(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _figure(figure: Figure) -> Mapping[str, Any]:
    return {
        "value": _plain(figure.value), "low": _plain(figure.low), "high": _plain(figure.high), "n": figure.n,
        "interval_over": figure.interval_over,
    }  # fmt: skip
