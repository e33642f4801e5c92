"""The map of a picture's quality: its tiles, what it finds, how it is drawn, and what is said where there is none."""

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.metrics import structural_similarity

from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.cli import assess as command
from agentic_iqa_local.cli.assess_maps import map_requests
from agentic_iqa_local.cli.assess_options import parse
from agentic_iqa_local.cli.outputs import UsageError
from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.quality_map import bias, reading
from agentic_iqa_local.judgement.quality_map.damage import damaged_boxes, place_in
from agentic_iqa_local.judgement.quality_map.reading import tile_sides
from agentic_iqa_local.judgement.quality_map.result import MapError, MapRequest
from agentic_iqa_local.judgement.quality_map.tiles import Tiling, smallest_side, tiling
from agentic_iqa_local.levels import DISTORTION_TYPES
from agentic_iqa_local.nodes.prompts import summarizer_prompt
from agentic_iqa_local.nodes.reasoning import from_evidence
from agentic_iqa_local.nodes.workbench import MODEL, Observer
from agentic_iqa_local.vlm_client import PixelLimits


@pytest.fixture(scope="module")
def damaged(photo, tmp_path_factory) -> str:
    """The photograph under strong noise in its bottom right quarter."""
    pixels = np.asarray(photo, np.float32)[:512, :512].copy()
    pixels[256:, 256:] += np.random.default_rng(0).normal(0, 45, (256, 256, 3))
    path = tmp_path_factory.mktemp("photos") / "damaged.png"
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    return str(path)


class Watching(Observer):
    def __init__(self):
        self.calls, self.pixels, self.steps = [], [], []

    def step(self, role, state, round=1, what=None):
        self.steps.append(f"{role} {state}")

    def shown(self, pictures):
        self.pixels += [picture.size for picture in pictures]

    def calling(self, what):
        self.calls.append(what)
        return super().calling(what)


@pytest.fixture(scope="module")
def mapped(damaged, services, tmp_path_factory):
    watching, png = Watching(), tmp_path_factory.mktemp("maps") / "damaged.map.png"
    row = assess(damaged, pipeline="letters", map=png, services=services, observer=watching)
    return row, watching


class TestTiles:
    @pytest.mark.parametrize("size", [(384, 384), (512, 512), (1024, 768), (389, 2011), (4000, 3000)])
    def test_cover_the_picture_at_multiples_of_eight_within_the_limit(self, size):
        tiles = tiling(*size, [192, 256, 384, 512], 160)
        assert tiles is not None
        assert 9 <= len(tiles.boxes) <= 160
        for starts, length in ((tiles.lefts, size[0]), (tiles.tops, size[1])):
            assert all(start % 8 == 0 for start in starts)
            assert starts[0] == 0
            assert length - 8 < starts[-1] + tiles.tile <= length  # up to seven pixels stay out
            assert all(b - a <= tiles.tile for a, b in itertools.pairwise(starts))  # no gap
        assert tiles.xs[0] == tiles.ys[0] == 0
        assert (tiles.xs[-1], tiles.ys[-1]) == size

    def test_are_larger_where_too_many_small_ones_would_be_needed(self):
        # 4000/192 × 3000/192 is at least 21 × 16 = 336 tiles, 4000/256 × 3000/256 is 16 × 12 = 192,
        # 4000/384 × 3000/384 is 11 × 8 = 88
        made = tiling(4000, 3000, [192, 256, 384], 160)
        assert made is not None
        assert made.tile == 384

    def test_a_picture_with_no_room_for_three_has_none(self):
        assert smallest_side(192) == 384  # 192 + 2·96
        assert tiling(383, 1000, [192], 160) is None
        assert tiling(4000, 3000, [192], 160) is None

    def test_half_overlap_where_that_many_are_allowed(self):
        made = tiling(512, 512, [192], 160)
        assert made is not None
        assert made.lefts == (0, 80, 160, 240, 320)  # ceil(320 / 96) + 1 = 5, evenly over 512 − 192 = 320
        assert made.stride == 80

    def test_the_first_quarter_of_the_order_is_spread_over_the_picture(self):
        made = tiling(512, 512, [192], 160)
        assert made is not None
        order = made.order()
        assert sorted(order) == list(range(25))
        assert order[:9] == [0, 2, 4, 10, 12, 14, 20, 22, 24]

    def test_a_cell_is_the_mean_of_its_tiles_weighted_by_what_they_cover(self):
        tiles = Tiling(4, (0, 2), (0,), (0, 3, 6), (0, 4))
        # the first cell is 0..3: the first tile 0..4 covers 3 of it, the second 2..6 covers 1; the other way round
        # in the second cell: (3·1 + 1·5) / 4 = 2 and (1·1 + 3·5) / 4 = 4
        assert tiles.cells([1.0, 5.0]).tolist() == [[2.0, 4.0]]
        assert tiles.cells([1.0, None]).tolist() == [[1.0, 1.0]]

    def test_a_cell_that_no_read_tile_covers_is_unknown(self):
        tiles = Tiling(2, (0, 2), (0,), (0, 2, 4), (0, 2))
        cells = tiles.cells([3.0, None])
        assert cells[0, 0] == 3.0
        assert np.isnan(cells[0, 1])

    def test_another_grid_is_averaged_over_each_cell(self):
        tiles = Tiling(2, (0, 2), (0, 2), (0, 3, 4), (0, 4))
        # two columns of two pixels: the cell 0..3 has 2 pixels of the first and 1 of the second
        grid = np.array([[0.0, 3.0], [6.0, 9.0]])
        assert tiles.resampled(grid).tolist() == [[pytest.approx((3 * 2 + 6 * 1) / 3), 6.0]]

    def test_their_sides_lie_in_the_model_s_range(self):
        assert tile_sides(PixelLimits(32, 96**2, 512**2)) == [192, 256, 384, 512]
        assert tile_sides(PixelLimits(28, 56**2, 12845056))[0] == 196  # 7 · 28, the first from 192 on
        assert tile_sides(PixelLimits(32, 256**2, None))[0] == 256
        assert tile_sides(PixelLimits(32, 32**2, 128**2)) == []


