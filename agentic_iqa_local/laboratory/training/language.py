"""The later phases: the language model learns, first plans alone, then all roles on pictures. All prompts
about one picture are packed into one row.

At run time every role continues from the cached image prefix. Here a block mask and positions that restart do
the same, and prompts with equal instructions share those too: a row is a tree of the image prefix, the
instructions, and the cases, each of which sees only what it descends from.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentic_iqa_local.laboratory.training.data import VARIED_SIDE, Pool, pixel_values
from agentic_iqa_local.laboratory.training.embedded import FACTOR
from agentic_iqa_local.laboratory.training.roles import (
    draw_light_roles,
    draw_looks,
    draw_roles,
    planning,
)
from agentic_iqa_local.laboratory.training.samples import RoleSample
from agentic_iqa_local.laboratory.training.vision import Batches, level_loss
from agentic_iqa_local.nodes.replies import FlagsReply, PlannerReply
from agentic_iqa_local.prompts import ANSWER_PREFIX, PAIR_PREAMBLE, TEST_PREAMBLE, chat_messages
from agentic_iqa_local.synthetic.photos import Crop

# of crops in units of FACTOR pixels, by the number of images
SIDES = {
    1: (4, 5, 6, 7, 8, 9, 10, 12),
    2: (4, 5, 6, 7, 8),
}
FULL_REFERENCE_SHARE = 0.12
PLANS = 12  # queries a planning step
FLAGS = ', "plan"'
KEYS = re.compile(f'"({"|".join([*PlannerReply.model_fields, *FlagsReply.model_fields])})": ')
IGNORE = -100


@dataclass(frozen=True)
class Segment:
    """Part of a row: token ids, labels and positions after the image prefix; `letter` is the index of a
    letter's token."""

    ids: list[int]
    labels: list[int]
    start: int
    letter: int | None = None


def encode_instructions(sample: RoleSample, images: int, processor) -> Segment:
    """What stands between the preamble and the case."""
    text, case = _text(sample, images, processor), sample.prompt.case
    # With the case's first letter: line breaks at a text's end are cut into tokens otherwise than before a
    # letter.
    ids = processor.tokenizer.encode(text[: text.rindex(case) + 1])[:-1]
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
    tail = (
        []
        if sample.read_only
        else [*tokenizer.encode(sample.answer[len(ANSWER_PREFIX) + 1 :]), tokenizer.eos_token_id]
    )
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
    """Rows of samples → the image prefix, each of the instructions once, and the cases with their answers,
    padded, with the tree: each token's segment (0: the shared prefix, −1: padding), that segment's parent,
    and the offset after the prefix.
    """
    prefix = prefix_ids(images, image_tokens, processor)
    packed, letters = [], []
    for r, row in enumerate(rows):
        parts = [(Segment(prefix, [IGNORE] * len(prefix), 0), 0, 0)]  # (segment, its number, its parent's)
        length = len(prefix)
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
        packed.append(parts)
    widest = max((len(target) for _, _, target, _ in letters), default=0)
    return {
        **_columns(packed, processor.tokenizer.pad_token_id),
        "prefix": torch.tensor(len(prefix)),
        "letter_at": torch.tensor([(r, i) for r, i, _, _ in letters]).view(-1, 2),
        "letter_target": (
            torch.tensor(np.array([np.pad(t, (0, widest - len(t))) for _, _, t, _ in letters])).float()
        ),
        "letter_levels": (
            torch.tensor(np.array([np.pad(v, (0, widest - len(v))) for *_, v in letters])).float()
        ),
    }


def _columns(rows: list[list[tuple[Segment, int, int]]], pad: int) -> dict[str, torch.Tensor]:
    columns = [
        (
            [i for segment, *_ in parts for i in segment.ids],
            [i for segment, *_ in parts for i in segment.labels],
            [number for segment, number, _ in parts for _ in segment.ids],
            [parent for segment, _, parent in parts for _ in segment.ids],
            [i + segment.start for segment, *_ in parts for i in range(len(segment.ids))],
        )
        for parts in rows
    ]
    length = max(len(column[0]) for column in columns)
    names, pads = ("ids", "labels", "segment", "parent", "offset"), (pad, IGNORE, -1, 0, 0)
    return {
        name: torch.tensor([column[i] + [filler] * (length - len(column[i])) for column in columns])
        for i, (name, filler) in enumerate(zip(names, pads, strict=True))
    }


