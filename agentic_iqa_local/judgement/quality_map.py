"""Where a picture is damaged: its tiles are read in batches, and their levels become a map of its
quality."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import (
    PNG,
    FileError,
    WriteError,
    is_replaceable,
    place_for,
    write_whole,
)
from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.tiles import Tiling, damaged_boxes, smallest_side, tiling
from agentic_iqa_local.nodes import prompts
from agentic_iqa_local.nodes.detection import detection_of, severity_probabilities, strongest
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.result import MapCost, QualityMap
from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
from agentic_iqa_local.state import (
    DISTORTION_TYPES,
    LETTERS,
    Box,
    DamagedBox,
    Detection,
    Severity,
    revised,
)
from agentic_iqa_local.vlm_client import PixelLimits, VLMError

TILE = 192  # pixels a side, at least
LARGER = (1, 4 / 3, 2, 8 / 3)  # times the smallest tile, for pictures that would need too many
MOST_TILES = 256
AT_ONCE = 32  # tiles that are prepared together
TOOL_WEIGHT = 0.8  # of LocalNR's level beside the letters'
# Mean pseudo-MOS of held-out photographs whose strongest synthetic distortion has severity 0 to 5
# (models/embedded/README.md).
LEVEL_OF_SEVERITY = (4.27, 3.57, 3.16, 2.69, 2.15, 1.81)
TYPE_PREFIX = '{"Global": ["'  # the Executor's own answer up to its first distortion
SEVERITY_PREFIX = '{"Global": [{"type": "TYPE", "severity": "'  # the same up to how severe that is


class MapError(UserError, ValueError):
    """A picture, a model or a mode that allows no map; the message is one sentence for the user."""


def mapped(bench: Workbench, png: Path | None) -> dict[str, Any]:
    """What a row holds of the map that its assessment was asked for: `map`, drawn to `png` if that
    is given, or in `no_map` why there is none."""
    bench.observer.step("map", "started")
    try:
        q_map = make_map(bench)
    except (MapError, VLMError, ToolError) as error:
        return {"no_map": one_line(str(error))}
    finally:
        bench.observer.step("map", "finished")
    if png is not None:
        _draw(q_map, bench, png)
    return {"map": q_map}


def _draw(q_map: QualityMap, bench: Workbench, png: Path) -> None:
    """Draws a map to a file, which is no file but an earlier map; warns where that cannot be."""
    from agentic_iqa_local.judgement.map_drawing import draw

    try:
        place = place_for(png)
        if not is_replaceable(place, PNG):
            raise FileError("there is a file that is no map of this program")
        write_whole(place, draw(q_map, bench.pictures.image.pixels))
        q_map.png = str(png)
    except (FileError, WriteError) as error:
        bench.warn(f"map {png}: it was not drawn: {error}; choose a new file in a folder of yours")


def make_map(bench: Workbench) -> QualityMap:
    """The map of an opened picture by the Summarizer's model. Raises MapError for a picture, a
    model or a mode that allows none, VLMError and ToolError for a model or a tool that fails."""
    began, before = time.perf_counter(), bench.models.usage
    tiles = _tiling(bench)
    letters = tiles.cells(np.array(_letter_levels(bench, tiles.boxes)))
    tool = _tool_levels(bench, tiles)
    cells = (1 - TOOL_WEIGHT) * letters + TOOL_WEIGHT * tool
    worst = [_named(bench, box) for box in damaged_boxes(tiles, cells)]
    after = bench.models.usage
    tokens = after.prefilled + after.decoded - before.prefilled - before.decoded
    seconds = round(time.perf_counter() - began, 3)
    left, top = offset = bench.pictures.image.offset  # places are in pixels of the original
    return QualityMap(
        tile=tiles.tile,
        stride=tiles.stride,
        xs=[x + left for x in tiles.xs],
        ys=[y + top for y in tiles.ys],
        q=cells.tolist(),
        letters=letters.tolist(),
        tool=tool.tolist(),
        tool_weight=TOOL_WEIGHT,
        median=float(np.median(cells)),
        worst=[revised(part, box=moved(part.box, offset)) for part in worst],
        cost=MapCost(tiles=len(tiles.boxes), tokens=tokens, seconds=seconds),
    )


def _letter_levels(bench: Workbench, boxes: Sequence[Box]) -> list[float]:
    """The level of each tile by the letters."""
    prompt = prompts.summarizer_prompt(prompts.DEFAULT_QUERY, None, scoring=True)
    levels = []
    for first in range(0, len(boxes), AT_ONCE):
        chunk = boxes[first : first + AT_ONCE]
        for p in _read_boxes(bench, chunk, prompt, prompts.ANSWER_PREFIX, LETTERS):
            levels.append(expected_level(p))
    return levels


def _tool_levels(bench: Workbench, tiles: Tiling) -> np.ndarray:
    """The level of each cell by the strongest distortion that LocalNR sees there."""
    with bench.observer.measuring("LocalNR", bench.services) as local_nr:
        places = local_nr.places(bench.pictures.image.pixels).places
    severity = np.max([tiles.resampled(grid) for grid in places.values()], axis=0)
    return np.interp(severity, range(6), LEVEL_OF_SEVERITY)


def tile_sides(limits: PixelLimits) -> list[int]:
    """The sides of tiles that a model sees at native resolution, rising; empty where none lies in
    its range."""
    least = max(TILE, limits.min_pixels**0.5)
    sides = {int(-(-least * times // limits.factor)) * limits.factor for times in LARGER}
    return sorted(side for side in sides if side**2 <= (limits.max_pixels or side**2))


def _tiling(bench: Workbench) -> Tiling:
    """The tiles to read. Raises MapError."""
    client = bench.services.client(ROLE)
    width, height = bench.pictures.image.width, bench.pictures.image.height
    if bench.settings.fusion.mode != "logits" or not client.reads_logits:
        expected = "map: expected mode logits, for tiles are read by their letters"
        raise MapError(expected, "leave --mode out")
    sides = tile_sides(client.limits)
    if not sides:
        expected = f"map: expected a model that sees tiles of {TILE} pixels a side or more"
        got = f"{client.name} sees at most {client.limits.max_pixels} pixels"
        raise MapError(f"{expected}, {got}", "raise max_pixels")
    least = smallest_side(sides[0])
    if min(width, height) < least:
        expected = f"map: expected a picture of at least {least} pixels a side"
        remedy = "as small a picture is one place: its q stands for it"
        raise MapError(f"{expected} for tiles of {sides[0]}, got {width}×{height}", remedy)
    tiles = tiling(width, height, sides, MOST_TILES)
    if tiles is None:
        got = f"{MOST_TILES} tiles of {sides[-1]} pixels a side do not cover {width}×{height}"
        raise MapError(f"map: {got}", "crop the picture")
    return tiles


def _read_boxes(
    bench: Workbench,
    boxes: Sequence[Box],
    prompt: prompts.Prompt,
    answer_prefix: str,
    answers: Sequence[str],
) -> list[dict[str, float]]:
    """For each part of the picture, alone, how probable each answer is after `answer_prefix`.
    Raises VLMError."""
    reads = bench.models.read_parts(ROLE, boxes, prompt, answer_prefix, answers)
    return [letter_probabilities(read.logprobs) for read in reads]


def _named(bench: Workbench, damaged: DamagedBox) -> DamagedBox:
    """A damaged box with its distortion and how severe that is: what the model reads of the box
    alone times what LocalNR reads of it, as the Executor would judge it."""
    reading = detection_of(bench, damaged.box, {})
    asked = prompts.objects_prompt("detection", prompts.DEFAULT_QUERY, ["Global"])
    own = _said(bench, damaged.box, asked, TYPE_PREFIX, DISTORTION_TYPES)
    if reading.unread or (reading.error and own is None):
        return damaged
    p = _distortions(reading, own, bench.services.model_trust("executor"))
    kind = max(p, key=p.__getitem__)
    damaged.distortion, damaged.probability, damaged.distortions = kind, p[kind], p
    reading.families[kind].probability = 1.0  # the map shows that there is damage
    asked = prompts.objects_prompt("analysis", prompts.DEFAULT_QUERY, {"Global": [kind]})
    prefix = SEVERITY_PREFIX.replace("TYPE", kind)
    own = _said(bench, damaged.box, asked, prefix, get_args(Severity))
    damaged.severities = severity_probabilities(reading.families[kind], own or {}, bench)
    severity = max(damaged.severities, key=damaged.severities.__getitem__, default=None)
    return revised(damaged, severity=severity)


def _distortions(
    reading: Detection, own: dict[str, float] | None, trust: float
) -> dict[str, float]:
    """How probable each type is as a box's strongest: by LocalNR, if it could read the box, and by
    the model."""
    weights = {}
    for kind, p in strongest(reading).items():
        if kind != "none":
            read = 1.0 if reading.error else p
            weights[kind] = read * own[kind] ** trust if own else read
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


def _said(
    bench: Workbench, box: Box, prompt: prompts.Prompt, prefix: str, words: Sequence[str]
) -> dict[str, float] | None:
    """How probable the model finds each word; None for one that reads letters alone, or begins two
    words alike."""
    try:
        return _read_boxes(bench, [box], prompt, prefix, words)[0]
    except VLMError:
        return None
