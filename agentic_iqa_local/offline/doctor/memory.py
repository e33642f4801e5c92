"""Whether models and tools fit into the memory that is free, which is computed without loading them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.devices import choose_dtype
from agentic_iqa_local.offline.doctor.checks import GIB, Finding, Setup, check, gib
from agentic_iqa_local.offline.doctor.models import renderer_of
from agentic_iqa_local.vlm_client.model_folder import read_weights

if TYPE_CHECKING:
    from agentic_iqa_local.vlm_client.rendering import Renderer

PLAIN = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTISED = {"8bit": 1.0, "4bit": 0.55}  # bytes of a weight, nf4's scales included
# As transformers_client leaves them unquantised, by a level of the tensor's name.
KEPT = {"visual", "vision_tower", "vision_model", "lm_head", "embed_tokens"}


@dataclass(frozen=True)
class Need:
    """Bytes that one model takes: its weights, and the key-value cache of `tokens` tokens, in numbers of
    `width` bytes."""

    renderer: "Renderer"
    settings: ModelSettings
    width: int
    weights: int
    cache: int
    tokens: int

    @property
    def size(self) -> int:
        return self.weights + self.cache

    def __str__(self) -> str:
        return (
            f"{self.renderer.name}: weights {gib(self.weights)},"
            f" cache of {self.tokens} tokens {gib(self.cache)}"
        )


def weight_bytes(folder: Path, quantization: str, width: int) -> int:
    """Bytes of a folder's weights once loaded in a dtype of `width` bytes.

    Quantised are the matrices of the language layers and of what joins the tower to them; tower, embeddings
    and head keep the dtype. A folder that is quantised already is counted as it lies on disk.
    """
    weights = read_weights(folder)
    if "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        return sum(file.stat().st_size for file in weights.files)
    quantised_width = QUANTISED.get(quantization, width)

    def width_of(name: str, shape: tuple[int, ...]) -> float:
        is_matrix = len(shape) == 2 and name.endswith(".weight")
        return quantised_width if is_matrix and not KEPT & {*name.split(".")} else width

    return round(sum(math.prod(shape) * width_of(name, shape) for name, shape in weights.shapes.items()))


def cache_bytes(config: Any, tokens: int, width: int) -> int:
    """Bytes of the keys and values of `tokens` tokens, for a transformers text configuration; an upper bound
    for models whose layers do not all keep every token."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head * width * tokens


def prompt_tokens(renderer: "Renderer") -> int:
    """Tokens of two images of the largest size that the model sees at once, and of a long prompt with its
    answer."""
    from PIL import Image

    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.vlm_client.vllm_client import TEXT_TOKENS

    limits = renderer.limits
    if limits.factor > 1 and limits.max_pixels:
        return 2 * (limits.max_pixels // limits.factor**2) + TEXT_TOKENS
    # Processors that resize or tile have no such limit: they make as many tokens of this as of any picture.
    side = math.isqrt(limits.max_pixels or 2048 * 2048)
    rendered = renderer.render(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), 1)
    return 2 * renderer.expand(rendered, [Image.new("RGB", (side, side))]).seen[0].tokens + TEXT_TOKENS


def model_need(renderer: "Renderer", settings: ModelSettings, device: str) -> Need:
    """What the model of `renderer` takes on `device`, without loading it."""
    width = PLAIN[choose_dtype(settings.dtype, device, renderer.holds_in_bfloat16)]
    tokens = prompt_tokens(renderer)
    return Need(
        renderer,
        settings,
        width,
        weight_bytes(renderer.folder, settings.quantization, width),
        cache_bytes(renderer.config.get_text_config(), tokens, width),
        tokens,
    )


def free_memory(device: str, spread: bool = False) -> tuple[int, int]:
    """(free, total) bytes of `device`; of all visible GPUs where a model is `spread` over them; within a
    container's limit."""
    if device.startswith("cuda"):
        import torch

        devices = range(torch.cuda.device_count()) if spread else [device]
        free, total = zip(*(torch.cuda.mem_get_info(each) for each in devices), strict=True)
        return sum(free), sum(total)
    import psutil

    memory = psutil.virtual_memory()
    return min((memory.available, memory.total), container_memory() or (memory.available, memory.total))


def container_memory(folder: Path = Path("/sys/fs/cgroup")) -> tuple[int, int] | None:
    """(free, total) bytes under the limit of this process's control group (version 2); None without a limit.

    Pages of files count as free: the kernel gives them up first.
    """
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        pages = int(statistics["file"]) - int(statistics["shmem"])
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    return max(0, limit - used + pages), limit


@check("memory", "free some memory")
def memory(setup: Setup) -> Finding:
    """Do the models and the tools fit into what is free?

    What the tools need is declared (`left_for_tools_gib`). A model's activations are not counted: models and
    tools take turns, so what is kept free for the tools serves them too.
    """
    needs = [
        model_need(renderer_of(setup, backend), setup.settings.model(backend), setup.device)
        for backend in setup.backends
        if not backend.startswith("server.")
    ]
    models = sum(need.size for need in needs)
    tools = max(setup.settings.model(backend).left_for_tools_gib for backend in setup.backends) * GIB
    free, total = free_memory(setup.device, any(need.settings.device_map == "auto" for need in needs))
    needed = "; ".join([*map(str, needs), f"tools {gib(tools)}"])
    found = f"{needed}; {gib(models + tools)} in all, {gib(free)} of {gib(total)} are free on {setup.device}"
    if (missing := models + tools - free) <= 0:
        return "pass", found, ""
    fits_alone = models + tools <= total
    if setup.quick and fits_alone:
        return "warn", found, "nothing, if it is this set-up that runs already; else end what takes the rest"
    advice = ["end what takes the rest"] if fits_alone else []
    if needs:
        advice += savings(max(needs, key=lambda need: need.size), missing)
    advice.append("lower left_for_tools_gib" if models <= free else "take a smaller model")
    reserved = setup.device.startswith("cuda") and setup.uses("vllm")
    return "fail" if models > free or reserved else "warn", found, "; or ".join(advice)


def savings(need: Need, missing: float) -> list[str]:
    """What in a model's configuration saves `missing` bytes, or saves most."""
    advice = []
    limits, bytes_per_token = need.renderer.limits, need.cache / need.tokens
    if limits.factor > 1 and limits.max_pixels:
        fewer = limits.max_pixels - math.ceil(missing / (2 * bytes_per_token)) * limits.factor**2
        if fewer >= limits.min_pixels:
            advice.append(f"set max_pixels of {need.renderer.name} to {fewer} (now {limits.max_pixels})")
    if need.settings.quantization == "none":
        size = weight_bytes(need.renderer.folder, "4bit", need.width)
        advice.append(f"set quantization: 4bit (its weights are then {gib(size)})")
    return advice
