"""Rating a folder: what is kept, which picture comes next, what the session says was learned, and the page."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from browser import browser_page, findings_of_looks, needs_chromium
from fastapi.testclient import TestClient
from PIL import Image

from agentic_iqa_local.batch.rating_file import RatingFile
from agentic_iqa_local.batch.ratings import RatingsError, read_ratings
from agentic_iqa_local.judgement.described import Description, DescriptionError
from agentic_iqa_local.judgement.suggestion import most_informative
from agentic_iqa_local.serve.asks import Refused
from agentic_iqa_local.serve.rating import RatingSession, Step, advice_after
from agentic_iqa_local.serve.rating_app import make_app

ROOT = Path(__file__).parents[1]
COUNT = 40


def described(picture: Path) -> Description:
    """A description whose first statistic is the picture's number, and whose q says nothing."""
    number = int(picture.stem)
    random = np.random.default_rng(number)
    statistics = random.normal(0, 0.3, 8).astype(np.float32)
    statistics[0] = number / COUNT * 4 - 2
    return Description(
        sha256=hashlib.sha256(picture.name.encode()).hexdigest(),
        statistics=statistics,
        fingerprint=random.random(256) < 0.5,
        levels={"LocalNR": 3 + 0.1 * random.normal()},
        p_c=np.full(5, 0.2),
        q=3 + 0.1 * float(random.normal()),
    )


def rule(number: int) -> int:
    return 1 + number * 5 // COUNT


@pytest.fixture
def folder(tmp_path):
    for number in range(COUNT):
        Image.new("RGB", (48, 40), (number * 6, 90, 30)).save(tmp_path / f"{number}.png")
    return tmp_path


def session_of(folder, describe=described, pictures=None):
    pictures = pictures or sorted(folder.glob("*.png"), key=lambda one: int(one.stem))
    return RatingSession(pictures, RatingFile(folder / "ratings.csv"), describe)


@contextmanager
def working(session):
    worker = threading.Thread(target=session.work)
    worker.start()
    try:
        yield
    finally:
        session.end()
        worker.join()


def settled(session, done):
    """The session's state once `done` says so of it."""
    while True:
        state = session.state()
        if done(state):
            return state
        time.sleep(0.01)  # between two looks, or it would compete with what it waits for


def rate_all(session, count):
    """Rates pictures as they are shown, by the rule."""
    for _ in range(count):
        number = settled(session, lambda state: state["picture"] is not None)["picture"]
        session.rate(number, rule(number))


def test_each_rating_is_in_the_file_at_once_and_undo_takes_back_the_latest(folder):
    session = session_of(folder)
    session.rate(3, 5)
    session.rate(1, 2)
    assert (folder / "ratings.csv").read_text() == "image,rating\n3.png,5\n1.png,2\n"
    with pytest.raises(Refused, match="has a rating"):
        session.rate(3, 1)
    session.undo()
    assert (folder / "ratings.csv").read_text() == "image,rating\n3.png,5\n"
    session.rate(1, 4)
    again = session_of(folder)
    assert again.state()["rated"] == 2
    assert read_ratings(folder / "ratings.csv").levels.tolist() == [5, 4]


def test_names_are_read_back_as_they_were(tmp_path):
    names = ["=1+1.png", "a,b.png", 'say "x".png', os.fsdecode(b"\xff.png")]
    file = RatingFile(tmp_path / "ratings.csv")
    for name in names:
        (tmp_path / name).touch()
        file.add(tmp_path / name, 3)
    assert [name for name, _ in RatingFile(tmp_path / "ratings.csv").rows] == [*map(Path, names)]
    read = read_ratings(tmp_path / "ratings.csv", (1, 5))
    assert [picture.name for picture in read.pictures] == names


@pytest.mark.parametrize("text", ["image,mos\na.png,3\n", "image,rating\na.png,7\n", "", "\0"])
def test_a_file_of_something_else_is_not_written_over(tmp_path, text):
    (tmp_path / "ratings.csv").write_text(text)
    with pytest.raises(RatingsError, match="expected ratings from 1 to 5"):
        RatingFile(tmp_path / "ratings.csv")
    assert (tmp_path / "ratings.csv").read_text() == text


def test_a_picture_that_cannot_be_read_is_counted_and_never_shown(folder):
    def describe(picture):
        if picture.stem == "7":
            raise DescriptionError("damaged")
        return described(picture)

    session = session_of(folder, describe)
    shown = set()
    with working(session):
        for _ in range(COUNT - 1):
            number = settled(session, lambda state: state["picture"] is not None)["picture"]
            shown.add(number)
            session.skip(number)
        state = settled(session, lambda state: state["finished"])
    assert shown == set(range(COUNT)) - {7}
    assert (state["failed"], state["skipped"], state["rated"]) == (1, COUNT - 1, 0)


def test_the_picture_that_is_shown_stays_until_it_is_rated(folder):
    session = session_of(folder)
    with working(session):
        first = settled(session, lambda state: state["picture"] is not None)["picture"]
        settled(session, lambda state: state["following"] is not None)
        shown = {session.state()["picture"] for _ in range(50)}
        session.rate(first, 3)
        assert session.state()["picture"] != first
        session.undo()
        assert session.state()["picture"] == first
    assert shown == {first}


