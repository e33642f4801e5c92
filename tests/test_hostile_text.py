"""Text that would steer a terminal, end a line, run in a spreadsheet or be markup, given at every door: none
comes out alive.

A case is an attack at one door, by the door's name and its own. It returns what came out, on stdout, stderr,
in rows and in files.
"""

import ast
import csv
import io
import json
import logging
import os
import re
import shutil
import time
import warnings
from pathlib import Path

import pytest
from conftest import EMBEDDED, ROOT
from PIL import Image, PngImagePlugin
from scripted import (
    ScriptedClient,
    ScriptedTools,
    loaded_batch,
    moderate_blur,
    plan_reply,
    scripted_answers,
    scripted_services,
)
from test_hostile_server import MODELS, VERSION, connect, send, server  # noqa: F401
from test_study_report import analysed, make_rows, make_run, store

from agentic_iqa_local import assess
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli import bundle, console, fit_tools, study
from agentic_iqa_local.cli import doctor as doctor_command
from agentic_iqa_local.cli import store as store_command
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.iqa_tools import ToolError, ToolInfo
from agentic_iqa_local.judgement.fit import Fit, FitError, read_fit
from agentic_iqa_local.offline.doctor.checks import Setup, as_text, check
from agentic_iqa_local.offline.writing import Piece, describe, write_bundle
from agentic_iqa_local.output.report import account, headline, summary, tool_table
from agentic_iqa_local.output.tables import csv_text, markdown_cell, safe_cell
from agentic_iqa_local.output.tally import Tally
from agentic_iqa_local.studies.compare import Named, compare
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset
from agentic_iqa_local.studies.report import digest
from agentic_iqa_local.studies.store import Store, read_run
from agentic_iqa_local.text import path_text
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.rendering import Renderer, check_folder, loading

STEERING = "\x1b[2J\x1b]0;owned\x07\x9b2J\u202e\u2028\r\n"
NO_UTF8 = os.fsdecode(b"\xff\xfe")
TEXT = f"a{STEERING}z"  # what JSON and UTF-8 can hold
NAME = f"a{STEERING}{NO_UTF8}z"  # what a file can be called
# Controls, marks of direction, separators of lines and what is no character, by code point: Unicode's
# categories Cc, Cf, Zl, Zp, Cs.
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def assert_harmless(text: str, lines: int | None = None) -> None:
    assert not STEERS.search(text), text
    assert "Traceback" not in text
    if lines is not None:
        assert len(text.splitlines()) == lines, text


# Commands


def commands():
    """Command lines by what of them is hostile, each refused before anything is loaded. `HOSTILE` is put in
    place by the test."""
    plain = {
        "picture": ["HOSTILE.jpg"],
        "picture that is no file": ["HOSTILE"],
        "question in a picture's place": ["is it HOSTILE"],
        "glob": ["HOSTILE*.gif"],
        "image option": ["--image", "HOSTILE.png"],
        "address": ["http://HOSTILE/x.png"],
        "reference": ["PHOTO", "--reference", "HOSTILE.png"],
        "manifest's name": ["--manifest", "HOSTILE.csv"],
        "manifest's suffix": ["--manifest", "x.HOSTILE"],
        "manifest and a picture": ["--manifest", "x.csv", "HOSTILE.png"],
        "out's folder": ["PHOTO", "--out", "HOSTILE/rows.jsonl"],
        "out's suffix": ["PHOTO", "--out", "HOSTILE.xlsx"],
        "out and csv": ["PHOTO", "--out", "HOSTILE.csv", "--csv", "HOSTILE.csv"],
        "csv's folder": ["PHOTO", "--csv", "HOSTILE/rows.csv"],
        "config's name": ["PHOTO", "--config", "HOSTILE"],
        "config's file": ["PHOTO", "--config", "HOSTILE.yaml"],
        "fit": ["PHOTO", "--fit", "HOSTILE.json"],
        "query": ["PHOTO", "--query", f"HOSTILE{NO_UTF8}"],
        "choice": ["PHOTO", "--choices", "HOSTILE"],
        "choices": ["PHOTO", "--choices", "HOSTILE", "HOSTILE"],
        "model": ["PHOTO", "--model", "HOSTILE"],
        "models folder": ["PHOTO", "--models", "HOSTILE", "--model", "HOSTILE"],
        "background": ["PHOTO", "--background", "HOSTILE"],
        "gpu": ["PHOTO", "--gpu", "HOSTILE"],
        "engine": ["PHOTO", "--engine", "HOSTILE"],
        "mode": ["PHOTO", "--mode", "HOSTILE"],
        "pipeline": ["PHOTO", "--pipeline", "HOSTILE"],
        "jobs": ["PHOTO", "--jobs", "HOSTILE"],
        "timeout": ["PHOTO", "--timeout", "HOSTILE"],
        "json": ["PHOTO", "--json", "HOSTILE"],
        "unknown option": ["PHOTO", "--HOSTILE"],
        "replans": ["PHOTO", "--max-replan-iterations", "HOSTILE"],
    }
    found = {f"assess, {name}": ("assess", line) for name, line in plain.items()}
    others = {
        "doctor": {
            "config": ["--config", "HOSTILE"],
            "timeout": ["--timeout", "HOSTILE"],
            "engine": ["--engine", "HOSTILE"],
            "unknown option": ["--HOSTILE"],
        },
        "study": {
            "data set": ["run", "HOSTILE", "--out", "new"],
            "data set's key": ["run", ".", "--key", "HOSTILE", "--out", "new"],
            "part of": ["run", "scores.csv", "--part-of", "HOSTILE", "--out", "new"],
            "split": ["run", "scores.csv", "--split", "HOSTILE", "--out", "new"],
            "run": ["report", "HOSTILE", "--out", "new"],
            "fit": ["report", "x", "--fit", "HOSTILE", "--out", "new"],
            "runs to compare": ["compare", "HOSTILE", "HOSTILE"],
            "report": ["table", "HOSTILE"],
            "run to fit": ["fit", "HOSTILE", "--out", "fit.json"],
            "out": ["fit", "x", "--out", "HOSTILE/fit.json"],
            "photographs": ["synthetic", "HOSTILE", "--out", "new"],
            "unknown command": ["HOSTILE"],
            "number": ["report", "x", "--out", "new", "--draws", "HOSTILE"],
        },
        "store": {
            "bundle": ["verify", "HOSTILE"],
            "bundle to unpack": ["unpack", "HOSTILE", "--models", "HOSTILE"],
            "hash": ["verify", "x", "--expect", "HOSTILE"],
        },
        "bundle": {
            "config": ["--config", "HOSTILE"],
            "repository": ["--repo", "HOSTILE"],
            "models folder": ["--models", "HOSTILE"],
            "tools": ["--tools", "HOSTILE"],
        },
        "fit_tools": {
            "tools": ["maps", "--photos", ".", "--tools", "HOSTILE"],
            "data set": ["dataset", "HOSTILE", "--tools", "NIQE"],
            "photographs": ["maps", "--photos", "HOSTILE", "--tools", "NIQE"],
        },
    }
    return found | {
        f"{program}, {name}": (program, line)
        for program, lines in others.items()
        for name, line in lines.items()
    }


