"""What run.json says of a study, checked for what a report needs."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from pydantic import ValidationError

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.studies.datasets import DATASETS, DatasetInfo

Row = dict[str, Any]


class StudyError(UserError, ValueError):
    """A run that cannot be reported on; one sentence for the user."""


def dataset_info(run: dict[str, Any]) -> DatasetInfo:
    """What run.json says of the data set, over what is known of a set of that key.

    Raises StudyError for an unknown key, and where run.json lacks a part that a report needs.
    """
    if lacking := [part for part in ("dataset", "model", "fusion", "tools", "maps", "identity") if part not in run]:
        raise StudyError(
            f"run.json: expected what a study writes, got no {', '.join(lacking)}",
            "report on a run of this version",
        )
    told = run["dataset"]
    if told["key"] not in DATASETS:
        raise StudyError(
            f"run.json: expected a data set of {', '.join(DATASETS)}, got {told['key']!r}", "correct its key"
        )
    known = {item.name for item in fields(DatasetInfo)} - {"key", "seen_as"}
    return replace(DATASETS[told["key"]].info, **{name: value for name, value in told.items() if name in known})


def check_scores(name: str, rows: Sequence[Row], info: DatasetInfo) -> None:
    """Raises StudyError where a run has nothing to agree with."""
    if not rows or any("mos" not in row for row in rows):
        raise StudyError(
            f"{name}: expected rows with a human score, got {'questions' if rows else 'none'}",
            "use a scored run",
        )
    if info.higher_is_better is None:
        raise StudyError(
            f"{name}: expected run.json to say whether higher scores are better (dataset.higher_is_better)"
        )


def fusion_settings(run: dict[str, Any]) -> FusionSettings:
    """The fusion that the run was made with. Raises StudyError."""
    try:
        return FusionSettings.model_validate(run["fusion"])
    except ValidationError as error:
        first = error.errors()[0]
        raise StudyError(
            f"run.json: expected the fusion of this version, got {first['loc'][0]}: {first['msg']}",
            "run it anew",
        ) from error
