"""The tools: which of them measure what, what each measured or why it could not, and what stands in for it."""

import time
from collections.abc import Container, Iterable, Sequence

from agentic_iqa_local.iqa_tools import ToolError, ToolInfo, find_tool
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.levels import OVERALL
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.evidence import in_picture
from agentic_iqa_local.nodes.prompts import selection_prompt
from agentic_iqa_local.nodes.query import named_metrics, named_tools
from agentic_iqa_local.nodes.replies import selection_reply
from agentic_iqa_local.nodes.workbench import Box, OpenImages
from agentic_iqa_local.state import ExecutorOutput, Gap, PlannerOutput, ToolExecutionLog, revised
from agentic_iqa_local.text import one_line

ROLE = "executor"  # its model chooses
ANOTHER_TOOL = ("scores", "contradiction", "tools", "letters")  # kinds of gaps that another opinion may close

Chosen = dict[str, dict[str, str]]  # {object: {distortion: tool}}


def choose_tools(
    evidence: ExecutorOutput,
    query: str,
    plan: PlannerOutput,
    distortions: dict[str, list[str]],
    images: OpenImages,
    gaps: Sequence[Gap],
) -> Chosen:
    """What is to run now: the tools that the query names, else those that the model chooses, with the
    configuration's; on a replan another one. Raises ToolError when no tool can run."""
    flags, full_reference = plan.plan, images.reference is not None
    if not (flags.tool_selection or flags.tool_execution):
        return {}
    unmeasured = {name: types for name, types in distortions.items() if _is_unmeasured(evidence, name)}
    if (tool := plan.required_tool) is not None and (not gaps or named_metrics(query, full_reference)):
        others = _beside(name for name in named_tools(query, full_reference) if name != tool)
        return {name: dict.fromkeys(types or [OVERALL], tool) | others for name, types in unmeasured.items()}
    chosen: Chosen = {}
    if unmeasured:
        by_model = select_tools(query, unmeasured, images) if flags.tool_selection else {}
        members = panel(images)
        for name in unmeasured:
            of_object = by_model.get(name, {})
            chosen[name] = of_object | _beside(tool for tool in members if tool not in of_object.values())
    if not flags.tool_execution:
        return chosen
    available = {info.name for info in images.services.tools.available(full_reference)}
    another = any(gap.kind in ANOTHER_TOOL for gap in gaps)
    for name in distortions:
        tried = {log.tool_name for log in evidence.tool_logs if log.object_name == name}
        tool = plan.required_tool  # which the Planner adds on a replan
        if tool not in available or tool in {*tried, *chosen.get(name, {}).values()}:
            ranked = ranked_tools(images) if another and name not in unmeasured else []
            tool = next((info.name for info in ranked if info.name not in tried), None)
        if tool:
            chosen[name] = chosen.get(name, {}) | _beside([tool])
    return chosen


def _beside(tools: Iterable[str]) -> dict[str, str]:
    """Entries of tools that judge the whole, each under a name of its own."""
    return {f"{OVERALL} ({tool})": tool for tool in tools}


def _is_unmeasured(evidence: ExecutorOutput, name: str) -> bool:
    """Whether no tool was tried on an object, or only on the whole picture before its box was found."""
    return all(log.object_name != name or _precedes_box(log, evidence) for log in evidence.tool_logs)


def _precedes_box(log: ToolExecutionLog, evidence: ExecutorOutput) -> bool:
    return log.region == "global" and (evidence.boxes or {}).get(log.object_name) is not None


def select_tools(query: str, distortions: dict[str, list[str]], images: OpenImages) -> Chosen:
    """The model's choice of a tool for each distortion, among those that are not clearly worse than another;
    one alone is no choice."""
    tools, reliability = _ranked(images)[0], load_reliability()
    if len(tools) == 1:
        return {name: dict.fromkeys(types or [OVERALL], tools[0].name) for name, types in distortions.items()}
    lines = [(tool.name, _described(tool, reliability.summary(tool.name))) for tool in tools]
    schema, prompt = (
        selection_reply(distortions, [t.name for t in tools]),
        selection_prompt(query, distortions, lines),
    )
    try:
        reply = ask(images.session(ROLE), prompt, schema, images.services.section(ROLE))
    except InvalidAnswer as error:
        images.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {}
    return reply.model_dump(by_alias=True)


def _described(tool: ToolInfo, reliability: str) -> str:
    """A tool, to the model that chooses among tools."""
    kind = "full-reference" if tool.reference == "FR" else "no-reference"
    return "; ".join(filter(None, (kind, ", ".join(tool.good_for) or "any distortion", reliability)))


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
    scores = dict(evidence.quality_scores or {})
    for name, tools in chosen.items():
        box = (evidence.boxes or {}).get(name)
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
        cached=reading.cached,
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
