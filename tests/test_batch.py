"""Batches: what is read of a manifest, what a kill, Ctrl-C or a full disk leaves of the rows, and what
becomes of images that hang, fail or do not fit into memory. The model and the tools are real; what cannot be
had at will (a full device, a hung tool) is put into them."""

import errno
import gc
import importlib
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import EMBEDDED, ROOT
from PIL import Image
from scripted import in_this_process, loaded_batch
from test_assess import blocked  # noqa: F401 - a fixture

import agentic_iqa_local.batch.rows
from agentic_iqa_local.batch.inputs import Item, ManifestError, read_manifest, row_key
from agentic_iqa_local.batch.rows import RowFile, RowsError, WriteError, write_whole
from agentic_iqa_local.batch.runner import BatchError
from agentic_iqa_local.batch.runs import Results, identity
from agentic_iqa_local.batch.stored_row import as_line
from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.config import ModelSettings, load_settings
from agentic_iqa_local.images.reading import LoadedImage
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.runner import ToolRunner
from agentic_iqa_local.judgement.assessment import assess, file_sha256
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.detection import YES_NO
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient, TransformersSession

SIDE = 224  # NIQE needs 192 pixels


@pytest.fixture(scope="module")
def folder(photo, tmp_path_factory):
    """Sixty crops of the photograph."""
    folder = tmp_path_factory.mktemp("crops")
    for i in range(60):
        left, top = 4 * i, 3 * i
        photo.crop((left, top, left + SIDE, top + SIDE)).save(folder / f"{i:02d}.png")
    return folder


@pytest.fixture(scope="module")
def crops(folder):
    return [Item(path) for path in sorted(folder.glob("*.png"))]


@pytest.fixture
def script():
    return assess_command


def ask(settings=None, **changes):
    """The identity of a run of letters, but for `changes`."""
    plain = {
        "pipeline": "letters",
        "max_replan_iterations": None,
        "query": None,
        "choices": None,
        "reference": None,
        "relative": False,
    }
    return identity(settings or load_settings(), "cpu", **(plain | changes))


def lines(path):
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


# Manifests


def test_a_csv_and_json_lines_say_the_same(folder, tmp_path):
    """Paths are relative to the manifest, cells that are empty stand for the defaults."""
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes((folder / "00.png").read_bytes())
    (tmp_path / "rows.csv").write_text(
        'image, reference, query, choices\na.png\na.png,b.png,"Sharp, or not?",Yes|No\n', "utf-8-sig"
    )
    rows = [
        {"image": "a.png"},
        {"image": "a.png", "reference": "b.png", "query": "Sharp, or not?", "choices": ["Yes", "No"]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    expected = [
        Item(tmp_path / "a.png", None, "Rate it."),
        Item(tmp_path / "a.png", tmp_path / "b.png", "Sharp, or not?", ("Yes", "No")),
    ]
    assert read_manifest(tmp_path / "rows.csv", "Rate it.") == expected
    assert read_manifest(tmp_path / "rows.jsonl", "Rate it.") == expected
    assert read_manifest(tmp_path / "rows.csv")[0].query == DEFAULT_QUERY


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.csv", "image\na.png\n\nno.png\n", "line 4: image: there is no file"),
        ("m.csv", "image,reference\na.png,no.png\n", "line 2: reference: there is no file"),
        ("m.csv", "picture\na.png\n", "line 2: image: expected a value"),
        ("m.csv", "image\na.png\na.png\n", "line 3: the same as line 2"),
        ("m.csv", "image\na.png,b.png\n", "line 2: more cells"),
        ("m.jsonl", '{"image": "a.png", "query": "  "}\n', "line 1: query: expected"),
        ("m.csv", "image,choices\na.png,Yes\n", "line 2: choices: expected 2 to 10"),
        ("m.csv", "image\n", "found none"),
        ("m.csv", b"image\n\xff\xfe.png\n", "UTF-8"),
        ("m.jsonl", '{"image": "a.png"}\n{"image": 3}\n', "line 2: image:"),
        ("m.jsonl", '{"image": "a.png"}\n{"image": \n', "line 2: expected a JSON object"),
        ("m.jsonl", '["a.png"]\n', "line 1: expected a JSON object"),
        ("m.jsonl", '{"image": "a.png", "query": "\\ud800"}\n', "line 1: expected a JSON object"),
        (
            "m.jsonl",
            "\n".join(f'{{"image": "{i}.png"}}' for i in range(8)),
            "line 5: .*; and 3 more; correct",
        ),
        ("m.txt", "a.png\n", "named .csv or .jsonl"),
        ("m.jsonl", "[" * 100_000, "line 1: expected a JSON object"),
        (
            "m.jsonl",
            '{"image": "a.png", "image": "b.png"}\n',
            "line 1: expected a JSON object: expected each key once",
        ),
        (
            "m.jsonl",
            '{"image": "a\\u001b[2J.png"}\n',
            r"line 1: image: there is no file .*/a\\u001b\[2J\.png",
        ),
        ("m.csv", "image,image\na.png,a.png\n", "line 1: expected each column once, got image twice"),
        ("m.csv", f"image\na.png\n{'x' * 300}.png\n", "line 3: image: File name too long"),
    ],
)
def test_bad_rows_of_a_manifest_are_named(tmp_path, name, content, said):
    (tmp_path / "a.png").write_bytes(b"an image, for all the manifest knows")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ManifestError, match=said):
        read_manifest(tmp_path / name)


