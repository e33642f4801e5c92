"""Every shipped configuration loads; mistakes are named."""

from pathlib import Path

import pytest
import yaml
from conftest import EMBEDDED, ROOT

from agentic_iqa_local.config import CONFIGS, Settings, find_config, load_settings, model_folder
from agentic_iqa_local.config_sections import ConfigError
from agentic_iqa_local.offline.store import models_root

SET_UPS = sorted(p for p in CONFIGS.glob("*.yaml") if not p.stem.startswith(("tool_", "detector")))


@pytest.mark.parametrize("path", SET_UPS, ids=lambda p: p.stem)
def test_every_shipped_set_up_loads_and_its_sections_share_one_model(path):
    settings = load_settings(path)
    backends = {settings.role(role).backend for role in ("planner", "executor", "summarizer")}
    assert len(backends) == 1
    assert set(yaml.safe_load(path.read_text())) >= {"planner", "executor", "summarizer"}


def test_the_set_ups_that_are_promised_ship():
    assert {p.stem for p in SET_UPS} >= {
        "model_backends", "qwen2_5_vl_7b", "qwen2_5_vl_7b_4bit", "qwen3_vl_8b", "qwen3_vl_8b_4bit", "llava_onevision_7b",
        "llava_onevision_0_5b", "q_sit_mini", "qwen3_vl_2b", "qwen2_5_vl_3b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("plannner: {}", "plannner: unknown key"),
        ("summarizer: {backend: transformers.embedded, top_p: 1}", "summarizer.top_p: unknown key"),
        ("fusion: {eta: -1}", "fusion.eta"),
        ("fusion: {mode: logit}", "fusion.mode"),
        ("models: {other: {dtype: float32}}", "other not named by any section"),
        ("- a list", "expected a mapping"),
        ("a: [unclosed", "not valid YAML"),
        ("", "expected a mapping"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(tmp_path, text, named):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named.split(":")[0]) as caught:
        load_settings(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_unknown_set_up_lists_the_shipped_ones():
    with pytest.raises(ConfigError, match="qwen2_5_vl_7b"):
        find_config("qwen")


def test_model_option_keeps_the_set_ups_own_loading_options(tmp_path):
    settings = load_settings("qwen2_5_vl_7b_4bit")
    folder = tmp_path / "Qwen2.5-VL-7B-Instruct"
    folder.mkdir()
    moved = settings.with_options(model=str(folder))
    assert moved.model(moved.summarizer.backend).quantization == "4bit"
    assert moved.model(moved.summarizer.backend).path == str(folder)
    other = settings.with_options(model="embedded")
    assert other.model(other.summarizer.backend).quantization == "none"


def test_a_limit_of_zero_stays_zero():
    assert Settings(max_replan_iterations=0).max_replan_iterations == 0
    assert Settings().max_replan_iterations == 2


def test_models_lie_in_one_folder_and_ours_where_they_ship(tmp_path, monkeypatch):
    monkeypatch.delenv("AGENTIC_IQA_MODELS", raising=False)
    assert models_root() == ROOT / "models"
    assert model_folder("embedded") == EMBEDDED
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path))
    assert models_root() == tmp_path
    assert models_root("elsewhere") == Path("elsewhere").absolute()
    assert model_folder("embedded") == EMBEDDED
    (tmp_path / "embedded").mkdir()
    assert model_folder("embedded") == tmp_path / "embedded"
    # One that is nowhere is expected in the models folder.
    assert model_folder("Qwen") == tmp_path / "Qwen"


@pytest.mark.parametrize(
    ("path", "place"), [("more/VL", "{root}/more/VL"), ("/srv/VL", "/srv/VL"), (None, "{root}/VL")]
)
def test_a_models_path_is_taken_from_the_models_folder_unless_it_is_absolute(
    tmp_path, monkeypatch, path, place
):
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path))
    section = {"backend": "transformers.VL"}
    roles = dict.fromkeys(("planner", "executor", "summarizer"), section)
    settings = Settings.model_validate(roles | {"models": {"VL": {"path": path}}})
    assert settings.model("transformers.VL").path == place.format(root=tmp_path)


def test_a_background_is_an_opaque_colour(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("images: {background: '#808080'}\n")
    assert load_settings(file).images.background == "#808080"
    file.write_text("images: {background: whit}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert (
        str(caught.value)
        == f"{file}: images.background: expected an opaque colour such as white, #808080 or rgb(128, 128,"
        " 128), got 'whit'; did you mean white?"
    )
    with pytest.raises(ConfigError, match="background: expected an opaque colour"):
        load_settings().with_options(background="transparent")
