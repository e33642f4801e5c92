"""A study's run on a small model and the real tools: what is stored, and that a stop or a repeat changes nothing."""

import contextlib
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from conftest import EMBEDDED
from PIL import Image
from scripted import BACKEND, in_this_process, study_here

from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.batch.rows import write_run
from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import PICTURE
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.result import file_sha256
from agentic_iqa_local.score_fusion import ScoreFusion
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset
from agentic_iqa_local.studies.modes import scored_modes
from agentic_iqa_local.studies.readings import Readings
from agentic_iqa_local.studies.run import Plan, StudyWork, chosen, run_study
from agentic_iqa_local.studies.store import StoreError, open_store, read_run
from agentic_iqa_local.studies.tables import accuracy

TOOLS = ("NIQE", "PIQE")


def noisier_crops(photo, folder, count: int):
    """A manifest of crops of a photograph, each noisier, with scores to match."""
    rng, lines = np.random.default_rng(0), ["image,mos"]
    for i in range(count):
        pixels = np.asarray(photo.crop((32 * i, 0, 32 * i + 256, 224)), np.float32)
        pixels = pixels + rng.normal(0, 12 * i, pixels.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{5 - 0.6 * i:g}")
    (folder / "scores.csv").write_text("\n".join(lines))
    return folder / "scores.csv"


@pytest.fixture(scope="module")
def manifest(photo, tmp_path_factory):
    return noisier_crops(photo, tmp_path_factory.mktemp("study"), 6)


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
        assert row["tools"].keys() == set(TOOLS)
        assert all(reading.keys() == {"raw", "normalized"} for reading in row["tools"].values())
        assert row["cost"].keys() == {"agent", *TOOLS}
        assert min(row["cost"]["agent"][name] for name in ("seconds", "prefilled", "decoded")) > 0


def test_the_mode_logits_is_what_an_assessment_answers(stored, services):
    rows = read_run(stored)[1]
    logits = scored_modes(Readings(rows), services.settings.fusion)["logits"].scores
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


def test_what_is_logged_of_a_picture_names_it(few, services, monkeypatch):
    def name(*_):
        return {"logged": PICTURE.get()}

    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", name)
    row = StudyWork(services.settings, Plan()).row(few.items[0], services, None)
    assert row["logged"] == str(few.items[0].image)
    assert PICTURE.get() is None


@pytest.mark.usefixtures("no_inference")
def test_rows_of_other_pictures_are_told_as_such(manifest, few, services, tmp_path):
    list(study_here(few, services, Plan(), tmp_path))
    with pytest.raises(
        StoreError, match=r"rows are of other pictures or scores \(another manifest"
    ):
        list(study_here(load_dataset(manifest), services, Plan(), tmp_path))


@pytest.mark.usefixtures("no_inference")
def test_a_stop_keeps_the_rows_and_the_same_study_goes_on(manifest, services, tmp_path):
    folder = tmp_path / "run"
    batch = Runner(StudyWork(services.settings, Plan()), services=services)
    counts = run_study(load_dataset(manifest), batch, folder)
    assert [next(counts), next(counts)] == [0, 1]
    counts.close()
    kept = (folder / "rows.jsonl").read_bytes()
    counts = list(study_here(load_dataset(manifest), services, Plan(), folder))
    assert counts == [1, 2, 3, 4, 5, 6]
    assert (folder / "rows.jsonl").read_bytes().startswith(kept)
    assert sorted(row["key"] for row in read_run(folder)[1]) == [f"{i}.png" for i in range(6)]


def test_what_changed_and_what_the_model_failed_on_is_read_again(tmp_path):
    picture, folder = tmp_path / "a.png", tmp_path / "run"
    picture.write_bytes(b"before")
    with open_store(folder, {}) as store:
        write_run(folder / "run.json", {}, {})
        row = {"key": "a", "image": str(picture), "sha256": file_sha256(picture)}
        store.append(json.dumps(row))
        store.append(json.dumps({"key": "b", "error": "no answer", "model_failed": True}))
        store.append(json.dumps({"key": "c", "error": "cannot be decoded"}))
    with open_store(folder, {}) as store:
        assert store.done == {"a", "c"}
        with pytest.raises(StoreError, match="another process"), open_store(folder, {}):
            pass
    picture.write_bytes(b"after")
    with open_store(folder, {}) as store:
        assert store.done == {"c"}


def test_an_image_that_is_listed_twice_is_refused(tmp_path, services, picture):
    shutil.copy(picture, tmp_path / "1.png")
    (tmp_path / "scores.csv").write_text(f"image,mos\n1.png,3\n{tmp_path / '1.png'},4\n")
    with pytest.raises(DatasetError, match=r"1\.png is listed again"):
        list(study_here(load_dataset(tmp_path / "scores.csv"), services, Plan(), tmp_path / "run"))


@pytest.mark.usefixtures("no_inference")
def test_a_told_range_is_kept_with_the_run_and_can_be_told_later(tmp_path, services, picture):
    """No row depends on it: a run that is told its range afterwards keeps its rows and is not asked again."""
    shutil.copy(picture, tmp_path / "0.png")
    (tmp_path / "scores.csv").write_text("image,mos\n0.png,3\n")
    for told, known in ((None, (None, None)), ((1, 5), (1, 5)), (None, (1, 5))):
        dataset = load_dataset(tmp_path / "scores.csv", mos_range=told)
        list(study_here(dataset, services, Plan(), tmp_path / "run"))
        run, rows = read_run(tmp_path / "run")
        assert (run.dataset.low, run.dataset.high, len(rows)) == (*known, 1)


@pytest.mark.usefixtures("no_inference")
def test_the_set_of_a_manifest_can_be_told_later(tmp_path, services, picture):
    shutil.copy(picture, tmp_path / "0.png")
    (tmp_path / "scores.csv").write_text("image,mos\n0.png,30\n")
    runs = [{}, {"part_of": "clive"}, {}, {"mos_range": (0, 50)}]
    expected = [("manifest", None), ("clive", 100), ("clive", 100), ("clive", 50)]
    for told, known in zip(runs, expected, strict=True):
        dataset = load_dataset(tmp_path / "scores.csv", **told)
        list(study_here(dataset, services, Plan(), tmp_path / "run"))
        run, rows = read_run(tmp_path / "run")
        assert (run.dataset.key, run.dataset.high, len(rows)) == (*known, 1)


def test_a_limit_draws_the_same_images_of_a_split(tmp_path, picture):
    lines = ["image,mos,split"]
    for i in range(20):
        shutil.copy(picture, tmp_path / f"{i:02}.png")
        lines.append(f"{i:02}.png,3,{'test' if i % 2 else 'train'}")
    (tmp_path / "scores.csv").write_text("\n".join(lines))
    dataset = load_dataset(tmp_path / "scores.csv")
    drawn = chosen(dataset, "test", 4).items
    assert drawn == chosen(dataset, "test", 4).items
    assert (len(drawn), {item.split for item in drawn}) == (4, {"test"})
    with pytest.raises(DatasetError, match="the splits are test, train"):
        chosen(dataset, "val")


# The command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "file/run"], "run: Not a directory"),
        (["--out", "run"], "rows are of a run with other settings"),
        (["--tools", "NIQEE"], "did you mean NIQE"),
        (["--model", "nonsense"], "nonsense: there is none; fetch it"),
        (["--mos-range", 1, 4], "correct line 2 of scores.csv"),
        (["--split", "val"], "expected images of the split val"),
    ],
)
def test_what_can_be_checked_is_checked_before_a_model_is_loaded(
    manifest, tmp_path, capsys, monkeypatch, arguments, message
):
    """A client that cannot be made stands for the model: whoever comes that far fails otherwise."""
    failing = "agentic_iqa_local.services.Services.client"
    monkeypatch.setattr(failing, lambda *_: pytest.fail("a model was loaded"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"identity": {"reads": "other"}}')
    out = [] if "--out" in arguments else ["--out", "new"]
    assert main(["study", "run", str(manifest), *map(str, [*arguments, *out]), "--cpu"]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert (len(told.err.splitlines()), told.out) == (1, "")
    assert not (tmp_path / "new").exists()


def test_failures_are_counted_and_an_interrupted_run_says_how_to_go_on(
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
    command = ["study", "run", str(manifest), "--out", str(tmp_path / "run"), "--cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("agentic_iqa_local.cli.study.stopped_by_ctrl_c", stopped)
        assert main(command) == 130
    assert "0 of 6 images have their rows; the same command goes on" in capsys.readouterr().err
    assert main(command) == 0
    assert "2 failures among them (the first: cannot be decoded)" in capsys.readouterr().out


def test_a_fit_changes_what_an_assessment_gives(manifest, services, tmp_path):
    """At temperature 2 each p_c is a power of the old one, renormalised."""
    about = {"temperature": 2.0, "eta": 0.5, "objective": "rps", "dataset": "koniq10k"}
    for name, model in (("fit", folder_hash(EMBEDDED)), ("other", "another")):
        fit = Fit(model=model, keys=("a.jpg",), **about)
        (tmp_path / f"{name}.json").write_text(fit.model_dump_json())
    settings = choose_settings(fit=str(tmp_path / "fit.json"))
    told = Services(settings, "cpu", {BACKEND: services.client("summarizer")})
    image = str(manifest.parent / "3.png")
    plain, fitted = (
        assess(image, pipeline="letters", services=each).fusion for each in (services, told)
    )
    powers = np.array([*plain.p_c.values()]) ** (plain.temperature / 2)
    assert [*fitted.p_c.values()] == pytest.approx(powers / powers.sum(), abs=1e-6)
    p_c = {LETTER_TO_LEVEL[letter]: p for letter, p in fitted.p_c.items()}
    q = ScoreFusion(eta=0.5).fuse_scores([plain.q_bar], p_c)
    assert fitted.q == pytest.approx(q, abs=1e-6)
    with pytest.raises(ConfigError, match="made with another"):
        choose_settings(fit=str(tmp_path / "other.json"))


# Questions


def test_questions_are_answered_and_counted_by_task(tmp_path, photo, monkeypatch, capsys):
    photo.crop((0, 0, 224, 224)).save(tmp_path / "a.png")
    rows = "a.png,Is it sharp?,Yes|No,No,planner\n"
    rows += 'a.png,"Which is it, mostly?",noisy|blurred|fine,C,summarizer\n'
    (tmp_path / "q.csv").write_text(f"image,question,choices,answer,task\n{rows}")
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    assert main(["study", "run", "q.csv", "--out", "run", "--cpu"]) == 0, capsys.readouterr().err
    rows = read_run(tmp_path / "run")[1]
    assert [row["answer"] for row in rows] == [1, 2]
    assert [sum(row["probabilities"]) for row in rows] == pytest.approx([1, 1])
    assert main(["study", "report", "run", "--out", "report"]) == 0
    table = pd.read_csv(tmp_path / "report" / "accuracy.csv")
    assert list(table.part + table.value.fillna("")) == ["all", "taskplanner", "tasksummarizer"]
    right = sum(row["answered"] == "ABC"[row["answer"]] for row in rows)
    assert (table.accuracy[0], list(table.n)) == (right / 2, [2, 1, 1])


def test_accuracy_by_hand():
    """3 of 4 right: Wilson's interval for 0.75 of 4 at 95 % by its formula (Wilson 1927, with z = 1.96)."""
    asked = {"answer": 0, "choices": ["a", "b", "c"]}
    rows = [asked | {"answered": None}]
    for letter, p in (("A", 0.9), ("A", 0.6), ("B", 0.3), ("A", 0.8)):
        rows.append(asked | {"answered": letter, "probabilities": [p, 1 - p, 0]})
    line = accuracy(rows).iloc[0]
    z, n, p = 1.959964, 4, 0.75
    centre = (p + z * z / 2 / n) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5
    assert (line["n"], line["failed"], line["accuracy"]) == (4, 1, 0.75)
    ends = line["accuracy_low"], line["accuracy_high"]
    assert ends == pytest.approx((centre - half, centre + half), abs=1e-5)
    assert (line["chance"], line["p_right"]) == pytest.approx((1 / 3, 0.65))
