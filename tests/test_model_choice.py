"""`--gpu 0` without a model: the largest complete vision-language folder, or a warning that only the embedded model
is there."""

import argparse
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import EMBEDDED
from safetensors.numpy import save_file

from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.cli.options import chosen_settings
from agentic_iqa_local.vlm_client.model_choice import choose


def model(folder: Path, *numbers: int, **config) -> Path:
    """A vision-language model's folder with so many numbers in each file of weights."""
    folder.mkdir(parents=True)
    known = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_config": {},
    }
    places = {}
    for i, count in enumerate(numbers, 1):
        places[f"layer.{i}"] = file = f"model-{i}-of-{len(numbers)}.safetensors"
        save_file({f"layer.{i}": np.zeros(count, np.float32)}, folder / file)
    files = {"config.json": known | config, "model.safetensors.index.json": {"weight_map": places}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def options(**given) -> argparse.Namespace:
    return argparse.Namespace(**{"gpu": "0", "cpu": False, "engine": None} | given)


@pytest.fixture(autouse=True)
def _gpu_0_is_there(monkeypatch):
    """A CPU stands in for it."""
    monkeypatch.setattr("agentic_iqa_local.devices.choose_device", lambda *_: "cpu")


def test_the_largest_complete_one_is_taken_and_named(tmp_path):
    model(tmp_path / "small", 10)
    large = model(tmp_path / "maker" / "large", 300, 400)
    model(tmp_path / "middle", 500)
    model(tmp_path / ".hidden", 9000)
    choice = choose(tmp_path)
    assert (choice.folder, choice.config) == (large, None)
    assert f"large is the largest below {tmp_path}" in choice.said


def test_a_cut_one_is_left_out_and_said(tmp_path):
    model(tmp_path / "small", 10)
    os.truncate(model(tmp_path / "large", 300, 400) / "model-1-of-2.safetensors", 1000)
    choice = choose(tmp_path)
    assert choice.folder == tmp_path / "small"
    assert "large: 'model-1-of-2.safetensors' is no whole" in choice.said


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen2ForCausalLM"]},
        {"architectures": ["WhisperForConditionalGeneration"], "vision_config": None},
        {"agentic_iqa_notice": "small"},
    ],
)
def test_other_models_and_the_small_ones_that_ship_are_not_taken(tmp_path, config):
    model(tmp_path / "other", 10, **config)
    choice = choose(tmp_path)
    assert choice.folder is None
    assert "warning: no model chosen" in choice.said


def test_a_model_that_a_set_up_is_made_for_gets_it(tmp_path, capsys):
    folder = model(tmp_path / "Qwen2.5-VL-7B-Instruct", 10)
    settings = chosen_settings(options(models=tmp_path))
    assert choose(tmp_path).config == "qwen2_5_vl_7b"  # and not its 4-bit edition
    (backend,) = settings.backends
    assert settings.folder(backend) == folder
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "given",
    [{"model": "embedded"}, {"config": "embedded"}, {"gpu": None}, {"engine": "server"}],
    ids=str,
)
def test_what_was_chosen_wins(tmp_path, capsys, given):
    model(tmp_path / "large", 1000)
    (backend,) = chosen_settings(options(**{"models": tmp_path} | given)).backends
    assert capsys.readouterr().err == ""
    assert "large" not in backend


@pytest.mark.parametrize(
    ("there", "used"), [(["mine"], "mine"), ([], "embedded")], ids=["a model", "none"]
)
def test_without_a_picture_and_a_model_the_sample_is_assessed(
    tmp_path, monkeypatch, capsys, there, used
):
    """The command with a model in the folder and without one."""
    for name in there:
        mine = Path(shutil.copytree(EMBEDDED, tmp_path / name))
        config = json.loads((mine / "config.json").read_text())
        del config["agentic_iqa_notice"]
        (mine / "config.json").write_text(json.dumps(config))
    results = io.StringIO()
    monkeypatch.setattr(assess_command, "Console", lambda: Console(results))
    assert main(["assess", "--pipeline", "letters", "--gpu", "0", "--models", str(tmp_path)]) == 0
    row, said = json.loads(results.getvalue()), capsys.readouterr().err
    assert (row["error"], row["model"]["name"]) == (None, used)
    assert row["image"].endswith("sumac.png")
    assert ("warning: no model chosen" in said) == (not there)
    assert "no picture named: assessing the sample that ships" in said
