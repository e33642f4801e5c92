"""The tools' runs: what each measured or why it could not, what stands in for it, and which scores vote."""

import time
from collections.abc import Container

from agentic_iqa_local.iqa_tools import ToolError, find_tool
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.evidence import disagreement, outvoted
from agentic_iqa_local.nodes.tool_choice import precedes_box, ranked_tools
from agentic_iqa_local.nodes.workbench import Box, OpenImages
from agentic_iqa_local.state import ExecutorOutput, ToolExecutionLog, revised
from agentic_iqa_local.text import one_line


def run_tools(evidence: ExecutorOutput, chosen: dict[str, dict[str, str]], images: OpenImages) -> None:
    """Runs the chosen tools and logs each run; a tool that cannot run is replaced by the default one, and
    marked so."""
    scores = dict(evidence.quality_scores or {})
    for name, tools in chosen.items():
        box = (evidence.boxes or {}).get(name)
        if any(log.object_name == name and precedes_box(log, evidence) for log in evidence.tool_logs):
            evidence.tool_logs = [log for log in evidence.tool_logs if log.object_name != name]
            scores.pop(name, None)
        tried = {log.tool_name for log in evidence.tool_logs if log.object_name == name}
        for distortion, tool in tools.items():
            entry = run_tool(name, distortion, tool, box, images, tried)
            evidence.tool_logs += entry
            if entry[-1].normalized_score is not None:
                scores[name] = scores.get(name, {}) | {
                    distortion: (entry[-1].tool_name, entry[-1].normalized_score)
                }
    evidence.quality_scores = scores


def run_tool(
    name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, tried: Container[str] = ()
) -> list[ToolExecutionLog]:
    """The runs of one entry: the chosen tool, and while that fails the ranked ones in their order but for
    those that were `tried` in an earlier pass; the last run counts."""
    first = _attempt(name, distortion, tool, box, images, fallback=False)
    if first.error is None:
        return [first]
    try:
        trusted, others = ranked_tools(images)
        stand_ins = [
            info.name
            for info in (*trusted, *others)
            if info.name != first.tool_name and info.name not in tried
        ]
    except ToolError:
        stand_ins = []
    logs = [first]
    while stand_ins and logs[-1].error is not None:
        logs.append(_attempt(name, distortion, stand_ins.pop(0), box, images, fallback=True))
    instead = f"{logs[-1].tool_name} ran instead" if logs[-1].error is None else "no other tool could either"
    images.warn(
        f"{first.tool_name} could not score {'the picture' if name == 'Global' else name}:"
        f" {first.error.rstrip('.')}; {instead}"
    )
    return logs


def _attempt(
    name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, fallback: bool
) -> ToolExecutionLog:
    entry = ToolExecutionLog(
        tool_name=tool,
        object_name=name,
        distortion=distortion,
        fallback=fallback,
        region="crop" if box else "global",
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


def count_votes(evidence: ExecutorOutput, images: OpenImages) -> None:
    """Decides which scores have a vote in q̄, and which tools disagree."""
    reachable = {name: fitted.reachable for name, fitted in images.services.tools.maps.items()}
    mark_votes(evidence, reachable, checks=images.services.settings.fusion.trailing_tools == "check")
    evidence.disagreement = disagreement(evidence, reachable)


def mark_votes(evidence: ExecutorOutput, reachable: dict[str, tuple[float, float]], checks: bool) -> None:
    """Takes the vote from tools that stand apart from all others on the same object and, with `checks`, from
    those that one of the others clearly leads."""
    for name, scores in (evidence.quality_scores or {}).items():
        measured = list(dict.fromkeys(scores.values()))
        outliers = outvoted(measured, reachable)
        others = [tool for tool, _ in measured if tool not in outliers]
        worse = load_reliability().clearly_worse(others) if checks else set()
        for log in evidence.tool_logs:
            if log.object_name == name:
                log.outvoted, log.trailing = log.tool_name in outliers, log.tool_name in worse


def find_damaged_part(images: OpenImages) -> str | None:
    """Where LocalNR's map has damage; None where it has none, or cannot be made."""
    try:
        reference = images.reference and images.reference.pixels
        return images.services.tools.places(images.image.pixels, reference).damaged_part()
    except ToolError as error:
        images.warn(f"where the damage lies was not measured: {one_line(str(error))}")
        return None
