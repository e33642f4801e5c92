"""Files and names that a stranger may have made, at every door of a batch and of a study: each ends soon in
an answer, in a failure row or in one sentence; nothing outside of its place is written. One case is one
attack, named by its door and what comes through.
"""

import io
import json
import os
import shutil
import sqlite3
import unicodedata
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from attacks import in_time, is_sentence
from PIL import Image
from scripted import (
    ScriptedClient,
    ScriptedTools,
    in_this_process,
    scripted_answers,
    scripted_services,
    study_here,
)
from test_study_report import make_rows, make_run

from agentic_iqa_local.api import IQA
from agentic_iqa_local.batch.inputs import Item, ManifestError, read_manifest
from agentic_iqa_local.batch.rows import RowsError, WriteError, write_whole
from agentic_iqa_local.batch.runs import Results, identity
from agentic_iqa_local.batch.stored_row import as_line
from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.console import Console, SafeStream
from agentic_iqa_local.cli.outputs import UsageError, result_file
from agentic_iqa_local.config import ConfigError, load_settings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.images.reading import ImageError, load_image
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.cache import ScoreCache
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.judgement.assessment import assess, file_sha256
from agentic_iqa_local.judgement.fit import Fit, FitError, read_fit
from agentic_iqa_local.studies.analysis import analyse
from agentic_iqa_local.studies.compare import Named, compare
from agentic_iqa_local.studies.datasets import DATASETS, load_dataset
from agentic_iqa_local.studies.fitting import fit_runs
from agentic_iqa_local.studies.questions import accuracy
from agentic_iqa_local.studies.run import Plan
from agentic_iqa_local.studies.store import Store, StoreError, read_run
from agentic_iqa_local.studies.study import dataset_info
from agentic_iqa_local.text import path_text

LONGEST_SENTENCE = 2500  # characters of a message that quotes names; one of all that a file holds is longer


@pytest.fixture(autouse=True)
def _in_time():
    """A case that hangs fails, in whatever call it waits."""
    with in_time():
        yield


def one_sentence(text):
    """Nothing of a message steers a terminal or begins a line of its own."""
    assert text
    assert len(text) < LONGEST_SENTENCE
    assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    return text


def refused(kind, call, *args, **options):
    with pytest.raises(kind) as caught:
        call(*args, **options)
    return one_sentence(str(caught.value))


# Every odd file at every door

DEEP = 100_000
CONTENTS = {
    "empty": b"",
    "deep-list": b"[" * DEEP + b"]" * DEEP + b"\n",
    "deep-object": b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"\n",
    "deep-inside": b'{"identity": ' + b"[" * 500 + b"]" * 500 + b"}\n",
    "list": b"[]\n",
    "list-of-pairs": b'[["identity", {}], ["a", 1]]\n',
    "null": b"null\n",
    "number": b"3\n",
    "text": b'"text"\n',
    "no-text": b"\xff\xfe\x00\n",
    "NaN": b'{"identity": NaN}\n',
    "long-number": b'{"identity": ' + b"9" * 5000 + b"}\n",
    "long-line": b'{"identity": "' + b"x" * (80 * 2**20) + b'"}\n',
}
KINDS = (
    *CONTENTS,
    "pipe",
    "folder",
    "endless",
    "kernel-log",
    "pagemap",
    "sparse",
    "dangling-link",
    "link-loop",
)


@pytest.fixture(scope="module")
def device():
    """A device that nothing can be done to: in the folder of terminals no file can be made or replaced, not
    even by root."""
    ours, theirs = os.openpty()
    yield os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)


def put(place: Path, kind: str, device: str | None = None) -> Path:
    """Something odd in the place of a file. Where that is for writing, `device` stands for those of the
    system."""
    place.unlink(missing_ok=True)
    if kind in CONTENTS:
        place.write_bytes(CONTENTS[kind])
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(3 * 10**9)
    else:
        places = {
            "endless": "/dev/zero",
            "kernel-log": "/proc/kmsg",
            "pagemap": "/proc/self/pagemap",
            "link-loop": place.name,
        }
        target = places.get(kind, "nowhere")
        place.symlink_to(device if device and target.startswith("/") else target)
    return place


def ask(**changes):
    plain = dict.fromkeys(("max_replan_iterations", "query", "choices", "reference"))
    settings = changes.pop("settings", None) or load_settings()
    return identity(settings, "cpu", **(plain | {"pipeline": "letters", "relative": False} | changes))


@pytest.fixture(scope="module")
def known():
    """What rows depend on."""
    return ask()


@pytest.fixture(scope="module")
def scripted():
    return scripted_services(
        ScriptedClient(scripted_answers()),
        ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0, "VSI": 3.0, "FSIM": 3.0}),
    )


@pytest.fixture(scope="module")
def line(scripted, picture):
    """A row of a batch."""
    return as_line(assess(picture, pipeline="letters", services=scripted))


