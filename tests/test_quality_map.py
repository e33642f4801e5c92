"""The map of a picture's quality: its tiles, what it finds, how it is drawn, and what is said where there is none."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from scripted import in_this_process

from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.tiles import damaged_boxes, smallest_side, tiling
from agentic_iqa_local.output.report import headline
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import DISTORTION_TYPES


@pytest.fixture(scope="module")
def damaged(photo, tmp_path_factory) -> str:
    """The photograph under strong noise in its bottom right quarter."""
    pixels = np.asarray(photo, np.float32)[:512, :512].copy()
    pixels[256:, 256:] += np.random.default_rng(0).normal(0, 45, (256, 256, 3))
    path = tmp_path_factory.mktemp("photos") / "damaged.png"
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def mapped(damaged, services, tmp_path_factory):
    png = tmp_path_factory.mktemp("maps") / "damaged.map.png"
    return assess(damaged, pipeline="letters", map=png, services=services)


@given(st.integers(384, 5000), st.integers(384, 5000), st.integers(9, 300))
def test_tiles_cover_the_picture_within_the_limit(width, height, most):
    tiles = tiling(width, height, [192, 256, 384, 512], most)
    assume(tiles is not None)
    assert 9 <= len(tiles.boxes) <= most
    for starts, edges, length in ((tiles.lefts, tiles.xs, width), (tiles.tops, tiles.ys, height)):
        assert (starts[0], edges[0], edges[-1]) == (0, 0, length)
        assert all(start % 8 == 0 for start in starts)
        assert length - 8 < starts[-1] + tiles.tile <= length  # up to seven pixels stay out
        assert max(b - a for a, b in itertools.pairwise(starts)) <= tiles.tile  # no gap


def test_tiles_are_half_overlapping_and_small():
    made = tiling(512, 512, [192], 160)
    assert made.lefts == (
        0,
        80,
        160,
        240,
        320,
    )  # ceil(320 / 96) + 1 = 5, evenly over 512 − 192 = 320
    assert made.stride == 80
    # 4000/192 × 3000/192 is at least 21 × 16 = 336 tiles, 4000/256 × 3000/256 is 16 × 12 = 192,
    # 4000/384 × 3000/384 is 11 × 8 = 88
    assert tiling(4000, 3000, [192, 256, 384], 160).tile == 384
    assert smallest_side(192) == 384  # 192 + 2·96
    assert tiling(383, 1000, [192], 160) is None


def test_damaged_boxes_do_not_overlap_and_come_worst_first():
    """Two cells of 512 / 5 pixels make a window of about a tile, 192."""
    tiles, cells = tiling(512, 512, [192], 160), np.full((5, 5), 4.0)
    assert damaged_boxes(tiles, cells + np.random.default_rng(0).uniform(-0.1, 0.1, (5, 5))) == []
    cells[:2, :2], cells[3:, 3:] = 3.0, 2.0
    boxes = damaged_boxes(tiles, cells)
    assert [box.box for box in boxes] == [(307, 307, 512, 512), (0, 0, 205, 205)]
    assert [(box.q, box.below, box.place) for box in boxes] == [
        (2, 2, "bottom right"),
        (3, 1, "top left"),
    ]


def test_a_map_finds_the_damaged_quarter(mapped, damaged, services):
    row, plain = mapped, assess(damaged, pipeline="letters", services=services)
    worst = row.map.worst[0]
    assert (worst.place, worst.distortion) == ("bottom right", "Noise")
    assert set(worst.distortions) == set(DISTORTION_TYPES)
    assert sum(worst.distortions.values()) == pytest.approx(1)
    assert worst.probability == max(worst.distortions.values())
    assert worst.severity == max(worst.severities, key=worst.severities.get)
    cells, w = np.array(row.map.q), row.map.tool_weight
    assert cells[3:, 3:].mean() < cells[:2, :2].mean() - 0.5
    assert cells == pytest.approx((1 - w) * np.array(row.map.letters) + w * np.array(row.map.tool))
    assert row.map.median == pytest.approx(np.median(cells))
    assert row.fusion == plain.fusion  # a map does not change the rating
    assert type(row).model_validate_json(row.model_dump_json()).map == row.map
    # 25 tiles, and a distortion and its severity for each box
    assert row.tokens.calls == plain.tokens.calls + 25 + 2 * len(row.map.worst)
    assert row.map.cost.tokens == row.tokens.prefilled - plain.tokens.prefilled
    with Image.open(row.map.png) as drawn:
        pixels = np.asarray(drawn.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 500  # a photograph and colours, not a blank sheet


def test_a_question_where_the_damage_is_names_the_quarter(damaged, services):
    row = assess(damaged, query="Where is the damage?", services=services)
    assert row.evidence.damaged_part == "bottom right"
    assert " in the bottom right quarter; " in headline(row)
    assert "The damage lies in the bottom right quarter." in row.quality_reasoning


def test_a_soft_half_is_named_though_it_may_be_shallow_focus(services):
    photo = Image.open(DATA / "prudential.png").convert("RGB")
    soft = photo.filter(ImageFilter.GaussianBlur(5)).crop((256, 0, 512, 512))
    half = photo.copy()
    half.paste(soft, (256, 0))
    row = assess(half, query="Which half is blurred?", services=services)
    assert "; if there is any, in the right half; " in headline(row)
    assert "Shallow focus" in row.quality_reasoning


def test_a_picture_without_a_map_says_why(damaged, photo, services, tmp_path):
    small = assess(photo.crop((0, 0, 300, 400)), pipeline="letters", map=True, services=services)
    assert (small.error, small.map) == (None, None)
    assert small.no_map.startswith("map: expected a picture of at least 384 pixels a side")
    uniform = Services(choose_settings(mode="uniform"), "cpu", services.clients, services.tools)
    row = assess(photo, pipeline="letters", map=True, services=uniform)
    assert row.no_map.startswith("map: expected mode logits")
    nowhere = tmp_path / "none" / "x.png"
    undrawn = assess(damaged, pipeline="letters", map=nowhere, services=services)
    assert any("it was not drawn" in line for line in undrawn.warnings)
    assert None not in (small.q, row.q, undrawn.q)


def test_the_command_draws_a_map_of_each_picture(damaged, photo, tmp_path, monkeypatch, capfd):
    in_this_process(monkeypatch)
    photo.crop((0, 0, 200, 200)).save(tmp_path / "small.png")
    (tmp_path / "maps").mkdir()
    out, folder = tmp_path / "rows.jsonl", tmp_path / "maps"
    words = [
        damaged,
        str(tmp_path / "small.png"),
        "--pipeline",
        "letters",
        "--out",
        str(out),
        "--cpu",
    ]
    assert main(["assess", *words, "--map", str(folder)]) == 1
    rows = {Path(row["image"]).name: row for row in map(json.loads, out.open())}
    assert rows["damaged.png"]["map"]["png"] == str(folder / "damaged.map.png")
    assert (rows["small.png"]["error"], rows["small.png"]["map"]) == (None, None)
    assert [file.name for file in folder.iterdir()] == ["damaged.map.png"]
    assert "at least 384 pixels" in capfd.readouterr().err
