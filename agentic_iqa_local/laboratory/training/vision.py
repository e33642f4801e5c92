"""First phase: the vision tower alone learns to see distortions, through heads that are thrown away
afterwards.

A picture costs a fifth of what it costs with the language model, so most pictures are spent here.
"""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from agentic_iqa_local.laboratory.training.data import CELL, VARIED_SIDE, Pool, level_targets, pixel_values
from agentic_iqa_local.laboratory.training.embedded import FACTOR
from agentic_iqa_local.laboratory.training.teacher import Cells
from agentic_iqa_local.levels import DISTORTION_TYPES
from agentic_iqa_local.synthetic.distortions import place_mask
from agentic_iqa_local.synthetic.photos import Crop

logger = logging.getLogger(__name__)

CLASSES = (*DISTORTION_TYPES, "none")
LEVELS = torch.arange(5.0, 0.0, -1.0)
SIDES = (2, 2, 2, 3, 3, 4, 5, 8)  # crop sides in units of CELL pixels: of small crops a step holds many
WHOLE_SHARE = 0.3  # of the batches are whole pictures, some with a distortion in one place


class VisionHeads(nn.Module):
    """Distortion type (8), level (5) and severity (6) from the mean and spread of an image's merged tokens,
    whose size is about `rms`."""

    def __init__(self, width: int, rms: float):
        super().__init__()
        self.rms = rms
        self.body = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.SiLU())
        self.to_type, self.to_level, self.to_severity = (
            nn.Linear(width, len(CLASSES)),
            nn.Linear(width, 5),
            nn.Linear(width, 6),
        )

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`tokens`: B×T×width, the same number for each image."""
        tokens = tokens / self.rms
        pooled = self.body(torch.cat([tokens.mean(1), tokens.std(1)], -1))
        return self.to_type(pooled), self.to_level(pooled), self.to_severity(pooled)


def level_loss(log_probabilities: torch.Tensor, target: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of N×L letter distributions plus half the squared error of their expected levels.

    The second term asks for the exact level, which the first, being flat around so wide a target, hardly
    does. `levels` (L, or N×L) is what each letter stands for, 0 where it stands for no level.
    """
    error = ((log_probabilities.exp() - target) * levels).sum(-1)
    return -(target * log_probabilities).sum(-1).mean() + 0.5 * error.square().mean()


# What each picture token says to the language model: one word of each kind, as an inner product with the
# word's embedding.
WORDS = {
    "type": (" blur", " color", " compression", " noise", " brightness", " sharp", " contrast", " clean"),
    "level": (" excellent", " good", " fair", " poor", " bad"),
    "severity": (" none", " slight", " moderate", " severe", " extreme"),
}
SEVERITY_WORD = np.array([0, 1, 2, 2, 3, 4])  # of severity 0..5


