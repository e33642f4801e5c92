"""A study's run on a small model and the real tools: what is stored, and that a stop or a repeat changes nothing."""

import contextlib
import csv
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import EMBEDDED, ROOT
from PIL import Image
from scripted import BACKEND, in_this_process, study_here

from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import ConfigError, FusionSettings
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.result import file_sha256
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset
from agentic_iqa_local.studies.modes import scored_modes
from agentic_iqa_local.studies.readings import Readings
from agentic_iqa_local.studies.run import Plan, StudyWork, chosen, run_study
from agentic_iqa_local.studies.store import StoreError, open_store, read_run
from agentic_iqa_local.studies.tables import accuracy
from agentic_iqa_local.vlm_client import VLMError

TOOLS = ("NIQE", "PIQE")


@pytest.fixture(scope="module")
def manifest(photo, tmp_path_factory):
    """Six crops of the photograph, each noisier, with scores to match."""
    folder = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    for i in range(6):
        pixels = np.asarray(photo.crop((32 * i, 0, 32 * i + 256, 224)), np.float32)
        pixels = pixels + rng.normal(0, 12 * i, pixels.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    lines = [f"{i}.png,{5 - 0.6 * i:g}\n" for i in range(6)]
    (folder / "scores.csv").write_text("image,mos\n" + "".join(lines))
    return folder / "scores.csv"


@pytest.fixture(scope="module")
def few(manifest):
    return chosen(load_dataset(manifest), None, 4)


@pytest.fixture(scope="module")
def stored(few, services, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    assert list(study_here(few, services, Plan(tools=TOOLS), folder)) == list(range(5))
    return folder


@pytest.fixture
def no_inference(monkeypatch):
    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", lambda *_, **__: {})


# What is stored


def test_a_row_holds_every_read_and_each_tools_score(stored, few):
    rows = read_run(stored)[1]
    assert [row["key"] for row in rows] == [item.image.name for item in few.items]
    views = {"image_alone": 1, "image_alone/crops": 5, "all_evidence": 1}
    for row in rows:
        assert "error" not in row
        assert {name: len(read["views"]) for name, read in row["reads"].items()} == views
        for name in views:
            for view in row["reads"][name]["views"]:
                assert set(view["forward"]) == set(view["reversed"]) == set(LETTERS)
                assert name == "image_alone/crops" or view["generated"] in LETTERS
        assert {tool: set(read) for tool, read in row["tools"].items()} == {
            tool: {"raw", "normalized"} for tool in TOOLS
        }


def test_the_cost_is_stored_by_the_part_of_the_work(stored):
    cost = read_run(stored)[1][0]["cost"]
    assert cost.keys() == {"agent", *TOOLS}
    assert min(cost["agent"][name] for name in ("seconds", "prefilled", "decoded")) > 0


def test_the_mode_logits_is_what_an_assessment_answers(stored, services):
    rows = read_run(stored)[1]
    logits = scored_modes(Readings(rows), FusionSettings(eta="auto"))["logits"].scores
    own = [row["agent"]["fusion"]["q"] for row in rows]
    assert logits == pytest.approx(own, abs=1e-6)
    assert own[3] == pytest.approx(assess(rows[3]["image"], services=services).q, abs=1e-6)


def test_reversed_letters_are_stored_by_meaning(stored, services):
    """Reversed means A. Bad ... E. Excellent: the stored "A" is what the model gave to its letter E."""
    row = read_run(stored)[1][2]
    bench = Workbench(services, row["image"])
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)
    read = bench.models.session("summarizer").read_letters(prompt, ANSWER_PREFIX, LETTERS)
    bench.close()
    kept = row["reads"]["image_alone"]["views"][0]["reversed"]
    assert kept == pytest.approx(
        {LETTERS[4 - i]: read.logprobs[letter] for i, letter in enumerate(LETTERS)}, abs=1e-4
    )


# Stops and repeats


def test_a_second_run_adds_nothing_and_another_plan_is_refused(stored, few, services):
    before = (stored / "rows.jsonl").read_bytes()
    assert list(study_here(few, services, Plan(tools=TOOLS), stored)) == [4]
    assert (stored / "rows.jsonl").read_bytes() == before
    with pytest.raises(StoreError, match="other settings: reads"):
        list(study_here(few, services, Plan(tools=("NIQE",)), stored))


@pytest.mark.usefixtures("no_inference")
def test_a_stop_keeps_the_rows_and_the_same_study_goes_on(manifest, services, tmp_path):
    batch = Runner(StudyWork(services.settings, Plan()), services=services)
    counts = run_study(load_dataset(manifest), batch, tmp_path / "run")
    assert [next(counts), next(counts)] == [0, 1]
    counts.close()
    kept = (tmp_path / "run" / "rows.jsonl").read_bytes()
    assert kept.count(b"\n") == 1
    assert list(study_here(load_dataset(manifest), services, Plan(), tmp_path / "run")) == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert (tmp_path / "run" / "rows.jsonl").read_bytes().startswith(kept)
    assert sorted(row["key"] for row in read_run(tmp_path / "run")[1]) == [
        f"{i}.png" for i in range(6)
    ]


def test_a_model_that_fails_on_everything_stops_the_run_and_its_images_are_tried_again(
    manifest, services, tmp_path, monkeypatch
):
    answers = [{"error": "no answer", "model_failed": True}] * 5 + [{}] * 6
    monkeypatch.setattr(
        "agentic_iqa_local.studies.run.infer", lambda *_, **__: dict(answers.pop(0))
    )
    with pytest.raises(VLMError, match="5 images one after the other: no answer"):
        list(study_here(load_dataset(manifest), services, Plan(), tmp_path / "run"))
    assert len(read_run(tmp_path / "run")[1]) == 5
    answers[:] = [{"error": "no answer", "model_failed": True}] * 4 + [{}] * 2
    assert list(study_here(load_dataset(manifest), services, Plan(), tmp_path / "run"))[-1] == 6
    assert sum("error" in row for row in read_run(tmp_path / "run")[1]) == 4


def test_a_picture_that_changed_is_read_again(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"before")
    with open_store(tmp_path / "run", {}, {}) as store:
        store.append(
            json.dumps({"key": "a", "image": str(picture), "sha256": file_sha256(picture)})
        )
    with open_store(tmp_path / "run", {}, {}) as store:
        assert store.done == {"a"}
        with (
            pytest.raises(StoreError, match="another process"),
            open_store(tmp_path / "run", {}, {}),
        ):
            pass
    picture.write_bytes(b"after")
    with open_store(tmp_path / "run", {}, {}) as store:
        assert store.done == set()


# Where images lie


@pytest.mark.usefixtures("no_inference")
def test_keys_are_from_the_manifests_folder_and_the_same_wherever_the_command_is_run(
    tmp_path, services, monkeypatch, picture
):
    """In a folder with a space: named from the manifest, in full, above the folder, and in full elsewhere."""
    folder, other = tmp_path / "my photos", tmp_path / "other"
    for name in ("my photos/in/0.png", "my photos/1.png", "other/2.png", "other/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, tmp_path / name)
    (tmp_path / "link").symlink_to(folder)
    names = ["in/0.png", folder / "1.png", "../other/2.png", other / "3.png"]
    (folder / "scores.csv").write_text(
        "image,mos\n" + "".join(f"{name},{i}\n" for i, name in enumerate(names))
    )
    expected, counts = (
        ["in/0.png", "1.png", "../other/2.png", str(other / "3.png")],
        [0, 1, 2, 3, 4],
    )
    for place, manifest in (
        (folder, "scores.csv"),
        (tmp_path, "link/scores.csv"),
        (other, folder / "scores.csv"),
    ):
        monkeypatch.chdir(place)
        assert (
            list(study_here(load_dataset(manifest), services, Plan(), tmp_path / "run")) == counts
        )
        assert [row["key"] for row in read_run(tmp_path / "run")[1]] == expected
        counts = [4]
    assert all(Path(row["image"]).is_absolute() for row in read_run(tmp_path / "run")[1])
    (folder / "scores.csv").write_text(f"image,mos\n1.png,3\n{folder / '1.png'},4\n")  # in two ways
    with pytest.raises(DatasetError, match=r"1\.png is listed again"):
        list(study_here(load_dataset(folder / "scores.csv"), services, Plan(), tmp_path / "again"))


# Scales and parts


@pytest.mark.usefixtures("no_inference")
def test_a_told_range_is_kept_with_the_run_and_can_be_told_later(tmp_path, services, picture):
    """No row depends on it: a run that is told its range afterwards keeps its rows, and one that is not told again
    keeps it."""
    shutil.copy(picture, tmp_path / "0.png")
    (tmp_path / "scores.csv").write_text("image,mos\n0.png,3\n")
    for told, low, high in ((None, None, None), ((1, 5), 1, 5), (None, 1, 5), ((0, 10), 0, 10)):
        dataset = load_dataset(tmp_path / "scores.csv", mos_range=told)
        assert list(study_here(dataset, services, Plan(), tmp_path / "run"))[-1] == 1
        known = read_run(tmp_path / "run")[0].dataset
        assert (known.low, known.high) == (low, high)
    assert known.to_levels(5) == 3  # the middle of 0..10 is that of 1..5


def test_a_limit_draws_the_same_images_of_a_split(tmp_path, picture):
    names = [f"{i:02}.png" for i in range(20)]
    for name in names:
        shutil.copy(picture, tmp_path / name)
    lines = [f"{name},3,{'test' if i % 2 else 'train'}\n" for i, name in enumerate(names)]
    (tmp_path / "scores.csv").write_text("image,mos,split\n" + "".join(lines))
    dataset = load_dataset(tmp_path / "scores.csv")
    drawn = [item.image.name for item in chosen(dataset, "test", 4).items]
    assert drawn == [item.image.name for item in chosen(dataset, "test", 4).items] == sorted(drawn)
    assert len(drawn) == 4
    assert set(drawn) < set(names[1::2])
    with pytest.raises(DatasetError, match="the splits are test, train"):
        chosen(dataset, "val")


# The command


def test_what_can_be_checked_is_checked_before_a_model_is_loaded(
    manifest, tmp_path, capsys, monkeypatch
):
    """A client that cannot be made stands for the model: whoever comes that far fails otherwise."""
    monkeypatch.setattr(
        "agentic_iqa_local.services.Services.client", lambda *_: pytest.fail("a model was loaded")
    )
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"identity": {"reads": "other"}}')
    for arguments, message in (
        ([tmp_path / "none.csv"], "none.csv: expected a file that can be read"),
        ([manifest, "--out", tmp_path / "file" / "run"], "expected a folder that can be written"),
        ([manifest, "--out", tmp_path / "run"], "rows are of a run with other settings"),
        ([manifest, "--tools", "NIQEE"], "did you mean NIQE"),
        ([manifest, "--model", "nonsense"], "nonsense: there is none; fetch it"),
        (
            [manifest, "--mos-range", 5, 1],
            "--mos-range 5 1: expected two numbers, the lower end of the scale first",
        ),
        ([manifest, "--mos-range", 1, 4], "correct line 2 of scores.csv"),
        ([manifest, "--split", "val"], "expected images of the split val"),
    ):
        out = [] if "--out" in arguments else ["--out", tmp_path / "new"]
        assert main(["study", "run", *map(str, [*arguments, *out, "--cpu"])]) == 2
        told = capsys.readouterr()
        assert message in told.err
        assert told.err.startswith("error: ")
        assert (len(told.err.splitlines()), told.out) == (1, "")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--limit", "0"],
        ["--jobs", "0"],
        ["--timeout", "nan"],
        ["--mos-range", "1"],
        ["--nonsense"],
        ["--query", " "],
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(manifest, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["study", "run", str(manifest), "--out", str(tmp_path / "new"), *arguments])
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert re.fullmatch(
        r"error: .*[.?] All options: python scripts/study\.py (run )?--help\n", told
    )


@pytest.mark.parametrize("command", ["run", "fit", "report", "compare"])
def test_each_commands_help_ends_with_an_example_of_it(capsys, command):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["study", command, "--help"])
    assert (
        f"\n  python scripts/study.py {command} "
        in capsys.readouterr().out.partition("examples:")[2]
    )


