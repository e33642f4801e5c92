"""What the embedded model is trained on: the same prompts, pixels and positions that the pipeline uses."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from agentic_iqa_local.iqa_tools.local_nr import LocalNR
from agentic_iqa_local.laboratory.training import data
from agentic_iqa_local.laboratory.training.adapters import Adapted, adapters, add_adapters
from agentic_iqa_local.laboratory.training.choices import four_choices, yes_or_no
from agentic_iqa_local.laboratory.training.data import Pool, level_targets, pixel_values, vary
from agentic_iqa_local.laboratory.training.embedded import grow_vision
from agentic_iqa_local.laboratory.training.language import (
    IGNORE,
    encode_case,
    encode_instructions,
    make_batch,
    make_plans,
    plain_products,
    plan_losses,
    read,
)
from agentic_iqa_local.laboratory.training.queries import SHARES, draw_query, objects, phrases, templates
from agentic_iqa_local.laboratory.training.roles import (
    draw_roles,
    planning,
    rating,
)
from agentic_iqa_local.laboratory.training.samples import visible_parts
from agentic_iqa_local.laboratory.training.teacher import Cells, encoder
from agentic_iqa_local.laboratory.training.vision import (
    WORDS,
    WordHeads,
    crop_labels,
    level_loss,
    train_fast_on_cpu,
)
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTERS
from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.prompts import ANSWER_PREFIX
from agentic_iqa_local.synthetic.distortions import (
    DISTORTIONS,
    KINDS_BY_FAMILY,
    Part,
    Sample,
    distort,
    draw_parts,
)
from agentic_iqa_local.synthetic.photos import Crop, load_tiles, split_photos
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def pixels(photo):
    return np.asarray(photo)[:256, :256]


@pytest.fixture(scope="module")
def pool(photo):
    """One photograph, clean and with motion blur of severity 4; the qualities are arbitrary."""
    clean = np.asarray(photo)[:512, :512]
    blurred = distort(clean, (Part("motion_blur", 4),), np.random.default_rng(0)).image
    rows = [
        {"quality": 4.27, "parts": []},
        {"quality": 1.9, "parts": [{"kind": "motion_blur", "severity": 4, "place": None}]},
    ]
    return Pool([np.stack([clean, blurred])], [np.stack([clean, clean])], rows)


def test_all_seven_families_have_kinds():
    assert set(KINDS_BY_FAMILY) == set(DISTORTION_TYPES)
    assert all(KINDS_BY_FAMILY.values())
    assert len(DISTORTIONS) >= 15


@pytest.mark.parametrize("kind", DISTORTIONS)
def test_a_higher_severity_departs_further_from_the_clean_picture(kind, pixels):
    """Root mean square error rises with severity; the seed is the same, so that angles and signs are."""
    errors = []
    for severity in range(1, 6):
        distorted = DISTORTIONS[kind].apply(pixels, severity, np.random.default_rng(0))
        assert distorted.shape == pixels.shape
        assert distorted.dtype == np.uint8
        errors.append(np.sqrt(np.mean((distorted.astype(float) - pixels) ** 2)))
    assert errors == sorted(errors)
    assert errors[0] > 1


def test_shares_of_clean_pictures_pairs_and_severities():
    rng = np.random.default_rng(0)
    drawn = [draw_parts(rng) for _ in range(4000)]
    # Binomial standard errors: sqrt(.12·.88/4000) = .0051 for clean, sqrt(.308·.692/4000) = .0073 for .88·.35
    # = .308 pairs.
    assert np.mean([not parts for parts in drawn]) == pytest.approx(0.12, abs=4 * 0.0051)
    assert np.mean([len(parts) == 2 for parts in drawn]) == pytest.approx(0.308, abs=4 * 0.0073)
    single = np.bincount([parts[0].severity for parts in drawn if len(parts) == 1], minlength=6)[1:]
    # About 2290 singles: sqrt(.2·.8/2290) = .0084 for each severity.
    assert single / single.sum() == pytest.approx(0.2, abs=4 * 0.0084)
    for parts in drawn:
        assert len({p.family for p in parts}) == len(parts)
        assert [p.severity for p in parts] == sorted((p.severity for p in parts), reverse=True)


def test_pairs_are_applied_in_the_order_of_a_camera(pixels):
    """Blur, then noise, then compression, whichever is stronger: noise after blur keeps its high
    frequencies."""
    parts = (Part("gaussian_blur", 5), Part("white_noise", 2))
    rng = np.random.default_rng
    blurred = DISTORTIONS["gaussian_blur"].apply(pixels, 5, rng(3))
    assert np.array_equal(
        distort(pixels, parts, rng(3)).image, DISTORTIONS["white_noise"].apply(blurred, 2, rng(3))
    )
    sample = distort(pixels, parts, rng(3))
    assert (sample.family, sample.severity) == ("Blurs", 5)
    assert Sample(pixels, ()).family is None


def test_the_pseudo_mos_falls_with_severity_and_is_the_maps_own_on_a_clean_picture(photo):
    clean = np.asarray(photo)[:256, :256]
    measure = PseudoMos()
    # On a clean picture FSIM = VSI = 1 and GMSD = NLPD = 0; through the maps of configs/tool_maps.yaml:
    # FSIM 265.7031·(½ − 1/(1 + e^(23.294·(1−1.2003)))) + 1.9193 + 133.0061 = 4.55
    # GMSD −5.9925·(½ − 1/(1 + e^(−23.3876·59.6895))) + 1.0789 = 4.075
    # VSI 8·(½ − 1/(1 + e^(77.987697·(1−1.0181689)))) + 6.8997142 − 0.25390505 = 4.21
    # NLPD −8·(½ − 1/(1 + e^(4.1268039·0.15537285))) + 5.4919541 = 4.25
    assert measure(clean, clean) == pytest.approx((4.55 + 4.075 + 4.21 + 4.25) / 4, abs=0.02)
    for kind in ("gaussian_blur", "white_noise", "jpeg", "darken", "contrast_decrease"):
        scores = [
            measure(DISTORTIONS[kind].apply(clean, s, np.random.default_rng(0)), clean) for s in (1, 3, 5)
        ]
        assert scores == sorted(scores, reverse=True)


def test_letter_targets_follow_the_quality():
    targets = level_targets(np.array([5.0, 4.2, 3.0, 1.2]))
    assert targets.sum(1) == pytest.approx(1)
    assert targets[2] == pytest.approx(targets[2][::-1])
    # Two letters one level apart, quality on the better: exp(−½·(1/0.7)²) = .3604.
    assert targets[2][3] / targets[2][2] == pytest.approx(0.3604, abs=1e-4)
    assert list(targets.argmax(1)) == [0, 1, 2, 4]


def test_level_loss_is_cross_entropy_and_half_the_squared_level_error():
    target = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]])
    uniform = torch.full((1, 5), 0.2).log()
    # Cross-entropy of anything with the uniform: ln 5. Expected levels 3 and 4.5: ½·1.5² = 1.125.
    assert level_loss(uniform, target, torch.arange(5.0, 0, -1)).item() == pytest.approx(
        np.log(5) + 1.125, abs=1e-5
    )


@pytest.mark.parametrize("varied", [False, True], ids=["plain", "varied"])
def test_a_pool_shard_repeats_and_carries_its_pseudo_mos(varied, photo, tmp_path):
    tile = np.asarray(photo)[:512, :512]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "tiles.npy", tile[None])
        data._make_shard(0, tmp_path / name, varied, seed=5, count=3)

    def saved(what):
        return [np.load(tmp_path / name / f"{what}_000.npy") for name in ("a", "b")]

    rows = [json.loads((tmp_path / name / "rows_000.json").read_text()) for name in ("a", "b")]
    assert rows[0] == rows[1]
    assert np.array_equal(*saved("pictures"))
    clean = saved("clean")[0]
    assert clean.shape == ((3, 384, 384, 3) if varied else (3, 512, 512, 3))
    assert varied or np.array_equal(clean[0], tile)
    measure = PseudoMos()
    for row, picture, original in zip(rows[0], saved("pictures")[0], clean, strict=True):
        assert row["quality"] == pytest.approx(measure(picture, original), abs=1e-3)


def test_varied_photographs_differ_from_each_other_and_stay_photographs(photo):
    tile = np.asarray(photo)[:512, :512]
    rng = np.random.default_rng(0)
    varied = [vary(tile, rng) for _ in range(4)]
    assert all(v.shape == (384, 384, 3) and v.dtype == np.uint8 for v in varied)
    assert all(np.abs(a.astype(float) - b).mean() > 1 for a, b in itertools.combinations(varied, 2))
    # Gamma 0.85 to 1.18, gains and frame move the mean of a picture by less than a quarter of the scale.
    assert all(abs(v.mean() - tile.mean()) < 40 for v in varied)


def test_large_crops_come_from_pictures_that_hold_them(pool):
    both = [[shard[0], shard[0][:, :384, :384]] for shard in (pool.pictures, pool.clean)]
    small = Pool(*both, [*pool.rows, *pool.rows])
    rng = np.random.default_rng(0)
    assert set(small.draw(200, 400, rng)) == {0, 1}
    assert set(small.draw(200, 384, rng)) == {0, 1, 2, 3}


def test_photographs_are_split_by_file_and_cut_into_tiles(tmp_path):
    for i, size in enumerate([(512, 512)] * 5 + [(1100, 600), (3000, 2200)]):
        Image.new("RGB", size, (i, i, i)).save(tmp_path / f"{i}.png")
    training, held_out = split_photos(tmp_path, held_out=2)
    assert len(held_out) == 2
    assert not set(training) & set(held_out)
    assert split_photos(tmp_path, held_out=2) == (training, held_out)
    with pytest.raises(ValueError, match="more than 7"):
        split_photos(tmp_path, held_out=7)
    # 1100×600 holds two tiles; 3000×2200 is reduced to 1396×1024 and holds 2×2.
    assert len(load_tiles(sorted(tmp_path.iterdir()))) == 5 + 2 + 4


def test_crops_show_the_same_place_of_both_pictures(pool):
    rng = np.random.default_rng(0)
    crops = [pool.crop(int(i), 96, 160, rng) for i in pool.draw(20, 160, rng)]
    assert all(c.clean.shape == c.sample.image.shape == crops[0].clean.shape for c in crops)
    unchanged = [c for c in crops if not c.sample.parts]
    assert unchanged
    assert len(unchanged) < len(crops)
    assert all(np.array_equal(c.clean, c.sample.image) for c in unchanged)
    for crop in crops:  # a blurred crop resembles its own clean crop more than that of any other place
        distances = [np.abs(crop.sample.image.astype(float) - other.clean).mean() for other in crops]
        assert np.argmin(distances) in [i for i, c in enumerate(crops) if np.array_equal(c.clean, crop.clean)]


def test_training_pixels_are_the_processors(client, pixels):
    ours, grid = pixel_values([pixels], client.processor)
    theirs = client.processor.image_processor(images=[Image.fromarray(pixels)], return_tensors="pt")
    assert torch.equal(grid, theirs["image_grid_thw"])
    assert torch.allclose(ours, theirs["pixel_values"], atol=1e-6)


def test_the_fast_vision_pass_is_the_models_own(client, pixels):
    from transformers import Qwen2_5_VLForConditionalGeneration

    values, grid = pixel_values([pixels[:96, :128], pixels[96:192, :128]], client.processor)
    config = client.model.config
    fast = Qwen2_5_VLForConditionalGeneration(config).eval()
    fast.load_state_dict(client.model.state_dict())
    train_fast_on_cpu(fast.model.visual)
    with torch.no_grad():
        own = client.model.model.visual(values, grid_thw=grid).pooler_output
        assert torch.allclose(fast.model.visual(values, grid_thw=grid).pooler_output, own, atol=1e-4)


@pytest.mark.parametrize("images", [1, 2], ids=["no-reference", "full-reference"])
def test_packed_training_rows_give_the_logits_of_the_running_pipeline(client, pool, images):
    """Block mask and restarted positions in one pass equal a session that continues from its image prefix."""
    rng = np.random.default_rng(1)
    crops = [pool.crop(i, 160, 192, rng) for i in (0, 1)]
    rows = [
        [*draw_roles(c, rng), four_choices(c, rng), planning(rng, images == 2), yes_or_no(c, rng)]
        for c in crops
    ]
    batch = make_batch(crops, rows, images, client.processor)
    with torch.no_grad():
        hidden = read(client.model, batch["pixels"], batch["grid"], batch["text"])
        packed = client.model.lm_head(hidden).double().log_softmax(-1)
    places = batch["text"]["letter_at"].tolist()
    assert len(places) == sum(s.letters is not None for row in rows for s in row)
    for row, crop in enumerate(crops):
        pictures = [crop.clean, crop.sample.image] if images == 2 else [crop.sample.image]
        session = client.open([Image.fromarray(p) for p in pictures])
        at = [i for r, i in places if r == row]
        for index, sample in zip(at, [s for s in rows[row] if s.letters is not None], strict=True):
            letters = [chr(ord("A") + i) for i in range(len(sample.letters))]
            alone = session.read_letters(sample.prompt, ANSWER_PREFIX, letters)
            found = {x: packed[row, index - 1, i].item() for x, i in alone.token_ids.items()}
            assert found == pytest.approx(alone.logprobs, abs=1e-3)


def test_attention_by_plain_products_is_torchs_own():
    """Nine heads of queries share three of keys, as SmolLM2 has them."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, n, 16, generator=generator) for heads, n in ((9, 5), (3, 12), (3, 12))
    )
    mask = torch.rand(2, 1, 5, 12, generator=generator) > 0.5
    mask[..., 0] = True
    found, _ = plain_products(None, query, key, value, mask, scaling=0.25)
    own = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=0.25, enable_gqa=True
    )
    assert torch.allclose(found, own.transpose(1, 2), atol=1e-5)