class WordHeads(nn.Module):
    """Reads words off picture tokens by the language model's own embeddings, which stay as they are:
    B×T×width → logits of each group of WORDS. Tokens that speak its language need little training of the
    language model."""

    def __init__(self, embeddings: torch.Tensor, tokenizer):
        super().__init__()
        self.rms = embeddings.square().mean().sqrt().item()
        self.scale = nn.Parameter(torch.full((len(WORDS),), 4.0))
        for group, words in WORDS.items():
            ids = [tokenizer.encode(word, add_special_tokens=False) for word in words]
            if any(len(one) != 1 for one in ids):
                raise ValueError(f"expected words of one token, got {dict(zip(words, ids, strict=True))}")
            rows = embeddings[[one[0] for one in ids]].detach()
            self.register_buffer(
                f"{group}_words", nn.functional.normalize(rows - rows.mean(0), dim=-1), persistent=False
            )

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            group: scale / (self.rms * tokens.shape[-1] ** 0.5) * tokens @ getattr(self, f"{group}_words").T
            for group, scale in zip(WORDS, self.scale, strict=True)
        }

    def losses(self, tokens: torch.Tensor, labels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Cross-entropies of all groups over all tokens, and how far the tokens' size is from that of
        words."""
        loss = 2 * (tokens.square().mean(-1).sqrt() / self.rms).log().square().mean()
        for group, logits in self(tokens).items():
            loss = loss + nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[f"token_{group}"].flatten(0, 1)
            )
        return loss


class Teacher(nn.Module):
    """Predicts a pretrained encoder's features of each cell of 64×64 pixels from the four picture tokens in
    it."""

    def __init__(self, width: int, features: int):
        super().__init__()
        self.predict = nn.Linear(width, features)

    def loss(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """`tokens` B×h×w×width, `target` B×(h/2)×(w/2)×features, each feature of unit variance."""
        batch, height, width, _ = tokens.shape
        cells = tokens.view(batch, height // 2, 2, width // 2, 2, -1).mean((2, 4))
        return nn.functional.smooth_l1_loss(self.predict(cells), target)


def head_losses(
    heads: VisionHeads, tokens: torch.Tensor, labels: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Summed losses of type, level and severity, and the batch's figures."""
    type_, level, severity = heads(tokens)
    log_levels, levels = level.log_softmax(-1), LEVELS.to(level.device)
    loss = (
        nn.functional.cross_entropy(type_, labels["type"])
        + level_loss(log_levels, labels["level"], levels)
        + 0.5 * nn.functional.cross_entropy(severity, labels["severity"])
    )
    error = log_levels.detach().exp() @ levels - labels["quality"]
    return loss, {
        "head_type_accuracy": (type_.argmax(-1) == labels["type"].argmax(-1)).float().mean().item(),
        "head_level_error": error.abs().mean().item(),
    }


def crop_labels(crops: list[Crop]) -> dict[str, torch.Tensor]:
    """Types (a distribution, in proportion to severity), severity, quality and level distribution of each
    crop, and the same of each of its picture tokens (`token_…`, N×T×classes), which differ where a distortion
    is in one place."""
    types = np.zeros((len(crops), len(CLASSES)), np.float32)
    for row, crop in zip(types, crops, strict=True):
        for part in crop.sample.parts:
            row[CLASSES.index(part.family)] += part.severity / sum(p.severity for p in crop.sample.parts)
        row[-1] = not crop.sample.parts
    quality = np.array([c.quality for c in crops])
    severity = np.array([c.sample.severity for c in crops])
    level = level_targets(quality).astype(np.float32)
    height, width = (side // FACTOR for side in crops[0].clean.shape[:2])
    damaged = np.stack([_damaged(crop, height, width) for crop in crops]).reshape(len(crops), -1, 1)
    clean = np.eye(len(CLASSES), dtype=np.float32)[-1]
    return {
        "type": torch.from_numpy(types),
        "severity": torch.from_numpy(severity),
        "quality": torch.from_numpy(quality).float(),
        "level": torch.from_numpy(level),
        "token_type": torch.from_numpy(damaged * types[:, None] + (1 - damaged) * clean),
        "token_level": torch.from_numpy(level[:, None]).expand(-1, height * width, -1),
        "token_severity": torch.from_numpy(
            damaged * np.eye(5, dtype=np.float32)[SEVERITY_WORD[severity]][:, None]
            + (1 - damaged) * np.eye(5, dtype=np.float32)[0]
        ),
    }


def _damaged(crop: Crop, height: int, width: int) -> np.ndarray:
    """height×width: how much of each token a distortion covers, 0..1."""
    places = [part.place for part in crop.sample.parts if part.place]
    if not places or len(places) < len(crop.sample.parts):  # nothing, or something everywhere
        return np.full((height, width), float(bool(crop.sample.parts)), np.float32)
    return np.max([place_mask(place, height, width) for place in places], axis=0)


def _linear_patch_embedding(self, pixels: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(pixels, self.proj.weight.flatten(1))


def _equal_lengths_attention(
    self, hidden_states, cu_seqlens, rotary_pos_emb=None, position_embeddings=(), **_
):
    count, total = len(cu_seqlens) - 1, len(hidden_states)
    query, key, value = self.qkv(hidden_states).view(total, 3, self.num_heads, -1).unbind(1)
    query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    query, key, value = (
        x.view(count, total // count, self.num_heads, -1).transpose(1, 2) for x in (query, key, value)
    )
    # few tokens an image: the fused kernel is faster on float32 than on bfloat16
    with torch.autocast("cpu", enabled=False):
        attended = nn.functional.scaled_dot_product_attention(query.float(), key.float(), value.float())
    return self.proj(attended.transpose(1, 2).reshape(total, -1))


def train_fast_on_cpu(visual: Any) -> None:
    """Same mathematics, a third less time on a CPU: every batch holds images of one size, so that attention
    needs no loop over images, and the patch embedding, whose stride is its kernel, is a matrix product. The
    weights stay as they are.
    """
    visual.patch_embed.forward = MethodType(_linear_patch_embedding, visual.patch_embed)
    for block in visual.blocks:
        block.attn.forward = MethodType(_equal_lengths_attention, block.attn)


class Batches(IterableDataset):
    """Endless batches from `make(step, rng)`; the generator of each step is seeded by (seed, phase, step)."""

    def __init__(self, make: Callable, seed: int, phase: int, start: int):
        self.make, self.seed, self.phase, self.start = make, seed, phase, start

    def __iter__(self):
        torch.set_num_threads(1)
        step = self.start
        while True:
            yield self.make(step, np.random.default_rng([self.seed, self.phase, step]))
            step += 1


def learning_rate(progress: float, peak: float, step: int, warmup: int = 100, floor: float = 0.03) -> float:
    """Linear warm-up, then a cosine from `peak` down to the share `floor` of it at `progress` 1."""
    return peak * min(1, (step + 1) / warmup) * max(floor, 0.5 * (1 + math.cos(math.pi * min(1, progress))))


class _Learning:
    """Modules with their optimizer and the step that they have reached, as a checkpoint keeps them."""

    def __init__(
        self,
        groups: list[tuple[nn.Module, float]],
        checkpoint: Path,
        decay: float,
        slower: Callable[[str], float],
    ):
        self.modules = nn.ModuleList(module for module, _ in groups)
        self.checkpoint, self.step = checkpoint, 0
        rates = [
            (peak * slower(name), parameter)
            for module, peak in groups
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for r, p in rates if r == rate], "peak": rate}
                for rate in dict.fromkeys(r for r, _ in rates)
            ],
            weight_decay=decay,
            betas=(0.9, 0.98),
        )

    def resume(self) -> bool:
        """Goes on from the checkpoint; False where there is none."""
        if not self.checkpoint.exists():
            return False
        state = torch.load(self.checkpoint, weights_only=True)
        self.modules.load_state_dict(state["modules"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return True

    def save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        named = self.modules.named_parameters()
        learned = {name: value.detach() for name, value in named if value.requires_grad}
        state = {"modules": learned, "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def take_step(self, losses: Callable, batch: Any, steps: int, floor: float) -> dict[str, float]:
        """One step of `steps`: the loss and the figures that `losses` gives."""
        for group in self.optimizer.param_groups:
            warmup = min(100, steps // 10)
            group["lr"] = learning_rate(self.step / steps, group["peak"], self.step, warmup, floor)
        device = next(self.modules.parameters()).device
        bfloat16 = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss, figures = losses(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return {"loss": loss.item(), **figures}


def run_phase(
    *,
    name: str,
    groups: list[tuple[nn.Module, float]],
    batches: Callable[[int], IterableDataset],
    losses: Callable,
    steps: int,
    checkpoint: Path,
    log: Callable[[dict], None],
    decay: float = 0.05,
    floor: float = 0.03,
    slower: Callable[[str], float] = lambda name: 1.0,
    save_every: float = 120.0,
    minutes: float = math.inf,
    every: int = 50,
) -> None:
    """The training loop of a phase: resumes from `checkpoint`, saves there, and logs a curve.

    `groups` are modules with their peak learning rates, which `slower(parameter's name)` multiplies;
    `losses(batch)` returns the loss and a dict of figures. Interrupting it loses at most `save_every`
    seconds.
    """
    learning = _Learning(groups, checkpoint, decay, slower)
    if learning.resume():
        logger.info("%s: resumed at step %d of %d", name, learning.step, steps)
    if learning.step >= steps:
        return
    begun = saved = time.monotonic()
    figures: dict[str, list[float]] = {}
    learning.modules.train()
    for batch in DataLoader(batches(learning.step), batch_size=None, num_workers=1, prefetch_factor=4):
        for key, value in learning.take_step(losses, batch, steps, floor).items():
            figures.setdefault(key, []).append(value)
        if learning.step % every == 0 or learning.step == steps:
            means = {key: round(float(np.mean(values)), 4) for key, values in figures.items()}
            seconds = round(time.monotonic() - begun)
            log({"phase": name, "step": learning.step, "of": steps, "seconds": seconds, **means})
            figures.clear()
        if time.monotonic() - saved > save_every:
            learning.save()
            saved = time.monotonic()
        if learning.step >= steps or time.monotonic() - begun > 60 * minutes:
            break
    learning.save()


class VisionTeaching(nn.Module):
    """The vision tower and all that it is taught through."""

    def __init__(self, visual: nn.Module, embeddings: torch.Tensor, tokenizer, features: int):
        super().__init__()
        width = embeddings.shape[-1]
        self.visual = visual
        self.words = WordHeads(embeddings, tokenizer)
        self.heads = VisionHeads(width, self.words.rms)
        self.teacher = Teacher(width, features)

    def losses(self, batch: dict) -> tuple[torch.Tensor, dict[str, float]]:
        device = next(self.heads.parameters()).device
        labels = {k: v.to(device) for k, v in batch["labels"].items()}
        features = self.visual(
            batch["pixels"].to(device), grid_thw=batch["grid"].to(device)
        ).pooler_output.float()
        tokens = features.view(len(batch["grid"]), -1, features.shape[-1])
        loss, figures = head_losses(self.heads, tokens, labels)
        words = self.words.losses(tokens, labels)
        figures["words"] = words.item()
        loss = loss + 0.5 * words
        if len(batch["taught"]):
            seen = tokens[batch["taught"].to(device)] / self.words.rms
            taught = self.teacher.loss(
                seen.view(len(seen), *batch["shape"], -1), batch["features"].to(device)
            )
            figures["teacher"] = taught.item()
            loss = loss + 2 * taught
        return loss, figures


def vision_batches(
    pool: Pool, cells: Cells, processor, tokens: int, seed: int
) -> Callable[[int], IterableDataset]:
    """Batches for the first phase: pixel values, grids, labels, and the teacher's features of those crops
    that lie on its cells."""

    def make(step: int, rng: np.random.Generator) -> dict:
        whole = rng.random() < WHOLE_SHARE
        height, width = (VARIED_SIDE if whole else CELL * int(rng.choice(SIDES)) for _ in range(2))
        count = max(1, tokens * FACTOR**2 // (height * width))
        drawn = [int(i) for i in pool.draw(count, max(height, width), rng, whole)]
        crops, places = zip(*(pool.crop_at(i, height, width, rng) for i in drawn), strict=True)
        taught = [n for n, place in enumerate(places) if place is not None]
        features = [cells(drawn[n], height, width, *places[n]) for n in taught]
        pixels, grid = pixel_values([c.sample.image for c in crops], processor)
        return {
            "pixels": pixels,
            "grid": grid,
            "labels": crop_labels(list(crops)),
            "shape": (height // FACTOR, width // FACTOR),
            "taught": torch.tensor(taught, dtype=torch.long),
            "features": torch.from_numpy(np.stack(features)) if features else torch.zeros(0),
        }

    return lambda start: Batches(make, seed, 0, start)
