"""A study's run on the real embedded model and the real tools: what is stored, and that a kill or a repeat changes nothing."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import EMBEDDED, ROOT
from PIL import Image
from test_study_report import make_rows, make_run

from agentic_iqa_local.assessment import assess
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.services import OpenImages
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset
from agentic_iqa_local.studies.fitting import Fit, FitError, fit_letters, fit_run, read_fit
from agentic_iqa_local.studies.inference import POSITIONS, infer
from agentic_iqa_local.studies.questions import accuracy
from agentic_iqa_local.studies.readings import LEVELS, Letters, fused_distribution, probabilities, readings, tool_means
from agentic_iqa_local.studies.run import Plan, folder_hash, run_study
from agentic_iqa_local.studies.store import Store, StoreError, read_run
from agentic_iqa_local.vlm_client import VLMError

TOOLS = ("NIQE", "PIQE")


@pytest.fixture(scope="module")
def manifest(photo, noisy_path, tmp_path_factory):
    """Six crops of the photograph, each noisier, with scores to match."""
    folder = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    with (folder / "scores.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "mos"])
        for i in range(6):
            crop = photo.crop((32 * i, 0, 32 * i + 256, 224))
            pixels = np.asarray(crop, np.float32) + rng.normal(0, 12 * i, (224, 256, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
            table.writerow([f"{i}.png", 5 - 0.6 * i])
    return folder / "scores.csv"


@pytest.fixture(scope="module")
def stored(manifest, services, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    counts = list(run_study(load_dataset(manifest), services, Plan(tools=TOOLS), folder))
    assert counts == list(range(7))
    return folder


def test_a_row_holds_every_read_and_the_agents_own_score(stored, services):
    run, rows = read_run(stored)
    assert [row["key"] for row in rows] == [f"{i}.png" for i in range(6)]
    for row in rows:
        assert "error" not in row
        assert list(row["reads"]) == ["image_alone", "without_scores", "all_evidence"]
        for read in row["reads"].values():
            (view,) = read["views"]
            assert set(view["forward"]) == set(view["reversed"]) == set(LETTERS)
            assert view["generated"] in LETTERS
        assert {tool: set(found) for tool, found in row["tools"].items()} == {
            tool: {"raw", "normalized", "seconds"} for tool in TOOLS
        }
    modes = readings(rows, Letters())
    assert modes["logits"].scores == pytest.approx([row["agent"]["fusion"]["q"] for row in rows], abs=1e-9)
    alone = assess(rows[3]["image"], services=services)
    assert rows[3]["agent"]["fusion"]["q"] == pytest.approx(alone.q, abs=1e-6)
    assert run["identity"]["reads"]["tools"] == list(TOOLS)
    assert run["versions"]["torch"]


def test_letters_alone_do_not_depend_on_evidence_and_reversed_ones_are_stored_by_meaning(stored, services):
    """Reversed means A. Bad ... E. Excellent: the stored "A" is what the model gave to its letter E."""
    _, rows = read_run(stored)
    row = rows[2]
    images = OpenImages(services, row["image"])
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)
    read = images.session("summarizer").read_letters(prompt, ANSWER_PREFIX, LETTERS)
    images.close()
    kept = row["reads"]["image_alone"]["views"][0]["reversed"]
    assert kept == pytest.approx({LETTERS[4 - i]: read.logprobs[letter] for i, letter in enumerate(LETTERS)}, abs=1e-4)


def test_letters_are_read_at_every_position(manifest, services):
    row = infer(str(manifest.parent / "0.png"), None, "Rate it.", services, contexts=["image_alone"], positions=POSITIONS)
    assert list(row["reads"]) == ["image_alone", "image_alone/bare", "image_alone/after_reasoning"]
    first = [list(read["views"][0]["forward"].values()) for read in row["reads"].values()]
    assert all(a != b for a, b in itertools.combinations(first, 2))
    assert "generated" not in row["reads"]["image_alone/bare"]["views"][0]


def test_a_second_run_adds_nothing_and_another_plan_is_refused(stored, manifest, services):
    before = (stored / "rows.jsonl").read_bytes()
    assert list(run_study(load_dataset(manifest), services, Plan(tools=TOOLS), stored)) == [6]
    assert (stored / "rows.jsonl").read_bytes() == before
    with pytest.raises(StoreError, match="another reads"):
        list(run_study(load_dataset(manifest), services, Plan(tools=("NIQE",)), stored))


def test_a_model_that_fails_on_everything_stops_the_run_and_its_images_are_tried_again(manifest, services, tmp_path, monkeypatch):
    def down(*_, **__):
        raise VLMError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("agentic_iqa_local.studies.inference.run_graph", down)
        with pytest.raises(VLMError, match="5 images one after the other"):
            list(run_study(load_dataset(manifest), services, Plan(tools=TOOLS), tmp_path / "run"))
    assert read_run(tmp_path / "run")[1] == []
    assert list(run_study(load_dataset(manifest), services, Plan(tools=TOOLS), tmp_path / "run"))[-1] == 6


def test_rows_are_kept_as_they_are_done_and_not_in_their_order(manifest, services, tmp_path, monkeypatch):
    """With two at once and the first one held up until the others are on disk, a kill would lose the first alone."""
    rows, real = tmp_path / "run" / "rows.jsonl", infer

    def slow_first(image, *args, **options):
        while image.endswith("0.png") and (not rows.exists() or rows.read_bytes().count(b"\n") < 5):
            time.sleep(0.01)
        return real(image, *args, **options)

    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", slow_first)
    list(run_study(load_dataset(manifest), services, Plan(contexts=("image_alone",)), tmp_path / "run", jobs=2))
    assert [row["key"] for row in read_run(tmp_path / "run")[1]][-1] == "0.png"


def test_an_image_listed_twice_is_refused(manifest, services, tmp_path):
    twice = tmp_path / "scores.csv"
    (tmp_path / "0.png").write_bytes((manifest.parent / "0.png").read_bytes())
    twice.write_text("image,mos\n0.png,3\n0.png,4\n")
    with pytest.raises(DatasetError, match="listed again"):
        list(run_study(load_dataset(twice), services, Plan(), tmp_path / "run"))


def test_an_image_that_cannot_be_read_is_a_failure_row(tmp_path, services):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    row = infer(str(tmp_path / "bad.png"), None, "Rate it.", services)
    assert set(row) == {"error"}


def test_twenty_kills_lose_no_row_and_repeat_none(tmp_path):
    """A process that only stores rows, as fast as it can, killed at twenty random moments."""
    writer = (
        "import sys; from pathlib import Path; from agentic_iqa_local.studies.store import Store\n"
        "store = Store(Path(sys.argv[1]), {}, {'n': 1}); print('open', flush=True)\n"
        "for i in range(100000):\n"
        "    if str(i) not in store.done: store.append({'key': str(i), 'filler': 'x' * 20000})\n"
    )
    rows, rng, kept = tmp_path / "run" / "rows.jsonl", np.random.default_rng(3), b""
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", writer, tmp_path / "run"], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"open\n"
        while rows.stat().st_size <= len(kept):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        content = rows.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        assert whole.startswith(kept)
        kept = whole
    with Store(tmp_path / "run", {}, {"n": 1}) as store:
        done = set(store.done)
    keys = [json.loads(line)["key"] for line in rows.read_bytes().splitlines()]
    assert keys == [str(i) for i in range(len(keys))]
    assert done == set(keys)
    assert len(keys) >= 20


def test_a_line_that_a_kill_tore_is_cut_off_and_done_again(tmp_path):
    with Store(tmp_path, {}, {}) as store:
        store.append({"key": "a"})
        store.append({"key": "b"})
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-4])
    with Store(tmp_path, {}, {}) as store:
        assert store.done == {"a"}
        store.append({"key": "b"})
    assert [row["key"] for row in read_run(tmp_path)[1]] == ["a", "b"]


def test_two_processes_do_not_write_one_run(tmp_path):
    with Store(tmp_path, {}, {}), pytest.raises(StoreError, match="another process"):
        Store(tmp_path, {}, {})


# Fits


def sharpened(rows, by):
    """The same rows with letters `by` times as sharp: a temperature of `by` makes them what they were."""
    rows = json.loads(json.dumps([row for row in rows if row.get("reads")]))
    for row in rows:
        for read in row["reads"].values():
            for view in read["views"]:
                for order in ("forward", "reversed"):
                    view[order] = {letter: by * value for letter, value in view[order].items()}
    return rows


def test_the_spread_fit_makes_letters_spread_as_the_tools_do():
    rows = sharpened(make_rows(), 1)
    fit = fit_letters(rows, "spread", targets=None, letters=Letters(), dataset="d", model="m")
    spread = (probabilities(rows, "all_evidence", temperature=fit.temperature) @ LEVELS).std()
    assert spread == pytest.approx(tool_means(rows, "runs").std(), rel=1e-6)
    assert fit.eta == Letters().eta
    twice = fit_letters(sharpened(rows, 2), "spread", targets=None, letters=Letters(), dataset="d", model="m")
    assert twice.temperature == pytest.approx(2 * fit.temperature, rel=1e-4)


def test_the_rps_fit_finds_the_temperature_that_letters_were_sharpened_by():
    """Levels drawn from the fused distribution at temperature 1 and η 1: a proper score is least there. Sharpened threefold, the
    letters need a temperature of 3. With 1,100 rows the estimate scatters by some 10 %."""
    rows = sharpened(make_rows(1300), 1)
    truth = fused_distribution(probabilities(rows, "all_evidence"), tool_means(rows, "runs"), 1.0)
    rng = np.random.default_rng(0)
    levels = np.array([rng.choice(LEVELS, p=p) for p in truth])
    fit = fit_letters(sharpened(rows, 3), "rps", targets=levels, letters=Letters(), dataset="d", model="m")
    assert 2.2 < fit.temperature < 4.0
    assert 0.7 < fit.eta < 1.4
    assert fit.after <= fit.before


def test_the_srcc_fit_does_not_end_below_the_defaults():
    rows = sharpened(make_rows(), 4)
    mos = np.array([row["mos"] for row in rows])
    fit = fit_letters(rows, "srcc", targets=mos, letters=Letters(), dataset="d", model="m")
    assert fit.after <= fit.before  # its negative is minimised
    assert fit.after < -0.5


def test_a_fit_names_its_rows_and_is_read_again(tmp_path):
    run, rows = make_run(), make_rows(240)
    run["identity"] |= {"model": "M"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fit = fit_run(tmp_path, "srcc", split=None, share=0.5)
    groups = {row["group"] for row in rows}
    used = {row["group"] for row in rows if row["key"] in fit.keys}
    assert len(used) == len(groups) // 2  # whole scenes
    assert all(fit.used(row) == (row["group"] in used) for row in rows)  # failed rows of these scenes too
    fit.write(tmp_path / "fit.json")
    assert read_fit(tmp_path / "fit.json") == fit
    with pytest.raises(FitError, match="not use"):
        fit_run(tmp_path, "srcc", split=None, share=1.0)
    (tmp_path / "bad.json").write_text(json.dumps({"temperature": 1}))
    with pytest.raises(FitError, match="expected a fit"):
        read_fit(tmp_path / "bad.json")


def test_too_few_rows_are_refused():
    with pytest.raises(FitError, match="at least 20"):
        fit_letters(make_rows(12), "spread", targets=None, letters=Letters(), dataset="d", model="m")


def test_generated_letters_and_expected_levels_by_hand():
    rows = make_rows(20)
    modes = readings(rows, Letters())
    for i, row in enumerate(rows):
        if not row.get("reads"):
            assert np.isnan(modes["logits"].scores[i])
            continue
        levels = [LETTER_TO_LEVEL[view["generated"]] for view in row["reads"]["image_alone"]["views"]]
        assert modes["generated letter, image alone"].scores[i] == pytest.approx(np.mean(levels))


def test_questions_are_answered_and_counted_by_task(tmp_path, photo, services):
    photo.crop((0, 0, 224, 224)).save(tmp_path / "a.png")
    lines = [
        {
            "image": "a.png",
            "question": f"Is it sharp? {i}",
            "choices": ["Yes", "No"],
            "answer": "Yes",
            "task": "planner" if i else "summarizer",
        }
        for i in range(3)
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    list(run_study(load_dataset(tmp_path / "q.jsonl"), services, Plan(), tmp_path / "run"))
    run, rows = read_run(tmp_path / "run")
    assert run["dataset"]["kind"] == "MCQ"
    assert [row["answered"] in ("A", "B") for row in rows] == [True] * 3
    assert [sum(row["probabilities"]) for row in rows] == pytest.approx([1, 1, 1])
    table = accuracy(rows)
    assert [(row["part"], row["value"], row["n"]) for row in table] == [
        ("all", "", 3),
        ("task", "planner", 2),
        ("task", "summarizer", 1),
    ]


def test_accuracy_by_hand():
    """3 of 4 right: Wilson's interval for 0.75 of 4 at 95 % by its formula (Wilson 1927, with z = 1.96)."""
    rows = [
        {"answered": letter, "answer": 0, "choices": ["a", "b", "c"], "probabilities": [p, 1 - p, 0]}
        for letter, p in (("A", 0.9), ("A", 0.6), ("B", 0.3), ("A", 0.8))
    ]
    (line,) = accuracy([*rows, {"answered": None, "answer": 0, "choices": ["a", "b", "c"], "probabilities": None}])
    z, n, p = 1.959964, 4, 0.75
    centre, half = (p + z * z / 2 / n) / (1 + z * z / n), z / (1 + z * z / n) * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5
    assert (line["n"], line["failed"], line["accuracy"]) == (4, 1, 0.75)
    assert (line["accuracy_low"], line["accuracy_high"]) == pytest.approx((centre - half, centre + half), abs=1e-5)
    assert line["chance"] == pytest.approx(1 / 3)
    assert line["p_right"] == pytest.approx(0.65)


