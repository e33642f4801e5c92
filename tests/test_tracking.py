"""--track: a run noted with a tracker, here a module that keeps what it is told."""

import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
from test_study_report import make_run, store

from agentic_iqa_local.cli.study import figures
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.output.tracking import tracked


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "mlflow",
            [
                "set_tracking_uri",
                "set_experiment",
                "start_run",
                "log_params",
                "log_metrics",
                "end_run",
            ],
        ),
        ("trackio", ["init", "log", "finish"]),
    ],
)
def test_options_and_numbers_reach_the_tracker(kind, names, monkeypatch):
    told = []

    def call(method):
        return lambda *args, **more: told.append((method, args, more))

    monkeypatch.setitem(sys.modules, kind, SimpleNamespace(**{name: call(name) for name in names}))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with suppress(OSError), tracked(kind, "rows.jsonl", {"query": "Rate", "cpu": None}) as log:
        log({"q": 3.5, "failed": False, "seconds": None}, 1)
        raise OSError("full")
    assert [name for name, _, _ in told] == names
    assert told[-2][1:] == (({"q": 3.5, "failed": 0.0},), {"step": 1})
    assert any({"query": "Rate"} in (*args, more.get("config")) for _, args, more in told)


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(UserError, match=r"pip install 'agentic_iqa_local\[track\]'"),
        tracked("mlflow", "x", {}),
    ):
        pass


def test_the_figures_of_a_study_are_noted(tmp_path):
    rows = [{"key": "a", "error": None}, {"key": "b", "error": "no"}, {"key": "c"}]
    folder = store(tmp_path / "run", make_run("tid2013"), rows)
    (folder / "set").mkdir()
    (folder / "set" / "modes.csv").write_text(
        'mode,srcc,plcc\n"letters, image alone",0.5,0.25\nlogits,,0.75\n'
    )
    assert list(figures(folder)) == [
        {"images": 3, "failures": 1},
        {"set/letters, image alone srcc": 0.5, "set/letters, image alone plcc": 0.25},
        {"set/logits plcc": 0.75},
    ]