def test_failures_are_counted_at_the_end_and_an_interrupted_run_says_how_to_go_on(
    manifest, tmp_path, capsys, monkeypatch
):
    @contextlib.contextmanager
    def stopped(batch, _):
        batch.stop()
        yield

    answers = [{}, {}, {"error": "cannot be decoded"}, {}, {"error": "cannot be decoded"}, {}]
    monkeypatch.setattr(
        "agentic_iqa_local.studies.run.infer", lambda sample, *_: answers[int(sample.image.stem)]
    )
    in_this_process(monkeypatch)
    command = ["run", str(manifest), "--out", str(tmp_path / "run"), "--cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("agentic_iqa_local.cli.study.stopped_by_ctrl_c", stopped)
        assert main(["study", *command]) == 130
    assert (
        "interrupted: 0 of 6 images have their rows; the same command goes on\n"
        in capsys.readouterr().err
    )
    assert main(["study", *command]) == 0
    told = (
        f"6 rows in {tmp_path / 'run'}, 2 of them failures (the first: cannot be decoded); next: "
    )
    assert capsys.readouterr().out.startswith(told)


def test_a_fit_changes_what_an_assessment_gives_and_fits_of_other_models_are_refused(
    manifest, services, tmp_path
):
    """At temperature 2 each p_c is the square root of the old one, renormalised."""
    about = {
        "temperature": 2.0,
        "eta": 0.5,
        "objective": "rps",
        "dataset": "koniq10k",
        "keys": ["a.jpg"],
    }
    for name, model in (("fit", folder_hash(EMBEDDED)), ("other", "another")):
        (tmp_path / f"{name}.json").write_text(Fit(model=model, **about).model_dump_json())
    told = Services(
        choose_settings(fit=str(tmp_path / "fit.json")),
        "cpu",
        {BACKEND: services.client("summarizer")},
    )
    image = str(manifest.parent / "3.png")
    plain, fitted = (assess(image, pipeline="letters", services=each) for each in (services, told))
    roots = {letter: p**0.5 for letter, p in plain.fusion.p_c.items()}
    assert fitted.fusion.p_c == pytest.approx(
        {letter: root / sum(roots.values()) for letter, root in roots.items()}, abs=1e-6
    )
    # (2) and (4) of the paper with the fit's η
    weights = {
        c: math.exp(-0.5 * (plain.fusion.q_bar - c) ** 2) * fitted.fusion.p_c[letter]
        for letter, c in LETTER_TO_LEVEL.items()
    }
    q = sum(c * weight for c, weight in weights.items()) / sum(weights.values())
    assert fitted.q == pytest.approx(q, abs=1e-6)
    assert fitted.fusion_settings.fitted == "rps on 1 images of koniq10k"
    with pytest.raises(ConfigError, match="made with another"):
        choose_settings(fit=str(tmp_path / "other.json"))


# Questions


def test_questions_are_answered_and_counted_by_task(tmp_path, photo, monkeypatch):
    photo.crop((0, 0, 224, 224)).save(tmp_path / "a.png")
    lines = [
        "a.png,Is it sharp?,Yes|No,No,planner",
        'a.png,"Which is it, mostly?",noisy|blurred|fine,C,summarizer',
    ]
    (tmp_path / "my questions.csv").write_text(
        "image,question,choices,answer,task\n" + "\n".join(lines)
    )
    monkeypatch.chdir(tmp_path)
    command = [
        sys.executable,
        ROOT / "scripts" / "study.py",
        "run",
        "my questions.csv",
        "--out",
        "run",
        "--cpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition(" in ")[0]) == (0, "2 rows"), done.stderr
    run, rows = read_run(tmp_path / "run")
    assert run.dataset.kind == "MCQ"
    assert {row["question"]: (row["choices"], row["answer"]) for row in rows} == {
        "Is it sharp?": (["Yes", "No"], 1),
        "Which is it, mostly?": (["noisy", "blurred", "fine"], 2),
    }
    assert [sum(row["probabilities"]) for row in rows] == pytest.approx([1, 1])
    assert main(["study", "report", "run", "--out", "report"]) == 0
    with (tmp_path / "report" / "accuracy.csv").open() as file:
        table = list(csv.DictReader(file))
    right = sum(row["answered"] == "ABC"[row["answer"]] for row in rows)
    assert [(row["part"], row["value"], row["n"]) for row in table] == [
        ("all", "", "2"), ("task", "planner", "1"), ("task", "summarizer", "1"),
    ]  # fmt: skip
    assert float(table[0]["accuracy"]) == right / 2
    assert float(table[0]["chance"]) == pytest.approx((1 / 2 + 1 / 3) / 2, abs=1e-6)


def test_accuracy_by_hand():
    """3 of 4 right: Wilson's interval for 0.75 of 4 at 95 % by its formula (Wilson 1927, with z = 1.96)."""
    rows = [
        {
            "answered": letter,
            "answer": 0,
            "choices": ["a", "b", "c"],
            "probabilities": [p, 1 - p, 0],
        }
        for letter, p in (("A", 0.9), ("A", 0.6), ("B", 0.3), ("A", 0.8))
    ]
    line = accuracy(
        [*rows, {"answered": None, "answer": 0, "choices": ["a", "b", "c"], "probabilities": None}]
    ).iloc[0]
    z, n, p = 1.959964, 4, 0.75
    centre = (p + z * z / 2 / n) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5
    assert (line["n"], line["failed"], line["accuracy"]) == (4, 1, 0.75)
    assert (line["accuracy_low"], line["accuracy_high"]) == pytest.approx(
        (centre - half, centre + half), abs=1e-5
    )
    assert line["chance"] == pytest.approx(1 / 3)
    assert line["p_right"] == pytest.approx(0.65)
