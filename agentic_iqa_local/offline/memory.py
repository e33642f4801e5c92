"""How much memory a model's weights and cache need, and how much a device has."""

import math
from pathlib import Path
from typing import Any

from agentic_iqa_local.vlm_client.model_folder import read_object, read_weights

GIB = 2**30
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number
QUANTISED = {"8bit": 1.0, "4bit": 0.55}  # bytes of a weight, nf4's scales included
# Parts of a model that stay unquantised, by a level of the tensor's name.
UNQUANTISED = {"visual", "vision_tower", "vision_model", "lm_head", "embed_tokens"}


def weight_bytes(folder: Path, quantization: str, width: int) -> int:
    """Bytes of a folder's weights once loaded in a dtype of `width` bytes: quantised are the
    matrices of the language layers alone. A folder that is quantised already is counted as it lies
    on disk."""
    weights = read_weights(folder)
    if "quantization_config" in read_object(folder, "config.json"):
        return sum(file.stat().st_size for file in weights.files)
    total = 0.0
    for name, shape in weights.shapes.items():
        is_matrix = (
            len(shape) == 2 and name.endswith(".weight") and not UNQUANTISED & {*name.split(".")}
        )
        total += math.prod(shape) * (QUANTISED.get(quantization, width) if is_matrix else width)
    return round(total)


def cache_bytes(config: Any, tokens: int, width: int) -> int:
    """Bytes of the keys and values of `tokens` tokens, for a transformers text configuration."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head * width * tokens


def free_memory(name: str, spread: bool) -> tuple[int, int]:
    """(free, total) bytes of a device; of all visible GPUs where a model is `spread` over them; on
    a CPU within a container's limit (control groups, version 2), whose pages of files count as
    free."""
    if name.startswith("cuda"):
        import torch

        devices = range(torch.cuda.device_count()) if spread else [name]
        free, total = zip(*map(torch.cuda.mem_get_info, devices), strict=True)
        return sum(free), sum(total)
    import psutil

    memory, group = psutil.virtual_memory(), Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / file).read_text()) for file in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return memory.available, memory.total
    free = limit - used + int(statistics["file"]) - int(statistics["shmem"])
    return min((memory.available, memory.total), (max(0, free), limit))
