"""Eyes: what is learned of ratings made by rule, when nothing is, and what an eye says of other pictures."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import spearmanr

from agentic_iqa_local import IQA
from agentic_iqa_local.cli.learn import refusal
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.eye import CARD, NUMBERS, local_nr_hash, read_eye, write_eye
from agentic_iqa_local.judgement.learning import LearningError, Proof, Rated, learned
from agentic_iqa_local.output.picture_lines import picture_line
from agentic_iqa_local.output.report import account, headline

ABOUT = {
    "date": "2026-11-27",
    "ratings": 60,
    "pictures": ("0" * 64,),
    "people": 1,
    "scale": (1.0, 5.0),
    "local_nr": "0" * 64,
    "model": "0" * 64,
}
WIDTH = 12  # statistics


def rated(statistics: np.ndarray, levels: np.ndarray, scenes: np.ndarray | None = None) -> Rated:
    """Pictures whose q and LocalNR's level know nothing of the ratings."""
    count = len(levels)
    random = np.random.default_rng(7)
    blind = random.uniform(2, 4, count)
    return Rated(
        statistics=statistics,
        tools={"LocalNR": blind},
        p_c=np.full((count, 5), 0.2),
        q=blind,
        levels=levels,
        scenes=np.arange(count) if scenes is None else scenes,
    )


@pytest.fixture(scope="module")
def taught():
    """An eye that learned the first statistic, with the pictures it was learned from."""
    statistics = np.random.default_rng(0).normal(size=(60, WIDTH))
    pictures = rated(statistics, np.clip(3 + statistics[:, 0], 1, 5))
    eye, proof = learned(pictures, **ABOUT)
    assert proof.holds
    return eye


def test_an_eye_ranks_new_pictures_as_the_person_would(taught):
    new = np.random.default_rng(1).normal(size=(100, WIDTH))
    levels = [taught.read(statistics, 3.0).level for statistics in new]
    assert spearmanr(levels, new[:, 0]).statistic > 0.9
    assert taught.card.srcc > taught.card.srcc_without + 0.5


@pytest.mark.parametrize("seed", range(5))
def test_random_ratings_are_no_proof(seed):
    random = np.random.default_rng(seed)
    pictures = rated(random.normal(size=(40, WIDTH)), random.uniform(1, 5, 40))
    _, proof = learned(pictures, **ABOUT)
    assert not proof.holds


def test_near_duplicates_prove_nothing():
    """Five frames of a scene are alike and were rated alike: whoever splits them finds a rule where there is none."""
    random = np.random.default_rng(3)
    scenes = np.repeat(np.arange(12), 5)
    statistics = random.normal(size=(12, WIDTH))[scenes] + random.normal(0, 0.01, (60, WIDTH))
    levels = random.uniform(1, 5, 12)[scenes]
    _, alike = learned(rated(statistics, levels, scenes), **ABOUT)
    _, parted = learned(rated(statistics, levels), **ABOUT)
    assert parted.holds
    assert not alike.holds


def test_ratings_that_follow_the_tool_give_an_eye_that_follows_it():
    random = np.random.default_rng(4)
    pictures = rated(random.normal(size=(40, WIDTH)), np.empty(40))
    pictures = Rated(**vars(pictures) | {"levels": pictures.tools["LocalNR"]})
    eye, _ = learned(pictures, **ABOUT)
    low, high = (eye.read(np.zeros(WIDTH), level).level for level in (2.0, 4.0))
    assert high - low > 1


def test_a_picture_unlike_the_rated_ones_is_told(taught):
    assert not taught.read(np.zeros(WIDTH), 3.0).unlike
    assert taught.read(np.full(WIDTH, 4.0), 3.0).unlike


@pytest.mark.parametrize(
    ("scenes", "levels", "said"),
    [
        (np.zeros(12, int), np.linspace(1, 5, 12), "at least 10 scenes, got 1"),
        (np.arange(12), np.full(12, 3.0), "ratings that differ"),
    ],
    ids=["one scene", "one rating"],
)
def test_too_little_to_learn_from_is_a_sentence(scenes, levels, said):
    statistics = np.random.default_rng(0).normal(size=(12, WIDTH))
    with pytest.raises(LearningError, match=said):
        learned(rated(statistics, levels, scenes), **ABOUT)


# Files


@pytest.fixture
def stored(taught, tmp_path):
    """The folder of an eye for this LocalNR."""
    from dataclasses import replace

    from agentic_iqa_local.state import revised

    eye = replace(taught, card=revised(taught.card, local_nr=local_nr_hash()))
    write_eye(tmp_path / "eye", eye)
    return tmp_path / "eye"


def test_a_stored_eye_says_the_same(taught, stored):
    statistics = np.random.default_rng(5).normal(size=WIDTH)
    assert read_eye(stored).read(statistics, 3.0) == pytest.approx(
        taught.read(statistics, 3.0), abs=1e-2
    )