def begun(folder: Path, known, *lines: str) -> Path:
    """A batch's file of rows, to be gone on with."""
    path = folder / "rows.jsonl"
    Results(path, known).close()
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def a_study(folder: Path, rows=None, run=None) -> Path:
    """A study's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run or make_run()))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows or []))
    return folder


def with_maps(place: Path):
    settings = load_settings()
    return settings.model_copy(update={"tools": settings.tools.model_copy(update={"maps": str(place)})})


def description(tmp_path, kind, known, line, device):
    path = begun(tmp_path, known, line)
    put(beside(path, ".run.json"), kind)
    refused(RowsError, Results, path, known, resume=True)
    assert path.read_text() == f"{line}\n"


def note(tmp_path, kind, known, line, device):
    path = begun(tmp_path, known, line)
    put(beside(path, ".in_hand.json"), kind)
    results = Results(path, known, resume=True)
    assert results.suspects == {}
    assert len(results.done) == 1
    results._rows.close()


def rows_file(tmp_path, kind, known, line, device):
    path = put(begun(tmp_path, known), kind, device)
    if kind == "empty":
        Results(path, known, resume=True).close()
        return
    size = path.stat().st_size if kind in ("sparse", *CONTENTS) else None
    refused(RowsError, Results, path, known, resume=True)
    assert size is None or path.stat().st_size == size


def study_description(tmp_path, kind, known, line, device):
    put(a_study(tmp_path) / "run.json", kind)
    refused(StoreError, read_run, tmp_path)


def study_to_go_on(tmp_path, kind, known, line, device):
    put(a_study(tmp_path) / "run.json", kind)
    refused(StoreError, Store, tmp_path, {}, known)


def study_rows(tmp_path, kind, known, line, device):
    put(a_study(tmp_path) / "rows.jsonl", kind)
    if kind == "empty":
        assert read_run(tmp_path)[1] == []
        return
    refused(StoreError, read_run, tmp_path)


def fit(tmp_path, kind, known, line, device):
    refused(FitError, read_fit, put(tmp_path / "fit.json", kind))


def fit_to_write(tmp_path, kind, known, line, device):
    place = put(tmp_path / "fit.json", kind, device)
    if kind == "empty":
        result_file("--out", place, "fit")
        return
    refused(UsageError, result_file, "--out", place, "fit")
    if kind in ("sparse", *CONTENTS):
        assert place.stat().st_size == (3 * 10**9 if kind == "sparse" else len(CONTENTS[kind]))


def maps(tmp_path, kind, known, line, device):
    refused(CalibrationError, read_map_file, put(tmp_path / "maps.yaml", kind))


def maps_of_a_run(tmp_path, kind, known, line, device):
    """Before a model is loaded the maps are hashed."""
    settings = with_maps(put(tmp_path / "maps.yaml", kind))
    if kind in CONTENTS and kind != "long-line":
        assert ask(settings=settings)["tool maps"] != known["tool maps"]
        return
    refused(UserError, ask, settings=settings)


def configuration(tmp_path, kind, known, line, device):
    place = put(tmp_path / "mine.yaml", kind)
    if kind == "empty":  # a file that says nothing is a mistake too
        assert "expected a mapping" in refused(ConfigError, load_settings, place)
        return
    refused(ConfigError, load_settings, place)


def manifest(tmp_path, kind, known, line, device):
    refused(ManifestError, read_manifest, put(tmp_path / "m.csv", kind))


def manifest_of_json(tmp_path, kind, known, line, device):
    refused(ManifestError, read_manifest, put(tmp_path / "m.jsonl", kind))


def image(tmp_path, kind, known, line, device):
    refused(ImageError, load_image, put(tmp_path / "a.png", kind))


def image_in_a_batch(tmp_path, kind, known, line, device):
    """A failure's row has the hash of what was read."""
    place = put(tmp_path / "a.png", kind)
    row = assess(place, services=scripted_services(ScriptedClient(scripted_answers()), ScriptedTools({})))
    one_sentence(row.error)
    assert row.q is None
    assert row.sha256 is None or kind in ("kernel-log", "pagemap", *CONTENTS)
    assert file_sha256(place) == row.sha256


def cache(tmp_path, kind, known, line, device):
    place = put(tmp_path / "scores.sqlite", kind, device)
    if kind in ("empty", "dangling-link"):  # SQLite makes its file
        ScoreCache(place)
        return
    refused(ToolError, ScoreCache, place)


