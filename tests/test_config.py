"""Settings and options: every shipped configuration loads, mistakes are named in one sentence, hostile files are
refused, and each door validates through the same model."""

import json
from pathlib import Path

import pytest
import yaml
from attacks import in_time, is_sentence
from conftest import EMBEDDED, ROOT

from agentic_iqa_local import IQA
from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.cli.command import parse
from agentic_iqa_local.config import (
    CONFIGS,
    ConfigError,
    Request,
    Settings,
    find_config,
    load_settings,
    model_folder,
)
from agentic_iqa_local.files import models_root
from agentic_iqa_local.serve.asks import Refused, SetUp
from agentic_iqa_local.services import tools_of

SET_UPS = sorted(p for p in CONFIGS.glob("*.yaml") if not p.stem.startswith(("tool_", "detector")))


NO_BACKEND = (
    "expected ENGINE.FOLDER with ENGINE one of transformers, vllm, server, llamacpp, such as"
    " transformers.embedded: models run on your own machines, never in a cloud"
)


@pytest.fixture(autouse=True)
def _in_time():
    with in_time():
        yield


@pytest.mark.parametrize("path", SET_UPS, ids=lambda p: p.stem)
def test_every_shipped_set_up_loads_and_is_listed(path):
    assert len(load_settings(path).backends) == 1
    assert set(yaml.safe_load(path.read_text())) >= {"planner", "executor", "summarizer"}
    with pytest.raises(
        ConfigError,
        match=f"one of the shipped: embedded, .*{path.stem.replace('model_backends', '')}",
    ):
        find_config("qwen")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("plannner: {}", "plannner: unknown key; did you mean planner?"),
        ("fusion: {modes: logits}", "fusion.modes: unknown key; did you mean mode?"),
        ("models: {a: {dtypes: half}}", "models.a.dtypes: unknown key; did you mean dtype?"),
        *(
            (f"{{planner: {{backend: '{backend}'}}}}", f"planner.backend: {NO_BACKEND}, got '{backend}'")
            for backend in ("openai.gpt-4o", "transformers.", "/models/Qwen2.5", "")
        ),
        ("fusion: {eta: -1}", "fusion.eta"),
        ("fusion: {eta: high}", "fusion.eta: expected a valid number or auto"),
        ("models: {Qwen2.5-VL-7B: {dtype: half}}", "models.Qwen2.5-VL-7B.dtype: expected auto, float32"),
        ("decisions: {error_rate: 0.7}", "decisions.error_rate: expected less than 0.5"),
        ("models: {other: {dtype: float32}}", "other not named by any section"),
        ("images: {background: whit}", "images.background: expected an opaque colour such as white"),
        ("a: [unclosed", "not valid YAML"),
        ("fusion: {eta: 1}\nfusion: {eta: 2}", "expected each key once, got fusion"),
        ("x: &x [" + "1, " * 9000 + "]\ny: [" + "*x, " * 9000 + "]", "its aliases make it more"),
        ("a: &a {b: 1}\nc: {<<: *a}", "expected each value written out, got a merge (<<)"),
        ("a: " + "[" * 10_000, "nested too deeply"),
        ("fusion: {eta: " + "9" * 5000 + "}", "not valid YAML"),
        ("x: !!python/object/apply:os.system [id]", "not valid YAML"),
        ("x" * 300_000, "expected at most 262144 bytes"),
        ('"k\\e[2J\\u202e\\u2028": 1', "unknown key"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_file_and_key(tmp_path, text, named):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        ("no_reference", "NIQUE", "there is no tool 'NIQUE' here; did you mean UNIQUE, NIQE"),
        ("no_reference", "VSI", "list it under full_reference"),
        ("full_reference", "vsi", "expected VSI"),
        ("not_offered", "\x1b[2J\u202e", "there is no tool"),
    ],
)
def test_tools_of_a_configuration_are_checked(tmp_path, key, name, said):
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"tools": {key: [name]}}))
    with pytest.raises(ConfigError, match=f"^tools.{key}: ") as caught:
        tools_of(load_settings(path))
    assert said in str(caught.value)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize(
    "server",
    ["http://me:secret@127.0.0.1:8000", "127.0.0.1:8000", "http://a b", "[http://a, http://b]"],
)
def test_what_is_no_address_is_refused_and_not_quoted(tmp_path, server):
    path = tmp_path / "mine.yaml"
    path.write_text(f"models: {{embedded: {{server: '{server}'}}}}")
    with pytest.raises(ConfigError, match="server: expected http://HOST:PORT") as caught:
        load_settings(path)
    assert "secret" not in str(caught.value)


def test_models_lie_in_one_folder_and_ours_where_they_ship(tmp_path, monkeypatch):
    monkeypatch.delenv("AGENTIC_IQA_MODELS", raising=False)
    assert models_root() == ROOT / "models"
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path))
    assert models_root() == tmp_path
    assert models_root("elsewhere") == Path("elsewhere").absolute()
    assert (model_folder("embedded"), model_folder("Qwen")) == (EMBEDDED, tmp_path / "Qwen")
    (tmp_path / "embedded").mkdir()
    assert model_folder("embedded") == tmp_path / "embedded"


