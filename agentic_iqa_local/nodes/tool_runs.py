"""The tools: which of them measure what, what each measured or why it could not, and what stands in for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentic_iqa_local.iqa_tools import TOOLS, ToolError, find_tool, is_tool
from agentic_iqa_local.iqa_tools.calibration import LogisticMap
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.evidence import by_object
from agentic_iqa_local.nodes.prompts import distortion_prompt
from agentic_iqa_local.nodes.query import named_metrics, quoted_scores
from agentic_iqa_local.nodes.replies import selection_reply
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
    """What the Executor has to do in one pass: evidence to fill for a query and its plan; what the pass before found,
    and the gaps to close, both empty in a first pass."""

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
        """The tools that the plan requires and the query names, and of these names those that no tool has."""
        planned = self.plan.required_tool
        if planned is None:
            return [], []
        names = [planned, *named_metrics(self.query, self.bench.pictures.has_reference)]
        return known_and_unknown(names)


def known_and_unknown(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The tools of these names, each once, and the names that no tool has."""
    each = dict.fromkeys(find_tool(name).name if is_tool(name) else name for name in names)
    return [name for name in each if name in TOOLS], [name for name in each if name not in TOOLS]


def choose_tools(task: Task, distortions: ByObject) -> Chosen:
    """What is to run: the tools that the query names, else those that the model chooses with the configuration's; on
    a replan those of the pass before and another one. Raises ToolError when no tool can run."""
    flags, bench, earlier = task.plan.plan, task.bench, by_object(task.before, "selected_tools")
    if not (flags.tool_selection or flags.tool_execution):
        return {}
    named, unknown = task.named_tools()
    if named:
        first, beside = named[0], _whole([*named[1:], *unknown])
        return {
            name: dict.fromkeys(kinds or [OVERALL], first) | beside
            for name, kinds in distortions.items()
        }
    # where no tool is named, a region is measured where it lies, and not by the whole picture in its place
    distortions = {
        name: kinds
        for name, kinds in distortions.items()
        if name == "Global" or name in bench.pictures.boxes or unknown
    }
    good, worse = offered(bench)
    if not (ranked := good + worse):
        raise ToolError(
            "no IQA tool can run on these bench: see the tools listed as unavailable and their reasons"
        )
    new = {name: kinds or [OVERALL] for name, kinds in distortions.items() if name not in earlier}
    chosen = {name: dict(earlier.get(name, {})) for name in distortions}
    if new and flags.tool_selection:
        chosen |= select_tools(task.query, new, good, bench)
    compared = bench.pictures.has_reference
    able = {tool.name for tool in bench.services.tools.available(compared)}
    voting = [tool for tool in bench.settings.tools.configured(compared) if tool in able] or ranked[
        :1
    ]
    for name, own in chosen.items() if flags.tool_execution else ():
        more = voting if name in new else _another(task, name, ranked)
        own |= _whole(tool for tool in (*more, *unknown) if tool not in own.values())
    return chosen


def told_of_quoted(query: str, bench: Workbench) -> list[str]:
    """A sentence for each number that a query gives for a tool: how it is read, and which quality it would be."""
    maps = bench.services.tools.maps
    return [
        f"The question gives {name} {raw:g} ({find_tool(name).scale}), {_meaning(name, raw, maps)}:"
        " a number that was not measured here and does not count."
        for name, raw in quoted_scores(query, bench.pictures.has_reference)
    ]


def _meaning(name: str, raw: float, maps: Mapping[str, LogisticMap]) -> str:
    if not find_tool(name).is_score(raw):
        return "which the tool cannot return"
    if name not in maps:
        return "for which there is no map to 1 to 5"
    return f"which is {maps[name](raw):.2f} of 5"


def _whole(tools: Iterable[str]) -> dict[str, str]:
    """Entries of tools that judge the whole, each under a name of its own."""
    return {f"{OVERALL} ({tool})": tool for tool in tools}


def _another(task: Task, name: str, ranked: Sequence[str]) -> list[str]:
    """The tool that a replan adds for an object: the best untried one, where another opinion may close the gap."""
    tried = {log.tool_name for log in task.before.tool_logs if log.object_name == name}
    return [tool for tool in ranked if tool not in tried][
        : task.closes("scores", "contradiction", "tools")
    ]


def select_tools(
    query: str, distortions: ByObject, names: Sequence[str], bench: Workbench
) -> Chosen:
    """The model's choice of a tool for each distortion among `names`; one alone is no choice."""
    if len(names) == 1:
        return {name: dict.fromkeys(kinds, names[0]) for name, kinds in distortions.items()}
    told = []
    for tool in map(find_tool, names):
        kind = "full-reference" if tool.reference == "FR" else "no-reference"
        good_for, srcc = (
            ", ".join(tool.good_for) or "any distortion",
            load_reliability().summary(tool.name),
        )
        told.append((tool.name, "; ".join(filter(None, (kind, good_for, srcc)))))
    prompt = distortion_prompt("selection", query, distortions, tools=told)
    try:
        reply = selection_reply(distortions, names)
        return ask(
            bench.models.session(ROLE), prompt, reply, bench.services.section(ROLE)
        ).model_dump(by_alias=True)
    except InvalidAnswer as error:
        bench.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {}


