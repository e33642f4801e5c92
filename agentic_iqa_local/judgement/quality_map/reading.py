"""Reads the tiles of an opened picture in batches, and makes the map of its quality from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.quality_map.bias import known_bias
from agentic_iqa_local.judgement.quality_map.damage import damaged_boxes
from agentic_iqa_local.judgement.quality_map.result import (
    DamagedBox,
    MapCost,
    MapError,
    MapRequest,
    QualityMap,
)
from agentic_iqa_local.judgement.quality_map.tiles import Box, Tiling, smallest_side, tiling
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTERS, Severity
from agentic_iqa_local.nodes.detection import combine, model_trust, read, severity_probabilities, strongest
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    Prompt,
    analysis_prompt,
    detection_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
from agentic_iqa_local.state import revised
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import PixelLimits, VLMError

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.similarity_maps import SimilarityMap

TILE = 192  # pixels a side, at least: see docs/maps.md for the sizes that were tried
LARGER = (1, 4 / 3, 2, 8 / 3)  # times the smallest tile, for pictures that would need too many
AT_ONCE = 32  # tiles after which the time is looked at
TOOL_WEIGHT = 0.8  # of LocalNR's level beside the letters': see docs/maps.md
# Mean pseudo-MOS of held-out photographs whose strongest synthetic distortion has severity 0 to 5
# (models/embedded/README.md).
LEVEL_OF_SEVERITY = (4.27, 3.57, 3.16, 2.69, 2.15, 1.81)
TYPE_PREFIX = '{"Global": ["'  # the Executor's own answer up to its first distortion
SEVERITY_PREFIX = '{"Global": [{"type": "TYPE", "severity": "'  # the same up to how severe that is


def tile_sides(limits: PixelLimits) -> list[int]:
    """The sides of tiles that a model sees at native resolution, rising; empty where none lies in its
    range."""
    factor = limits.factor
    least = max(TILE, limits.min_pixels**0.5)
    sides = [int(-(-least * times // factor)) * factor for times in LARGER]
    return sorted({side for side in sides if side**2 <= (limits.max_pixels or side**2)})


def make_map(images: OpenImages, request: MapRequest) -> tuple[QualityMap, dict[str, SimilarityMap]]:
    """(the map of the picture, by the Summarizer's model; the maps of its similarity to the reference, by
    metric). Raises MapError for a picture, a model or a mode that allows none, VLMError for a model that
    fails."""
    began, tokens = time.perf_counter(), _tokens(images)
    client = images.services.client(ROLE)
    if images.services.settings.fusion.mode != "logits" or not client.reads_logits:
        raise MapError(
            "map: expected mode logits, for tiles are read by their letters' probabilities",
            "leave --mode out, or assess without a map",
        )
    tiles = _tiling(images, request)
    bias, note = known_bias(images, tiles.tile)
    levels, stopped = _read(images, tiles, request.seconds - (time.perf_counter() - began))
    shift = bias.levels if bias else 0.0
    letters = tiles.cells([None if level is None else min(max(level - shift, 1.0), 5.0) for level in levels])
    notes = [note] if note else []
    tool = _tool_levels(images, tiles, notes)
    weight = 0.0 if tool is None else TOOL_WEIGHT
    cells = letters if tool is None else (1 - weight) * letters + weight * tool
    q_map = QualityMap(
        tile=tiles.tile,
        stride=tiles.stride,
        xs=list(tiles.xs),
        ys=list(tiles.ys),
        q=_as_lists(cells),
        letters=_as_lists(letters),
        tool=None if tool is None else tool.tolist(),
        tool_weight=weight,
        median=float(np.nanmedian(cells)),
        worst=[_measured(images, _named(images, box)) for box in damaged_boxes(tiles, cells)],
        bias=bias,
        cost=MapCost(
            tiles=len(levels),
            read=sum(level is not None for level in levels),
            max_tiles=request.max_tiles,
            max_seconds=request.seconds,
            tokens=0,
            seconds=0,
            stopped=stopped,
        ),
        notes=notes,
    )
    similarity = _similarity(images, q_map.notes)
    q_map.similarity = {
        name: found.cell_means(q_map.xs, q_map.ys).tolist() for name, found in similarity.items()
    }
    q_map.cost.tokens = _tokens(images) - tokens
    q_map.cost.seconds = round(time.perf_counter() - began, 3)
    return q_map, similarity


def _tiling(images: OpenImages, request: MapRequest) -> Tiling:
    """The tiles to read. Raises MapError."""
    client = images.services.client(ROLE)
    width, height = images.image.width, images.image.height
    if not (sides := tile_sides(client.limits)):
        raise MapError(
            f"map: expected a model that sees tiles of {TILE} pixels a side or more, {client.name} sees at"
            f" most {client.limits.max_pixels} pixels",
            "raise max_pixels",
        )
    least = smallest_side(sides[0])
    if min(width, height) < least:
        raise MapError(
            f"map: expected a picture of at least {least} pixels a side for tiles of {sides[0]}, got"
            f" {width}×{height}",
            "a picture as small is one place: its q stands for all of it",
        )
    if (found := tiling(width, height, sides, request.max_tiles)) is None:
        raise MapError(
            f"map: {request.max_tiles} tiles of at most {sides[-1]} pixels a side do not cover"
            f" {width}×{height}",
            "allow more with --map-tiles",
        )
    return found


def _read(images: OpenImages, tiles: Tiling, seconds: float) -> tuple[list[float | None], str | None]:
    """(the expected level of each tile's letters, None where it was not read; why it was not)."""
    boxes = tiles.boxes
    levels: list[float | None] = [None] * len(boxes)
    prompt, began = summarizer_prompt(DEFAULT_QUERY, None, scoring=True), time.perf_counter()
    order, stopped = tiles.order(), None
    for first in range(0, len(order), AT_ONCE):
        if first and time.perf_counter() - began > seconds:
            stopped = f"the time was up after {first} of {len(order)} tiles"
            break
        chunk = order[first : first + AT_ONCE]
        probabilities = read_boxes(images, [boxes[i] for i in chunk], prompt, ANSWER_PREFIX, LETTERS)
        for i, p in zip(chunk, probabilities, strict=True):
            levels[i] = expected_level(p)
    return levels, stopped


def read_boxes(
    images: OpenImages, boxes: Sequence[Box], prompt: Prompt, answer_prefix: str, answers: Sequence[str]
) -> list[dict[str, float]]:
    """Of each part of the picture, alone, how probable each answer is after `answer_prefix`. Raises
    VLMError."""
    reads = images.read_parts(ROLE, boxes, prompt, answer_prefix, answers)
    temperature = images.services.settings.fusion.temperature if answers == LETTERS else 1.0
    return [letter_probabilities(read.logprobs, temperature) for read in reads]


def _tool_levels(images: OpenImages, tiles: Tiling, notes: list[str]) -> np.ndarray | None:
    """rows×columns: the level of each cell by LocalNR, from the severity of the strongest distortion that it
    sees there; None, and why in `notes`, where the tool cannot run."""
    try:
        with images.observer.measuring("LocalNR", images.services) as tools:
            places = tools.places(images.image.pixels).places
    except ToolError as error:
        notes.append(one_line(f"the map rests on the letters alone: {error}"))
        return None
    severity = np.max([tiles.resampled(grid) for grid in places.values()], axis=0)
    return np.interp(severity, range(6), LEVEL_OF_SEVERITY)


def _as_lists(cells: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(level) else float(level) for level in row] for row in cells]


