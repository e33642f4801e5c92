"""What run.json says of a study, checked for what a report needs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.studies.datasets import DATASETS, DatasetInfo

Row = dict[str, Any]
PARTS = {"dataset", "model", "fusion", "tools", "maps", "identity"}


class StudyError(UserError, ValueError):
    """A run that cannot be reported on."""


def dataset_info(run: dict[str, Any]) -> DatasetInfo:
    """What run.json says of the data set, over what is known of a set of that key. Raises StudyError for an unknown
    key, and where a part that a report needs is not there or no such part."""
    if lacking := sorted(PARTS - run.keys()):
        expected = f"run.json: expected what a study writes, got no {', '.join(lacking)}"
        raise StudyError(expected, "report on a run of this version")
    told = run["dataset"]
    if told.get("key") not in DATASETS:
        expected = f"run.json: expected a data set of {', '.join(DATASETS)}, got {told.get('key')!r}"
        raise StudyError(expected, "correct its key")
    known = asdict(DATASETS[told["key"]])
    return _checked(DatasetInfo, {name: told.get(name, value) for name, value in known.items()})


def check_scores(name: str, rows: Sequence[Row], info: DatasetInfo) -> None:
    """Raises StudyError where a run has nothing to agree with."""
    if not rows or any("mos" not in row for row in rows):
        found = "questions" if rows else "none"
        raise StudyError(f"{name}: expected rows with a human score, got {found}", "use a scored run")
    if info.higher_is_better is None:
        raise StudyError(f"{name}: expected run.json to say whether higher scores are better (higher_is_better)")


def fusion_settings(run: dict[str, Any]) -> FusionSettings:
    """The fusion that the run was made with. Raises StudyError."""
    return _checked(FusionSettings, run["fusion"])


def _checked(kind: type, told: dict[str, Any]) -> Any:
    try:
        return TypeAdapter(kind).validate_python(told)
    except ValidationError as error:
        said = f"run.json: expected what this version writes, got {first_mistake(error)}"
        raise StudyError(said, "run it anew") from error
