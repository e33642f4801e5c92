"""The report on a study. Rows are made here in the shape that inference.py stores; figures come from scipy
and `ScoreFusion`."""

import csv
import html.parser
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from scipy import stats

from agentic_iqa_local.config import FusionSettings, ToolSettings
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.score_fusion import ScoreFusion
from agentic_iqa_local.state import LETTERS, ExecutorOutput, PlannerOutput
from agentic_iqa_local.studies.analysis import analyse
from agentic_iqa_local.studies.page import write_html
from agentic_iqa_local.studies.plots import draw
from agentic_iqa_local.studies.readings import Letters
from agentic_iqa_local.studies.report import over_datasets, write_figures, write_tables
from agentic_iqa_local.studies.study import Study, StudyError, dataset_info
from agentic_iqa_local.studies.summary import summarize

TYPES = ("jpeg", "gaussian_blur", "white_noise", "contrast_change")
ROWS = 96
DRAWS = 60
MARKUP = "<script>alert(1)</script><img src=https://example.com/x.png>"


def make_run(key: str = "tid2013", **model) -> dict:
    return {
        "command": ["scripts/study.py", "run"],
        "model": (
            {
                "name": "embedded",
                "device": "cpu",
                "dtype": "float32",
                "notice": "the small embedded model answered",
            }
            | model
        ),
        "fusion": FusionSettings(eta=1.0).model_dump(mode="json"),
        "tools": ToolSettings().model_dump(mode="json"),
        "maps": {
            name: logistic.fitted_on
            for name, logistic in read_map_file(ROOT / "configs" / "tool_maps.yaml")[0].items()
        },
        "dataset": {
            "key": key,
            "root": "data",
            "edition": None,
            "images": ROWS,
            "missing": [],
            "left_out": {},
        },
        "identity": {"reads": {"query": f"Rate it. {MARKUP}"}, "model": "M"},
    }


def make_rows(count: int = ROWS, groups: int = 12, tools: tuple[str, ...] = ("VSI", "PSNR")) -> list[dict]:
    """Scenes × types × levels. One in 17 images failed to open, one in 23 failed in the model, PSNR fails on
    one in 29."""
    rng = np.random.default_rng(7)
    return [make_row(i, rng, groups, tools) for i in range(count)]