def test_columns_that_are_not_used_are_told(tmp_path, caplog):
    (tmp_path / "a.png").touch()
    (tmp_path / "m.csv").write_text("image,refrence\na.png,b.png\n")
    read_manifest(tmp_path / "m.csv")
    assert "refrence" in caplog.text


# Rows


def test_a_run_goes_on_only_with_resume_and_what_its_rows_depend_on(tmp_path, crops, services, monkeypatch):
    path, first = tmp_path / "rows.jsonl", ask()
    row = next(loaded_batch(services, pipeline="letters").rows(crops[:1]))
    with_results(path, first, [row])
    with pytest.raises(RowsError, match="add --resume"):
        Results(path, first)
    monkeypatch.chdir(tmp_path)
    settings = load_settings()
    others = {
        "fusion": ask(
            settings.model_copy(update={"fusion": settings.fusion.model_copy(update={"mode": "uniform"})})
        ),
        "query": ask(query="Is it sharp?"),
        "choices": ask(choices=["Yes", "No"]),
        "reference": ask(reference=Path("a.png")),
        "pipeline": ask(pipeline="agent"),
        "max_replan_iterations": ask(max_replan_iterations=1),
        "tool maps": ask(
            settings.model_copy(update={"tools": settings.tools.model_copy(update={"maps": str(path)})})
        ),
        "working folder": ask(relative=True),
    }
    for name, other in others.items():
        with pytest.raises(RowsError, match=f"other settings: .*{name}.* was .*, is now"):
            Results(path, other, resume=True)
    for name, value in {
        "device": "cuda",
        "versions": {"torch": "1.0"},
        "tool weights": "of another bundle",
    }.items():
        assert first[name] != value
        with pytest.raises(RowsError, match=f"other settings: {name}.* was .*, is now"):
            Results(path, first | {name: value}, resume=True)
    assert with_results(path, first, [], resume=True).done == {crops[0].key}
    assert lines(path) == [json.loads(as_line(row))]


def with_results(path, identity, rows, **options):
    results = Results(path, identity, **options)
    for row in rows:
        results.append(row)
    results.close()
    return results


def test_a_background_may_be_set_for_the_pictures_that_failed_without_one_and_not_changed_again(
    tmp_path, crops, services
):
    path, settings = tmp_path / "rows.jsonl", load_settings()
    rows = list(loaded_batch(services, pipeline="letters").rows(crops[:1]))
    with_results(path, ask(), rows)
    assert with_results(path, ask(settings.with_options(background="white")), [], resume=True).done == {
        crops[0].key
    }
    with pytest.raises(RowsError, match=r'images.background was "white", is now "black"'):
        Results(path, ask(settings.with_options(background="black")), resume=True)


def test_mending_a_configuration_whose_rows_all_failed_goes_on_in_the_same_file(tmp_path, services):
    """Every row is a failure that is assessed again, so no row stays that the old settings made."""
    path, bad = tmp_path / "rows.jsonl", Item(tmp_path / "bad.png")
    bad.image.touch()
    with_results(path, ask(), loaded_batch(services, pipeline="letters").rows([bad]))
    mended = ask(query="Is it sharp?")
    with pytest.raises(RowsError, match=r"query was .*, is now"):
        Results(path, mended, resume=True)
    assert with_results(path, mended, [], resume=True, retry={bad.key}).done == set()
    assert lines(path) == []


def test_another_model_folder_is_another_run(flat_model):
    assert ask()["model"]["embedded"] != ask(load_settings().with_options(model=flat_model))["model"]["flat"]


