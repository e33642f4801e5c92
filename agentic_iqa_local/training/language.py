"""The later phases: the language model learns, first alone, then with the vision tower. All prompts about one picture are packed
into one row.

At run time every role continues from the cached image prefix. Here a block mask and positions that restart do the same in
one pass, and prompts with equal instructions share those too: a row is a tree of the image prefix, the instructions, and the
cases, each of which sees only what it descends from.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import repeat_kv

from agentic_iqa_local.prompts import ANSWER_PREFIX, PAIR_PREAMBLE, TEST_PREAMBLE, chat_messages
from agentic_iqa_local.training.data import Crop, Pool, draw_crops, pixel_values
from agentic_iqa_local.training.embedded import FACTOR
from agentic_iqa_local.training.roles import RoleSample, draw_roles, planning
from agentic_iqa_local.training.vision import Batches, VisionHeads, crop_labels, head_losses, level_loss

SIDES = (3, 5, 6, 7, 8, 8, 9, 10, 12, 16)
FULL_REFERENCE_SHARE = 0.2
ROWS = 10  # pictures a step at most: the text about them costs more than they do
PLANS = 40  # queries a planning step
IGNORE = -100


@dataclass(frozen=True)
class Segment:
    """Part of a row: token ids, labels and positions after the image prefix; `letter` is the index of a letter's token."""

    ids: list[int]
    labels: list[int]
    start: int
    letter: int | None = None


def encode_instructions(sample: RoleSample, images: int, processor) -> Segment:
    """What stands between the preamble and the case."""
    text, case = _text(sample, images, processor), sample.prompt.case
    ids = processor.tokenizer.encode(text[: text.rindex(case)])
    return Segment(ids, [IGNORE] * len(ids), 0)


def encode_case(sample: RoleSample, images: int, start: int, processor) -> Segment:
    """The case and its answer, `start` positions after the prefix."""
    tokenizer = processor.tokenizer
    text = _text(sample, images, processor)
    question = tokenizer.encode(text[text.rindex(sample.prompt.case) :])
    if sample.letters is None:
        answer = [*tokenizer.encode(sample.answer), tokenizer.eos_token_id]
        return Segment(question + answer, [IGNORE] * len(question) + answer, start)
    head = tokenizer.encode(ANSWER_PREFIX)
    letter = tokenizer.convert_tokens_to_ids(sample.answer[len(ANSWER_PREFIX)])
    tail = [] if sample.read_only else [*tokenizer.encode(sample.answer[len(ANSWER_PREFIX) + 1 :]), tokenizer.eos_token_id]
    shown = [IGNORE] * len(head) if sample.read_only else head
    labels = [*[IGNORE] * len(question), *shown, IGNORE, *tail]
    return Segment([*question, *head, letter, *tail], labels, start, len(question) + len(head))


def _text(sample: RoleSample, images: int, processor) -> str:
    text = processor.apply_chat_template(
        chat_messages(sample.prompt, images, "images_first"), add_generation_prompt=True, tokenize=False
    )
    preamble = TEST_PREAMBLE if images == 1 else PAIR_PREAMBLE
    return text[text.index(preamble) + len(preamble) + 1 :]


def prefix_ids(images: int, image_tokens: int, processor) -> list[int]:
    """Token ids of the image prefix and preamble, up to where a role's text begins."""
    picture = f"<|vision_start|>{'<|image_pad|>' * image_tokens}<|vision_end|>"
    preamble = TEST_PREAMBLE if images == 1 else PAIR_PREAMBLE
    return processor.tokenizer.encode(f"<|im_start|>user\n{picture * images}{preamble}\n")