DOORS = [
    description, note, rows_file, study_description, study_to_go_on, study_rows, fit, fit_to_write, maps, maps_of_a_run,
    configuration, manifest, manifest_of_json, image, image_in_a_batch, cache,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_odd_files(door, kind, tmp_path, known, line, device):
    door(tmp_path, kind, known, line, device)


# Values of another type

ROWS = {
    "image-list": {"image": ["a.png"]},
    "image-missing": {"image": ...},
    "reference-number": {"reference": 3},
    "reference-missing": {"reference": ...},
    "query-object": {"query": {}},
    "query-missing": {"query": ...},
    "choices-text": {"choices": "Yes|No"},
    "choices-of-lists": {"choices": [["Yes"], ["No"]]},
    "choices-missing": {"choices": ...},
    "error-number": {"error": 1},
    "error-list": {"error": ["no"]},
    "error-missing": {"error": ...},
    "q-text": {"q": "4.5"},
    "q-true": {"q": True},
    "q-NaN": {"q": float("nan")},
    "q-Infinity": {"q": float("inf")},
    "q-list": {"q": [4.5]},
    "q-long": {"q": 10**400},
    "answer-list": {"final_answer": ["A"]},
    "answer-of-no-level": {"final_answer": "Z"},
    "answer-missing-with-q": {"final_answer": None},
    "letters-list": {"p_c": [0.2] * 5},
    "letters-texts": {"p_c": {"A": "1"}},
    "letters-NaN": {"p_c": {"A": float("nan")}},
    "tools-object": {"tools": {"NIQE": 3.0}},
    "tools-raw-text": {
        "tools": [{"tool_name": "NIQE", "object_name": "Global", "distortion": "Noise", "raw_score": "3"}]
    },
    "tools-raw-NaN": {
        "tools": [
            {"tool_name": "NIQE", "object_name": "Global", "distortion": "Noise", "raw_score": float("nan")}
        ]
    },
    "evidence-text": {"evidence": "none"},
    "warnings-text": {"warnings": "none"},
    "model-list": {"model": []},
    "seconds-text": {"seconds": "1"},
    "nested": {"plan_corrections": json.loads("[" * 100 + "]" * 100)},
}


def changed(row, changes):
    return {name: value for name, value in (row | changes).items() if value is not ...}


@pytest.mark.parametrize("retry", [False, True], ids=["resume", "retry"])
@pytest.mark.parametrize("changes", ROWS.values(), ids=ROWS)
def test_rows_of_a_batch(changes, retry, tmp_path, known, line):
    """Second of two rows: the sentence names its line, and the file stays as it is."""
    path = begun(tmp_path, known, line, json.dumps(changed(json.loads(line) | {"image": "b.png"}, changes)))
    before = path.read_bytes()
    said = refused(
        RowsError, Results, path, known, resume=True, retry=[Item(Path("a.png")).key] if retry else ()
    )
    assert f"{path}, line 2: " in said
    assert path.read_bytes() == before


NOTES = {
    "counts-texts": {"in_hand": ["a"], "suspects": {"a": "many"}},
    "counts-true": {"in_hand": ["a"], "suspects": {"a": True}},
    "counts-negative": {"in_hand": ["a"], "suspects": {"a": -3}},
    "counts-fractions": {"in_hand": ["a"], "suspects": {"a": 1.5}},
    "counts-lists": {"in_hand": ["a"], "suspects": {"a": [1]}},
    "counts-null": {"in_hand": ["a"], "suspects": {"a": None}},
    "counts-NaN": {"in_hand": ["a"], "suspects": {"a": float("nan")}},
    "suspects-list": {"in_hand": ["a"], "suspects": ["a"]},
    "suspects-pairs": {"in_hand": ["a"], "suspects": [["a", 9]]},
    "suspects-missing": {"in_hand": ["a"]},
    "hands-lists": {"in_hand": [["a"]], "suspects": {}},
    "hands-objects": {"in_hand": [{}], "suspects": {}},
    "hands-text": {"in_hand": "abc", "suspects": {}},
    "hands-object": {"in_hand": {"a": 1}, "suspects": {}},
    "hands-numbers": {"in_hand": [1, 2], "suspects": {}},
    "hands-null": {"in_hand": None, "suspects": {}},
}


@pytest.mark.parametrize("content", NOTES.values(), ids=NOTES)
def test_notes_of_a_batch(content, tmp_path, known, line):
    path = begun(tmp_path, known, line)
    beside(path, ".in_hand.json").write_text(json.dumps(content))
    results = Results(path, known, resume=True)
    assert results.suspects == {}
    results.close()


DESCRIPTIONS = {
    "no-identity": {},
    "list": {"identity": []},
    "text": {"identity": "same"},
    "null": {"identity": None},
    "number": {"identity": 1},
    "empty": {"identity": {}},
    "long-key": {"identity": {"x" * 10**6: 1}},
    "long-value": {"identity": {"model": "x" * 10**6}},
    "escapes": {"identity": {"\x1b[2J": "\x1b[2J\n", "\u202e": "\udcff"}},
}


@pytest.mark.parametrize("content", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
@pytest.mark.parametrize("of", ["batch", "study"])
def test_descriptions_of_runs(of, content, tmp_path, known, line):
    if of == "batch":
        path = begun(tmp_path, known, line)
        beside(path, ".run.json").write_text(json.dumps(content))
        refused(RowsError, Results, path, known, resume=True)
        assert path.read_text() == f"{line}\n"
    else:
        (a_study(tmp_path) / "run.json").write_text(json.dumps(content))
        refused(StoreError, Store, tmp_path, {}, known)


VIEW = {"A": -1.0, "B": -1.0, "C": -1.0, "D": -3.0, "E": -3.0}


def with_view(**changes):
    view = changed({"forward": VIEW, "reversed": VIEW, "generated": "A", "off_letters": 0.0}, changes)
    return {"reads": {"all_evidence": {"views": [view]}}}


STUDY_ROWS = {
    "key-list": {"key": ["a"]},
    "key-missing": {"key": ...},
    "key-number": {"key": 3},
    "group-list": {"group": ["a"]},
    "group-missing": {"group": ...},
    "split-number": {"split": 3},
    "mos-text": {"mos": "high"},
    "mos-NaN": {"mos": float("nan")},
    "mos-null": {"mos": None},
    "mos-list": {"mos": [3.0]},
    "error-list": {"error": ["a"]},
    "image-list": {"image": ["a"]},
    "letter-missing": with_view(forward={"A": -1.0}),
    "letter-unknown": with_view(forward=VIEW | {"F": -1.0}),
    "letter-text": with_view(forward=VIEW | {"A": "-1"}),
    "letter-null": with_view(reversed=VIEW | {"A": None}),
    "letter-Infinity": with_view(forward=VIEW | {"A": float("inf")}),
    "letters-list": with_view(forward=[-1.0] * 5),
    "reversed-missing": with_view(reversed=...),
    "written-unknown": with_view(generated="Z"),
    "written-list": with_view(generated=["A"]),
    "written-missing": with_view(generated=...),
    "reads-list": {"reads": []},
    "reads-null": {"reads": None},
    "read-list": {"reads": {"all_evidence": []}},
    "read-of-no-name": {"reads": {"a/b/c": {"views": []}}},
    "views-object": {"reads": {"all_evidence": {"views": {}}}},
    "tools-list": {"tools": ["VSI"]},
    "tool-text": {"tools": {"VSI": "0.9"}},
    "tool-raw-text": {"tools": {"VSI": {"raw": "0.9", "normalized": 3.0, "seconds": 0.1}}},
    "tool-raw-NaN": {"tools": {"VSI": {"raw": float("nan"), "normalized": 3.0, "seconds": 0.1}}},
    "tool-seconds-text": {"tools": {"VSI": {"raw": 0.9, "normalized": 3.0, "seconds": "0.1"}}},
    "agent-list": {"agent": []},
    "agent-text": {"agent": "C"},
    "fusion-text": {"agent": {"fusion": "3.2"}},
    "fusion-q-text": {"agent": {"fusion": {"q": "3.2"}}},
    "fusion-q-list": {"agent": {"fusion": {"q": [3.2]}}},
    "fusion-eta-text": {"agent": {"fusion": {"q": 3.2, "eta": "1"}}},
    "fusion-eta-zero": {"agent": {"fusion": {"q": 3.2, "eta": 0}}},
    "fusion-eta-huge": {"agent": {"fusion": {"q": 3.2, "eta": 1e300}}},
    "evidence-list": {"evidence": []},
    "evidence-text": {"evidence": "none"},
    "evidence-logs-text": {"evidence": {"tool_logs": "none"}},
    "evidence-score-text": {"evidence": {"quality_scores": {"Global": {"Noise": ["VSI", "high"]}}}},
    "cost-list": {"cost": []},
    "cost-text": {"cost": {"agent": {"seconds": "1"}}},
    "cost-number": {"cost": {"agent": 1}},
    "distortion-list": {"distortion": ["Noise"]},
    "subset-object": {"subset": {}},
    "level-text": {"level": "high"},
    "nested": {"plan": json.loads("[" * 100 + "]" * 100)},
}


@pytest.mark.parametrize("changes", STUDY_ROWS.values(), ids=STUDY_ROWS)
def test_rows_of_a_study(changes, tmp_path):
    rows = make_rows(3)
    folder = a_study(tmp_path, [rows[0], changed(rows[1], changes), rows[2]])
    said = refused(StoreError, read_run, folder)
    assert f"{folder / 'rows.jsonl'}, line 2: " in said


QUESTION = {
    "key": "a.png: Sharp? (Yes / No)", "image": "a.png", "reference": None, "question": "Sharp?", "choices": ["Yes", "No"],
    "answer": 0, "answered": "A", "probabilities": [0.7, 0.3], "task": None, "question_type": None,
}  # fmt: skip
QUESTIONS = {
    "choices-text": {"choices": "Yes"},
    "choices-numbers": {"choices": [1, 2]},
    "answer-text": {"answer": "Yes"},
    "answer-too-large": {"answer": 7},
    "answer-negative": {"answer": -1},
    "answered-list": {"answered": ["A"]},
    "probabilities-text": {"probabilities": "high"},
    "probabilities-of-texts": {"probabilities": ["0.7", "0.3"]},
    "probabilities-too-few": {"probabilities": [1.0]},
    "probabilities-missing": {"probabilities": ...},
    "task-list": {"task": ["a"]},
    "task-number": {"task": 3},
}


@pytest.mark.parametrize("changes", QUESTIONS.values(), ids=QUESTIONS)
def test_rows_of_a_study_of_questions(changes, tmp_path):
    assert accuracy(read_run(a_study(tmp_path / "right", [QUESTION]))[1])[0]["accuracy"] == 1.0
    refused(
        StoreError,
        read_run,
        a_study(tmp_path / "wrong", [QUESTION, changed(QUESTION, {"key": "b"} | changes)]),
    )


STUDY_RUNS = {
    "dataset-list": {"dataset": []},
    "dataset-text": {"dataset": "tid2013"},
    "dataset-missing": {"dataset": ...},
    "dataset-empty": {"dataset": {}},
    "key-list": {"dataset": {"key": ["tid2013"]}},
    "key-unknown": {"dataset": {"key": "\x1b[2J"}},
    "kind-unknown": {"dataset": {"key": "tid2013", "kind": "XX"}},
    "higher-text": {"dataset": {"key": "tid2013", "higher_is_better": "yes"}},
    "low-text": {"dataset": {"key": "tid2013", "low": "0"}},
    "title-list": {"dataset": {"key": "tid2013", "title": ["a"]}},
    "missing-text": {"dataset": {"key": "tid2013", "missing": "abc"}},
    "missing-number": {"dataset": {"key": "tid2013", "missing": 3}},
    "left-out-list": {"dataset": {"key": "tid2013", "left_out": [1]}},
    "images-text": {"dataset": {"key": "tid2013", "images": "many"}},
    "model-list": {"model": []},
    "model-text": {"model": "embedded"},
    "model-without-name": {"model": {}},
    "model-name-list": {"model": {"name": ["a"]}},
    "notice-number": {"model": {"name": "a", "notice": 3}},
    "fusion-list": {"fusion": []},
    "fusion-unknown": {"fusion": {"beta": 1}},
    "fusion-text": {"fusion": {"eta": "high"}},
    "tools-list": {"tools": []},
    "tools-without-lists": {"tools": {}},
    "tools-of-numbers": {"tools": {"full_reference": [1], "no_reference": [2]}},
    "maps-list": {"maps": []},
    "maps-of-lists": {"maps": {"VSI": []}},
    "identity-list": {"identity": []},
    "identity-without-reads": {"identity": {"model": "m"}},
    "query-list": {"identity": {"model": "m", "reads": {"query": ["a"]}}},
    "model-hash-list": {"identity": {"model": ["m"], "reads": {"query": "a"}}},
    "git-number": {"git": 3},
    "versions-list": {"versions": []},
}


@pytest.mark.parametrize("changes", STUDY_RUNS.values(), ids=STUDY_RUNS)
def test_descriptions_of_a_study(changes, tmp_path):
    """Whatever reads them: a report, a comparison, a fit."""
    folder = a_study(tmp_path / "a", make_rows(60), changed(make_run(), changes))
    right = a_study(tmp_path / "b", make_rows(60))

    def all_of_it():
        run, rows = read_run(folder)
        analyse(run, rows, dataset_info(run), draws=10)
        compare([Named("b", *read_run(right)), Named("a", run, rows)], modes=["logits"], draws=10)
        fit_runs([folder], "srcc", split=None, share=0.5)

    refused(UserError, all_of_it)


FITS = {
    "temperature-text": {"temperature": "2"},
    "temperature-NaN": {"temperature": float("nan")},
    "temperature-true": {"temperature": True},
    "eta-null": {"eta": None},
    "eta-Infinity": {"eta": float("inf")},
    "eta-missing": {"eta": ...},
    "eta-long": {"eta": 10**400},
    "objective-unknown": {"objective": "\x1b[2J"},
    "objective-list": {"objective": ["srcc"]},
    "before-text": {"before": "0.5"},
    "dataset-list": {"dataset": []},
    "model-number": {"model": 1},
    "keys-text": {"keys": "abc"},
    "keys-lists": {"keys": [["a"]]},
    "keys-null": {"keys": None},
    "groups-null": {"groups": None},
    "groups-object": {"groups": {"a": 1}},
    "unknown-part": {"\x1b[2J": 1},
    "format-text": {"format": "2"},
    "format-list": {"format": [2]},
    "format-true": {"format": True},
    "first-format-of-texts": {"format": 1, "before": "0.5"},
}


@pytest.mark.parametrize("changes", FITS.values(), ids=FITS)
def test_fits(changes, tmp_path):
    place = tmp_path / "fit.json"
    place.write_text(Fit(2.0, 0.5, "srcc", 0.71, 0.73, "koniq10k", "M", ("a.jpg",)).to_json())
    assert read_fit(place).temperature == 2.0
    place.write_text(json.dumps(changed(json.loads(place.read_text()), changes)))
    refused(FitError, read_fit, place)


MAP = {
    "tool": "NIQE", "b1": -4.0, "b2": 0.5, "b3": 5.0, "b4": 0.0, "b5": 3.0, "domain": [0.0, 20.0], "lower_better": True,
    "source": "own", "fitted_on": "own",
}  # fmt: skip
LAUGHS = "a0: &a0 [lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
MAPS = {
    "entry-number": yaml.dump({"maps": [1]}),
    "entry-list": yaml.dump({"maps": [["tool"]]}),
    "entry-text": yaml.dump({"maps": ["NIQE"]}),
    "maps-object": yaml.dump({"maps": {"NIQE": MAP}}),
    "maps-text": yaml.dump({"maps": "NIQE"}),
    "tool-list": yaml.dump({"maps": [MAP | {"tool": ["NIQE"]}]}),
    "tool-number": yaml.dump({"maps": [MAP | {"tool": 3}]}),
    "number-as-text": yaml.dump({"maps": [MAP | {"b1": "many"}]}),
    "NaN": yaml.dump({"maps": [MAP | {"b1": float("nan")}]}),
    "Infinity": yaml.dump({"maps": [MAP | {"domain": [0.0, float("inf")]}]}),
    "long-number": yaml.dump({"maps": [MAP | {"b1": 10**400}]}),
    "overflow": yaml.dump({"maps": [MAP | {"b1": 1e308, "b2": 1e308, "b4": 1e308}]}),
    "domain-of-three": yaml.dump({"maps": [MAP | {"domain": [0, 1, 2]}]}),
    "domain-text": yaml.dump({"maps": [MAP | {"domain": "01"}]}),
    "unknown-part": yaml.dump({"maps": [MAP | {"\x1b[2J": 1}]}),
    "key-of-another-type": yaml.dump({"maps": [MAP | {3: 1}]}),
    "status-list": yaml.dump({"maps": [MAP | {"status": ["rejected"]}]}),
    "laughs": LAUGHS + "maps: [*a39]\n",
    "laughs-in-an-entry": LAUGHS + f"maps: [{yaml.dump(MAP | {'notes': 'N'}, default_flow_style=True).strip().replace('notes: N', 'notes: *a39')}]\n",
    "inside-itself": "maps: &a [*a]\n",
    "entry-inside-itself": "maps: [&a {tool: *a}]\n",
    "key-twice": "maps: []\nmaps: [1]\n",
    "merge-key": "a: &a {tool: NIQE}\nmaps: [{<<: *a}]\n",
    "object": "maps: !!python/object/apply:os.getcwd []\n",
    "deep-but-short": "maps: " + "[" * 100 + "]" * 100,
}  # fmt: skip


@pytest.mark.parametrize("content", MAPS.values(), ids=MAPS)
def test_maps(content, tmp_path):
    place = tmp_path / "maps.yaml"
    place.write_text(yaml.dump({"maps": [MAP]}))
    assert list(read_map_file(place)[0]) == ["NIQE"]
    place.write_text(content)
    refused(CalibrationError, read_map_file, place)


CONFIGURATIONS = {
    "laughs": LAUGHS,
    "laughs-in-a-list": LAUGHS + "tools: {no_reference: *a39}\n",
    "inside-itself": "tools: &a {no_reference: *a}\n",
    "deep-but-short": "tools: " + "[" * 100 + "]" * 100,
    "key-with-escape": '"\\e[2J": 1\n',
    "value-with-escape": 'fusion: {mode: "\\e[2J"}\n',
    "many-keys": "".join(f"k{i}: 1\n" for i in range(5000)),
}


@pytest.mark.parametrize("content", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_configurations(content, tmp_path):
    place = tmp_path / "mine.yaml"
    place.write_text(content)
    refused(ConfigError, load_settings, place)


MANIFESTS = {
    "columns-twice": (
        "m.csv",
        "image," + ",".join([*map(str, range(10**6)), "7\x1b", "7\x1b"]) + "\na.png\n",
    ),
    "long-name": ("m.jsonl", json.dumps({"image": "x\x1b" * 10**6}) + "\n"),
    "cells": ("m.csv", "image\na.png" + ",x" * 10**6 + "\n"),
    "cell": ("m.csv", "image\n" + "x" * 10**7 + "\n"),
    "open-quote": ("m.csv", 'image\n"' + "x\n" * 10**6),
    "NUL": ("m.csv", "image\na\0.png\n"),
    "column-with-escape": ("m.csv", "image,\x1b[2J,\x1b[2J\na.png,1,2\n"),
    "name-with-escape": ("m.csv", "image\n\x1b[2J.png\n"),
    "name-with-line": ("m.csv", 'image\n"a\nb.png"\n'),
    "deep": ("m.jsonl", '{"image": ' + "[" * 100 + "]" * 100 + "}\n"),
    "keys": ("m.jsonl", json.dumps({f"k{i}\x1b": 1 for i in range(10**5)}) + "\n"),
    "many-bad-lines": ("m.jsonl", "{\n" * 10**5),
    "folder-as-image": ("m.csv", "image\n.\n"),
}


@pytest.mark.parametrize(("name", "content"), MANIFESTS.values(), ids=MANIFESTS)
def test_manifests(name, content, tmp_path):
    (tmp_path / "a.png").touch()
    (tmp_path / name).write_text(content)
    refused(ManifestError, read_manifest, tmp_path / name)


def test_a_study_cannot_note_its_scale_in_a_description_of_something_else(tmp_path):
    store = Store(tmp_path / "run", {"dataset": {"key": "manifest"}}, {})
    info = replace(DATASETS["manifest"].info, low=1.0, high=5.0, scale="absolute categories")
    for content in CONTENTS.values():
        (tmp_path / "run" / "run.json").write_bytes(content)
        refused(StoreError, store.tell_scale, info)
    store.close()


def test_a_manifest_of_a_million_columns_is_read(tmp_path, caplog):
    """What is not used is told in one line."""
    (tmp_path / "a.png").touch()
    (tmp_path / "m.csv").write_text(
        "image," + ",".join(f"\x1b{i}" for i in range(10**6)) + "\na.png" + ",x" * 10**6 + "\n"
    )
    assert read_manifest(tmp_path / "m.csv") == [Item(tmp_path / "a.png")]
    one_sentence(caplog.messages[0])


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), "high", b"\0", None], ids=str)
def test_scores_in_a_cache(value, tmp_path):
    """SQLite stores whatever it is given, in a column of numbers too."""
    ScoreCache(tmp_path / "scores.sqlite").put("known", 1.5)
    database = sqlite3.connect(tmp_path / "scores.sqlite")
    if value is not None:
        database.execute("INSERT INTO scores VALUES ('bad', ?)", (value,))
        database.commit()
    found = ScoreCache(tmp_path / "scores.sqlite")
    assert found.get("bad") is None
    assert found.get("known") == 1.5