def test_failed_rows_are_taken_out_to_be_assessed_again(tmp_path, folder, services):
    """A file that was damaged and has been repaired: its row is replaced, the others stay as they are."""
    bad, good, path = tmp_path / "bad.png", Item(folder / "00.png"), tmp_path / "rows.jsonl"
    bad.touch()
    batch = loaded_batch(services, pipeline="letters")
    kept = with_results(path, ask(), batch.rows([Item(bad), good]))
    assert kept.failed == 1
    bad.write_bytes((folder / "01.png").read_bytes())
    before = path.read_bytes().splitlines()
    # left alone unless it is asked for
    assert with_results(path, ask(), [], resume=True).done == {
        good.key,
        Item(bad).key,
    }
    other = Item(tmp_path / "other.png")
    results = Results(path, ask(), resume=True, retry={other.key})
    assert results.failed == 1  # not among the items of this run
    results.close()
    results = Results(path, ask(), resume=True, retry={Item(bad).key, other.key})
    assert results.done == {good.key}
    with pytest.raises(RowsError, match="another process"):
        Results(path, ask(), resume=True)
    for row in batch.rows([Item(bad)]):
        results.append(row)
    results.close()
    assert path.read_bytes().splitlines()[0] == before[1]
    assert [(row["image"], row["error"]) for row in lines(path)] == [
        (str(good.image), None),
        (str(bad), None),
    ]
    assert results.failed == 0


def test_a_file_of_something_else_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text('{"a": 1}\n')
    (tmp_path / "notes.jsonl.run.json").write_text(json.dumps({"identity": json.loads(json.dumps(ask()))}))
    with pytest.raises(RowsError, match="expected rows"):
        Results(path, ask(), resume=True)
    assert path.read_text() == '{"a": 1}\n'
    for device in ("/dev/full", tmp_path):
        with pytest.raises(RowsError, match="expected a regular file"):
            RowFile(Path(device))


