"""Makes bursts of photographs, and fits configs/bursts.json: how the differences between frames tell which to keep.

    python scripts/training/bursts.py PHOTOS --work runs/bursts --write

In each burst one frame is sharp and four are shaken, out of focus, darker, noisier or more compressed, all hand-held;
in half of them the background is out of focus in every frame. Re-encodings of one frame teach what makes no difference.
Assessments are kept in --work.
"""

import argparse
import datetime
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from distortions import DISTORTIONS, through_codec
from measures import in_light, shallow
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression
from synthetic import load_tiles, split_photos

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.burst import SHIPPED, BurstFit, Frame, compared
from agentic_iqa_local.services import Services

SEED, JITTER, SENSOR = 20261128, 6, 1.5  # pixels; steps of 255
FAULTS = ("shaken", "out of focus", "darker", "noisier", "more compressed")
NAMES = ("sharpness", "noise", "darkness", "brightness", "blocks", "q")
PENALTY = 10.0  # scikit-learn's C
KINDS = ("plain", "shallow", "same")
EXPOSED = ("exposed",)
Named = list[tuple[str, np.ndarray]]  # frames, uint8 H×W×3


def handheld(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A frame from a hand that moves by some pixels, with the sensor's own noise."""
    top, left = rng.integers(0, 2 * JITTER + 1, 2)
    height, width = (side - 2 * JITTER for side in picture.shape[:2])
    part = picture[top : top + height, left : left + width]
    return np.clip(np.rint(part + rng.normal(0, SENSOR, part.shape)), 0, 255).astype(np.uint8)


def faulty(picture: np.ndarray, fault: str, rng: np.random.Generator) -> np.ndarray:
    """A picture with one fault, as a burst has them."""
    if fault == "shaken":
        return DISTORTIONS["motion_blur"].function(
            picture.astype(np.float32), int(rng.integers(5, 11)), rng
        )
    if fault == "out of focus":
        sigma = rng.uniform(0.9, 1.8)
        return gaussian_filter(picture.astype(np.float32), (sigma, sigma, 0))
    if fault == "darker":
        return in_light(picture, np.full(3, -rng.uniform(0.8, 1.6)))
    if fault == "noisier":
        return picture + rng.normal(0, rng.uniform(7, 15), picture.shape)
    quality = int(rng.integers(20, 51))
    return through_codec(picture.astype(np.float32), format="JPEG", quality=quality)


def burst(clean: np.ndarray, kind: str, rng: np.random.Generator) -> Named:
    """Five frames of a photograph, the sharp one first; of the kind "same" no frame is better."""
    if kind == "same":
        return same_frame(handheld(clean, rng))
    if kind == "exposed":
        return exposures(clean, rng)
    scene = shallow(clean, rng, rng.uniform(4, 10)) if kind == "shallow" else clean
    frames = [("sharp", handheld(scene, rng))]
    for fault in map(str, rng.permutation(FAULTS)[:4]):
        if fault == "more compressed":  # the camera compresses what its sensor saw
            frame = faulty(handheld(scene, rng), fault, rng).astype(np.uint8)
        else:
            frame = handheld(np.clip(faulty(scene, fault, rng), 0, 255), rng)
        frames.append((fault, frame))
    return frames


def exposures(clean: np.ndarray, rng: np.random.Generator) -> Named:
    """A frame as it is, a darker one, and two that are brighter, so that their light parts clip."""
    frames = [("as it is", handheld(clean, rng))]
    for name, low, high in (("darker", -1.6, -0.8), ("brighter", 0.6, 1.0), ("bright", 1.0, 1.6)):
        other = in_light(clean, np.full(3, rng.uniform(low, high)))
        frames.append((name, handheld(other, rng)))
    return frames


def same_frame(frame: np.ndarray) -> Named:
    """Re-encodings that nobody tells apart."""
    pixels = frame.astype(np.float32)
    ways = {
        "png": None,
        "jpeg 95": {"format": "JPEG", "quality": 95},
        "jpeg 96 4:4:4": {"format": "JPEG", "quality": 96, "subsampling": 0},
        "webp": {"format": "WEBP", "quality": 96},
        "jpeg 98": {"format": "JPEG", "quality": 98},
    }
    return [
        (name, frame if how is None else np.rint(through_codec(pixels, **how)).astype(np.uint8))
        for name, how in ways.items()
    ]


def measured(
    tiles: Sequence[np.ndarray], kinds: Sequence[str], file: Path
) -> Iterator[tuple[str, list[str], list[dict[str, float]]]]:
    """(kind, the frames' names, their measures) of one burst of each kind of each photograph. The
    file keeps their q, which takes longest."""
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    services = Services(load_settings(), "cpu")
    for number, (clean, kind) in enumerate(itertools.product(tiles, kinds)):
        frames = burst(clean, kind, np.random.default_rng([SEED, number]))
        together = compared([Frame.of(Image.fromarray(frame)) for _, frame in frames])
        if together is None:
            raise ValueError(f"burst {number}: its frames could not be aligned")
        if number >= len(done):
            rows = [assess(frame, pipeline="letters", services=services) for _, frame in frames]
            done.append({"q": [row.q for row in rows]})
            with file.open("a") as out:
                print(json.dumps(done[-1]), file=out)
        for one, q in zip(together.measures, done[number]["q"], strict=True):
            one["q"] = q
        yield kind, [name for name, _ in frames], together.measures


def fit(bursts: Sequence[tuple[str, list[str], list[dict[str, float]]]]) -> dict[str, float]:
    """The weights: the sharp frame is better than each other one, and no re-encoding than another."""
    differences, better, weights = [], [], []
    for kind, _, frames in bursts:
        pairs = (
            itertools.combinations(frames, 2)
            if kind == "same"
            else ((frames[0], one) for one in frames[1:])
        )
        for one, other in pairs:
            apart = [one[name] - other[name] for name in NAMES]
            differences += [apart, [-value for value in apart]]
            if kind == "same":  # either might be the better one
                differences += [apart, [-value for value in apart]]
            better += [1, 0, 0, 1] if kind == "same" else [1, 0]
            weights += [0.5] * 4 if kind == "same" else [1.0] * 2
    model = LogisticRegression(C=PENALTY, fit_intercept=False, max_iter=1000)
    fitted = model.fit(np.array(differences), better, sample_weight=weights)
    return dict(zip(NAMES, (round(float(w), 4) for w in fitted.coef_[0]), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, metavar="PHOTOS")
    parser.add_argument("--photographs", type=int, default=19)
    parser.add_argument("--work", type=Path, required=True, help="folder for what is measured")
    parser.add_argument("--write", action="store_true", help="write configs/bursts.json")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    files = split_photos(args.photos)[0]
    order = np.random.default_rng(SEED).permutation(len(files))[: args.photographs]
    tiles = [load_tiles([files[i]])[0] for i in order]
    bursts = list(measured(tiles, KINDS, args.work / "training.jsonl"))
    bursts += measured(tiles, EXPOSED, args.work / "training_exposed.jsonl")
    weights = fit(bursts)
    print(json.dumps(weights))
    if args.write:
        record = BurstFit(
            weights=weights,
            groups=len(bursts),
            source="made bursts of training photographs (scripts/training/bursts.py)",
            date=datetime.date.today().isoformat(),
        )
        write_whole(SHIPPED, record.model_dump_json(indent=1).encode())


if __name__ == "__main__":
    main()
