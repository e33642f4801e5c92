"""Attacks at the other doors: options, environment variables, folders that the doctor examines."""

from pathlib import Path

import pytest
from attacks import ODD_FILES, in_time, is_sentence
from conftest import ROOT

from agentic_iqa_local import IQA
from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.config_sections import ConfigError
from agentic_iqa_local.devices import DeviceError
from agentic_iqa_local.offline.doctor.checks import Setup
from agentic_iqa_local.offline.doctor.examination import examinations


@pytest.fixture(autouse=True)
def _in_time():
    with in_time():
        yield


class Named:
    """A path that is what it is told to be."""

    def __init__(self, name):
        self.name = name

    def __fspath__(self):
        return self.name


# Options


OPTIONS = {
    **{f"{option} {kind}": {option: value} for option in ("models", "model", "config") for kind, value in {
        "5000 characters": "x" * 5000, "3000 folders": "x/" * 3000, "NUL": "/a\0b", "lone surrogate": "/a\ud800", "bytes": Named(b"abc"),
    }.items()},
    "model escapes": {"model": "/\x1b[2J"},
    "model no UTF-8": {"model": "/\udcff"},
    "model a device": {"model": "/dev/zero"},
    "model the kernel's log": {"model": "/proc/kmsg"},
    "config escapes": {"config": "\x1b[2J"},
    "config a device": {"config": "/dev/zero"},
    "engine escapes": {"engine": "\x1b[2J"},
    "engine a list": {"engine": ["server"]},
    "mode escapes": {"mode": "\x1b[2J"},
    "mode a number": {"mode": 3},
    "pipeline escapes": {"pipeline": "\x1b[2J"},
    "pipeline a list": {"pipeline": []},
    "background escapes": {"background": "\x1b[2J"},
    "background 100,000 characters": {"background": "#" * 100_000},
    "background of 5000 digits": {"background": f"rgb({'9' * 5000},0,0)"},
    "background a number": {"background": 3},
    "gpu escapes": {"gpu": "\x1b[2J"},
    "gpu below 0": {"gpu": -1},
    "gpu of 5000 digits": {"gpu": "9" * 5000},
    "gpu a list": {"gpu": []},
    "gpu true": {"gpu": True},
    "gpu other digits": {"gpu": "\u0663"},
    "gpu bytes": {"gpu": b"0"},
    "gpu a MIG device and more": {"gpu": "MIG-a\nb"},
    "limit below 0": {"max_replan_iterations": -1},
    "limit true": {"max_replan_iterations": True},
    "limit NaN": {"max_replan_iterations": float("nan")},
    "limit a text": {"max_replan_iterations": "2"},
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_hostile_option(kind, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(ROOT / "tests" / "models"))
    options = OPTIONS[kind] if "gpu" in OPTIONS[kind] else OPTIONS[kind] | {"cpu": True}
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        IQA(**options)
    assert is_sentence(str(caught.value))
    assert not isinstance(caught.value, (UnicodeError, RecursionError))


# Folders and variables that the doctor meets


def checks(**options) -> dict[str, str]:
    """The status of each of the doctor's checks by its name, made in this process; all their texts are one
    line."""
    setup = Setup(choose_settings(**options), cpu=True, quick=True)
    found = list(examinations(setup, lambda examination, *about: examination(setup, *about)))
    assert all(is_sentence(text) for each in found for text in (each.name, each.found, each.remedy or "none"))
    return {each.name: each.status for each in found}


NAMES = {
    "no UTF-8": "a\udcff",
    "escapes": "a\x1b[2J",
    "line end": "a\nb",
    "reversed": "a\u202eb",
    "plain": "a",
}
ROOTS = {
    **{f"folder of a name {kind}": lambda folder, name=name: (folder / name).mkdir() or folder / name for kind, name in NAMES.items()},
    **{f"a {kind}": lambda folder, kind=kind: ODD_FILES[kind](folder / "odd") or folder / "odd" for kind in ODD_FILES if kind != "folder"},
    **{f"a {kind} as a manifest": lambda folder, kind=kind: ODD_FILES[kind](folder / "manifest.json") or folder for kind in ODD_FILES},
    "below a file": lambda folder: Path(__file__) / "a",
    "5000 characters": lambda folder: "/" + "x" * 5000,
    "3000 folders": lambda folder: "/x" * 3000,
}  # fmt: skip


@pytest.mark.parametrize("kind", ROOTS)
def test_the_doctor_examines_any_models_folder(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(ROOTS[kind](tmp_path)))
    found = checks()
    assert found["models folder"] == ("warn" if kind.startswith("folder of") else "fail")


VARIABLES = ["TMPDIR", "TORCH_HOME", "HF_HUB_CACHE", "HF_HOME", "TRITON_CACHE_DIR", "TRITON_HOME", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"]  # fmt: skip
VALUES = {
    "a device": "/dev/zero",
    "5000 characters": "/" + "x" * 5000,
    "no UTF-8 and escapes": "/\udcff\x1b[2J",
    "a user": "~nobody-here",
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("variable", VARIABLES)
def test_the_doctor_stands_any_value_of_a_variable(variable, value, monkeypatch):
    monkeypatch.setenv(variable, VALUES[value])
    assert checks()["python"] == "pass"


@pytest.mark.parametrize(
    "value", ["\x1b[2J", "", ",,,", "-1", "9" * 5000, "GPU-\udcff", "MIG-\x1b[2J"], ids=ascii
)
def test_any_value_of_visible_devices(value, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(DeviceError) as caught:
        IQA(gpu="MIG-5a1b2c3d")
    assert is_sentence(str(caught.value))
    with pytest.raises(ConfigError) as caught:
        choose_settings(engine=value or "none")
    assert is_sentence(str(caught.value))