def visible(segment: torch.Tensor, parent: torch.Tensor) -> torch.Tensor:
    """B×1×N×N: which tokens each of N sees: the shared prefix, its parent, and its own segment, all up to
    itself."""
    to, of = segment[:, None], segment[:, :, None]
    seen = (
        ((to == 0) | (to == parent[:, :, None]) | (to == of))
        & (to >= 0)
        & causal(segment.shape[1], 0, segment.device)
    )
    # Padding sees itself, or its softmax would be of nothing.
    return (seen | torch.eye(segment.shape[1], dtype=torch.bool, device=segment.device))[:, None]


def planning_batches(processor, seed: int) -> Callable[[int], IterableDataset]:
    """Batches of plans: see `make_plans`."""
    return lambda start: Batches(lambda step, rng: make_plans(step, seed, processor), seed, 1, start)


@dataclass(frozen=True)
class Reading:
    """A phase's mixture: what is asked of a picture, of how many of its first SIDES and of what shares of
    whole pictures and of plans its batches are made, and how many times as many pictures a step has."""

    draw: Callable[[Crop, np.random.Generator, bool], list[RoleSample]]
    sides: int
    whole_share: float
    planning_share: float
    pictures: int = 1


READINGS = {
    "look": Reading(draw_looks, sides=3, whole_share=0.1, planning_share=0.1, pictures=5),
    "light": Reading(draw_light_roles, sides=5, whole_share=0.5, planning_share=0.15),
    "full": Reading(draw_roles, sides=8, whole_share=0.5, planning_share=0.2),
}


def role_batches(
    pool: Pool, processor, pictures: int, seed: int, name: str
) -> Callable[[int], IterableDataset]:
    """Batches of the phase `name`, one of READINGS, of about `pictures` pictures, with some of plans
    between."""
    reading = READINGS[name]

    def make(step: int, rng: np.random.Generator) -> dict:
        if rng.random() < reading.planning_share:
            return make_plans(step, seed, processor)
        images = 2 if rng.random() < FULL_REFERENCE_SHARE else 1
        whole = images == 1 and rng.random() < reading.whole_share
        sides = SIDES[images][: reading.sides]
        height, width = (VARIED_SIDE if whole else FACTOR * int(rng.choice(sides)) for _ in range(2))
        count = pictures if whole else pictures * reading.pictures
        drawn = pool.draw(count, max(height, width), rng, whole)
        crops = [pool.crop(int(i), height, width, rng) for i in drawn]
        asked = [(crop, row) for crop in crops if (row := reading.draw(crop, rng, images == 2))]
        if not asked:
            return make_plans(step, seed, processor)
        return make_batch([crop for crop, _ in asked], [row for _, row in asked], images, processor)

    return lambda start: Batches(make, seed, 2 + list(READINGS).index(name), start)


def plain_products(module, query, key, value, attention_mask, **options):
    """Attention as transformers calls it: `query` B×heads×N×width; fewer heads of `key` and `value`;
    `attention_mask` true where seen."""
    batch, heads, length, width = query.shape
    # it would have the softmax in float32, at three times the price
    with torch.autocast("cpu", enabled=False):
        query, key = (query * options["scaling"]).to(value.dtype), key.to(value.dtype)
        shared = query.reshape(batch, key.shape[1], -1, width)  # the queries of each key's heads as one
        weights = (shared @ key.transpose(-1, -2)).view(batch, heads, length, -1)
        weights = torch.where(attention_mask, 0.0, -torch.inf).to(query.dtype).add(weights).softmax(-1)
        attended = weights.view(batch, key.shape[1], -1, weights.shape[-1]) @ value
    return attended.view(batch, heads, length, width).transpose(1, 2).contiguous(), None


