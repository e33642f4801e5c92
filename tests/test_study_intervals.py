"""Runs of a real model, their fits and reports by the commands: what is calibrated on them, and what is
refused."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from scripted import study_here

from agentic_iqa_local.cli import study as cli
from agentic_iqa_local.judgement.fit import read_fit
from agentic_iqa_local.studies.datasets import load_dataset
from agentic_iqa_local.studies.run import Plan
from agentic_iqa_local.studies.store import read_run

COUNT = 3


@pytest.fixture(scope="module")
def runs(photo, services, tmp_path_factory):
    """A run on three crops with scores, and one on two questions; both of the same model."""
    folder = tmp_path_factory.mktemp("intervals")
    rng = np.random.default_rng(0)
    with (folder / "scores.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "mos"])
        for i in range(COUNT):
            pixels = np.asarray(photo.crop((32 * i, 0, 32 * i + 256, 224)), np.float32)
            pixels = pixels + rng.normal(0, 25 * i, pixels.shape)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
            table.writerow([f"{i}.png", 5 - i])
    asked = [
        {"image": "0.png", "question": f"Is it sharp? {i}", "choices": ["Yes", "No"], "answer": "Yes"}
        for i in range(2)
    ]
    (folder / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    scores = load_dataset(folder / "scores.csv", mos_range=(1, 5))
    list(study_here(scores, services, Plan(tools=("LocalNR", "NIQE")), folder / "rated"))
    list(study_here(load_dataset(folder / "q.jsonl"), services, Plan(), folder / "asked"))
    return folder / "rated", folder / "asked"


def fit(*arguments) -> int:
    return cli.main(["fit", *map(str, arguments)])


def test_a_fit_of_pictures_and_questions_calibrates_both(runs, tmp_path, capsys):
    out = tmp_path / "fit.json"
    assert fit(*runs, "--objective", "keep", "--share", 1, "--called", "three crops", "--out", out) == 0
    said = capsys.readouterr().out
    assert "sets of answers" in said
    found = read_fit(out)
    rows, questions = read_run(runs[0])[1], read_run(runs[1])[1]
    assert set(found.keys) == {row["key"] for row in (*rows, *questions)}
    assert found.intervals
    assert found.intervals.source == "three crops"
    part = next(
        part
        for part in found.intervals.ratings
        if (part.condition.pipeline, part.condition.look) == ("agent", "one order")
    )
    # so few teach nothing: an error is what the agent's own q is away from the score
    expected = [row["mos"] - row["agent"]["fusion"]["q"] for row in rows]
    assert part.errors == pytest.approx(expected, abs=1e-4)
    answers = next(part for part in found.intervals.questions if part.pipeline == "agent")
    given = [row["probabilities"] for row in questions]  # Yes is right: a set holds it with p, or with all
    assert answers.right == pytest.approx([yes if yes > no else 1.0 for yes, no in given], abs=1e-6)
    assert answers.choices == (2, 2)


def test_a_report_with_that_fit_and_without(runs, tmp_path, capsys):
    fit(runs[0], "--objective", "keep", "--share", 0.34, "--out", tmp_path / "fit.json")
    for name, options in (("fitted", ["--fit", tmp_path / "fit.json"]), ("plain", [])):
        out = tmp_path / name
        assert cli.main(["report", str(runs[0]), "--out", str(out), "--draws", "20", *map(str, options)]) == 0
        page = (out / "report.html").read_text()
        assert "No calibration of the run" in page  # of so few pictures
        assert "own for the pipeline agent without a reference, one order" in page
    with (tmp_path / "fitted" / "intervals.csv").open() as file:
        lines = list(csv.DictReader(file))
    # one picture's error: no interval but the whole scale, which holds everything
    assert {(line["coverage"], line["width"], line["n"]) for line in lines} == {("1", "4", "2")}
    assert {line["calibration"] for line in lines} == {"the fit"}
    with (tmp_path / "plain" / "intervals.csv").open() as file:  # the same model as the shipped calibration's
        assert {line["calibration"] for line in csv.DictReader(file)} == {"shipped"}
    assert "calibrated" not in capsys.readouterr().err


def test_bad_input_is_one_sentence(runs, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)
    run = json.loads((other / "run.json").read_text())
    run["identity"]["model"] = "another"
    (other / "run.json").write_text(json.dumps(run))
    assert fit(runs[0], "--objective", "keep", "--share", 1, "--out", tmp_path / "fit.json") == 0
    capsys.readouterr()
    report = ["report", str(other), "--out", str(tmp_path / "report"), "--fit", str(tmp_path / "fit.json")]
    for arguments, message in (
        (report, "expected a fit of the model of"),
        (["fit", runs[0], other, "--objective", "keep", "--out", tmp_path / "x.json"], "data set, model and"),
        (["fit", runs[1], other, "--objective", "keep", "--out", tmp_path / "x.json"], "fit them apart"),
        (["fit", runs[1], "--objective", "srcc", "--out", tmp_path / "x.json"], "got one on questions"),
        (
            ["fit", runs[0], "--objective", "keep", "--share", "0.01", "--out", tmp_path / "x.json"],
            "of 3 rows is none",
        ),
    ):
        assert cli.main([str(a) for a in arguments]) != 0, arguments
        said = capsys.readouterr().err.strip()
        assert message in said
        assert "\n" not in said
        assert not (tmp_path / "x.json").exists()
