"""Which tools measure what: those that the query names, that the model chooses, and that the configuration or
their reliability adds."""

from collections.abc import Container, Sequence

from agentic_iqa_local.iqa_tools import ToolError, ToolInfo
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.levels import OVERALL
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import selection_prompt
from agentic_iqa_local.nodes.query import named_metrics, named_tools
from agentic_iqa_local.nodes.replies import selection_reply
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.state import ExecutorOutput, Gap, PlannerOutput, ToolExecutionLog

ROLE = "executor"  # its model chooses
ANOTHER_TOOL = ("scores", "contradiction", "tools", "letters")  # kinds of gaps that another opinion may close


def choose_tools(
    evidence: ExecutorOutput,
    query: str,
    plan: PlannerOutput,
    distortions: dict[str, list[str]],
    images: OpenImages,
    gaps: Sequence[Gap],
) -> dict[str, dict[str, str]]:
    """{object: {distortion: tool}}: what is to run now. Raises ToolError when no tool can run."""
    flags = plan.plan
    if not (flags.tool_selection or flags.tool_execution):
        return {}
    unmeasured = {name: types for name, types in distortions.items() if _is_unmeasured(evidence, name)}
    if plan.required_tool is not None and (not gaps or named_metrics(query, images.reference is not None)):
        return _tools_of_query(query, plan.required_tool, unmeasured, images)
    chosen: dict[str, dict[str, str]] = {}
    if unmeasured:
        none = {name: {} for name in unmeasured}
        chosen = with_panel(select_tools(query, unmeasured, images) if flags.tool_selection else none, images)
    another = any(gap.kind in ANOTHER_TOOL for gap in gaps)
    for name in distortions if flags.tool_execution else ():
        tool = _of_replan(plan, {*_tried(evidence, name), *chosen.get(name, {}).values()}, images)
        if tool is None and another and name not in unmeasured:
            tool = another_tool(evidence, name, images)
        if tool:
            chosen[name] = chosen.get(name, {}) | {f"{OVERALL} ({tool})": tool}
    return chosen


def _of_replan(plan: PlannerOutput, tried: Container[str], images: OpenImages) -> str | None:
    """The tool that the Planner adds on a replan, where it can run and was not `tried`."""
    available = {tool.name for tool in images.services.tools.available(images.reference is not None)}
    return plan.required_tool if plan.required_tool in available and plan.required_tool not in tried else None


def _tried(evidence: ExecutorOutput, name: str) -> set[str]:
    """The tools that were run on an object."""
    return {log.tool_name for log in evidence.tool_logs if log.object_name == name}


def _tools_of_query(
    query: str, required: str, distortions: dict[str, list[str]], images: OpenImages
) -> dict[str, dict[str, str]]:
    """The `required` tool for each distortion, and the others that the query names for each object."""
    named = named_tools(query, images.reference is not None)
    others = {f"{OVERALL} ({tool})": tool for tool in named if tool != required}
    return {name: dict.fromkeys(types or [OVERALL], required) | others for name, types in distortions.items()}


def _is_unmeasured(evidence: ExecutorOutput, name: str) -> bool:
    """Whether no tool was tried on an object, or only on the whole picture before its box was found."""
    return all(log.object_name != name or precedes_box(log, evidence) for log in evidence.tool_logs)


def precedes_box(log: ToolExecutionLog, evidence: ExecutorOutput) -> bool:
    """Whether a tool measured the whole picture before the box of its object was found."""
    return log.region == "global" and (evidence.boxes or {}).get(log.object_name) is not None


def another_tool(evidence: ExecutorOutput, name: str, images: OpenImages) -> str | None:
    """The best tool that has not been tried on an object; None where all have."""
    tried = _tried(evidence, name)
    trusted, others = ranked_tools(images)
    return next((tool.name for tool in (*trusted, *others) if tool.name not in tried), None)


def select_tools(
    query: str, distortions: dict[str, list[str]], images: OpenImages
) -> dict[str, dict[str, str]]:
    """The model's choice of a tool for each distortion, among those that are listed; one alone is no
    choice."""
    tools, reliability = listed_tools(images), load_reliability()
    if len(tools) == 1:
        return {name: dict.fromkeys(types or [OVERALL], tools[0].name) for name, types in distortions.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for, reliability.summary(t.name))) for t in tools]
    schema = selection_reply(distortions, [t.name for t in tools])
    try:
        reply = ask(
            images.session(ROLE),
            selection_prompt(query, distortions, lines),
            schema,
            images.services.section(ROLE),
        )
    except InvalidAnswer as error:
        images.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {name: {} for name in distortions}
    return reply.model_dump(by_alias=True)


def tool_line(reference: str, good_for: tuple[str, ...], reliability: str = "") -> str:
    """How a tool is described to the model that chooses among tools."""
    kind = "full-reference" if reference == "FR" else "no-reference"
    return "; ".join(filter(None, (kind, ", ".join(good_for) or "any distortion", reliability)))


def ranked_tools(images: OpenImages) -> tuple[list[ToolInfo], list[ToolInfo]]:
    """The tools that can run on these images: those that are not clearly worse than another, and the others,
    each best first; between equals the configuration's favourites come first. Raises ToolError when there are
    none."""
    full_reference = images.reference is not None
    settings = images.services.settings.tools
    favourites = settings.full_reference if full_reference else settings.no_reference
    tools = {
        t.name: t
        for t in images.services.tools.available(full_reference)
        if t.name not in settings.not_offered
    }
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


def listed_tools(images: OpenImages) -> list[ToolInfo]:
    """What the model may choose from: the tools that are not clearly worse than another, best first. Raises
    ToolError."""
    return ranked_tools(images)[0]


def default_tool(images: OpenImages) -> str:
    """The tool that stands in where none was chosen. Raises ToolError when no tool can run."""
    return listed_tools(images)[0].name


def panel(images: OpenImages) -> list[str]:
    """The tools that vote on every picture beside the chosen ones: those of the configuration that can run,
    else the best."""
    full_reference = images.reference is not None
    settings = images.services.settings.tools
    available = {tool.name for tool in images.services.tools.available(full_reference)}
    favourites = settings.full_reference if full_reference else settings.no_reference
    return [name for name in favourites if name in available] or [default_tool(images)]


def with_panel(selected: dict[str, dict[str, str]], images: OpenImages) -> dict[str, dict[str, str]]:
    """The chosen tools, and for each object those of the panel that were not chosen for it."""
    members = panel(images)
    return {
        name: chosen | {f"{OVERALL} ({tool})": tool for tool in members if tool not in chosen.values()}
        for name, chosen in selected.items()
    }
