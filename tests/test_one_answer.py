"""One row has one answer, with the same probabilities and the same reason, wherever it is shown."""

import json
import re
from pathlib import Path

import pytest
from browser import needs_chromium
from one_row import CHOICE, FAILED, RATING, SCALE, UNSURE, WORDS, data, pages, row_of, texts
from PIL import Image

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.output.gallery.rows import read_rows
from agentic_iqa_local.output.picture_lines import picture_line
from agentic_iqa_local.output.report import account
from agentic_iqa_local.result import Assessment

PAGES = Path(__file__).parents[1] / "agentic_iqa_local" / "output" / "pages"
LEVELS = ["Excellent", "Good", "Fair", "Poor", "Bad"]


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (192, 192), (90, 120, 40)).save(tmp_path / "a.png")
    return tmp_path


def share(surface: str, label: str, p: float) -> str:
    """A probability as a surface writes it."""
    in_page = surface in ("service", "gallery")
    return f"{label} {round(100 * p)} %" if in_page else f"{100 * p:.1f} % {label}"


@needs_chromium
def test_a_choice_is_the_same_everywhere(folder):
    """The letters alone prefer another answer than their product with the measurement: the product counts."""
    row = row_of(str(folder / "a.png"), **CHOICE)
    shown = texts(row) | pages([row], folder)[0]
    for surface, text in shown.items():
        assert "compression" in text, surface
        assert re.search(r"0\.64|64 ?%|64\.0%", text), surface
        assert not re.search(r"0\.26|26 ?%|31 ?%|0\.31", text), surface
        if surface != "mcp":
            assert row.quality_reasoning in text, surface
    for surface in ("explain", "chat", "service", "gallery"):
        for letter, label in zip("ABCD", row.choices, strict=True):
            told = share(surface, f"{letter}. {label}", row.fusion.product[letter])
            assert told in shown[surface], surface
        said = "With 90 ?% probability the right answer is compression or none"
        assert re.search(said, shown[surface]), surface
        assert row.fusion.measurement in shown[surface], surface
    fields = data(row)
    for surface in ("chat", "mcp"):
        told = Assessment.model_validate(fields[surface])
        assert (told.letter, told.p) == (row.letter, row.p), surface
    assert [float(fields["csv"][f"p_{letter}"]) for letter in "ABCD"] == [
        *row.fusion.product.values()
    ]
    assert (fields["csv"]["answer"], fields["csv"]["reasoning"]) == (
        "compression",
        row.quality_reasoning,
    )


@needs_chromium
def test_a_rating_is_the_same_everywhere(folder):
    row = row_of(str(folder / "a.png"), **RATING)
    shown = texts(row) | pages([row], folder)[0]
    for surface, text in shown.items():
        assert {"2.31", "Poor"} <= {*re.findall(r"[\d.]+\d|\w+", text)}, surface
        assert "fail" in text.lower(), surface
    for surface in ("explain", "chat", "service", "gallery"):
        text = shown[surface]
        told = [
            "between 1.6 and 3.1", "learnt from a set", "evere compression", "light underexposure",
            row.quality_reasoning, "top left", "1.23 of 5, 1.11 below the rest (extreme compression)",
            "a thing to know", "LocalNR", f"({SCALE})",
        ]  # fmt: skip
        assert [part for part in told if part not in text] == [], surface
        for letter, word in zip("ABCDE", LEVELS, strict=True):
            assert share(surface, f"{letter} {word}", row.fusion.p_c[letter]) in text, surface
        assert re.search(r"\b3\.(2|3|25) s", text), surface
    line = data(row)["csv"]
    assert (line["level"], line["gate"], line["q_low"]) == ("Poor", "fail", "1.62")
    assert line["LocalNR scale"] == SCALE


def test_the_account_tells_each_damage_once():
    told = "Severe compression: Blocks show in the sky. The quality is poor."
    shown = account(row_of("a.png", **RATING | {"quality_reasoning": told}))
    assert shown.count("Blocks show in the sky") == 1
    assert shown.count("Shadows are closed") == 1


def test_an_interval_of_the_whole_scale_is_told_as_knowing_nothing():
    whole = RATING["interval"] | {"low": 1.02, "high": 4.97}
    row = row_of("a.png", **RATING | {"interval": whole})
    for text in (texts(row)["terminal"], texts(row)["explain"], str(picture_line(row, 100))):
        assert re.search("not known to any useful accuracy|90 %: unknown", text)
        assert "between 1.0 and 5.0" not in text


def test_q_without_a_tool_is_told_as_the_models_opinion():
    alone = RATING["fusion"] | {"q_bar": None, "voters": []}
    said = "the model's opinion alone"
    for fusion, told in ((alone, True), (RATING["fusion"], False)):
        row = row_of("a.png", **RATING | {"fusion": fusion})
        assert (said in texts(row)["terminal"]) is told
        assert (said in str(picture_line(row, 120))) is told


EVERY = {"letters": [*"ABCD"], "coverage": 0.9, "calibrated_on": "a set"}
ONLY_BLUR = {
    "type": "Blurs",
    "severity": "none",
    "explanation": "it is there with probability 0.05",
}
OTHERS = [
    (WORDS, "A fern beside a path."),
    (WORDS | {"final_answer": "D"}, "the model wrote “D” alone"),
    (RATING | {"evidence": {"distortion_analysis": {"Global": [ONLY_BLUR]}}}, "o blur"),
    (RATING | UNSURE, "the interval is 1.52 levels wide, more than 1"),
    (RATING | UNSURE, "the picture is too small for one"),
    (FAILED, "expected a picture, got a text"),
    (RATING | {"interval": None, "no_interval": "no interval: another model"}, "another model"),
    (CHOICE | {"answer_set": None, "no_interval": "no set of answers: why"}, "answers: why"),
    (
        CHOICE | {"answer_set": EVERY},
        "no answer can be ruled out: too many such answers were wrong",
    ),
]


@needs_chromium
def test_what_else_a_row_says_stands_on_each_full_account(folder):
    rows = [row_of(str(folder / "a.png"), **fields) for fields, _ in OTHERS]
    for row, paged, (_, said) in zip(rows, pages(rows, folder), OTHERS, strict=True):
        shown = texts(row) | paged
        for surface in ("explain", "chat", "service", "gallery"):
            assert said in shown[surface], surface


def test_a_row_of_schema_5_is_read(tmp_path):
    """The fields of its reading stand beside the others, and `fusion` has the settings."""
    row = row_of(**RATING, fusion_settings=FusionSettings())
    new = row.to_dict()
    settings = {"fusion": new.pop("fusion_settings")}
    old = new | new.pop("fusion") | settings | {"schema_version": 5}
    (tmp_path / "rows.jsonl").write_text(json.dumps(old) + "\n")
    (read,) = read_rows(tmp_path / "rows.jsonl")
    assert read == row
