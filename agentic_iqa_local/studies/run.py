"""One pass over a data set into a `Store`: who ran it on what, and a row for each image, made by
the same runner as a batch of assess (`batch.runner`)."""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local.batch.rows import LARGEST_NOTE, write_run
from agentic_iqa_local.batch.runner import resumed
from agentic_iqa_local.batch.work import ROLES, Work, of_work
from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import commit, describe_device
from agentic_iqa_local.errors import assessing, one_line
from agentic_iqa_local.files import folder_hash, path_text, read_json, write_whole
from agentic_iqa_local.judgement.identity import named_in_row
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.services import Observer, Services
from agentic_iqa_local.studies.datasets import (
    MANIFEST,
    Dataset,
    DatasetError,
    DatasetInfo,
    Question,
    Sample,
    listed,
)
from agentic_iqa_local.studies.inference import Plan, answer, infer
from agentic_iqa_local.studies.store import open_store
from agentic_iqa_local.vlm_client.model_folder import check_files


@dataclass(frozen=True)
class StudyWork(Work[Sample, dict[str, Any]]):
    """The inference that a plan asks for, on each image."""

    settings: Settings
    plan: Plan
    roles = ROLES["agent"]

    def row(self, item: Sample, services: Services, observer: Observer) -> dict[str, Any]:
        about = facts(item) | {"model": named_in_row(self.settings, services.device)}
        with assessing(about["image"]):
            if isinstance(item, Question):
                return about | answer(item, services, observer)
            return about | infer(item, self.plan, services, observer)

    def failure(self, item: Sample, error: str, sha256: str | None = None) -> dict[str, Any]:
        return facts(item) | {"error": one_line(error), "sha256": sha256}

    def describe(self, services: Services) -> dict[str, Any]:
        return {
            "hardware": describe_device(services.device),
            "model": services.client(ROLE).describe(),
            "maps": {name: logistic.fitted_on for name, logistic in services.tools.maps.items()},
        }


def facts(item: Sample) -> dict[str, Any]:
    """What the data set says of an image or a question, as a row holds it."""
    reference = item.reference and path_text(item.reference)
    return item.model_dump() | {"image": path_text(item.image), "reference": reference}


def chosen(dataset: Dataset, split: str | None = None, limit: int | None = None) -> Dataset:
    """The data set's images of `split`, at most `limit`, drawn evenly with a fixed seed. Raises
    DatasetError."""
    kept = [item for item in dataset.items if split in (None, item.split)]
    if not kept:
        known = listed(sorted({item.split for item in dataset.items if item.split})) or "unknown"
        said = f"{dataset.root}: expected images of the split {split}, found none"
        raise DatasetError(said, f"the splits are {known}")
    if limit is not None and limit < len(kept):
        drawn = np.random.default_rng(0).choice(len(kept), limit, replace=False)
        kept = [kept[i] for i in sorted(drawn)]
    return replace(dataset, items=tuple(kept))


def run_study(dataset: Dataset, batch: Any, folder: Path) -> Generator[int]:
    """Fills `folder` with the rows that it lacks, yielding how many there are as each is on disk.
    `batch` is a `Runner` or a `RayRunner` of a `StudyWork`; its model is loaded before the first
    yield, after everything else was checked.

    Raises:
        DatasetError: An image is listed twice.
        StoreError: The folder is another's, or it cannot be written.
        BatchError, VLMError: The batch cannot go on, or the model is lost. The same command goes
            on, and tries again what the model failed on.
    """
    _check_unique(dataset)
    decided_by = identity(dataset, batch.work, batch.device)
    with open_store(folder, decided_by) as store:
        left = [item for item in dataset.items if item.key not in store.done]
        if left:
            batch.load()
        if not (folder / "run.json").exists():
            told = describe(dataset, batch.work.settings, batch.description)
            write_run(folder / "run.json", told, decided_by)
        _note_set(folder, dataset.info)
        yield len(store.done)
        rows = batch.rows(resumed(left, batch.jobs) if store.done else left)
        for count, row in enumerate(rows, len(store.done) + 1):
            store.append(json.dumps(row))
            yield count


def _check_unique(dataset: Dataset) -> None:
    key, count = Counter(item.key for item in dataset.items).most_common(1)[0]
    if count > 1:
        said = f"{dataset.root}: expected each image once, {key} is listed again"
        raise DatasetError(said, "remove one line")


def _note_set(folder: Path, info: DatasetInfo) -> None:
    """Puts into run.json what was told of a manifest: the ends of its scale, or the data set that
    it is a part of. It can be told later, for no row depends on it."""
    if not info.scale:
        return
    only_ends = {"low", "high", "scale"} if info.key == MANIFEST else None
    told = read_json(folder / "run.json", LARGEST_NOTE)
    told["dataset"] |= info.model_dump(mode="json", include=only_ends)
    write_whole(folder / "run.json", json.dumps(told, indent=1), sync=True)


def identity(dataset: Dataset, work: StudyWork, device: str) -> dict[str, Any]:
    """What rows depend on; a run goes on only with the same. Raises VLMError for a model's folder
    that cannot be opened."""
    scores = [(item.key, getattr(item, "mos", None)) for item in dataset.items]
    folder = work.settings.folder(work.settings.role(ROLE).backend)
    check_files(folder, weights=False)
    works_with = of_work(work, device)
    return {
        "dataset": hashlib.sha256(json.dumps(scores).encode()).hexdigest(),
        **works_with,
        "models": works_with["model"],
        "model": folder_hash(folder),
        "reads": {"query": work.plan.query, "tools": list(work.plan.tools)},
        "configuration": work.settings.model_dump(mode="json", exclude={"fusion"}),
    }


def describe(dataset: Dataset, settings: Settings, loaded: dict[str, Any]) -> dict[str, Any]:
    """Command, versions, what is `loaded` where (`StudyWork.describe`), configuration and data set,
    for run.json."""
    about = dataset.info.model_dump() | {"root": path_text(dataset.root)}
    about |= {"images": len(dataset.items), "left_out": dataset.left_out}
    about["missing"] = [path_text(name) for name in dataset.missing]
    return {
        "command": [one_line(word) for word in (Path(sys.argv[0]).name, *sys.argv[1:])],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": commit(),
        **loaded,
        "fusion": settings.fusion.model_dump(mode="json"),
        "tools": settings.tools.model_dump(mode="json"),
        "dataset": about,
    }
