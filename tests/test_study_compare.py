"""Run against run. Rows are made in the shape that inference.py stores and go through the project's own
store; expected figures come from scipy and `ScoreFusion`."""

import csv
import json

import numpy as np
import pytest
from scipy import stats
from test_study_report import agent_score, command, make_rows, make_run, make_view, one

from agentic_iqa_local.studies.compare import Named, compare
from agentic_iqa_local.studies.statistics import Draws
from agentic_iqa_local.studies.store import Store, read_run
from agentic_iqa_local.studies.study import StudyError


def with_letters(rows, noise, seed):
    """The same images as another model reads them: letters around the level, off by `noise`."""
    rng, rows = np.random.default_rng(seed), json.loads(json.dumps(rows))
    for row in rows:
        if row.get("reads"):
            quality = (row["mos"] + 0.9) / 1.8 + rng.normal(0, noise)
            views = [make_view(quality, rng)]
            row["reads"]["all_evidence"]["views"] = views
            row["agent"]["fusion"]["q"] = agent_score(views, [row["tools"]["VSI"]["normalized"]])
    return rows


def stored(folder, rows, key="tid2013", git=None, **identity):
    run = make_run(key) | {"git": git}
    with Store(folder, run, run["identity"] | identity) as store:
        for row in rows:
            store.append(row)
    return folder


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def folders(rows, tmp_path_factory):
    """A poor model on 96 images, and a good one on the last 90 of them in reverse order. Of these 81 were
    answered: images 22, 39, 56, 73 and 90 could not be opened, 7, 30, 53 and 76 failed in the model."""
    root = tmp_path_factory.mktemp("runs")
    return [
        stored(root / "poor", with_letters(rows, 2.5, 1), model="P"),
        stored(root / "good", with_letters(rows, 0.1, 2)[6:][::-1], model="G", git="0123456789abcdef+"),
    ]


def named(folders):
    return [Named(folder.name, *read_run(folder)) for folder in folders]


def test_figures_are_scipys_on_the_images_that_both_answered(rows, folders):
    found = compare(named(folders), draws=200)
    poor, good = ({row["key"]: row for row in run.rows} for run in named(folders))
    both = [key for key in poor if key in good and poor[key].get("reads") and good[key].get("reads")]
    mos = [poor[key]["mos"] for key in both]
    q = {
        name: [run[key]["agent"]["fusion"]["q"] for key in both]
        for name, run in (("poor", poor), ("good", good))
    }
    for name in q:
        line = one(found.runs, mode="logits", run=name)
        assert line["srcc"] == pytest.approx(stats.spearmanr(q[name], mos).statistic)
        assert line["plcc"] == pytest.approx(stats.pearsonr(q[name], mos).statistic)
        assert line["n"] == len(both) < 90
        assert line["failed"] == 90 - len(both)
    (pair,) = found.differences
    assert (pair["run"], pair["against"], pair["n"]) == ("good", "poor", len(both))
    ranks = {name: stats.spearmanr(scores, mos).statistic for name, scores in q.items()}
    assert pair["srcc_difference"] == pytest.approx(ranks["good"] - ranks["poor"])
    assert pair["mean_absolute_difference"] == pytest.approx(np.abs(np.subtract(q["good"], q["poor"])).mean())
    assert pair["largest_difference"] == pytest.approx(np.abs(np.subtract(q["good"], q["poor"])).max())
    assert pair["rank_correlation"] == pytest.approx(stats.spearmanr(q["good"], q["poor"]).statistic)
    assert found.notes[0] == "90 images are in every run; left out: 6 of poor, 0 of good."
    assert "good differs from poor in: git (None → 0123456789abcdef+), model (P → G)." in found.notes
    assert [line["version"] for line in found.runs] == ["", "0123456789ab"[:12] + "+"]


def test_the_interval_is_of_whole_scenes_on_the_draws_of_a_report(folders):
    """Each draw's scenes are repeated as rows, and scipy ranks them."""
    found = compare(named(folders), draws=50, seed=3).differences[0]
    poor, good = ({row["key"]: row for row in run.rows} for run in named(folders))
    common = [key for key in poor if key in good]
    draws = Draws.make(90, np.random.default_rng(3), [poor[key]["group"] for key in common], None, 50)
    differences = []
    for weights in draws.weights:
        keys = [
            key
            for key, count in zip(common, weights, strict=True)
            for _ in range(count)
            if poor[key].get("reads")
        ]
        mos = [poor[key]["mos"] for key in keys]
        ranks = [
            stats.spearmanr([run[key]["agent"]["fusion"]["q"] for key in keys], mos).statistic
            for run in (good, poor)
        ]
        differences.append(ranks[0] - ranks[1])
    assert (found["srcc_difference_low"], found["srcc_difference_high"]) == pytest.approx(
        np.percentile(differences, [2.5, 97.5])
    )


