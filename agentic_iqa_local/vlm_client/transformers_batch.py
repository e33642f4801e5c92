"""How transformers reads the letters of many pictures in a few passes, and what is said when torch
fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from agentic_iqa_local.devices import memory_ran_out
from agentic_iqa_local.vlm_client import (
    LetterRead,
    ManyReads,
    ModelLost,
    OutOfMemory,
    TokenUsage,
    VLMError,
    read_each,
)
from agentic_iqa_local.vlm_client.letters import resolve_letters
from agentic_iqa_local.vlm_client.rendering import Expanded, Rendered, first_line

if TYPE_CHECKING:
    from PIL import Image

    from agentic_iqa_local.nodes.prompts import Prompt
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

MOST_TOKENS = 4096  # of one pass: about what a long assessment has in its cache
MOST_PIXELS = 2**20  # of one pass, where the model sets no limit


def read_many(
    client: TransformersClient,
    pictures: Sequence[Sequence[Image.Image]],
    prompt: Prompt,
    answer_prefix: str,
    letters: Sequence[str],
) -> ManyReads:
    """`VLMClient.read_many`. Pictures that become equally many tokens go through the model side by side, as
    many as MOST_TOKENS and the model's range of pixels allow; others one by one. Raises VLMError."""
    asked, words = client.renderer.asked(prompt)
    rendered = client.renderer.render(asked, len(pictures[0]), answer_prefix)
    token_ids = resolve_letters(client.renderer.encode, rendered.text, letters, words)
    expanded = [client.renderer.expand(rendered, images) for images in pictures]
    if not _alike(expanded):
        return read_each(client, pictures, prompt, answer_prefix, letters)
    length = len(rendered.prompt_with(expanded[0])) + len(rendered.answer_ids)
    pixels = sum(image.width * image.height for image in pictures[0])
    at_once = max(1, min(MOST_TOKENS // length, (client.limits.max_pixels or MOST_PIXELS) // pixels))
    reads, usage = [], TokenUsage(calls=len(pictures), prefilled=length * len(pictures))
    for first in range(0, len(expanded), at_once):
        began = time.perf_counter()
        logprobs = _logits(client, rendered, expanded[first : first + at_once]).double().log_softmax(-1)
        usage.prefill_seconds += time.perf_counter() - began
        usage.forward_passes += 1
        reads += [
            LetterRead.of(client.name, {token: row[token].item() for token in token_ids.values()}, token_ids)
            for row in logprobs
        ]
    return ManyReads(reads, usage, expanded[0].seen[-1])


@torch.inference_mode()
def _logits(client: TransformersClient, rendered: Rendered, expanded: Sequence[Expanded]) -> torch.Tensor:
    """N×V logits (float32) after one prompt about each of N pictures that became equally many tokens: nothing
    is padded, so that each row is what it would be alone. Raises VLMError."""
    ids = rendered.prompt_with(expanded[0]) + rendered.answer_ids
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids] * len(expanded), device=client.device)}
    if (types := expanded[0].types) is not None:
        row = [0] * len(rendered.head) + types
        row += [0] * (len(ids) - len(row))
        inputs["mm_token_type_ids"] = torch.tensor([row] * len(expanded), device=client.device)
    with engine_errors(client.name, f"{len(expanded)} pictures of {len(ids)} tokens"), client.lock:
        for name in expanded[0].inputs:
            value = torch.cat([one.inputs[name] for one in expanded])
            inputs[name] = value.to(client.device, client.dtype if value.is_floating_point() else None)
        if hasattr(client.model.model, "rope_deltas"):
            client.model.model.rope_deltas = None
        output = client.model(**inputs, use_cache=False, logits_to_keep=1)
        logits = output.logits[:, -1].float().cpu()
    if not torch.isfinite(logits).all():
        raise VLMError(
            f"{client.name} gave logits that are not finite in {client.dtype}", "set dtype: float32"
        )
    return logits


def _alike(expanded: Sequence[Expanded]) -> bool:
    """Whether pictures can be stacked: the same tokens, and pixels of the same shapes."""

    def form(one: Expanded) -> Any:
        return one.ids, one.types, {name: value.shape for name, value in one.inputs.items()}

    return all(form(one) == form(expanded[0]) for one in expanded)


@contextmanager
def engine_errors(model: str, on: str) -> Iterator[None]:
    """Turns what torch raises into VLMError, OutOfMemory or ModelLost."""
    try:
        yield
    except VLMError:
        raise
    except (RuntimeError, MemoryError) as error:
        if memory_ran_out(error):
            raise OutOfMemory(
                f"{model}: memory ran out on {on} ({first_line(error)})",
                "lower max_pixels, quantise, assess fewer images at once, or use another device",
            ) from error
        failed = f"{model} failed on {on} ({first_line(error)})"
        if isinstance(error, torch.AcceleratorError):  # the process's hold on its card is broken
            raise ModelLost(failed, "the card has to be opened anew") from error
        raise VLMError(failed) from error