def read_fast_on_cpu(model: PreTrainedModel) -> None:
    """Same mathematics in less time on a CPU, where plain products train faster than a fused kernel. It
    expects an explicit mask."""
    ALL_ATTENTION_FUNCTIONS.register("plain_products", plain_products)
    model.config.text_config._attn_implementation = "plain_products"


def causal(length: int, known: int, device: torch.device) -> torch.Tensor:
    """N×M: what `length` tokens see after `known` ones that all of them see."""
    return torch.ones(length, known + length, dtype=torch.bool, device=device).tril(known)


def make_plans(step: int, seed: int, processor) -> dict:
    """The planner's instructions after picture tokens of noise, and many cases that continue from both.

    Three steps in a row share out what one draw gives by its length, so that little is padded. One in three
    ends before the flags, which follow from the rest; five in six cases learn no keys, which the grammar of
    the reply writes.
    """
    turn = step // 3
    rng = np.random.default_rng([seed, 4, turn])
    images = 2 if rng.random() < 0.25 else 1
    samples = [planning(rng, images == 2) for _ in range(3 * PLANS)]
    picture = int(rng.integers(4, 60))
    prefix = prefix_ids(images, picture, processor)
    instructions = encode_instructions(samples[0], images, processor).ids
    cases = sorted(
        (encode_case(sample, images, len(instructions), processor) for sample in samples),
        key=lambda c: len(c.ids),
    )
    cases = cases[step % 3 * PLANS : (step % 3 + 1) * PLANS]
    for n, case in enumerate(cases):
        if (step + turn) % 3 == 0:
            _end_before_flags(case, processor.tokenizer)
        if (n + turn) % 6:
            _skip_keys(case, processor.tokenizer)
    length = max(len(c.ids) for c in cases)
    pad = processor.tokenizer.pad_token_id
    return {
        "head": torch.tensor([prefix + instructions]),
        "cases": torch.tensor([c.ids + [pad] * (length - len(c.ids)) for c in cases]),
        "labels": torch.tensor([c.labels + [IGNORE] * (length - len(c.ids)) for c in cases]),
        "noise": int(rng.integers(2**31)),
        "narrower": int(rng.integers(0, picture)),
    }


def _answer_start(case: Segment) -> int:
    return next(i for i, label in enumerate(case.labels) if label != IGNORE)


def _end_before_flags(case: Segment, tokenizer) -> None:
    text = tokenizer.decode(case.ids[_answer_start(case) :])
    surplus = len(text) - text.index(FLAGS)
    while surplus > 0:
        surplus -= len(tokenizer.decode([case.ids.pop()]))
        case.labels.pop()


def _skip_keys(case: Segment, tokenizer) -> None:
    start = _answer_start(case)
    text = tokenizer.decode(case.ids[start:])
    fixed = np.zeros(len(text) + 1, bool)
    for match in KEYS.finditer(text):
        fixed[match.start() : match.end() - 1] = True
    place = 0
    for i in range(start, len(case.ids)):
        length = len(tokenizer.decode([case.ids[i]]))
        if fixed[place : place + length].all():
            case.labels[i] = IGNORE
        place += length