@pytest.mark.parametrize(
    "content", [b"notes without an end of line", b"\x89PNG\r\n\x1a\n" + bytes(range(200))]
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_no_rows_keeps_every_byte(content, resume, tmp_path):
    (tmp_path / "own.txt").write_bytes(content)
    with pytest.raises(RowsError):
        Results(tmp_path / "own.txt", ask(), resume=resume)
    assert (tmp_path / "own.txt").read_bytes() == content
    assert [place.name for place in tmp_path.iterdir()] == ["own.txt"]


def test_a_name_that_is_too_long_or_no_text_is_no_traceback(tmp_path, monkeypatch):
    with pytest.raises(RowsError, match="File name too long"):
        RowFile(tmp_path / ("x" * 300))
    monkeypatch.setattr(sys, "argv", ["assess.py", "\udcff.png"])
    Results(tmp_path / "rows.jsonl", ask(query="\udcff")).close()
    Results(tmp_path / "rows.jsonl", ask(query="\udcff"), resume=True).close()


def die(results):
    """What a kill leaves: the file is unlocked, and nothing is put in order."""
    results._rows.close()


def test_what_was_in_hand_when_a_process_died_comes_last_and_alone(tmp_path, crops, services):
    """An image that kills its process would otherwise end every run at the same place."""
    path, fatal = tmp_path / "rows.jsonl", crops[1]

    def rows_of(results, items):
        """The items' rows by a process that dies of `fatal`; how many it began at the most at once."""
        left = sorted(
            (item for item in items if item.key not in results.done),
            key=lambda item: item.key in results.suspects,
        )
        batch = loaded_batch(services, jobs=2, pipeline="letters")
        for item in results.begun(left):
            if item is fatal:
                return die(results)
            (row,) = batch.rows([item], results.suspects)
            results.append(row)
        return results.close()

    results = Results(path, ask())
    taken = results.begun(crops[:3])
    next(taken), next(taken)
    die(results)  # with the first two in hand
    for deaths in (1, 2, 3):
        results = Results(path, ask(), resume=True)
        expected = {item.key for item in crops[:2]} if deaths == 1 else {fatal.key}
        assert set(results.suspects) == expected
        assert results.suspects[fatal.key] == deaths - 1
        rows_of(results, crops[:3])
        assert [row["image"] for row in lines(path)] == [str(crops[2].image), str(crops[0].image)]
    results = Results(path, ask(), resume=True)
    (row,) = loaded_batch(services, pipeline="letters").rows([fatal], results.suspects)
    assert "3 processes died while they assessed this image alone" in row.error
    results.append(row)
    results.close()
    assert not (tmp_path / "rows.jsonl.in_hand.json").exists()


def test_who_ends_in_order_suspects_nothing_but_what_lost_its_model(tmp_path, crops, services):
    path = tmp_path / "rows.jsonl"
    for end, expected in (
        (lambda results: results.close(), {}),
        (lambda results: (results.settle(), die(results)), {}),  # a second Ctrl-C
        (lambda results: results.close(lost=True), {crops[1].key: 0}),
        (lambda results: results.close(lost=True), {crops[1].key: 0}),  # no process died of it
        (die, {crops[1].key: 1}),
    ):
        results = Results(path, ask(), resume=True)
        for item in results.begun(crops[:2]):
            if item.key not in results.done and item is crops[0]:
                results.append(assess(item.image, pipeline="letters", services=services))
        results._note({crops[1].key})
        end(results)
        results = Results(path, ask(), resume=True)
        assert results.suspects == expected
        die(results)


def test_an_image_that_loses_its_model_comes_last_when_the_run_goes_on(
    script, services, folder, tmp_path, monkeypatch, capfd
):
    images, path = sorted(folder.glob("*.png"))[:3], tmp_path / "rows.jsonl"
    real, calls = TransformersSession.read_letters, []

    def lost(session, *args):
        calls.append(session)
        if len(calls) == 2:
            raise ModelLost("the engine is gone")
        return real(session, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersSession, "read_letters", lost)
        assert command(script, patch, services, "--image", *images, "--out", path) == (1, "")
    assert "error: the engine is gone; go on with:" in capfd.readouterr().err
    assert [row["image"] for row in lines(path)] == [str(images[0])]
    assert command(script, monkeypatch, services, "--image", *images, "--out", path, "--resume") == (0, "")
    assert [row["image"] for row in lines(path)] == [str(images[i]) for i in (0, 2, 1)]
    assert "died with 1 picture in hand: it comes last" in capfd.readouterr().err
    assert not path.with_name("rows.jsonl.in_hand.json").exists()


def test_a_disk_that_is_full_at_the_end_too_is_one_sentence(tmp_path, crops, monkeypatch):
    results = Results(tmp_path / "rows.jsonl", ask())
    next(results.begun(crops))

    def full(*_, **__):
        raise WriteError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("agentic_iqa_local.batch.runs.write_whole", full)
        results.close(lost=True)
    assert set(Results(tmp_path / "rows.jsonl", ask(), resume=True).suspects) == {crops[0].key}
    with pytest.raises(RowsError, match="could not be written"):
        write_whole(tmp_path / "none" / "a.json", "{}")


def test_suspects_are_assessed_one_at_a_time(crops, services, monkeypatch):
    batch, most = loaded_batch(services, jobs=3, pipeline="letters"), []
    start = batch._start
    monkeypatch.setattr(batch, "_start", lambda attempt: (start(attempt), most.append(len(batch._running))))
    rows = list(batch.rows(crops[:6], {item.key: 0 for item in crops[3:6]}))
    assert {row.image for row in rows} == {str(item.image) for item in crops[:6]}
    assert max(most[:3]) == 3
    assert most[3:] == [1, 1, 1]


def test_a_model_that_is_lost_ends_the_batch_without_a_row(crops, services, monkeypatch):
    def gone(*_, **__):
        raise ModelLost("server http://127.0.0.1:1: expected a vLLM server, got none")

    monkeypatch.setattr(TransformersSession, "read_letters", gone)
    rows = []
    with pytest.raises(ModelLost, match="expected a vLLM server, got none"):
        rows.extend(loaded_batch(services, jobs=2, pipeline="letters").rows(crops[:6]))
    assert rows == []


def test_a_broken_card_is_a_lost_model(client, photo, monkeypatch):
    def broken(**_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(client.model, "forward", broken)
    session = client.open([photo])
    with pytest.raises(ModelLost, match="illegal memory access"):
        session.read_letters(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), ANSWER_PREFIX, LETTERS)
    session.close()


def test_a_write_that_the_kernel_breaks_off_leaves_whole_rows(tmp_path):
    """A limit on the size of files makes the kernel take the first part of a row and refuse the rest, as a
    full disk does."""
    writer = (
        "import resource, sys; from pathlib import Path; from agentic_iqa_local.batch.rows import RowFile,"
        " WriteError\nresource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500)); rows ="
        ' RowFile(Path(sys.argv[1]))\nfor i in range(9): rows.append(\'{"n": %d, "filler": "%s"}\' % (i,'
        " 'x' * 975))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", writer, tmp_path / "rows.jsonl"], cwd=ROOT, capture_output=True, text=True
    )
    assert "WriteError" in done.stderr
    # of 998 bytes each; a third would end at 2994
    assert [row["n"] for row in lines(tmp_path / "rows.jsonl")] == [
        0,
        1,
    ]


# The command


def command(script, monkeypatch, services, *args):
    """(status, whatever stdout got) of assess.py in this process, on the loaded model."""
    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: services)
    in_this_process(monkeypatch)
    parsed = script.parse(["--cpu", "--pipeline", "letters", *map(str, args)], "")
    console = Console(io.StringIO())
    return (
        script.AssessRun(parsed, services.settings, script.wanted(parsed, console), "cpu", console).finish(),
        console.results.getvalue(),
    )


