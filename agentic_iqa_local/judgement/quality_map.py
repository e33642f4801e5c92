"""Where a picture is damaged: its tiles are read in batches, and their levels become a map of its quality."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import ROOT, folder_hash
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.tiles import Box, Tiling, damaged_boxes, smallest_side, tiling
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
from agentic_iqa_local.result import MapCost, QualityMap, TileBias
from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
from agentic_iqa_local.state import DISTORTION_TYPES, LETTERS, DamagedBox, Severity, revised
from agentic_iqa_local.vlm_client import PixelLimits, VLMError

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.similarity_maps import SimilarityMap
    from agentic_iqa_local.nodes.workbench import OpenImages

TILE = 192  # pixels a side, at least: see docs/maps.md for the sizes that were tried
LARGER = (1, 4 / 3, 2, 8 / 3)  # times the smallest tile, for pictures that would need too many
AT_ONCE = 32  # tiles after which the time is looked at
TOOL_WEIGHT = 0.8  # of LocalNR's level beside the letters': see docs/maps.md
# Mean pseudo-MOS of held-out photographs whose strongest synthetic distortion has severity 0 to 5
# (models/embedded/README.md).
LEVEL_OF_SEVERITY = (4.27, 3.57, 3.16, 2.69, 2.15, 1.81)
TYPE_PREFIX = '{"Global": ["'  # the Executor's own answer up to its first distortion
SEVERITY_PREFIX = '{"Global": [{"type": "TYPE", "severity": "'  # the same up to how severe that is
BIAS_FILE = ROOT / "configs" / "tile_bias.json"


class MapError(UserError, ValueError):
    """A map that cannot be made, drawn or written; the message is one sentence for the user."""


@dataclass(frozen=True)
class MapRequest:
    """What is asked of a map: at most `max_tiles` tiles, no new batch of tiles after `seconds`, and where it is
    drawn to, if it is. Raises MapError."""

    png: Path | None = None
    max_tiles: int = 256
    seconds: float = 120.0

    def __post_init__(self) -> None:
        if not 9 <= self.max_tiles <= 4096:
            raise MapError(f"max_tiles: expected 9 to 4096, got {self.max_tiles}")
        if not self.seconds > 0:
            raise MapError(f"seconds: expected more than 0, got {self.seconds:g}")


def map_request(wanted: bool | str | Path | MapRequest) -> MapRequest | None:
    """What `assess(..., map=wanted)` asks for; None where no map is. Raises TypeError."""
    if isinstance(wanted, MapRequest):
        return wanted
    if isinstance(wanted, str | Path):
        return MapRequest(Path(wanted))
    if not isinstance(wanted, bool):
        raise TypeError(f"map: expected True, a path or a MapRequest, got {type(wanted).__name__}")
    return MapRequest() if wanted else None


def mapped(images: OpenImages, request: MapRequest) -> dict[str, Any]:
    """What a row holds of the map that its assessment was asked for: `map`, or in `no_map` why there is none."""
    images.observer.step("map", "started")
    fields: dict[str, Any]
    try:
        q_map, similarity = make_map(images, request)
    except (MapError, VLMError) as error:
        fields = {"no_map": one_line(str(error))}
    else:
        fields = {"map": q_map}
        if request.png is not None:
            _draw(images, q_map, similarity, request.png)
    images.observer.step("map", "finished")
    return fields


def _draw(images: OpenImages, q_map: QualityMap, similarity: dict[str, SimilarityMap], file: Path) -> None:
    from agentic_iqa_local.judgement.map_drawing import draw, write

    title = f"quality from place to place: median {q_map.median:.2f} of 5"
    try:
        write(draw(q_map, images.image.pixels, title, similarity), file)
        q_map.png = str(file)
    except MapError as error:
        q_map.not_drawn = one_line(str(error))


def make_map(images: OpenImages, request: MapRequest) -> tuple[QualityMap, dict[str, SimilarityMap]]:
    """The map of an opened picture by the Summarizer's model, and the maps of its similarity to the reference by
    metric. Raises MapError for a picture, a model or a mode that allows none, VLMError for a model that fails."""
    began, tokens = time.perf_counter(), _tokens(images)
    tiles = _tiling(images, request)
    bias, note = known_bias(images, tiles.tile)
    levels, stopped = _read_tiles(images, tiles, began + request.seconds)
    shift = bias.levels if bias else 0.0
    letters = tiles.cells([None if level is None else min(max(level - shift, 1.0), 5.0) for level in levels])
    notes = [note] if note else []
    tool = _tool_levels(images, tiles, notes)
    weight = 0.0 if tool is None else TOOL_WEIGHT
    cells = letters if tool is None else (1 - weight) * letters + weight * tool
    worst = [_measured(images, _named(images, box)) for box in damaged_boxes(tiles, cells)]
    similarity = _similarity(images, notes)
    return QualityMap(
        tile=tiles.tile,
        stride=tiles.stride,
        xs=list(tiles.xs),
        ys=list(tiles.ys),
        q=_as_lists(cells),
        letters=_as_lists(letters),
        tool=None if tool is None else tool.tolist(),
        tool_weight=weight,
        median=float(np.nanmedian(cells)),
        worst=worst,
        bias=bias,
        similarity={
            name: found.cell_means(tiles.xs, tiles.ys).tolist() for name, found in similarity.items()
        },
        cost=MapCost(
            tiles=len(levels),
            read=sum(level is not None for level in levels),
            max_tiles=request.max_tiles,
            max_seconds=request.seconds,
            tokens=_tokens(images) - tokens,
            seconds=round(time.perf_counter() - began, 3),
            stopped=stopped,
        ),
        notes=notes,
    ), similarity


def _tokens(images: OpenImages) -> int:
    return images.usage.prefilled + images.usage.decoded


def _as_lists(cells: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(level) else float(level) for level in row] for row in cells]


def tile_sides(limits: PixelLimits) -> list[int]:
    """The sides of tiles that a model sees at native resolution, rising; empty where none lies in its range."""
    factor = limits.factor
    least = max(TILE, limits.min_pixels**0.5)
    sides = [int(-(-least * times // factor)) * factor for times in LARGER]
    return sorted({side for side in sides if side**2 <= (limits.max_pixels or side**2)})


def _tiling(images: OpenImages, request: MapRequest) -> Tiling:
    """The tiles to read. Raises MapError."""
    client = images.services.client(ROLE)
    if images.services.settings.fusion.mode != "logits" or not client.reads_logits:
        raise MapError(
            "map: expected mode logits, for tiles are read by their letters' probabilities",
            "leave --mode out, or assess without a map",
        )
    width, height = images.image.width, images.image.height
    if not (sides := tile_sides(client.limits)):
        raise MapError(
            f"map: expected a model that sees tiles of {TILE} pixels a side or more, {client.name} sees at"
            f" most {client.limits.max_pixels} pixels",
            "raise max_pixels",
        )
    if min(width, height) < (least := smallest_side(sides[0])):
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


def known_bias(images: OpenImages, tile: int) -> tuple[TileBias | None, str | None]:
    """What cropping to tiles of `tile` pixels a side does to the model's letters, as it was measured on clean
    photographs, and None; or None and why nothing is corrected."""
    services = images.services
    folder = services.settings.folder(services.section(ROLE).backend)
    measured = _measured_bias()
    uncorrected = "the tiles' levels are not corrected for what cropping does to them: it was measured"
    if not folder.is_dir() or folder_hash(folder) != measured.get("model"):
        return None, f"{uncorrected} on another model, {measured.get('name', 'none')}"
    if (found := measured["tiles"].get(str(tile))) is None:
        sides = ", ".join(measured["tiles"])
        return None, f"{uncorrected} on tiles of {sides} pixels a side, these have {tile}"
    return TileBias(tile=tile, source=measured["source"], **found), None


@lru_cache(maxsize=1)
def _measured_bias() -> dict[str, Any]:
    return json.loads(BIAS_FILE.read_text(encoding="utf-8")) if BIAS_FILE.is_file() else {}


def _read_tiles(images: OpenImages, tiles: Tiling, until: float) -> tuple[list[float | None], str | None]:
    """The expected level of each tile's letters, None where it was not read; and why it was not."""
    boxes, order = tiles.boxes, tiles.order()
    levels: list[float | None] = [None] * len(boxes)
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    for first in range(0, len(order), AT_ONCE):
        if first and time.perf_counter() > until:
            return levels, f"the time was up after {first} of {len(order)} tiles"
        chunk = order[first : first + AT_ONCE]
        read_now = read_boxes(images, [boxes[i] for i in chunk], prompt, ANSWER_PREFIX, LETTERS)
        for i, p in zip(chunk, read_now, strict=True):
            levels[i] = expected_level(p)
    return levels, None


