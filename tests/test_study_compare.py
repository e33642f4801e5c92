"""Run against run. Rows are made in the shape that inference.py stores and go through the project's own
store; expected figures come from scipy and `ScoreFusion`."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_study_report import (
    agent_score,
    command,
    make_rows,
    make_run,
    make_view,
    one,
    store,
    table,
)

from agentic_iqa_local.studies.compare import compare
from agentic_iqa_local.studies.statistics import Draws
from agentic_iqa_local.studies.store import Run, StudyError, read_run


def with_letters(rows, noise, seed):
    """The same images as another model reads them: letters around the level, off by `noise`."""
    rng, rows = np.random.default_rng(seed), json.loads(json.dumps(rows))
    for row in rows:
        if row.get("reads"):
            views = [make_view((row["mos"] + 0.9) / 1.8 + rng.normal(0, noise), rng)]
            row["reads"]["all_evidence"]["views"] = views
            row["agent"]["fusion"]["q"] = agent_score(views, row["tools"]["VSI"]["normalized"])
    return rows


def stored(folder, rows, git=None, **identity):
    run = make_run() | {"git": git}
    return store(folder, run | {"identity": run["identity"] | identity}, rows)


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def folders(rows, tmp_path_factory):
    """A poor model on 96 images, and a good one on the last 90 of them in reverse order. Of these 81 were
    answered: images 22, 39, 56, 73 and 90 could not be opened, 7, 30, 53 and 76 failed in the model."""
    root, good = tmp_path_factory.mktemp("runs"), with_letters(rows, 0.1, 2)
    return [
        stored(root / "poor", with_letters(rows, 2.5, 1), model="P"),
        stored(root / "good", good[6:][::-1], model="G", git="0123456789abcdef+"),
    ]


def compared(folders, **options):
    tables, notes = compare({folder.name: read_run(folder) for folder in folders}, **options)
    return tables["runs"].to_dict("records"), tables["run_differences"].to_dict("records"), notes


@pytest.fixture(scope="module")
def common(folders):
    """The fused scores of both runs and the human score, by image: of the images that both have."""
    found = {}
    for folder in folders:
        for row in read_run(folder)[1]:
            fusion = (row.get("agent") or {}).get("fusion", {})
            found.setdefault(row["key"], {"mos": row["mos"]})[folder.name] = fusion.get("q")
    return pd.DataFrame(found).T.dropna(subset="mos").loc[[row["key"] for row in make_rows()[6:]]]


def test_figures_are_scipys_on_the_images_that_both_answered(folders, common):
    lines, (found,), notes = compared(folders, draws=50)
    answered = common.astype(float).dropna()
    ranks = {name: stats.spearmanr(answered[name], answered.mos)[0] for name in ("poor", "good")}
    assert {line["run"]: line["srcc"] for line in lines} == pytest.approx(ranks)
    assert found["srcc_difference"] == pytest.approx(ranks["good"] - ranks["poor"])
    assert (found["n"], found["failed"]) == (81, 9)
    apart = (answered.good - answered.poor).abs()
    assert found["rank_correlation"] == pytest.approx(
        stats.spearmanr(answered.good, answered.poor)[0]
    )
    assert found["mean_absolute_difference"] == pytest.approx(apart.mean())
    assert found["largest_difference"] == pytest.approx(apart.max())
    left = "90 images are in every run; left out: 6 of poor, 0 of good."
    interval = "Intervals are 95 %: 50 bootstrap draws of 12 groups."
    assert notes == [
        left,
        interval,
        "good has model G, poor has P; git 0123456789abcdef+, poor has none.",
    ]


def settings_note(**runs):
    return compare(runs, draws=10)[1][-1]


def test_settings_that_differ_are_named_with_both_values_and_the_users_first(folders):
    poor, rows = read_run(folders[0])
    told = make_run() | {"git": "9"}
    told["fusion"] |= {"eta": "auto", "fitted": None}
    told["tools"] |= {"no_reference": ["NIQE"]}
    told["identity"] |= {"model": "P", "configuration": {"planner": {"max_tokens": 9}}}
    other = Run.model_validate(told)
    named = [
        "other has fusion.eta auto, poor has 1.0",
        "tools.no_reference [NIQE], poor has [LocalNR, NIQE]",
        "planner.max_tokens 9, poor has none",
        "git 9, poor has none.",
    ]
    run = poor, rows
    assert settings_note(poor=run, other=(other, rows)) == "; ".join(named)
    told["identity"]["versions"] = dict.fromkeys("abcd", "1")
    many = settings_note(poor=run, other=(Run.model_validate(told), rows))
    assert many.startswith("; ".join(named[:3]))
    assert many.endswith("; and 2 more that run.json has.")  # of 3 + 4 + 1
    assert settings_note(poor=run, again=run) == "again has the settings of poor."


def test_differences_are_paired_on_draws_of_whole_scenes(rows, folders, common):
    (found,) = compared(folders, draws=50)[1]
    differences = []
    for places in Draws(rows[6:], np.random.default_rng(0), 50).places:
        drawn = common.iloc[places].astype(float).dropna()
        ranks = [stats.spearmanr(drawn[name], drawn.mos)[0] for name in ("good", "poor")]
        differences.append(ranks[0] - ranks[1])
    ends = found["srcc_difference_low"], found["srcc_difference_high"]
    assert ends == pytest.approx(np.percentile(differences, [2.5, 97.5]))


def test_the_better_run_is_named_where_the_images_show_it(folders, tmp_path):
    assert compared(folders[::-1], draws=200)[1][0]["better"] == "good"
    same = [folders[0], stored(tmp_path / "again", read_run(folders[0])[1])]
    assert compared(same, draws=50)[1][0]["better"] == "undecided"


def test_several_modes_and_runs_share_their_images(rows, folders, tmp_path):
    third = stored(tmp_path / "third", with_letters(rows[:60], 0.1, 4))
    lines, differences, _ = compared([*folders, third], modes=["all"], draws=20)
    modes = {line["mode"] for line in lines}
    assert {"logits", "letters, image alone", "tool mean", "PSNR"} <= modes
    pairs = [(line["first"], line["second"]) for line in differences[:2]]
    assert pairs == [("good", "poor"), ("third", "poor")]
    counts = {line["n"] for line in lines if line["mode"] == "logits"}
    assert counts == {one(differences, mode="logits", first="third")["n"]}


def test_runs_that_cannot_be_compared_are_refused(folders):
    run, rows = read_run(folders[0])
    moved = [row | {"mos": row["mos"] + 1} if i == 40 else row for i, row in enumerate(rows)]
    changed = [row | {"sha256": "0"} if i == 91 else row for i, row in enumerate(rows)]
    other = Run.model_validate(make_run("kadid10k"))
    for stored_run, message in (
        ((run, rows[:9]), "at least 10 common images, found 9"),
        ((other, rows), "one data set, got 2 of kadid10k, tid2013"),
        ((run, moved), rf"{rows[40]['key']} has other scores"),
        ((run, changed), "other files"),
    ):
        with pytest.raises(StudyError, match=message):
            compare({"poor": (run, rows), "other": stored_run}, draws=10)
    with pytest.raises(StudyError, match=r"two runs or more .*, got 1"):
        compare({"poor": (run, rows)})
    with pytest.raises(StudyError, match=r'"letters, image alone", .* got \'letters, alone\''):
        compared(folders, modes=["letters, alone"], draws=10)


def test_the_command_prints_and_writes(folders, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    options = ["--draws", 20, "--mode", "logits", "tool mean", "--out", out]
    status, said, errors = command(capsys, "compare", *folders, *options)
    assert (status, errors) == (0, "")
    assert "good has model G, poor has P" in said
    assert [line["mode"] for line in table(out, "run_differences")] == ["logits", "tool mean"]
    status, _, errors = command(capsys, "compare", folders[0], "absent")
    assert (status, len(errors.splitlines())) == (2, 1)
    assert "absent: expected a folder that study run wrote" in errors