def test_plans_that_share_their_instructions_cost_what_each_costs_alone(client):
    """Cases that continue from one cache, and each by itself: cross-entropy is a mean over tokens, so each
    weighs by its number."""
    losses, batch = plan_losses(client.model), make_plans(0, 7, client.processor)
    with torch.no_grad():
        shared = losses(batch)[0].item()
        alone, tokens = [], []
        for case, labels in zip(batch["cases"], batch["labels"], strict=True):
            alone.append(losses(batch | {"cases": case[None], "labels": labels[None]})[0].item())
            tokens.append(int((labels[1:] != IGNORE).sum()))
    assert shared == pytest.approx(np.average(alone, weights=tokens), abs=1e-4)


def test_plans_end_before_the_flags_or_hold_them_and_learn_values_more_than_keys(client):
    decode = client.tokenizer.decode
    ends = []
    for step in range(6):
        batch = make_plans(step, 7, client.processor)
        whole = [decode(case).split("assistant\n")[-1] for case in batch["cases"]]
        learned = [decode(labels[labels != IGNORE]) for labels in batch["labels"]]
        ends.append(["tool_execution" in text for text in whole])
        with_keys = ["query_scope" in text for text in learned]
        assert with_keys.count(True) == len(with_keys) // 6
        assert all("IQA" in text or "Other" in text for text in learned)
    assert all(len(set(flags)) == 1 for flags in ends)
    assert [flags[0] for flags in ends].count(True) == 4  # two steps in three