@pytest.mark.parametrize("raw", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_scores_that_are_not_finite_are_not_kept(raw, tmp_path):
    cache = ScoreCache(tmp_path / "scores.sqlite")
    refused(ToolError, cache.put, "bad", raw)
    assert cache.get("bad") is None


# Links


@pytest.fixture
def elsewhere(tmp_path):
    """A file outside of a batch's folder that nothing may write."""
    place = tmp_path / "elsewhere" / "own.txt"
    place.parent.mkdir()
    place.write_text("mine")
    yield place
    assert place.read_text() == "mine"
    assert [file.name for file in place.parent.iterdir()] == ["own.txt"]


def plant(place: Path, kind: str, elsewhere: Path) -> None:
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "hard-link":
        place.hardlink_to(elsewhere)
    elif kind == "dangling-link":
        place.symlink_to(elsewhere.parent / "new.txt")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()


PLANTED = ("link", "hard-link", "dangling-link", "pipe", "folder")


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize(
    "name", ["rows.jsonl.run.json.partial", "rows.jsonl.in_hand.json.partial", "rows.jsonl.in_hand.json"]
)
def test_what_lies_where_a_batch_writes_is_not_written_through(name, kind, tmp_path, known, elsewhere):
    plant(tmp_path / name, kind, elsewhere)
    if kind == "folder":
        with (
            closing(Results(tmp_path / "rows.jsonl", known)) if "in_hand" in name else nullcontext()
        ) as results:
            said = refused(
                WriteError,
                lambda: next(
                    (results or Results(tmp_path / "rows.jsonl", known)).begun([Item(Path("a.png"))])
                ),
            )
        assert name.removesuffix(".partial") in said
        return
    results = Results(tmp_path / "rows.jsonl", known)
    next(results.begun([Item(Path("a.png"))]))
    results.close()


@pytest.mark.parametrize("kind", PLANTED)
def test_what_lies_where_rows_are_rewritten_is_not_written_through(kind, tmp_path, known, line, elsewhere):
    failed = json.dumps(json.loads(line) | {"image": "a.png", "error": "no"})
    path = begun(tmp_path, known, line, failed)
    plant(beside(path, ".partial"), kind, elsewhere)
    options = {"resume": True, "retry": [Item(Path("a.png")).key]}
    if kind == "folder":
        refused(WriteError, Results, path, known, **options)
        assert path.read_text() == f"{line}\n{failed}\n"
        return
    Results(path, known, **options).close()
    assert path.read_text() == f"{line}\n"


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("name", ["table.csv.partial", "fit.json.partial", "run.json.partial"])
def test_what_lies_where_a_table_a_fit_or_a_study_writes_is_not_written_through(
    name, kind, tmp_path, known, elsewhere
):
    place = tmp_path / "run" / name.removesuffix(".partial")
    place.parent.mkdir()
    plant(place.parent / name, kind, elsewhere)

    def write():
        if place.name == "run.json":
            Store(place.parent, {}, known).close()
        elif place.name == "fit.json":
            place.write_text(Fit(2.0, 0.5, "srcc", 0.71, 0.73, "koniq10k", "M", ("a.jpg",)).to_json())
        else:
            write_whole(place, "a,b")

    if kind == "folder":
        refused(WriteError, write)
    else:
        write()
        assert place.is_file()


def test_rows_through_a_link_are_rewritten_where_they_lie(tmp_path, known, line):
    """What belongs to the rows lies beside them, and the link stays one."""
    there, link = tmp_path / "there", tmp_path / "link.jsonl"
    there.mkdir()
    path = begun(there, known, line, json.dumps(json.loads(line) | {"image": "a.png", "error": "no"}))
    link.symlink_to(path)
    results = Results(link, known, resume=True, retry=[Item(Path("a.png")).key])
    next(results.begun([Item(Path("a.png"))]))
    assert link.is_symlink()
    assert path.read_text() == f"{line}\n"
    assert sorted(file.name for file in there.iterdir()) == [
        "rows.jsonl",
        "rows.jsonl.in_hand.json",
        "rows.jsonl.run.json",
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.jsonl", "there"]
    results.close()


def test_a_link_that_is_turned_to_another_file_meanwhile_changes_nothing(
    tmp_path, known, scripted, picture, elsewhere
):
    path, link = tmp_path / "rows.jsonl", tmp_path / "link.jsonl"
    path.touch()
    link.symlink_to(path)
    results = Results(link, known)
    link.unlink()
    link.symlink_to(elsewhere)
    results.append(assess(picture, services=scripted))
    results.close()
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("target", ["nowhere", "link.jsonl", ".", "device", "pipe"])
@pytest.mark.parametrize("option", ["--out", "--csv"])
def test_links_for_results_that_lead_to_no_file(option, target, tmp_path, command, picture, device):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.jsonl").symlink_to(device if target == "device" else target)
    before = sorted(os.listdir(tmp_path))
    done = command(picture, option, tmp_path / "link.jsonl")
    assert done.status == 2
    assert done.said.startswith(f"error: {option} ")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("place", ["device", "/proc/self/fd", "pipe", "."])
@pytest.mark.parametrize("option", ["--out", "--csv"])
def test_places_that_are_no_files(option, place, command, picture, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    done = command(picture, option, device if place == "device" else place)
    assert done.status == 2
    assert done.said.startswith(f"error: {option} ")


def test_a_table_through_a_link_keeps_the_link(tmp_path, command, picture):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "table.csv").touch()
    (tmp_path / "link.csv").symlink_to("there/table.csv")
    assert command(picture, "--csv", tmp_path / "link.csv").status == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "there" / "table.csv").read_bytes().startswith(b"\xef\xbb\xbfimage,")
    assert os.listdir(tmp_path / "there") == ["table.csv"]


def test_rows_and_their_table_are_two_files(tmp_path, command, picture):
    (tmp_path / "rows").touch()
    (tmp_path / "link").symlink_to("rows")
    for table in ("rows", "link"):
        done = command(picture, "--out", tmp_path / "rows", "--csv", tmp_path / table)
        assert done.status == 2
        assert "expected a file of its own" in done.said


@pytest.mark.parametrize("name", ["rows.jsonl", "run.json"])
@pytest.mark.parametrize("door", ["write", "read"])
def test_a_studys_files_are_its_own(door, name, tmp_path, known, elsewhere):
    folder = a_study(tmp_path / "run")
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    said = refused(StoreError, *([Store, folder, {}, known] if door == "write" else [read_run, folder]))
    assert "link" in said
    assert (tmp_path / name).read_bytes() == before


def test_a_link_as_an_image_is_that_image(tmp_path, picture, scripted):
    (tmp_path / "link.png").symlink_to(picture)
    assert assess(tmp_path / "link.png", services=scripted).error is None


# Rows that are replaced while they are written


@pytest.mark.parametrize("how", ["moved", "deleted", "another", "link"])
def test_rows_whose_name_another_file_takes(how, tmp_path, command, picture, monkeypatch, elsewhere):
    """An editor or a log rotation: the run ends and does not claim that its rows are there."""
    path, append = tmp_path / "rows.jsonl", Results.append
    images = []
    for i in range(6):
        images.append(tmp_path / f"{i}.png")
        images[-1].write_bytes(Path(picture).read_bytes())
    calls = []

    def replaced(results, row, line=None):
        calls.append(row)
        if len(calls) == 3:
            if how != "deleted":
                path.rename(tmp_path / "rows.jsonl.1")
            else:
                path.unlink()
            if how == "another":
                path.write_text("")
            elif how == "link":
                path.symlink_to(elsewhere)
        append(results, row)

    monkeypatch.setattr(Results, "append", replaced)
    done = command(*images, "--out", path)
    assert done.status == 1
    assert "error: " in done.said
    assert str(path) in done.said
    assert len(calls) == 3
    if how != "deleted":
        assert str(tmp_path / "rows.jsonl.1") in done.said
        assert len((tmp_path / "rows.jsonl.1").read_text().splitlines()) == 3
        (tmp_path / "rows.jsonl.1").replace(path)
        monkeypatch.setattr(Results, "append", append)
        assert command(*images, "--out", path, "--resume").status == 0
        assert [json.loads(line)["image"] for line in path.read_text().splitlines()] == list(map(str, images))


def test_rows_that_go_after_the_last_are_no_success_either(tmp_path, command, picture, monkeypatch):
    path, close = tmp_path / "rows.jsonl", Results.close

    def replaced(results, **options):
        close(results, **options)
        path.rename(tmp_path / "rows.jsonl.1")
        path.write_text("")

    monkeypatch.setattr(Results, "close", replaced)
    done = command(picture, "--out", path)
    assert done.status == 1
    assert str(path) in done.said


# Names

NAMES = {
    "line": b"a\nb",
    "tab": b"a\tb",
    "return": b"a\rb",
    "escape": b"\x1b[2Ja",
    "C1": "\x9b2Ja".encode(),
    "bidi": "a\u202egnp".encode(),
    "zero-width": "a\u200bb".encode(),
    "line-separator": "a\u2028b".encode(),
    "no-UTF-8": b"a\xff",
    "no-UTF-8-escape": b"\x9b2J\xff",
    "surrogate": b"\xed\xa0\x80",
    "255-bytes": b"a" * 251,
    "dash": b"-a",
    "option": b"--out",
    "home": b"~",
    "quotes": b"'\"`$(id)",
    "percent": b"%s%n%(picture)s",
    "braces": b"{}{0.__class__}",
    "markup": b"[red]a<b>",
    "star": b"a*b[c]?",
    "blanks": b"  a b  ",
    "backslash": rb"a\xff",
    "formula": b"=1+1",
    "semicolon": b"a;b&c|d",
}


@pytest.fixture
def command(monkeypatch, capsys):
    """`command(*words)`: what assess.py does with them, in this process, with a scripted model and tools."""

    class Done:
        def __init__(self, words):
            results = SafeStream(io.StringIO())
            monkeypatch.setattr(assess_command, "Console", lambda: Console(results))
            words = [os.fsdecode(word) for word in words]
            monkeypatch.setattr("sys.argv", ["assess.py", *words])
            monkeypatch.setattr("sys.orig_argv", ["python", "assess.py", *words])
            try:
                self.status = assess_command.main(["--cpu", "--pipeline", "letters", *words])
            except SystemExit as error:
                self.status = error.code
            captured = capsys.readouterr()
            self.told, self.said = results.getvalue() + captured.out, captured.err
            for char in set(self.told + self.said) - {"\n"}:
                assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"), repr(char)
            assert "Traceback" not in self.said

        @property
        def rows(self):
            return [json.loads(line) for line in self.told.splitlines()]

    services = scripted_services(
        ScriptedClient(scripted_answers()),
        ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0, "VSI": 3.0, "FSIM": 3.0}),
    )
    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: services)
    in_this_process(monkeypatch)
    return lambda *words: Done(words)


