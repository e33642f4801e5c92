"""A map as a picture: the quality of each cell over the photograph, with the damaged boxes, and beside it SSIM's map
against a reference."""

from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from agentic_iqa_local.result import QualityMap
from agentic_iqa_local.state import LEVEL_WORDS

STYLE: dict[Any, Any] = {"font.size": 8, "axes.titlesize": 8, "figure.dpi": 100, "savefig.dpi": 100}
PANEL = 3.2  # inches a side
LONGEST_SIDE = 480  # pixels of what is drawn of the picture
COLOURS = "RdYlBu"  # from red (bad) to blue (excellent): told apart by the colour-blind too
BAR: dict[str, Any] = {"fraction": 0.046, "pad": 0.02}


def draw(q_map: QualityMap, picture: Image.Image, ssim: np.ndarray | None = None) -> bytes:
    """The PNG of a map of `picture`, the RGB image that the map is of, and of SSIM's map where there is one."""
    panels, extent = (
        2 if ssim is None else 3,
        (q_map.xs[0], q_map.xs[-1], q_map.ys[-1], q_map.ys[0]),
    )
    height = min(max(picture.height / picture.width, 0.4), 2.5)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(panels * PANEL, PANEL * height + 0.5), layout="constrained")
        figure.suptitle(f"quality from place to place: median {q_map.median:.2f} of 5")
        axes = figure.subplots(1, panels)
        for axis in axes:
            axis.set_axis_off()
        _show(axes[0], picture, "the picture", extent)
        _show(
            axes[1],
            picture.convert("L").convert("RGB"),
            f"quality of tiles of {q_map.tile} pixels",
            extent,
        )
        mesh = axes[1].pcolormesh(
            q_map.xs, q_map.ys, q_map.q, cmap=COLOURS, vmin=1, vmax=5, alpha=0.55, linewidth=0
        )
        bar = figure.colorbar(mesh, ax=axes[1], ticks=range(1, 6), **BAR)
        bar.ax.set_yticklabels([f"{level} {LEVEL_WORDS[level]}" for level in range(1, 6)])
        for number, damaged in enumerate(q_map.worst, 1):
            left, top, right, bottom = damaged.box
            axes[1].add_patch(
                Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=1.6)
            )
            label = f"{number}: {damaged.distortion or 'damaged'}, q {damaged.q:.1f}"
            box = {"facecolor": "white", "alpha": 0.85, "pad": 1.5}
            axes[1].text(left, top, label, va="top", fontsize=7, bbox=box)
        if ssim is not None:
            values = Image.fromarray(ssim.astype(np.float32))
            mesh = _show(axes[2], values, "SSIM to the reference", extent, vmin=0, vmax=1)
            figure.colorbar(mesh, ax=axes[2], **BAR)
        buffer = BytesIO()
        figure.savefig(
            buffer,
            format="png",
            pil_kwargs={"optimize": True},
            metadata={"Software": "agentic_iqa_local"},
        )
    return buffer.getvalue()


def _show(
    axis: Axes, picture: Image.Image, title: str, extent: tuple[int, int, int, int], **options: Any
) -> Any:
    """Draws a reduced picture over these places; one of one channel in colours."""
    shown = picture.copy()
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BOX)
    axis.set_title(title)
    return axis.imshow(np.asarray(shown), cmap="magma", extent=extent, **options)