COMMANDS = commands()
MAINS = {
    "assess": assess_command,
    "bundle": bundle,
    "doctor": doctor_command,
    "fit_tools": fit_tools,
    "store": store_command,
    "study": study,
}


@pytest.fixture(scope="module")
def photo_file(tmp_path_factory, photo):
    path = tmp_path_factory.mktemp("sound") / "photo.png"
    photo.crop((0, 0, 224, 224)).save(path)
    return str(path)


@pytest.mark.parametrize("name", COMMANDS, ids=COMMANDS)
def test_a_command_line_is_answered_in_one_line(name, photo_file, tmp_path, monkeypatch, capfd):
    program, line = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(ROOT / "tests" / "models"))
    Path("scores.csv").write_text(f"image,mos,split\n{photo_file},3,test\n")
    hostile = (
        TEXT.replace("/", "") if any("--query" in part or "--choices" in part for part in line) else NAME
    )
    line = [part.replace("HOSTILE", hostile).replace("PHOTO", photo_file) for part in line]
    module = MAINS[program]
    monkeypatch.setattr("sys.argv", [program, *line])
    try:
        status = module.main(line)
    except SystemExit as stopped:
        status = stopped.code
    told = capfd.readouterr()
    assert status not in (0, None)
    assert_harmless(told.out, 0)
    assert_harmless(told.err)
    assert len([said for said in told.err.splitlines() if not said.startswith(("usage:", " "))]) == 1, (
        told.err
    )
    assert sorted(os.listdir()) == ["scores.csv"]


def run(main, line: list[str], capfd) -> tuple[int, str, str]:
    try:
        status = main(line)
    except SystemExit as stopped:
        status = stopped.code
    told = capfd.readouterr()
    return status, told.out, told.err


CONFIGURATIONS = {
    "key": {f"k{TEXT}": 1},
    "key of a section": {"tools": {TEXT: 1}},
    "tool": {"tools": {"no_reference": [TEXT]}},
    "maps": {"tools": {"maps": TEXT}},
    "backend": {"summarizer": {"backend": f"transformers.{TEXT}"}},
    "engine": {"summarizer": {"backend": f"{TEXT}.embedded"}},
    "server": {"models": {"embedded": {"server": f"http://{TEXT}"}}},
    "path": {"models": {"embedded": {"path": f"/{TEXT}"}}},
    "dtype": {"models": {"embedded": {"dtype": TEXT}}},
    "number": {"fusion": {"eta": TEXT}},
    "background": {"images": {"background": TEXT}},
}


@pytest.mark.parametrize("name", CONFIGURATIONS, ids=CONFIGURATIONS)
def test_a_configuration_is_refused_in_one_line(name, photo_file, tmp_path, monkeypatch, capfd):
    import yaml

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONFIGURATIONS[name]))
    monkeypatch.chdir(tmp_path)
    status, out, err = run(assess_command.main, [photo_file, "--cpu", "--config", "mine.yaml"], capfd)
    assert status == 2
    assert_harmless(out, 0)
    assert_harmless(err, 1)


MANIFESTS = {
    "cell": ("x.csv", f'image\n"{TEXT}"\n'),
    "column": ("x.csv", f'image,"{TEXT}"\nnone.png,1\n'),
    "column twice": ("x.csv", f'image,"{TEXT}","{TEXT}"\nnone.png,1,2\n'),
    "reference": ("x.csv", f'image,reference\nx.csv,"{TEXT}"\n'),
    "choices": ("x.csv", f'image,choices\nx.csv,"{TEXT}"\n'),
    "row of JSON": ("x.jsonl", json.dumps({"image": TEXT}) + "\n"),
    "key of JSON": ("x.jsonl", '{"a\\u001b": 1, "a\\u001b": 2}\n'),
    "value of JSON": ("x.jsonl", json.dumps({"image": "x.jsonl", "choices": [TEXT, TEXT]}) + "\n"),
    "not JSON": ("x.jsonl", f"{TEXT}\n"),
    "not UTF-8": ("x.csv", b"image\n\xff\x1b[2J.png\n"),
}


