"""The doctor on the checkout as it ships, on set-ups that are broken in one way, and its deep comparison."""

import json
import os
import shutil
import socket

from conftest import EMBEDDED

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.offline import checks, deep
from agentic_iqa_local.offline.checks import Finding, Setup
from agentic_iqa_local.offline.doctor import examine
from agentic_iqa_local.state import revised

NAMES = ["packages", "device", "models folder", "files of transformers.embedded", "memory"]
NAMES += ["model transformers.embedded", "tools", "fusion"]


def run(capsys, *options: str) -> tuple[int, dict[str, dict]]:
    status = main(["doctor", "--cpu", "--json", *options])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (status == 0)
    return status, {check["name"]: check for check in found["checks"]}


def test_the_checkout_is_sound_and_deeply_so(capsys):
    status, checks = run(capsys, "--deep")
    assert status == 0, checks
    assert list(checks)[: len(NAMES)] == NAMES
    assert all(check["status"] in ("pass", "warn") for check in checks.values())
    assert "(bound 0.0001)" in checks["plain forward"]["found"]
    assert "LocalNR" in checks["tools"]["found"]
    # LocalNR leads NIQE by far (configs/tool_reliability.yaml)
    assert "the vote of LocalNR counts with η" in checks["fusion"]["found"]
    assert "NIQE only checks" in checks["fusion"]["found"]


def test_the_fusion_is_that_of_the_configuration():
    """1 / (2 · σ²) of one tool: its own σ."""
    settings = load_settings()
    sigma = load_reliability().sigma("LocalNR")
    found = checks.fusion(Setup(settings, cpu=True)).found
    assert f"LocalNR counts with η {1 / (2 * sigma**2):.2f}, NIQE only" in found
    told = {"eta": 2.5, "temperature": 3.0, "trailing_tools": "vote"}
    fixed = revised(settings, fusion=revised(settings.fusion, **told))
    found = checks.fusion(Setup(fixed, cpu=True)).found
    assert "a temperature of 3;" in found
    assert "the vote of LocalNR and NIQE counts with η 2.50;" in found


def test_missing_and_cut_models_have_a_remedy(tmp_path, capsys):
    """Nothing is loaded, and what rests on a failed check is left out."""
    weights = shutil.copytree(EMBEDDED, tmp_path / "cut") / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    config = f"""
models: {{cut: {{path: {tmp_path / "cut"}}}}}
planner: {{backend: transformers.absent}}
executor: {{backend: transformers.cut}}
"""
    (tmp_path / "broken.yaml").write_text(config)
    options = ("--config", str(tmp_path / "broken.yaml"), "--models", str(tmp_path / "none"))
    status, checks = run(capsys, "--quick", *options)
    assert status == 1
    said = {
        "models folder": "none: no such folder",
        "files of transformers.absent": "absent",
        "files of transformers.cut": "model.safetensors",
    }
    for name, words in said.items():
        assert checks[name]["status"] == "fail"
        assert words in checks[name]["found"]
        assert checks[name]["remedy"]
    assert "memory" not in checks


def test_a_check_that_goes_wrong_fails_and_the_next_goes_on(monkeypatch):
    """Here one that would reach the network."""
    for name in ("device", "models_folder", "folder", "memory", "model", "tools", "fusion"):
        monkeypatch.setattr(checks, name, lambda *_, **__: Finding("pass", "sound"))
    monkeypatch.setattr(checks, "packages", lambda _: socket.getaddrinfo("example.org", 80))
    first, *others = examine(Setup(load_settings(), cpu=True))
    assert first.status == "fail"
    assert "example.org" in first.found
    assert {check.status for check in others} == {"pass"}


def test_a_package_that_is_too_old_is_named(monkeypatch):
    needed = ["numpy>=1", "numpy<0.1", "pip>99; python_version < '3'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needed)
    finding = checks.packages(Setup(load_settings()))
    assert finding.status == "fail"
    assert finding.found.count("expected numpy<0.1") == finding.found.count("expected") == 1


def test_deep_tells_letters_apart_from_others():
    read = {"A": -2.0, "B": -1.0, "C": -1.2, "D": -2.5, "E": -3.0}
    turned = dict(zip(read, [*read.values()][::-1], strict=True))
    nearly = {letter: value + 0.02 for letter, value in read.items()}

    def status(other, dtype, device="cpu", quantization="none"):
        about = {"engine": "x", "dtype": dtype, "device": device, "quantization": quantization}
        return deep.compared([read], [other], about).status

    assert status(read, "float32") == "pass"
    assert status(turned, "float32") == "fail"
    assert status(turned, "float32", quantization="4bit") == "warn"  # told, not judged
    assert status(nearly, "float32", "cuda:0") == "fail"  # TF32: 0.01 nats at most
    assert status(nearly, "float16") == "pass"  # 0.05
