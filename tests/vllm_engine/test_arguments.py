"""The arguments that vLLM gets on a card, read by vLLM's own parser and checked by its configuration for CUDA.
No card is needed, and no engine is built."""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import EMBEDDED
from published import MODELS, config_of, on_meta

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.vlm_client import vllm_client
from agentic_iqa_local.vlm_client.vllm_client import VllmClient


@pytest.fixture
def on_a_card(monkeypatch):
    """vLLM takes this machine for one with two cards of 24 GiB, and no engine is built on what it configures."""
    about = SimpleNamespace(name="Card", total_memory=24 * 2**30, is_integrated=False)
    for name, answer in {
        "get_device_capability": (8, 6), "get_device_properties": about, "get_device_name": "Card", "device_count": 2,
        "mem_get_info": (23 * 2**30, 24 * 2**30),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    for module in ("model_executor.model_loader", "v1.engine.llm_engine"):
        importlib.import_module(f"vllm.{module}")  # they have kernels for the processor alone
    kernels = "vllm._C_stable_libtorch"  # of the build for CUDA
    monkeypatch.setitem(sys.modules, kernels, ModuleType(kernels))
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    real, card = platforms.current_platform, NonNvmlCudaPlatform()
    for module in list(sys.modules.values()):
        if vars(module).get("current_platform") is real:
            monkeypatch.setattr(module, "current_platform", card)
    monkeypatch.setattr(platforms, "_current_platform", card)
    configured = Mock(side_effect=lambda config, _: SimpleNamespace(config=config))
    monkeypatch.setattr(vllm_client, "Engine", configured)


@pytest.fixture
def folder_of(tmp_path):
    """`folder_of(name)`: the published configuration of a set-up beside the embedded model's tokenizer and processor."""

    def made(name):
        for file in EMBEDDED.iterdir():
            (tmp_path / file.name).symlink_to(file)
        config = config_of(name)
        config.architectures = [type(on_meta(name)).__name__]
        (tmp_path / "config.json").unlink()
        config.save_pretrained(tmp_path)
        return tmp_path

    return made


@pytest.mark.parametrize("name", ["Qwen2.5-VL-7B-Instruct", "Qwen3-VL-8B-Instruct"])
def test_vllm_takes_the_shipped_models_on_a_card(name, on_a_card, folder_of):
    """vLLM's own configuration for CUDA finds its class, and the layers and heads of the published configuration."""
    model = ModelSettings(path=str(folder_of(name)))
    config = VllmClient(name, model, "cuda:0").engine.config
    text = config_of(name).get_text_config()
    assert config.model_config.architectures == [f"{MODELS[name][1]}ForConditionalGeneration"]
    assert config.model_config.get_num_layers(config.parallel_config) == text.num_hidden_layers
    assert config.model_config.get_total_num_kv_heads() == text.num_key_value_heads


def test_vllm_takes_our_arguments_on_a_card(on_a_card, monkeypatch):
    """By its own configuration for CUDA, and the same when its parser for the command line reads them."""
    from vllm import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    model = ModelSettings(path=str(EMBEDDED))
    asked = Mock(wraps=EngineArgs)
    monkeypatch.setattr("vllm.EngineArgs", asked)
    config = VllmClient("embedded", model, "cuda:1").engine.config
    assert config.parallel_config.assigned_physical_gpu_ids == [1]
    assert config.cache_config.gpu_memory_utilization == 0.791  # 23 GiB less 4 of 24
    assert config.model_config.dtype == torch.bfloat16
    assert config.scheduler_config.max_num_batched_tokens >= config.model_config.max_model_len
    words = []
    for key, value in asked.call_args.kwargs.items():
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, *written(value)]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    read = EngineArgs.from_cli_args(parser.parse_args(words))
    given = EngineArgs(**asked.call_args.kwargs)
    structured = read.structured_outputs_config
    assert (structured.backend, structured.disable_any_whitespace) == ("guidance", True)
    for key in asked.call_args.kwargs.keys() - {"structured_outputs_config"}:
        assert getattr(read, key) == getattr(given, key), key


def written(value):
    if isinstance(value, list):
        return map(str, value)
    return [json.dumps(value) if isinstance(value, dict) else str(value)]
