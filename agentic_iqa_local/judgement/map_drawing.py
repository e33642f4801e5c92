"""A map as a picture: the photograph, and beside it the quality of each cell over it, with the
damaged boxes."""

from io import BytesIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from agentic_iqa_local.result import QualityMap
from agentic_iqa_local.state import LEVEL_WORDS, DamagedBox

PANEL = 3.2  # inches a side
LONGEST_SIDE = 480  # pixels of what is drawn of the picture
COLOURS = "RdYlBu"  # from red (bad) to blue (excellent): told apart by the colour-blind too


def draw(q_map: QualityMap, picture: Image.Image) -> bytes:
    """The PNG of a map of `picture`, the RGB image that the map is of."""
    height = min(max(picture.height / picture.width, 0.4), 2.5)
    with matplotlib.rc_context({"font.size": 8, "axes.titlesize": 8}):
        figure = Figure(figsize=(2 * PANEL, PANEL * height + 0.5), layout="constrained")
        figure.suptitle(f"quality from place to place: median {q_map.median:.2f} of 5")
        plain, mapped = figure.subplots(1, 2)
        _show(plain, picture, q_map, "the picture")
        _show(mapped, picture.convert("L"), q_map, f"quality of tiles of {q_map.tile} pixels")
        mesh = mapped.pcolormesh(
            q_map.xs, q_map.ys, q_map.q, cmap=COLOURS, vmin=1, vmax=5, alpha=0.55, linewidth=0
        )
        bar = figure.colorbar(mesh, ax=mapped, ticks=range(1, 6), fraction=0.046, pad=0.02)
        bar.ax.set_yticklabels([f"{level} {LEVEL_WORDS[level]}" for level in range(1, 6)])
        for number, damaged in enumerate(q_map.worst, 1):
            _mark(mapped, number, damaged)
        buffer = BytesIO()
        about = {"Software": "agentic_iqa_local"}
        figure.savefig(buffer, format="png", dpi=100, metadata=about)
    return buffer.getvalue()


def _mark(axis: Axes, number: int, damaged: DamagedBox) -> None:
    left, top, right, bottom = damaged.box
    axis.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=1.6))
    label = f"{number}: {damaged.distortion or 'damaged'}, q {damaged.q:.1f}"
    frame = {"facecolor": "white", "alpha": 0.85, "pad": 1.5}
    axis.text(left, top, label, va="top", fontsize=7, bbox=frame)


def _show(axis: Axes, picture: Image.Image, q_map: QualityMap, title: str) -> None:
    """Draws a reduced picture where the map lies."""
    shown = picture.copy()
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BOX)
    axis.set_axis_off()
    axis.set_title(title)
    extent = (q_map.xs[0], q_map.xs[-1], q_map.ys[-1], q_map.ys[0])
    axis.imshow(np.asarray(shown), cmap="gray", vmin=0, vmax=255, extent=extent)
