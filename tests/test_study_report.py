"""The report on a study. Rows are made here in the shape that inference.py stores; figures come from scipy
and `ScoreFusion`."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy import stats

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import FusionSettings, ToolSettings
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.score_fusion import ScoreFusion
from agentic_iqa_local.state import LETTERS, ExecutorOutput
from agentic_iqa_local.studies.datasets import DATASETS
from agentic_iqa_local.studies.eye_curve import stored_statistics
from agentic_iqa_local.studies.plots import draw
from agentic_iqa_local.studies.report import Analysis, analyse, over_datasets, shown, write_tables
from agentic_iqa_local.studies.store import Run, StudyError

TYPES = ("jpeg", "gaussian_blur", "white_noise", "contrast_change")
ROWS = 96
MARKUP = "<script>alert(1)</script><img src=https://example.com/x.png>"
READS = {"all_evidence": 0.5, "image_alone": 1.1}  # and how far letters are off


def make_run(key: str = "tid2013", **model) -> dict:
    maps = read_map_file(ROOT / "configs" / "tool_maps.yaml")
    told = {"name": "embedded", "device": "cpu", "dtype": "float32", "notice": "small"}
    return {
        "command": ["scripts/study.py", "run"],
        "model": told | model,
        "fusion": FusionSettings(eta=1.0).model_dump(mode="json"),
        "tools": ToolSettings().model_dump(mode="json"),
        "maps": {name: logistic.fitted_on for name, logistic in maps.items()},
        "dataset": DATASETS[key].model_dump() | {"images": ROWS, "missing": [], "left_out": {}},
        "identity": {"reads": {"query": f"Rate it. {MARKUP}"}, "model": "M"},
    }


def make_rows(count: int = ROWS, tools: tuple[str, ...] = ("VSI", "PSNR")) -> list[dict]:
    """Twelve scenes × types × levels. One in 17 images failed to open, one in 23 failed in the model, PSNR fails on
    one in 29."""
    rng = np.random.default_rng(7)
    return [make_row(i, rng, tools) for i in range(count)]


def make_row(i: int, rng: np.random.Generator, tools: tuple[str, ...]) -> dict:
    group, kind, level = f"I{i % 12:02}", TYPES[i // 12 % 4], 1.0 + i % 5
    quality = 5.5 - level + rng.normal(0, 0.6)
    mos = float(np.clip(1.8 * quality - 0.9, 0, 9))
    row = {"key": f"{kind}/{group}_{i}.png", "reference": f"data/{group}.png", "group": group}
    row |= {"distortion": kind, "level": level, "split": None, "mos": mos}
    if i % 17 == 5:
        return row | {"error": "cannot be decoded"}
    tokens = {"prefilled": 2000, "reused": 1000, "decoded": 200}
    row["cost"] = {"agent": {"seconds": rng.gamma(4, 0.1), **tokens}}
    if i % 23 == 7:
        return row | {"error": "the model ran out of memory"}
    row["reads"] = {}
    for read, off in READS.items():
        views = [make_view(quality + rng.normal(0, off), rng) for _ in range(1 + (i % 10 == 0))]
        row["reads"][read] = {"views": views}
    scores = {tool: float(np.clip(quality + rng.normal(0, 0.4), 1, 5)) for tool in tools}
    q = agent_score(row["reads"]["all_evidence"]["views"], scores[tools[0]])
    row |= {"evidence": make_evidence(tools[0], scores[tools[0]]), "agent": {"fusion": {"q": q}}}
    row["tools"] = {tool: {"raw": score / 5, "normalized": score} for tool, score in scores.items()}
    if i % 29 == 3:
        row["tools"]["PSNR"] = {"error": "PSNR: images differ in size"}
    return row | {"sha256": f"{i:064x}"}


def make_evidence(tool: str, score: float) -> dict:
    log = {"tool_name": tool, "object_name": "Global", "distortion": "Noise"}
    return ExecutorOutput(
        tool_logs=[log | {"raw_score": score / 5, "normalized_score": score}]
    ).model_dump(mode="json")


def make_view(quality: float, rng: np.random.Generator) -> dict:
    """Letters peaked at `quality`; 2 % of the probability lies off them."""
    orders = {}
    for order in ("forward", "reversed"):
        logits = [-((5 - j - quality) ** 2) / 1.5 for j in range(5)] + rng.normal(0, 0.3, 5)
        logprobs = logits - np.log(np.exp(logits).sum()) + np.log(0.98)
        orders[order] = dict(zip(LETTERS, logprobs.tolist(), strict=True))
    return orders | {"generated": max(LETTERS, key=orders["forward"].get)}


def letter_probabilities(views: list[dict]) -> np.ndarray:
    """Of the levels 1..5: e^logprob over its sum (a temperature of 1), the mean over views."""
    p = [np.exp([view["forward"][letter] for letter in reversed(LETTERS)]) for view in views]
    return np.mean([view / view.sum() for view in p], axis=0)


def agent_score(views: list[dict], score: float) -> float:
    return ScoreFusion().fuse_scores([score], dict(enumerate(letter_probabilities(views), 1)))


def analysed(rows: list[dict], run: dict | None = None, **options) -> Analysis:
    return analyse(Run.model_validate(run or make_run()), rows, **{"draws": 60} | options)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return make_rows()


@pytest.fixture(scope="module")
def study(rows) -> Analysis:
    return analysed(rows, name=f"tid {MARKUP}")


def table(folder, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def one(rows, **wanted) -> dict:
    rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found


# Figures


def expected_scores(rows: list[dict], mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Score and MOS of the images that a mode answered, without the code under test."""
    found = []
    for row in rows:
        if mode == "PSNR" and "raw" in row.get("tools", {}).get("PSNR", {}):
            found.append((row["tools"]["PSNR"]["raw"], row["mos"]))
        elif mode == "logits" and row.get("reads"):
            found.append((row["agent"]["fusion"]["q"], row["mos"]))
    return tuple(np.transpose(found))


