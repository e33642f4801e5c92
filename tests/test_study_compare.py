"""Run against run. Rows are made in the shape that inference.py stores and go through the project's own
store; expected figures come from scipy and `ScoreFusion`."""

import json

import numpy as np
import pytest
from scipy import stats
from test_study_report import agent_score, command, make_rows, make_run, make_view, one, table

from agentic_iqa_local.studies.compare import compare
from agentic_iqa_local.studies.statistics import Draws
from agentic_iqa_local.studies.store import StudyError, open_store, read_run


def with_letters(rows, noise, seed):
    """The same images as another model reads them: letters around the level, off by `noise`."""
    rng, rows = np.random.default_rng(seed), json.loads(json.dumps(rows))
    for row in rows:
        if row.get("reads"):
            views = [make_view((row["mos"] + 0.9) / 1.8 + rng.normal(0, noise), rng)]
            row["reads"]["all_evidence"]["views"] = views
            row["agent"]["fusion"]["q"] = agent_score(views, [row["tools"]["VSI"]["normalized"]])
    return rows


def stored(folder, rows, key="tid2013", git=None, **identity):
    run = make_run(key) | {"git": git}
    with open_store(folder, run, run["identity"] | identity) as store:
        for row in rows:
            store.append(json.dumps(row))
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
        stored(
            root / "good", with_letters(rows, 0.1, 2)[6:][::-1], model="G", git="0123456789abcdef+"
        ),
    ]


def compared(folders, **options):
    tables, notes = compare({folder.name: read_run(folder) for folder in folders}, **options)
    return tables["runs"].to_dict("records"), tables["run_differences"].to_dict("records"), notes


def test_figures_are_scipys_on_whole_scenes_of_the_images_that_both_answered(rows, folders):
    lines, (found,), notes = compared(folders, draws=50)
    poor, good = ({row["key"]: row for row in read_run(folder)[1]} for folder in folders)
    common = [key for key in poor if key in good]
    answered = [key for key in common if poor[key].get("reads")]

    def rank(run, keys):
        q = [run[key]["agent"]["fusion"]["q"] for key in keys]
        return stats.spearmanr(q, [run[key]["mos"] for key in keys]).statistic

    scores = [[run[key]["agent"]["fusion"]["q"] for key in answered] for run in (good, poor)]
    apart = np.abs(np.subtract(*scores))
    assert found["rank_correlation"] == pytest.approx(stats.spearmanr(*scores).statistic)
    told = found["mean_absolute_difference"], found["largest_difference"]
    assert told == pytest.approx((apart.mean(), apart.max()))
    assert [(line["run"], line["n"]) for line in lines] == [("poor", 81), ("good", 81)]
    assert (found["n"], found["failed"]) == (81, 9)
    assert lines[1]["srcc"] == pytest.approx(rank(good, answered))
    assert found["srcc_difference"] == pytest.approx(rank(good, answered) - rank(poor, answered))
    draws = Draws([poor[key] for key in common], np.random.default_rng(0), 50)
    differences = []
    for weights in draws.weights:
        keys = [
            key
            for key, count in zip(common, weights, strict=True)
            for _ in range(count)
            if key in answered
        ]
        differences.append(rank(good, keys) - rank(poor, keys))
    ends = found["srcc_difference_low"], found["srcc_difference_high"]
    assert ends == pytest.approx(np.percentile(differences, [2.5, 97.5]))
    left = "90 images are in every run; left out: 6 of poor, 0 of good."
    assert notes == [left, "good differs from poor in: git, model."]


def test_the_better_run_is_named_where_the_images_show_it(rows, folders, tmp_path):
    for order in (folders, folders[::-1]):
        assert compared(order, draws=200)[1][0]["better"] == "good"
    same = [folders[0], stored(tmp_path / "again", read_run(folders[0])[1])]
    assert compared(same, draws=50)[1][0]["better"] == "undecided"
    few = [stored(tmp_path / f"few {seed}", with_letters(rows[:24], 1.5, seed)) for seed in (3, 4)]
    assert compared(few, draws=200)[1][0]["better"] == "undecided"


def test_several_modes_and_runs_share_their_draws_and_their_images(rows, folders, tmp_path):
    third = stored(tmp_path / "third", with_letters(rows[:60], 0.1, 4))
    lines, differences, _ = compared([*folders, third], modes=["all"], draws=100)
    assert {"logits", "letters, image alone", "tool mean", "PSNR"} <= {
        line["mode"] for line in lines
    }
    assert [(line["first"], line["second"]) for line in differences[:2]] == [
        ("good", "poor"),
        ("third", "poor"),
    ]
    counts = {line["n"] for line in lines if line["mode"] == "logits"}
    assert counts == {one(differences, mode="logits", first="third")["n"]}
    # With 100 draws no p is below 2/101, and Holm's least of so many comparisons not below 0.05: none is decided.
    assert len(differences) * 2 / 101 > 0.05
    assert {line["better"] for line in differences} == {"undecided"}


def test_runs_that_cannot_be_compared_are_refused(folders):
    run, rows = read_run(folders[0])
    moved = [row | {"mos": row["mos"] + 1} if i == 40 else row for i, row in enumerate(rows)]
    changed = [row | {"sha256": "0"} if i == 91 else row for i, row in enumerate(rows)]
    for name, other, message in (
        ("few", (run, rows[:9]), "at least 10 common images, found 9"),
        ("other", (make_run("kadid10k"), rows), "poor is of tid2013 and other is of kadid10k"),
        ("moved", (run, moved), "1 of 96 common ones have other scores in moved than in poor"),
        ("changed", (run, changed), "other files in changed than in poor"),
    ):
        with pytest.raises(StudyError, match=message):
            compare({"poor": (run, rows), name: other}, draws=10)
    with pytest.raises(StudyError, match="two runs or more, got 1"):
        compare({"poor": (run, rows)})
    with pytest.raises(StudyError, match=r'"letters, image alone", .* got "letters, alone"'):
        compared(folders, modes=["letters, alone"], draws=10)


def test_the_command_prints_and_writes(folders, tmp_path, capsys):
    status, said, errors = command(capsys, "compare", *folders, "--draws", 50)
    assert (status, errors) == (0, "")
    assert said.splitlines()[-1].startswith("good differs from poor in: ")
    out = tmp_path / "new" / "out"
    assert (
        command(
            capsys,
            "compare",
            *folders,
            "--draws",
            50,
            "--mode",
            "logits",
            "tool mean",
            "--out",
            out,
        )[0]
        == 0
    )
    assert [line["mode"] for line in table(out, "run_differences")] == ["logits", "tool mean"]
    status, said, errors = command(capsys, "compare", folders[0], tmp_path / "absent")
    assert (status, said, len(errors.splitlines())) == (2, "", 1)
    assert errors.startswith(
        f"error: {tmp_path / 'absent'}: expected a folder that study.py run wrote"
    )
