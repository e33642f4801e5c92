"""Fits configs/comparisons.json: how far differences between two pictures' measurements tell which is better.

    python scripts/training/comparisons.py versions --photos PHOTOS --out versions.jsonl
    python scripts/training/comparisons.py fit versions.jsonl

`versions` distorts training photographs (--held-out: others) and assesses each version by the letters pipeline. The
truth is the pseudo-MOS (`synthetic`). The fit is a Bradley-Terry model: a logistic regression on differences, without
an intercept, of the set of measurements with the least cross-validated log loss.
"""

import argparse
import datetime
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

sys.path.insert(0, str(Path(__file__).parents[2]))

from distortions import DISTORTIONS
from synthetic import PseudoMos, split_photos

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.devices import choose_device
from agentic_iqa_local.files import folder_hash, read_json, read_record, write_whole
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.preference import SHIPPED, PairFit, PairFits, measurements
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services

SEVERITIES = ((1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5))  # of a pair: two or more apart
BURST = (1, 2, 3, 4, 5)  # the severities of a burst's versions, each of another kind
FOLDS = 5
PENALTY = 10.0  # scikit-learn's C: weak, there are two weights and a thousand pairs


@dataclass(frozen=True)
class Picture:
    """A version of a clean photograph; both arrays are uint8 H×W×3. `series` names the pair or burst it belongs to."""

    photo: str
    series: str
    kind: str | None
    severity: int
    pixels: np.ndarray
    clean: np.ndarray


@dataclass(frozen=True)
class Version:
    """An assessed version with its pseudo-MOS."""

    photo: str
    series: str
    severity: int
    mos: float
    row: Assessment


Pair = tuple[Version, Version]


def pictures(args: argparse.Namespace) -> Iterator[Picture]:
    """Of each drawn photograph the clean one, pairs of one kind, and bursts of five kinds."""
    rng = np.random.default_rng(args.seed)
    files = split_photos(args.photos)[1 if args.held_out else 0]
    order = rng.permutation(len(files))[: args.photographs]
    kinds = (str(kind) for _ in itertools.count() for kind in rng.permutation(list(DISTORTIONS)))
    for file in (files[i] for i in order):
        clean = np.asarray(Image.open(file).convert("RGB"))
        yield Picture(file.name, "clean", None, 0, clean, clean)
        for number in range(args.pairs):
            kind, severities = next(kinds), SEVERITIES[rng.integers(len(SEVERITIES))]
            for severity in severities:
                pixels = DISTORTIONS[kind].apply(clean, severity, rng)
                yield Picture(file.name, f"pair {number}", kind, severity, pixels, clean)
        for number in range(args.bursts):
            for kind, severity in zip(
                map(str, rng.permutation(list(DISTORTIONS))), BURST, strict=False
            ):
                pixels = DISTORTIONS[kind].apply(clean, severity, rng)
                yield Picture(file.name, f"burst {number}", kind, severity, pixels, clean)


def versions(args: argparse.Namespace, services: Services) -> Iterator[dict]:
    """Each picture's row and pseudo-MOS."""
    measure = PseudoMos()
    for picture in pictures(args):
        original = picture.clean if args.reference and picture.kind else None
        row = assess(picture.pixels, original, pipeline="letters", services=services)
        mos = measure(picture.pixels, picture.clean)
        about = {
            "photo": picture.photo,
            "series": picture.series,
            "severity": picture.severity,
            "mos": mos,
        }
        yield about | {"row": row.to_dict()}


def collect(args: argparse.Namespace) -> None:
    """Writes versions, each line as soon as it is there."""
    services = Services(load_settings(args.config), choose_device())
    with args.out.open("x", encoding="utf-8") as file:
        for line in versions(args, services):
            print(json.dumps(line), file=file, flush=True)


