"""The tools: which of them measure what, what each measured or why it could not, and what stands in
for it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agentic_iqa_local.iqa_tools import ToolError, find_tool, is_tool
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import named_metrics, quoted_scores
from agentic_iqa_local.nodes.replies import selection_reply
from agentic_iqa_local.nodes.tool_readings import ToolReadings
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.state import (
    OVERALL,
    ExecutorOutput,
    Gap,
    PlannerOutput,
    ToolExecutionLog,
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

    def named_tools(self) -> tuple[list[str], list[str]]:
        """The tools that the plan requires and the query names, and of these names those that no
        tool has."""
        planned = self.plan.required_tool
        if planned is None:
            return [], []
        names = named_metrics(self.query, self.bench.pictures.has_reference)
        return known_and_unknown([planned, *names])


def known_and_unknown(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The tools of these names, each once, and the names that no tool has."""
    known, unknown = dict[str, None](), dict[str, None]()
    for name in names:
        if is_tool(name):
            known[find_tool(name).name] = None
        else:
            unknown[name] = None
    return list(known), list(unknown)


# Which tools


def choose_tools(task: Task, distortions: ByObject) -> Chosen:
    """What is to run: the tools that the query names, else those that the model chooses with the
    configuration's; on a replan those of the pass before and another one. Raises ToolError when no
    tool can run."""
    flags = task.plan.plan
    if not (flags.tool_selection or flags.tool_execution):
        return {}
    named, unknown = task.named_tools()
    kinds_of = {name: kinds or [OVERALL] for name, kinds in distortions.items()}
    if named:
        beside = _whole([*named[1:], *unknown])
        return {name: dict.fromkeys(kinds, named[0]) | beside for name, kinds in kinds_of.items()}
    if not unknown:  # a region is measured where it lies, and not by the whole picture in its place
        places = ("Global", *task.bench.pictures.boxes)
        kinds_of = {name: kinds for name, kinds in kinds_of.items() if name in places}
    return _choose_among_offered(task, kinds_of, unknown)


def _choose_among_offered(task: Task, distortions: ByObject, unknown: Sequence[str]) -> Chosen:
    flags, tools = task.plan.plan, task.bench.tools
    good, worse = offered(tools)
    if not good:
        raise ToolError(
            "no IQA tool can run on these images: see the tools listed as unavailable and their reasons"
        )
    earlier = task.before.selected_tools or {}
    new = {name: kinds for name, kinds in distortions.items() if name not in earlier}
    chosen = {name: dict(earlier.get(name, {})) for name in distortions}
    if new and flags.tool_selection:
        chosen |= select_tools(task.query, new, good, task.bench)
    if flags.tool_execution:
        for name, own in chosen.items():
            more = voting(tools, good) if name in new else another(task, name, [*good, *worse])
            own |= _whole([*more, *unknown], besides=own.values())
    return chosen


def told_of_quoted(query: str, bench: Workbench) -> list[str]:
    """A sentence for each number that a query gives for a tool: how it is read, and which quality
    it would be."""
    maps, told = bench.services.tools.maps, []
    for name, raw in quoted_scores(query, bench.pictures.has_reference):
        tool, meaning = find_tool(name), "for which there is no map to 1 to 5"
        if not tool.is_score(raw):
            meaning = "which the tool cannot return"
        elif name in maps:
            meaning = f"which is {maps[name](raw):.2f} of 5"
        told.append(
            f"The question gives {name} {raw:g} ({tool.scale}), {meaning}:"
            " a number that was not measured here and does not count."
        )
    return told


def _whole(tools: Iterable[str], besides: Collection[str] = ()) -> dict[str, str]:
    """Entries of tools that judge the whole, each under a name of its own, but none that is there
    already."""
    return {f"{OVERALL} ({tool})": tool for tool in tools if tool not in besides}


def voting(tools: ToolReadings, good: Sequence[str]) -> list[str]:
    """The configuration's tools that can run, else the best of the others."""
    available = tools.available()
    return [tool for tool in tools.configured() if tool in available] or list(good[:1])


def another(task: Task, name: str, ranked: Sequence[str]) -> list[str]:
    """The tool that a replan adds for an object: the best untried one, where another opinion may
    close the gap."""
    if not task.closes("scores", "contradiction", "tools"):
        return []
    tried = {log.tool_name for log in task.before.tool_logs if log.object_name == name}
    return [tool for tool in ranked if tool not in tried][:1]


