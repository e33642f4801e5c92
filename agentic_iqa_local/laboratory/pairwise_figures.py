"""How often are the better of two versions and the best of a burst found, how sure is that, and what does it
cost? Figures of stored versions and reads, without a model."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from scipy.stats import binomtest

from agentic_iqa_local.judgement.comparison import Candidate, Judge
from agentic_iqa_local.judgement.ordering import MOST_DIFFERENT, fingerprint, pairs_to_compare, same_scene
from agentic_iqa_local.judgement.preference import measurements
from agentic_iqa_local.laboratory.pairwise_fit import Pair, log_loss, pairs_of_photographs
from agentic_iqa_local.laboratory.pairwise_versions import CLEAN, IN_BURST, PAIR, Version
from agentic_iqa_local.synthetic.distortions import DISTORTIONS

BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the probability of what was answered


def share(right: Sequence[bool]) -> dict[str, Any]:
    """A share with its 95 % interval (Clopper–Pearson; pairs of one photograph count as independent)."""
    if not right:
        return {"share": None, "n": 0}
    test = binomtest(sum(right), len(right))
    low, high = test.proportion_ci(0.95)
    return {
        "share": round(test.statistic, 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "n": len(right),
    }


def figures(versions: Sequence[Version], judge: Judge, reads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything that the versions of held-out photographs tell."""
    pairs = list(pairs_of_photographs(versions))
    return {
        "photographs": len({version.photo for version in versions}),
        "versions": len(versions),
        "same_kind": same_kind(pairs, judge),
        "burst": bursts(versions, judge),
        "all_pairs_of_a_photograph": calibration(pairs, judge),
        "same_scene": scenes(versions),
        "pairs_per_picture": linear(),
        "reads": of_reads(reads),
        "seconds": cost(versions),
    }


def _candidate(version: Version) -> Candidate:
    def load() -> Any:
        raise RuntimeError("stored versions have no pixels")

    return Candidate(version.row, version.fingerprint, load)


def _probability(judge: Judge, pair: Pair) -> tuple[float, float]:
    """P(first is better) as the product answers, and as independent draws say."""
    result = judge.compare(_candidate(pair.first), _candidate(pair.second), may_read=False)
    return result.probability, result.independent


def same_kind(pairs: Sequence[Pair], judge: Judge) -> dict[str, Any]:
    """Pairs of one kind at two severities, two or more apart: the milder one must win. Those whose pseudo-MOS
    says otherwise are counted apart as well."""
    wanted = [pair for pair in pairs if pair.first.series == pair.second.series and _is(pair.first, PAIR)]
    right, q, flips, wrong = [], [], [], []
    for pair in wanted:
        p, _ = _probability(judge, pair)
        back, _ = _probability(judge, Pair(pair.second, pair.first))
        right.append(p > 0.5)
        q.append(_q(pair.first) > _q(pair.second))
        flips.append((p > 0.5) == (back > 0.5))
        if p <= 0.5:
            about = {"photo": pair.first.photo, "kind": pair.first.kind, "probability": round(p, 3)}
            severities = [pair.first.severity, pair.second.severity]
            wrong.append(about | {"severities": severities, "pseudo_mos_agrees": pair.better})
    kinds, families = _by(wanted, right, lambda kind: kind), _by(wanted, right, _family)
    return {
        "right": share(right),
        "right_where_pseudo_mos_agrees": share(
            [ok for ok, pair in zip(right, wanted, strict=True) if pair.better]
        ),
        "pseudo_mos_disagrees": sum(not pair.better for pair in wanted),
        "right_by_q_alone": share(q),
        "flips_of_the_answer": share(flips),
        "by_kind": kinds,
        "by_family": families,
        "wrong": wrong,
    }


def _is(version: Version, series: str) -> bool:
    return version.series.startswith(series)


def _q(version: Version) -> float:
    return measurements(version.row)["q"]


def _family(kind: str) -> str:
    return DISTORTIONS[kind].family


def _by(pairs: Sequence[Pair], right: Sequence[bool], name: Callable[[str], str]) -> dict[str, Any]:
    found: dict[str, list[bool]] = defaultdict(list)
    for pair, ok in zip(pairs, right, strict=True):
        found[name(pair.first.kind or CLEAN)].append(ok)
    return {key: share(found[key]) for key in sorted(found)}


def bursts(versions: Sequence[Version], judge: Judge) -> dict[str, Any]:
    """Six versions of a photograph, one of them clean: it must come first."""
    right, q, missed, grouped = [], [], [], []
    for clean, others in _bursts(versions):
        burst = [*others, clean]
        ranking = judge.rank([_candidate(version) for version in burst])
        best = burst[ranking.order[0].index]
        right.append(best is clean)
        q.append(max(burst, key=_q) is clean)
        apart = [np.mean(version.fingerprint != clean.fingerprint) for version in others]
        grouped.append(max(apart) <= MOST_DIFFERENT)
        if best is not clean:
            missed.append({"photo": clean.photo, "chosen": [best.kind, best.severity]})
    return {
        "chosen": share(right),
        "chosen_by_q_alone": share(q),
        "all_six_in_one_group": share(grouped),
        "missed": missed,
    }


