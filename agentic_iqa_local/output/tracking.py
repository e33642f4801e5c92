"""Notes a run's options and figures with an experiment tracker, MLflow or trackio, in files on this
disk.

Neither starts a server, and both are set to send nothing. MLflow writes to ./mlruns, or to the
place that $MLFLOW_TRACKING_URI says; trackio to its folder in the Hugging Face cache, or to
$TRACKIO_DIR.
"""

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentic_iqa_local.errors import UserError

PROJECT = "agentic_iqa"
SILENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GRADIO_ANALYTICS_ENABLED": "False",
}

_PLAIN = re.compile(r"[^\w. /-]")  # what MLflow takes in no name

Log = Callable[..., None]


@contextmanager
def tracked(kind: str | None, name: str, params: Mapping[str, Any]) -> Iterator[Log]:
    """A run of the tracker `kind` ("mlflow" or "trackio"; None: of none), called `name`, that ends
    with the block.

    It yields `log(metrics, step=None)`, which notes numbers by name; those that are None are left
    out. Raises UserError where the tracker's package is not installed.
    """
    if kind is None:
        yield lambda metrics, step=None: None
        return
    os.environ |= SILENT | {"MLFLOW_ALLOW_FILE_STORE": "true"} | os.environ
    try:
        tracker: Any = importlib.import_module(kind)
    except ModuleNotFoundError as error:
        remedy = "it is not installed; type: pip install 'agentic_iqa_local[track]'"
        raise UserError(f"--track {kind}: expected the package {error.name}", remedy) from error
    given = {
        key: str(value)
        for key, value in params.items()
        if value not in (None, False) and not callable(value)
    }
    if kind == "mlflow":
        if "MLFLOW_TRACKING_URI" not in os.environ:
            tracker.set_tracking_uri(Path("mlruns").absolute().as_uri())
        tracker.set_experiment(PROJECT)
        tracker.start_run(run_name=name)
        tracker.log_params(given)
        write, end = tracker.log_metrics, tracker.end_run
    else:
        tracker.init(project=PROJECT, name=name, config=given)
        write, end = tracker.log, tracker.finish

    def log(metrics: Mapping[str, float | None], step: int | None = None) -> None:
        known = {
            _PLAIN.sub("", key): float(value) for key, value in metrics.items() if value is not None
        }
        write(known, step=step)

    try:
        yield log
    finally:
        end()
