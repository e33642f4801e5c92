"""Which differences between two versions of a photograph tell which is better, and with what weights? Fits
configs/comparisons.json on training photographs."""

import datetime
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from agentic_iqa_local.judgement.preference import PairFit, logit, measurements
from agentic_iqa_local.laboratory.pairwise_versions import Version

FOLDS = 5
PENALTY = 10.0  # scikit-learn's C: weak, there are two weights and a thousand pairs


@dataclass(frozen=True)
class Pair:
    """Two versions of one photograph; `better`: the first has the higher pseudo-MOS."""

    first: Version
    second: Version

    @property
    def better(self) -> bool:
        return self.first.mos > self.second.mos


def pairs_of_photographs(versions: Sequence[Version]) -> Iterator[Pair]:
    """All pairs of versions of the same photograph."""
    by_photo: dict[str, list[Version]] = defaultdict(list)
    for version in versions:
        by_photo[version.photo].append(version)
    for group in by_photo.values():
        for first, second in itertools.combinations(group, 2):
            yield Pair(first, second)


def candidates(versions: Sequence[Version]) -> list[tuple[str, ...]]:
    """Sets of measurements that all versions have: q alone, and q with one or two of the others."""
    shared = set.intersection(*(set(measurements(version.row)) for version in versions))
    others = sorted(shared - {"q"})
    return [("q", *more) for count in range(3) for more in itertools.combinations(others, count)]


def _mirrored(values: np.ndarray) -> np.ndarray:
    """Each pair in both orders: neither place is preferred."""
    return np.concatenate([values, -values])


def cross_validated(pairs: Sequence[Pair], names: Sequence[str]) -> np.ndarray:
    """P(first is better) of each pair by weights that were fitted on other photographs, (pairs,)."""
    x = _mirrored(_differences(pairs, names))
    better = np.array([pair.better for pair in pairs])
    photos = np.array([pair.first.photo for pair in pairs] * 2)
    return _predicted(x, np.concatenate([better, ~better]), photos)


def _predicted(x: np.ndarray, target: np.ndarray, photos: np.ndarray) -> np.ndarray:
    """Of the first half of the rows, which the second mirrors, the probability by other photographs' fit."""
    folds = GroupKFold(FOLDS)
    found = cross_val_predict(_model(), x, target, groups=photos, cv=folds, method="predict_proba")
    return np.asarray(found)[: len(x) // 2, 1]


def log_loss(p: np.ndarray, better: np.ndarray) -> float:
    """Mean negative log-likelihood, in nats."""
    return float(-np.mean(np.log(np.where(better, p, 1 - p))))


def _differences(pairs: Sequence[Pair], names: Sequence[str]) -> np.ndarray:
    def values(version: Version) -> list[float]:
        found = measurements(version.row)
        return [found[name] for name in names]

    return np.array([np.subtract(values(pair.first), values(pair.second)) for pair in pairs])


def _model() -> LogisticRegression:
    return LogisticRegression(C=PENALTY, fit_intercept=False)


def fit_pairs(
    versions: Sequence[Version], model: str, source: str, reads: Mapping[tuple[str, str], float]
) -> tuple[PairFit, dict[str, float]]:
    """(the fit with the measurements that predict other photographs' pairs best, the cross-validated log loss
    of each set). `model` is its folder's hash; `reads` gives P(the better one is better) of pairwise reads by
    photograph and series."""
    pairs = list(pairs_of_photographs(versions))
    better = np.array([pair.better for pair in pairs])
    losses = {names: log_loss(cross_validated(pairs, names), better) for names in candidates(versions)}
    names = min(losses, key=losses.__getitem__)
    fitted = _model().fit(_mirrored(_differences(pairs, names)), np.concatenate([better, ~better]))
    weights = dict(zip(names, map(float, fitted.coef_[0]), strict=True))
    first = versions[0].row
    fit = PairFit(
        model=model,
        pipeline=first.pipeline,
        reference=any(version.row.reference is not None for version in versions),
        weights={name: round(weight, 4) for name, weight in weights.items()},
        pairwise=round(read_weight(pairs, weights, reads), 4),
        pairs=len(pairs),
        photographs=len({version.photo for version in versions}),
        source=source,
        date=datetime.date.today().isoformat(),
    )
    return fit, {" + ".join(names): round(loss, 4) for names, loss in losses.items()}


def read_weight(
    pairs: Sequence[Pair], weights: Mapping[str, float], reads: Mapping[tuple[str, str], float]
) -> float:
    """Weight of a pairwise read's log-odds beside the weighted differences; 0 unless it makes the log loss of
    other photographs' pairs smaller."""
    read = [pair for pair in pairs if (key := _key(pair)) and key in reads]
    if len({pair.first.photo for pair in read}) < FOLDS:
        return 0.0
    known = _differences(read, list(weights)) @ np.array(list(weights.values()))
    signs = np.array([1 if pair.first.severity < pair.second.severity else -1 for pair in read])
    odds = signs * np.array([logit(reads[pair.first.photo, pair.first.series]) for pair in read])
    better = np.array([pair.better for pair in read])
    target = np.concatenate([better, ~better])
    photos = np.array([pair.first.photo for pair in read] * 2)

    def loss(columns: list[np.ndarray]) -> float:
        return log_loss(_predicted(_mirrored(np.stack(columns, axis=1)), target, photos), better)

    if loss([known, odds]) >= loss([known]):
        return 0.0
    both = _model().fit(_mirrored(np.stack([known, odds], axis=1)), target).coef_[0]
    return max(0.0, float(both[1] / both[0]))


def _key(pair: Pair) -> tuple[str, str] | None:
    same = pair.first.series == pair.second.series
    return (pair.first.photo, pair.first.series) if same else None
