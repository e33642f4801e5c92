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
from agentic_iqa_local.studies.report import Analysis, analyse, over_datasets, write_tables
from agentic_iqa_local.studies.store import StudyError

TYPES = ("jpeg", "gaussian_blur", "white_noise", "contrast_change")
ROWS = 96
MARKUP = "<script>alert(1)</script><img src=https://example.com/x.png>"
READS = {
    "all_evidence": 0.5,
    "without_scores": 0.8,
    "image_alone": 1.1,
}  # and how far letters are off
SOURCES = ("forward", "both orders", "generated")
TOKENS = {"prefilled": 900, "reused": 400, "decoded": 60}  # of a read


def make_run(key: str = "tid2013", **model) -> dict:
    maps = read_map_file(ROOT / "configs" / "tool_maps.yaml")[0]
    told = {
        "name": "embedded",
        "device": "cpu",
        "dtype": "float32",
        "notice": "the small model answered",
    }
    return {
        "command": ["scripts/study.py", "run"],
        "model": told | model,
        "fusion": FusionSettings(eta=1.0).model_dump(mode="json"),
        "tools": ToolSettings().model_dump(mode="json"),
        "maps": {name: logistic.fitted_on for name, logistic in maps.items()},
        "dataset": {"key": key, "images": ROWS, "missing": [], "left_out": {}},
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
    row = {
        "key": f"{kind}/{group}_{i}.png",
        "image": f"data/{kind}/{group}_{i}.png",
        "reference": f"data/{group}.png",
    }
    row |= {"group": group, "distortion": kind, "level": level, "split": None, "subset": None}
    row["mos"] = float(np.clip(1.8 * quality - 0.9, 0, 9))
    if i % 17 == 5:
        return row | {"error": "cannot be decoded"}
    reads = {
        read: {
            "views": [
                make_view(quality + rng.normal(0, off), rng) for _ in range(2 if i % 10 == 0 else 1)
            ]
        }
        for read, off in READS.items()
    }
    scores = {tool: float(np.clip(quality + rng.normal(0, 0.4), 1, 5)) for tool in tools}
    fusion = {"q": agent_score(reads["all_evidence"]["views"], [scores[tools[0]]])}
    cost = {
        f"{read}, {source}": {"seconds": rng.gamma(4, 0.1), **TOKENS}
        for read in reads
        for source in SOURCES
    }
    cost |= {tool: {"seconds": 0.1} for tool in tools}
    row |= {
        "cost": cost
        | {"agent": {"seconds": 1.0, "prefilled": 2000, "reused": 1000, "decoded": 200}},
        "evidence": make_evidence(tools[0], scores[tools[0]]).model_dump(mode="json"),
        "agent": {"final_answer": "C", "fusion": fusion},
        "agent_error": None,
        "reads": reads,
        "tools": {tool: {"raw": score / 5, "normalized": score} for tool, score in scores.items()},
        "sha256": f"{i:064x}",
    }
    if i % 29 == 3:
        row["tools"]["PSNR"] = {"error": "PSNR: images differ in size"}
    if i % 23 == 7:
        row |= {
            "reads": {},
            "error": "the model ran out of memory",
            "agent": None,
            "cost": {"agent": row["cost"]["agent"]},
        }
        del row["tools"]
    return row


def make_evidence(tool: str, score: float) -> ExecutorOutput:
    log = {
        "tool_name": tool,
        "object_name": "Global",
        "distortion": "Noise",
        "raw_score": score / 5,
    }
    return ExecutorOutput(
        distortion_set={"Global": ["Noise"]},
        selected_tools={"Global": {"Noise": tool}},
        quality_scores={"Global": {"Noise": [tool, score]}},
        tool_logs=[log | {"normalized_score": score}],
    )


def make_view(quality: float, rng: np.random.Generator) -> dict:
    """Letters peaked at `quality`; 2 % of the probability lies off them."""
    orders = {}
    for order in ("forward", "reversed"):
        logits = np.array([-((5 - j - quality) ** 2) / 1.5 for j in range(5)]) + rng.normal(
            0, 0.3, 5
        )
        logprobs = logits - np.log(np.exp(logits).sum()) + np.log(0.98)
        orders[order] = dict(zip(LETTERS, logprobs.tolist(), strict=True))
    return orders | {"off_letters": 0.02, "generated": max(LETTERS, key=orders["forward"].get)}


def letter_probabilities(views: list[dict], order: str = "forward") -> np.ndarray:
    """Of the levels 1..5: e^logprob over its sum (a temperature of 1), the mean over views."""
    p = [np.exp([view[order][letter] for letter in reversed(LETTERS)]) for view in views]
    return np.mean([view / view.sum() for view in p], axis=0)


def agent_score(views: list[dict], scores: list[float]) -> float:
    return ScoreFusion().fuse_scores(scores, dict(enumerate(letter_probabilities(views), 1)))


def analysed(rows: list[dict], run: dict | None = None, **options) -> Analysis:
    return analyse(run or make_run(), rows, **{"draws": 60} | options)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return make_rows()


@pytest.fixture(scope="module")
def few_modes(rows) -> list[dict]:
    """The same rows from a run that read the letters in one context: half of the modes."""
    return [
        row | {"reads": {k: v for k, v in row.get("reads", {}).items() if k == "all_evidence"}}
        for row in rows
    ]


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


def expected_scores(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """(score, MOS) of the images that a mode answered, without the code under test."""
    read = [row for row in rows if row.get("reads")]
    tools = [row for row in rows if "raw" in row.get("tools", {}).get("PSNR", {})]
    alone = [
        letter_probabilities(row["reads"]["image_alone"]["views"]) @ np.arange(1, 6) for row in read
    ]
    return {
        "logits": [(row["agent"]["fusion"]["q"], row["mos"]) for row in read],
        "letters, image alone": [
            (score, row["mos"]) for score, row in zip(alone, read, strict=True)
        ],
        "PSNR": [(row["tools"]["PSNR"]["raw"], row["mos"]) for row in tools],
    }


def test_modes_csv_holds_scipys_figures_and_counts_failures(rows, study, tmp_path):
    write_tables(tmp_path, study.tables)
    modes = table(tmp_path, "modes")
    assert modes[0]["mode"] == study.run.product == "logits"
    for name, pairs in expected_scores(rows).items():
        found, (scores, mos) = one(modes, mode=name), np.transpose(pairs)
        assert int(found["n"]) == len(pairs)
        assert int(found["failed"]) == ROWS - len(pairs) > 0
        assert float(found["coverage"]) == pytest.approx(len(pairs) / ROWS, abs=1e-6)
        assert float(found["srcc"]) == pytest.approx(
            stats.spearmanr(scores, mos).statistic, abs=2e-6
        )
        assert float(found["plcc"]) == pytest.approx(
            stats.pearsonr(scores, mos).statistic, abs=2e-6
        )
        assert float(found["krcc"]) == pytest.approx(
            stats.kendalltau(scores, mos).statistic, abs=2e-6
        )
        assert float(found["srcc_low"]) < float(found["srcc"]) < float(found["srcc_high"])
        # a line is among the logistic's candidates
        assert float(found["plcc_mapped"]) >= float(found["plcc"]) - 1e-6
    # 6 images in 96 could not be opened (5, 22, ... 90), 4 failed in the model (7, 30, 53, 76); PSNR fails at 3, 32,
    # 61. 90 is divisible by neither 23 nor 29 with these rests, so the sets are disjoint.
    assert (one(modes, mode="logits")["failed"], one(modes, mode="PSNR")["failed"]) == ("10", "13")
    told = {
        (row["part"], row["error"], row["n"]) for row in study.tables["failures"].to_dict("records")
    }
    assert told == {
        ("image", "cannot be decoded", 6),
        ("image", "the model ran out of memory", 4),
        ("PSNR", "PSNR: images differ in size", 3),
    }


def test_differences_are_on_images_that_both_answered(rows, study):
    differences = study.tables["differences"]
    assert list(differences.loc[0, ["first", "second"]]) == ["logits", "classification"]
    assert len(differences) == len(study.run.modes) - 1
    both = [row for row in rows if row.get("reads") and "raw" in row["tools"]["PSNR"]]
    classified = []
    for (
        row
    ) in both:  # p_c of a written letter is 0.8 for it and 0.05 for each other, the mean over views
        written = [view["generated"] for view in row["reads"]["all_evidence"]["views"]]
        p = np.mean(
            [[0.8 if letter == w else 0.05 for letter in reversed(LETTERS)] for w in written],
            axis=0,
        )
        classified.append(
            ScoreFusion().fuse_scores([row["tools"]["VSI"]["normalized"]], dict(enumerate(p, 1)))
        )
    psnr = [row["tools"]["PSNR"]["raw"] for row in both]
    ranks = [
        stats.spearmanr(scores, [row["mos"] for row in both]).statistic
        for scores in (psnr, classified)
    ]
    found = one(differences, first="PSNR")
    assert found["srcc_difference"] == pytest.approx(ranks[0] - ranks[1], abs=1e-9)
    assert (found["n"], found["failed"]) == (len(both), ROWS - len(both))
    assert (differences.p_holm >= differences.p).all()
    decided = differences[differences.p_holm < 0.05]
    assert (
        decided.better == decided["first"].where(decided.srcc_difference > 0, "classification")
    ).all()
    assert set(differences.better[differences.p_holm >= 0.05]) <= {"undecided"}


@pytest.mark.parametrize(("name", "value"), [("distortion", "jpeg"), ("level", 2.0)])
def test_figures_within_types_and_levels(rows, study, name, value):
    inside = [row for row in rows if row[name] == value]
    read = [row for row in inside if row.get("tools")]
    found = one(study.tables[f"by_{name}"], mode="VSI", **{name: value})
    scores, mos = [row["tools"]["VSI"]["raw"] for row in read], [row["mos"] for row in read]
    assert found["srcc"] == pytest.approx(stats.spearmanr(scores, mos).statistic)
    assert (found["n"], found["failed"]) == (len(read), len(inside) - len(read))
    assert (found["mean_score"], found["mean_mos"]) == pytest.approx(
        (np.mean(scores), np.mean(mos))
    )


def test_srcc_within_types_is_averaged_by_images_on_the_same_draws(study):
    for mode in ("logits", "VSI"):
        parts = study.tables["by_distortion"].query("mode == @mode")
        found = one(study.tables["within"], mode=mode, within="distortion")
        assert found["srcc"] == pytest.approx(np.average(parts.srcc, weights=parts.n))
        assert (found["n"], found["parts"]) == (parts.n.sum(), len(TYPES))
    logits, draws = study.run.modes["logits"], []
    for weights in study.run.draws.weights:
        of = []
        for kind in TYPES:
            inside = logits.answered & (study.run.labels.distortion == kind).to_numpy()
            rows = np.repeat(np.flatnonzero(inside), weights[inside])
            of.append(
                (inside.sum(), stats.spearmanr(logits.scores[rows], study.run.mos[rows]).statistic)
            )
        draws.append(np.average([value for _, value in of], weights=[count for count, _ in of]))
    line = one(study.tables["within"], mode="logits", within="distortion")
    assert [line["srcc_low"], line["srcc_high"]] == pytest.approx(np.percentile(draws, [2.5, 97.5]))


def test_calibration_is_on_the_scale_or_through_a_map_fitted_elsewhere(few_modes, study):
    on_levels = []  # the written letter is the level (5 is A), and its 0.8 of the probability right
    for i, row in enumerate(few_modes[:48]):
        reads = {
            name: {"views": [view | {"generated": LETTERS[4 - i % 5]} for view in read["views"]]}
            for name, read in row["reads"].items()
        }
        on_levels.append(row | {"mos": 1.0 + i % 5, "reads": reads})
    found = one(
        analysed(on_levels, make_run("kadid10k"), draws=10).tables["calibration"],
        letters="classification",
    )
    assert (found["ece"], found["accuracy"]) == (pytest.approx(0.2), 1)
    assert found["levels_from"] == "the scale, linearly"
    fitted = study.tables["calibration"].iloc[0]  # TID2013's scale is of paired comparisons
    assert fitted.levels_from == "monotone map fitted on half of the groups, judged on the others"
    split = [row | {"split": "train" if i % 3 else "test"} for i, row in enumerate(few_modes)]
    judged = analysed(split, draws=10).tables["calibration"].iloc[0]
    assert judged.n == sum(row["split"] == "test" and bool(row.get("reads")) for row in split)


def test_probabilities_are_compared_with_the_baselines_on_the_same_draws(few_modes):
    run = analysed(few_modes, make_run("kadid10k"), draws=20)
    table, levels = run.tables["calibration"], run.run.levels[0]
    loss = {}
    for names, p in run.run.letters.items():
        below = np.cumsum(p, axis=1)[:, :-1]
        passed = np.clip(levels[:, None] - np.arange(1, 5), 0, 1)
        loss["; ".join(names)] = np.mean(
            passed * below**2 + (1 - passed) * (1 - below) ** 2, axis=1
        )
    base = one(table, letters="classification")
    assert (base["rps_difference"], base["rps_difference_low"], base["rps_difference_high"]) == (
        0,
        0,
        0,
    )
    line = table[table.letters.str.startswith("logits;")].iloc[0]
    apart = loss[line.letters] - loss["classification"]
    known = np.isfinite(apart)
    draws = [np.average(apart[known], weights=weights[known]) for weights in run.run.draws.weights]
    assert line.rps_difference == pytest.approx(apart[known].mean())
    assert [line.rps_difference_low, line.rps_difference_high] == pytest.approx(
        np.percentile(draws, [2.5, 97.5])
    )


def test_a_mode_costs_the_agent_its_own_reads_and_its_tools(rows, study):
    read = [row["cost"] for row in rows if row.get("reads")]
    for mode, parts in (
        ("logits", ("agent", "all_evidence, forward")),
        ("logits, both orders", ("agent", "all_evidence, both orders")),
        ("classification", ("agent", "all_evidence, generated")),
        ("letters, image alone", ("image_alone, forward",)),
        ("VSI", ("VSI",)),
    ):
        seconds = [sum(cost[part]["seconds"] for part in parts) for cost in read]
        found = one(study.tables["cost"], mode=mode)
        assert found["median_seconds"] == pytest.approx(np.median(seconds))
        assert found["p95_seconds"] == pytest.approx(np.quantile(seconds, 0.95))
        assert found["decoded_tokens"] == sum(read[0][part].get("decoded", 0) for part in parts)
        assert found["n"] == len(read)
    assert one(study.tables["cost"], mode="tool mean")["n"] == len(
        [row for row in rows if row.get("cost")]
    )


def test_risk_and_worst_images(rows, study):
    read = [row for row in rows if row.get("reads")]
    scores, mos = np.transpose(expected_scores(rows)["logits"])
    errors = (stats.rankdata(scores) - stats.rankdata(mos)) / len(mos)
    for signal in ("entropy", "VLM–tool disagreement"):
        found = one(study.tables["risk_coverage"], mode="logits", signal=signal)
        assert found["risk_100"] == pytest.approx(np.abs(errors).mean())
    worst = read[int(np.argmax(np.abs(errors)))]
    assert study.tables["worst"].iloc[0]["key"] == worst["key"]
    assert study.tables["worst"].iloc[0].rank_error == pytest.approx(
        errors[np.argmax(np.abs(errors))]
    )


def test_what_has_seen_the_set_is_marked_and_left_out_of_means():
    rows = make_rows(72, tools=("VSI", "TOPIQ_FR", "PSNR"))  # TOPIQ_FR was trained on KADID-10k
    unknown = {"name": "Qwen2.5-VL-7B-Instruct", "notice": None}
    tid, kadid = (
        analysed(rows, make_run(key, **unknown), name=key, draws=10)
        for key in ("tid2013", "kadid10k")
    )
    marks = dict(zip(kadid.tables["modes"]["mode"], kadid.tables["modes"].seen, strict=True))
    assert (marks["TOPIQ_FR"], marks["PSNR"], marks["letters, image alone"]) == ("seen", "", "?")
    datasets = over_datasets([tid, kadid])
    row = one(datasets, mode="TOPIQ_FR")
    assert row["KADID-10k_mark"] == "seen"
    assert (row["mean_of_clean"], row["clean_data_sets"]) == (row["TID2013"], 1)
    row = one(datasets, mode="PSNR")
    assert row["mean_of_clean"] == pytest.approx((row["TID2013"] + row["KADID-10k"]) / 2)
    assert one(datasets, mode="letters, image alone")["clean_data_sets"] == 0
    told = one(kadid.tables["exposures"], mode="TOPIQ_FR")
    assert (told["what"], told["how"]) == ("tool TOPIQ_FR", "trained on it")


# Files


def test_the_same_rows_give_the_same_files_and_parquet_holds_the_same(few_modes, tmp_path):
    marked = [row | {"distortion": f"=1+1 {MARKUP}"} for row in few_modes]
    studies = [analysed(marked, draws=10) for _ in range(2)]
    for name, study in zip("ab", studies, strict=True):
        write_tables(tmp_path / name, study.tables)
    for file in (tmp_path / "a").glob("*.csv"):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    srcc = pytest.approx(studies[0].tables["modes"].srcc.to_numpy(), abs=1e-6)
    assert pd.read_parquet(tmp_path / "a" / "modes.parquet").srcc.to_numpy() == srcc
    assert all(
        row["distortion"].startswith("'=1+1") for row in table(tmp_path / "a", "by_distortion")
    )


# The command


def store(folder, run: dict, rows: list[dict]):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    return folder


def command(capsys, *args) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of study.py with these arguments."""
    try:
        status = main(["study", *map(str, args)])
    except SystemExit as stopped:
        status = stopped.code
    return status, *capsys.readouterr()


def test_command_reports_on_several_runs(few_modes, tmp_path, capsys):
    runs = [store(tmp_path / key, make_run(key), few_modes[:48]) for key in ("tid2013", "kadid10k")]
    out = tmp_path / "out"
    status, said, errors = command(capsys, "report", *runs, "--out", out, "--draws", 10, "--png")
    assert status == 0, errors
    assert str(out / "report.html") in said
    names = {"report.html", "report.txt", "datasets.csv", "datasets.parquet"} | {
        "tid2013",
        "kadid10k",
    }
    assert {path.name for path in out.iterdir()} == names
    for name in ("scatter", "differences", "reliability", "by_distortion", "risk_coverage"):
        assert all((out / "kadid10k" / f"{name}.{kind}").is_file() for kind in ("svg", "png"))
    assert "<summary>Over the data sets<" in (out / "report.html").read_text(encoding="utf-8")


def test_command_refuses_bad_input_with_one_sentence(few_modes, tmp_path, capsys):
    run = store(tmp_path / "run", make_run(), few_modes[:20])
    for args, message in (
        ([tmp_path / "absent"], "absent"),
        (
            [run, "--baseline", "nonsense"],
            'logits, "logits, both orders", "unnormalised sum", classification,',
        ),
        ([run, "--draws", 0], "--draws: expected 1 or more"),
        ([run, "--fit", run / "rows.jsonl"], "expected a fit"),
    ):
        status, _, said = command(capsys, "report", *args, "--out", tmp_path / "out")
        assert (status, len(said.splitlines())) == (2, 1)
        assert said.startswith("error: ")
        assert message in said
    assert not any(tmp_path.glob("out/*"))


@pytest.mark.parametrize(("part", "forged"), [("model", []), ("dataset", {"key": []})])
@pytest.mark.parametrize("name", ["report", "compare", "fit"])
def test_a_forged_run_is_refused_by_each_command(few_modes, tmp_path, capsys, name, part, forged):
    run = store(tmp_path / "run", make_run() | {part: forged}, few_modes[:20])
    out = tmp_path / ("fit.json" if name == "fit" else "out")
    runs = [run, store(tmp_path / "other", make_run(), few_modes[:20])]
    status, _, said = command(capsys, name, *runs, "--out", out)
    assert (status, len(said.splitlines())) == (2, 1)
    assert f"run.json: {part}" in said


def test_runs_without_scores_or_direction_are_refused(rows):
    for of, run, message in (
        ([{"key": "a", "question": "Is it sharp?"}], make_run(), "human score"),
        (rows, make_run("manifest"), "higher_is_better"),
        (rows, {"dataset": {}, "model": {}, "tools": {}, "identity": {}}, "fusion"),
        (rows, make_run("nonsense"), "data set"),
    ):
        with pytest.raises(StudyError, match=message):
            analysed(of, run)
