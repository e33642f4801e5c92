import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from agentic_iqa_local import devices
from agentic_iqa_local.devices import (
    DeviceError,
    choose_device,
    choose_dtype,
    describe_device,
    multiplies_bfloat16_in_tiles,
)

UUIDS = [
    "5a1b2c3d-0000-1111-2222-333344445555",
    "5a99ffff-0000-1111-2222-333344445555",
    "0c0ffee0-0000-1111-2222-333344445555",
]
MIG, OTHER_MIG = "MIG-11111111-2222-3333-4444-555555555555", "MIG-99999999-2222-3333-4444-555555555555"


@pytest.fixture
def gpus(monkeypatch):
    """Call with a number of GPUs to make torch see them; CUDA is not in use yet and CUDA_VISIBLE_DEVICES is
    not set."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that what the code sets is undone
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    def see(count, initialized=False):
        def properties(device):
            index = torch.device(device).index if isinstance(device, str) else device
            assert index < count
            return SimpleNamespace(name=f"Card {index}", uuid=UUIDS[index], total_memory=(index + 1) * 2**30)

        monkeypatch.setattr(torch.version, "cuda", "13.2")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(torch.cuda, "init", fail_init)

    def fail_init():
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU.")

    return see


def test_the_default_is_the_first_gpu_or_the_cpu(gpus):
    gpus(2)
    assert choose_device() == "cuda:0"
    gpus(0)
    assert choose_device() == "cpu"


def test_cpu_is_taken_even_where_there_is_a_gpu(gpus):
    gpus(2)
    assert choose_device(cpu=True) == "cpu"


def test_gpu_and_cpu_exclude_each_other(gpus):
    gpus(2)
    with pytest.raises(DeviceError, match="--gpu 0 and --cpu: expected one of them, got both"):
        choose_device(0, cpu=True)


@pytest.mark.parametrize("gpu", [1, "1", " 1 ", "01"])
def test_an_index_counts_the_visible_gpus(gpus, gpu):
    gpus(2)
    assert choose_device(gpu) == "cuda:1"


def test_an_index_too_high_names_what_there_is(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(DeviceError) as caught:
        choose_device(2)
    message = str(caught.value)
    for part in (
        "--gpu 2",
        "0: Card 0 GPU-5a1b2c3d",
        "1: Card 1",
        "CUDA_VISIBLE_DEVICES=3,5",
        "with CUDA 13.2",
        "use --gpu 0 to --gpu 1, or --cpu",
    ):
        assert part in message


def test_without_a_gpu_the_error_says_why(gpus):
    gpus(0)
    with pytest.raises(DeviceError) as caught:
        choose_device("0")
    message = str(caught.value)
    for part in ("GPUs are: none", "CUDA_VISIBLE_DEVICES is not set", "Found no NVIDIA driver", "use --cpu"):
        assert part in message


def test_a_torch_without_cuda_is_named(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"built without CUDA.*use --cpu"):
        choose_device("GPU-5a1b2c3d")


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        (f"GPU-{UUIDS[1]}", "cuda:1"),
        (UUIDS[2].upper(), "cuda:2"),
        ("GPU-5a9", "cuda:1"),  # the other one beginning with 5a goes on with 1
        ("0c0f", "cuda:2"),
    ],
)
def test_a_uuid_or_its_beginning_finds_its_gpu(gpus, gpu, device):
    gpus(3)
    assert choose_device(gpu) == device


def test_a_uuid_is_found_in_use_and_leaves_the_visible_devices_alone(gpus, monkeypatch):
    gpus(2, initialized=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert choose_device(f"GPU-{UUIDS[1]}") == "cuda:1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"


@pytest.mark.parametrize(("gpu", "found"), [("GPU-5a", 2), (f"GPU-{UUIDS[2]}", 0)])
def test_a_uuid_of_several_gpus_or_of_a_hidden_one_is_refused(gpus, gpu, found):
    gpus(2)  # the third UUID exists, but is not visible
    with pytest.raises(DeviceError, match=rf"found on {found}.*use --gpu 0 to --gpu 1"):
        choose_device(gpu)


def test_a_mig_device_is_set_before_cuda_starts(gpus):
    gpus(1)
    assert choose_device(MIG) == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == MIG


def test_a_mig_device_is_taken_out_of_the_visible_ones(gpus, monkeypatch):
    gpus(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{OTHER_MIG},{MIG}")
    assert choose_device(MIG) == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == MIG


@pytest.mark.parametrize("visible", ["", "0", OTHER_MIG, f"GPU-{UUIDS[0]}", f"x,{MIG}"])
def test_a_mig_device_that_is_not_listed_is_never_made_visible(gpus, monkeypatch, visible):
    gpus(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(
        DeviceError, match=f"lists, but that is '{visible}'; start again with CUDA_VISIBLE_DEVICES={MIG}"
    ):
        choose_device(MIG)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_a_mig_device_comes_too_late_once_cuda_is_in_use(gpus, monkeypatch):
    gpus(1, initialized=True)
    with pytest.raises(
        DeviceError, match="in use yet, but it is; start again with CUDA_VISIBLE_DEVICES=MIG-"
    ):
        choose_device(MIG)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIG)  # unless it is the one in use
    assert choose_device(MIG) == "cuda:0"


@pytest.mark.parametrize("count", [0, 2])
def test_a_mig_device_that_does_not_show_alone_is_refused(gpus, count):
    gpus(count)
    with pytest.raises(DeviceError, match="exactly one MIG device of that name"):
        choose_device(MIG)


@pytest.mark.parametrize("gpu", ["", "-1", "cuda:0", "first", "0,1", "MIG-", "GPU-", "GPU-xyz", 1.5])
def test_a_malformed_value_gets_examples(gpus, gpu):
    gpus(2)
    with pytest.raises(
        DeviceError, match=r"expected an index \(0\), a UUID or its beginning \(GPU-5a1b2c3d\) or a MIG name"
    ):
        choose_device(gpu)


def test_a_gpu_is_described_with_its_memory(gpus):
    gpus(2)
    assert describe_device("cuda:1") == {
        "device": "cuda:1",
        "name": "Card 1",
        "memory_total_bytes": 2 * 2**30,
        "torch": torch.__version__,
        "cuda": "13.2",
    }


def test_the_cpu_is_described_without_memory():
    described = describe_device("cpu")
    assert described["device"] == "cpu"
    assert described["name"]
    assert described["memory_total_bytes"] is None


def test_importing_needs_no_torch():
    code = "import sys; import agentic_iqa_local.devices; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


CPU = "processor : 0\nmodel name : a CPU\nflags : fpu avx512_bf16 {}\n"


def test_a_cpu_computes_in_float32_unless_it_has_tiles_and_the_model_holds(tmp_path, monkeypatch):
    """AVX-512's bfloat16 alone was measured to be slower than float32."""
    tiles, none = tmp_path / "tiles", tmp_path / "none"
    tiles.write_text(CPU.format("amx_bf16 amx_tile"))
    none.write_text(CPU.format("avx_vnni"))
    assert [multiplies_bfloat16_in_tiles(file) for file in (tiles, none, tmp_path / "no such file")] == [
        True,
        False,
        False,
    ]
    for has in (True, False):
        monkeypatch.setattr(devices, "multiplies_bfloat16_in_tiles", lambda has=has: has)
        assert choose_dtype("auto", "cpu", holds_in_bfloat16=True) == ("bfloat16" if has else "float32")
        assert choose_dtype("auto", "cpu") == "float32"
        assert choose_dtype("float16", "cpu", holds_in_bfloat16=True) == "float16"


@pytest.mark.parametrize(("has", "expected"), [(True, "bfloat16"), (False, "float16")])
def test_a_gpu_computes_in_half_precision(monkeypatch, has, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has)
    assert choose_dtype("auto", "cuda:0") == expected
