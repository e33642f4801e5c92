"""The gaps: what goes wrong, where it can be planted, and when it is made good."""

from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.laboratory.gaps.cases import FAIR, NO_REFERENCE, REFERENCE, TWO_REGIONS, Case, Question
from agentic_iqa_local.laboratory.gaps.planting import Plant
from agentic_iqa_local.levels import OVERALL
from agentic_iqa_local.result import Assessment

MISJUDGED = 2.0  # levels between the truth and what a wrong tool reads
AS_SOUND = 0.25  # levels of q within which a planted assessment counts as the unplanted one
VISIBLE = 3  # severity (1..5) of the strongest distortion from which missing it is a gap
NOT_NAMED = "bicycle"  # no query here names it


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
        return Plant(
            "PlannerReply", lambda answer: answer | {"query_scope": [asked.regions[case.number % 2]]}
        )

    def recovered(self, row, sound, case, asked, plant):
        return not set(asked.regions) - set(
            (row.evidence.distortion_analysis if row.evidence else None) or {}
        )


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
