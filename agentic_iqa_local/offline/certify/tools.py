"""The tools on the probe pictures: raw scores, and qualities through their maps; on a GPU against the CPU,
anywhere against what was recorded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.specs import DATA, find_tool
from agentic_iqa_local.nodes.workbench import load_pictures
from agentic_iqa_local.offline.certify.check import Check, judged, not_run
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.services import Services

PICTURES = (1, 3, 4, 6, 7, 9)  # places among the probes: blurred, noisy, compressed, clean, small, compressed
ON_CPU = 0.01
"""Levels by which a tool's quality may differ from the recorded one on a CPU: other processors add numbers in
another order, which moves the tools that ship by less than a tenth of it."""
ON_GPU = 0.05
"""Levels by which a GPU's quality may differ from the CPU's: convolutions there round to ten bits of mantissa
(TF32) unless they are told not to."""

Scores = Mapping[str, Mapping[str, Sequence[float]]]  # tool → picture → (raw, of 5)


def measure_tools(settings: Settings, device: str, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Scores of the tools that are there, but for those that the configuration does not offer, which take
    long; the identity of each; and why a tool that the configuration names gave none."""
    services = Services(settings, device)
    tools = services.tools
    tools.prepare()
    named = {*settings.tools.full_reference, *settings.tools.no_reference}
    left_out = set(settings.tools.not_offered) - named
    scores: dict[str, Any] = {}
    failed, about = {}, {}
    for info in tools.info():
        if not info.available or info.name in left_out:
            if info.name in named:
                failed[info.name] = info.reason
            continue
        try:
            scores[info.name] = {
                name: _score(services, info.name, folder, name) for name in (names[i] for i in PICTURES)
            }
            about[info.name] = _identity(tools, info.name)
        except ToolError as error:
            failed[info.name] = str(error)
    return {"scores": scores, "failed": failed, "about": about, "named": sorted(named)}


def _score(services: Services, tool: str, folder: Path, name: str) -> tuple[float, float]:
    limits = services.settings.images
    image, clean = (
        load_pictures(limits, folder / file)[0].pixels for file in (f"{name}.png", f"{name}.clean.png")
    )
    reading = services.tools.score(tool, image, clean)
    return reading.raw, reading.normalized


def _identity(tools: Any, name: str) -> dict[str, str]:
    """The hashes of the files that the tool loads."""
    spec = find_tool(name)
    bundled = {spec.bundled: file_hash(DATA / spec.bundled)} if spec.bundled else {}
    return dict(tools.weights.check(spec)) | bundled


def judge_tools(
    here: dict[str, Any], recorded: dict[str, Any], device: str, on_cpu: dict[str, Any] | None = None
) -> Check:
    """The tools of this machine against the recorded ones, which were measured on a CPU, and on a GPU against
    this machine's own CPU."""
    problems = [f"{tool} gives no score: {reason}" for tool, reason in here["failed"].items()]
    on_gpu = device != "cpu"
    figures = []
    for tool, scores in here["scores"].items():
        if not (theirs := recorded["scores"].get(tool)):
            continue
        files = {
            file
            for file, digest in recorded["about"].get(tool, {}).items()
            if here["about"][tool].get(file) != digest
        }
        row = _compared(tool, "the record", scores, theirs, ON_GPU if on_gpu else ON_CPU)
        figures.append(row)
        problems += [f"{tool} loads other weights than recorded: {', '.join(sorted(files))}"] if files else []
        if not row["within"]:
            problems.append(_difference(tool, "the record", row))
    for tool, scores in (on_cpu or {"scores": {}})["scores"].items():
        if tool in here["scores"]:
            row = _compared(tool, "the CPU", here["scores"][tool], scores, ON_GPU)
            figures.append(row)
            problems += [] if row["within"] else [_difference(tool, "the CPU", row)]
    if not figures and not problems:
        return not_run("tools", "no tool of this set-up has recorded scores")
    problems = sorted(problems, key=lambda text: "other weights" not in text and "map" not in text)
    worst = max((row["q"] for row in figures), default=0.0)
    where = "on the GPU as on the CPU and in the record" if on_cpu else "as recorded"
    unknown = sorted(set(here["scores"]) - set(recorded["scores"]))
    notes = [f"no recorded scores of {', '.join(unknown)}"] if unknown else []
    notes += [] if on_gpu else ["a GPU against the CPU: not run, this is a CPU"]
    sound = f"{len(here['scores'])} tools measure {where}: |Δ| ≤ {worst:.2g} of 5 levels"
    return judged("tools", problems, sound, figures, notes)


def _compared(tool: str, against: str, ours: Any, theirs: Any, bound: float) -> dict[str, Any]:
    names = [name for name in ours if name in theirs]
    raw = max((abs(ours[n][0] - theirs[n][0]) / max(abs(theirs[n][0]), 1e-6) for n in names), default=0.0)
    q = max((abs(ours[n][1] - theirs[n][1]) for n in names), default=0.0)
    return {
        "comparison": f"{tool} against {against}",
        "pictures": len(names),
        "raw": raw,
        "q": q,
        "bound_q": bound,
        "within": q <= bound,
    }


def _difference(tool: str, against: str, row: dict[str, Any]) -> str:
    """Which of the two has changed: what the tool measures, or its map to 1..5."""
    if row["raw"] < 1e-3:
        return (
            f"the map of {tool} is another: the same raw scores are up to {row['q']:.2g} levels apart from"
            f" {against} (bound {row['bound_q']:g})"
        )
    return (
        f"{tool} measures otherwise than {against}: {row['q']:.2g} levels apart (bound {row['bound_q']:g}),"
        f" raw scores by {row['raw']:.1%}"
    )
