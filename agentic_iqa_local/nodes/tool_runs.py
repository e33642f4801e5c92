"""The tools: which of them measure what, what each measured or why it could not, and what stands in for it."""

import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import TOOLS, ToolError, ToolInfo, find_tool
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.evidence import by_object, in_picture
from agentic_iqa_local.nodes.prompts import selection_prompt
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.nodes.replies import selection_reply
from agentic_iqa_local.nodes.workbench import Box, OpenImages
from agentic_iqa_local.state import OVERALL, ExecutorOutput, Gap, PlannerOutput, ToolExecutionLog, revised

ROLE = "executor"  # its model chooses
ANOTHER_TOOL = ("scores", "contradiction", "tools", "letters")  # kinds of gaps that another opinion may close

Chosen = dict[str, dict[str, str]]  # {object: {distortion: tool}}


@dataclass(frozen=True)
class Gathering:
    """What the Executor has to do in one pass: evidence to fill, for a query and its plan; on a replan the
    gaps to close."""

    evidence: ExecutorOutput
    query: str
    plan: PlannerOutput
    images: OpenImages
    gaps: Sequence[Gap] = ()

    @property
    def reason(self) -> str | None:
        """Why the model is asked again; None in a first pass."""
        return self.gaps[0].reason if self.gaps else None

    def closes(self, *kinds: str) -> bool:
        """Whether it is to close a gap of one of these kinds."""
        return any(gap.kind in kinds for gap in self.gaps)

    @property
    def named_metrics(self) -> list[str]:
        """The metrics that the query names."""
        return named_metrics(self.query, self.images.reference is not None)


def choose_tools(task: Gathering, distortions: dict[str, list[str]]) -> Chosen:
    """What is to run now: the tools that the query names, else those that the model chooses, with the
    configuration's; on a replan another one. Raises ToolError when no tool can run."""
    flags, required, named = task.plan.plan, task.plan.required_tool, task.named_metrics
    if not (flags.tool_selection or flags.tool_execution):
        return {}
    unmeasured = {name: kinds for name, kinds in distortions.items() if _is_unmeasured(task.evidence, name)}
    if required is not None and (named or not task.gaps):
        others = _beside(tool for tool in named if tool in TOOLS and tool != required)
        kinds = {name: types or [OVERALL] for name, types in unmeasured.items()}
        return {name: dict.fromkeys(types, required) | others for name, types in kinds.items()}
    chosen = _chosen_by_model(task, unmeasured) if unmeasured else {}
    for name in distortions if flags.tool_execution else ():
        if tool := _added(task, name, chosen.get(name, {}), measured=name not in unmeasured):
            chosen[name] = chosen.get(name, {}) | _beside([tool])
    return chosen


def _chosen_by_model(task: Gathering, unmeasured: dict[str, list[str]]) -> Chosen:
    """The model's choice, where it is to choose, with the configuration's tools."""
    selects = task.plan.plan.tool_selection
    by_model = select_tools(task.query, unmeasured, task.images) if selects else {}
    members, chosen = panel(task.images), {}
    for name in unmeasured:
        of_object = by_model.get(name, {})
        chosen[name] = of_object | _beside(tool for tool in members if tool not in of_object.values())
    return chosen


def _added(task: Gathering, name: str, chosen: dict[str, str], *, measured: bool) -> str | None:
    """The tool that a replan adds for an object: the Planner's, where it can run and was not tried, else the
    best untried one where another opinion may close the gap of one that is `measured`."""
    tried = {log.tool_name for log in task.evidence.tool_logs if log.object_name == name}
    available = task.images.services.tools.available(task.images.reference is not None)
    planned = task.plan.required_tool
    if planned in {info.name for info in available} - tried - {*chosen.values()}:
        return planned
    if not (measured and task.closes(*ANOTHER_TOOL)):
        return None
    return next((info.name for info in ranked_tools(task.images) if info.name not in tried), None)


def _beside(tools: Iterable[str]) -> dict[str, str]:
    """Entries of tools that judge the whole, each under a name of its own."""
    return {f"{OVERALL} ({tool})": tool for tool in tools}


def _is_unmeasured(evidence: ExecutorOutput, name: str) -> bool:
    """Whether no tool was tried on an object, or only on the whole picture before its box was found."""
    return all(log.object_name != name or _precedes_box(log, evidence) for log in evidence.tool_logs)


def _precedes_box(log: ToolExecutionLog, evidence: ExecutorOutput) -> bool:
    return log.region == "global" and by_object(evidence, "boxes").get(log.object_name) is not None


def select_tools(query: str, distortions: dict[str, list[str]], images: OpenImages) -> Chosen:
    """The model's choice of a tool for each distortion, among those that are not clearly worse than another;
    one alone is no choice."""
    tools, summary = _ranked(images)[0], load_reliability().summary
    names = [tool.name for tool in tools]
    if len(tools) == 1:
        return {name: dict.fromkeys(types or [OVERALL], names[0]) for name, types in distortions.items()}
    prompt = selection_prompt(query, distortions, [(t.name, _described(t, summary(t.name))) for t in tools])
    schema, section = selection_reply(distortions, names), images.services.section(ROLE)
    try:
        return ask(images.session(ROLE), prompt, schema, section).model_dump(by_alias=True)
    except InvalidAnswer as error:
        images.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {}