def pack(rows: list[list[RoleSample]], images: int, image_tokens: int, processor) -> dict[str, torch.Tensor]:
    """Rows of samples → padded ids, labels, offsets after the prefix, and the tree: each token's segment (0: the shared
    prefix, −1: padding) and that segment's parent."""
    prefix = prefix_ids(images, image_tokens, processor)
    packed, letters = [], []
    for r, row in enumerate(rows):
        parts, length = [(Segment(prefix, [IGNORE] * len(prefix), 0), 0, 0)], len(prefix)  # (segment, its number, its parent's)
        known: dict[str, tuple[int, int]] = {}  # instructions → (number, length)
        for sample in row:
            if sample.prompt.instructions not in known:
                segment = encode_instructions(sample, images, processor)
                known[sample.prompt.instructions] = len(parts), len(segment.ids)
                parts.append((segment, len(parts), 0))
                length += len(segment.ids)
            parent, start = known[sample.prompt.instructions]
            segment = encode_case(sample, images, start, processor)
            if segment.letter is not None:
                letters.append((r, length + segment.letter, sample.letters, sample.levels))
            parts.append((segment, len(parts), parent))
            length += len(segment.ids)
        packed.append(
            [
                [i for segment, *_ in parts for i in segment.ids],
                [i for segment, *_ in parts for i in segment.labels],
                [number for segment, number, _ in parts for _ in segment.ids],
                [parent for segment, _, parent in parts for _ in segment.ids],
                [0] * len(prefix) + [i + segment.start for segment, *_ in parts[1:] for i in range(len(segment.ids))],
            ]
        )
    length = max(len(p[0]) for p in packed)
    pads = (processor.tokenizer.pad_token_id, IGNORE, -1, 0, 0)
    columns = [torch.tensor([p[i] + [pad] * (length - len(p[i])) for p in packed]) for i, pad in enumerate(pads)]
    widest = max((len(target) for _, _, target, _ in letters), default=0)
    return {
        **dict(zip(("ids", "labels", "segment", "parent", "offset"), columns, strict=True)),
        "prefix": torch.tensor(len(prefix)),
        "letter_at": torch.tensor([(r, i) for r, i, _, _ in letters]).view(-1, 2),
        "letter_target": torch.tensor(np.array([np.pad(t, (0, widest - len(t))) for _, _, t, _ in letters])).float(),
        "letter_levels": torch.tensor(np.array([np.pad(v, (0, widest - len(v))) for *_, v in letters])).float(),
    }