@pytest.fixture
def named(tmp_path, monkeypatch, picture):
    """`named(kind, suffix)`: a path with such a name, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return lambda kind, suffix: Path(
        os.fsdecode(os.fsencode(tmp_path) + b"/" + NAMES[kind][: 255 - len(suffix)] + suffix.encode())
    )


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("role", ["image", "reference"])
def test_names_of_pictures(role, kind, named, command, picture):
    place = named(kind, ".png")
    place.write_bytes(Path(picture).read_bytes())
    other = place.with_name("other.png")
    Image.fromarray(255 - np.asarray(Image.open(picture))).save(other)
    done = command(place) if role == "image" else command(other, "--reference", place)
    assert done.status == 0
    (row,) = done.rows
    assert row[role] == path_text(place)
    assert row["error"] is None
    assert 1 <= row["q"] <= 5


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_pictures_that_are_none_or_not_there(kind, named, command):
    place = named(kind, ".png")
    done = command(place)
    assert done.status == 2
    assert done.said.startswith("error: ")
    place.write_bytes(b"no picture")
    done = command(place)
    assert done.status == 1
    (row,) = done.rows
    assert row["q"] is None
    one_sentence(row["error"])


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_rows_and_tables(kind, named, command, picture):
    """Gone on with, too: what the run is described by holds the command line."""
    rows, table = (named(kind, suffix) for suffix in (".jsonl", ".csv"))
    done = command(picture, "--out", rows, "--csv", table)
    if kind == "255-bytes":  # there is no room for the names of what lies beside it
        assert done.status == 2
        assert "expected a name that leaves room" in done.said
        return
    assert done.status == 0
    assert command(picture, "--out", rows, "--csv", table, "--resume").status == 0
    assert json.loads(rows.read_text())["image"] == picture
    assert table.read_text("utf-8-sig").startswith("image,")


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_manifests(kind, named, command, picture):
    """The manifest's own name, and in it that of a picture where UTF-8 can write it."""
    place, manifest = named(kind, ".png"), named(kind, ".jsonl")
    place.write_bytes(Path(picture).read_bytes())
    try:
        name = place.name.encode().decode()
    except UnicodeEncodeError:
        name = picture
    manifest.write_text(json.dumps({"image": name, "unused": 1}))
    done = command("--manifest", manifest)
    assert done.status == 0
    (row,) = done.rows
    assert row["error"] is None
    (manifest.with_suffix(".txt")).touch()
    assert command("--manifest", manifest.with_suffix(".txt")).status == 2


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_configurations_and_fits(kind, named, command, picture):
    configuration, fit, maps = (named(kind, suffix) for suffix in (".yaml", ".json", ".maps"))
    assert command(picture, "--config", configuration).status == 2
    configuration.write_text("fusion: {eta: 2.0}\n")
    done = command(picture, "--config", configuration)
    assert done.status == 0
    assert len(done.rows) == 1
    configuration.write_text("fusion: {eta: high}\n")
    assert command(picture, "--config", configuration).status == 2
    fit.write_text("{}")
    done = command(picture, "--fit", fit)
    assert done.status == 2
    assert done.said.startswith("error: fit: ")
    maps.write_text("maps: 3\n")
    refused(CalibrationError, read_map_file, maps)


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_folders_of_pictures(kind, named, command, picture):
    folder = named(kind, "_")
    folder.mkdir()
    (folder / "a.png").write_bytes(Path(picture).read_bytes())
    (folder / "notes.txt").touch()
    done = command(folder)
    assert done.status == 0
    (row,) = done.rows
    assert row["image"] == path_text(folder / "a.png")