@pytest.mark.parametrize("name", MANIFESTS, ids=MANIFESTS)
def test_a_manifest_is_refused_in_one_line(name, tmp_path, monkeypatch, capfd):
    file, content = MANIFESTS[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = run(assess_command.main, ["--manifest", file, "--cpu"], capfd)
    assert status == 2
    assert_harmless(out, 0)
    assert_harmless(err, 1)


def test_names_of_files_that_a_folder_holds_are_told_in_one_line(photo_file, tmp_path, monkeypatch, capfd):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / f"x.{NAME}").touch()
    shutil.copy(photo_file, folder / f"{NAME}.png")
    status, out, err = run(assess_command.main, [str(folder), "--cpu", "--model", "none"], capfd)
    assert status == 2
    assert_harmless(out, 0)
    assert_harmless(err, 2)


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_a_batch_of_hostile_names_has_its_rows_and_says_nothing_that_steers(
    pipeline, photo_file, services, tmp_path, monkeypatch, capfd
):
    """Three pictures, of which two cannot be assessed; rows, table and stderr hold no byte that steers."""
    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: services)  # the loaded model
    monkeypatch.chdir(tmp_path)
    shutil.copy(photo_file, f"{NAME}.png")
    Path(f"b{NAME}.png").write_text("no picture")
    line = [
        f"{NAME}.png",
        f"b{NAME}.png",
        "--cpu",
        "--pipeline",
        pipeline,
        "--csv",
        f"{NAME}.csv",
        "--query",
        TEXT,
    ]
    status, out, err = run(assess_command.main, [*line, "--out", f"{NAME}.jsonl"], capfd)
    assert status == 1
    assert_harmless(out, 0)
    assert_harmless(err)
    rows = Path(f"{NAME}.jsonl").read_text(encoding="utf-8")
    assert_harmless(rows, 2)
    assert [json.loads(row)["error"] is None for row in rows.splitlines()] == [True, False]
    assert json.loads(rows.splitlines()[0])["query"] == TEXT  # the data stays what it is
    assert_harmless(Path(f"{NAME}.csv").read_text(encoding="utf-8-sig").replace("\r\n", "\n"), 3)
    assert_harmless(Path(f"{NAME}.jsonl.run.json").read_text(encoding="utf-8").replace("\t", ""))


# Rows


def row_of(picture, client=None, tools=None, **options):
    services = scripted_services(
        client or ScriptedClient(scripted_answers()), tools or ScriptedTools({"NIQE": 3.0})
    )
    return assess(picture, services=services, **options)


def hostile_tool():
    tools = ScriptedTools({}, names=["NIQE"])

    def score(name, *_):
        raise ToolError(f"{name}: {TEXT}")

    tools.score = score
    return tools


def broken_model(picture, error):
    def answer(*_):
        raise error

    return row_of(picture, ScriptedClient(answer))


def summary_of(text):
    return lambda prompt, schema, prefix: (
        json.dumps({"final_answer": "C", "quality_reasoning": text})
        if schema.__name__ == "SummaryReply"
        else scripted_answers()(prompt, schema, prefix)
    )


def free_answer(text):
    plan = plan_reply(query_type="Other")
    return lambda prompt, schema, prefix: (
        json.dumps({"final_answer": text, "quality_reasoning": text})
        if schema.__name__ == "SummaryReply"
        else scripted_answers(PlannerReply=plan)(prompt, schema, prefix)
    )


def with_exif(picture, tmp_path):
    image = Image.open(picture)
    text = PngImagePlugin.PngInfo()
    text.add_text("Title", TEXT)
    image.save(tmp_path / "noted.png", pnginfo=text, icc_profile=TEXT.encode())
    return row_of(tmp_path / "noted.png")


def linked(picture, tmp_path, name=NAME):
    shutil.copy(picture, tmp_path / f"{name}.png")
    return tmp_path / f"{name}.png"


def oversized(tmp_path):
    Image.new("L", (9000, 9000)).save(tmp_path / f"{NAME}.png")
    return row_of(tmp_path / f"{NAME}.png")


def explained(text):
    return moderate_blur() | {"Global": [{"type": "Blurs", "severity": "severe", "explanation": text}]}


ROWS = {
    "name of a picture": lambda p, t: row_of(linked(p, t)),
    "name of a missing picture": lambda p, t: row_of(t / NAME),
    "name of a broken picture": lambda p, t: (t / NAME).write_text("x") and row_of(t / NAME),
    "name of a large picture": lambda p, t: oversized(t),
    "name of a reference": lambda p, t: row_of(p, reference=linked(p, t)),
    "name of a missing reference": lambda p, t: row_of(p, reference=t / NAME),
    "text and profile in a picture": lambda p, t: with_exif(p, t),
    "query": lambda p, t: row_of(p, query=f"Use NIQE {TEXT}"),
    "query with answers": lambda p, t: row_of(p, query=f"Which? A. {TEXT}x B. other"),
    "choices": lambda p, t: row_of(p, choices=[TEXT, "b"]),
    "reasoning": lambda p, t: row_of(p, ScriptedClient(summary_of(f"Edges {TEXT} are soft."))),
    "reasoning that is corrected": lambda p, t: row_of(
        p, ScriptedClient(summary_of(f"Strong noise {TEXT}. Excellent."))
    ),
    "free answer": lambda p, t: row_of(p, ScriptedClient(free_answer(TEXT)), query="Who is this?"),
    "answer that is no JSON": lambda p, t: row_of(p, ScriptedClient(scripted_answers(PlannerReply=TEXT))),
    "answer's unknown key": lambda p, t: row_of(
        p, ScriptedClient(scripted_answers(PlannerReply=plan_reply() | {TEXT: 1}))
    ),
    "answer's key twice": lambda p, t: row_of(
        p,
        ScriptedClient(scripted_answers(DetectionReply='{"Global": ["Blurs"], "Global": ["Blurs"]}' + TEXT)),
    ),
    "explanation": lambda p, t: row_of(p, ScriptedClient(scripted_answers(AnalysisReply=explained(TEXT)))),
    "plan's object": lambda p, t: row_of(
        p, ScriptedClient(scripted_answers(PlannerReply=plan_reply(query_scope=[TEXT])))
    ),
    "plan's object in the query": lambda p, t: row_of(
        p,
        ScriptedClient(
            scripted_answers(PlannerReply=plan_reply(query_scope=["sky"]), DetectionReply={"sky": ["Blurs"]})
        ),
        query=f"Is the sky{TEXT} sharp?",
    ),
    "plan's tool": lambda p, t: row_of(
        p, ScriptedClient(scripted_answers(PlannerReply=plan_reply(required_tool=TEXT)))
    ),
    "tool's error": lambda p, t: row_of(p, tools=hostile_tool()),
    "model's error": lambda p, t: broken_model(p, VLMError(TEXT)),
    "model's other error": lambda p, t: broken_model(p, ValueError(TEXT)),
    "model's system error": lambda p, t: broken_model(p, OSError(5, TEXT, NAME)),
}


