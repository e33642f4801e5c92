"""Draws pictures that are no photographs: charts, pages of text, windows, line drawings, codes, diagrams, flat
illustrations. LocalNR learns from them to say that it does not know such content.

Everything follows from the random generator that is passed in.
"""

import itertools
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image, ImageDraw, ImageFont

TEXT = """the quality of an image is not what it seems to be when a value was read from table seven and total amount
settings file edit view help open save cancel network user password report 2026 Kx 3.14 42 % € error"""
WORDS = TEXT.split()
FONTS = [
    font_manager.findfont(name) for name in ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono")
]

Rng = np.random.Generator


def _font(rng: Rng, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(FONTS[int(rng.integers(len(FONTS)))], size)


def _colour(rng: Rng, low: int = 0, high: int = 256) -> tuple[int, ...]:
    return tuple(int(v) for v in rng.integers(low, high, 3))


def _paper(rng: Rng, side: int) -> tuple[Image.Image, ImageDraw.ImageDraw, tuple[int, ...]]:
    dark = rng.random() < 0.25
    pure = (0, 0, 0) if dark else (255, 255, 255)
    tinted = _colour(rng, 0, 60) if dark else _colour(rng, 225, 256)
    page = Image.new("RGB", (side, side), pure if rng.random() < 0.5 else tinted)
    return page, ImageDraw.Draw(page), _colour(rng, 190, 256) if dark else _colour(rng, 0, 90)


def _line(rng: Rng, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


def chart(rng: Rng, side: int) -> Image.Image:
    figure, axes = plt.subplots(figsize=(side / 100, side / 100), dpi=100)
    count, style = int(rng.integers(3, 12)), int(rng.integers(5))
    values = rng.random((int(rng.integers(1, 4)), count)).cumsum(1)
    if style == 0:
        axes.bar(range(count), values[0], color=rng.random((count, 3)))
    elif style == 1:
        axes.plot(values.T, linewidth=rng.uniform(0.8, 3))
    elif style == 2:
        axes.scatter(*rng.normal(size=(2, 40 * count)), s=rng.uniform(2, 40), color=rng.random(3))
    elif style == 3:
        axes.pie(values[0], labels=[str(word) for word in rng.choice(WORDS, count)])
    else:
        axes.imshow(
            rng.random((count, count)), cmap=str(rng.choice(["viridis", "gray", "hot", "Blues"]))
        )
    axes.set_title(_line(rng, 3))
    if style < 3 and rng.random() < 0.5:
        axes.grid()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    plt.close(figure)
    return Image.fromarray(pixels)


def page(rng: Rng, side: int) -> Image.Image:
    sheet, draw, ink = _paper(rng, side)
    size = int(rng.integers(10, 26))
    font, top = _font(rng, size), int(rng.integers(5, 40))
    while top < side:
        if rng.random() < 0.85:
            draw.text(
                (int(rng.integers(5, 40)), top), _line(rng, int(rng.integers(2, 14))), ink, font
            )
        top += int(size * rng.uniform(1.1, 1.9))
    return sheet


def window(rng: Rng, side: int) -> Image.Image:
    screen, draw, ink = _paper(rng, side)
    for _ in range(int(rng.integers(3, 14))):
        left, top = (int(v) for v in rng.integers(-20, side - 20, 2))
        right, bottom = left + int(rng.integers(30, side)), top + int(rng.integers(16, side // 2))
        fill = _colour(rng, 150, 256) if rng.random() < 0.7 else _colour(rng)
        draw.rounded_rectangle(
            (left, top, right, bottom),
            int(rng.integers(0, 9)),
            fill,
            ink if rng.random() < 0.5 else None,
        )
        size = int(rng.integers(9, 16))
        for row in range(top + 3, min(bottom - size, top + 6 * size), size + 4):
            draw.text((left + 6, row), _line(rng, int(rng.integers(1, 7))), ink, _font(rng, size))
    return screen


def drawing(rng: Rng, side: int) -> Image.Image:
    sheet, draw, ink = _paper(rng, side)
    width = int(rng.integers(1, 5))
    for _ in range(int(rng.integers(5, 60))):
        centre, radius = rng.uniform(0, side, 2), rng.uniform(5, side / 2)
        turns = np.linspace(0, rng.uniform(1, 7), int(rng.integers(3, 30)))
        wobble = radius * (1 + rng.uniform(0, 0.5) * np.sin(turns * rng.integers(1, 6)))
        points = [
            (float(x), float(y))
            for x, y in zip(
                centre[0] + wobble * np.cos(turns), centre[1] + wobble * np.sin(turns), strict=True
            )
        ]
        draw.line(points, ink, width)
    return sheet


def code(rng: Rng, side: int) -> Image.Image:
    if rng.random() < 0.3:
        bars = np.repeat(rng.integers(0, 2, side // 3), 3)
        pixels = np.tile(np.pad(bars, (0, side - len(bars))), (side, 1))
    else:
        modules = int(rng.choice([21, 25, 29, 33, 41, 57]))
        grid = rng.integers(0, 2, (modules, modules))
        for row, column in ((0, 0), (0, modules - 7), (modules - 7, 0)):
            grid[row : row + 7, column : column + 7] = 1
            grid[row + 1 : row + 6, column + 1 : column + 6] = 0
            grid[row + 2 : row + 5, column + 2 : column + 5] = 1
        border = int(rng.integers(0, 6))
        grid = np.pad(grid, border)
        pixels = np.kron(grid, np.ones((side // len(grid) + 1,) * 2))[:side, :side]
    ink, paper = (np.array(_colour(rng, *span)) for span in ((0, 80), (200, 256)))
    return Image.fromarray(np.where(pixels[..., None] > 0, ink, paper).astype(np.uint8))


def diagram(rng: Rng, side: int) -> Image.Image:
    sheet, draw, ink = _paper(rng, side)
    places = [
        tuple(int(v) for v in rng.integers(20, side - 90, 2))
        for _ in range(int(rng.integers(3, 9)))
    ]
    for (x, y), (u, v) in itertools.pairwise(places):
        draw.line((x + 40, y + 20, u + 40, v + 20), ink, int(rng.integers(1, 4)))
    for x, y in places:
        shape = draw.ellipse if rng.random() < 0.4 else draw.rectangle
        shape(
            (x, y, x + int(rng.integers(60, 110)), y + int(rng.integers(30, 60))),
            _colour(rng, 120, 256),
            ink,
        )
        draw.text((x + 8, y + 8), _line(rng, 1), ink, _font(rng, int(rng.integers(10, 18))))
    return sheet


def illustration(rng: Rng, side: int) -> Image.Image:
    """Flat shapes, some with a smooth shade, as icons, cartoons and slides have them."""
    sheet = Image.new("RGB", (side, side), _colour(rng))
    draw = ImageDraw.Draw(sheet)
    if rng.random() < 0.4:
        ends = np.array([_colour(rng), _colour(rng)], float)
        shade = np.linspace(0, 1, side)[:, None, None]
        sheet.paste(
            Image.fromarray(
                np.broadcast_to(ends[0] * shade + ends[1] * (1 - shade), (side, side, 3)).astype(
                    np.uint8
                )
            )
        )
    for _ in range(int(rng.integers(3, 25))):
        x, y = rng.uniform(0, side, 2)
        radius, corners = rng.uniform(8, side / 3), int(rng.integers(3, 8))
        if rng.random() < 0.5:
            draw.ellipse(
                (x - radius, y - radius, x + radius, y + radius * rng.uniform(0.2, 1)), _colour(rng)
            )
        else:
            turns = np.sort(rng.uniform(0, 2 * np.pi, corners))
            draw.polygon(
                [(float(x + radius * np.cos(t)), float(y + radius * np.sin(t))) for t in turns],
                _colour(rng),
            )
    if rng.random() < 0.5:
        draw.text(
            (int(side * 0.1), int(side * 0.4)),
            _line(rng, 2),
            _colour(rng),
            _font(rng, int(side * 0.1)),
        )
    return sheet


KINDS: dict[str, Callable[[Rng, int], Image.Image]] = {
    one.__name__: one for one in (chart, page, window, drawing, code, diagram, illustration)
}


def draw(kind: str, rng: Rng, side: int) -> np.ndarray:
    """A graphic of one of KINDS, side×side×3 uint8; half of them are reduced from twice that size, which softens
    edges."""
    if rng.random() < 0.5:
        return np.asarray(KINDS[kind](rng, side).convert("RGB").resize((side, side)))
    return np.asarray(
        KINDS[kind](rng, 2 * side).convert("RGB").resize((side, side), Image.Resampling.BOX)
    )