# 6 images in 96 could not be opened (5, 22, ... 90), 4 failed in the model (7, 30, 53, 76); PSNR fails at 3, 32, 61
@pytest.mark.parametrize(("mode", "failed"), [("logits", 10), ("PSNR", 13)])
def test_modes_csv_holds_scipys_figures_of_each_mode(rows, study, tmp_path, mode, failed):
    write_tables(tmp_path, study.tables)
    found = {
        name: value for name, value in one(table(tmp_path, "modes"), mode=mode).items() if value
    }
    scores, mos = expected_scores(rows, mode)
    assert (int(found["n"]), int(found["failed"])) == (ROWS - failed, failed)
    for name, statistic in (
        ("srcc", stats.spearmanr),
        ("plcc", stats.pearsonr),
        ("krcc", stats.kendalltau),
    ):
        assert float(found[name]) == pytest.approx(statistic(scores, mos).statistic, abs=2e-6)
    assert float(found["srcc_low"]) < float(found["srcc"]) < float(found["srcc_high"])
    # a line is among the logistic's candidates
    assert float(found["plcc_mapped"]) >= float(found["plcc"]) - 1e-6


def test_failures_are_counted_by_part_and_reason(study):
    assert set(study.tables["failures"].itertuples(index=False, name=None)) == {
        ("image", "cannot be decoded", 6),
        ("image", "the model ran out of memory", 4),
        ("PSNR", "PSNR: images differ in size", 3),
    }


def test_one_tidy_frame_holds_the_scores_of_all_modes(rows, study):
    scores = study.tables["scores"]
    assert len(scores) == ROWS * len(study.run.modes)
    of = scores[scores["mode"] == "logits"].dropna(subset="score")
    assert of.score.to_numpy() == pytest.approx(expected_scores(rows, "logits")[0])
    srcc = of.groupby("distortion")[["score", "mos"]].corr("spearman").xs("score", level=1).mos
    within = study.tables["within"].query("mode == 'logits' and by == 'distortion'")
    assert within.set_index("value").srcc.to_dict() == pytest.approx(srcc.to_dict())


