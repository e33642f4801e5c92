"""Where a picture is damaged: its tiles are read in batches, and their levels become a map of its quality."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

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
from agentic_iqa_local.state import DISTORTION_TYPES, LETTERS, Box, DamagedBox, Severity, revised
from agentic_iqa_local.vlm_client import PixelLimits, VLMError

TILE = 192  # pixels a side, at least
LARGER = (1, 4 / 3, 2, 8 / 3)  # times the smallest tile, for pictures that would need too many
AT_ONCE = 32  # tiles that are prepared together
TOOL_WEIGHT = 0.8  # of LocalNR's level beside the letters'
# Mean pseudo-MOS of held-out photographs whose strongest synthetic distortion has severity 0 to 5
# (models/embedded/README.md).
LEVEL_OF_SEVERITY = (4.27, 3.57, 3.16, 2.69, 2.15, 1.81)
TYPE_PREFIX = '{"Global": ["'  # the Executor's own answer up to its first distortion
SEVERITY_PREFIX = '{"Global": [{"type": "TYPE", "severity": "'  # the same up to how severe that is


class MapError(UserError, ValueError):
    """A picture, a model or a mode that allows no map; the message is one sentence for the user."""


@dataclass(frozen=True)
class MapRequest:
    """What is asked of a map: where it is drawn to, if it is, and how many tiles it may read. Raises ValueError."""

    png: Path | None = None
    max_tiles: Annotated[int, Field(ge=9, le=4096)] = 256


def map_request(wanted: bool | str | Path | MapRequest) -> MapRequest | None:
    """What `assess(..., map=wanted)` asks for; None where no map is. Raises TypeError."""
    if isinstance(wanted, MapRequest) or not wanted:
        return wanted or None
    return MapRequest() if wanted is True else MapRequest(Path(wanted))


def mapped(bench: Workbench, request: MapRequest) -> dict[str, Any]:
    """What a row holds of the map that its assessment was asked for: `map`, or in `no_map` why there is none."""
    bench.observer.step("map", "started")
    try:
        place = _place_of(request.png) if request.png else None
        q_map, ssim = make_map(bench, request)
    except (MapError, VLMError, ToolError) as error:
        return {"no_map": one_line(str(error))}
    finally:
        bench.observer.step("map", "finished")
    if place is not None:
        from agentic_iqa_local.judgement.map_drawing import draw

        try:
            write_whole(place, draw(q_map, bench.pictures.image.pixels, ssim))
            q_map.png = str(request.png)
        except WriteError as error:
            reason = (
                f"it could not be written ({error.message}); choose a file in a folder of yours"
            )
            q_map.not_drawn = one_line(f"map {request.png}: {reason}")
    return {"map": q_map}


def _place_of(png: Path) -> Path:
    """Where a map is drawn to: the end of the link, if `png` is one. Raises MapError for a place that nothing can be
    written to, and for a file that is no map of this program."""
    try:
        place = place_for(png)
        if is_replaceable(place, PNG):
            return place
    except FileError as error:
        raise MapError(f"map {png}: {error}; choose a file in a folder of yours") from error
    raise MapError(f"map {png}: there is a file that is no map of this program; choose a new name")


def make_map(bench: Workbench, request: MapRequest) -> tuple[QualityMap, np.ndarray | None]:
    """The map of an opened picture by the Summarizer's model, and SSIM's map against its reference. Raises MapError for
    a picture, a model or a mode that allows none, VLMError and ToolError for a model or a tool that fails."""
    began, before, reference = time.perf_counter(), bench.models.usage, bench.pictures.reference
    tiles = _tiling(bench, request)
    prompt = prompts.summarizer_prompt(prompts.DEFAULT_QUERY, None, scoring=True)
    chunks = [tiles.boxes[first : first + AT_ONCE] for first in range(0, len(tiles.boxes), AT_ONCE)]
    reads = [
        p
        for boxes in chunks
        for p in _read_boxes(bench, boxes, prompt, prompts.ANSWER_PREFIX, LETTERS)
    ]
    letters = tiles.cells(np.array([expected_level(p) for p in reads]))
    with bench.observer.measuring("LocalNR", bench.services) as local_nr:
        places = local_nr.places(bench.pictures.image.pixels).places
    severity = np.max(
        [tiles.resampled(grid) for grid in places.values()], axis=0
    )  # of the strongest distortion
    tool = np.interp(severity, range(6), LEVEL_OF_SEVERITY)
    cells = (1 - TOOL_WEIGHT) * letters + TOOL_WEIGHT * tool
    ssim = (
        bench.services.tools.ssim_map(bench.pictures.image.pixels, reference.pixels)
        if reference
        else None
    )
    worst = [_named(bench, box) for box in damaged_boxes(tiles, cells)]
    left, top = bench.pictures.image.offset  # places are in pixels of the original
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
        worst=[revised(part, box=moved(part.box, (left, top))) for part in worst],
        similarity={} if ssim is None else {"SSIM": tiles.resampled(ssim).tolist()},
        cost=MapCost(
            tiles=len(reads),
            tokens=bench.models.usage.prefilled
            + bench.models.usage.decoded
            - before.prefilled
            - before.decoded,
            seconds=round(time.perf_counter() - began, 3),
        ),
    ), ssim


def _tile_sides(limits: PixelLimits) -> list[int]:
    """The sides of tiles that a model sees at native resolution, rising; empty where none lies in its range."""
    factor, least = limits.factor, max(TILE, limits.min_pixels**0.5)
    sides = [int(-(-least * times // factor)) * factor for times in LARGER]
    return sorted({side for side in sides if side**2 <= (limits.max_pixels or side**2)})


def _tiling(bench: Workbench, request: MapRequest) -> Tiling:
    """The tiles to read. Raises MapError."""
    client, width, height = (
        bench.services.client(ROLE),
        bench.pictures.image.width,
        bench.pictures.image.height,
    )
    if bench.services.settings.fusion.mode != "logits" or not client.reads_logits:
        raise MapError(
            "map: expected mode logits, for tiles are read by their letters", "leave --mode out"
        )
    if not (sides := _tile_sides(client.limits)):
        expected = f"map: expected a model that sees tiles of {TILE} pixels a side or more"
        raise MapError(
            f"{expected}, {client.name} sees at most {client.limits.max_pixels} pixels",
            "raise max_pixels",
        )
    if min(width, height) < (least := smallest_side(sides[0])):
        expected = (
            f"map: expected a picture of at least {least} pixels a side for tiles of {sides[0]}"
        )
        raise MapError(
            f"{expected}, got {width}×{height}",
            "as small a picture is one place: its q stands for it",
        )
    if (tiles := tiling(width, height, sides, request.max_tiles)) is None:
        got = f"{request.max_tiles} tiles of at most {sides[-1]} pixels a side do not cover {width}×{height}"
        raise MapError(f"map: {got}", "allow more with --map-tiles")
    return tiles


def _read_boxes(
    bench: Workbench,
    boxes: Sequence[Box],
    prompt: prompts.Prompt,
    answer_prefix: str,
    answers: Sequence[str],
) -> list[dict[str, float]]:
    """Of each part of the picture, alone, how probable each answer is after `answer_prefix`. Raises VLMError."""
    reads = bench.models.read_parts(ROLE, boxes, prompt, answer_prefix, answers)
    temperature = bench.services.settings.fusion.temperature if answers == LETTERS else 1.0
    return [letter_probabilities(read.logprobs, temperature) for read in reads]


def _named(bench: Workbench, damaged: DamagedBox) -> DamagedBox:
    """A damaged box with the scores of the configured tools that can measure it, its distortion and how severe that
    is: what the model reads of the box alone times what LocalNR reads of it, as the Executor would judge it."""

    def said(prompt: prompts.Prompt, prefix: str, words: Sequence[str]) -> dict[str, float] | None:
        try:
            return _read_boxes(bench, [damaged.box], prompt, prefix, words)[0]
        except VLMError:  # it reads letters alone, or two words begin with the same token
            return None

    scores = {}
    for tool in bench.tools.configured():
        with suppress(ToolError):
            scores[tool] = bench.tools.score(tool, damaged.box).normalized
    damaged = revised(damaged, tools=scores)
    reading = detection_of(bench, damaged.box, {})
    kinds = said(
        prompts.distortion_prompt("detection", prompts.DEFAULT_QUERY, ["Global"]),
        TYPE_PREFIX,
        DISTORTION_TYPES,
    )
    if reading.unread or (reading.error and kinds is None):
        return damaged
    p = {
        kind: 1.0 if reading.error else p
        for kind, p in strongest(reading).items()
        if kind != "none"
    }
    if kinds:
        p = {
            kind: kinds[kind] ** bench.services.model_trust("executor") * weight
            for kind, weight in p.items()
        }
    p = {kind: weight / sum(p.values()) for kind, weight in p.items()}
    likeliest = max(p, key=p.__getitem__)
    reading.families[likeliest].probability = 1.0  # the map shows that there is damage
    analysis = prompts.distortion_prompt("analysis", prompts.DEFAULT_QUERY, {"Global": [likeliest]})
    own = said(analysis, SEVERITY_PREFIX.replace("TYPE", likeliest), get_args(Severity))
    severities = severity_probabilities(reading, likeliest, "unclear", own, bench)
    severity = max(severities, key=severities.__getitem__, default=None)
    about = {"distortion": likeliest, "probability": p[likeliest], "distortions": p}
    return revised(damaged, **about, severity=severity, severities=severities)