def make_batch(crops: list[Crop], rows: list[list[RoleSample]], images: int, processor) -> dict:
    """Pixels and packed text of crops (with their clean originals before them when `images` is 2)."""
    height, width = crops[0].clean.shape[:2]
    pictures = [
        picture for c in crops for picture in ([c.clean, c.sample.image] if images == 2 else [c.sample.image])
    ]
    pixels, grid = pixel_values(pictures, processor)
    text = pack(rows, images, height * width // FACTOR**2, processor)
    return {"pixels": pixels, "grid": grid, "text": text}


def plan_losses(model) -> Callable:
    """The loss of a batch of plans. Picture tokens are noise of the size of words, so that plans do not hang
    on them."""

    def losses(batch: dict) -> tuple[torch.Tensor, dict[str, float]]:
        language, device = model.model.language_model, model.device
        head, cases = batch["head"].to(device), batch["cases"].to(device)
        embeds = model.get_input_embeddings()(head)
        noise = torch.randn(embeds.shape, generator=torch.Generator().manual_seed(batch["noise"])).to(device)
        placeholder = (head == model.config.image_token_id)[..., None]
        embeds = torch.where(placeholder, noise * model.get_input_embeddings().weight.std(), embeds)
        known, length = head.shape[1], cases.shape[1]
        cache = DynamicCache(config=model.config.text_config)
        language(
            inputs_embeds=embeds,
            position_ids=torch.arange(known, device=device).expand(3, 1, -1),
            attention_mask={"full_attention": causal(known, 0, device)[None, None]},
            past_key_values=cache,
            use_cache=True,
        )
        cache.batch_repeat_interleave(len(cases))
        # A picture takes as many positions as its longer side has tokens.
        after = (known - batch["narrower"] + torch.arange(length, device=device)).expand(3, len(cases), -1)
        # Padding stands at the end, where no token that counts looks at it.
        hidden = language(
            input_ids=cases,
            position_ids=after,
            attention_mask={"full_attention": causal(length, known, device)[None, None]},
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        targets = batch["labels"].to(device)[:, 1:]
        kept = targets != IGNORE
        logits = model.lm_head(hidden[:, :-1][kept]).float()
        loss = nn.functional.cross_entropy(logits, targets[kept])
        wrong = torch.zeros(len(cases), device=device).index_add_(
            0, kept.nonzero()[:, 0], (logits.argmax(-1) != targets[kept]).float()
        )
        return loss, {"plan_loss": loss.item(), "whole_plans": (wrong == 0).float().mean().item()}

    return losses


def read(model, pixels: torch.Tensor, grid: torch.Tensor, text: dict[str, torch.Tensor]) -> torch.Tensor:
    """B×N×width: the last hidden states of packed rows, whose tokens see and stand where they would in a text
    of their own."""
    prefix = int(text["prefix"])
    features = model.model.visual(pixels, grid_thw=grid).pooler_output.float()
    placeholder = text["ids"] == model.config.image_token_id
    embeds = model.get_input_embeddings()(text["ids"]).masked_scatter(placeholder[..., None], features)
    positions, delta = model.model.get_rope_index(
        text["ids"][:, :prefix], mm_token_type_ids=placeholder[:, :prefix].int(), image_grid_thw=grid
    )
    after = (prefix + delta).to(pixels.device) + text["offset"][:, prefix:]
    return model.model.language_model(
        inputs_embeds=embeds,
        position_ids=torch.cat([positions, after[None].expand(3, -1, -1)], -1),
        attention_mask={"full_attention": visible(text["segment"], text["parent"])},
        use_cache=False,
    ).last_hidden_state


def role_losses(model, letter_ids: torch.Tensor) -> Callable:
    """The loss of the later phases: letters (soft), answers' tokens, and plans."""
    of_plans = plan_losses(model)

    def losses(batch: dict) -> tuple[torch.Tensor, dict[str, float]]:
        if "cases" in batch:
            return of_plans(batch)
        device = model.device
        text = {k: v.to(device) for k, v in batch["text"].items()}
        hidden = read(model, batch["pixels"].to(device), batch["grid"].to(device), text)
        loss, figures = torch.zeros((), device=device), {}

        targets = text["labels"][:, 1:]
        kept = targets != IGNORE
        if kept.any():  # none when every row is read only
            answer = nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][kept]).float(), targets[kept])
            figures["answer_loss"] = answer.item()
            loss = loss + answer
        if not len(text["letter_at"]):
            return loss, figures
        r, i = text["letter_at"].T
        at_letter = model.lm_head(hidden[r, i - 1]).float().log_softmax(-1)
        at_letter = at_letter[:, letter_ids[: text["letter_target"].shape[1]]]
        letter = level_loss(at_letter, text["letter_target"], text["letter_levels"])
        rates = text["letter_levels"].any(-1)
        for name, rows in (("rating", rates), ("choice", ~rates)):
            if rows.any():
                figures[f"{name}_loss"] = -(text["letter_target"] * at_letter)[rows].sum(-1).mean().item()
        loss = loss + letter
        return loss, figures

    return losses