@pytest.mark.parametrize("name", ROWS, ids=ROWS)
def test_a_row_says_nothing_that_steers(name, picture, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "agentic_iqa_local")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = ROWS[name](picture, tmp_path)
    for text in (as_line(row), repr(row), row._repr_html_(), headline(row)):
        assert_harmless(text, 1)
    assert_harmless(summary(row))
    assert_harmless(account(row))
    assert_harmless(row.explain())
    table = csv_text(lambda: [row.to_dict()])
    assert_harmless(table.replace("\r\n", "\n"), 2)
    tally = Tally()
    tally.add(row.to_dict())
    assert_harmless(tally.text(1, 1.0))
    for line in (*row.warnings, row.error or "", *(run.error or "" for run in row.tools)):
        assert_harmless(line)
        assert "\n" not in line
    for record in caplog.records:
        assert_harmless(record.getMessage(), 1)
    for warning in caught:
        assert_harmless(str(warning.message))
    assert row.error is None or row.q is None  # no score stands in


def test_a_failure_outside_of_every_net_is_one_line(picture, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "agentic_iqa_local")

    def fail(*_, **__):
        raise RuntimeError(TEXT)

    monkeypatch.setattr("agentic_iqa_local.batch.work.assess", fail)
    services = scripted_services(ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 3.0}))
    (row,) = loaded_batch(services).rows([Item(Path(picture).with_name(NAME))])
    assert_harmless(as_line(row), 1)
    assert row.q is None
    for record in caplog.records:
        assert_harmless(record.getMessage(), 1)


def test_a_warning_of_pillow_is_one_line(picture, monkeypatch):
    real = PngImagePlugin.PngImageFile.load

    def load(image):
        warnings.warn(TEXT, UserWarning, stacklevel=1)
        return real(image)

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    told = load_image(picture).warnings
    assert any("Pillow" in line for line in told)
    assert_harmless("\n".join(told), len(told))


def test_the_list_of_tools_says_nothing_that_steers():
    text = tool_table([ToolInfo(TEXT, "NR", False, TEXT, TEXT, (TEXT,), False, None, TEXT)])
    assert_harmless(text)
    assert "owned" in text


# Model folders


