"""`--gpu 0` without a model: the largest complete vision-language folder, or a warning that only the embedded model
is there."""

import argparse
import io
import json
import shutil
from pathlib import Path

import pytest
from conftest import EMBEDDED

from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.cli.options import chosen_settings
from agentic_iqa_local.vlm_client.model_choice import choose


def weights(file: Path, numbers: int) -> None:
    """A safetensors file with one tensor of so many float32 zeros."""
    header = json.dumps({f"{file.stem}.weight": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}})
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4 * numbers))


def model(folder: Path, numbers: int = 10, **config) -> Path:
    """A folder that has all that a vision-language model needs."""
    folder.mkdir(parents=True)
    known = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(known | config))
    for name in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    weights(folder / "model.safetensors", numbers)
    return folder


def in_shards(folder: Path, *numbers: int) -> Path:
    (folder / "model.safetensors").unlink()
    names = [f"model-{i}-of-{len(numbers)}.safetensors" for i in range(1, len(numbers) + 1)]
    for name, count in zip(names, numbers, strict=True):
        weights(folder / name, count)
    index = {"weight_map": {f"{Path(name).stem}.weight": name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def options(**given) -> argparse.Namespace:
    return argparse.Namespace(**{"gpu": "0", "engine": None} | given)


def test_the_largest_complete_one_is_taken_and_named(tmp_path):
    model(tmp_path / "small")
    large = in_shards(model(tmp_path / "maker" / "large"), 300, 400)
    model(tmp_path / "middle", 500)
    model(tmp_path / ".hidden", 9000)
    choice = choose(tmp_path)
    assert (choice.folder, choice.config) == (large, None)
    assert choice.said.startswith(f"no model chosen: large, the largest of 3 below {tmp_path}")
    assert "left out" not in choice.said


LACKS = {
    "shard": "model-2-of-2.safetensors is missing",
    "preprocessor_config.json": "expected preprocessor_config.json or",
    "tokenizer.json": "expected tokenizer.json or",
    "tokenizer_config.json": "expected tokenizer_config.json",
    "torn": "is no whole safetensors file",
}


@pytest.mark.parametrize(("what", "said"), LACKS.items(), ids=LACKS)
def test_an_incomplete_one_is_left_out_and_said(tmp_path, what, said):
    model(tmp_path / "small")
    large = in_shards(model(tmp_path / "large"), 300, 400)
    if what == "torn":
        file = large / "model-1-of-2.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    else:
        (large / what.replace("shard", "model-2-of-2.safetensors")).unlink()
    choice = choose(tmp_path)
    assert choice.folder == tmp_path / "small"
    assert "; left out: large: " in choice.said
    assert said in choice.said


def test_models_of_other_kinds_and_the_small_ones_that_ship_are_no_candidates(tmp_path):
    model(tmp_path / "language", architectures=["Qwen2ForCausalLM"], vision_config=None)
    model(tmp_path / "speech", architectures=["WhisperForConditionalGeneration"], vision_config=None)
    model(tmp_path / "vision", architectures=["CLIPModel"])
    model(tmp_path / "embedded", agentic_iqa_notice="small")
    (tmp_path / "empty").mkdir()
    choice = choose(tmp_path)
    assert (choice.folder, choice.config) == (None, None)
    assert choice.said.startswith(f"warning: no model chosen and no complete vision-language model below {tmp_path}")
    assert "left out" not in choice.said
    assert choose(tmp_path / "none").folder is None


def test_a_model_that_a_set_up_is_made_for_gets_it(tmp_path):
    folder = model(tmp_path / "Qwen2.5-VL-7B-Instruct")
    said = []
    settings = chosen_settings(options(models=tmp_path), said.append)
    assert choose(tmp_path).config == "qwen2_5_vl_7b"  # and not its 4-bit edition
    (backend,) = settings.backends
    assert settings.folder(backend) == folder
    # 4096 tokens of 28×28 pixels, as configs/qwen2_5_vl_7b.yaml says
    assert settings.model(backend).max_pixels == 4096 * 28 * 28
    assert len(said) == 1


@pytest.mark.parametrize(
    "given", [{"model": "embedded"}, {"config": "embedded"}, {"gpu": None}, {"engine": "server"}], ids=str
)
def test_what_was_chosen_wins(tmp_path, given):
    model(tmp_path / "large", 1000)
    said = []
    (backend,) = chosen_settings(options(**{"models": tmp_path} | given), said.append).backends
    assert said == []
    assert "large" not in backend


@pytest.fixture
def assess(monkeypatch, tmp_path, capsys):
    """Runs the command, on a machine where GPU 0 is (a CPU)."""
    real = Path(assess_command.__file__)
    assert real.is_file()
    monkeypatch.setattr("agentic_iqa_local.devices.choose_device", lambda gpu=None, cpu=False: "cpu")

    def run(*words):
        results = io.StringIO()
        monkeypatch.setattr(assess_command, "Console", lambda: Console(results))
        status = assess_command.main(["--pipeline", "letters", *map(str, words)])
        return status, json.loads(results.getvalue()), capsys.readouterr().err.splitlines()

    return run


def test_without_a_picture_and_a_model_the_sample_is_assessed_with_what_is_there(assess, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(EMBEDDED, mine)
    config = json.loads((mine / "config.json").read_text())
    del config["agentic_iqa_notice"]
    (mine / "config.json").write_text(json.dumps(config))
    status, row, said = assess("--gpu", "0", "--models", tmp_path)
    assert (status, row["error"], row["model"]["name"]) == (0, None, "mine")
    assert row["image"].endswith("sumac.png")
    assert said[0].startswith("no model chosen: mine, the largest of 1 below")
    assert said[1].startswith("no picture named: assessing the sample photograph that ships")
    shutil.rmtree(mine)
    status, row, said = assess("--gpu", "0", "--models", tmp_path)
    assert (status, row["error"]) == (0, None)
    assert said[0].startswith("warning: no model chosen and no complete vision-language model below")