def spoilt_card(folder, **changes):
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps(card | changes))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: spoilt_card(folder, local_nr="1" * 64), "learned with another"),
        (lambda folder: spoilt_card(folder, sigma=-1), "sigma: expected greater than 0"),
        (lambda folder: (folder / CARD).unlink(), "there is no card.json"),
        (lambda folder: (folder / NUMBERS).write_bytes(b"{}"), "expected the numbers of an eye"),
        (lambda folder: (folder / NUMBERS).unlink(), "expected the numbers of an eye"),
    ],
    ids=["other LocalNR", "negative error", "no card", "no safetensors", "no numbers"],
)
def test_a_spoilt_eye_is_one_sentence(stored, spoil, said):
    spoil(stored)
    with pytest.raises(ToolError, match=said):
        read_eye(stored)


# In an assessment


def eye_that_says(level: float, rated: float, folder, *, forced: bool = False):
    """An eye that gives every picture this level; its rated picture has `rated` in every statistic."""
    from safetensors.numpy import save

    from agentic_iqa_local.iqa_tools.eye import EyeCard
    from agentic_iqa_local.iqa_tools.local_nr import SIGNALS, STATISTICS

    width = STATISTICS + SIGNALS
    folder.mkdir()
    card = EyeCard(
        **ABOUT | {"local_nr": local_nr_hash()},
        scenes=60,
        learner="ridge",
        srcc=0.8,
        srcc_without=0.4,
        agreement={"YourEye": 0.8, "LocalNR": 0.4, "NIQE": 0.3},
        helped=1.0,
        sigma=0.3,
        errors=tuple(np.linspace(-0.5, 0.5, 101)),
        voters=("YourEye",),
        farthest=1e4,
        forced=forced,
    )
    arrays = {
        "mean": np.zeros(width),
        "deviation": np.ones(width),
        "weights": np.zeros(width),
        "line": np.array([level, 0.0]),
        "rated": np.full((1, width), rated, np.float16),
    }
    (folder / CARD).write_text(card.model_dump_json())
    (folder / NUMBERS).write_bytes(save(arrays))
    return folder


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_the_eye_alone_votes_where_it_is_clearly_better(tmp_path, photo_path, pipeline):
    eye = eye_that_says(1.5, 0.0, tmp_path / "eye", forced=pipeline == "agent")
    with IQA(cpu=True, pipeline=pipeline, eye=str(eye)) as iqa:
        row = iqa.assess(photo_path)
    assert row.fusion.voters == ["YourEye"]
    assert row.fusion.q_bar == 1.5
    assert row.interval.calibrated_on.startswith("your ratings")
    assert row.interval.width == pytest.approx(0.9, abs=0.1)  # 90 % of errors from −.5 to .5
    assert (row.eye.name, row.eye.ratings) == ("eye", 60)
    assert row.eye.forced == (pipeline == "agent")
    assert row.eye.forced == ("written with --force" in " ".join(account(row).split()))
    said = "forced eye eye (nothing showed that it helps)"
    assert row.eye.forced == (said in headline(row)) == (said in picture_line(row, 200).plain)
    if pipeline == "agent":  # LocalNR, which found distortions, has no vote
        assert "from 60 ratings of yours YourEye says" in " ".join(account(row).split())


def test_a_picture_unlike_the_rated_ones_keeps_its_q(tmp_path, photo_path):
    eye = eye_that_says(1.5, 3e4, tmp_path / "eye")
    with IQA(cpu=True, pipeline="letters") as iqa:
        before = iqa.assess(photo_path)
    with IQA(cpu=True, pipeline="letters", eye=str(eye)) as iqa:
        row = iqa.assess(photo_path)
    assert row.q == before.q
    assert any("unlike those that YourEye was learned from" in line for line in row.warnings)


@pytest.mark.parametrize(
    ("proof", "card", "said"),
    [
        (Proof(0.62, 0.95), {"srcc": 0.7, "srcc_without": 0.6}, "that it helps (at least 90 % is needed). Rate about 40"),
        (Proof(0.95, 0.7), {"srcc": 0.3, "srcc_without": 0.2}, "follows your ratings at all (probability 70 %, at"),
        (Proof(0.1, 0.95), {"srcc": 0.8, "srcc_without": 0.8}, "q orders these pictures as you do without it"),
        (Proof(0.0, 0.4), {"srcc": -0.1, "srcc_without": 0.1}, "Your ratings follow nothing that it sees"),
    ],
)  # fmt: skip
def test_a_refusal_names_what_is_not_sure_and_what_to_do(proof, card, said):
    told = refusal(proof, SimpleNamespace(**card), Path("my_eye"))
    assert told.startswith("Nothing was written to my_eye: ")
    assert said in told


def test_learn_says_what_is_kept_when_it_is_interrupted(photo, tmp_path, monkeypatch, capsys):
    """Ctrl-C comes at the third of 20 pictures."""

    def describe(_, picture):
        if picture.name == "2.png":
            raise KeyboardInterrupt
        return picture

    lines = ["image,rating"]
    for i in range(20):
        photo.crop((0, 0, 64, 64)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{1 + i % 5}")
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    monkeypatch.setattr("agentic_iqa_local.judgement.described.Describer.__call__", describe)
    eye = str(tmp_path / "eye")
    assert main(["learn", str(tmp_path / "ratings.csv"), "--out", eye, "--cpu"]) == 130
    said = capsys.readouterr().err
    assert "interrupted: what was measured of 2 of 20 pictures is kept; the same command" in said