def folder_with(tmp_path, file: str, *path_and_value) -> Path:
    """The embedded model without its weights, one value in a file changed."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    content = json.loads((folder / file).read_text())
    *path, value = path_and_value
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (folder / file).write_text(json.dumps(content))
    return folder


def with_template(tmp_path, text: str) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "chat_template.jinja").write_text(text)
    return folder


def render(folder: Path):
    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, summarizer_prompt

    settings = ModelSettings(path=str(folder))
    return Renderer(folder.name, settings, weights=False).render(
        summarizer_prompt(DEFAULT_QUERY, None, scoring=True), 1
    )


def moved(tmp_path) -> Path:
    shutil.copytree(EMBEDDED, tmp_path / NAME, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    return tmp_path / NAME


def raises(error: Exception):
    with loading(Path("model")):
        raise error


FOLDERS = {
    "name": lambda t: check_folder(moved(t)),
    "missing": lambda t: check_folder(t / NAME),
    "model_type": lambda t: check_folder(folder_with(t, "config.json", "model_type", TEXT), weights=False),
    "architectures": lambda t: check_folder(folder_with(t, "config.json", "architectures", [TEXT])),
    "type": lambda t: check_folder(folder_with(t, "config.json", "dtype", TEXT)),
    "processor": lambda t: (
        render(folder_with(t, "processor_config.json", "processor_class", TEXT))
        if (EMBEDDED / "processor_config.json").exists()
        else render(folder_with(t, "preprocessor_config.json", "image_processor_type", TEXT))
    ),
    "tokenizer": lambda t: render(folder_with(t, "tokenizer.json", "model", "type", TEXT)),
    "template's own error": lambda t: render(
        with_template(t, "{{ raise_exception(" + json.dumps(TEXT) + ") }}")
    ),
    "template's syntax": lambda t: render(with_template(t, "{% " + TEXT + " %}")),
    "template's unknown name": lambda t: render(
        with_template(t, "{{ messages | " + "x" * 9 + "\x9b" + " }}")
    ),
    "a library's error": lambda t: raises(RuntimeError(TEXT)),
    "a library's error on a file": lambda t: raises(OSError(2, TEXT, NAME)),
}


@pytest.mark.parametrize("name", FOLDERS, ids=FOLDERS)
def test_a_model_folder_is_refused_in_one_line(name, tmp_path, capfd):
    with pytest.raises(VLMError) as caught:
        FOLDERS[name](tmp_path)
    assert_harmless(str(caught.value), 1)
    told = capfd.readouterr()
    assert_harmless(told.out + told.err)


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "filters": "{% for a in range(99999) %}{{ range(99999) | list | sum }}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS, ids=ENDLESS)
def test_a_template_that_does_not_end_is_ended(name, tmp_path, monkeypatch):
    """Each would take more than 10⁹ steps. A sound template in the same thread goes on as before."""
    monkeypatch.setattr("agentic_iqa_local.vlm_client.rendering.LONGEST_RENDERING", 0.3)
    folder = with_template(tmp_path, ENDLESS[name])
    with pytest.raises(VLMError, match=r"chat template .* took longer than 0\.3 s") as caught:
        render(folder)
    assert_harmless(str(caught.value), 1)
    shutil.copy(EMBEDDED / "chat_template.jinja", folder)
    monkeypatch.setattr("agentic_iqa_local.vlm_client.rendering.LONGEST_RENDERING", 60.0)
    assert render(folder).prompt_ids


# Servers


def redirecting(handler):
    handler.send_response(302, "Found")
    handler.send_header("Location", "http://127.0.0.1:9/\x1b[2J\x9b")
    handler.end_headers()


SERVERS = {
    "name of a model": {MODELS: {"data": [{"id": TEXT}, {"id": f"b{TEXT}"}]}},
    "error's body": {MODELS: lambda handler: send(handler, TEXT.encode(), 500)},
    "refusal's body": {MODELS: lambda handler: send(handler, TEXT.encode(), 401)},
    "status text": {
        MODELS: lambda handler: handler.wfile.write(
            b"HTTP/1.1 500 \x1b[2J\xff\x9b\r\nContent-Length: 0\r\n\r\n"
        )
    },
    "header": {MODELS: lambda handler: send(handler, b"{}", X_Owned="\x1b[2J\x9b")},
    "encoding": {MODELS: lambda handler: send(handler, b"{}", Content_Encoding="\x1b[2J\x9b")},
    "redirection": {MODELS: redirecting},
    "key": {MODELS: {TEXT: 1}},
    "value": {MODELS: {"data": TEXT}},
    "version": {VERSION: {"version": [TEXT]}},
    "not HTTP": {MODELS: lambda handler: handler.wfile.write(TEXT.encode() * 3)},
    "not JSON": {MODELS: TEXT.encode()},
}


@pytest.mark.parametrize("name", SERVERS, ids=SERVERS)
def test_a_server_is_refused_in_one_line(name, server, capfd, caplog):  # noqa: F811
    server.answers |= SERVERS[name]
    with pytest.raises(VLMError) as caught:
        connect(server)
    assert_harmless(str(caught.value), 1)
    told = capfd.readouterr()
    assert_harmless(told.out + told.err)
    for record in caplog.records:
        assert_harmless(record.getMessage(), 1)


# Bundles and the doctor

BUNDLE = {"format": 1, "contents": ["x"], "notices": [], "files": []}
ENTRY = {"path": "x", "size": 1, "sha256": "0" * 64, "source": "s", "licence": "l"}
NOTICE = {"licence": "l", "of": "o", "says": "s", "url": "u"}
BUNDLES = {
    "contents": BUNDLE | {"contents": [TEXT]},
    "source": BUNDLE | {"files": [ENTRY | {"source": TEXT}]},
    "licence": BUNDLE | {"files": [ENTRY | {"licence": TEXT}]},
    "path": BUNDLE | {"files": [ENTRY | {"path": TEXT}]},
    "hash": BUNDLE | {"files": [ENTRY | {"sha256": TEXT}]},
    "notice": BUNDLE | {"notices": [NOTICE | {"says": TEXT}]},
    "notice's address": BUNDLE | {"notices": [NOTICE | {"url": TEXT}]},
    "unknown key": BUNDLE | {TEXT: 1},
    "format": BUNDLE | {"format": TEXT},
}


@pytest.mark.parametrize("name", BUNDLES, ids=BUNDLES)
def test_a_bundle_is_refused_in_one_line(name, tmp_path, capfd):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(BUNDLES[name]))
    (folder / "x").write_text("x")
    status, out, err = run(store_command.main, ["verify", str(folder)], capfd)
    assert status == 1
    assert_harmless(out)
    assert_harmless(err, 1)


def test_names_of_files_beside_a_bundle_are_told_in_one_line_each(tmp_path, capfd):
    (tmp_path / "x").write_text("x")
    places = {"vlm/config.json": tmp_path / "x"}
    manifest = describe([Piece("vlm/config.json", tmp_path / "x", "s", "mit")], [], [])
    write_bundle(tmp_path / "made", manifest, places, False)
    (tmp_path / "made" / "vlm" / NAME).touch()
    status, out, err = run(store_command.main, ["verify", str(tmp_path / "made")], capfd)
    assert status == 1
    assert_harmless(out)
    assert_harmless(err, 1)


def test_progress_of_a_bundle_is_shown_without_its_names_sequences(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with console.meter() as show:
        for _ in range(3):
            show(TEXT, 5)
            time.sleep(0.11)  # tqdm draws ten times a second
    said = capsys.readouterr().err
    assert "owned" in said
    assert "\x1b]" not in said
    assert "\x9b" not in said
    assert "\u202e" not in said


@check("hostile", f"remedy {TEXT}")
def hostile_check(setup):
    raise RuntimeError(TEXT)


@check("hostile finding", "")
def hostile_finding(setup, about):
    return "fail", TEXT, TEXT


@check("own error", "")
def own_error(setup):
    raise VLMError(TEXT, f"do {TEXT}")


CHECKS = {"raises": (hostile_check, ()), "finds": (hostile_finding, (TEXT,)), "refuses": (own_error, ())}


@pytest.mark.parametrize("name", CHECKS, ids=CHECKS)
def test_the_doctor_says_nothing_that_steers(name):
    examination, about = CHECKS[name]
    found = examination(Setup(load_settings()), *about)
    assert_harmless(as_text(found))
    for text in (found.name, found.found, found.remedy):
        assert_harmless(text)
        assert "\n" not in text


# Data sets

DATASETS = {
    "image": ("m.csv", f'image,mos\n"{TEXT}",nan\n'),
    "score": ("m.csv", f'image,mos\na.png,"{TEXT}"\n'),
    "level": ("m.csv", f'image,mos,level\na.png,1,"{TEXT}"\n'),
    "columns": ("m.csv", f'"{TEXT}",b\n1,2\n'),
    "row": ("m.jsonl", json.dumps({"image": [TEXT], "mos": 1}) + "\n"),
    "choices": (
        "q.jsonl",
        json.dumps({"image": "a.png", "question": "q", "choices": [TEXT, TEXT], "answer": 0}) + "\n",
    ),
    "answer": (
        "q.jsonl",
        json.dumps({"image": "a.png", "question": "q", "choices": ["a", "b"], "answer": TEXT}) + "\n",
    ),
    "question's columns": ("q.jsonl", json.dumps({"image": "a.png", "question": [TEXT], TEXT: 1}) + "\n"),
    "not JSON": ("m.jsonl", f'{{"a": {TEXT}\n'),
    "name": (f"{NAME}.csv", "a,b\n1,2\n"),
    "suffix": (f"x.{NAME}", "x"),
}


@pytest.mark.parametrize("name", DATASETS, ids=DATASETS)
def test_a_data_set_is_refused_in_one_line(name, tmp_path):
    file, content = DATASETS[name]
    (tmp_path / file).write_text(content)
    with pytest.raises(DatasetError) as caught:
        load_dataset(tmp_path / file)
    assert_harmless(str(caught.value), 1)


def test_a_folder_of_hostile_names_is_no_data_set_in_one_line(tmp_path):
    (tmp_path / f"{NAME}.csv").touch()
    with pytest.raises(DatasetError) as caught:
        load_dataset(tmp_path)
    assert_harmless(str(caught.value), 1)


def test_files_that_a_data_set_lacks_are_told_in_one_line_each(photo_file, tmp_path, capfd, monkeypatch):
    (tmp_path / "m.csv").write_text(f'image,mos\n{photo_file},1\n"{TEXT}",3\n')
    monkeypatch.setattr(
        "agentic_iqa_local.studies.run.check_plan",
        lambda *_, **__: (_ for _ in ()).throw(DatasetError("end")),
    )
    status, out, err = run(
        study.main, ["run", str(tmp_path / "m.csv"), "--out", str(tmp_path / "new"), "--cpu"], capfd
    )
    assert status == 2
    assert_harmless(out, 0)
    assert_harmless(err, 3)


def test_a_fit_of_hostile_texts_is_written_and_told_without_them(tmp_path):
    fit = Fit(1.0, 1.0, "srcc", 0.1, 0.2, TEXT, TEXT, (TEXT, path_text(NAME)), (TEXT,))
    fit.write(tmp_path / "fit.json")
    assert_harmless((tmp_path / "fit.json").read_text(encoding="utf-8"))
    found = read_fit(tmp_path / "fit.json")
    assert found.keys[0] == TEXT
    assert_harmless(found.account, 1)
    assert_harmless(found.source, 1)


FITS = {
    "key": {TEXT: 1},
    "format": {"format": TEXT},
    "objective": {"objective": TEXT, "keys": [], "groups": [], "temperature": TEXT},
}


@pytest.mark.parametrize("name", FITS, ids=FITS)
def test_a_file_that_is_no_fit_is_refused_in_one_line(name, tmp_path):
    (tmp_path / f"{NAME}.json").write_text(json.dumps(FITS[name]))
    with pytest.raises(FitError) as caught:
        read_fit(tmp_path / f"{NAME}.json")
    assert_harmless(str(caught.value), 1)


# Studies: every text of a run and its rows is hostile, and every file of its report is looked at

PICTURE_LINK, LINK, TAG = "![x](http://evil.com/p.png)", "[x](javascript:1)", "<img src=x onerror=1>"
PAYLOADS = [
    PICTURE_LINK,
    LINK,
    TAG,
    "<!-- end of studies -->",
    "--> <script>alert(1)</script>",
    "a|b|c\n# d",
    "`code` **bold** __bold__ ~~gone~~",
    "http://evil.com www.evil.com mail@evil.com",
    "WWW.evil.com <https://evil.com> x:y@evil.com",
    "[x]: http://evil.com",
    "\\[x\\](http://evil.com)",
    "\\\\[x](http://evil.com)",
    "&lt;img src=x&gt; &#60;b&#62;",
    "$\\href{javascript:1}{x}$",
    TEXT,
]
FORMULAS = [
    '=HYPERLINK("http://evil.com")',
    "+1+1|cmd",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "\u200b=1",
    "\ufeff=1",
    "\u00a0=1",
    '"=1',
    "'=1",
    "“=1",
    "＝1",
    "＋1",
    "－1",
    "＠SUM(1)",
    "\x1b=1",
    "\u202e=1",
    "\u0301=1",
]
LABEL = f"=1 {PICTURE_LINK} {TAG} <!-- end of studies --> | `x` {TEXT}"


def starts_a_formula(cell: str) -> bool:
    """As a spreadsheet may see it, which skips blanks and what cannot be seen, and knows full-width signs."""
    seen = re.sub(r"^[\s\u00a0\u200b-\u200f\u2028-\u202e\ufeff\x00-\x1f\x7f-\x9f]+", "", cell)
    return seen[:1] in tuple("=+-@＝＋－＠") and not re.fullmatch(r"[+-]?[0-9.]+(e[+-]?\d+)?", seen)


def hostile_run(**dataset) -> dict:
    run = make_run("manifest", name=LABEL, notice=LABEL, type=LABEL)
    told = {
        "title": LABEL,
        "licence": LABEL,
        "edition": LABEL,
        "missing": [LABEL],
        "left_out": {LABEL: 3},
        "groups": LABEL,
    }
    run["dataset"] |= told | {"higher_is_better": True, "kind": "FR", "root": NAME} | dataset
    run["identity"]["reads"]["query"] = LABEL
    run["git"], run["command"], run["versions"] = LABEL, [LABEL, NAME], {LABEL: LABEL}
    return run


def hostile_rows(count: int = 30) -> list[dict]:
    rows = make_rows(count, groups=6)
    for i, row in enumerate(rows):
        row |= {
            "key": path_text(f"{i}{NAME}"),
            "image": path_text(f"{NAME}{i}"),
            "group": f"{LABEL}{i % 6}",
            "subset": f"{LABEL}{i % 2}",
        }
        row |= {"distortion": f"{LABEL}{i % 3}", "split": LABEL}
        row |= {"error": LABEL} if row.get("error") else {"agent_error": LABEL}
        if row.get("agent"):
            row["agent"]["quality_reasoning"] = LABEL
            row["plan"] |= {"query_scope": [LABEL], "distortions": {LABEL: ["Noise"]}, "required_tool": LABEL}
            row["plan_corrections"] = row["replan_history"] = [LABEL]
            row["evidence"]["distortion_analysis"] = {
                LABEL: [{"type": "Noise", "severity": "severe", "explanation": LABEL}]
            }
            row["evidence"]["tool_logs"][0] |= {"error": LABEL, "object_name": LABEL, "distortion": LABEL}
            row["tools"]["PSNR"] = {"error": LABEL}
    return rows


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory):
    """The folder of two hostile runs, their report and comparison, and what the commands printed."""
    root = tmp_path_factory.mktemp("hostile")
    runs = [
        store(root / "first", hostile_run(), hostile_rows()),
        store(root / f"=b{NAME}", hostile_run(), hostile_rows()),
    ]
    printed = {}
    from contextlib import redirect_stderr, redirect_stdout

    lines = {
        "report": ["report", *map(str, runs), "--out", str(root / "out"), "--draws", "5"],
        "compare": ["compare", *map(str, runs), "--out", str(root / "compared"), "--draws", "5"],
        "table": ["table", str(root / "out" / "first-1"), "--write", str(root / "README.md")],
        "table, printed": ["table", str(root / "out" / "first-1")],
    }
    lines["table"][1] = lines["table, printed"][1] = str(root / "out" / "first")
    (root / "README.md").write_text("before\n<!-- studies -->\nold\n<!-- end of studies -->\nafter\n")
    for name, line in lines.items():
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = study.main(line)
        printed[name] = status, out.getvalue(), err.getvalue()
    return root, printed


@pytest.mark.parametrize("name", ["report", "compare", "table", "table, printed"])
def test_a_hostile_study_is_told_without_what_steers(name, hostile_report):
    status, out, err = hostile_report[1][name]
    assert status == 0, err
    assert_harmless(out)
    assert_harmless(err)
    assert out or name == "table"


CSVS = (
    "modes",
    "differences",
    "parts",
    "by_distortion",
    "by_level",
    "by_subset",
    "exposures",
    "failures",
    "calibration",
    "cost",
)


@pytest.mark.parametrize("name", CSVS)
def test_a_hostile_study_s_csv_holds_no_formula(name, hostile_report):
    text = (hostile_report[0] / "out" / "first" / f"{name}.csv").read_text(encoding="utf-8")
    assert_harmless(text)
    for row in csv.reader(io.StringIO(text)):
        assert not any(map(starts_a_formula, row)), row


@pytest.mark.parametrize("name", ["out/datasets.csv", "compared/runs.csv", "compared/run_differences.csv"])
def test_tables_over_runs_hold_no_formula(name, hostile_report):
    text = (hostile_report[0] / name).read_text(encoding="utf-8")
    assert_harmless(text)
    for row in csv.reader(io.StringIO(text)):
        assert not any(map(starts_a_formula, row)), row


def live_markup(text: str) -> str | None:
    """What of a Markdown text is not ours and live: a renderer takes a punctuation mark behind a backslash
    for itself."""
    plain = re.sub(r"\\[!-/:-@\[-`{-~]", "", text)
    found = re.search(r"[\[\]<>`~!$]|://|\bwww\.|\w@|\*|(?<!\w)_|_(?!\w)", plain, re.IGNORECASE)
    return found and found[0]


@pytest.mark.parametrize(
    "name",
    [
        *(f"out/first/{name}.md" for name in CSVS),
        "out/datasets.md",
        "compared/runs.md",
        "compared/run_differences.md",
    ],
)
def test_a_hostile_study_s_markdown_holds_no_markup(name, hostile_report):
    text = (hostile_report[0] / name).read_text(encoding="utf-8")
    assert_harmless(text)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}) == 1  # as many cells in each
    assert not any(map(live_markup, lines))


def test_a_readme_stays_whole_round_a_hostile_table(hostile_report):
    text = (hostile_report[0] / "README.md").read_text(encoding="utf-8")
    assert_harmless(text)
    assert text.startswith("before\n<!-- studies -->\n")
    assert text.endswith("<!-- end of studies -->\nafter\n")
    inside = text.partition("<!-- studies -->\n")[2].rpartition("<!-- end of studies -->")[0]
    assert "owned" in inside
    assert not re.search(r"<(?!!--)|<!--", inside)
    folder = hostile_report[0] / "out" / "first"
    inside = inside.replace(f"`{folder}`", "").replace("**", "")
    assert live_markup(inside) is None


@pytest.mark.parametrize("name", ["out/report.html", "out/first/run.json"])
def test_a_hostile_study_s_page_and_note_hold_nothing_that_steers(name, hostile_report):
    text = (hostile_report[0] / name).read_text(encoding="utf-8")
    assert_harmless(text)
    assert "owned" in text
    if name.endswith(".html"):
        assert "<img src=x" not in text
        assert "<!-- end" not in text
        assert "javascript:" not in text
    else:
        assert json.loads(text)["model"]["name"] == LABEL


@pytest.mark.parametrize("name", ["differences", "by_distortion", "by_subset", "scatter"])
def test_a_hostile_study_s_drawings_hold_nothing_that_steers(name, hostile_report):
    import xml.etree.ElementTree as ET

    text = (hostile_report[0] / "out" / "first" / f"{name}.svg").read_text(encoding="utf-8")
    assert_harmless(text)
    assert "<img" not in text
    assert "script" not in {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markup_in_a_cell_of_markdown_is_dead(payload):
    cell = markdown_cell(payload)
    assert_harmless(cell, 1)
    assert live_markup(cell) is None
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", cell)


@pytest.mark.parametrize(
    "name",
    [
        "TID2013",
        "KonIQ-10k",
        "additive_gaussian_noise",
        "TOPIQ_NR",
        "logits, both orders",
        "0.68 (0.45 to 0.85)",
    ],
)
def test_plain_names_stay_as_they_are_in_markdown(name):
    assert markdown_cell(name) == name


@pytest.mark.parametrize("payload", FORMULAS)
def test_a_formula_in_a_cell_of_csv_is_text(payload):
    cell = safe_cell(payload)
    assert cell.startswith("'")
    assert_harmless(cell, 1)


@pytest.mark.parametrize(
    "value", ["-3.5", "+1e-05", "-0.0241759", -3.5, 0, None, "a=b", "photo-1.png", "", "−1", "(=1)"]
)
def test_numbers_and_other_cells_stay_as_they_are(value):
    assert safe_cell(value) == value


@pytest.mark.parametrize("payload", ["x;=1", "x; =1;@SUM(1)", 'x;"=1', "-1;+1+1"])
def test_a_formula_behind_a_semicolon_is_text(payload):
    """Where a comma separates decimals, spreadsheets take a semicolon for the end of a cell, quotes or
    not."""
    assert not any(map(starts_a_formula, safe_cell(payload).split(";")))


def test_tools_of_a_row_are_columns_without_formulas(picture):
    row = row_of(picture).to_dict()
    row["tools"] = [
        run | {"tool_name": f"=1{TEXT}", "raw_score": 1.0, "normalized_score": 1.0} for run in row["tools"]
    ]
    header = next(csv.reader(io.StringIO(csv_text(lambda: [row]))))
    assert any("owned" in cell for cell in header)
    assert not any(map(starts_a_formula, header))


def test_rows_of_a_study_keep_what_they_hold_and_steer_nothing(tmp_path):
    run = make_run()
    with Store(tmp_path / "run", run, run["identity"]) as kept:
        kept.append({"key": path_text(NAME), "error": TEXT})
    assert_harmless((tmp_path / "run" / "rows.jsonl").read_text(encoding="utf-8"), 1)
    assert read_run(tmp_path / "run")[1] == [{"key": path_text(NAME), "error": TEXT}]


def test_a_comparison_of_hostile_runs_is_told_in_lines_of_its_own():
    rows = hostile_rows()
    found = compare([Named(f"{n}{NAME}", hostile_run(), rows) for n in "ab"], draws=5)
    for line in (*found.notes, *found.verdicts):
        assert_harmless(line, 1)


def test_notes_of_a_hostile_study_are_one_line_each():
    study = analysed(hostile_rows(), hostile_run(), draws=5)
    assert any("owned" in note for note in study.notes)
    for note in study.notes:
        assert_harmless(note, 1)


REPORTS = {
    "deep run.json": ("run.json", "[" * 100_000),
    "run.json without a model": ("run.json", '{"dataset": {}}'),
    "list as model": ("run.json", '{"dataset": {"title": "x"}, "model": []}'),
    "no number": ("modes.csv", "mode,seen,srcc,n,failed\nlogits,,x\x1b[2J,1,0\n"),
    "no rows": ("modes.csv", "mode\n"),
    "other columns": ("differences.csv", "a\x1b[2J\nb\n"),
    "not UTF-8": ("modes.csv", b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("name", REPORTS, ids=REPORTS)
def test_what_is_no_report_is_refused_in_one_line(name, tmp_path, capfd):
    folder = tmp_path / "report"
    shutil.copytree(ROOT / "benchmarks" / "studies" / "tid2013_i01", folder)
    file, content = REPORTS[name]
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = run(study.main, ["table", str(folder)], capfd)
    assert status == 2
    assert_harmless(out, 0)
    assert_harmless(err, 1)


@pytest.mark.parametrize("name", ["tid2013_i01", "biq2021_dev"])
def test_a_report_that_ships_keeps_its_look(name):
    """The table of docs/studies.md was made by the same command; its folders are below the checkout."""
    text = digest(ROOT / "benchmarks" / "studies" / name).replace(f"{ROOT.as_posix()}/", "")
    assert text in (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")


# What every program holds to

PROGRAMS = [
    path
    for path in sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "agentic_iqa_local").rglob("*.py")])
    if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    or "\ndef main(" in path.read_text(encoding="utf-8")
]
ALLOWED = {"one_line", "printable"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_program_runs_in_safe_streams(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    imported = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and any(name.name == "main" for name in node.names)
    ]
    assert mains or imported
    for main in mains:
        assert "safe_streams()" in [ast.unparse(decorator) for decorator in main.decorator_list]
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            called = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            assert called <= {"main", "sys.exit", "logging.disable"}


def written_past_the_streams(tree: ast.AST) -> list[str]:
    """Calls of os.write to stdout or stderr with a text that is neither constant nor made safe on the spot,
    and terminal sequences that are printed."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if name == "os.write" and isinstance(call.args[0], ast.Constant) and call.args[0].value in (1, 2):
            values = [node.value for node in ast.walk(call.args[1]) if isinstance(node, ast.FormattedValue)]
            names = [node for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)]
            safe = all(isinstance(value, ast.Call) and ast.unparse(value.func) in ALLOWED for value in values)
            if not safe or (names and not values):
                found.append(ast.unparse(call))
        if name == "print" and any(s in ast.unparse(call) for s in ("\\x1b", "\\r")):
            found.append(ast.unparse(call))
    return found


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "agentic_iqa_local").rglob("*.py")]),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_nothing_is_written_past_the_safe_streams(path):
    assert written_past_the_streams(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_what_is_written_past_the_streams_is_found():
    code = (
        'os.write(2, f"{x}".encode())\nos.write(1, x)\nprint("\\r\\033[K")\nos.write(2, b"x")\nos.write(2,'
        ' f"{one_line(x)}".encode())'
    )
    assert len(written_past_the_streams(ast.parse(code))) == 3