def test_classification_gives_the_written_letter_its_confidence(rows, study):
    """p_c of a written letter is 0.8 for it and 0.05 for each other, the mean over views."""
    row = rows[0]
    p = np.zeros(5)
    for view in row["reads"]["all_evidence"]["views"]:
        p += [0.8 if letter == view["generated"] else 0.05 for letter in reversed(LETTERS)]
    p /= len(row["reads"]["all_evidence"]["views"])
    score = ScoreFusion().fuse_scores([row["tools"]["VSI"]["normalized"]], dict(enumerate(p, 1)))
    assert study.run.modes["classification"].scores[0] == pytest.approx(score)


def test_differences_are_on_images_that_both_answered(study):
    differences = study.tables["differences"]
    assert list(differences["second"].unique()) == ["classification"]
    assert len(differences) == len(study.run.modes) - 1
    scores = study.tables["scores"].pivot(index="key", columns="mode", values="score")
    both = scores[["PSNR", "classification"]].dropna()
    mos = study.run.pictures.set_index("key").mos[both.index]
    ranks = [stats.spearmanr(both[mode], mos).statistic for mode in both]
    found = one(differences, first="PSNR")
    assert found["srcc_difference"] == pytest.approx(ranks[0] - ranks[1], abs=1e-9)
    assert (found["n"], found["failed"]) == (len(both), ROWS - len(both))


def test_better_is_decided_after_holms_correction(study):
    differences = study.tables["differences"]
    assert (differences.srcc_p_holm >= differences.srcc_p).all()
    winner = differences["first"].where(differences.srcc_difference > 0, "classification")
    expected = winner.where(differences.srcc_p_holm < 0.05, "undecided")
    assert list(differences.better) == list(expected)


def test_letters_are_calibrated_on_a_scale_of_levels_alone(rows, study):
    """The written letter is the level (5 is A), and its 0.8 of the probability right: off by 0.2."""
    on_levels = json.loads(json.dumps(rows[:48]))
    for i, row in enumerate(on_levels):
        row["mos"] = 1.0 + i % 5
        for view in row.get("reads", {}).get("all_evidence", {}).get("views", []):
            view["generated"] = LETTERS[4 - i % 5]
    calibration = analysed(on_levels, make_run("kadid10k"), draws=10).tables["calibration"]
    found = one(calibration, mode="classification")
    assert (found["ece"], found["accuracy"]) == (pytest.approx(0.2), 1)
    assert study.tables["calibration"].empty  # TID2013's scale is of paired comparisons


def test_cost_is_told_by_the_part_of_the_work(rows, study):
    seconds = [row["cost"]["agent"]["seconds"] for row in rows if row.get("cost")]
    found = one(study.tables["cost"], part="agent")
    assert (found["n"], found["decoded_tokens"]) == (len(seconds), 200)
    assert one(shown(study.tables["cost"]), part="agent")["n"] == str(len(seconds))
    assert found["median_seconds"] == pytest.approx(np.median(seconds))
    assert found["p95_seconds"] == pytest.approx(np.quantile(seconds, 0.95))


def test_what_has_seen_the_set_is_marked_and_left_out_of_means():
    rows = make_rows(72, tools=("VSI", "TOPIQ_FR", "PSNR"))  # TOPIQ_FR was trained on KADID-10k
    unknown = {"name": "Qwen2.5-VL-7B-Instruct", "notice": None}
    tid, kadid = (
        analysed(rows, make_run(key, **unknown), name=key, draws=10)
        for key in ("tid2013", "kadid10k")
    )
    marks = kadid.tables["modes"].set_index("mode").seen
    assert list(marks[["TOPIQ_FR", "PSNR", "letters, image alone"]]) == ["seen", "", "?"]
    told = one(kadid.tables["exposures"], mode="TOPIQ_FR")
    assert (told["what"], told["how"]) == ("tool TOPIQ_FR", "trained on it")
    datasets = over_datasets([tid, kadid])
    row = one(datasets, mode="TOPIQ_FR")
    assert np.isnan(row["kadid10k"])
    assert row["mean"] == row["tid2013"]
    row = one(datasets, mode="PSNR")
    assert row["mean"] == pytest.approx((row["tid2013"] + row["kadid10k"]) / 2)