def select_tools(
    query: str, distortions: ByObject, names: Sequence[str], bench: Workbench
) -> Chosen:
    """The model's choice of a tool for each distortion among `names`; one alone is no choice."""
    if len(names) == 1:
        return {name: dict.fromkeys(kinds, names[0]) for name, kinds in distortions.items()}
    described = [(name, _description(name)) for name in names]
    prompt = objects_prompt("selection", query, distortions, tools=described)
    schema, section = selection_reply(distortions, names), bench.services.section(ROLE)
    try:
        reply = ask(bench.models.session(ROLE), prompt, schema, section)
    except InvalidAnswer as error:
        bench.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {}
    return reply.model_dump(by_alias=True)


def _description(name: str) -> str:
    """What the model is told of a tool."""
    tool = find_tool(name)
    kind = "full-reference" if tool.reference == "FR" else "no-reference"
    good_for = ", ".join(tool.good_for) or "any distortion"
    return "; ".join(filter(None, (kind, good_for, load_reliability().summary(name))))


def offered(tools: ToolReadings) -> tuple[list[str], list[str]]:
    """The tools that can run on these pictures, and behind them those that are clearly worse; in
    either the best first, between equals the configuration's. With a reference those that compare:
    they beat one that has to guess."""
    available, left_out = tools.available(), tools.services.settings.tools.not_offered
    names = []
    for tool in dict.fromkeys([*tools.configured(), *available]):
        if tool in available and tool not in left_out:
            names.append(tool)
    if tools.pictures.has_reference:
        names = [tool for tool in names if find_tool(tool).reference == "FR"] or names
    good = load_reliability().trusted(names)
    others = [tool for tool in names if tool not in good]
    return good, load_reliability().trailing(others, good[0]) if others else []


# What they measure


def measure(
    name: str, entries: Sequence[tuple[str, str]], bench: Workbench
) -> list[ToolExecutionLog]:
    """The runs of the (distortion, tool) that are chosen for an object. Where none of these tools
    can measure, the best of the others that can stands in. Warns of each one that cannot."""
    logs = [_run(name, distortion, tool, bench.tools) for distortion, tool in entries]
    failed = [log for log in logs if log.error]
    if not failed:
        return logs
    if len(failed) == len(logs):
        logs += _stand_in(failed, bench.tools)
    _warn_of_failures(failed, [log for log in logs if not log.error], bench)
    return logs


def _warn_of_failures(
    failed: Sequence[ToolExecutionLog], able: Sequence[ToolExecutionLog], bench: Workbench
) -> None:
    instead = "no other tool could either"
    if able and able[0].fallback:
        instead = f"{able[0].tool_name} ran instead"
    elif able:
        instead = f"{' and '.join(dict.fromkeys(log.tool_name for log in able))} measured"
    name = failed[0].object_name
    whole = "the picture" if name == "Global" else f"the region {name}"
    for tool, error in {log.tool_name: str(log.error) for log in failed}.items():
        lead = f"{tool} could not score {whole}: " if is_tool(tool) else ""
        why = error.rstrip(".")
        end = "" if why.endswith("?") else ";"
        bench.warn(f"{lead}{why}{end} {instead}")


def _stand_in(failed: Sequence[ToolExecutionLog], tools: ToolReadings) -> list[ToolExecutionLog]:
    """The runs that stand in for those that failed, by the ranked tools, until one of these can
    measure."""
    tried = {log.tool_name for log in failed}
    entries = dict.fromkeys((log.object_name, log.distortion) for log in failed)
    good, worse = offered(tools)
    logs: list[ToolExecutionLog] = []
    for tool in (*good, *worse):
        if tool in tried:
            continue
        for name, distortion in entries:
            logs.append(_run(name, distortion, tool, tools, fallback=True))
        if logs[-1].error is None:
            break
    return logs


def _run(
    name: str, distortion: str, tool: str, tools: ToolReadings, *, fallback: bool = False
) -> ToolExecutionLog:
    """One run of a tool on an object, or its failure."""
    log = ToolExecutionLog(
        tool_name=tool, object_name=name, distortion=distortion, fallback=fallback
    )
    try:
        spec = find_tool(tool)
        log.tool_name, log.scale = spec.name, spec.scale
        reading = tools.score(spec.name, tools.pictures.boxes.get(name))
    except ToolError as error:
        log.error = str(error)
        return log
    log.raw_score, log.normalized_score = reading.raw, reading.normalized
    log.crops, log.execution_time = len(reading.crops), reading.seconds
    log.box = tools.pictures.box_of(name)
    if log.box:
        log.measured = "region"
    return log
