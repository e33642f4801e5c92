"""What a picture's pixels alone say of damage that LocalNR's network misses: wrong exposure,
colour casts, enlarged pixels, how sharp the sharpest part is, and a part that is blurred.

Nothing here is learned. What the numbers are worth as evidence stands in
configs/detector_measures.json (scripts/training/measures.py).
"""

from collections.abc import Mapping

import numpy as np

from agentic_iqa_local.errors import percent
from agentic_iqa_local.iqa_tools.blurred_part import blurred_part

# What a channel holds that light, or the lack of it, drove to its end; a codec spreads it a little
CLIPPED, CRUSHED = 250, 4
NEAR = 230  # bright, but not clipped
FEWEST = 0.003  # a share of pixels below it says no more: added before the logarithm
MOST = 2**16  # pixels of which tones are taken
WINDOW = 32  # pixels, over which enlarged pixels are looked for
EDGE, CONTRAST = 9, 30  # an edge: a contrast of so many steps within so many pixels
CELL, EDGES = 32, 0.1  # a cell of so many pixels a side tells if this share of it has edges
EVEN = 0.02  # a ratio of changes below it says no more: added before the logarithm
FAINT = 0.5  # steps of 255: what changes less along a line is flat

END, WHITE = 0.9, 245  # the lightest tones: from this share of the white point, or level, on
THINNED = 4  # of the pixels of which tones are taken, one in so many tells colours