def language_batches(
    pool: Pool, processor, tokens: int, seed: int, phase: int, planning_share: float
) -> Callable[[int], IterableDataset]:
    """Batches of pictures with what they are asked; `planning_share` of the batches are many plans over one small picture."""

    def make(step: int, rng: np.random.Generator) -> dict:
        images = 2 if rng.random() < FULL_REFERENCE_SHARE else 1
        if rng.random() < planning_share:
            crop = pool.crop(int(pool.draw(1, 96, rng)[0]), 96, 96, rng)
            return make_plans(crop, [planning(rng, images == 2) for _ in range(PLANS)], images, processor)
        crops = draw_crops(pool, tokens // images, SIDES, rng, ROWS)
        return make_batch(crops, [draw_roles(c, rng) for c in crops], images, processor)

    return lambda start: Batches(make, seed, phase, start)


def _attention_on_cpu(module, query, key, value, attention_mask, **options):
    if query.shape[2] == key.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    key, value = (repeat_kv(x, module.num_key_value_groups) for x in (key, value))
    weights = (query * options["scaling"] @ key.transpose(-1, -2)).masked_fill(~attention_mask, -torch.inf).softmax(-1)
    return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous(), None


def read_fast_on_cpu(model: PreTrainedModel) -> None:
    """Same mathematics in less time on a CPU, where many short texts after a long cache are faster as plain products than in
    a fused kernel. It expects an explicit mask."""
    ALL_ATTENTION_FUNCTIONS.register("plain_after_cache", _attention_on_cpu)
    model.config.text_config._attn_implementation = "plain_after_cache"


def causal(length: int, known: int, device: torch.device) -> dict[str, torch.Tensor]:
    """The mask of `length` tokens after `known` ones that all of them see."""
    visible = torch.ones(length, known + length, dtype=torch.bool, device=device).tril(known)
    return {"full_attention": visible[None, None]}


def make_plans(crop: Crop, samples: list[RoleSample], images: int, processor) -> dict:
    """One small picture, the planner's instructions, and many cases that continue from both."""
    pixels, grid = pixel_values([crop.clean, crop.sample.image] if images == 2 else [crop.sample.image], processor)
    height, width = crop.clean.shape[:2]
    prefix = prefix_ids(images, height * width // FACTOR**2, processor)
    instructions = encode_instructions(samples[0], images, processor).ids
    cases = [encode_case(sample, images, len(instructions), processor) for sample in samples]
    length = max(len(c.ids) for c in cases)
    pad = processor.tokenizer.pad_token_id
    return {
        "pixels": pixels,
        "grid": grid,
        "head": torch.tensor([prefix + instructions]),
        "cases": torch.tensor([c.ids + [pad] * (length - len(c.ids)) for c in cases]),
        "labels": torch.tensor([c.labels + [IGNORE] * (length - len(c.ids)) for c in cases]),
    }


def make_batch(crops: list[Crop], rows: list[list[RoleSample]], images: int, processor) -> dict:
    """Pixels, labels and packed text of crops (with their clean originals before them when `images` is 2)."""
    height, width = crops[0].clean.shape[:2]
    pictures = [picture for c in crops for picture in ([c.clean, c.sample.image] if images == 2 else [c.sample.image])]
    pixels, grid = pixel_values(pictures, processor)
    text = pack(rows, images, height * width // FACTOR**2, processor)
    return {"pixels": pixels, "grid": grid, "images": images, "labels": crop_labels(crops), "text": text}


def language_losses(model, heads: VisionHeads, letter_ids: torch.Tensor, frozen_vision: bool) -> Callable:
    """The loss of the later phases: letters (soft), answers' tokens, and the vision heads."""

    def plan_losses(batch: dict) -> tuple[torch.Tensor, dict[str, float]]:
        head, cases = batch["head"].to(model.device), batch["cases"].to(model.device)
        grid = batch["grid"].to(model.device)
        with torch.set_grad_enabled(not frozen_vision):
            features = model.model.visual(batch["pixels"].to(model.device), grid_thw=grid).pooler_output.float()
        placeholder = head == model.config.image_token_id
        embeds = model.get_input_embeddings()(head).float().masked_scatter(placeholder[..., None], features)
        positions, delta = model.model.get_rope_index(head, mm_token_type_ids=placeholder.int(), image_grid_thw=grid)
        cache = DynamicCache(config=model.config.text_config)
        model.model.language_model(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=causal(head.shape[1], 0, head.device),
            past_key_values=cache,
            use_cache=True,
        )
        cache.batch_repeat_interleave(len(cases))
        known, length = head.shape[1], cases.shape[1]
        after = (known + delta.to(head.device) + torch.arange(length, device=head.device)).expand(3, len(cases), -1)
        # Padding stands at the end, where no token that counts looks at it.
        hidden = model.model.language_model(
            input_ids=cases,
            position_ids=after,
            attention_mask=causal(length, known, head.device),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        targets = batch["labels"].to(model.device)[:, 1:]
        kept = targets != IGNORE
        loss = nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][kept]).float(), targets[kept])
        return loss, {"plan_loss": loss.item()}

    def losses(batch: dict) -> tuple[torch.Tensor, dict[str, float]]:
        if "cases" in batch:
            return plan_losses(batch)
        device = model.device
        text = {k: v.to(device) for k, v in batch["text"].items()}
        grid, images = batch["grid"].to(device), batch["images"]
        with torch.set_grad_enabled(not frozen_vision):
            features = model.model.visual(batch["pixels"].to(device), grid_thw=grid).pooler_output.float()
        width = features.shape[-1]
        rows, length = text["ids"].shape
        labels = {k: v.to(device) for k, v in batch["labels"].items()}
        seen, figures = head_losses(heads, features.view(rows, images, -1, width)[:, -1], labels)
        loss = 0.5 * seen

        embeds = model.get_input_embeddings()(text["ids"]).float()
        placeholder = text["ids"] == model.config.image_token_id
        embeds = embeds.masked_scatter(placeholder[..., None], features)
        prefix = int(text["prefix"])
        positions, delta = model.model.get_rope_index(
            text["ids"][:, :prefix], mm_token_type_ids=placeholder[:, :prefix].int(), image_grid_thw=grid
        )
        after = (prefix + delta).to(device) + text["offset"][:, prefix:]
        positions = torch.cat([positions, after[None].expand(3, -1, -1)], -1)
        segment, parent = text["segment"], text["parent"]
        order = torch.arange(length, device=device)
        keys = segment[:, None]
        visible = (keys == segment[:, :, None]) | (keys == parent[:, :, None]) | (keys == 0)
        visible &= order[:, None] >= order[None]
        hidden = model.model.language_model(
            inputs_embeds=embeds, position_ids=positions, attention_mask={"full_attention": visible[:, None]}, use_cache=False
        ).last_hidden_state

        targets = text["labels"][:, 1:]
        kept = targets != IGNORE
        if kept.any():  # none when every row is read only
            answer = nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][kept]).float(), targets[kept])
            figures["answer_loss"] = answer.item()
            loss = loss + answer
        r, i = text["letter_at"].T
        at_letter = model.lm_head(hidden[r, i - 1]).float().log_softmax(-1)
        at_letter = at_letter[:, letter_ids[: text["letter_target"].shape[1]]]
        letter = level_loss(at_letter, text["letter_target"], text["letter_levels"])
        figures["letter_loss"] = letter.item()
        loss = loss + letter
        return loss, figures

    return losses
