"""Keeps transformers' Llama as it is beside Q-Align.

When pyiqa imports its Q-Align (building MS-SSIM is enough), it replaces parts of transformers' Llama. That
breaks every other Llama in the process, the one inside LLaVA among them. The replacement is undone at once,
and put back only while Q-Align itself is built or runs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from agentic_iqa_local.iqa_tools.specs import ToolSpec

_PARTS = (
    ("configuration_llama", "LlamaConfig"),
    ("modeling_llama", "LlamaAttention"),
    ("modeling_llama", "LlamaFlashAttention2"),
    ("modeling_llama", "LlamaSdpaAttention"),
    ("modeling_llama", "LlamaDecoderLayer"),
    ("modeling_llama", "LlamaModel.forward"),
    ("modeling_llama", "LlamaForCausalLM.forward"),
)
_PARTS_OF_QALIGN: dict[tuple[str, str], Any] = {}


def _owner(module: str, path: str) -> tuple[Any, str]:
    owner = importlib.import_module(f"transformers.models.llama.{module}")
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _current_parts() -> dict[tuple[str, str], Any]:
    return {part: vars(owner).get(name) for part in _PARTS for owner, name in [_owner(*part)]}


def _set_parts(values: dict[tuple[str, str], Any]) -> None:
    for part, value in values.items():
        owner, name = _owner(*part)
        if value is not None:
            setattr(owner, name, value)
        elif name in vars(owner):  # transformers itself has no such part
            delattr(owner, name)


@contextlib.contextmanager
def llama_kept(spec: ToolSpec | None = None) -> Iterator[None]:
    """Surrounds what may change transformers' Llama, and restores it afterwards. `spec` is the metric that is
    built or run, None while pyiqa is imported: for Q-Align its own parts are put in meanwhile."""
    before = _current_parts()
    if spec is not None and spec.metric == "qalign":
        _set_parts(_PARTS_OF_QALIGN)
    try:
        yield
    finally:
        after = _current_parts()
        if after != before:
            _PARTS_OF_QALIGN.update(after)
            _set_parts(before)