def assessed(*arguments):
    command = [sys.executable, ROOT / "scripts" / "assess.py", "--cpu", "--pipeline", "letters", "--json", "-", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_fit_changes_what_assess_gives_and_fits_of_other_models_are_refused(manifest, tmp_path):
    """At temperature 2 each p_c is the square root of the old one, renormalised."""
    fit = Fit(2.0, 0.5, "rps", 0.2, 0.1, "koniq10k", folder_hash(EMBEDDED), ("a.jpg",))
    fit.write(tmp_path / "fit.json")
    replace(fit, model="another").write(tmp_path / "other.json")
    image = ("--image", manifest.parent / "3.png")
    plain, fitted = (json.loads(assessed(*image, *more).stdout) for more in ([], ["--fit", tmp_path / "fit.json"]))
    roots = {letter: p**0.5 for letter, p in plain["p_c"].items()}
    assert fitted["p_c"] == pytest.approx({letter: root / sum(roots.values()) for letter, root in roots.items()}, abs=1e-6)
    assert (fitted["fusion"]["eta"], fitted["fusion"]["temperature"]) == (0.5, 2.0)
    assert fitted["fusion"]["fitted"] == "rps on 1 images of koniq10k"
    refused = assessed(*image, "--fit", tmp_path / "other.json")
    assert refused.returncode == 2
    assert "made with another" in refused.stderr
