"""A study's run on a small model and the real tools: what is stored, and that a kill or a repeat changes
nothing."""

import contextlib
import csv
import fcntl
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import EMBEDDED, ROOT
from PIL import Image
from scripted import in_this_process, study_here

from agentic_iqa_local.cli import study as cli
from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.judgement.assessment import assess, file_sha256
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS, revised
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset
from agentic_iqa_local.studies.inference import infer
from agentic_iqa_local.studies.questions import accuracy
from agentic_iqa_local.studies.readings import Readings, scored_modes
from agentic_iqa_local.studies.run import Plan, chosen
from agentic_iqa_local.studies.store import Store, StoreError, read_run
from agentic_iqa_local.studies.study import dataset_info
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
    counts = list(study_here(load_dataset(manifest), services, Plan(tools=TOOLS), folder))
    assert counts == list(range(7))
    return folder


def test_a_row_holds_every_read_and_the_agents_own_score(stored, services):
    run, rows = read_run(stored)
    assert [row["key"] for row in rows] == [f"{i}.png" for i in range(6)]
    for row in rows:
        assert "error" not in row
        assert list(row["reads"]) == ["image_alone", "image_alone/crops", "without_scores", "all_evidence"]
        for name, read in row["reads"].items():
            assert len(read["views"]) == (5 if name == "image_alone/crops" else 1)
            for view in read["views"]:
                assert set(view["forward"]) == set(view["reversed"]) == set(LETTERS)
                assert name == "image_alone/crops" or view["generated"] in LETTERS
        assert {tool: set(found) for tool, found in row["tools"].items()} == {
            tool: {"raw", "normalized", "seconds"} for tool in TOOLS
        }
    modes = scored_modes(Readings(rows), FusionSettings(eta="auto"), None, ())
    assert modes["logits"].scores == pytest.approx([row["agent"]["fusion"]["q"] for row in rows], abs=1e-6)
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


def test_a_second_run_adds_nothing_and_another_plan_is_refused(stored, manifest, services):
    before = (stored / "rows.jsonl").read_bytes()
    assert list(study_here(load_dataset(manifest), services, Plan(tools=TOOLS), stored)) == [6]
    assert (stored / "rows.jsonl").read_bytes() == before
    with pytest.raises(StoreError, match="other settings: reads"):
        list(study_here(load_dataset(manifest), services, Plan(tools=("NIQE",)), stored))


def test_a_model_that_fails_on_everything_stops_the_run_and_its_images_are_tried_again(
    manifest, services, tmp_path, monkeypatch
):
    def down(*_, **__):
        raise VLMError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("agentic_iqa_local.studies.inference.run_graph", down)
        with pytest.raises(VLMError, match="5 images one after the other"):
            list(study_here(load_dataset(manifest), services, Plan(tools=TOOLS), tmp_path / "run"))
    assert read_run(tmp_path / "run")[1] == []
    assert list(study_here(load_dataset(manifest), services, Plan(tools=TOOLS), tmp_path / "run"))[-1] == 6


def test_rows_are_kept_as_they_are_done_and_not_in_their_order(manifest, services, tmp_path, monkeypatch):
    """With two at once and the first one held up until the others are on disk, a kill would lose the first
    alone."""
    rows, real = tmp_path / "run" / "rows.jsonl", infer

    def slow_first(image, *args, **options):
        while image.endswith("0.png") and (not rows.exists() or rows.read_bytes().count(b"\n") < 5):
            time.sleep(0.01)
        return real(image, *args, **options)

    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", slow_first)
    list(study_here(load_dataset(manifest), services, Plan(contexts=("image_alone",)), tmp_path / "run", jobs=2))
    assert [row["key"] for row in read_run(tmp_path / "run")[1]][-1] == "0.png"


def test_an_image_listed_twice_is_refused(manifest, services, tmp_path):
    twice = tmp_path / "scores.csv"
    (tmp_path / "0.png").write_bytes((manifest.parent / "0.png").read_bytes())
    twice.write_text("image,mos\n0.png,3\n0.png,4\n")
    with pytest.raises(DatasetError, match="listed again"):
        list(study_here(load_dataset(twice), services, Plan(), tmp_path / "run"))


# Where images lie