@pytest.mark.parametrize(
    "text", ["\udcff", "\x1b[2J Is it sharp?", "%s {} {0}", "'; $(id) '", "\u202eIs it sharp?"], ids=ascii
)
@pytest.mark.parametrize(
    "option", ["--query", "--choices", "--config", "--model", "--models", "--background", "--gpu"]
)
def test_words_of_options(option, text, command, picture, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path))  # an option sets it for the process
    done = command(picture, option, text, *(["other"] if option == "--choices" else []))
    assert done.status in (0, 2)
    assert done.status == 0 or done.said.startswith("error: ")


def test_two_files_whose_names_print_alike_have_two_rows(tmp_path, command, picture):
    for name in (b"a\xff.png", rb"a\xff.png", rb"a\\xff.png"):
        (tmp_path / os.fsdecode(name)).write_bytes(Path(picture).read_bytes())
    path = tmp_path / "rows.jsonl"
    assert command(tmp_path, "--out", path).status == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["image"] for row in rows}) == 3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    assert command(tmp_path, "--out", path, "--resume").status == 0
    assert sorted(json.loads(line)["image"] for line in path.read_text().splitlines()) == sorted(
        row["image"] for row in rows
    )


def test_names_that_are_no_UTF_8_and_print_alike_in_a_study(tmp_path, scripted, picture, monkeypatch):
    folder = tmp_path / os.fsdecode(b"set\xff")
    folder.mkdir()
    (folder / "scores.csv").write_text("image,mos\na.png,3\n")
    (folder / "a.png").write_bytes(Path(picture).read_bytes())
    dataset = load_dataset(folder / "scores.csv")
    (item,) = dataset.items
    others = [os.fsdecode(name) for name in (b"a\xff.png", rb"a\xff.png")]
    items = [
        type(item)(**{**vars(item), "image": folder / name, "reference": folder / name}) for name in others
    ]
    dataset = type(dataset)(**{**vars(dataset), "items": (item, *items)})
    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", lambda *_, **__: {})
    monkeypatch.setattr("agentic_iqa_local.studies.run.describe", lambda *_: {})
    assert list(study_here(dataset, scripted, Plan(), tmp_path / "run"))[-1] == 3
    rows = read_run(tmp_path / "run")[1]
    assert [row["key"] for row in rows] == ["a.png", r"a\xff.png", r"a\\xff.png"]
    assert [row["image"] for row in rows] == [path_text(i.image) for i in dataset.items]
    assert list(study_here(dataset, scripted, Plan(), tmp_path / "run")) == [3]