def read_versions(files: Sequence[Path]) -> list[Version]:
    lines = [
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [Version(**line | {"row": Assessment.model_validate(line["row"])}) for line in lines]


def pairs_of_photographs(found: Sequence[Version]) -> list[Pair]:
    """All pairs of versions of the same photograph."""
    groups: dict[str, list[Version]] = defaultdict(list)
    for version in found:
        groups[version.photo].append(version)
    return [pair for group in groups.values() for pair in itertools.combinations(group, 2)]


def differences(pairs: Sequence[Pair], names: Sequence[str]) -> np.ndarray:
    """(pairs, names): the first version's measurements less the second's."""
    values = [
        [[measurements(version.row)[name] for name in names] for version in pair] for pair in pairs
    ]
    return np.array([np.subtract(first, second) for first, second in values])


def mirrored(values: np.ndarray) -> np.ndarray:
    """Each pair in both orders, so that neither place is preferred."""
    return np.concatenate([values, -values])


def model() -> LogisticRegression:
    return LogisticRegression(C=PENALTY, fit_intercept=False)


def log_loss(x: np.ndarray, pairs: Sequence[Pair]) -> float:
    """Mean negative log-likelihood in nats of each pair by weights fitted on other photographs; x is (pairs, names)."""
    better = np.array([first.mos > second.mos for first, second in pairs])
    target = np.concatenate([better, ~better])
    photos = np.array([first.photo for first, _ in pairs] * 2)
    p = cross_val_predict(
        model(), mirrored(x), target, groups=photos, cv=GroupKFold(FOLDS), method="predict_proba"
    )
    p = np.asarray(p)[: len(pairs), 1]
    return float(-np.mean(np.log(np.where(better, p, 1 - p))))


def counted(row: Assessment) -> set[str]:
    """The letters and the tools that vote: what every assessment has."""
    voters = row.fusion.voters if row.fusion else []
    return set(measurements(row)) & {"letters", *voters}


def sets_of(names: set[str]) -> Iterator[tuple[str, ...]]:
    """One to three of the names, in every way."""
    for count in (1, 2, 3):
        yield from itertools.combinations(sorted(names), count)


def fit(args: argparse.Namespace) -> None:
    """Fits the weights of what predicts best, and puts them into the file. Where a weight is not
    positive, a better measurement would speak against a picture: such a set is left out."""
    found = read_versions(args.versions)
    pairs = pairs_of_photographs(found)
    better = np.array([first.mos > second.mos for first, second in pairs])
    shared = set.intersection(*(counted(version.row) for version in found))
    target = np.concatenate([better, ~better])
    losses, weights = {}, {}
    for names in sets_of(shared | {"q"}):
        values = differences(pairs, names)
        coefficients = model().fit(mirrored(values), target).coef_[0]
        if min(coefficients) > 0:
            losses[names] = log_loss(values, pairs)
            weights[names] = dict(zip(names, map(float, coefficients), strict=True))
    best = min(losses, key=losses.__getitem__)
    settings = load_settings(args.config)
    new = PairFit(
        model=folder_hash(settings.folder(settings.summarizer.backend)),
        pipeline=found[0].row.pipeline,
        reference=any(version.row.reference is not None for version in found),
        weights={name: round(weight, 4) for name, weight in weights[best].items()},
        pairs=len(pairs),
        photographs=len({version.photo for version in found}),
        source="synthetic distortions of training photographs",
        date=datetime.date.today().isoformat(),
    )
    put(new, args.out)
    print(
        json.dumps({" + ".join(names): round(loss, 4) for names, loss in losses.items()}, indent=1)
    )


def put(new: PairFit, file: Path) -> None:
    """Puts a fit into the file in place of an earlier one of the same model, pipeline and kind."""
    known = read_record(file, PairFits, read_json).fits if file.is_file() else ()
    key = (new.model, new.pipeline, new.reference)
    others = [one for one in known if (one.model, one.pipeline, one.reference) != key]
    write_whole(file, PairFits(fits=(*others, new)).model_dump_json(indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("versions", help="assess versions of photographs")
    making.add_argument("--photos", type=Path, required=True, help="folder of clean photographs")
    making.add_argument("--out", type=Path, required=True, help="a new file of JSON lines")
    making.add_argument("--held-out", action="store_true", help="photographs to measure on")
    making.add_argument("--seed", type=int, default=1)
    making.add_argument("--photographs", type=int, default=40)
    making.add_argument("--pairs", type=int, default=3, help="of one kind, for each photograph")
    making.add_argument("--bursts", type=int, default=1, help="for each photograph")
    making.add_argument(
        "--reference", action="store_true", help="assess against the clean photograph"
    )
    fitting = commands.add_parser("fit", help="fit the weights")
    fitting.add_argument("versions", nargs="+", type=Path, help="what `versions` wrote")
    fitting.add_argument("--out", type=Path, default=SHIPPED)
    for command in commands.choices.values():
        command.add_argument("--config", help="a set-up (default: embedded)")
    args = parser.parse_args()
    (fit if args.command == "fit" else collect)(args)


if __name__ == "__main__":
    main()
