"""Which data sets each tool, tool map and model has seen, by what it was trained or fitted on
(leakage.yaml).

A data set counts as seen as a whole, also where its test split was kept out of the training.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agentic_iqa_local.files import read_yaml
from agentic_iqa_local.iqa_tools.specs import find_tool
from agentic_iqa_local.studies.datasets import DATASETS

_TOLD: dict[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
TRAINED_ON: dict[str, list[str]] = _TOLD["trained_on"]
SCALED_ON: dict[str, list[str]] = _TOLD["scaled_on"]
SHARING_IMAGES: dict[str, list[str]] = _TOLD["sharing_images"]
UNKNOWN = "?"
UNKNOWN_TRAINING: Literal["training data unknown"] = "training data unknown"
MODELS: dict[str, str] = _TOLD["models"]
_NAMES = {
    alias: key for key, info in DATASETS.items() for alias in (key.replace("_", ""), *info.seen_as)
}
_LOOSE = [r"[\W_]*".join(name) for name in sorted(_NAMES, key=len, reverse=True)]
_NAME = re.compile(rf"(?<![\w-])(?:{'|'.join(_LOOSE)})(?![\w-])")


class Exposure(NamedTuple):
    """How a part of the pipeline ("tool NAME", "map of NAME" or "model") met a data set.

    What touches ranks spoils every figure. What touches the scale alone spoils levels, errors and
    all figures of fused or averaged scores, but not the rank correlation of one raw score: a
    monotone map does not reorder it.
    """

    what: str
    how: Literal["trained on it", "map fitted on it", "training data unknown"]
    touches: Literal["ranks", "scale"] = "ranks"


def exposures(
    dataset: str,
    tools: Sequence[str],
    maps: Mapping[str, str],
    model: str | None = None,
    notice: str | None = None,
) -> list[Exposure]:
    """How tools, their maps and the model have met the data set of a key; empty when none has.

    `maps` says what the map of each tool was fitted on; raw scores have none. `model` is the name
    of the model that takes part, if one does: the Q-Align family is known by it, of others the
    training is unknown. `notice` is what it says of itself; only the embedded model does. Raises
    ToolError for an unknown tool.
    """
    seen = {dataset, *SHARING_IMAGES.get(dataset, ())}
    parts = []
    for name in (find_tool(tool).name for tool in tools):
        parts.append((f"tool {name}", TRAINED_ON[name], SCALED_ON.get(name, [])))
        parts.append((f"map of {name}", [], datasets_in(maps.get(name, ""))))
    if model is not None:
        if notice:
            parts.append(("model", TRAINED_ON["embedded"], SCALED_ON["embedded"]))
        else:
            parts.append(("model", _training_of(model), []))
    found = []
    for what, trained, scaled in parts:
        if seen.intersection(trained):
            found.append(Exposure(what, "trained on it"))
        elif UNKNOWN in trained:
            found.append(Exposure(what, UNKNOWN_TRAINING))
        if seen.intersection(scaled):
            found.append(Exposure(what, "map fitted on it", "scale"))
    return found


def _training_of(model: str) -> list[str]:
    """What a model was trained on, by its name."""
    plain = re.sub(r"[^a-z0-9]", "", model.lower())
    for name, tool in MODELS.items():
        if name in plain:
            return TRAINED_ON[tool]
    return [UNKNOWN]


def datasets_in(text: str) -> list[str]:
    """Keys of the data sets that `text` names, such as what a map was fitted on; the longest name
    at a place counts."""
    names = [re.sub(r"[\W_]", "", name) for name in _NAME.findall(text.lower())]
    return list(dict.fromkeys(_NAMES[name] for name in names))