def test_what_ratings_teach_is_told_as_they_grow(folder):
    """q knows nothing of the rule, and the ratings teach it."""
    session = session_of(folder)
    with working(session):
        rate_all(session, 10)
        settled(session, lambda state: state["steps"])
        rate_all(session, 20)
        steps = settled(session, lambda state: state["steps"][-1]["ratings"] == 30)["steps"]
    assert steps[0]["ratings"] == 10
    assert steps[-1]["holds"]
    assert steps[-1]["srcc"] > 0.8 > steps[-1]["srcc_without"]


def test_equal_ratings_teach_nothing_and_it_is_said(folder):
    session = session_of(folder)
    with working(session):
        for _ in range(10):
            number = settled(session, lambda state: state["picture"] is not None)["picture"]
            session.rate(number, 3)
        state = settled(session, lambda state: state["steps"])
    assert "all are the same" in state["advice"]


def step(ratings, srcc, holds=True):
    return Step(ratings, srcc, 0.4, 0.95 if holds else 0.5, holds)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            [step(10, 0.5, False)],
            "it is not sure yet that an eye orders your pictures better than q",
        ),
        ([step(10, 0.5), step(20, 0.6)], "still make it better"),
        ([step(10, 0.5), step(30, 0.7), step(50, 0.705)], "change little now"),
        ([step(10, 0.5), step(30, 0.6), step(50, 0.65)], "still make it better"),
    ],
)
def test_it_is_said_whether_more_ratings_help(steps, said):
    assert said in advice_after(steps)


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_of_what_is_rated_is_not_next(seed):
    statistics = np.random.default_rng(seed).normal(size=(20, 40))
    statistics[1] = statistics[0]
    assert most_informative(statistics, [0], [1, 5]) == 5


def test_requests_of_others_and_of_nonsense_are_refused(folder):
    with TestClient(make_app(session_of(folder)), base_url="http://localhost") as client:
        own = {"Origin": "http://localhost"}
        assert client.post("/v1/ratings", json={"number": 0, "rating": 4}, headers=own).is_success
        for sent, status in [
            ({"number": 1, "rating": 6}, 400),
            ({"number": COUNT, "rating": 3}, 404),
            ({"number": -1, "rating": 3}, 400),
            ({"number": 0, "rating": 3}, 409),
        ]:
            answer = client.post("/v1/ratings", json=sent, headers=own)
            assert answer.status_code == status
            assert answer.json()["error"]["message"]
        foreign = {"Origin": "http://evil.example"}
        refused = client.post("/v1/ratings", json={"number": 2, "rating": 3}, headers=foreign)
        assert refused.status_code == 403
        assert client.get("/v1/state", headers={"Host": "evil.example"}).status_code == 400
        assert client.get("/v1/pictures/0").content == (folder / "0.png").read_bytes()
    assert (folder / "ratings.csv").read_text() == "image,rating\n0.png,4\n"


def test_what_browsers_cannot_show_goes_as_png(tmp_path):
    Image.new("RGB", (50, 40), (9, 99, 199)).save(tmp_path / "0.tiff")
    session = session_of(tmp_path, pictures=[tmp_path / "0.tiff"])
    with TestClient(make_app(session), base_url="http://localhost") as client:
        answer = client.get("/v1/pictures/0")
    assert answer.headers["content-type"] == "image/png"
    assert answer.content.startswith(b"\x89PNG")


@contextmanager
def served(folder, home):
    """The command's process, with its address; ended as Ctrl-C ends it."""
    environment = os.environ | {"XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # fmt: skip
    line = [sys.executable, "-m", "agentic_iqa_local", "rate", folder, "--port", "0", "--cpu"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said = process.stderr.readline()
            yield re.search(r"http://127\.0\.0\.1:\d+", said)[0], process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@needs_chromium
def test_a_folder_is_rated_with_the_keyboard_alone(tmp_path, photo):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        photo.rotate(90 * number).resize((160, 120)).save(folder / f"{number}.png")
    with served(folder, tmp_path / "state") as (address, process):
        with browser_page() as watched:
            page = watched.page
            page.goto(address)
            page.wait_for_selector("#picture:not([hidden])", timeout=120000)
            assert findings_of_looks(page) == []
            for count, key in enumerate("51", 1):
                page.keyboard.press(key)
                page.wait_for_selector(f"#count:has-text('{count} of 4 rated')")
                page.wait_for_selector("#picture:not([hidden])", timeout=120000)
            page.keyboard.press("u")
            page.wait_for_selector("#count:has-text('1 of 4 rated')")
            page.keyboard.press("s")
            page.wait_for_selector("#count:has-text('1 skipped')")
            page.keyboard.press("z")
            assert page.get_attribute("#zoom", "aria-pressed") == "true"
            page.wait_for_selector("#picture:not([hidden])", timeout=120000)
            page.click("text=Good")
            page.wait_for_selector("#count:has-text('2 of 4 rated')")
            assert findings_of_looks(page) == []
            assert watched.complaints == []
            assert watched.strangers(address) == []
        assert httpx.get(f"{address}/v1/state").json()["rated"] == 2
        process.send_signal(signal.SIGINT)
        ended = process.stderr.read()
    assert process.returncode == 0
    assert "2 ratings" in ended
    assert "learn" in ended
    ratings = read_ratings(folder / "ratings.csv").levels.tolist()
    assert ratings == [5, 4]