def test_pictures_that_changed_are_assessed_again_and_those_that_are_gone_count_nowhere(
    script, services, folder, tmp_path, monkeypatch, capfd
):
    pictures, path, table = tmp_path / "pictures", tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    pictures.mkdir()
    for i in range(4):
        shutil.copy(folder / f"{i:02d}.png", pictures)
    words = ("--image", pictures, "--out", path, "--csv", table)
    command(script, monkeypatch, services, *words)
    before = {Path(row["image"]).name: row for row in lines(path)}
    shutil.copy(folder / "59.png", pictures / "00.png")
    (pictures / "01.png").rename(pictures / "renamed.png")
    (pictures / "02.png").unlink()
    assert command(script, monkeypatch, services, *words, "--resume")[0] == 0
    rows = {Path(row["image"]).name: row for row in lines(path)}
    assert rows["00.png"]["sha256"] == file_sha256(folder / "59.png") != before["00.png"]["sha256"]
    assert rows["03.png"] == before["03.png"]
    assert rows["02.png"] == before["02.png"]  # it stays in the file: the disk may only be away
    said = capfd.readouterr().err
    assert f"changed since, assessed again: 1 ({pictures / '00.png'})" in said
    assert "3 pictures: " in said
    assert f"no longer there: 2 ({pictures / '01.png'}, {pictures / '02.png'})" in said
    listed = table.read_text(encoding="utf-8-sig")
    assert {name for name in rows if f"/{name}," in listed} == {"00.png", "03.png", "renamed.png"}


def test_a_picture_that_nobody_touched_since_is_not_read_again(tmp_path, folder, services, monkeypatch):
    path, item = tmp_path / "rows.jsonl", Item(folder / "00.png")
    with_results(path, ask(), loaded_batch(services, pipeline="letters").rows([item]))
    description = tmp_path / "rows.jsonl.run.json"
    run = json.loads(description.read_text())
    read = []
    monkeypatch.setattr("agentic_iqa_local.batch.runs.file_sha256", lambda path: read.append(path))
    description.write_text(json.dumps(run | {"date": "2999-01-01T00:00:00+0000"}))
    assert with_results(path, ask(), [], resume=True, asked={item.key}).done == {item.key}
    assert read == []
    description.write_text(json.dumps(run | {"date": "1999-01-01T00:00:00+0000"}))
    assert with_results(path, ask(), [], resume=True, asked={item.key}).done == set()
    assert read == [str(item.image)]


def test_a_row_whose_reference_was_written_since_is_made_again(tmp_path, folder, services):
    path = tmp_path / "rows.jsonl"
    reference = Path(shutil.copy(folder / "00.png", tmp_path))
    os.utime(reference, (0, 0))
    item = Item(folder / "01.png", reference)
    with_results(path, ask(), loaded_batch(services, pipeline="letters").rows([item]))
    assert with_results(path, ask(), [], resume=True, asked={item.key}).done == {item.key}
    os.utime(reference)
    assert with_results(path, ask(), [], resume=True, asked={item.key}).changed == [str(item.image)]


def test_a_full_disk_ends_the_run_and_it_goes_on_later(
    script, services, folder, tmp_path, monkeypatch, capfd
):
    path = tmp_path / "rows.jsonl"
    real, calls = agentic_iqa_local.batch.rows._write, []

    def fills_up(file, data):
        calls.append(data)
        if len(calls) == 3:
            file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data)

    images = sorted(folder.glob("*.png"))[:4]
    with monkeypatch.context() as patch:
        patch.setattr(agentic_iqa_local.batch.rows, "_write", fills_up)
        assert command(script, patch, services, "--image", *images, "--out", path) == (1, "")
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert "--resume" in said
    assert [row["image"] for row in lines(path)] == list(map(str, images[:2]))
    assert command(script, monkeypatch, services, "--image", *images, "--out", path, "--resume") == (0, "")
    assert [row["image"] for row in lines(path)] == list(map(str, images))
    monkeypatch.setattr(
        "agentic_iqa_local.batch.runner.Batch", None
    )  # nothing is left to do, so nothing is loaded
    assert command(script, monkeypatch, services, "--image", *images, "--out", path, "--resume") == (0, "")


def test_a_stdout_that_takes_nothing_ends_the_run_in_a_sentence(script, services, folder, monkeypatch, capfd):
    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: services)
    in_this_process(monkeypatch)
    parsed = script.parse(["--cpu", "--pipeline", "letters", "--image", str(folder / "00.png")], "")
    with open("/dev/full", "w", buffering=1) as full:
        assert (
            script.AssessRun(
                parsed, services.settings, script.wanted(parsed, console := Console(full)), "cpu", console
            ).finish()
            == 1
        )
    said = capfd.readouterr().err
    assert "error: stdout: a row could not be written (No space left on device); with --out FILE" in said


