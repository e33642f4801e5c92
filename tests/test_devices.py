"""Which device is taken: by index, UUID or MIG name, and never one that CUDA_VISIBLE_DEVICES hides."""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from agentic_iqa_local import devices
from agentic_iqa_local.devices import DeviceError, choose_device

UUIDS = [f"{start}-0000-1111-2222-333344445555" for start in ("5a1b2c3d", "5a99ffff", "0c0ffee0")]
MIG = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.fixture
def gpus(monkeypatch):
    """Call with a number of GPUs to make torch see them; CUDA is not in use yet and CUDA_VISIBLE_DEVICES is
    not set."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that what the code sets is undone
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.version, "cuda", "13.2")

    def see(count, initialized=False):
        monkeypatch.setattr(devices, "_without_driver", lambda: False)
        cards = [SimpleNamespace(name=f"Card {i}", uuid=UUIDS[i]) for i in range(count)]
        no_driver = RuntimeError(
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU."
        )
        for name, answer in {
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "is_initialized": lambda: initialized,
            "get_device_properties": cards.__getitem__,
            "init": Mock(side_effect=no_driver),
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    return see


@pytest.mark.parametrize(
    ("count", "options", "device"),
    [
        (2, {}, "cuda:0"), (0, {}, "cpu"), (2, {"cpu": True}, "cpu"), (2, {"gpu": " 01 "}, "cuda:1"),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_taken(gpus, count, options, device):
    gpus(count)
    assert choose_device(**options) == device
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_without_a_driver_torch_is_not_asked(monkeypatch):
    monkeypatch.setattr(devices, "ctypes", Mock(CDLL=Mock(side_effect=OSError)))
    monkeypatch.setattr(devices, "Path", lambda device: Mock(exists=lambda: False))
    monkeypatch.setattr(torch.cuda, "is_available", Mock(side_effect=AssertionError))
    assert choose_device() == "cpu"


FORMS = ("expected an index (0), a UUID or its beginning (GPU-5a1b2c3d)",)


@pytest.mark.parametrize(
    ("count", "gpu", "said"),
    [
        (2, 2, ("--gpu 2", "0: Card 0 GPU-5a1b2c3d", "1: Card 1", "torch's CUDA: 13.2", "or --cpu")),
        (0, "0", ("GPUs are: none", "CUDA_VISIBLE_DEVICES: not set", "Found no NVIDIA driver", "or --cpu")),
        (2, "GPU-5a", ("exactly one device of that name",)),
        *((2, gpu, FORMS) for gpu in ("-1", "0,1", "MIG-a\x1b[2J")),
    ],
)  # fmt: skip
def test_what_is_not_there_or_no_device_is_told_with_what_is(gpus, count, gpu, said):
    gpus(count)
    with pytest.raises(DeviceError) as caught:
        choose_device(gpu)
    assert [part for part in said if part not in str(caught.value)] == []


@pytest.mark.parametrize("name", [MIG, "GPU-5a1b"])
@pytest.mark.parametrize("visible", ["0", "x,{}", "{}", None])
def test_a_named_device_is_made_visible_only_where_it_is_listed(gpus, monkeypatch, name, visible):
    gpus(1)
    if visible:
        visible = visible.format(name)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if visible in (name, None):
        assert choose_device(name) == "cuda:0"
    else:
        again = f"'{visible}'; start again with CUDA_VISIBLE_DEVICES={name}"
        with pytest.raises(DeviceError, match=again):
            choose_device(name)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == (visible or name)


def test_a_named_device_comes_too_late_once_cuda_is_in_use(gpus):
    gpus(1, initialized=True)
    with pytest.raises(
        DeviceError, match="in use yet, but it is; start again with CUDA_VISIBLE_DEVICES=MIG-"
    ):
        choose_device(MIG)