# ITU-R BT.601: luma, and the two colour differences
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
CHROMA = np.array([[-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32).T
GREEN = np.array([-0.5, 1, -0.5], np.float32)  # green against magenta, off the colours of daylight
SHARES = ("clipped", "clipped white", "nearly clipped", "crushed", "nearly crushed")
# By claim of configs/detector_measures.json, what a reader is told of the measures behind it
SHOWN = {
    "too dark": "nothing is brighter than {white point} of white",
    "blown out": "{clipped} of the pixels are clipped",
    "washed out": "nothing is darker than {black point} of white",
    "more contrast": "{clipped} of the pixels are clipped and {crushed} crushed",
    "less contrast": "all tones lie between {black point} and {white point} of white",
    "colour cast": "what should be white or grey has a colour",
    "pixelation": "pixels are enlarged to blocks",
    "blur of a part": "one part is blurred with abrupt borders",
}


def shown(claim: str, measures: Mapping[str, float]) -> str | None:
    """What the measures show of a claim, in words; None for one that needs none."""
    numbers = dict(measures)
    for name in SHARES:
        numbers[name] = np.exp(measures[name]) - FEWEST
    words = {name: percent(number) for name, number in numbers.items()}
    return SHOWN[claim].format_map(words) if claim in SHOWN else None


def measured(pixels: np.ndarray) -> dict[str, float]:
    """The measures, by name, of H×W×3 uint8 pixels, 64 a side or more."""
    stride = max(1, round((pixels.shape[0] * pixels.shape[1] / MOST) ** 0.5))
    colours = pixels[::stride, ::stride].reshape(-1, 3)
    tones, casts = _exposure(colours), _cast(colours[::THINNED].astype(np.float32), pixels)
    luma = pixels @ LUMA
    blocks = {"pixelation": _pixelation(luma)}
    return tones | casts | _sharpness(luma) | blurred_part(luma) | blocks


def _exposure(colours: np.ndarray) -> dict[str, float]:
    """White and black point and tones, 0..1, and the logarithms of the shares of pixels that are
    clipped in any or in all channels, that are crushed, and that are nearly clipped or crushed;
    of the lightest tones, of the middle by the white point, which a darkened picture keeps and a
    night has not, and of how far the lightest tones stand at the very end, as overexposure drives
    them."""
    luma = colours @ LUMA
    brightest, darkest = colours.max(1), colours.min(1)
    white, middle = np.quantile(brightest, 0.999), np.median(luma)
    tones = {
        "white point": white,
        "black point": np.quantile(darkest, 0.001),
        "highlights": np.quantile(luma, 0.99),
        "middle": middle,
        "shadows": np.quantile(luma, 0.01),
        "contrast": luma.std(),
    }
    shares = {
        "clipped": brightest >= CLIPPED,
        "clipped white": darkest >= CLIPPED,
        "nearly clipped": (brightest >= NEAR) & (brightest < CLIPPED),
        "crushed": brightest <= CRUSHED,
        "nearly crushed": (brightest <= 255 - NEAR) & (brightest > CRUSHED),
        "lightest": brightest >= END * white,
        "at the end": brightest == 255,
        "near the end": brightest >= WHITE,
    }
    of_shares = {name: float(np.log(of.mean() + FEWEST)) for name, of in shares.items()}
    of_tones = {name: float(tone) / 255 for name, tone in tones.items()}
    spike = of_shares.pop("at the end") - of_shares.pop("near the end")
    by_white = float(np.log((middle + 2) / (white + 2)))
    return of_tones | of_shares | {"spike": spike, "middle by white": by_white}


def _cast(colours: np.ndarray, pixels: np.ndarray) -> dict[str, float]:
    """How far the light of a scene seems from white: the colour of the channels' white points (white
    patch; Land and McCann 1971), whether their black points share it, for natural light does not
    colour black, the colour that a line of chroma over luma has at black, the colours of edges
    (grey-edge; van de Weijer, Gevers and Gijsenij, IEEE TIP 2007), how far all pixels have one hue,
    and how much of what is clipped is white."""
    luma, chroma = colours @ LUMA, colours @ CHROMA
    black, light, white = np.quantile(colours, (0.002, 0.98, 0.998), axis=0)
    edges = np.abs(np.diff(pixels[::2, ::2].astype(np.float32), axis=1)).reshape(-1, 3)
    red, green, blue = np.log(np.sqrt((edges**2).mean(0)) + 1)
    over, around = luma - luma.mean(), chroma - chroma.mean(0)
    slope = (over[:, None] * around).mean(0) / max((over**2).mean(), 1)
    at_black = chroma.mean(0) - slope * luma.mean()
    one_hue = np.hypot(*chroma.sum(0)) / max(np.hypot(*chroma.T).sum(), 1e-3)
    clipped, to_white = colours.max(1) >= CLIPPED, colours.min(1) >= CLIPPED
    cast = {
        "white chroma": np.log1p(np.hypot(*(white @ CHROMA))),
        "white range": np.log1p(np.ptp(white)),
        "white blue": white @ CHROMA[:, 0],
        "white green": white @ GREEN,
        "light green": light @ GREEN,
        "agreement": (black @ CHROMA) @ (white @ CHROMA),
        "chroma at black": np.log1p(np.hypot(*at_black)),
        "edges magenta": (red + blue) / 2 - green,
        "one hue": one_hue,
        "clipped to white": (to_white.mean() + FEWEST) / (clipped.mean() + FEWEST),
    }
    return {name: float(value) for name, value in cast.items()}


def _pixelation(luma: np.ndarray) -> float:
    """How much less neighbouring lines differ within enlarged pixels than between them, as a logarithm
    from 0 to 4: about 0.3 for a photograph, 1 to 2 for strong JPEG, and 3 or more where only the edges
    of enlarged pixels differ (a mosaic, NEAREST).

    Along both sides the mean change from each line to the next is a profile with a peak at each
    edge of the enlarged pixels (the profiles of blockiness measures; Wang, Bovik and Evans, ICIP
    2000), whatever their size, and if it is no whole number.
    """
    evenness = max(_evenness(luma), _evenness(luma.T))
    return float(-np.log(evenness + EVEN))


def _evenness(luma: np.ndarray) -> float:
    """Of the changes from row to row, the ratio of the small ones, which a photograph has not, to
    the largest; the median over windows of rows."""
    profile = np.abs(np.diff(luma, axis=0)).mean(1)
    count = len(profile) // WINDOW
    windows = profile[: count * WINDOW].reshape(count, WINDOW)
    small, large = np.quantile(windows, (0.4, 0.97), axis=1)
    told = large > FAINT
    return float(np.median(small[told] / large[told])) if told.any() else 1.0


def _sharpness(luma: np.ndarray) -> dict[str, float]:
    """How steep edges are in the sharpest and in the softest twentieth of the cells that have
    some: the largest step between neighbours as a share of the contrast around it, so a step edge
    has 1 and a ramp 1/(EDGE − 1). 0 where no cell has edges.

    Largest local variations, pooled over the sharpest blocks (Bahrami and Kot, IEEE SPL 2014; Vu,
    Phan and Chandler, IEEE TIP 2012), by their contrast, so that a dark picture is as sharp.
    """
    steps = np.maximum(np.abs(np.diff(luma, axis=1))[:-1], np.abs(np.diff(luma, axis=0))[:, :-1])
    contrast = (_around(luma, np.maximum) - _around(luma, np.minimum))[:-1, :-1]
    steepness = _around(steps, np.maximum) / np.maximum(contrast, CONTRAST)
    is_edge = contrast > CONTRAST
    share, total = _cells(is_edge).mean(1), _cells(steepness * is_edge).mean(1)
    told = share > EDGES
    if not told.any():
        return {"sharpest": 0.0, "softest": 0.0}
    softest, sharpest = np.quantile(total[told] / share[told], (0.05, 0.95))
    return {"sharpest": float(sharpest), "softest": float(softest)}


def _around(values: np.ndarray, extreme: np.ufunc) -> np.ndarray:
    """Of H×W the maximum or the minimum of the EDGE×EDGE pixels around each: of two, four, eight
    and nine rows, then of as many columns."""
    for _ in range(2):
        rows = np.pad(values, ((EDGE // 2, EDGE // 2), (0, 0)), mode="edge")
        for step in (1, 2, 4, EDGE - 8):
            rows = extreme(rows[step:], rows[:-step])
        values = np.ascontiguousarray(rows.T)
    return values


def _cells(values: np.ndarray) -> np.ndarray:
    """H×W → cells×CELL², without what is left at the right and lower edge."""
    rows, columns = values.shape[0] // CELL, values.shape[1] // CELL
    whole = values[: rows * CELL, : columns * CELL]
    return whole.reshape(rows, CELL, columns, CELL).swapaxes(1, 2).reshape(-1, CELL**2)