def _named(images: OpenImages, damaged: DamagedBox) -> DamagedBox:
    """A damaged box with its distortion and how severe that is: what the model reads of the box alone times what
    LocalNR reads of it, as the Executor would detect and judge it."""
    reading, words = combine(read(images, damaged.box), {}, images), images.services.client(ROLE).reads_words
    trust = model_trust(images)
    p = {kind: 1.0 if reading.error else p for kind, p in strongest(reading).items() if kind != "none"}
    try:
        if words:
            detection = detection_prompt(DEFAULT_QUERY, ["Global"])
            (own,) = read_boxes(images, [damaged.box], detection, TYPE_PREFIX, DISTORTION_TYPES)
            p = {kind: own[kind] ** trust * weight for kind, weight in p.items()}
    except VLMError:  # two types that begin with the same token cannot be told apart
        words = False
    if not words and reading.error:
        return damaged
    p = {kind: weight / sum(p.values()) for kind, weight in p.items()}
    likeliest = max(p, key=p.__getitem__)
    reading.families[likeliest].probability = 1.0  # the map has found that there is damage
    named = revised(damaged, distortion=likeliest, probability=p[likeliest], distortions=p)
    own = None
    with suppress(VLMError):
        if words:
            prefix = SEVERITY_PREFIX.replace("TYPE", likeliest)
            analysis = analysis_prompt(DEFAULT_QUERY, {"Global": [likeliest]})
            (own,) = read_boxes(images, [damaged.box], analysis, prefix, get_args(Severity))
    severities = severity_probabilities(reading, {"type": likeliest, "severity": "unclear"}, own, images)
    if severities is None:
        return named
    return revised(named, severity=max(severities, key=severities.__getitem__), severities=severities)


def _measured(images: OpenImages, damaged: DamagedBox) -> DamagedBox:
    """A damaged box with the scores of the configured tools on it alone; those that cannot measure as small a
    picture are left out."""
    settings = images.services.settings.tools
    scores = {}
    for tool in settings.full_reference if images.reference else settings.no_reference:
        with suppress(ToolError):
            scores[tool] = images.score(tool, damaged.box).normalized
    return revised(damaged, tools=scores)


def _similarity(images: OpenImages, notes: list[str]) -> dict[str, SimilarityMap]:
    """The metrics' maps where there is a reference; why there are none goes to `notes`."""
    if images.reference is None:
        return {}
    try:
        return images.services.tools.similarity_maps(images.image.pixels, images.reference.pixels)
    except ToolError as error:
        notes.append(one_line(f"no similarity maps: {error}"))
        return {}


def _tokens(images: OpenImages) -> int:
    return images.usage.prefilled + images.usage.decoded


def mapped(images: OpenImages, request: MapRequest) -> dict[str, Any]:
    """What a row holds of the map that its assessment was asked for: `map`, or in `no_map` why there is none."""
    images.observer.step("map", "started")
    fields = _mapped(images, request)
    images.observer.step("map", "finished")
    return fields


def _mapped(images: OpenImages, request: MapRequest) -> dict[str, Any]:
    try:
        q_map, similarity = make_map(images, request)
    except (MapError, VLMError) as error:
        return {"no_map": one_line(str(error))}
    if request.png is not None:
        from agentic_iqa_local.judgement.quality_map.drawing import draw, write

        title = f"quality from place to place: median {q_map.median:.2f} of 5"
        try:
            q_map.png = write(draw(q_map, images.image.pixels, title, similarity), request.png)
        except MapError as error:
            q_map.not_drawn = one_line(str(error))
    return {"map": q_map}