def offered(bench: Workbench) -> tuple[list[str], list[str]]:
    """The tools that can run on these bench, and behind them those that are clearly worse; in either the best first,
    between equals the configuration's. With a reference those that compare: they beat one that has to guess."""
    settings, compared, reliability = (
        bench.settings.tools,
        bench.pictures.has_reference,
        load_reliability(),
    )
    available = [tool.name for tool in bench.services.tools.available(compared)]
    names = dict.fromkeys(
        tool for tool in (*settings.configured(compared), *available) if tool in available
    )
    names = [tool for tool in names if tool not in settings.not_offered]
    names = [tool for tool in names if compared and find_tool(tool).reference == "FR"] or names
    good = reliability.trusted(names)
    others = [tool for tool in names if tool not in good]
    return good, reliability.trailing(others, good[0]) if others else []


def run_tools(evidence: ExecutorOutput, bench: Workbench) -> None:
    """Runs the selected tools and logs each run in the evidence; see `measure`."""
    evidence.quality_scores = {}
    for name, tools in (evidence.selected_tools or {}).items():
        logs = measure(name, list(tools.items()), bench)
        evidence.tool_logs += logs
        for log in logs:
            if log.normalized_score is not None:
                scores = evidence.quality_scores.setdefault(name, {})
                scores[log.distortion] = (log.tool_name, log.normalized_score)
        whole = {log.tool_name: None for log in logs if log.error is None and log.box is None}
        if whole and name != "Global":
            stands = f"measured the whole picture, which stands for {name}"
            bench.warn(f"{' and '.join(whole)} {stands}: {give_box(name)}")


def give_box(name: str) -> str:
    """What a user can do about a region whose place is not known."""
    return f"say where that lies (box: {name}=LEFT,TOP,RIGHT,BOTTOM)"


def measure(
    name: str, entries: Sequence[tuple[str, str]], bench: Workbench
) -> list[ToolExecutionLog]:
    """The runs of the (distortion, tool) that are chosen for an object. Where none of these tools can measure, the
    best of the others that can stands in. Warns of each one that cannot."""
    logs = [_attempt(name, distortion, tool, bench) for distortion, tool in entries]
    failed = [log for log in logs if log.error]
    if not failed:
        return logs
    measured = [log.tool_name for log in logs if not log.error]
    instead = f"{' and '.join(dict.fromkeys(measured))} measured"
    if not measured:
        stand_ins = _stand_in(failed, bench)
        logs += stand_ins
        able = [log.tool_name for log in stand_ins if not log.error]
        instead = f"{able[0]} ran instead" if able else "no other tool could either"
    for tool, log in {log.tool_name: log for log in failed}.items():
        whole = "the picture" if name == "Global" else f"the region {name}"
        why = (log.error or "").rstrip(".")
        lead = f"{tool} could not score {whole}: " if is_tool(tool) else ""
        end = "" if why.endswith("?") else ";"
        bench.warn(f"{lead}{why}{end} {instead}")
    return logs


def _stand_in(failed: Sequence[ToolExecutionLog], bench: Workbench) -> list[ToolExecutionLog]:
    """The runs that stand in for those that failed, by the ranked tools, until one of these can measure."""
    tried = {log.tool_name for log in failed}
    entries = dict.fromkeys((log.object_name, log.distortion) for log in failed)
    logs: list[ToolExecutionLog] = []
    for tool in (tool for tools in offered(bench) for tool in tools if tool not in tried):
        runs = [_attempt(name, distortion, tool, bench) for name, distortion in entries]
        logs += [revised(run, fallback=True) for run in runs]
        if runs[0].error is None:
            break
    return logs


def _attempt(name: str, distortion: str, tool: str, bench: Workbench) -> ToolExecutionLog:
    log = ToolExecutionLog(tool_name=tool, object_name=name, distortion=distortion)
    try:
        spec = find_tool(tool)
        log = revised(log, tool_name=spec.name, scale=spec.scale)
        reading = bench.tools.score(spec.name, bench.pictures.boxes.get(name))
    except ToolError as error:
        return revised(log, error=str(error))
    measured = {
        "raw_score": reading.raw,
        "normalized_score": reading.normalized,
        "crops": len(reading.crops),
    }
    if box := bench.pictures.box_of(name):
        measured |= {"measured": "region", "box": box}
    return revised(log, **measured, execution_time=reading.seconds)
