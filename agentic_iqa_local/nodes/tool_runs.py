"""The tools: which of them measure what, and what each measured or why it could not."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.iqa_tools import ToolError, find_tool
from agentic_iqa_local.iqa_tools.reliability import Reliability
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.evidence import mark_votes
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.nodes.replies import selection_reply
from agentic_iqa_local.nodes.tool_readings import ToolReadings
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.state import (
    OVERALL,
    ExecutorOutput,
    Gap,
    PlannerOutput,
    ToolExecutionLog,
    revised,
)

ROLE = "executor"  # its model chooses

ByObject = dict[str, list[str]]  # {object: [distortion]}
Chosen = dict[str, dict[str, str]]  # {object: {distortion: tool}}


@dataclass(frozen=True)
class Task:
    """What the Executor has to do in one pass: evidence to fill for a query and its plan; what the
    pass before found, and the gaps to close, both empty in a first pass."""

    evidence: ExecutorOutput
    query: str
    plan: PlannerOutput
    bench: Workbench
    before: ExecutorOutput
    gaps: Sequence[Gap]

    @property
    def reason(self) -> str | None:
        """Why the model is asked again; None in a first pass."""
        return self.gaps[0].reason if self.gaps else None

    def closes(self, *kinds: str) -> bool:
        """Whether a gap of one of these kinds is to be closed."""
        return any(gap.kind in kinds for gap in self.gaps)


# Which tools


def run_tools(task: Task, distortions: ByObject) -> None:
    """Puts the tools that are chosen, their runs, and which of these have a vote into the evidence.
    Those that the plan requires or the query names come first, and all of them vote. Raises
    ToolError when no tool can run."""
    evidence, bench, plan = task.evidence, task.bench, task.plan
    named = named_metrics(task.query, bench.pictures.has_reference)
    if plan.required_tool:
        named = [plan.required_tool, *named]
    kinds_of = {name: kinds or [OVERALL] for name, kinds in distortions.items()}
    chosen = _each(named, kinds_of) if named else choose_tools(task, kinds_of)
    evidence.selected_tools = chosen
    if plan.plan.tool_execution:
        for name, entries in chosen.items():
            evidence.tool_logs += measure(name, entries.items(), bench)
        decide_votes(evidence, named, bench)


def decide_votes(evidence: ExecutorOutput, named: Sequence[str], bench: Workbench) -> None:
    """Marks the tools that have no vote, in both pipelines. Where a tool that is `named` by the query or
    the plan measured, all vote."""
    measured = {log.tool_name for log in evidence.tool_logs if not log.error}
    if measured.isdisjoint(named):
        tools, all_vote = bench.tools, bench.settings.fusion.trailing_tools == "vote"
        mark_votes(evidence, tools.reachable(), tools.reliability(), all_vote=all_vote)


def _each(tools: Sequence[str], distortions: ByObject) -> Chosen:
    """The first tool for every distortion, and the others for the whole."""
    beside = _whole(tools, besides=tools[:1])
    return {name: dict.fromkeys(kinds, tools[0]) | beside for name, kinds in distortions.items()}


def choose_tools(task: Task, distortions: ByObject) -> Chosen:
    """What is to run where the query names no tool: those that the model chooses with the
    configuration's; on a replan those of the pass before and another one. Raises ToolError when no
    tool can run."""
    bench, flags = task.bench, task.plan.plan
    names, good = offered(bench.tools)
    chosen, new = dict(task.before.selected_tools or {}), {}
    for name, kinds in distortions.items():
        if name in chosen:
            chosen[name] = chosen[name] | another(task, name, names, good[0])
        elif name in ("Global", *bench.pictures.boxes):  # no region by the whole picture
            new[name] = kinds
    if new and flags.tool_selection:
        chosen |= select_tools(task.query, new, good, bench)
    if flags.tool_execution:
        for name in new:
            own = chosen.setdefault(name, {})
            own |= _whole(bench.tools.leading(own.values()), besides=own.values())
        _warn_of_left_out(new, chosen, bench)
    return chosen


def _warn_of_left_out(objects: Iterable[str], chosen: Chosen, bench: Workbench) -> None:
    """Tells that tools of the user's own list do not run."""
    key = "full_reference" if bench.pictures.has_reference else "no_reference"
    if key not in bench.settings.tools.model_fields_set:
        return
    run = {tool for name in objects for tool in chosen[name].values()}
    left_out = [tool for tool in bench.tools.configured() if tool not in run]
    if run and left_out:
        bench.warn(
            f"{', '.join(left_out)} of tools.{key} did not run: {' and '.join(sorted(run))} can be trusted more"
            " (fusion.trailing_tools: vote lets all run; tools.not_offered keeps a tool from the model)"
        )