def _described(tool: ToolInfo, reliability: str) -> str:
    """A tool, to the model that chooses among tools."""
    kind = "full-reference" if tool.spec.reference == "FR" else "no-reference"
    return "; ".join(filter(None, (kind, ", ".join(tool.spec.good_for) or "any distortion", reliability)))


def _favourites(images: OpenImages) -> list[str]:
    settings = images.services.settings.tools
    return settings.full_reference if images.reference else settings.no_reference


def _ranked(images: OpenImages) -> tuple[list[ToolInfo], list[ToolInfo]]:
    """The tools that can run on these images: those that are not clearly worse than another, and the others,
    each best first; between equals the configuration's favourites come first. Raises ToolError when there are
    none."""
    full_reference, favourites = images.reference is not None, _favourites(images)
    not_offered = images.services.settings.tools.not_offered
    tools = {t.name: t for t in images.services.tools.available(full_reference) if t.name not in not_offered}
    if full_reference:  # a tool that compares beats one that has to guess what was there
        tools = {name: t for name, t in tools.items() if t.reference == "FR"} or tools
    if not tools:
        raise ToolError(
            "no IQA tool can run on these images: see the tools listed as unavailable and their reasons"
        )
    names = sorted(tools, key=lambda name: favourites.index(name) if name in favourites else len(favourites))
    reliability = load_reliability()
    trusted = reliability.trusted(names)
    others = reliability.trailing([name for name in names if name not in trusted], trusted[0])
    return [tools[name] for name in trusted], [tools[name] for name in others]


def ranked_tools(images: OpenImages) -> list[ToolInfo]:
    """The tools that can run on these images, the best first. Raises ToolError when there are none."""
    trusted, others = _ranked(images)
    return [*trusted, *others]


def panel(images: OpenImages) -> list[str]:
    """The tools that vote on every picture beside the chosen ones: those of the configuration that can run,
    else the best. Raises ToolError when there is none."""
    available = {tool.name for tool in images.services.tools.available(images.reference is not None)}
    return [name for name in _favourites(images) if name in available] or [ranked_tools(images)[0].name]


def run_tools(evidence: ExecutorOutput, chosen: Chosen, images: OpenImages) -> None:
    """Runs the chosen tools and logs each run in the evidence; a tool that cannot run is replaced, and marked
    so."""
    scores = dict(by_object(evidence, "quality_scores"))
    for name, tools in chosen.items():
        box = by_object(evidence, "boxes").get(name)
        if any(log.object_name == name and _precedes_box(log, evidence) for log in evidence.tool_logs):
            evidence.tool_logs = [log for log in evidence.tool_logs if log.object_name != name]
            scores.pop(name, None)
        tried = {log.tool_name for log in evidence.tool_logs if log.object_name == name}
        for distortion, tool in tools.items():
            logs = run_tool(name, distortion, tool, box, images, tried)
            evidence.tool_logs += logs
            if (score := logs[-1].normalized_score) is not None:
                scores[name] = scores.get(name, {}) | {distortion: (logs[-1].tool_name, score)}
    evidence.quality_scores = scores


def run_tool(
    name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, tried: Container[str] = ()
) -> list[ToolExecutionLog]:
    """The runs of one entry: the chosen tool, and while that fails the ranked ones in their order but for
    those that were `tried` in an earlier pass; the last run counts."""
    first = _attempt(name, distortion, tool, box, images, fallback=False)
    if first.error is None:
        return [first]
    logs = [first]
    try:
        ranked = [info.name for info in ranked_tools(images)]
    except ToolError:
        ranked = []
    for stand_in in (other for other in ranked if other != first.tool_name and other not in tried):
        logs.append(_attempt(name, distortion, stand_in, box, images, fallback=True))
        if logs[-1].error is None:
            break
    instead = f"{logs[-1].tool_name} ran instead" if logs[-1].error is None else "no other tool could either"
    images.warn(f"{first.tool_name} could not score {in_picture(name)}: {first.error.rstrip('.')}; {instead}")
    return logs


def _attempt(
    name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, fallback: bool
) -> ToolExecutionLog:
    region = "crop" if box else "global"
    entry = ToolExecutionLog(
        tool_name=tool, object_name=name, distortion=distortion, fallback=fallback, region=region
    )
    began = time.perf_counter()
    try:
        entry.tool_name = find_tool(tool).name
        reading = images.score(entry.tool_name, box)
    except ToolError as error:
        return revised(entry, error=str(error), execution_time=time.perf_counter() - began)
    return revised(
        entry,
        raw_score=reading.raw,
        normalized_score=reading.normalized,
        execution_time=reading.seconds,
        crops=len(reading.crops),
    )


def find_damaged_part(images: OpenImages) -> str | None:
    """Where LocalNR's map has damage; None where it has none, or cannot be made."""
    try:
        reference = images.reference and images.reference.pixels
        return images.services.tools.places(images.image.pixels, reference).damaged_part()
    except ToolError as error:
        images.warn(f"where the damage lies was not measured: {one_line(str(error))}")
        return None
