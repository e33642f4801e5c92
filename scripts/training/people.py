"""Teaches LocalNR what people said of photographs: a linear head on its statistics, from the LIVE In the Wild Image
Quality Challenge Database (Ghadiyaram and Bovik, 2015).

    python scripts/training/people.py LIVE_CHALLENGE PHOTOS [PHOTOS ...] --work runs/people

LIVE_CHALLENGE holds manifest.csv (image, mos of 0 to 100) and its pictures; PHOTOS are folders of clean photographs,
which count as good. --work keeps statistics, so that the command goes on after an interruption. The figures that it
prints are of five-fold cross-validation by photograph.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from safetensors.numpy import save
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from synthetic import photo_files

from agentic_iqa_local.files import write_whole
from agentic_iqa_local.iqa_tools import local_nr as nr
from agentic_iqa_local.iqa_tools.kernels import as_tensor
from agentic_iqa_local.studies.statistics import srcc

PENALTY = 1000.0  # of the ridge, on standardised statistics
CLEAN = 4.27  # the level of a clean photograph: its pseudo-MOS
CLEAN_WEIGHT = 0.4  # of a clean photograph beside a rated one
# The map of the synthetic quality to levels, b1, b2, b3 and b5: least squares on 1,000 synthetic pictures of 54
# held-out photographs and as many clean originals, target the pseudo-MOS (RMSE .525; of the damaged ones SRCC .812)
LEVEL_MAP = (3.1267, 2.2184, 2.3592, 2.7154)
NOTICE = "people's scores: LIVE In the Wild Image Quality Challenge Database; see NOTICE.md"


def statistics_of(network: nr.LocalNR, image: Image.Image) -> np.ndarray:
    with torch.inference_mode():
        return network.describe(as_tensor(image, "cpu"))[0][0].numpy()


def manifest(folder: Path) -> list[dict[str, str]]:
    """The rows of the rated photographs."""
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rated(network: nr.LocalNR, folder: Path, work: Path) -> tuple[np.ndarray, np.ndarray]:
    """(statistics, levels from 1 to 5) of the rated photographs."""
    rows = manifest(folder)
    levels = np.array([1 + 4 * float(row["mos"]) / 100 for row in rows])
    kept = work / "rated.npy"
    if not kept.exists():
        found = []
        for row in track(rows, "rated"):
            with Image.open(folder / row["image"]) as image:
                found.append(statistics_of(network, image.convert("RGB")))
        np.save(kept, np.array(found))
    return np.load(kept), levels


def clean(network: nr.LocalNR, folders: list[Path], work: Path) -> np.ndarray:
    """The statistics of clean photographs."""
    kept = work / "clean.npy"
    if not kept.exists():
        found = []
        for file in track([file for folder in folders for file in photo_files(folder)], "clean"):
            with Image.open(file) as image:
                found.append(statistics_of(network, image.convert("RGB")))
        np.save(kept, np.array(found))
    return np.load(kept)


def fit(live: np.ndarray, levels: np.ndarray, photographs: np.ndarray) -> dict[str, np.ndarray]:
    """The weights of the head: a ridge of what people said, in which clean photographs are good ones."""
    everything = np.concatenate([live, photographs])
    centre, scale = everything.mean(0), everything.std(0) + 1e-6
    standard = np.clip((everything - centre) / scale, -nr.FARTHEST, nr.FARTHEST)
    wanted = np.concatenate([levels, np.full(len(photographs), CLEAN)])
    weights = np.concatenate([np.ones(len(live)), np.full(len(photographs), CLEAN_WEIGHT)])
    ridge = Ridge(alpha=PENALTY).fit(standard, wanted, sample_weight=weights)
    return {
        "people.centre": centre,
        "people.scale": scale,
        "people.out.weight": ridge.coef_[None],
        "people.out.bias": np.array([ridge.intercept_]),
        "level_map.b": np.array(LEVEL_MAP),
    }


def judged(network: nr.LocalNR, head: dict[str, np.ndarray], statistics: np.ndarray) -> np.ndarray:
    """The quality, 1..5, of pictures by their statistics."""
    weights = {name: torch.tensor(x, dtype=torch.float32) for name, x in head.items()}
    network.load_state_dict(weights, strict=False)
    with torch.inference_mode():
        described = torch.from_numpy(statistics).float()
        return network.quality(described, network.picture(described)).numpy()


def cross_validate(
    network: nr.LocalNR, live: np.ndarray, levels: np.ndarray, photographs: np.ndarray
) -> None:
    """Prints how well held-out photographs are known."""
    found, good = np.empty(len(live)), np.empty(len(photographs))
    folds = zip(
        KFold(5, shuffle=True, random_state=0).split(live),
        KFold(5, shuffle=True, random_state=0).split(photographs),
        strict=True,
    )
    for (train, test), (clean_train, clean_test) in folds:
        head = fit(live[train], levels[train], photographs[clean_train])
        found[test] = judged(network, head, live[test])
        good[clean_test] = judged(network, head, photographs[clean_test])
    error = np.sqrt(np.mean((found - levels) ** 2))
    linear = np.corrcoef(found, levels)[0, 1]
    print(
        f"rated photographs: SRCC {srcc(found, levels):.3f}, PLCC {linear:.3f}, RMSE {error:.3f} levels, n {len(live)}"
    )
    print(f"clean photographs: {np.mean(good >= 3.5):.0%} Good or better")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("live", type=Path, metavar="LIVE_CHALLENGE")
    parser.add_argument("photos", type=Path, nargs="+", metavar="PHOTOS")
    parser.add_argument("--work", type=Path, required=True, help="folder for statistics")
    parser.add_argument(
        "--out", type=Path, default=nr.PEOPLE, help="file to write (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    network = nr.LocalNR.load()
    live, levels = rated(network, args.live, args.work)
    photographs = clean(network, args.photos, args.work)
    cross_validate(network, live, levels, photographs)
    head = {name: np.asarray(x, np.float32) for name, x in fit(live, levels, photographs).items()}
    write_whole(args.out, save(head, metadata={"notice": NOTICE}))
    print(f"{args.out}: written")


if __name__ == "__main__":
    main()