class TestDamage:
    TILES = tiling(512, 512, [192], 160)

    def test_boxes_do_not_overlap_and_come_worst_first(self):
        cells = np.full((5, 5), 4.0)
        cells[:2, :2], cells[3:, 3:] = 3.0, 2.0
        boxes = damaged_boxes(self.TILES, cells)
        # cells of 512 / 5 pixels: two of them make a window of about a tile, 192
        assert [box.box for box in boxes] == [(307, 307, 512, 512), (0, 0, 205, 205)]
        assert [(box.q, box.below) for box in boxes] == [(2.0, 2.0), (3.0, 1.0)]

    @pytest.mark.parametrize(
        ("box", "place"),
        [
            ((0, 0, 100, 100), "top left"),  # its centre is (50, 50); a third of 600 is 200
            ((250, 0, 350, 100), "top"),
            ((250, 250, 350, 350), "middle"),
            ((0, 250, 100, 350), "left"),
            ((500, 500, 600, 600), "bottom right"),
        ],
    )
    def test_their_place_is_told_in_words(self, box, place):
        assert place_in(box, 600, 600) == place

    def test_a_picture_that_is_alike_everywhere_has_none(self):
        cells = np.full((5, 5), 1.5) + np.random.default_rng(0).uniform(-0.1, 0.1, (5, 5))
        assert damaged_boxes(self.TILES, cells) == []

    def test_what_was_not_read_is_no_damage(self):
        cells = np.full((5, 5), 4.0)
        cells[0, 0], cells[4, 4] = np.nan, 2.0
        assert damaged_boxes(self.TILES, cells)[0].box == (307, 307, 512, 512)