def test_adapters_change_nothing_at_first_and_learn_what_their_sum_would(client):
    """Gradients of A and B by the chain rule from that of W + s·B·A, which autograd gives."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(6, 5)
    adapted, x = Adapted(linear, rank=2), torch.randn(3, 4, 6, requires_grad=True)
    assert torch.equal(adapted(x), linear(x))
    with torch.no_grad():
        adapted.lora_B.normal_()
    adapted(x).square().sum().backward()
    found = [t.grad.clone() for t in (x, adapted.lora_A, adapted.lora_B)]
    a, b, y = (t.detach().clone().requires_grad_() for t in (adapted.lora_A, adapted.lora_B, x))
    plain = torch.nn.functional.linear(y, linear.weight.detach() + 2.0 * b @ a, linear.bias.detach())
    plain.square().sum().backward()
    for ours, theirs in zip(found, (y, a, b), strict=True):
        assert torch.allclose(ours, theirs.grad, atol=1e-4)
    assert linear.weight.grad is None


def test_adapters_begin_above_the_lower_layers(client):
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration(client.model.config)
    language = model.model.language_model
    add_adapters(language, rank=2, first_layer=4)
    # Seven projections in each of layers 4 and 5; nothing else learns.
    assert sorted({name.split(".")[1] for name in adapters(language)}) == ["4", "5"]
    assert len(adapters(language)) == 14
    assert {name.rpartition(".")[2] for name, p in language.named_parameters() if p.requires_grad} == {
        "lora_A",
        "lora_B",
    }


def test_a_grown_tower_sees_as_the_small_one_does(client, pixels):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig.from_dict(client.model.config.to_dict())
    config.vision_config.depth, config.vision_config.intermediate_size = 7, 700
    config.vision_config.fullatt_block_indexes = list(range(7))
    config.vision_config.out_hidden_size = config.text_config.hidden_size
    grown = Qwen2_5_VLForConditionalGeneration(config).model.visual
    grow_vision(grown, client.model.model.visual, embedding_rms=0.1)
    values, grid = pixel_values([pixels[:96, :128]], client.processor)
    with torch.no_grad():
        own, ours = (v(values, grid_thw=grid).last_hidden_state for v in (client.model.model.visual, grown))
    assert torch.allclose(own, ours, atol=1e-3)


def test_tokens_that_are_words_are_read_as_those_words():
    """Tokens made of the embeddings of one word of each group, and of chance: each group's likeliest word is
    the right one."""
    torch.manual_seed(0)

    class Tokenizer:
        def encode(self, word, add_special_tokens):
            return [sorted({w for group in WORDS.values() for w in group}).index(word)]

    embeddings = torch.randn(30, 64)
    heads = WordHeads(embeddings, Tokenizer())
    at = Tokenizer().encode
    token = sum(embeddings[at(word, False)[0]] for word in (" noise", " poor", " severe"))[None, None]
    found = {group: WORDS[group][logits.argmax().item()] for group, logits in heads(token).items()}
    assert found == {"type": " noise", "level": " poor", "severity": " severe"}


def test_token_labels_say_where_the_damage_is():
    picture = np.zeros((128, 128, 3), np.uint8)
    labels = crop_labels([Crop(Sample(picture, (Part("jpeg", 4, "top right"),)), picture, 2.5)])
    compression = labels["token_type"][0, :, 2].view(4, 4)
    assert (compression[:2, 2:] > 0.7).all()
    assert (compression[2:, :2] < 0.05).all()
    # Severity 4 is the word "severe", none of it is "none"; each token's labels sum to 1.
    assert torch.allclose(labels["token_severity"][0, :, 3].view(4, 4), compression)
    assert torch.allclose(labels["token_severity"][0].sum(-1), torch.ones(16))
    assert torch.allclose(labels["token_type"][0].sum(-1), torch.ones(16))


def test_the_teacher_sees_blur_where_it_is(pixels):
    """A cell of 64 pixels a side each; where nothing was changed, and nothing nearby, its features stay."""
    blurred = pixels.copy()
    blurred[128:, 128:] = DISTORTIONS["gaussian_blur"].apply(pixels, 5, np.random.default_rng(0))[128:, 128:]
    encode = encoder(LocalNR.load())
    before, after = encode(pixels), encode(blurred)
    assert before.shape[:2] == (4, 4)
    change = np.abs(after - before).mean(-1)
    assert change[2:, 2:].min() > 3 * change[0, 0]


def test_a_teachers_cells_are_those_of_the_crop(pool, tmp_path):
    """The features of a cell are its own mean colour and place here, so that a crop's cells can be told."""

    def encode(picture):
        rows, columns = (np.arange(side // 64) for side in picture.shape[:2])
        place = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).astype(np.float32)
        noise = np.random.default_rng(int(picture.mean() * 1000)).normal(size=(*place.shape[:2], 200))
        return np.concatenate([place, noise], -1)

    small = Pool([pool.pictures[0]], [pool.clean[0]], pool.rows)
    cells = Cells(small, tmp_path, encode)
    whole = cells(0, 512, 512, 0, 0, mirrored=False)
    assert whole.shape == (8, 8, 128)
    # 64 cells have no more than 63 directions: what lies beyond is rounding, made large
    crop = cells(0, 128, 192, 64, 256, mirrored=False)[..., :48]
    assert np.allclose(crop, whole[1:3, 4:7, :48], atol=1e-5)
    mirrored = cells(0, 128, 192, 64, 256, mirrored=True)[..., :48]
    assert np.allclose(mirrored, whole[1:3, 4:7, :48][:, ::-1], atol=1e-5)
    again = Cells(small, tmp_path)  # from the files alone
    assert np.array_equal(again(0, 512, 512, 0, 0, mirrored=False), whole)


def test_instructions_and_case_are_tokenized_as_in_one_piece(client, pool):
    rng = np.random.default_rng(2)
    for sample in [*draw_roles(pool.crop(1, 160, 160, rng), rng), planning(rng, False)]:
        head = encode_instructions(sample, 1, client.processor)
        case = encode_case(sample, 1, len(head.ids), client.processor)
        text = client.tokenizer.decode(head.ids + case.ids)
        whole = client.tokenizer.encode(text)
        assert whole[: len(head.ids)] == head.ids


def test_letters_of_both_orders_mean_the_same(pool):
    crop = pool.crop(1, 96, 96, np.random.default_rng(0))
    forward, backward = (
        rating(crop, np.random.default_rng(0), with_evidence=False, read_only=True, reversed_letters=order)
        for order in (False, True)
    )
    assert list(forward.letters) == pytest.approx(list(backward.letters[::-1]))
    assert forward.letters @ forward.levels == pytest.approx(backward.letters @ backward.levels)
    assert "A. Excellent" in forward.prompt.instructions
    assert "A. Bad" in backward.prompt.instructions


def test_at_least_half_of_the_rating_prompts_carry_no_scores(pool):
    rng = np.random.default_rng(0)
    crop = pool.crop(1, 96, 96, rng)
    ratings = [
        s
        for _ in range(300)
        for s in draw_roles(crop, rng)
        if "select one single answer" in s.prompt.instructions
    ]
    with_scores = [s for s in ratings if "Tool scores" in s.prompt.case]
    assert 0.05 < len(with_scores) / len(ratings) < 0.5
    shown = [float(x) for s in with_scores for x in re.findall(r", (\d\.\d+)\]", s.prompt.case)]
    # Noise of 0.7 levels, and one in seven unrelated: of the exact pseudo-MOS there is no sign.
    assert np.std(np.array(shown) - crop.quality) > 0.5


def test_questions_are_balanced_and_true(pool):
    rng = np.random.default_rng(0)
    crop = pool.crop(1, 96, 96, rng)
    asked = [yes_or_no(crop, rng) for _ in range(400)]
    answers = [re.findall(r"^([AB])\. (\w+)$", s.prompt.case, re.M) for s in asked]
    said = [
        dict(lines)["AB"[int(s.letters.argmax())]].lower() for lines, s in zip(answers, asked, strict=True)
    ]
    # This crop is distorted: yes 57 %, and positions are permuted; sqrt(.25/400) = .025.
    assert np.mean([word == "yes" for word in said]) == pytest.approx(0.57, abs=0.1)
    assert np.mean([s.letters.argmax() == 0 for s in asked]) == pytest.approx(0.5, abs=0.1)
    blur_words = {*phrases("nouns")["Blurs"], *phrases("adjectives")["Blurs"]}
    for sample, word in zip(asked, said, strict=True):
        assert (word == "yes") == any(phrase in sample.prompt.case for phrase in blur_words)
    for sample in (four_choices(crop, rng) for _ in range(50)):
        letter = "ABCD"[int(sample.letters.argmax())]
        assert f"{letter}. Blurs" in sample.prompt.case


def test_a_barely_visible_distortion_is_not_reported(pool):
    part = (Part("jpeg", 1),)
    picture = np.zeros((96, 96, 3), np.uint8)
    assert visible_parts(Crop(Sample(picture, part), picture, 4.1)) == ()
    assert visible_parts(Crop(Sample(picture, part), picture, 3.9)) == part
    labels = crop_labels([Crop(Sample(picture, (Part("jpeg", 3), Part("darken", 1))), picture, 2.5)])
    assert labels["type"][0].tolist() == pytest.approx([0, 0, 0.75, 0, 0.25, 0, 0, 0])


def test_every_query_of_the_grammar_carries_the_plan_of_the_rules():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        drawn = draw_query(rng)
        plan = drawn.plan
        assert plan.plan == derive_flags(
            plan.query_type, plan.query_scope, plan.distortion_source, plan.required_tool
        )
        assert all(name == "Global" or name.lower() in drawn.query.lower() for name in plan.objects)

        def plain(text):
            return "".join(c for c in text.lower() if c.isalnum())

        assert plan.required_tool is None or plain(plan.required_tool) in plain(drawn.query)
        assert (plan.distortion_source == "Explicit") == bool(plan.distortions)


def test_the_grammar_is_wide_and_does_not_hold_the_test_queries():
    sentences = {t["text"] for part in SHARES for t in templates(part)}
    assert len(sentences) > 2000
    assert len(objects()) > 1000
    families = [set(words) for form in ("nouns", "adjectives") for words in phrases(form).values()]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(families, 2))
    written = {
        json.loads(line)["query"].lower()
        for line in (DATA / "planner_queries.jsonl").read_text().splitlines()
    }
    assert written.isdisjoint(s.lower() for s in sentences)
    assert "{n}" in "".join(sentences)
    assert LETTERS == ("A", "B", "C", "D", "E")
