"""What is asked of the service, and what is done with it in the process that has the models."""

import copy
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.work import ROLES, Work, as_line
from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.assessment import assess, unassessed
from agentic_iqa_local.judgement.comparison import Comparison, Judge, Ranking
from agentic_iqa_local.judgement.preference import PairwiseRead, read_pair
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.workbench import MODEL, PICTURE, Observer
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services

TOKENS = ("prefilled", "reused", "decoded")  # the kinds that are counted (see `result.Tokens`)


@dataclass(frozen=True)
class Named:
    """A picture that was sent: where it lies here, and its sender's name for it."""

    path: Path
    name: str


@dataclass(frozen=True)
class Ask:
    """One request with its own options, under a key of its own. With several pictures they are compared."""

    key: str
    pictures: tuple[Named, ...]
    settings: Settings
    reference: Named | None = None
    query: str | None = None
    choices: tuple[str, ...] | None = None
    pipeline: Pipeline = "agent"
    max_replan_iterations: int | None = None
    map: bool = False
    pairwise: bool | None = None

    @property
    def image(self) -> Path:
        return self.pictures[0].path


@dataclass
class Answer:
    """What became of an ask: a row or a comparison as one line of JSON, and why there is no answer. `levels`
    has a word for each picture that was assessed (None: it was not rated), `tokens` counts by kind. With
    `timed_out` the error is a time that was over."""

    key: str
    text: str
    error: str | None = None
    sha256: str | None = None
    levels: tuple[str | None, ...] = ()
    tokens: Counter[str] = field(default_factory=Counter)
    timed_out: bool = False


class Serving(Work[Ask, Answer]):
    """An answer to each ask. No answer names a file below `folders`, but by its last name."""

    def __init__(
        self,
        settings: Settings,
        pipelines: tuple[Pipeline, ...] = ("agent", "letters"),
        folders: tuple[Path, ...] = (),
    ):
        self.settings, self.folders = settings, tuple(map(str, folders))
        self.roles = tuple(dict.fromkeys(role for name in pipelines for role in ROLES[name]))

    def row(self, item: Ask, services: Services, observer: Observer) -> Answer:
        own = _services_of(item, services)
        rows = [self._assessed(item, picture, own, observer) for picture in item.pictures]
        if len(rows) > 1:
            return _compared(item, rows, own, observer)
        return _answer(item, rows[0])

    def failure(self, item: Ask, error: str, sha256: str | None = None) -> Answer:
        original = item.reference and item.reference.name
        query, told = item.query or DEFAULT_QUERY, self._hidden(one_line(error), item)
        rows = [
            unassessed(picture.name, original, query, item.choices, item.pipeline, item.settings)
            for picture in item.pictures
        ]
        for row in rows:
            row.error = told
        rows[0].sha256 = sha256
        if len(rows) == 1:
            return _answer(item, rows[0])
        if len(rows) == 2:
            return _answer_with(item, Comparison(first=rows[0], second=rows[1], error=told), told, rows)
        return _answer_with(item, Ranking(order=[], failed=rows, notes=[told]), told, rows)

    def overdue(self, item: Ask, error: str, sha256: str | None = None) -> Answer:
        answer = self.failure(item, error, sha256)
        answer.timed_out = True
        return answer

    def _hidden(self, text: str, item: Ask) -> str:
        """`text` with the senders' names in place of the paths here, and without any other path of ours."""
        for file in (*item.pictures, *([item.reference] if item.reference else [])):
            text = text.replace(str(file.path), one_line(file.name))
        for folder in self.folders:
            text = re.sub(re.escape(folder) + r"[^\s:;,'\"()\[\]]*", _last_name, text)
        return text

    def _assessed(self, item: Ask, picture: Named, services: Services, observer: Observer) -> Assessment:
        logged = PICTURE.set(one_line(picture.name))
        try:
            row = assess(
                picture.path,
                item.reference and item.reference.path,
                item.query,
                item.choices,
                pipeline=item.pipeline,
                max_replan_iterations=item.max_replan_iterations,
                map=item.map,
                services=services,
                observer=observer,
            )
        finally:
            PICTURE.reset(logged)
        row.image, row.reference = picture.name, item.reference and item.reference.name
        row.error = row.error and self._hidden(row.error, item)
        row.warnings = [self._hidden(line, item) for line in row.warnings]
        return row


def _last_name(path: re.Match[str]) -> str:
    return path[0].rstrip("/").rpartition("/")[2]


def _answer(item: Ask, row: Assessment) -> Answer:
    return Answer(item.key, as_line(row), row.error, row.sha256, *_counted([row]))


def _counted(rows: Sequence[Assessment]) -> tuple[tuple[str | None, ...], Counter[str]]:
    tokens = Counter[str]()
    for row in rows:
        if row.tokens:
            tokens.update({kind: getattr(row.tokens, kind) for kind in TOKENS})
    return tuple(row.level for row in rows if row.error is None), tokens


def _services_of(item: Ask, services: Services) -> Services:
    """The loaded services under the ask's own settings."""
    if item.settings == services.settings:
        return services
    own = copy.copy(services)
    own.settings = item.settings
    return own


def _compared(item: Ask, rows: list[Assessment], services: Services, observer: Observer) -> Answer:
    def read(one: Any, other: Any) -> PairwiseRead:
        with observer.calling(MODEL):
            return read_pair(services.client(ROLE), one, other)

    observer.step("comparison", "started")
    judge = Judge(
        item.settings,
        item.pipeline,
        item.reference is not None,
        read=None if item.pairwise is False else read,
        always=bool(item.pairwise),
    )
    found = (judge.compared if len(rows) == 2 else judge.ranked)(
        rows, [picture.path for picture in item.pictures]
    )
    observer.step("comparison", "finished")
    error = found.error if isinstance(found, Comparison) else None
    if isinstance(found, Ranking) and not found.order:
        error = found.failed[0].error
    return _answer_with(item, found, error, rows)


def _answer_with(
    item: Ask, found: Comparison | Ranking, error: str | None, rows: Sequence[Assessment]
) -> Answer:
    line = one_line(json.dumps(found.to_dict(), ensure_ascii=False))
    return Answer(item.key, line, error, None, *_counted(rows))
