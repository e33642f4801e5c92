"""The scoring modes of a run, all from its stored rows: one number for each image, higher for
better."""

from dataclasses import dataclass

import numpy as np

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution
from agentic_iqa_local.studies.readings import Readings


@dataclass(frozen=True, eq=False)
class Mode:
    """A mode's `scores` (rows,), nan where the image failed, and the probabilities `p` of the
    levels (rows, 5) that they rest on, if those are its own. What it is made with: `tools`, whether
    their `maps` to 1..5, and whether the model."""

    name: str
    scores: np.ndarray
    p: np.ndarray | None = None
    tools: tuple[str, ...] = ()
    maps: bool = False
    model: bool = True


def scored_modes(
    readings: Readings, settings: FusionSettings, fitted: FusionSettings | None = None
) -> dict[str, Mode]:
    """All modes that the rows allow, by name. `settings` is the fusion that the run was made with,
    `fitted` the same with a fit's temperature and η, which adds a mode."""
    modes = [*_with_evidence(readings, settings, fitted)]
    if readings.has("image_alone"):
        p = readings.p("image_alone", temperature=settings.letters_temperature)
        modes.append(Mode("letters, image alone", p @ LEVELS, p))
    modes += _without_letters(readings, settings)
    for tool, raw in readings.raw_scores().items():
        modes.append(Mode(tool, raw.to_numpy(), tools=(tool,), model=False))
    return {mode.name: mode for mode in modes}


def _with_evidence(
    readings: Readings, settings: FusionSettings, fitted: FusionSettings | None
) -> list[Mode]:
    """The modes of the letters that were read with all evidence in the prompt: the product, and
    what they say alone."""
    if not readings.has("all_evidence"):
        return []
    read = readings.p("all_evidence", temperature=settings.letters_temperature)
    modes = [_fused("logits", readings, read, settings)]
    if fitted:
        p = readings.p("all_evidence", temperature=fitted.letters_temperature)
        modes.append(_fused("logits, fitted", readings, p, fitted))
    rest = (1 - settings.classification_confidence) / 4  # what each letter not written has
    written = readings.p("all_evidence", "generated")
    written = rest + (settings.classification_confidence - rest) * written
    modes.append(_fused("classification", readings, written, settings))
    tools = readings.tools_of_agent()
    return [*modes, Mode("letters, all evidence", read @ LEVELS, tools=tools)]


def _without_letters(readings: Readings, settings: FusionSettings) -> list[Mode]:
    """The modes of the agent's tools alone."""
    q_bar = readings.agent["q_bar"].to_numpy()
    if np.isnan(q_bar).all():
        return []
    equal = np.where(np.isnan(q_bar)[:, None], np.nan, np.full(5, 1 / 5))
    uniform = _fused("uniform", readings, equal, settings)
    return [
        Mode("uniform", uniform.scores, tools=uniform.tools, maps=True),
        Mode("tool mean", q_bar, tools=uniform.tools, maps=True),
    ]


def _fused(name: str, readings: Readings, p: np.ndarray, settings: FusionSettings) -> Mode:
    """The mode whose scores are p_c times α_c of the agent's tools."""
    w = fused_distribution(p, readings.agent["q_bar"].to_numpy(), readings.eta(settings.eta))
    return Mode(name, w @ LEVELS, p, readings.tools_of_agent(), maps=True)