def test_the_same_model_elsewhere_keeps_its_loading_options(tmp_path):
    folder = tmp_path / "Qwen2.5-VL-7B-Instruct"
    folder.mkdir()
    moved = choose_settings(config="qwen2_5_vl_7b_4bit", model=folder, engine="vllm")
    assert moved.backends == ["vllm.Qwen2.5-VL-7B-Instruct"]
    assert moved.model(moved.backends[0]).quantization == "4bit"
    assert moved.model(moved.backends[0]).path == str(folder)
    other = Request.of({"model": "embedded"}).applied_to(moved)
    assert other.model(other.backends[0]).quantization == "none"


WRONG = [
    (
        "mode",
        "logit",
        "expected logits, classification or uniform, got 'logit'; did you mean logits?",
    ),
    ("max_replan_iterations", "-1", "expected greater than or equal to 0, got '-1'"),
    ("max_replan_iterations", "two", "expected a valid integer, got 'two'"),
    (
        "at_least",
        "super",
        "expected Excellent, Good, Fair or Poor (or A to D) or a number from 1 to 5, got 'super'",
    ),
    ("target_width", "9", "expected less than or equal to 4, got '9'"),
    ("background", "#ffffff80", "expected an opaque colour such as white, #808080"),
    ("choices", ["Yes"], "expected 2 to 10 answers, got 1"),
    ("choices", ["Yes", "yes "], "expected answers that differ and are not blank"),
    ("query", "x" * 4001, "expected at most 4000 characters, got 'xxx"),
    *(
        ("box", box, "expected NAME=LEFT,TOP,RIGHT,BOTTOM in pixels (the name may be left out)")
        for box in (
            "1,2,3",
            "9,0,5,9",
            "Global=0,0,9,9",
            "0,0,9,9;0,0,8,8",
        )
    ),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_each_door_refuses_nonsense_in_the_same_words(name, value, said, capsys):
    with pytest.raises(ConfigError) as caught:
        Request.of({name: value}).applied_to(Settings())
    assert str(caught.value).startswith(f"{name}: ")
    assert said in str(caught.value)
    with pytest.raises(Refused) as refused:
        SetUp(Settings(), "agent").ask({name: value})
    assert refused.value.status == 400
    flag = f"--{name.replace('_', '-')}"
    typed = [flag, *([value] if isinstance(value, str) else value)]
    asked = [] if name == "query" else ["--query", "Q"]
    with pytest.raises(SystemExit):
        parse("assess", ["a.png", *asked, *typed])
    told = capsys.readouterr().err
    assert f"error: {flag}: " in told
    assert said in told


def test_texts_from_a_command_line_or_a_form_become_values():
    request = Request.of(
        {"at_least": "Good", "error_rate": "0.05", "max_replan_iterations": "0", "map": "true"}
    )
    assert (request.at_least, request.error_rate, request.max_replan_iterations) == (3.5, 0.05, 0)
    assert request.map is True
    assert request.applied_to(Settings()).decisions.at_least == 3.5


ODD_PATHS = {
    "NUL": "/a\0b",
    "bytes": b"abc",
    "no UTF-8": "/\udcff",
}
ODD_OPTIONS = {
    **{f"{option} {kind}": {option: value} for option in ("model", "config", "fit") for kind, value in ODD_PATHS.items()},
    "engine escapes": {"engine": "\x1b[2J"}, "mode a number": {"mode": 3}, "background long": {"background": "#" * 10**5},
    "gpu a list": {"gpu": []}, "gpu of 5000 digits": {"gpu": "9" * 5000}, "gpu a MIG device and more": {"gpu": "MIG-a\nb"},
    "gpu and cpu": {"gpu": 0, "cpu": True}, "unknown": {"confg": "embedded"}, "of a picture": {"query": "Is it sharp?"},
}  # fmt: skip


@pytest.mark.parametrize("options", ODD_OPTIONS.values(), ids=ODD_OPTIONS)
def test_an_odd_option_is_refused_in_one_sentence(options):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        IQA(**({} if "gpu" in options else {"cpu": True}) | options)
    assert is_sentence(str(caught.value))


def test_every_option_says_what_it_is():
    assert [name for name, field in Request.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (" 1, 2,30,40 ", "1,2,30,40"),
        ("the leaves = 1,2,30,40;sky=0,0,9,9", "the leaves=1,2,30,40; sky=0,0,9,9"),
        ({"sky": [0, 0, 9, 9]}, "sky=0,0,9,9"),
    ],
    ids=str,
)
def test_boxes_in_every_form_are_one_text(given, text):
    assert Request.of({"box": given}).box == text
    assert Request.of({"box": text}).box == text