@pytest.mark.parametrize(("name", "started"), [("assess", "assess_all"), ("doctor", "examine_all")])
def test_ctrl_c_at_any_time_is_status_130(name, started, monkeypatch, capsys):
    module = importlib.import_module(f"agentic_iqa_local.cli.{name}")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, started, interrupted)
    assert module.main(["--list-tools"] if name == "assess" else []) == 130
    assert capsys.readouterr().err.startswith("interrupted")


@pytest.mark.parametrize("jobs", ["0", "257"])
def test_more_at_once_than_a_process_can_have_is_wrong_usage(script, jobs, capsys):
    with pytest.raises(SystemExit, match="2"):
        script.parse(["--image", "a.png", "--jobs", jobs], "")
    assert "--jobs: expected 1 to 256" in capsys.readouterr().err


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    script, services, folder, tmp_path, monkeypatch, capfd
):
    (tmp_path / "m.csv").write_text(f"image\n{folder / '00.png'}\n{folder / '01.png'}\n")
    monkeypatch.setattr("agentic_iqa_local.cli.console.SECONDS_BETWEEN_LINES", 0)
    status, out = command(script, monkeypatch, services, "--manifest", tmp_path / "m.csv")
    assert status == 0
    assert [json.loads(line)["image"] for line in out.splitlines()] == [
        str(folder / "00.png"),
        str(folder / "01.png"),
    ]
    said = capfd.readouterr().err
    assert "1/2 [" in said
    assert "2/2 [" in said
    assert "picture" in said.split("2/2 [")[1]


def begin(env, path, *args):
    return subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "assess.py", "--cpu", "--pipeline", "letters", "--out", path, *args],
        env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def wait_for_more(process, path, size):
    while path.stat().st_size <= size if path.exists() else True:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


def test_kills_and_ctrl_c_lose_no_row_and_repeat_none(blocked, folder, tmp_path):  # noqa: F811
    path, kept, moment = tmp_path / "rows.jsonl", b"", random.Random(0)
    images = ["--image", folder / "[0-2]?.png", "--resume"]
    for kill in range(2):
        process = begin(blocked, path, *images)
        wait_for_more(process, path, len(kept) + moment.randrange(10_000))
        if kill == 0:
            process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
            second = begin(blocked, path, *images)
            _, said = second.communicate()
            process.send_signal(signal.SIGCONT)
            assert second.returncode == 2
            assert "another process" in said
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        whole = path.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        assert whole.startswith(kept)
        kept = whole
    gallery = tmp_path / "gallery.html"
    process = begin(blocked, path, *images, "--gallery", gallery)
    wait_for_more(process, path, len(kept))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert path.read_bytes().startswith(kept)
    before = lines(path)
    assert f"interrupted: {len(before)} of 30 pictures" in said
    assert in_gallery(gallery) == [row["image"] for row in before]
    go_on = shlex.split(said.rpartition("go on with: ")[2])
    done = subprocess.run(go_on, env=blocked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = lines(path)
    assert rows[: len(before)] == before
    assert sorted(row["image"] for row in rows) == sorted(map(str, folder.glob("[0-2]?.png")))  # each once
    assert all(1 <= row["q"] <= 5 for row in rows)
    assert in_gallery(gallery) == [row["image"] for row in rows]


def in_gallery(file):
    """The pictures of a gallery, in their order."""
    index = re.search('<script type="application/json" id="index">(.*?)</script>', file.read_text())[1]
    return [row["image"] for row in json.loads(index)["rows"]]


def test_a_gallery_without_a_file_of_rows(script, services, folder, tmp_path, monkeypatch):
    pictures = [str(folder / "00.png"), str(folder / "01.png")]
    status, _ = command(script, monkeypatch, services, *pictures, "--gallery", tmp_path / "gallery.html")
    assert status == 0
    assert in_gallery(tmp_path / "gallery.html") == pictures


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("none/gallery.html", "--gallery .*: there is no folder .*mkdir -p"),
        (".", "--gallery .*: expected a regular file, got a folder"),
        ("rows.jsonl.run.json", "a gallery is an HTML page"),
        ("a.png", "a gallery is an HTML page"),
        ("rows.csv", "a gallery is an HTML page"),
    ],
)
def test_a_place_for_no_gallery_is_told_before_anything_is_loaded(
    script, folder, tmp_path, file, said, capsys
):
    (tmp_path / "a.png").write_bytes((folder / "00.png").read_bytes())
    files = {"--out": "rows.jsonl", "--csv": "rows.csv", "--gallery": file}
    words = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    with pytest.raises((script.UsageError, SystemExit)) as refused:  # noqa: PT012 - parsing or running
        args = script.parse(["--cpu", str(tmp_path / "a.png"), *words], "")
        script.assess_all(args, Console(io.StringIO()))
    assert re.search(said, " ".join(f"{capsys.readouterr().err} {refused.value}".split()))


