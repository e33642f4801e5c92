"""Low-rank adapters on the language model, W + s·B·A (LoRA, Hu et al., ICLR 2022), kept apart from what they
adapt.

peft does the same; on a CPU its separate products, casts and sums take as long as training all weights would,
and this does not.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from agentic_iqa_local.offline.assembly import DELTA, LORA_A, LORA_B

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SCALING = 2.0
FIRST_LAYER = 8  # the lower layers stay as they are, and no gradient goes through them


class _AdaptedProduct(torch.autograd.Function):
    """y = x·Wᵀ + b + s·(x·Aᵀ)·Bᵀ without a gradient of W; x is N×in. Autocast's precision, where it is on,
    holds for all of it."""

    @staticmethod
    def forward(ctx, x, weight, bias, a, b):
        if torch.is_autocast_enabled(x.device.type):
            x, weight, a, b = (_in_autocast(tensor) for tensor in (x, weight, a, b))
            bias = None if bias is None else _in_autocast(bias)
        inner = x @ a.T
        y = nn.functional.linear(x, weight, bias)
        y.addmm_(inner, b.T, alpha=SCALING)
        ctx.save_for_backward(x, weight, a, b, inner)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, weight, a, b, inner = ctx.saved_tensors
        through = gradient @ b
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = gradient @ weight
            to_x.addmm_(through, a, alpha=SCALING)
        return to_x, None, None, SCALING * (through.T @ x), SCALING * (gradient.T @ inner)


def _in_autocast(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


class Adapted(nn.Module):
    """A frozen linear layer with an adapter of `rank`; B starts at zero, so nothing changes at first."""

    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _AdaptedProduct.apply(
            x.flatten(0, -2), self.linear.weight, self.linear.bias, self.lora_A, self.lora_B
        )
        return y.unflatten(0, x.shape[:-1])


def add_adapters(language: Any, rank: int, first_layer: int = FIRST_LAYER) -> None:
    """Adapters of `rank` on every projection from `first_layer` on; all other weights of `language` are
    frozen."""
    language.requires_grad_(False)
    for parent in [module for layer in language.layers[first_layer:] for module in layer.modules()]:
        for name, child in list(parent.named_children()):
            if name in PROJECTIONS:
                setattr(parent, name, Adapted(child, rank))


def adapters(language: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """{"layers.0.mlp.up_proj": (A rank×in, B out×rank), ...}."""
    return {
        name: (module.lora_A.detach(), module.lora_B.detach())
        for name, module in language.named_modules()
        if isinstance(module, Adapted)
    }


def load_adapters(language: nn.Module, parts: Path) -> None:
    """Puts the adapters that git carries in the folder `parts` into those of `language`, which must have the
    same rank."""
    known = load_file(parts / DELTA)
    with torch.no_grad():
        for name, (down, up) in adapters(language).items():
            down.copy_(known[f"model.{name}{LORA_A}"])
            up.copy_(known[f"model.{name}{LORA_B}"])