def test_a_large_photograph_whose_name_is_no_UTF_8(tmp_path, command, monkeypatch):
    """Warnings quote its name; it is assessed as others are, and the batch goes on with it and after it."""
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/large\xff.png"))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (2400, 2400, 3), dtype=np.uint8)).save(place)
    other = tmp_path / "other.png"
    Image.open(place).crop((0, 0, 64, 64)).save(other)
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4_000_000)  # Pillow warns above, in words of its own
    for _ in range(2):
        assert command(place, other, "--out", path, *(["--resume"] if path.exists() else [])).status == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["image"] for row in rows] == [path_text(place), str(other)]
    assert all(1 <= row["q"] <= 5 for row in rows)


def test_whoever_warns_of_a_picture_may_quote_its_name(tmp_path, command, picture, monkeypatch, scripted):
    """A warning and a failure of any part: one line each, in a row that JSON can hold."""
    from agentic_iqa_local.nodes.workbench import OpenImages

    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\x1b[2J\xff.png"))
    place.write_bytes(Path(picture).read_bytes())
    real = OpenImages.views

    def warns(images, role):
        images.warn(f"{images.image.path}\nis large")
        images.note(f"{images.image.path}\x9bis noted")
        return real(images, role)

    monkeypatch.setattr(OpenImages, "views", warns)
    (row,) = command(place).rows
    assert row["error"] is None
    assert [one_sentence(line) for line in row["warnings"]][:2] == [
        f"{tmp_path}/\\u001b[2J\\xff.png\\nis large", f"{tmp_path}/\\u001b[2J\\xff.png\\u009bis noted",
    ]  # fmt: skip

    def fails(images, role):
        raise ValueError(f"{images.image.path}\nis odd")

    monkeypatch.setattr(OpenImages, "views", fails)
    done = command(place)
    assert done.status == 1
    assert "is odd" in one_sentence(done.rows[0]["error"])


def test_a_model_whose_folder_is_no_UTF_8(tmp_path, command, picture, monkeypatch):
    """What a row records of the model is text too."""
    monkeypatch.setattr(
        ScriptedClient, "describe", lambda _: {"name": "m\udcff\x1b", "notice": None, "parts": ["\udcfe"]}
    )
    done = command(picture, "--out", tmp_path / "rows.jsonl")
    assert done.status == 0
    assert json.loads((tmp_path / "rows.jsonl").read_text())["model"]["name"] == "m\\xff\\u001b"


# The environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AGENTIC_IQA_MODELS", "/proc/version"),
        ("AGENTIC_IQA_MODELS", "/nowhere/\udcff"),
        ("AGENTIC_IQA_MODELS", "a\nb\x1b[2J"),
        ("AGENTIC_IQA_SERVER_KEY", "a b\n"),
        ("HOME", None),
        ("HOME", "/nowhere"),
        ("TMPDIR", "/nowhere"),
        ("LANG", "C"),
        ("LC_ALL", "POSIX"),
        ("CUDA_VISIBLE_DEVICES", "nonsense\x1b"),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("COLUMNS", "0"),
        ("COLUMNS", "many"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_variables_of_the_environment(name, value, command, picture, monkeypatch, tmp_path):
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, value)
    done = command(picture, "--out", tmp_path / "rows.jsonl", "--csv", tmp_path / "table.csv")
    assert done.status in (0, 2)
    assert done.status == 0 or done.said.startswith("error: ")
    assert done.status == 2 or 1 <= json.loads((tmp_path / "rows.jsonl").read_text())["q"] <= 5


@pytest.mark.parametrize(
    "table", ["rows.jsonl", "rows.jsonl.run.json", "rows.jsonl.in_hand.json", "m.csv", "a.png", "link.csv"]
)
def test_a_table_that_would_replace_what_is_used(table, command, tmp_path, monkeypatch, picture):
    monkeypatch.chdir(tmp_path)
    shutil.copy(picture, "a.png")
    Path("m.csv").write_text("image\na.png\n")
    Path("link.csv").symlink_to("a.png")
    used = {file: Path(file).read_bytes() for file in ("a.png", "m.csv")}
    done = command("--manifest", "m.csv", "--out", "rows.jsonl", "--csv", table)
    assert done.status == 2
    assert "expected a" in done.said or "a table is CSV" in done.said
    assert {file: Path(file).read_bytes() for file in used} == used


@pytest.mark.parametrize("place", ["x" * 5000, "a\0b", "folder", "loop"])
def test_a_cache_that_no_file_can_be(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    with pytest.raises(ToolError) as caught:
        ScoreCache(place)
    assert is_sentence(str(caught.value))
    assert "tools.cache" in str(caught.value)


@pytest.mark.parametrize("value", [5, ["x"], b"x", {}], ids=repr)
@pytest.mark.parametrize("option", ["engine", "mode", "model", "config", "models", "fit", "background"])
def test_an_option_of_another_type(option, value):
    if not value:
        value = {"a": 1}
    with pytest.raises(ConfigError, match=f"^{option}: expected a") as caught:
        IQA(**{option: value})
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize("option", ["--out", "--csv"])
@pytest.mark.parametrize(("length", "fits"), [(234, True), (235, False), (255, False), (5000, False)])
def test_a_result_of_a_long_name(option, length, fits, command, tmp_path, monkeypatch, picture):
    """What lies beside the rows has 21 characters more."""
    monkeypatch.chdir(tmp_path)
    done = command(picture, option, "x" * length)
    assert done.status == (0 if fits else 2)
    assert [file.name[:20] for file in tmp_path.iterdir()] == (
        [] if not fits else ["x" * 20] * (2 if option == "--out" else 1)
    )