# Batches


def test_several_at_once_give_what_each_gives_alone(crops, services):
    alone = {item.key: assess(item.image, pipeline="letters", services=services).q for item in crops[:6]}
    rows = list(loaded_batch(services, jobs=3, pipeline="letters").rows(crops[:6]))
    assert {row_key(row.model_dump()): row.q for row in rows} == pytest.approx(alone, abs=1e-6)


def test_an_error_of_any_kind_is_a_row_and_the_others_go_on(crops, services, client, monkeypatch):
    real = client.open

    def broken(images):
        if images[0].getpixel((0, 0)) == Image.open(crops[1].image).getpixel((0, 0)):
            raise KeyError("no such thing")
        return real(images)

    monkeypatch.setattr(client, "open", broken)
    rows = list(loaded_batch(services, pipeline="letters").rows(crops[:3]))
    assert [row.error for row in rows] == [None, "embedded: KeyError: 'no such thing'", None]
    assert rows[1].q is None
    assert len(rows[1].sha256) == 64


class SmallDevice:
    """The model's forward pass where only `tokens` fit: what is more makes torch look for memory that no
    machine has."""

    def __init__(self, client, monkeypatch, tokens):
        self.real, self.tokens, self.failures = client.model.forward, tokens, 0
        monkeypatch.setattr(client.model, "forward", self.forward)

    def fits(self, tokens):
        return tokens <= self.tokens

    def forward(self, input_ids, **inputs):
        if not self.fits(input_ids.shape[1]):
            self.failures += 1
            torch.empty(1 << 60, dtype=torch.uint8)
        return self.real(input_ids=input_ids, **inputs)


