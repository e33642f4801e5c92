"""KonIQ-10k: photographs from the web, in two sizes."""

from typing import Any

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import number
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout

EDITIONS = "1024x768", "512x384"
SCORES, SETS = "koniq10k_scores_and_distributions.csv", "koniq10k_distributions_sets.csv"
SPLITS = {"training": "train", "validation": "val", "test": "test"}
SHARES = "c1", "c2", "c3", "c4", "c5"


def load(reader: DatasetReader, edition: str | None = None) -> None:
    """koniq10k_scores_and_distributions.csv or koniq10k_distributions_sets.csv, and 1024x768/ or 512x384/.

    `edition` names the image folder, by default the larger one that is there; metrics give other values on
    the smaller one. `mos` is on 1..5. The file with the sets has only the 1..100 scores, so there it is the
    mean of the shares c1..c5.
    """
    reader.edition = reader.present(*([edition] if edition else EDITIONS))[0]
    with_sets: dict[str, dict[str, Any]] = {}
    if sets := reader.find(SETS):
        rows = reader.table(sets, "image_name", "mos", "set", *SHARES)
        with_sets = {row["image_name"]: row for row in rows}
    if (scores := reader.find(SCORES)) or not sets:
        rows = reader.table(scores or reader.need(SCORES, SETS), "image_name", "mos", "mos_zscore")
    else:
        rows = [row | {"mos": _mean(row), "mos_zscore": row["mos"]} for row in with_sets.values()]
    for row in rows:
        split = SPLITS.get(with_sets.get(row["image_name"], {}).get("set", ""))
        extra = {"std": number(row.get("sd")), "mos_zscore": number(row["mos_zscore"])}
        reader.add(row["mos"], f"{reader.edition}/{row['image_name']}", split=split, extra=extra)


def _mean(row: dict[str, Any]) -> float:
    """The mean category, 1..5, of the shares of observers who chose each."""
    return sum(category * number(row[share]) for category, share in enumerate(SHARES, 1))


LAYOUT = Layout(
    DatasetInfo(
        "koniq10k",
        "KonIQ-10k",
        "NR",
        higher_is_better=True,
        low=1,
        high=5,
        scale="absolute categories",
        url="https://arxiv.org/abs/1910.06180",
        seen_as=("koniq",),
    ),
    load,
    ((f"{SCORES}|{SETS}", ""),),
)