def make_row(i: int, rng: np.random.Generator, groups: int, tools: tuple[str, ...]) -> dict:
    group, kind, level = f"I{i % groups:02}", TYPES[i // groups % 4], 1.0 + i % 5
    quality = 5.5 - level + rng.normal(0, 0.6)
    row = {
        "key": f"{kind}/{group}_{i}.png",
        "image": f"data/{kind}/{group}_{i}.png",
        "reference": f"data/{group}.png",
        "mos": float(np.clip(1.8 * quality - 0.9, 0, 9)),
        **{"group": group, "distortion": kind, "level": level, "split": None, "subset": None},
    }
    if i % 17 == 5:
        return row | {"error": "cannot be decoded"}
    failed = i % 23 == 7
    views = 2 if i % 10 == 0 else 1
    reads = {
        read: {"views": [make_view(quality + rng.normal(0, spread), rng) for _ in range(views)]}
        for read, spread in (("all_evidence", 0.5), ("without_scores", 0.8), ("image_alone", 1.1))
    }
    scores = {tool: float(np.clip(quality + rng.normal(0, 0.4), 1, 5)) for tool in tools}
    logs = [
        {
            "tool_name": tool,
            "object_name": "Global",
            "distortion": "Noise",
            "raw_score": score / 5,
            "normalized_score": score,
        }
        for tool, score in list(scores.items())[:1]
    ]
    evidence = {
        "distortion_set": {"Global": ["Noise"]},
        "distortion_analysis": {
            "Global": [{"type": "Noise", "severity": "severe", "explanation": f"Grain | {MARKUP}"}]
        },
        "selected_tools": {"Global": {"Noise": tools[0]}},
        "quality_scores": {"Global": {"Noise": [tools[0], scores[tools[0]]]}},
        "tool_logs": logs,
    }
    flags = dict.fromkeys(
        ("distortion_detection", "distortion_analysis", "tool_selection", "tool_execution"), True
    )
    plan = {
        "query_type": "IQA",
        "query_scope": "Global",
        "distortion_source": "Inferred",
        "reference_mode": "Full-Reference",
    }
    plan["plan"] = flags
    cost = {
        part: {"seconds": float(rng.gamma(4, 0.1)), "prefilled": 900, "reused": 400, "decoded": 60}
        for part in reads
    }
    cost |= {f"{part}, {read}": cost[part] for part in reads for read in ("generated", "reversed")}
    row |= {
        "cost": cost | {"agent": {"seconds": 1.0, "prefilled": 2000, "reused": 1000, "decoded": 200}},
        "plan": PlannerOutput(**plan).model_dump(mode="json"),
        "plan_corrections": ["reference_mode"],
        "replan_history": [],
        "evidence": ExecutorOutput(**evidence).model_dump(mode="json"),
        "agent": {
            "final_answer": "C",
            "quality_reasoning": f"Fair. {MARKUP}",
            "fusion": {"q": agent_score(reads["all_evidence"]["views"], [scores[tools[0]]])},
        },
        "agent_error": None,
        "reads": reads,
        "tools": {
            tool: {"raw": score / 5, "normalized": score, "seconds": 0.1} for tool, score in scores.items()
        },
        "seen": [{"box": [0, 0, 64, 64], "tokens": 16}] * views,
        "sha256": f"{i:064x}",
        "warnings": [],
    }
    row["cost"]["tools"] = {"seconds": 0.2, "prefilled": 0, "reused": 0, "decoded": 0}
    if i % 29 == 3:
        row["tools"]["PSNR"] = {"error": "PSNR: images differ in size"}
    if failed:
        row |= {"reads": {}, "error": "the model ran out of memory", "agent": None}
        del row["tools"]
    return row


def make_view(quality: float, rng: np.random.Generator) -> dict:
    """Letters peaked at `quality`; 2 % of the probability lies off them."""
    orders = {}
    for order in ("forward", "reversed"):
        logits = np.array([-((5 - j - quality) ** 2) / 1.5 for j in range(5)]) + rng.normal(0, 0.3, 5)
        logprobs = logits - np.log(np.exp(logits).sum()) + np.log(0.98)
        orders[order] = dict(zip(LETTERS, logprobs.tolist(), strict=True))
    return orders | {"off_letters": 0.02, "generated": max(LETTERS, key=orders["forward"].get)}


def letter_probabilities(views: list[dict], order: str = "forward") -> np.ndarray:
    """Of the levels 1..5: e^logprob over its sum (a temperature of 1), the mean over views."""
    p = [np.exp([view[order][letter] for letter in reversed(LETTERS)]) for view in views]
    return np.mean([view / view.sum() for view in p], axis=0)


def agent_score(views: list[dict], scores: list[float]) -> float:
    return ScoreFusion().fuse_scores(scores, dict(enumerate(letter_probabilities(views), 1)))


def analysed(rows: list[dict], run: dict | None = None, **options) -> Study:
    run = run or make_run()
    return analyse(run, rows, dataset_info(run), **{"draws": DRAWS} | options)


def test_the_fusion_is_judged_against_the_part_named_beforehand_and_the_best(rows):
    found = analysed(rows, comparator="PSNR").tables["parts"]
    assert [(row["first"], row["second"], row["why"]) for row in found[:1]] == [
        ("logits", "PSNR", "named beforehand")
    ]
    assert found[1]["why"] == "best in hindsight"
    modes = {row["mode"]: row["srcc"] for row in analysed(rows).tables["modes"]}
    parts = [
        name
        for name in modes
        if name in ("VSI", "PSNR", "tool mean") or name.startswith(("letters,", "mean of"))
    ]
    assert found[1]["second"] == max(parts, key=modes.get)
    with pytest.raises(StudyError, match="comparator"):
        analysed(rows, comparator="FSIM")


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return make_rows()


@pytest.fixture(scope="module")
def few_modes(rows) -> list[dict]:
    """The same rows from a run that read the letters in one context: half of the modes."""
    read = [row.get("reads", {}) for row in rows]
    return [
        row | ({"reads": {"all_evidence": reads["all_evidence"]}} if reads else {})
        for row, reads in zip(rows, read, strict=True)
    ]


@pytest.fixture(scope="module")
def study(rows) -> Study:
    return analysed(rows, name="tid")


@pytest.fixture(scope="module")
def drawings(study):
    return draw(study)


@pytest.fixture(scope="module")
def page(study, drawings, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_html([(study, drawings)], file, pictures=False)
    return file


def table(folder, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def one(rows: list[dict], **wanted) -> dict:
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found


# Figures


def expected_scores(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """(score, MOS) of the images that a mode answered, without the code under test."""
    read = [row for row in rows if row.get("reads")]
    tools = [row for row in rows if "raw" in row.get("tools", {}).get("PSNR", {})]
    return {
        "logits": [(row["agent"]["fusion"]["q"], row["mos"]) for row in read],
        "letters, image alone": [
            (letter_probabilities(row["reads"]["image_alone"]["views"]) @ np.arange(1, 6), row["mos"])
            for row in read
        ],
        "PSNR": [(row["tools"]["PSNR"]["raw"], row["mos"]) for row in tools],
    }


def test_modes_csv_holds_scipys_figures_and_counts_failures(rows, study, tmp_path):
    write_tables(study, tmp_path)
    modes = table(tmp_path, "modes")
    assert modes[0]["mode"] == study.product == "logits"
    for name, pairs in expected_scores(rows).items():
        found, (scores, mos) = one(modes, mode=name), np.transpose(pairs)
        assert int(found["n"]) == len(pairs)
        assert int(found["failed"]) == ROWS - len(pairs) > 0
        assert float(found["srcc"]) == pytest.approx(stats.spearmanr(scores, mos).statistic, abs=2e-6)
        assert float(found["plcc"]) == pytest.approx(stats.pearsonr(scores, mos).statistic, abs=2e-6)
        assert float(found["krcc"]) == pytest.approx(stats.kendalltau(scores, mos).statistic, abs=2e-6)
        assert float(found["srcc_low"]) < float(found["srcc"]) < float(found["srcc_high"])
        # a line is among the logistic's candidates
        assert float(found["plcc_mapped"]) >= float(found["plcc"]) - 1e-6
        assert found["interval_over"] == "groups"
    # 6 images in 96 could not be opened (5, 22, ... 90), 4 failed in the model (7, 30, 53, 76); PSNR fails at
    # 3, 32, 61. 90 is divisible by neither 23 nor 29 with these rests, so the sets are disjoint.
    assert one(modes, mode="logits")["failed"] == "10"
    assert one(modes, mode="PSNR")["failed"] == "13"


def test_failures_are_listed_with_their_reasons(study):
    assert {(row["part"], row["error"], row["n"]) for row in study.tables["failures"]} == {
        ("image", "cannot be decoded", 6),
        ("image", "the model ran out of memory", 4),
        ("PSNR", "PSNR: images differ in size", 3),
    }


def test_the_products_mode_repeats_the_agents_score(few_modes, study):
    note = next(note for note in study.notes if "largest difference" in note)
    assert "on 86 rows" in note
    assert "do not trust" not in note
    wrong = [json.loads(json.dumps(row)) for row in few_modes]
    wrong[0]["agent"]["fusion"]["q"] += 0.01
    assert any("do not trust" in note for note in analysed(wrong).notes)


def test_differences_are_on_images_that_both_answered(rows, study):
    differences = study.tables["differences"]
    assert (differences[0]["first"], differences[0]["second"]) == ("logits", "classification")
    assert {row["second"] for row in differences} == {"classification"}
    assert len(differences) == len(study.modes) - 1
    both = [row for row in rows if row.get("reads") and "raw" in row["tools"]["PSNR"]]
    mos = [row["mos"] for row in both]
    # p_c of a written letter is 0.8 for it and 0.05 for each other, the mean over views.
    one_hot = [
        np.mean(
            [
                [0.8 if letter == view["generated"] else 0.05 for letter in reversed(LETTERS)]
                for view in views
            ],
            axis=0,
        )
        for views in (row["reads"]["all_evidence"]["views"] for row in both)
    ]
    classified = [
        ScoreFusion().fuse_scores([row["tools"]["VSI"]["normalized"]], dict(enumerate(p, 1)))
        for row, p in zip(both, one_hot, strict=True)
    ]
    psnr = stats.spearmanr([row["tools"]["PSNR"]["raw"] for row in both], mos).statistic
    found = one(differences, first="PSNR")
    assert found["srcc_difference"] == pytest.approx(
        psnr - stats.spearmanr(classified, mos).statistic, abs=1e-9
    )
    assert (found["n"], found["failed"]) == (len(both), ROWS - len(both))
    assert all(row["p_holm"] >= row["p"] for row in differences)
    assert any("cannot decide" in note for note in study.notes)  # 60 draws, some twenty comparisons


def test_lower_is_better_scores_are_turned_around(few_modes):
    def figures(**told):
        run = make_run()
        run["dataset"] |= told
        return one(analysed(few_modes, run, draws=10).tables["modes"], mode="VSI")

    up, down = figures(), figures(higher_is_better=False)
    read = [row for row in few_modes if row.get("tools")]
    expected = stats.spearmanr(
        [row["tools"]["VSI"]["raw"] for row in read], [-row["mos"] for row in read]
    ).statistic
    assert down["srcc"] == pytest.approx(expected) == pytest.approx(-up["srcc"])
    assert down["rmse_mapped"] == pytest.approx(up["rmse_mapped"], rel=0.05)


def test_scores_that_look_like_dmos_are_remarked_on(few_modes):
    run = make_run("manifest")
    run["dataset"] |= {"higher_is_better": True}
    turned = [row | {"mos": -row["mos"]} for row in few_modes]
    said = [summarize(analysed(rows, run, draws=10))[0].text for rows in (few_modes, turned)]
    assert ["lower scores seem to be better" in text for text in said] == [False, True]


def test_figures_within_types_levels_and_subsets(few_modes):
    marked = [row | {"subset": "early" if i < ROWS // 2 else "late"} for i, row in enumerate(few_modes)]
    study = analysed(marked, draws=20)
    for name, table_name, value in (("distortion", "by_distortion", "jpeg"), ("level", "by_level", 2.0)):
        inside = [row for row in few_modes if row[name] == value]
        read = [row for row in inside if row.get("tools")]
        found = one(study.tables[table_name], mode="VSI", **{name: value})
        scores, mos = [row["tools"]["VSI"]["raw"] for row in read], [row["mos"] for row in read]
        assert found["srcc"] == pytest.approx(stats.spearmanr(scores, mos).statistic)
        assert found["mean_mos"] == pytest.approx(np.mean(mos))
        assert (found["n"], found["failed"]) == (len(read), len(inside) - len(read))
    subsets = [one(study.tables["by_subset"], mode="logits", subset=name) for name in ("early", "late")]
    together = one(study.tables["by_subset"], mode="logits", subset="within subsets")
    weighed = sum(row["n"] * row["srcc"] for row in subsets) / sum(row["n"] for row in subsets)
    assert together["srcc"] == pytest.approx(weighed)
    assert together["srcc_low"] < weighed < together["srcc_high"]


def test_calibration_is_on_the_scale_or_through_a_map_fitted_elsewhere(few_modes, study):
    on_levels = [row | {"mos": 1.0 + i % 5} for i, row in enumerate(make_rows(60))]
    # the written letter is the level (5 is A), so one-hot letters are right and certain
    for row in on_levels:
        for read in row.get("reads", {}).values():
            read["views"] = [view | {"generated": LETTERS[5 - int(row["mos"])]} for view in read["views"]]
    found = one(
        analysed(on_levels, make_run("kadid10k"), draws=10).tables["calibration"],
        letters="classification, one-hot",
    )
    assert (found["ece"], found["rps"], found["accuracy"]) == (0, 0, 1)
    assert found["levels_from"] == "the scale, linearly"
    fitted = study.tables["calibration"][0]  # TID2013's scale is of paired comparisons
    assert fitted["levels_from"] == "monotone map fitted on half of the groups, judged on the others"
    assert fitted["n"] + fitted["failed"] < ROWS
    split = [row | {"split": "train" if i % 3 else "test"} for i, row in enumerate(few_modes)]
    judged = analysed(split, draws=10).tables["calibration"][0]
    assert judged["n"] == sum(row["split"] == "test" and bool(row.get("reads")) for row in split)


def test_risk_coverage_starts_from_the_mean_rank_error(rows, study):
    scores, mos = np.transpose(expected_scores(rows)["logits"])
    error = np.abs(stats.rankdata(scores) - stats.rankdata(mos)) / len(mos)
    for signal in ("entropy", "VLM–tool disagreement"):
        assert one(study.tables["risk_coverage"], mode="logits", signal=signal)["risk_100"] == pytest.approx(
            error.mean()
        )


def test_cost_adds_up_the_parts_that_a_mode_needs(rows, study):
    read = [row for row in rows if row.get("reads")]
    found = one(study.tables["cost"], mode="logits")
    assert found["mean_seconds"] == pytest.approx(
        np.mean([1 + row["cost"]["all_evidence"]["seconds"] for row in read]), rel=0.05
    )
    assert found["decoded_tokens"] == pytest.approx(260)
    assert one(study.tables["cost"], mode="VSI")["mean_seconds"] == pytest.approx(0.1)
    assert one(study.tables["cost"], mode="VSI")["asks_the_model"] == "no"


def test_worst_images_are_those_ranked_the_furthest_off(rows, study):
    read = [row for row in rows if row.get("reads")]
    q, mos = np.transpose(expected_scores(rows)["logits"])
    errors = (stats.rankdata(q) - stats.rankdata(mos)) / len(mos)
    assert len(study.worst) == 10
    worst = read[int(np.argmax(np.abs(errors)))]
    assert study.worst[0]["row"]["key"] == worst["key"]
    assert study.worst[0]["written"] == ", ".join(
        view["generated"] for view in worst["reads"]["all_evidence"]["views"]
    )
    assert [p for *_, p in study.worst[0]["letters"]] == pytest.approx(
        letter_probabilities(worst["reads"]["all_evidence"]["views"])[::-1]
    )
    assert abs(study.worst[9]["error"]) == pytest.approx(np.sort(np.abs(errors))[-10])


def test_fewer_than_ten_groups_are_labelled():
    study = analysed(make_rows(groups=3), draws=20)
    assert {row["interval_over"] for row in study.tables["modes"]} == {
        "distortion types, within these scenes"
    }
    assert any("fewer than ten groups" in note for note in study.notes)


def test_a_fitted_mode_is_added(few_modes):
    study = analysed(few_modes, fitted=Letters(temperature=2.0, source="a fit"), draws=10)
    assert "logits, fitted" in study.modes
    assert any("temperature 2" in note and "a fit" in note for note in study.notes)


# What was seen


def test_what_has_seen_the_set_is_marked_and_left_out_of_means():
    rows = make_rows(tools=("VSI", "TOPIQ_FR", "PSNR"))  # TOPIQ_FR was trained on KADID-10k
    unknown = {"name": "Qwen2.5-VL-7B-Instruct", "notice": None}
    tid, kadid = (
        analysed(rows, make_run(key, **unknown), name=key, draws=10) for key in ("tid2013", "kadid10k")
    )
    marks = {row["mode"]: row["seen"] for row in kadid.tables["modes"]}
    assert marks["TOPIQ_FR"] == "seen"
    assert marks["PSNR"] == ""
    assert marks["letters, image alone"] == "?"
    row = one(over_datasets([tid, kadid]), mode="TOPIQ_FR")
    assert row["KADID-10k_mark"] == "seen"
    assert (row["mean_of_clean"], row["clean_data_sets"]) == (row["TID2013"], 1)
    row = one(over_datasets([tid, kadid]), mode="PSNR")
    assert row["mean_of_clean"] == pytest.approx((row["TID2013"] + row["KADID-10k"]) / 2)
    assert one(over_datasets([tid, kadid]), mode="letters, image alone")["clean_data_sets"] == 0
    told = one(kadid.tables["exposures"], mode="TOPIQ_FR")
    assert (told["what"], told["how"], told["clean"]) == ("tool TOPIQ_FR", "trained on it", "no")


# Files


def test_the_same_seed_gives_the_same_bytes(few_modes, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_tables(analysed(few_modes, draws=20, seed=seed), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {
        "modes.csv",
        "modes.md",
        "differences.csv",
        "by_distortion.csv",
        "risk_coverage.csv",
        "cost.csv",
    } <= set(files)
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "modes.csv").read_bytes() != (tmp_path / "c" / "modes.csv").read_bytes()


def test_markdown_escapes_markup(few_modes, tmp_path):
    """CommonMark takes a punctuation mark behind a backslash for itself."""
    markup = "*b* _e_ [t](u) `c` ~s~"
    write_tables(
        analysed([row | {"distortion": f"a|b {MARKUP} {markup}"} for row in few_modes], draws=10), tmp_path
    )
    text = (tmp_path / "by_distortion.md").read_text(encoding="utf-8")
    assert "a\\|b &lt;script&gt;" in text
    assert "<script" not in text
    for live in markup.split():
        assert live not in text
    assert markup in text.replace("\\", "")


def test_every_figure_is_a_picture_and_a_drawing(drawings, tmp_path):
    write_figures(drawings, tmp_path)
    names = {"scatter", "differences", "letters", "reliability", "by_distortion", "by_level", "risk_coverage"}
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }
    for name in names:
        with Image.open(tmp_path / f"{name}.png") as image:
            assert min(image.size) > 100


class Page(html.parser.HTMLParser):
    """Tags and every attribute's value."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.values: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.values += [(tag, name, value or "") for name, value in attrs]


def test_untrusted_text_is_escaped_in_the_page(page):
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text  # of the query, the evidence and the reasoning
    assert Page(text).tags.count("script") == 1  # the page's own


def test_the_page_refers_to_nothing_outside(page):
    text = page.read_text(encoding="utf-8")
    for tag, name, value in Page(text).values:
        if name in ("src", "href", "srcset", "data", "action", "poster", "background"):
            assert value.startswith("data:"), (tag, name, value)
        assert not name.startswith("on")
        assert "url(" not in value
    style = re.search(r"<style>(.*)</style>", text, re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "unsafe" not in text


def test_pictures_are_in_the_page_only_when_asked_for(rows, study, page, tmp_path):
    image = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 640, 3), dtype=np.uint8)).save(image)
    shown = replace(
        study, worst=[item | {"row": item["row"] | {"image": str(image)}} for item in study.worst]
    )
    for pictures, count in ((True, 10), (False, 0)):
        write_html([(shown, [])], tmp_path / "page.html", pictures=pictures)
        sources = [
            value
            for tag, name, value in Page((tmp_path / "page.html").read_text("utf-8")).values
            if (tag, name) == ("img", "src")
        ]
        assert (
            len([source for source in sources if source.startswith("data:image/jpeg;base64,")])
            == len(sources)
            == count
        )
    # of the study itself no picture lies there
    write_html([(study, [])], tmp_path / "page.html", pictures=True)
    assert "cannot be read any more" in (tmp_path / "page.html").read_text("utf-8")


# The command


def store(folder, run: dict, rows: list[dict]):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def command(*args) -> subprocess.CompletedProcess:
    line = [sys.executable, str(ROOT / "scripts" / "study.py"), *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)


def test_command_reports_on_several_runs(few_modes, tmp_path):
    few = few_modes[:60]
    runs = [store(tmp_path / key, make_run(key), few) for key in ("tid2013", "kadid10k")]
    done = command("report", *runs, "--out", tmp_path / "out", "--draws", 10)
    assert done.returncode == 0, done.stderr
    assert "TID2013" in done.stdout
    assert str(tmp_path / "out" / "report.html") in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html",
        "datasets.csv",
        "datasets.md",
        "tid2013",
        "kadid10k",
    }
    assert (tmp_path / "out" / "kadid10k" / "modes.csv").exists()
    assert "<summary>Over the data sets<" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_run_of_the_image_alone_needs_no_baseline_by_hand(rows):
    alone = [
        row | {"reads": {name: read for name, read in row.get("reads", {}).items() if name == "image_alone"}}
        for row in rows
    ]
    run = make_run()
    study = analyse(run, alone, dataset_info(run), draws=10)
    assert (study.product, study.baseline) == ("logits, image alone", "classification, image alone")


def test_command_refuses_bad_input_with_one_sentence(few_modes, tmp_path):
    run = store(tmp_path / "run", make_run(), few_modes[:20])
    for args in (
        [tmp_path / "absent"],
        [run, "--baseline", "nonsense"],
        [run, "--comparator", "tool meen"],
        [run, "--draws", 0],
        [run, "--fit", run / "rows.jsonl"],
    ):
        done = command("report", *args, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    listed = command("report", run, "--baseline", "nonsense", "--out", tmp_path / "out").stderr
    assert (
        'logits, "logits, both orders", "unnormalised sum", classification, "classification, one-hot",'
        in listed
    )


@pytest.mark.parametrize(
    "arguments", [("report",), ("fit", "--objective", "srcc"), ("synthetic", "--all"), ("compare", "x")]
)
def test_where_results_go_is_checked_before_the_work(tmp_path, arguments):
    """The run and the photographs are not there: a command that looked at them first would say so."""
    (tmp_path / "file").write_text("kept")
    name, *options = arguments
    wanted = {"file/out": "Not a directory", "/proc/out": "No such file or directory"}
    if name == "fit":
        wanted = {
            "file/out": "there is no folder",
            "none/fit.json": "there is no folder",
            ".": "got a folder",
            "/proc/fit.json": "No such file",
        }
    if name == "synthetic":
        wanted["."] = "expected a new folder"
    for out, message in wanted.items():
        done = command(name, tmp_path / "absent", *options, "--out", tmp_path / out)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
        assert "--out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_run_of_two_images_is_reported_on(few_modes, tmp_path):
    run = store(tmp_path / "run", make_run(), few_modes[:2])
    done = command("report", run, "--out", tmp_path / "out", "--draws", 10)
    assert done.returncode == 0, done.stderr
    assert one(table(tmp_path / "out", "modes"), mode="VSI")["n"] == "2"


def test_runs_without_scores_or_direction_are_refused(rows):
    with pytest.raises(StudyError, match="human score"):
        analysed([{"key": "a", "question": "Is it sharp?"}])
    with pytest.raises(StudyError, match="higher_is_better"):
        analysed(rows, make_run("manifest"))
    with pytest.raises(StudyError, match="fusion"):
        dataset_info({"dataset": {}, "model": {}, "tools": {}, "identity": {}})
    with pytest.raises(StudyError, match="data set"):
        dataset_info(make_run("nonsense"))