def test_the_verdict_says_what_the_images_show(rows, folders, tmp_path):
    assert compare(named(folders), draws=200).differences[0]["verdict"] == "gains"
    assert compare(named(folders[::-1]), draws=200).differences[0]["verdict"] == "loses"
    same = [folders[0], stored(tmp_path / "again", read_run(folders[0])[1])]
    assert compare(named(same), draws=50).differences[0]["largest_difference"] == 0
    few = [stored(tmp_path / f"few {seed}", with_letters(rows[:24], 1.5, seed)) for seed in (3, 4)]
    assert compare(named(few), draws=200).differences[0]["verdict"] == "undecided: too few images"


def test_several_modes_and_runs_share_their_draws_and_their_images(rows, folders, tmp_path):
    third = stored(tmp_path / "third", with_letters(rows[:60], 0.1, 4))
    found = compare(named([*folders, third]), modes=["all"], draws=100)
    modes = {line["mode"] for line in found.runs}
    assert {"logits", "letters, image alone", "tool mean", "PSNR"} <= modes
    assert [(line["run"], line["against"]) for line in found.differences[:2]] == [
        ("good", "poor"),
        ("third", "poor"),
    ]
    assert {line["n"] for line in found.runs if line["mode"] == "logits"} == {
        one(found.differences, mode="logits", run="third")["n"]
    }
    assert all(line["p_holm"] >= line["p"] for line in found.differences)
    # With 100 draws no p is below 2/101, and Holm's least of so many comparisons not below 0.05: none is
    # decided by them.
    assert len(found.differences) * 2 / 101 > 0.05
    assert not {"gains", "loses"} & {line["verdict"] for line in found.differences}


def test_runs_that_cannot_be_compared_are_refused(rows, folders, tmp_path):
    poor, good = named(folders)
    moved = [row | {"mos": row["mos"] + 1} if i == 40 else row for i, row in enumerate(poor.rows)]
    changed = [
        row | {"sha256": "0"} if row.get("sha256") and i >= 90 else row for i, row in enumerate(poor.rows)
    ]
    for runs, message in (
        ([poor], "expected two runs or more, got 1"),
        ([poor, Named("other", make_run("kadid10k"), poor.rows)], "poor is of tid2013 and other of kadid10k"),
        (
            [poor, Named("few", poor.run, poor.rows[:9])],
            r"at least 10 common images, found 9 \(poor has 96, few has 9\)",
        ),
        ([poor, Named("none", poor.run, [])], "found 0"),
        (
            [poor, Named("moved", poor.run, moved)],
            "1 of 96 common ones have other scores in moved than in poor",
        ),
        ([poor, Named("changed", poor.run, changed)], "other files in changed than in poor"),
        (
            [poor, Named("asked", poor.run, [{"key": "a", "question": "?"}])],
            "asked: expected rows with a human score, got questions",
        ),
    ):
        with pytest.raises(StudyError, match=message):
            compare(runs, draws=10)
    with pytest.raises(StudyError, match=r'"letters, image alone", .* got "letters, alone"'):
        compare([poor, good], modes=["letters, alone"], draws=10)


def test_the_command_prints_and_writes(folders, tmp_path):
    printed = command("compare", *folders, "--draws", 50)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "| logits | good | poor | 81 |" in printed.stdout
    assert printed.stdout.splitlines()[-1].startswith("good differs from poor in: ")
    written = command(
        "compare", *folders, "--draws", 50, "--mode", "logits", "tool mean", "--out", tmp_path / "new" / "out"
    )
    assert written.returncode == 0, written.stderr
    assert {path.name for path in (tmp_path / "new" / "out").iterdir()} == {
        f"{name}.{kind}" for name in ("runs", "run_differences") for kind in ("csv", "md")
    }
    with (tmp_path / "new" / "out" / "run_differences.csv").open(newline="") as file:
        assert [line["mode"] for line in csv.DictReader(file)] == ["logits", "tool mean"]
    refused = command("compare", folders[0], tmp_path / "absent")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
    assert refused.stderr.startswith(
        f"error: {tmp_path / 'absent'}: expected a folder that study.py run wrote"
    )