def test_an_image_that_does_not_fit_is_seen_in_smaller_pieces(
    photo_path, crops, services, client, monkeypatch
):
    """512×512 pixels are 256 image tokens of 32×32. With 150 tokens less than they need, the whole does not
    fit and a half (at most 128 tokens) does. The score is that of a model whose limit is half of 512×512."""
    whole = assess(photo_path, pipeline="letters", services=services)
    half = ModelSettings(path=str(EMBEDDED), max_pixels=512 * 512 // 2)
    expected = assess(
        photo_path,
        pipeline="letters",
        services=Services(
            services.settings,
            "cpu",
            {"transformers.embedded": TransformersClient("embedded", half, "cpu")},
            services.tools,
        ),
    )
    prompt = whole.tokens.prefilled - whole.seen.tokens
    device = SmallDevice(client, monkeypatch, prompt + 128)
    row, other = loaded_batch(services, pipeline="letters").rows([Item(Path(photo_path)), crops[0]])
    assert device.failures == 2  # among others and alone
    assert row.error is None
    assert "at most 131072 pixels" in row.warnings[-1]
    assert all(view.pixels[0] * view.pixels[1] <= 512 * 512 // 2 for view in row.seen.views)
    assert len(row.seen.views) > 1
    assert row.q == pytest.approx(expected.q, abs=1e-5)
    assert row.q != pytest.approx(whole.q, abs=1e-5)
    assert not any("memory" in line for line in other.warnings)


def test_where_nothing_fits_the_row_is_a_failure_after_two_halvings(
    photo_path, services, client, monkeypatch
):
    device = SmallDevice(client, monkeypatch, 0)
    (row,) = loaded_batch(services, pipeline="letters").rows([Item(Path(photo_path))])
    assert device.failures == 4  # among others, alone, half, quarter
    assert row.q is None
    assert "memory ran out" in row.error
    # half of 352², the largest square of 32s within half of 512²
    assert "alone, with at most 61952 pixels" in row.error
    assert len(row.sha256) == 64


def test_an_agent_that_ran_out_of_memory_half_way_gives_no_score(crops, services, monkeypatch):
    """The graph makes an executor's failure a gap in the evidence and goes on; a batch must not take that for
    an answer."""
    real = TransformersSession.read_letters

    def read_letters(self, prompt, answer_prefix, letters):
        if tuple(letters) == YES_NO:
            raise OutOfMemory("memory ran out")
        return real(self, prompt, answer_prefix, letters)

    monkeypatch.setattr(TransformersSession, "read_letters", read_letters)
    (row,) = loaded_batch(services).rows(crops[:1])
    assert "memory ran out" in row.error
    assert row.q is None


def test_what_fits_alone_is_assessed_alone_and_fewer_at_once_follow(crops, services, client, monkeypatch):
    alone = {item.key: assess(item.image, pipeline="letters", services=services).q for item in crops[:6]}
    batch = loaded_batch(services, jobs=4, pipeline="letters")
    device = SmallDevice(client, monkeypatch, 0)
    device.fits = lambda _: len(batch._running) < 2
    rows = list(batch.rows(crops[:6]))
    assert device.failures > 0
    assert batch.window == 1
    assert {row_key(row.model_dump()): row.q for row in rows} == pytest.approx(alone, abs=1e-6)
    assert not any("memory" in line for row in rows for line in row.warnings)


def test_a_tool_that_ran_out_of_memory_is_asked_again_before_another_stands_in(crops, services, monkeypatch):
    real, failed = ToolRunner._run, []

    def exhausted_once(self, spec, *rest):
        if not failed:
            failed.append(spec.name)
            raise ToolError(f"{spec.name} failed") from torch.OutOfMemoryError("CUDA out of memory")
        return real(self, spec, *rest)

    monkeypatch.setattr(ToolRunner, "_run", exhausted_once)
    (row,) = loaded_batch(services).rows(crops[:1])
    assert failed
    assert row.error is None
    assert not any(log.fallback for log in row.tools)


class HangingTools:
    """Tools that do not return for some images, whose time is declared over as soon as they hang."""

    def __init__(self, batch, monkeypatch, hang):
        self.batch, self.hang, self.real, self.end = batch, hang, ToolRunner._run, threading.Event()
        monkeypatch.setattr(ToolRunner, "_run", lambda *args: self.run(*args))

    def run(self, runner, spec, metric, *pictures):
        for attempt in list(self.batch._running):
            if attempt.item in self.hang and attempt.busy and not attempt.waiting:
                attempt.deadline = 0
                self.end.wait()
        return self.real(runner, spec, metric, *pictures)


@pytest.fixture
def hanging(monkeypatch):
    """Makes tools hang, and lets go of them also after a failed assertion: they hold the lock that later
    tests wait for."""
    made = []

    def hang(batch, items):
        made.append(HangingTools(batch, monkeypatch, items))

    yield hang
    for tools in made:
        tools.end.set()


def test_a_tool_that_hangs_fails_its_image_and_the_others_go_on(crops, services, hanging, caplog):
    """The second of three at once hangs while it holds the tools; whoever waits for them is served by fresh
    ones."""
    batch = loaded_batch(services, jobs=3, pipeline="letters")
    hanging(batch, crops[1:2])
    rows = {row.image: row for row in batch.rows(crops[:6])}
    late = rows.pop(str(crops[1].image))
    assert "timed out after 600 s in NIQE" in late.error
    assert len(late.sha256) == 64
    assert late.q is None
    assert [row.error for row in rows.values()] == [None] * 5
    assert "still in NIQE" in caplog.text
    assert batch.unfinished


def test_when_too_many_hang_the_run_ends_and_says_where(crops, services, hanging):
    batch = loaded_batch(services, pipeline="letters")
    hanging(batch, crops[:6])
    more = batch.rows(crops)
    rows = [next(more) for _ in range(3)]
    with pytest.raises(BatchError, match=r"assessments do not return .*00\.png in NIQE"):
        next(more)
    assert [row.image for row in rows] == [str(item.image) for item in crops[:3]]


def test_a_hung_tool_that_keeps_the_models_waiting_ends_the_run_at_once(
    crops, services, hanging, monkeypatch
):
    """The others would wait for the model until their time is over: rows of failures that are none of
    theirs."""
    for module in ("batch", "workbench"):
        monkeypatch.setattr(f"agentic_iqa_local.{module}.ALONE", ("NIQE",))
    batch, rows = loaded_batch(services, jobs=3, pipeline="letters"), []
    hanging(batch, crops[:1])
    with pytest.raises(BatchError, match=r"assessments do not return .*00\.png in NIQE"):
        rows.extend(row.image for row in batch.rows(crops[:6]) if row.error)
    assert rows == [str(crops[0].image)]


def test_a_stop_keeps_what_is_in_hand_and_begins_nothing(crops, services):
    batch = loaded_batch(services, jobs=2, pipeline="letters")
    rows = []
    for row in batch.rows(crops):
        rows.append(row)
        batch.stop()
    assert 1 <= len(rows) <= 2
    assert not batch.unfinished


def test_memory_does_not_grow_with_the_number_of_images(crops, services):
    """Nothing of an assessment is kept. A session that were kept with its caches would take 4 MB, so forty of
    them 160 MB; without any, the resident size moves by some 40 MB as pictures and threads come and go."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kept():
        gc.collect()
        return sum(
            type(thing) in (TransformersSession, Assessment, LoadedImage) for thing in gc.get_objects()
        )

    before, sizes = kept(), []
    for _ in loaded_batch(services, jobs=2, pipeline="letters").rows(crops):
        sizes.append(resident())
    assert min(sizes[50:]) - max(sizes[10:20]) < 40e6
    assert kept() <= before + 1  # the last row is still in hand here
