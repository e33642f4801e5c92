"""The letters of a picture that is read in several views, and what every run must leave behind: closed sessions, no
trace."""

import math

import langsmith.utils
import numpy as np
import pytest
from PIL import Image
from scripted import (
    ScriptedClient,
    ScriptedSession,
    ScriptedTools,
    scored,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess, run_pipeline
from agentic_iqa_local.config import FusionSettings, Settings
from agentic_iqa_local.nodes.letter_reading import read_and_fuse, read_choices
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.nodes.workbench import Workbench

RATING = "Rate the perceptual quality of this image."


class Views(ScriptedClient):
    """Each session, in the order of its opening, has less probability on the letters; the first has it on A, the
    others on E. Keeps whether each was closed."""

    def __init__(self):
        super().__init__(scripted_answers())
        self.sessions = []

    def open(self, images):
        self.sessions.append(View(self, images))
        self.sessions[-1].number = (len(self.sessions) - 1) % 5
        return self.sessions[-1]


class View(ScriptedSession):
    closed = False

    def read_letters(self, prompt, answer_prefix, letters):
        share, chosen = 0.9 - self.number / 10, "A" if self.number == 0 else "E"
        return self.read(
            {letter: math.log(share if letter == chosen else 1e-12) for letter in letters}
        )

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A picture of five views: more than the scripted client's 1024×1024 pixels."""
    path = tmp_path_factory.mktemp("large") / "large.png"
    Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), dtype=np.uint8)
    ).save(path)
    return str(path)


def test_letters_are_means_over_all_views_which_are_then_closed(large):
    client = Views()
    bench = Workbench(scripted_services(client, ScriptedTools({})), large)
    fusion = read_and_fuse(RATING, scored(NIQE=3.0), bench)
    assert fusion.off_letter_mass == pytest.approx(0.3)  # the mean of 0.1 to 0.5
    assert fusion.p_c == pytest.approx({"A": 0.2, "B": 0, "C": 0, "D": 0, "E": 0.8}, abs=1e-9)
    assert [session.closed for session in client.sessions] == [False, True, True, True, True]


def test_an_assessment_that_ends_frees_its_pixels(large):
    bench = Workbench(scripted_services(Views(), ScriptedTools({})), large)
    pixels = bench.pictures.image.pixels
    bench.close()
    with pytest.raises(ValueError, match="closed"):
        pixels.getpixel((0, 0))


def straying() -> ScriptedClient:
    """A model that writes something else than a letter with a probability of 0.9."""
    client = ScriptedClient(scripted_answers())
    shares = dict(zip("ABCDE", [0.09, *[0.0025] * 4], strict=True))
    client.logprobs = {letter: math.log(share) for letter, share in shares.items()}
    return client


@pytest.mark.parametrize(("temperature", "answers"), [(1.0, ["A to E"]), (100.0, [])])
def test_a_model_that_strays_is_told_of_where_its_letters_count(picture, temperature, answers):
    """At a temperature of 100 the letters are as good as flat: q is what the tools say."""
    settings = Settings(fusion=FusionSettings(temperature=temperature))
    services = scripted_services(straying(), ScriptedTools({}), settings)
    bench = Workbench(services, picture)
    read_and_fuse(RATING, scored(NIQE=3.0), bench)
    said = [line.partition(":")[0] for line in bench.warnings]
    assert said == [f"the model did not keep to the answers {named}" for named in answers]


@pytest.mark.parametrize("count", [True, False])
def test_the_choices_are_named_where_their_letters_count(picture, count):
    services = scripted_services(straying(), ScriptedTools({}))
    bench = Workbench(services, picture)
    read_choices(Prompt("", ""), ["sharp", "blurred"], bench, count=count)
    said = [line.partition(":")[0] for line in bench.warnings]
    assert said == ["the model did not keep to the answers sharp, blurred"] * count


def test_every_session_is_closed_at_the_end(large, picture):
    client = Views()
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}))
    assert assess(large, services=services).error is None
    run_pipeline("Rate it.", picture, services=services)
    assert len(client.sessions) >= 6
    assert all(session.closed for session in client.sessions)


def test_no_node_is_traced_whatever_the_environment_says(picture, monkeypatch):
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    langsmith.utils.get_env_var.cache_clear()
    answer, traced = scripted_answers(), []

    def told(*args):
        traced.append(langsmith.utils.tracing_is_enabled())
        return answer(*args)

    assert langsmith.utils.tracing_is_enabled()  # outside of a run
    services = scripted_services(ScriptedClient(told), ScriptedTools({"NIQE": 3.0}))
    run_pipeline("Rate it.", picture, services=services)
    monkeypatch.undo()
    langsmith.utils.get_env_var.cache_clear()
    assert len(traced) >= 3
    assert not any(traced)
