"""Eyes: what is learned of ratings made by rule, when nothing is, and what an eye says of other pictures."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.eye import CARD, NUMBERS, local_nr_hash, read_eye, write_eye
from agentic_iqa_local.judgement.learning import LearningError, Rated, learned

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


def test_the_interval_is_the_conformal_quantile(taught):
    """⌈(1 − error rate)(n + 1)⌉ of 19 errors is the 18th at .1, the 16th at .2, and none at .01."""
    from dataclasses import replace

    from agentic_iqa_local.state import revised

    errors = tuple(number / 10 for number in range(1, 20))
    eye = replace(taught, card=revised(taught.card, errors=errors))
    assert [eye.half_width(rate) for rate in (0.1, 0.2, 0.01)] == [1.8, 1.6, None]


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
        (lambda folder: spoilt_card(folder, sigma=-1), "sigma: expected more than 0"),
        (lambda folder: (folder / CARD).unlink(), "expected the card of an eye"),
        (lambda folder: (folder / NUMBERS).write_bytes(b"{}"), "expected the numbers of an eye"),
        (lambda folder: (folder / NUMBERS).unlink(), "expected the numbers of an eye"),
    ],
    ids=["other LocalNR", "negative error", "no card", "no safetensors", "no numbers"],
)
def test_a_spoilt_eye_is_one_sentence(stored, spoil, said):
    spoil(stored)
    with pytest.raises(ToolError, match=said):
        read_eye(stored)