@pytest.mark.parametrize(("tools", "sets"), [(("LocalNR",), "kadid10k, clive"), (("PSNR",), None)])
def test_a_manifest_of_an_unknown_set_is_told_what_may_have_been_seen(tools, sets):
    """LocalNR learned from LIVE in the Wild (clive), its targets and the maps from KADID-10k; PSNR from nothing, and
    the map of PSNR is left out."""
    run = make_run("manifest", name="a", notice="small") | {"maps": {}}
    run["model"]["notice"] = None
    notes = " ".join(analysed(make_rows(24, tools=tools), run, draws=10).notes)
    assert (f"learned from data sets or were fitted to them: {sets}." in notes) == bool(sets)
    assert ("--part-of" in notes) == bool(sets)


# Files


def test_the_same_rows_give_the_same_files_without_formulas(rows, tmp_path):
    marked = [row | {"distortion": f"=1+1 {MARKUP}"} for row in rows]
    for name in "ab":
        (tmp_path / name).mkdir()
        write_tables(tmp_path / name, analysed(marked, draws=10).tables)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    assert table(tmp_path / "a", "within")[0]["value"].startswith("'=1+1")


# The command


def store(folder, run: dict, rows: list[dict]):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    return folder


def command(capsys, *args) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of study.py with these arguments."""
    try:
        status = main(["study", *map(str, args)])
    except SystemExit as stopped:
        status = stopped.code
    return status, *capsys.readouterr()


def test_command_reports_on_several_runs(rows, tmp_path, capsys):
    runs = [store(tmp_path / key, make_run(key), rows[:48]) for key in ("tid2013", "kadid10k")]
    same = "Intervals are 95 %: 10 bootstrap draws of 12 groups."
    out = tmp_path / "out"
    status, said, errors = command(capsys, "report", *runs, "--out", out, "--draws", 10)
    assert status == 0, errors
    assert str(out / "report.html") in said
    assert said.count(same) == 1
    assert said.count("The agent's own mode is “logits” (fusion.mode); every mode is") == 1
    assert {path.name for path in out.iterdir()} == {
        "report.html", "report.txt", "datasets.csv", "tid2013", "kadid10k",
    }  # fmt: skip
    for name in ("scatter", "differences", "by_distortion"):
        assert (out / "kadid10k" / f"{name}.svg").is_file()
    assert "<summary>Over the runs<" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["absent"], "absent"),
        (["forged"], "run.json: dataset"),
        (["run", "--baseline", "nonsense"], "expected a mode of logits, classification,"),
        (["run", "--fit", "run/rows.jsonl"], "expected a fit"),
    ],
)
def test_bad_input_of_a_report_is_one_sentence(
    rows, tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "run", make_run(), rows[:20])
    store(tmp_path / "forged", make_run() | {"dataset": {"key": []}}, rows[:20])
    status, _, said = command(capsys, "report", *options, "--out", "out")
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said
    assert not (tmp_path / "out").exists()


def test_a_run_without_human_scores_is_refused():
    with pytest.raises(StudyError, match="human score"):
        analysed([{"key": "a", "question": "Is it sharp?"}])


def test_the_curve_of_an_eye_is_above_q_where_statistics_tell_more():
    """One statistic is the human score itself, which no tool and no letter knows as well."""
    rows = make_rows(tools=("LocalNR", "PSNR"))
    for number, row in enumerate(rows):
        noise = np.random.default_rng(number).normal(size=20)
        row |= {"group": None, "statistics": stored_statistics(np.array([row["mos"], *noise]))}
    analysis = analyse(Run.model_validate(make_run()), rows, draws=50)
    curve = analysis.tables["eye"]
    assert curve["ratings"].tolist() == [20, 50]
    assert curve["srcc"].iloc[-1] > curve["srcc_without"].iloc[-1]
    assert "eye" in draw(analysis.run, analysis.tables)
    assert "eye" not in draw(analysis.run, analysis.tables | {"eye": curve[:1]})