def _whole(tools: Iterable[str], besides: Collection[str]) -> dict[str, str]:
    """Entries of tools that judge the whole, each under a name of its own, but none of those that
    are there already."""
    return {f"{OVERALL} ({tool})": tool for tool in tools if tool not in besides}


def another(task: Task, name: str, names: Sequence[str], best: str) -> dict[str, str]:
    """The tool that a replan adds for an object: the untried one nearest to the best, where another
    opinion may close the gap."""
    if not task.closes("scores", "contradiction", "tools"):
        return {}
    tried = {log.tool_name for log in task.before.tool_logs if log.object_name == name}
    untried = [tool for tool in names if tool not in tried]
    return _whole(task.bench.tools.reliability().trailing(untried, best)[:1], besides=())


def select_tools(
    query: str, distortions: ByObject, names: Sequence[str], bench: Workbench
) -> Chosen:
    """The model's choice of a tool for each distortion among `names`; one alone is no choice."""
    if len(names) == 1:
        return _each(names, distortions)
    described = [(name, _description(name, bench.tools.reliability())) for name in names]
    prompt = objects_prompt("selection", query, distortions, tools=described)
    schema, section = selection_reply(distortions, names), bench.services.section(ROLE)
    try:
        reply = ask(bench.models.session(ROLE), prompt, schema, section)
    except InvalidAnswer as error:
        bench.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {}
    return reply.model_dump(by_alias=True)


def _description(name: str, known: Reliability) -> str:
    """What the model is told of a tool."""
    tool = find_tool(name)
    kind = "full-reference" if tool.reference == "FR" else "no-reference"
    good_for = ", ".join(tool.good_for) or "any distortion"
    return "; ".join(filter(None, (kind, good_for, known.summary(name))))


def offered(tools: ToolReadings) -> tuple[list[str], list[str]]:
    """The tools that can run on these pictures, the configuration's first, and those of them that
    are not clearly worse than another, the best first. With a reference those that compare: they
    beat one that has to guess. Raises ToolError when there is none."""
    names = tools.configured()
    left_out = (*names, *tools.services.settings.tools.not_offered)
    names += [tool for tool in tools.available() if tool not in left_out]
    if tools.pictures.has_reference:
        names = [tool for tool in names if find_tool(tool).reference == "FR"] or names
    if not names:
        raise ToolError("no IQA tool can run on these images", "the command tools says why.")
    return names, tools.reliability().trusted(names)


# What they measure


def measure(
    name: str, entries: Iterable[tuple[str, str]], bench: Workbench
) -> list[ToolExecutionLog]:
    """The runs of the (distortion, tool) that are chosen for an object; where none of these tools
    can measure, those that the configuration would run, and then its others."""
    logs = [_run(name, *entry, bench.tools) for entry in entries]
    for stand_ins in (bench.tools.leading(), bench.tools.configured()):
        if all(log.error for log in logs):
            others = _whole(stand_ins, besides=[log.tool_name for log in logs])
            logs += [_run(name, *entry, bench.tools) for entry in others.items()]
    return logs


def _run(name: str, distortion: str, tool: str, tools: ToolReadings) -> ToolExecutionLog:
    """One run of a tool on an object, or its failure, of which it warns."""
    log = ToolExecutionLog(tool_name=tool, object_name=name, distortion=distortion)
    box = tools.pictures.boxes.get(name)
    try:
        spec = find_tool(tool)
        reading = tools.score(spec.name, box)
    except ToolError as error:
        whole = "the picture" if name == "Global" else f"the region {name}"
        tools.warn(f"{tool} could not score {whole}: {error}")
        return revised(log, error=str(error))
    if box:
        log.measured, log.box = "region", moved(box, tools.pictures.image.offset)
    return revised(
        log,
        tool_name=spec.name,
        scale=spec.scale,
        raw_score=reading.raw,
        normalized_score=reading.normalized,
        crops=len(reading.crops),
        execution_time=reading.seconds,
    )
