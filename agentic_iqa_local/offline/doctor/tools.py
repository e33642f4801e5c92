"""What is examined of the tools: their maps, their weights, and a measurement with each."""

from agentic_iqa_local.iqa_tools.specs import ToolSpec, find_tool
from agentic_iqa_local.offline.doctor.checks import ENVIRONMENT, Finding, Setup, check
from agentic_iqa_local.offline.doctor.models import pictures
from agentic_iqa_local.paths import command


@check("tools", "correct tools: in the configuration")
def tools(setup: Setup) -> Finding:
    """Can the tools' maps be read, and how many tools are there?"""
    known = setup.tools().info()
    available = [info.name for info in known if info.available]
    return "pass", f"{len(available)} of {len(known)} are available: {', '.join(available)}", ""


@check("tool", f"bring its weights anew ({command('bundle')} --tools NAME), or list it in tools.not_offered")
def tool(setup: Setup, name: str) -> Finding | None:
    """Is a tool there and does it measure? Nothing for one that is absent and that the configuration does not
    name."""
    spec, named = find_tool(name), name in setup.named_tools
    runner = setup.tools()
    info = next(info for info in runner.info() if info.name == spec.name)
    if not info.available:
        if not named:
            return None
        return "fail", f"the configuration names it; {info.reason}", remedy_for(spec, info.reason or "")
    if setup.quick:
        return "pass", "available", ""
    noisy, original = pictures()
    raw = runner.measure(spec.name, noisy, original)
    return "pass", f"{raw:.4g} raw, {runner.maps[spec.name](raw):.2f} of 5", ""


def remedy_for(spec: ToolSpec, reason: str) -> str:
    """What to do about a tool that is unavailable for `reason` (`ToolInfo.reason`)."""
    if spec.weights and reason.startswith("missing weights"):
        fetch = f"{command('bundle')} --tools {spec.name}"
        return f"fetch them on a connected machine: {fetch}; or name another tool"
    if reason.startswith("missing Python module"):
        return ENVIRONMENT
    return "name another tool in tools.full_reference or tools.no_reference"
