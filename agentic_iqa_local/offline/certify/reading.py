"""The letters of the probe pictures as an assessment reads them: files through the loader, views and
sessions of the set-up's own engine."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from agentic_iqa_local.config import Settings
from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.offline.certify.probes import small_part
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import revised
from agentic_iqa_local.vlm_client import LetterRead, TokenUsage, VLMClient, VLMError

ROLE = "summarizer"
SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
EARLIER = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)
BATCHES = (2, 8, 32)
CAPTURED = 4  # from the last probe on: of these the model's inputs are kept, for they are megabytes
TIMED = 3  # times that reads are timed; the median counts


def read_alone(settings: Settings, device: str, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The letters of each probe, read by itself, and what the client says of itself."""
    services = Services(settings, device)
    try:
        client = services.client(ROLE)
        letters = {name: _logprobs(_read(services, folder / f"{name}.png")[0]) for name in names}
        return {"about": client.describe(), "letters": letters}
    finally:
        services.close()


def read_formats(
    settings: Settings, device: str, folder: Path, names: Sequence[str], formats: Sequence[tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    """`read_alone` of the model in other number formats, one after the other, by the name of the format:
    (dtype, quantization). What cannot be run has its reason as "missing"."""
    found: dict[str, dict[str, Any]] = {}
    for dtype, quantization in formats:
        name = dtype if quantization == "none" else quantization
        try:
            found[name] = read_alone(
                with_format(settings, dtype=dtype, quantization=quantization), device, folder, names
            )
        except VLMError as error:
            found[name] = {"missing": str(error)}
        except (
            RuntimeError,
            ImportError,
            ValueError,
        ) as error:  # of bitsandbytes, or a format without kernels
            found[name] = {"missing": str(error).strip().split("\n")[0][:200]}
    return found


def with_format(settings: Settings, **changes: Any) -> Settings:
    """The set-up with other loading options of the Summarizer's model."""
    name = settings.summarizer.backend.partition(".")[2]
    own = settings.models.get(name, ModelSettings())
    return revised(settings, models=dict(settings.models) | {name: revised(own, **changes)})


def read_set_up(
    settings: Settings, device: str, folder: Path, names: Sequence[str], timed: bool = True
) -> dict[str, Any]:
    """All that the checks ask of the set-up's own engine, in one process: each probe alone and once more,
    after another prompt, in batches; what went into the model; times, if `timed`."""
    services = Services(settings, device)
    client = services.client(ROLE)
    alone: dict[str, Any] = {}
    again, seen, inputs = {}, {}, {}
    for number, name in enumerate(names):
        path = folder / f"{name}.png"
        with ExitStack() as stack:
            kept = stack.enter_context(_inputs_of(client)) if number >= len(names) - CAPTURED else {}
            read, seen[name] = _read(services, path)
        if kept:
            inputs[name] = kept
        alone[name] = _logprobs(read)
    for name in names:
        again[name] = _logprobs(_read(services, folder / f"{name}.png")[0])
    parts = [small_part(_pixels(services, folder / f"{name}.png")) for name in names]
    return {
        "about": client.describe(),
        "letters": alone,
        "again": again,
        "seen": seen,
        "inputs": inputs,
        "model": _model(client),
        "shared": _tried(lambda: _after_another_prompt(services, folder, names)),
        "batches": _tried(lambda: _batches(client, names, parts)),
        "seconds": _times(services, client, folder / f"{names[-CAPTURED]}.png", parts) if timed else {},
    }


def _tried(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was read, or why it could not be, as "failed": the other checks go on."""
    try:
        return read()
    except VLMError as error:
        return {"failed": str(error)}


def _logprobs(read: LetterRead) -> dict[str, float]:
    return dict(read.logprobs)


def _pixels(services: Services, path: Path) -> Image.Image:
    images = OpenImages(services, str(path))
    return images.image.pixels


def _read(services: Services, path: Path) -> tuple[LetterRead, dict[str, Any]]:
    """(the letters of a picture's first view, what the model saw of it)."""
    images = OpenImages(services, str(path))
    try:
        read = images.session(ROLE).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
        box, what = images.seen_views(ROLE)[0]
        views, pixels = len(images.views(ROLE)), images.image.width * images.image.height
    finally:
        images.close()
    seen = {"box": box, "views": views, "pixels": pixels, "tokens": what.tokens}
    return read, seen | {"size": [what.width, what.height]}


def _after_another_prompt(services: Services, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The letters of each probe where another prompt was read before in the same session, and how many tokens
    were reused."""
    found, usage = {}, TokenUsage()
    for name in names:
        images = OpenImages(services, str(folder / f"{name}.png"))
        session = images.session(ROLE)
        session.read_letters(EARLIER, ANSWER_PREFIX, LETTERS)
        found[name] = _logprobs(session.read_letters(SCORING, ANSWER_PREFIX, LETTERS))
        usage += images.usage
        images.close()
    return {"letters": found, "reused": usage.reused}


def _batches(client: VLMClient, names: Sequence[str], parts: Sequence[Image.Image]) -> dict[str, Any]:
    """The letters of the probes' small parts alone, and in batches of each size, which take the parts in
    turns; and of the first of a full batch when it is read in the middle of it."""
    alone = {
        name: _logprobs(client.read_many([[part]], SCORING, ANSWER_PREFIX, LETTERS).reads[0])
        for name, part in zip(names, parts, strict=True)
    }
    found: dict[str, Any] = {"alone": alone, "passes": {}}
    for size in BATCHES:
        rows: dict[str, dict[str, float]] = {}
        for start in range(0, max(len(parts), size), size):
            places = [(start + i) % len(parts) for i in range(size)]
            many = client.read_many([[parts[i]] for i in places], SCORING, ANSWER_PREFIX, LETTERS)
            found["passes"][str(size)] = many.usage.forward_passes
            rows |= {
                f"{names[i]}#{start + row}": _logprobs(read)
                for row, (i, read) in enumerate(zip(places, many.reads, strict=True))
            }
        found[str(size)] = rows
    return found


@contextmanager
def _inputs_of(client: VLMClient):
    """Catches what goes into a model of transformers on its first pass; stays empty for other engines."""
    kept: dict[str, Any] = {}
    model = getattr(client, "model", None)
    if model is None or not hasattr(model, "register_forward_pre_hook"):
        yield kept
        return

    def keep(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        if not kept:
            kept.update(as_arrays(given))

    handle = model.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield kept
    finally:
        handle.remove()


def as_arrays(inputs: dict[str, Any]) -> dict[str, Any]:
    """A model's inputs that hold pictures and tokens, as arrays; floating-point ones in float32."""
    wanted = ("input_ids", "pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask")
    found: dict[str, Any] = {}
    for name in wanted:
        if isinstance(value := inputs.get(name), torch.Tensor):
            value = value.detach().cpu()
            found[name] = np.asarray(value.float() if value.is_floating_point() else value)
    return found


def _model(client: VLMClient) -> dict[str, Any]:
    """The prompt that the client makes, the letters' tokens, and, of a model of transformers, how its numbers
    are kept and whether it is in training mode."""
    renderer: Any = getattr(client, "renderer", None)
    found: dict[str, Any] = {}
    if renderer is not None:
        asked, _ = renderer.asked(SCORING)
        rendered = renderer.render(asked, 1, ANSWER_PREFIX)
        found |= {"prompt": rendered.text, "holds_in_bfloat16": renderer.holds_in_bfloat16}
    found["letters"] = (
        client.read_many([[Image.new("RGB", (256, 256), "grey")]], SCORING, ANSWER_PREFIX, LETTERS)
        .reads[0]
        .token_ids
    )
    model: Any = getattr(client, "model", None)
    if model is not None and hasattr(model, "parameters"):
        kinds: dict[str, int] = {}
        for parameter in model.parameters():
            kind = str(parameter.dtype).removeprefix("torch.")
            kinds[kind] = kinds.get(kind, 0) + parameter.numel()
        found |= {"numbers": kinds, "training": any(part.training for part in model.modules())}
    return found


def _times(
    services: Services, client: VLMClient, path: Path, parts: Sequence[Image.Image]
) -> dict[str, float]:
    """Seconds, medians of TIMED: a read from nothing and one that continues from the picture's cache; of a
    picture alone and in a batch of eight."""
    eight = [[part] for part in parts[:8]]
    taken: dict[str, list[float]] = {"fresh": [], "shared": [], "alone": [], "batch": []}
    for _ in range(TIMED):
        images = OpenImages(services, str(path))
        session = images.session(ROLE)
        for name, prompt in (("fresh", EARLIER), ("shared", SCORING)):
            began = time.perf_counter()
            session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
            taken[name].append(time.perf_counter() - began)
        images.close()
        began = time.perf_counter()
        for one in eight:
            client.read_many([one], SCORING, ANSWER_PREFIX, LETTERS)
        taken["alone"].append((time.perf_counter() - began) / len(eight))
        began = time.perf_counter()
        client.read_many(eight, SCORING, ANSWER_PREFIX, LETTERS)
        taken["batch"].append((time.perf_counter() - began) / len(eight))
    return {name: float(np.median(values)) for name, values in taken.items()}
