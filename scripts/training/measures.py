"""What the measures of pixels are worth as evidence: fits configs/detector_measures.json on training photographs,
damaged and clean, and prints how often each claim is made of held-out ones.

    python scripts/training/measures.py PHOTOS MORE_PHOTOS --work runs/measures --write

The measures of each picture are kept in --work. About 0.3 seconds a picture on one core.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from distortions import DISTORTIONS, through_codec
from local_nr_pool import graded, split
from PIL import Image
from scipy import ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from agentic_iqa_local.files import write_whole
from agentic_iqa_local.iqa_tools.detector import (
    MEASURES,
    MeasuresRecord,
    expit,
    load_detector,
    logit,
    terms_of,
)
from agentic_iqa_local.iqa_tools.local_nr import STANDS_OUT
from agentic_iqa_local.iqa_tools.measures import measured

SEED, RESAVED, PENALTY, FOLDS = 20261128, 0.4, 0.1, 5
# Of the sound pictures of the training each family may be claimed; of blur it only confirms what LocalNR reads
ALARMS = {
    "tones": {"Brightness change": 0.03, "Contrast": 0.01},
    "colours": {"Color distortions": 0.03},
    "grid": {"Compression": 0.02},
    "focus": {"Blurs": 0.1},
    "part with Blurs": {"Blurs": 0.025},
}
SOURCE = "damaged and clean tiles of the training photographs (scripts/training/measures.py)"
Damage = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # uint8 H×W×3


def _whole(pixels: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def gain(image: np.ndarray, rng: np.random.Generator, factor: float) -> np.ndarray:
    return np.clip(image * factor, 0, 255).astype(np.uint8)


def in_light(image: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The picture with each channel's light changed by so many stops (sRGB, IEC 61966-2-1)."""
    unit = np.arange(256)[:, None] / 255
    light = np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4) * 2.0**stops
    light = np.clip(light, 0, 1)
    curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.take_along_axis(_whole(255 * curve), image.reshape(-1, 3), 0).reshape(image.shape)


