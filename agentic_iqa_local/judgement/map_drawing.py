"""A map as a picture: the quality of each cell over the photograph, with the damaged boxes, and beside it the
similarity maps to a reference."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import DRAWN_BY, create, place_for, require_own
from agentic_iqa_local.judgement.quality_map import MapError
from agentic_iqa_local.result import QualityMap
from agentic_iqa_local.state import LEVEL_WORDS

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.similarity_maps import SimilarityMap

STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a title holds anything
    "font.size": 8,
    "axes.titlesize": 8,
    "figure.dpi": 100,
    "savefig.dpi": 100,
}
PANEL = 3.2  # inches a side
LONGEST_SIDE = 480  # pixels of what is drawn of the picture
COLOURS = "RdYlBu"  # from red (bad) to blue (excellent): told apart by the colour-blind too
PER_ROW = 3


def draw(
    q_map: QualityMap, picture: Image.Image, title: str, similarity: Mapping[str, SimilarityMap]
) -> bytes:
    """The PNG of a map of `picture`, an RGB image of the size that the map is of."""
    panels = 2 + len(similarity)
    columns = min(panels, PER_ROW)
    rows = -(-panels // columns)
    height = min(max(picture.height / picture.width, 0.4), 2.5)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(columns * PANEL, rows * PANEL * height + 0.5), layout="constrained")
        axes = list(np.atleast_1d(figure.subplots(rows, columns)).ravel())
        for spare in axes[panels:]:
            spare.remove()
        figure.suptitle(one_line(title)[:120])
        _photograph(axes[0], picture, "the picture")
        _quality(figure, axes[1], q_map, picture)
        for axis, (name, found) in zip(axes[2:], similarity.items(), strict=False):
            shown = Image.fromarray(found.values)
            shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BOX)
            extent = (0, picture.width, picture.height, 0)
            mesh = axis.imshow(np.asarray(shown), cmap="magma", vmin=0, vmax=1, extent=extent)
            axis.set_title(f"{name}'s similarity to the reference")
            axis.set_axis_off()
            figure.colorbar(mesh, ax=axis, fraction=0.046, pad=0.02)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", pil_kwargs={"optimize": True}, metadata={"Software": DRAWN_BY})
    return buffer.getvalue()


def write(png: bytes, file: Path) -> None:
    """Writes a drawn map to `file`, or to what that links to. Raises MapError."""
    try:
        place = place_for(file)
        require_own(place, "drawing")
        partial = place.with_name(f"{place.name}.partial")
        with open(create(partial), "wb") as out:
            out.write(png)
        partial.replace(place)
    except (ValueError, OSError) as error:
        reason = getattr(error, "message", error)
        raise MapError(
            one_line(f"map {file}: it could not be written ({reason})"), "choose a file in a folder of yours"
        ) from error


def _photograph(axis: Axes, picture: Image.Image, title: str) -> None:
    shown = picture.copy()
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    axis.imshow(shown, extent=(0, picture.width, picture.height, 0))
    axis.set_title(title)
    axis.set_axis_off()


def _quality(figure: Figure, axis: Axes, q_map: QualityMap, picture: Image.Image) -> None:
    _photograph(axis, picture.convert("L").convert("RGB"), f"quality of tiles of {q_map.tile} pixels")
    cells = np.ma.masked_invalid(np.array(q_map.q, float))  # None becomes nan
    mesh = axis.pcolormesh(q_map.xs, q_map.ys, cells, cmap=COLOURS, vmin=1, vmax=5, alpha=0.55, linewidth=0)
    bar = figure.colorbar(mesh, ax=axis, ticks=range(1, 6), fraction=0.046, pad=0.02)
    bar.ax.set_yticklabels([f"{level} {LEVEL_WORDS[level]}" for level in range(1, 6)])
    for number, damaged in enumerate(q_map.worst, 1):
        left, top, right, bottom = damaged.box
        frame = Rectangle(
            (left, top), right - left, bottom - top, fill=False, edgecolor="black", linewidth=1.6
        )
        axis.add_patch(frame)
        label = f"{number}: {damaged.distortion or 'damaged'}, q {damaged.q:.1f}"
        behind = {"facecolor": "white", "alpha": 0.85, "pad": 1.5}
        axis.text(left, top, label, va="top", fontsize=7, bbox=behind)