def _bursts(versions: Sequence[Version]) -> Iterator[tuple[Version, list[Version]]]:
    clean = {version.photo: version for version in versions if _is(version, CLEAN)}
    found: dict[tuple[str, str], list[Version]] = defaultdict(list)
    for version in versions:
        if _is(version, IN_BURST):
            found[version.photo, version.series].append(version)
    for (photo, _), others in found.items():
        yield clean[photo], others


def calibration(pairs: Sequence[Pair], judge: Judge) -> dict[str, Any]:
    """All pairs of versions of a photograph, whatever their kinds, against the sign of their pseudo-MOS'
    difference: as the product answers, and from independent draws."""
    found = np.array([_probability(judge, pair) for pair in pairs])
    better = np.array([pair.better for pair in pairs])
    return {
        name: _calibrated(found[:, column], better)
        for column, name in enumerate(("answered", "independent draws"))
    }


def _calibrated(p: np.ndarray, better: np.ndarray) -> dict[str, Any]:
    sure, right = np.maximum(p, 1 - p), (p > 0.5) == better
    bins = []
    for low, high in itertools.pairwise(BINS):
        inside = (sure >= low) & ((sure < high) | (high == 1.0))
        if inside.any():
            mean = round(float(sure[inside].mean()), 4)
            bins.append({"from": low, "to": high, "mean": mean, **share(right[inside].tolist())})
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    return {
        "right": share(right.tolist()),
        "brier": round(float(np.mean((p - better) ** 2)), 4),
        "log_loss": round(log_loss(clipped, better), 4),
        "reliability": bins,
    }


def scenes(versions: Sequence[Version]) -> dict[str, Any]:
    """Versions of one photograph against each other, and clean photographs against each other."""
    same = [
        bool(np.mean(pair.first.fingerprint != pair.second.fingerprint) <= MOST_DIFFERENT)
        for pair in pairs_of_photographs(versions)
    ]
    clean = [version.fingerprint for version in versions if _is(version, CLEAN)]
    other = [
        bool(np.mean(one != two) <= MOST_DIFFERENT) for i, one in enumerate(clean) for two in clean[i + 1 :]
    ]
    return {"versions_seen_as_the_same": share(same), "photographs_seen_as_the_same": share(other)}


def cut_and_turned(photographs: Sequence[Image.Image]) -> dict[str, Any]:
    """How often a copy of a photograph that was resized, cut or turned is seen as the same scene."""
    found: dict[str, list[bool]] = defaultdict(list)
    for photo in photographs:
        own = fingerprint(photo)
        for name, copy in _copies(photo):
            found[name].append(same_scene(own, fingerprint(copy)))
    return {name: share(same) for name, same in found.items()}


def _copies(photo: Image.Image) -> Iterator[tuple[str, Image.Image]]:
    width, height = photo.size

    def middle(part: float, picture: Image.Image) -> Image.Image:
        left, top = round(width * (1 - part) / 2), round(height * (1 - part) / 2)
        return picture.crop((left, top, width - left, height - top))

    yield "a quarter of each side", photo.resize((width // 4, height // 4))
    for part in (0.95, 0.9, 0.8):
        yield f"the middle {part:.0%} of each side", middle(part, photo)
    yield "without 3 % on the left", photo.crop((round(0.03 * width), 0, width, height))
    yield "turned by 2°", middle(0.93, photo.rotate(2, Image.Resampling.BICUBIC))


def linear() -> dict[str, float]:
    """Pairs compared for each picture, by how many are ordered."""
    rng = np.random.default_rng(0)
    found = {}
    for count in (2, 6, 20, 100, 500):
        prior = rng.normal(size=count).tolist()
        pairs = pairs_to_compare(prior, lambda i, j, prior=prior: abs(prior[i] - prior[j]))
        found[str(count)] = round(len(pairs) / count, 3)
    return found


def of_reads(reads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Pairwise reads of one kind at two severities, the milder first."""
    if not reads:
        return {"n": 0}
    found = [line["read"] for line in reads]
    p = np.array([read["probability"] for read in found])
    tokens = [read["prefilled"] for read in found]
    return {
        "right": share((p > 0.5).tolist()),
        "flips": share([read["flipped"] for read in found]),
        "probability_deviation": float(p.std()),
        "mean_order_bias": float(np.mean([read["order_bias"] for read in found])),
        "mean_letter_bias": float(np.mean([read["letter_bias"] for read in found])),
        "off_letter_mass": float(np.mean([read["off_letter_mass"] for read in found])),
        "tokens_prefilled": float(np.mean(tokens)),
        "seconds": float(np.median([line["wall_seconds"] for line in reads])),
    }


def cost(versions: Sequence[Version]) -> dict[str, float]:
    """Of one picture's assessment; the comparison itself takes no model."""
    tokens = [version.row.tokens.prefilled for version in versions if version.row.tokens]
    seconds = [version.row.seconds for version in versions]
    return {"assessment_median": float(np.median(seconds)), "tokens_prefilled": float(np.mean(tokens))}