class TestMap:
    def test_finds_the_damaged_quarter(self, mapped):
        q_map = mapped[0].map
        left, top, right, bottom = q_map.worst[0].box
        assert (left + right) / 2 > 256
        assert (top + bottom) / 2 > 256
        assert q_map.worst[0].distortion == "Noise"
        assert sum(q_map.worst[0].distortions.values()) == pytest.approx(1)
        assert set(q_map.worst[0].distortions) == set(DISTORTION_TYPES)
        assert q_map.worst[0].probability == max(q_map.worst[0].distortions.values())
        cells = np.array(q_map.q)
        assert cells[3:, 3:].mean() < cells[:2, :2].mean() - 0.5

    def test_every_call_of_the_model_is_seen_and_counted(self, mapped, damaged, services):
        row, watching = mapped
        plain = assess(damaged, pipeline="letters", services=services)
        boxes = len(row.map.worst)
        assert row.tokens.calls == plain.tokens.calls + 25 + 2 * boxes  # a distortion and its severity
        assert row.map.cost.tokens == row.tokens.prefilled - plain.tokens.prefilled
        # the picture is opened and read; one batch of 25 tiles; of each box a distortion and its severity
        assert watching.calls.count(MODEL) == 2 + 1 + 2 * boxes
        assert watching.pixels.count((192, 192)) == 25
        assert "LocalNR" in watching.calls
        assert row.q == pytest.approx(plain.q)  # a map leaves the rating alone

    def test_q_is_the_weighted_mean_of_letters_and_tool(self, mapped):
        q_map = mapped[0].map
        w = q_map.tool_weight
        assert 0 < w < 1
        expected = (1 - w) * np.array(q_map.letters) + w * np.array(q_map.tool)
        assert np.array(q_map.q) == pytest.approx(expected)
        assert q_map.median == pytest.approx(np.median(expected))

    def test_its_row_goes_through_json(self, mapped):
        row = mapped[0]
        assert type(row).model_validate_json(row.model_dump_json()).map == row.map

    def test_is_drawn(self, mapped):
        with Image.open(mapped[0].map.png) as drawn:
            drawn.load()
            assert drawn.format == "PNG"
            pixels = np.asarray(drawn.convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 500  # a photograph and colours, not a blank sheet

    def test_the_bias_of_another_model_is_not_corrected(self, mapped, damaged, services, monkeypatch):
        monkeypatch.setattr(bias, "_measured", lambda: {"model": "0" * 64, "name": "elsewhere", "tiles": {}})
        other = assess(damaged, pipeline="letters", map=True, services=services).map
        assert other.bias is None
        assert any("another model, elsewhere" in note for note in other.notes)

    def test_a_measured_bias_is_subtracted(self, mapped, damaged, services, monkeypatch):
        folder = services.settings.folder(services.section("summarizer").backend)
        entry = {"levels": 0.25, "low": 0.2, "high": 0.3, "photographs": 9}
        measured = {
            "model": bias.folder_hash(folder),
            "name": "this",
            "source": "here",
            "tiles": {"192": entry},
        }
        monkeypatch.setattr(bias, "_measured", lambda: measured | {"tiles": {"192": entry | {"levels": 0.0}}})
        plain = assess(damaged, pipeline="letters", map=True, services=services).map
        monkeypatch.setattr(bias, "_measured", lambda: measured)
        shifted = assess(damaged, pipeline="letters", map=True, services=services).map
        assert shifted.bias.levels == 0.25
        assert shifted.bias.tile == 192
        difference = np.array(plain.letters) - np.array(shifted.letters)
        assert difference == pytest.approx(0.25)  # no tile here is within 0.25 of Bad, where it would be cut

    def test_stops_when_the_time_is_up_and_says_so(self, damaged, services, monkeypatch):
        monkeypatch.setattr(reading, "AT_ONCE", 9)
        q_map = assess(damaged, pipeline="letters", map=MapRequest(seconds=1e-9), services=services).map
        assert (q_map.cost.tiles, q_map.cost.read) == (25, 9)
        assert q_map.cost.stopped == "the time was up after 9 of 25 tiles"
        assert all(q is not None for row in q_map.q for q in row)  # every other tile covers all of it

    def test_the_agent_takes_the_worst_part_as_evidence_and_rates_as_without(self, damaged, services):
        watching = Watching()
        row = assess(damaged, map=True, services=services, max_replan_iterations=4, observer=watching)
        plain = assess(damaged, services=services, max_replan_iterations=4)
        assert row.error is None
        assert row.map.cost.read == 25
        worst = row.evidence.worst_part
        assert worst == row.map.worst[0]
        assert worst.place == "bottom right"
        assert worst.severity == max(worst.severities, key=worst.severities.get)
        assert sum(worst.severities.values()) == pytest.approx(1)
        assert watching.steps.count("map started") == 1  # however many passes
        assert (
            "the worst part of the picture is at the bottom right"
            in from_evidence(row.evidence, "Fair").lower()
        )
        assert (row.q, row.p_c, row.q_bar) == (plain.q, plain.p_c, plain.q_bar)
        assert plain.evidence.worst_part is None

    def test_a_question_is_told_of_the_worst_part(self, damaged, services):
        asked = {"choices": ["bottom right", "top left"], "query": "Where is the noise?"}
        row = assess(damaged, map=True, services=services, **asked)
        assert "bottom right, pixels" in summarizer_prompt("?", row.evidence, scoring=False).case
        assert "pixels" not in summarizer_prompt("?", row.evidence, scoring=True).case
        assert any("told of a map" in reason for reason in row.answer_set.widened)

    def test_with_a_reference_the_metrics_maps_stand_beside_it(self, damaged, photo, services):
        original = photo.crop((0, 0, 512, 512))
        q_map = assess(damaged, original, pipeline="letters", map=True, services=services).map
        assert set(q_map.similarity) == {"SSIM", "GMSD", "FSIM"}
        for cells in map(np.array, q_map.similarity.values()):
            assert cells.shape == (5, 5)
            assert cells[:2, :2] == pytest.approx(1, abs=1e-3)  # nothing was done there
            assert cells[3:, 3:].max() < 0.97


class TestNoMap:
    def test_a_picture_too_small_keeps_its_rating(self, photo, services):
        row = assess(photo.crop((0, 0, 300, 400)), pipeline="letters", map=True, services=services)
        assert row.q is not None
        assert row.error is None
        assert row.map is None
        assert row.no_map.startswith("map: expected a picture of at least 384 pixels a side")
        assert "300×400" in row.no_map

    def test_a_mode_without_logits_has_none(self, photo, services):
        from agentic_iqa_local.services import Services

        other = Services(
            services.settings.with_options(mode="uniform"), "cpu", services.pool.clients, services.tools
        )
        row = assess(photo, pipeline="letters", map=True, services=other)
        assert row.no_map.startswith("map: expected mode logits")
        assert row.q is not None

    def test_a_file_that_cannot_be_written_costs_the_file_alone(self, damaged, services, tmp_path):
        row = assess(damaged, pipeline="letters", map=tmp_path / "none" / "x.png", services=services)
        assert row.map.worst
        assert row.map.png is None
        assert "could not be written" in row.map.not_drawn

    @pytest.mark.parametrize(
        "options", [{"max_tiles": 8}, {"max_tiles": 4097}, {"seconds": 0}, {"seconds": float("nan")}]
    )
    def test_limits_that_allow_no_map_are_refused(self, options):
        with pytest.raises(MapError, match="expected"):
            MapRequest(**options)

    def test_what_is_no_request_is_refused(self, photo, services):
        with pytest.raises(TypeError, match="map: expected True"):
            assess(photo, map=3, services=services)  # pyright: ignore[reportArgumentType]


class TestSimilarityMaps:
    """pyiqa's scores are the pooled maps."""

    @pytest.fixture(scope="class", params=[(512, 384), (301, 403), (700, 640)])
    def pair(self, request, photo):
        reference = photo.resize(request.param)
        noise = np.random.default_rng(0).normal(0, 12, (*request.param[::-1], 3))
        noisy = np.clip(np.asarray(reference) + noise, 0, 255).astype(np.uint8)
        return Image.fromarray(noisy), reference

    def test_pool_to_the_scores(self, pair):
        tools = ToolRunner()
        maps = tools.similarity_maps(*pair)
        assert maps["SSIM"].values.astype(float).mean() == pytest.approx(
            tools.measure("SSIM", *pair), abs=1e-6
        )
        assert maps["GMSD"].values.std(ddof=1) == pytest.approx(tools.measure("GMSD", *pair), abs=1e-6)
        fsim = maps["FSIM"]
        assert np.average(fsim.values, weights=fsim.weights) == pytest.approx(
            tools.measure("FSIM", *pair), abs=1e-5
        )

    def test_ssim_s_is_that_of_another_library(self, pair):
        # the same window and constants; pyiqa's luma is rounded YIQ, with weights of three decimals
        weights = np.array([0.299, 0.587, 0.114])
        grey = [np.rint(np.asarray(picture, float) @ weights) for picture in pair]
        _, theirs = structural_similarity(
            *grey, data_range=255, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, full=True
        )
        ours = ToolRunner().similarity_maps(*pair)["SSIM"].values
        assert np.abs(ours - np.clip(theirs[5:-5, 5:-5], 0, None)).mean() < 5e-3

    def test_of_equal_pictures_are_one(self, photo):
        for found in ToolRunner().similarity_maps(photo, photo).values():
            assert found.values == pytest.approx(1, abs=1e-4)


class TestCommand:
    def test_one_picture_s_map_is_a_file(self, damaged, tmp_path, capfd):
        png, out = tmp_path / "m.png", tmp_path / "rows.jsonl"
        words = [damaged, "--pipeline", "letters", "--map", str(png), "--out", str(out), "--cpu"]
        assert command.main(words) == 0
        row = json.loads(out.read_text())
        assert row["map"]["png"] == str(png)
        assert Image.open(io.BytesIO(png.read_bytes())).format == "PNG"
        assert command.main([*words, "--resume"]) == 0
        assert command.main([damaged, "--pipeline", "letters", "--out", str(out), "--cpu", "--resume"]) == 2
        assert "map" in capfd.readouterr().err  # rows without a map do not go on in a file of rows with one

    def test_a_batch_survives_pictures_without_a_map(self, damaged, photo, tmp_path, capfd):
        photo.crop((0, 0, 200, 200)).save(tmp_path / "small.png")
        (tmp_path / "maps").mkdir()
        small, folder = str(tmp_path / "small.png"), tmp_path / "maps"
        words = [damaged, small, "--pipeline", "letters", "--map", str(folder), "--out"]
        assert command.main([*words, str(tmp_path / "rows.jsonl"), "--cpu"]) == 1
        rows = {Path(row["image"]).name: row for row in map(json.loads, (tmp_path / "rows.jsonl").open())}
        assert rows["small.png"]["q"] is not None
        assert rows["small.png"]["error"] is None
        assert [file.name for file in folder.iterdir()] == ["damaged.map.png"]
        assert "at least 384 pixels" in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("none/m.png", "there is no folder"),
            ("m.jpg", "expected a file named .png"),
            ("a.png", "expected a new file or a drawing that this program wrote"),
        ],
    )
    def test_a_place_for_no_map_is_refused_before_anything_loads(self, tmp_path, photo, place, message):
        photo.crop((0, 0, 64, 64)).save(tmp_path / "a.png")
        args = parse([str(tmp_path / "a.png"), "--map", str(tmp_path / place)], "")
        with pytest.raises(UsageError, match=message):
            map_requests(args, [Item(tmp_path / "a.png", None, "Rate it.", None)])

    def test_several_pictures_need_a_folder_and_keep_their_names_apart(self, tmp_path):
        items = [Item(Path(folder) / "a.png", None, "Rate it.", None) for folder in "xy"]
        args = parse(["x", "y", "--map", str(tmp_path / "m.png")], "")
        with pytest.raises(UsageError, match="maps of 2 pictures"):
            map_requests(args, items)
        args = parse(["x", "y", "--map", str(tmp_path), "--map-tiles", "40"], "")
        requests = list(map_requests(args, items).values())
        assert [request.png.name for request in requests] == ["a.map.png", "a-2.map.png"]
        assert {request.max_tiles for request in requests} == {40}

    @pytest.mark.parametrize("words", [["--map-tiles", "20"], ["--map", "m.png", "--map-tiles", "8"],
                                       ["--map", "m.png", "--map-seconds", "0"], ["--interactive", "--map", "m.png"]])  # fmt: skip
    def test_options_that_make_no_sense_are_refused(self, words, capsys):
        with pytest.raises(SystemExit) as ended:
            parse(["a.png", *words], "")
        assert ended.value.code == 2
        assert "--map" in capsys.readouterr().err