def study(*arguments, **options):
    command = [sys.executable, ROOT / "scripts" / "study.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def keys(manifest, services, folder, monkeypatch):
    """The rows' keys after a run without inference, in the manifest's order."""
    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", lambda *_, **__: {})
    counts = list(study_here(load_dataset(manifest), services, Plan(), folder))
    return counts, [row["key"] for row in read_run(folder)[1]]


def test_keys_are_from_the_manifests_folder_and_the_same_wherever_the_command_is_run(
    tmp_path, services, monkeypatch, picture
):
    """In a folder with a space: named from the manifest, in full, above the folder, in full elsewhere, and in
    full through a link."""
    folder, other = tmp_path / "my photos", tmp_path / "other"
    for name in ("my photos/in/0.png", "my photos/1.png", "other/2.png", "other/3.png", "my photos/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, tmp_path / name)
    (tmp_path / "link").symlink_to(folder)
    names = ["in/0.png", folder / "1.png", "../other/2.png", other / "3.png", tmp_path / "link" / "4.png"]
    (folder / "scores.csv").write_text("image,mos\n" + "".join(f"{name},{i}\n" for i, name in enumerate(names)))
    expected = ["in/0.png", "1.png", "../other/2.png", str(other / "3.png"), "4.png"]
    monkeypatch.chdir(folder)
    assert keys(Path("scores.csv"), services, tmp_path / "run", monkeypatch) == ([0, 1, 2, 3, 4, 5], expected)
    for place, manifest in (
        (folder, folder / "scores.csv"),
        (folder, Path("../my photos/scores.csv")),
        (other, Path("../my photos/scores.csv")),
        (tmp_path, Path("link/scores.csv")),
        (tmp_path, Path("my photos/scores.csv")),
    ):
        monkeypatch.chdir(place)
        assert keys(manifest, services, tmp_path / "run", monkeypatch) == ([5], expected)
    # a report finds its pictures
    assert all(Path(row["image"]).is_absolute() for row in read_run(tmp_path / "run")[1])


def test_an_image_named_in_two_ways_is_listed_twice(tmp_path, services, monkeypatch, picture):
    shutil.copy(picture, tmp_path / "0.png")
    (tmp_path / "scores.csv").write_text(f"image,mos\n0.png,3\n{tmp_path / '0.png'},4\n")
    with pytest.raises(DatasetError, match=r"0\.png is listed again"):
        keys(tmp_path / "scores.csv", services, tmp_path / "run", monkeypatch)


# Scales


def test_a_told_range_is_kept_with_the_run_and_can_be_told_later(tmp_path, services, monkeypatch, picture):
    """No row depends on it: a run that is told its range afterwards keeps its rows, and one that is not told
    again keeps it."""
    shutil.copy(picture, tmp_path / "0.png")
    (tmp_path / "scores.csv").write_text("image,mos\n0.png,3\n")
    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", lambda *_, **__: {})
    for told, low, high in ((None, None, None), ((1, 5), 1, 5), (None, 1, 5), ((0, 10), 0, 10)):
        dataset = chosen(tmp_path / "scores.csv", None, mos_range=told)
        assert list(study_here(dataset, services, Plan(), tmp_path / "run"))[-1] == 1
        known = read_run(tmp_path / "run")[0]["dataset"]
        assert (known["low"], known["high"]) == (low, high)
    # the middle of 0..10 is that of 1..5
    assert dataset_info(read_run(tmp_path / "run")[0]).to_levels(5) == 3


# The command


def test_what_can_be_checked_is_checked_before_a_model_is_loaded(manifest, tmp_path, capsys, monkeypatch):
    """A client that cannot be made stands for the model: whoever comes that far fails otherwise."""
    monkeypatch.setattr("agentic_iqa_local.services.Services.client", lambda *_: pytest.fail("a model was loaded"))
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"identity": {"reads": "other"}}')
    for arguments, message in (
        ([tmp_path / "none.csv"], "none.csv: expected a data set"),
        ([manifest, "--out", tmp_path / "file"], "expected a folder that can be written"),
        ([manifest, "--out", tmp_path / "file" / "run"], "expected a folder that can be written"),
        ([manifest, "--out", "/proc/run"], "expected a folder that can be written"),  # nobody may write there
        ([manifest, "--out", tmp_path / "run"], "rows are of a run with other settings"),
        ([manifest, "--tools", "NIQEE"], "did you mean NIQE"),
        ([manifest, "--tools", "VSI"], "--tools VSI: expected images with references"),
        ([manifest, "--model", "nonsense"], "nonsense: there is none; fetch it"),
        ([manifest, "--query", " "], "--query: expected a question"),
        (
            [manifest, "--mos-range", 5, 1],
            "--mos-range 5 1: expected two numbers, the lower end of the scale first",
        ),
        ([manifest, "--mos-range", 1, 4], "correct line 2 of scores.csv"),
        ([manifest, "--split", "val"], "expected images of the split val"),
    ):
        out = [] if "--out" in arguments else ["--out", tmp_path / "new"]
        assert cli.main(["run", *map(str, [*arguments, *out, "--cpu"])]) == 2
        told = capsys.readouterr()
        assert message in told.err
        assert told.err.startswith("error: ")
        assert (len(told.err.splitlines()), told.out) == (1, "")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--limit", "0"],
        ["--limit", "-3"],
        ["--jobs", "0"],
        ["--timeout", "0"],
        ["--timeout", "nan"],
        ["--mos-range", "1"],
        ["--nonsense"],
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(manifest, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(manifest), "--out", str(tmp_path / "new"), *arguments])
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("error: ")
    assert re.search(r"[.?] All options: python scripts/study\.py (run )?--help\n$", told)
    assert len(told.splitlines()) == 1