def read_boxes(
    images: OpenImages, boxes: Sequence[Box], prompt: Prompt, answer_prefix: str, answers: Sequence[str]
) -> list[dict[str, float]]:
    """Of each part of the picture, alone, how probable each answer is after `answer_prefix`. Raises VLMError."""
    reads = images.read_parts(ROLE, boxes, prompt, answer_prefix, answers)
    temperature = images.services.settings.fusion.temperature if answers == LETTERS else 1.0
    return [letter_probabilities(read.logprobs, temperature) for read in reads]


def _tool_levels(images: OpenImages, tiles: Tiling, notes: list[str]) -> np.ndarray | None:
    """The level of each cell by LocalNR, rows×columns, from the severity of the strongest distortion that it sees
    there; None, and why in `notes`, where the tool cannot run."""
    try:
        with images.observer.measuring("LocalNR", images.services) as tools:
            places = tools.places(images.image.pixels).places
    except ToolError as error:
        notes.append(one_line(f"the map rests on the letters alone: {error}"))
        return None
    severity = np.max([tiles.resampled(grid) for grid in places.values()], axis=0)
    return np.interp(severity, range(6), LEVEL_OF_SEVERITY)


def _named(images: OpenImages, damaged: DamagedBox) -> DamagedBox:
    """A damaged box with its distortion and how severe that is: what the model reads of the box alone times what
    LocalNR reads of it, as the Executor would detect and judge it."""
    reading, words = combine(read(images, damaged.box), {}, images), images.services.client(ROLE).reads_words
    p = {kind: 1.0 if reading.error else p for kind, p in strongest(reading).items() if kind != "none"}
    try:
        if words:
            detection = detection_prompt(DEFAULT_QUERY, ["Global"])
            (own,) = read_boxes(images, [damaged.box], detection, TYPE_PREFIX, DISTORTION_TYPES)
            trust = model_trust(images)
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
