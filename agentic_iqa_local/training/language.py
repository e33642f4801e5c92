"""Second phase: the language model joins. All prompts about one picture are packed into one row.

Each prompt sees the image prefix and itself, as at run time, where every role continues from the cached prefix: a block
mask and positions that restart after the prefix do the same in one pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

from agentic_iqa_local.prompts import ANSWER_PREFIX, PAIR_PREAMBLE, TEST_PREAMBLE, chat_messages
from agentic_iqa_local.training.data import draw_crops, pixel_values
from agentic_iqa_local.training.embedded import FACTOR
from agentic_iqa_local.training.roles import RoleSample, draw_roles
from agentic_iqa_local.training.vision import Batches, VisionHeads, crop_labels, head_losses

SIDES = (5, 6, 7, 7, 7, 8, 8, 9, 10, 12, 16)


@dataclass(frozen=True)
class Mix:
    """What a phase is made of: `full_reference` share of pairs, `planning` share of pictures that carry a planner prompt,
    and the text tokens that a row may hold (a prompt that would exceed them is left out)."""

    full_reference: float
    planning: float
    row_tokens: int


SEEING = Mix(full_reference=0.2, planning=0.25, row_tokens=460)
PLANNING = Mix(full_reference=0.3, planning=1.0, row_tokens=580)
IGNORE = -100


def encode_segment(sample: RoleSample, images: int, processor) -> tuple[list[int], list[int], int | None]:
    """(token ids, labels, index of the letter's token) of one prompt and answer after the shared prefix."""
    tokenizer = processor.tokenizer
    text = processor.apply_chat_template(
        chat_messages(sample.prompt, images, "images_first"), add_generation_prompt=True, tokenize=False
    )
    preamble = TEST_PREAMBLE if images == 1 else PAIR_PREAMBLE
    question = tokenizer.encode(text[text.index(preamble) + len(preamble) + 1 :])
    if sample.letters is None:
        answer = [*tokenizer.encode(sample.answer), tokenizer.eos_token_id]
        return question + answer, [IGNORE] * len(question) + answer, None
    head = tokenizer.encode(ANSWER_PREFIX)
    letter = sample.answer[len(ANSWER_PREFIX)]
    tail = [] if sample.read_only else [*tokenizer.encode(sample.answer[len(ANSWER_PREFIX) + 1 :]), tokenizer.eos_token_id]
    index = len(question) + len(head)
    ids = [*question, *head, tokenizer.convert_tokens_to_ids(letter), *tail]
    shown = [IGNORE] * len(head) if sample.read_only else head
    return ids, [*[IGNORE] * len(question), *shown, IGNORE, *tail], index


def prefix_ids(images: int, image_tokens: int, processor) -> list[int]:
    """Token ids of the image prefix and preamble, up to where a role's text begins."""
    picture = f"<|vision_start|>{'<|image_pad|>' * image_tokens}<|vision_end|>"
    preamble = TEST_PREAMBLE if images == 1 else PAIR_PREAMBLE
    return processor.tokenizer.encode(f"<|im_start|>user\n{picture * images}{preamble}\n")


def pack(rows: list[list[RoleSample]], images: int, image_tokens: int, row_tokens: int, processor) -> dict[str, torch.Tensor]:
    """Rows of prompts → padded ids, labels, segment numbers (0: the shared prefix, −1: padding) and positions after it."""
    prefix = prefix_ids(images, image_tokens, processor)
    packed, letters = [], []
    for r, row in enumerate(rows):
        ids, labels, segment, offset = list(prefix), [IGNORE] * len(prefix), [0] * len(prefix), [0] * len(prefix)
        for number, sample in enumerate(row, start=1):
            s_ids, s_labels, letter = encode_segment(sample, images, processor)
            if number > 1 and len(ids) - len(prefix) + len(s_ids) > row_tokens:
                continue
            if letter is not None:
                letters.append((r, len(ids) + letter, sample.letters))
            ids += s_ids
            labels += s_labels
            segment += [number] * len(s_ids)
            offset += list(range(len(s_ids)))
        packed.append((ids, labels, segment, offset))
    length = max(len(p[0]) for p in packed)
    pads = (processor.tokenizer.pad_token_id, IGNORE, -1, 0)
    columns = [torch.tensor([p[i] + [pad] * (length - len(p[i])) for p in packed]) for i, pad in enumerate(pads)]
    widest = max(len(t) for *_, t in letters)
    return {
        **dict(zip(("ids", "labels", "segment", "offset"), columns, strict=True)),
        "prefix": torch.tensor(len(prefix)),
        "letter_at": torch.tensor([(r, i) for r, i, _ in letters]),
        "letter_target": torch.tensor(np.array([np.pad(t, (0, widest - len(t))) for *_, t in letters])).float(),
    }


def language_batches(
    photos: list[np.ndarray], processor, tokens: int, seed: int, phase: int, mix: Mix
) -> Callable[[int], IterableDataset]:
    """Batches for the second and third phase."""

    def make(step: int, rng: np.random.Generator) -> dict:
        images = 2 if rng.random() < mix.full_reference else 1
        crops = draw_crops(photos, tokens // images, SIDES, rng)
        height, width = crops[0].clean.shape[:2]
        pictures = [picture for c in crops for picture in ([c.clean, c.sample.image] if images == 2 else [c.sample.image])]
        pixels, grid = pixel_values(pictures, processor)
        rows = [draw_roles(c, images == 2, rng, mix.planning) for c in crops]
        return {
            "pixels": pixels,
            "grid": grid,
            "images": images,
            "labels": crop_labels(crops),
            "text": pack(rows, images, height * width // FACTOR**2, mix.row_tokens, processor),
        }

    return lambda start: Batches(make, seed, phase, start)


def language_losses(model, heads: VisionHeads, letter_ids: torch.Tensor, frozen_vision: bool = False) -> Callable:
    """The second phase's loss: letters (soft), answers' tokens, and the vision heads."""

    def losses(batch: dict) -> tuple[torch.Tensor, dict[str, float]]:
        device = model.device
        text = {k: v.to(device) for k, v in batch["text"].items()}
        grid, images = batch["grid"].to(device), batch["images"]
        with torch.set_grad_enabled(not frozen_vision):
            features = model.model.visual(batch["pixels"].to(device), grid_thw=grid).pooler_output.float()
        width = features.shape[-1]
        rows, length = text["ids"].shape
        labels = {k: v.to(device) for k, v in batch["labels"].items()}
        tested = features.view(rows, images, -1, width)[:, -1]
        loss, figures = head_losses(heads, tested, labels)

        embeds = model.get_input_embeddings()(text["ids"]).float()
        placeholder = text["ids"] == model.config.image_token_id
        embeds = embeds.masked_scatter(placeholder[..., None], features)
        prefix = int(text["prefix"])
        positions, delta = model.model.get_rope_index(
            text["ids"][:, :prefix], mm_token_type_ids=placeholder[:, :prefix].int(), image_grid_thw=grid
        )
        after = (prefix + delta).to(device) + text["offset"][:, prefix:]
        positions = torch.cat([positions, after[None].expand(3, -1, -1)], -1)
        segment = text["segment"]
        order = torch.arange(length, device=device)
        visible = (order[:, None] >= order[None])[None] & ((segment[:, None] == segment[:, :, None]) | (segment[:, None] == 0))
        hidden = model.model.language_model(
            inputs_embeds=embeds, position_ids=positions, attention_mask={"full_attention": visible[:, None]}, use_cache=False
        ).last_hidden_state

        targets = text["labels"][:, 1:]
        kept = targets != IGNORE
        answer = nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][kept]).float(), targets[kept])
        r, i = text["letter_at"].T
        at_letter = model.lm_head(hidden[r, i - 1]).float().log_softmax(-1)[:, letter_ids[: text["letter_target"].shape[1]]]
        letter = -(text["letter_target"] * at_letter).sum(-1).mean()
        figures |= {"answer_loss": answer.item(), "letter_loss": letter.item()}
        return 0.5 * loss + answer + letter, figures

    return losses