def test_failures_are_counted_at_the_end(manifest, tmp_path, capsys, monkeypatch):
    def infer(image, *_, **__):
        return {"error": "cannot be decoded"} if image.endswith(("2.png", "4.png")) else {}

    monkeypatch.setattr("agentic_iqa_local.studies.run.infer", infer)
    in_this_process(monkeypatch)
    assert cli.main(["run", str(manifest), "--out", str(tmp_path / "run"), "--cpu"]) == 0
    assert capsys.readouterr().out.startswith(
        f"6 rows in {tmp_path / 'run'}, 2 of them failures (the first: cannot be decoded); next: "
    )


@pytest.mark.parametrize("command", ["run", "synthetic", "fit", "report", "compare"])
def test_each_commands_help_ends_with_an_example_of_it(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    assert f"\n  python scripts/study.py {command} " in capsys.readouterr().out.partition("examples:")[2]


def in_a_terminal(arguments, cwd, signal_after_rows=None):
    """(exit status, stdout, what stood on an 80-column terminal's lines) of study.py with a terminal as its
    stderr."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, ROOT / "scripts" / "study.py", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown, watched = b"", signal_after_rows
    while True:
        with contextlib.suppress(OSError):  # the terminal's last end has closed
            if select.select([screen], [], [], 0.1)[0]:
                if not (read := os.read(screen, 65536)):
                    break
                shown += read
                continue
        if watched and watched.exists() and watched.read_bytes().count(b"\n") >= 1:
            process.send_signal(signal.SIGTERM)
            watched = None
        if process.poll() is not None:
            break
    os.close(screen)
    return (
        process.wait(),
        process.stdout.read().decode(),
        re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown.decode())),
    )


def test_sigterm_keeps_the_rows_and_the_same_command_goes_on_from_another_folder(manifest, tmp_path):
    """With whole paths in a manifest that is named without a folder, as in `study.py run my40.csv --out
    run40`."""
    folder, run = tmp_path / "my study", tmp_path / "run 40"
    folder.mkdir()
    (folder / "my40.csv").write_text("image,mos\n" + "".join(f"{manifest.parent / f'{i}.png'},{i}\n" for i in range(6)))
    arguments = ["run", "my40.csv", "--out", run, "--cpu", "--contexts", "image_alone"]
    status, out, lines = in_a_terminal(arguments, folder, signal_after_rows=run / "rows.jsonl")
    kept = (run / "rows.jsonl").read_bytes()
    assert (status, out) == (130, "")
    number = kept.count(b"\n")
    assert f"interrupted: {number} of 6 images have their rows; the same command goes on" in lines
    assert 1 <= kept.count(b"\n") < 6
    status, out, lines = in_a_terminal(["run", "my study/my40.csv", *arguments[2:]], tmp_path)
    assert (status, out) == (0, f"6 rows in {run}; next: python scripts/study.py report '{run}' --out DIR\n")
    assert (run / "rows.jsonl").read_bytes().startswith(kept)
    assert sorted(row["key"] for row in read_run(run)[1]) == [str(manifest.parent / f"{i}.png") for i in range(6)]
    bars = [line for line in lines if "/6 " in line]
    assert bars
    assert max(map(len, bars)) <= 80


def test_questions_in_a_csv_file_are_asked_and_counted(tmp_path, photo):
    photo.crop((0, 0, 224, 224)).save(tmp_path / "a.png")
    (tmp_path / "my questions.csv").write_text(
        'image,question,choices,answer\na.png,Is it sharp?,Yes|No,No\na.png,"Which is it,'
        ' mostly?",noisy|blurred|fine,C\n'
    )
    done = study("run", "my questions.csv", "--out", "run", "--cpu", cwd=tmp_path)
    assert (done.returncode, done.stdout.partition(" in ")[0]) == (0, "2 rows"), done.stderr
    rows = {row["question"]: row for row in read_run(tmp_path / "run")[1]}
    assert {name: (row["choices"], row["answer"]) for name, row in rows.items()} == {
        "Is it sharp?": (["Yes", "No"], 1),
        "Which is it, mostly?": (["noisy", "blurred", "fine"], 2),
    }
    reported = study("report", "run", "--out", "report", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    with (tmp_path / "report" / "accuracy.csv").open() as file:
        (line,) = csv.DictReader(file)
    right = sum(row["answered"] == "ABC"[row["answer"]] for row in rows.values())
    assert (line["n"], float(line["accuracy"]), float(line["chance"])) == (
        "2",
        right / 2,
        pytest.approx((1 / 2 + 1 / 3) / 2, abs=1e-6),
    )


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
        enough = len(kept) + rng.integers(5 * 20000)  # a moment between two rows, or within one
        while rows.stat().st_size <= enough:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        content = rows.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        assert whole.startswith(kept)
        kept = whole
    with Store(tmp_path / "run", {}, {"n": 1}) as store:
        done = store.done
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
    list(study_here(load_dataset(tmp_path / "q.jsonl"), services, Plan(), tmp_path / "run"))
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
    centre, half = (
        (p + z * z / 2 / n) / (1 + z * z / n),
        z / (1 + z * z / n) * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5,
    )
    assert (line["n"], line["failed"], line["accuracy"]) == (4, 1, 0.75)
    assert (line["accuracy_low"], line["accuracy_high"]) == pytest.approx((centre - half, centre + half), abs=1e-5)
    assert line["chance"] == pytest.approx(1 / 3)
    assert line["p_right"] == pytest.approx(0.65)


def assessed(*arguments):
    command = [
        sys.executable,
        ROOT / "scripts" / "assess.py",
        "--cpu",
        "--pipeline",
        "letters",
        "--json",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_fit_changes_what_assess_gives_and_fits_of_other_models_are_refused(manifest, tmp_path):
    """At temperature 2 each p_c is the square root of the old one, renormalised."""
    about = {"objective": "rps", "dataset": "koniq10k", "model": folder_hash(EMBEDDED), "keys": ["a.jpg"]}
    fit = Fit(temperature=2.0, eta=0.5, **about)
    (tmp_path / "fit.json").write_text(fit.model_dump_json())
    (tmp_path / "other.json").write_text(revised(fit, model="another").model_dump_json())
    image = ("--image", manifest.parent / "3.png")
    plain, fitted = (json.loads(assessed(*image, *more).stdout) for more in ([], ["--fit", tmp_path / "fit.json"]))
    roots = {letter: p**0.5 for letter, p in plain["p_c"].items()}
    assert fitted["p_c"] == pytest.approx(
        {letter: root / sum(roots.values()) for letter, root in roots.items()}, abs=1e-6
    )
    # (2) and (4) of the paper with the fit's η
    weights = {
        c: math.exp(-0.5 * (plain["q_bar"] - c) ** 2) * fitted["p_c"][letter] for letter, c in LETTER_TO_LEVEL.items()
    }
    q = sum(c * weight for c, weight in weights.items()) / sum(weights.values())
    assert fitted["q"] == pytest.approx(q, abs=1e-6)
    assert abs(fitted["q"] - plain["q"]) > 0.01
    assert (fitted["fusion"]["eta"], fitted["fusion"]["temperature"]) == (0.5, 2.0)
    assert fitted["fusion"]["fitted"] == "rps on 1 images of koniq10k"
    refused = assessed(*image, "--fit", tmp_path / "other.json")
    assert refused.returncode == 2
    assert "made with another" in refused.stderr


def test_a_picture_of_a_study_that_changed_is_read_again(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"before")
    row = {"key": "a", "image": str(picture), "sha256": file_sha256(picture)}
    with Store(tmp_path / "run", {}, {}) as store:
        store.append(row)
    with Store(tmp_path / "run", {}, {}) as store:
        assert store.done == {"a"}
    picture.write_bytes(b"after")
    with Store(tmp_path / "run", {}, {}) as store:
        assert store.done == set()