def exposed(image: np.ndarray, rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    return in_light(image, np.full(3, rng.uniform(low, high)))


def _tint(rng: np.random.Generator) -> np.ndarray:
    return np.cos(rng.uniform(0, 2 * np.pi) - 2 * np.pi / 3 * np.arange(3))


def white_balance(image: np.ndarray, rng: np.random.Generator, stops: float) -> np.ndarray:
    return in_light(image, stops * _tint(rng))


def tinted(image: np.ndarray, rng: np.random.Generator, stops: float) -> np.ndarray:
    return _whole(image * 2 ** (stops * _tint(rng)))


def mosaic(image: np.ndarray, rng: np.random.Generator, side: int) -> np.ndarray:
    small = Image.fromarray(image).reduce(side)
    large = small.resize((small.width * side, small.height * side), Image.Resampling.NEAREST)
    return np.asarray(large)[: image.shape[0], : image.shape[1]]


def enlarged(image: np.ndarray, rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    kernel = (Image.Resampling.BOX, Image.Resampling.BICUBIC, Image.Resampling.NEAREST)[
        int(rng.integers(3))
    ]
    picture, factor = Image.fromarray(image), rng.uniform(low, high)
    size = round(picture.width / factor), round(picture.height / factor)
    return np.asarray(picture.resize(size, kernel).resize(picture.size, Image.Resampling.NEAREST))


def saved_as_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    saved = through_codec(image.astype(np.float32), format="JPEG", quality=quality)
    return saved.astype(np.uint8)


def shallow(image: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """A sharp middle before a background out of focus."""
    height, width = image.shape[:2]
    rows, columns = np.mgrid[:height, :width]
    middle, radius = rng.uniform(0.4, 0.6, 2), rng.uniform(0.22, 0.36, 2)
    distance = np.hypot(
        (rows / height - middle[0]) / radius[0], (columns / width - middle[1]) / radius[1]
    )
    mask = ndimage.gaussian_filter((distance < 1).astype(np.float32), height / 40)[..., None]
    return _whole(
        mask * image
        + (1 - mask) * ndimage.gaussian_filter(image.astype(np.float32), (sigma, sigma, 0))
    )


def in_a_ninth(image: np.ndarray, rng: np.random.Generator, name: str) -> np.ndarray:
    """Damage of severity 3 to 5 in a ninth of the picture, in every other with a soft border."""
    height, width = image.shape[:2]
    rows, columns = height // 3, width // 3
    top, left = rng.integers(0, height - rows + 1), rng.integers(0, width - columns + 1)
    mask = np.zeros((height, width), np.float32)
    mask[top : top + rows, left : left + columns] = 1
    if rng.random() < 0.5:
        mask = ndimage.gaussian_filter(mask, 6)
    damaged = kind(image, rng, name, low=3)
    return _whole(mask[..., None] * damaged + (1 - mask[..., None]) * image)


def kind(
    image: np.ndarray, rng: np.random.Generator, name: str, low: int = 2, high: int = 5
) -> np.ndarray:
    return DISTORTIONS[name].apply(image, int(rng.integers(low, high + 1)), rng)


DAMAGES: dict[str, tuple[str, Damage]] = {
    "clean": ("", lambda image, rng: image),
    "graded": ("", graded),
    "×0.6": ("too dark", partial(gain, factor=0.6)),
    "×0.4": ("too dark", partial(gain, factor=0.4)),
    "stops down": ("too dark", partial(exposed, low=-2.5, high=-1.2)),
    "darken": ("too dark", partial(kind, name="darken")),
    "×1.5": ("blown out", partial(gain, factor=1.5)),
    "×1.9": ("blown out", partial(gain, factor=1.9)),
    "stops up": ("blown out", partial(exposed, low=1, high=2)),
    "brighten": ("washed out", partial(kind, name="brighten")),
    "contrast up": ("more contrast", partial(kind, name="contrast_increase")),
    "contrast down": ("less contrast", partial(kind, name="contrast_decrease")),
    "cast": ("colour cast", partial(kind, name="colour_cast", low=3)),
    "white balance": ("colour cast", partial(white_balance, stops=0.7)),
    "tint": ("colour cast", partial(tinted, stops=0.4)),
    "desaturate": ("", partial(kind, name="desaturate")),
    "mosaic 4": ("pixelation", partial(mosaic, side=4)),
    "mosaic 8": ("pixelation", partial(mosaic, side=8)),
    "mosaic": ("pixelation", lambda image, rng: mosaic(image, rng, int(rng.integers(3, 17)))),
    "nearest": ("pixelation", partial(enlarged, low=1.8, high=8)),
    "gaussian blur": ("blur", partial(kind, name="gaussian_blur")),
    "defocus blur": ("blur", partial(kind, name="defocus_blur")),
    "motion blur": ("blur", partial(kind, name="motion_blur")),
    "upscale": ("blur", partial(kind, name="upscale")),
    "shallow 6": ("", partial(shallow, sigma=6)),
    "shallow 12": ("", partial(shallow, sigma=12)),
    "blurred ninth": ("blur of a part", partial(in_a_ninth, name="gaussian_blur")),
    "smeared ninth": ("blur of a part", partial(in_a_ninth, name="motion_blur")),
    "jpeg": ("", partial(kind, name="jpeg", low=1, high=4)),
    "noise": ("", partial(kind, name="white_noise")),
    "strong jpeg": ("", lambda image, rng: saved_as_jpeg(image, int(rng.integers(4, 21)))),
}
TONES = (
    "white point",
    "black point",
    "highlights",
    "middle",
    "shadows",
    "contrast",
    "clipped",
    "clipped white",
)
TONES += ("nearly clipped", "crushed", "nearly crushed", "lightest", "spike", "middle by white")
COLOURS = ("white chroma", "white range", "white blue", "white green", "light green", "agreement")
COLOURS += ("chroma at black", "edges magenta", "one hue", "clipped to white")
COLOURS += ("clipped white", "spike")
PART = ("step of detail", "detail in part", "contrast in part")
NINTHS = ("blurred ninth", "smeared ninth")
FAMILIES = {
    "too dark": "Brightness change",
    "blown out": "Brightness change",
    "washed out": "Brightness change",
    "more contrast": "Contrast",
    "less contrast": "Contrast",
    "colour cast": "Color distortions",
    "pixelation": "Compression",
    "blur": "Blurs",
    "blur of a part": "Blurs",
}
# By measurement: the measures, the claims, and the damages that tell nothing of it
MEASUREMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "tones": (TONES, ("too dark", "blown out", "washed out", "more contrast", "less contrast"), ()),
    "colours": (COLOURS, ("colour cast",), ()),
    "grid": (("pixelation",), ("pixelation",), ()),
    "focus": (
        ("sharpest", "softest"),
        ("blur",),
        ("noise", "jpeg", "strong jpeg", "mosaic 4", "mosaic 8", "mosaic", "nearest", *NINTHS),
    ),
    "part with Blurs": (PART, ("blur of a part",), ()),
}
# Pictures that a measurement must not claim, which set its threshold; if no others, clean ones
SOUND = {"grid": {"clean", "jpeg", "strong jpeg"}}
COUNTS = {"tones": "alone", "focus": "less"}  # the rest "more"


def part_of(family: str) -> dict:
    """A measurement of damage of one part, a decision: its strongest cells lead the median of all by LocalNR's
    STANDS_OUT, which no clean photograph reached of 28 looked at, and damage of a ninth by far."""
    claim = {"family": family, "weights": [-6 * STANDS_OUT[family], 6.0]}
    record = {"base": 0.15, "hit": 0.5, "false_alarm": 0.02}
    about = {"counts": "more", "measures": [f"lead of {family}"], "centre": [0.0], "scale": [1.0]}
    return about | {"claims": {f"{family} of a part": claim}, "families": {family: record}}


def pictures(files: list[Path], every: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """(file, damage, pixels): each photograph clean and with one in `every` of the damages; some as a JPEG holds
    them."""
    for number, file in enumerate(files):
        image = np.asarray(Image.open(file).convert("RGB"))
        for i, (name, (_, damage)) in enumerate(DAMAGES.items()):
            if name != "clean" and (number + i) % every:
                continue
            rng = np.random.default_rng([SEED, number, i])
            pixels = damage(image, rng)
            if name not in ("clean", "jpeg", "strong jpeg") and rng.random() < RESAVED:
                pixels = saved_as_jpeg(pixels, int(rng.integers(85, 97)))
            yield file.name, name, pixels


def readings(files: list[Path], every: int, kept: Path) -> list[dict]:
    if not kept.exists():
        rows = []
        for file, damage, pixels in pictures(files, every):
            rows.append({"file": file, "damage": damage, **measured(pixels)})
            if len(rows) % 100 == 0:
                print(kept.stem, len(rows), flush=True)
        write_whole(kept, json.dumps(rows))
    return json.loads(kept.read_text())


def fitted(name: str, rows: list[dict]) -> dict:
    """A measurement's part of the file: multinomial logistic regression; clean photographs weigh as much as all
    damages together. Its thresholds and record are of photographs that a fit has not seen (cross-validation)."""
    measures, claims, unclear = MEASUREMENTS[name]
    rows = [row for row in rows if row["damage"] not in unclear]
    inputs = np.array([[row[measure] for measure in measures] for row in rows])
    wanted = np.array([claim_of(row, claims) for row in rows])
    clean = np.array([row["damage"] in SOUND.get(name, {"clean"}) for row in rows])
    share = np.where(clean, (~clean).sum() / clean.sum(), 1.0)
    centre, scale = inputs.mean(0), inputs.std(0)
    terms = np.stack([terms_of(row, centre, scale) for row in inputs])[:, 1:]
    if len(measures) == 1:
        terms = terms[:, :1]
    spread = terms.std(0)
    model = LogisticRegression(C=PENALTY, max_iter=5000)
    unseen = cross_val_predict(
        model,
        terms / spread,
        wanted,
        groups=[photograph_of(row["file"]) for row in rows],
        cv=GroupKFold(FOLDS, shuffle=True, random_state=0),
        method="predict_proba",
        params={"sample_weight": share},
    )
    model.fit(terms / spread, wanted, sample_weight=share)
    claim_weights = weights_of(model, spread)
    p = dict(zip(model.classes_, np.asarray(unseen).T, strict=True))
    record = {
        "counts": COUNTS.get(name, "more"),
        "measures": measures,
        "centre": rounded(centre),
        "scale": rounded(scale),
    }
    record["claims"] = {
        claim: {"family": FAMILIES[claim], "weights": rounded(claim_weights[claim])}
        for claim in claims
    }
    record["families"] = {}
    for family in dict.fromkeys(FAMILIES[claim] for claim in claims):
        of = [claim for claim in claims if FAMILIES[claim] == family]
        record["families"][family] = record_of(
            np.sum([p[claim] for claim in of], axis=0),
            np.isin(wanted, of),
            clean,
            ALARMS[name][family],
        )
    return record


def photograph_of(file: str) -> str:
    """The photograph of which a file is a tile."""
    return re.sub(r"_\d\.webp$", "", file)


def claim_of(row: dict, claims: tuple[str, ...]) -> str:
    claim = DAMAGES[row["damage"]][0]
    return claim if claim in claims else ""


def weights_of(model: LogisticRegression, spread: np.ndarray) -> dict[str, np.ndarray]:
    """By claim the weights of 1 and of the terms, less those of a sound picture, which comes first."""
    slopes, intercepts = np.asarray(model.coef_) / spread, np.asarray(model.intercept_)
    if len(model.classes_) > 2:
        slopes, intercepts = slopes[1:] - slopes[0], intercepts[1:] - intercepts[0]
    weights = np.column_stack([intercepts, slopes])
    return dict(zip(model.classes_[1:], weights, strict=True))


def record_of(
    probability: np.ndarray, there: np.ndarray, clean: np.ndarray, alarms: float
) -> dict[str, float]:
    """The `base` that lets `alarms` of the clean photographs be called damaged at the prior of
    configs/detector.yaml, and the shares that are."""
    odds = np.array([logit(p) for p in probability])
    least = -logit(load_detector().no_reference.prior)  # the log-ratio from which on it is evidence
    base = expit(np.quantile(odds[clean], 1 - alarms) - least)
    found = odds - logit(base) > least
    bounds = {
        "hit": min(0.98, found[there].mean()),
        "false_alarm": max(1 / clean.sum(), found[clean].mean()),
    }
    return {key: round(float(value), 6) for key, value in {"base": base, **bounds}.items()}


def rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def shares(record: dict, rows: list[dict]) -> None:
    """Prints how often each claim is made of each damage, and of clean photographs."""
    measurements = MeasuresRecord.model_validate(record).measurements
    for name, measurement in measurements.items():
        for family in measurement.families:
            found: dict[str, list[bool]] = {}
            for row in rows:
                says = measurement.log_ratios(row)[family] > -logit(
                    load_detector().no_reference.prior
                )
                found.setdefault(row["damage"], []).append(says)
            print(
                name,
                family,
                {damage: round(float(np.mean(hits)), 2) for damage, hits in found.items()},
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, nargs="+", help="folders of clean photographs")
    parser.add_argument("--work", type=Path, required=True, help="folder for the measures")
    parser.add_argument("--write", action="store_true", help="write configs/detector_measures.json")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    train, held_out = split(args.photos)
    known = readings(train, 6, args.work / "train.json")
    unseen = readings(held_out, 3, args.work / "held_out.json")
    made = {"source": SOURCE, "measurements": {name: fitted(name, known) for name in MEASUREMENTS}}
    shares(made, unseen)
    made["measurements"] |= {f"part with {family}": part_of(family) for family in STANDS_OUT}
    if args.write:
        write_whole(MEASURES, json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
