"""Faults that a reviewer planted and no test noticed: each test fails with its fault put in."""

import math
from pathlib import Path
from types import SimpleNamespace

import langsmith.utils
import numpy as np
import pytest
from PIL import Image
from scipy.stats import pearsonr, spearmanr
from scripted import (
    ScriptedClient,
    ScriptedSession,
    ScriptedTools,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess, run_pipeline
from agentic_iqa_local.config import Settings
from agentic_iqa_local.config_sections import FusionSettings
from agentic_iqa_local.iqa_tools import ToolReading
from agentic_iqa_local.iqa_tools.calibration import LogisticMap, fit_logistic
from agentic_iqa_local.nodes.evidence import evidence_warnings, object_votes, votes
from agentic_iqa_local.nodes.letter_reading import read_and_fuse, scoring_prompts
from agentic_iqa_local.nodes.prompts import summarizer_prompt
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.request import check_choices
from agentic_iqa_local.score_fusion import ScoreFusion
from agentic_iqa_local.state import ExecutorOutput, PlannerInput
from agentic_iqa_local.studies import statistics
from agentic_iqa_local.studies.inference import infer
from agentic_iqa_local.studies.statistics import agreement, bootstrap
from agentic_iqa_local.studies.statistics.bootstrap import _weighted_correlation
from agentic_iqa_local.vlm_client import LetterRead, TokenUsage, VLMError

QUERY = "Rate the perceptual quality of this image."
PROMPT, PROMPTS = summarizer_prompt(QUERY, None, scoring=True), scoring_prompts(QUERY, None)


class Views(ScriptedClient):
    """Each session, in the order of its opening, has its own share of probability on the letters; the first
    has all of what it has on A, the others on E. Keeps whether each was closed."""

    on_letters = (0.9, 0.8, 0.7, 0.6, 0.5)

    def __init__(self):
        super().__init__(scripted_answers(LetterReply={"final_answer": "C"}))
        self.sessions = []

    def open(self, images):
        session = View(self, images)
        session.number, session.closed = len(self.sessions), False
        self.sessions.append(session)
        return session


class View(ScriptedSession):
    def read_letters(self, prompt, answer_prefix, letters):
        share, chosen = Views.on_letters[self.number % 5], "A" if self.number == 0 else "E"
        found = {letter: math.log(share if letter == chosen else 1e-12) for letter in letters}
        return LetterRead(found, 1 - share, {})

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A picture of five views: more than the scripted client's 1024×1024 pixels."""
    path = tmp_path_factory.mktemp("large") / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), dtype=np.uint8)).save(path)
    return str(path)


def opened(picture: str, client: ScriptedClient, **fusion) -> OpenImages:
    settings = Settings(fusion=FusionSettings(**fusion))
    return OpenImages(scripted_services(client, ScriptedTools({}), settings), picture)


@pytest.mark.parametrize("eta", [0.25, 1.0, 4.0])
def test_alpha_is_as_sharp_as_the_settings_eta(picture, eta):
    images = opened(picture, ScriptedClient(scripted_answers()), eta=eta)
    fusion = read_and_fuse(PROMPTS, [("NIQE", 2.0), ("PIQE", 3.0)], images)
    weights = {c: math.exp(-eta * (2.5 - c) ** 2) for c in range(1, 6)}  # (2) of the paper, with q̄ 2.5
    assert fusion.eta == eta
    assert fusion.alpha == pytest.approx({c: w / sum(weights.values()) for c, w in weights.items()})


def test_alpha_and_the_mean_rest_on_all_tools(picture):
    """Scores 1 and 5 have the mean 3, so that α is symmetric around 3; from one of them alone it leans."""
    images = opened(picture, ScriptedClient(scripted_answers()), eta=1.0)
    for scores in ([("NIQE", 1.0), ("PIQE", 5.0)], [("PIQE", 5.0), ("NIQE", 1.0)]):
        fusion = read_and_fuse(PROMPTS, scores, images)
        assert fusion.q_bar == 3.0
        assert fusion.alpha[1] == pytest.approx(fusion.alpha[5])
        assert fusion.alpha[2] == pytest.approx(fusion.alpha[4])
        assert max(fusion.alpha, key=fusion.alpha.get) == 3


def test_letters_and_what_lies_off_them_are_means_over_all_views(large):
    client = Views()
    images = opened(large, client)
    fusion = read_and_fuse(PROMPTS, [("NIQE", 3.0)], images)
    assert len(client.sessions) == 5
    assert fusion.off_letter_mass == pytest.approx((0.1 + 0.2 + 0.3 + 0.4 + 0.5) / 5)
    assert fusion.p_c == pytest.approx({"A": 0.2, "B": 0, "C": 0, "D": 0, "E": 0.8}, abs=1e-9)


def test_sessions_of_further_views_are_closed_as_soon_as_they_are_read(large):
    client = Views()
    images = opened(large, client)
    read_and_fuse(PROMPTS, [("NIQE", 3.0)], images)
    assert [session.closed for session in client.sessions] == [False, True, True, True, True]
    images.close()
    assert all(session.closed for session in client.sessions)


def test_every_session_is_closed_when_an_assessment_ends(large):
    client = Views()
    row = assess(large, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert row.error is None
    assert len(client.sessions) >= 5
    assert all(session.closed for session in client.sessions)


def test_a_score_without_tools_says_so_in_the_row(picture):
    client = ScriptedClient(scripted_answers())
    row = assess(picture, services=scripted_services(client, ScriptedTools({}, names=["NIQE"])))
    assert "no tool scores: q rests on the model's letters alone" in row.warnings
    scored = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert not any("no tool scores" in line for line in scored.warnings)


@pytest.mark.parametrize("total", [1 - 5e-3, 1 + 5e-3, 1 - 2e-5, 1 + 2e-5])
def test_probabilities_that_do_not_sum_to_one_are_refused(total):
    with pytest.raises(ValueError, match="sum to 1"):
        ScoreFusion().fuse_scores([3.0], dict.fromkeys(range(1, 6), total / 5))


def test_probabilities_rounded_in_the_eighth_place_are_taken():
    assert ScoreFusion().fuse_scores([3.0], dict.fromkeys(range(1, 6), 0.2 + 1e-9)) == pytest.approx(3.0)


# What goes into a run


def test_a_picture_may_have_its_suffix_in_capitals(tmp_path, picture):
    shouted = tmp_path / "PHOTO.PNG"
    shouted.write_bytes(Path(picture).read_bytes())
    assert PlannerInput(query="Rate it.", image_path=str(shouted)).image_path == str(shouted)


@pytest.mark.parametrize("choices", [["Yes", " Yes "], ["Yes", "Yes\n"], ["Yes", "yes"], ["Yes", "  "]])
def test_choices_that_differ_in_blanks_or_capitals_alone_are_refused(choices):
    with pytest.raises(ValueError, match="differ and are not blank"):
        check_choices(choices)


def test_evidence_with_detected_distortions_alone_is_not_empty():
    assert not ExecutorOutput(distortion_set={"Global": ["Blurs"]}).is_empty
    assert ExecutorOutput().is_empty


def test_no_node_is_traced_whatever_the_environment_says(picture, monkeypatch):
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "true")
    langsmith.utils.get_env_var.cache_clear()
    answer, traced = scripted_answers(), []

    def told(*args):
        traced.append(langsmith.utils.tracing_is_enabled())
        return answer(*args)

    try:
        assert langsmith.utils.tracing_is_enabled()  # outside of a run
        client = ScriptedClient(told)
        run_pipeline("Rate it.", picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    finally:
        monkeypatch.undo()
        langsmith.utils.get_env_var.cache_clear()
    assert len(traced) >= 3
    assert not any(traced)


def test_a_pipeline_closes_what_it_opened(picture):
    client = Views()
    run_pipeline("Rate it.", picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert [session.closed for session in client.sessions] == [True]


# What a study stores


class Told(ScriptedTools):
    """NIQE's own number is 7.5, its quality 2.0."""

    def score(self, name, image, reference=None):
        return ToolReading(name, 7.5, 2.0, 0.01)


def inferred(picture, client, **options):
    return infer(picture, None, "Rate it.", scripted_services(client, Told({"NIQE": 2.0})), **options)


def test_the_prompt_without_scores_has_the_analysis_and_no_score(picture):
    client = ScriptedClient(scripted_answers(LetterReply={"final_answer": "C"}))
    inferred(picture, client, contexts=("without_scores",))
    forward, backward = [prompt for name, prompt in client.calls if name == "read_letters"][-2:]
    for prompt in (forward, backward):
        assert "Blurs" in prompt.case
        assert "NIQE" not in prompt.case
        assert "2.0" not in prompt.case
    inferred(picture, client, contexts=("all_evidence",))
    assert all("NIQE" in prompt.case for name, prompt in client.calls[-2:] if name == "read_letters")


def test_a_tools_own_number_and_its_quality_are_stored_apart(picture):
    row = inferred(picture, ScriptedClient(scripted_answers()), contexts=(), tools=("NIQE",))
    assert (row["tools"]["NIQE"]["raw"], row["tools"]["NIQE"]["normalized"]) == (7.5, 2.0)


class Counted(View):
    """Each read of letters prefills ten tokens."""

    def read_letters(self, *args):
        self.usage += TokenUsage(calls=1, prefilled=10)
        return super().read_letters(*args)


class CountedViews(Views):
    def open(self, images):
        session = Counted(self, images)
        session.number, session.closed = len(self.sessions), False
        self.sessions.append(session)
        return session


def test_the_views_of_a_large_picture_are_read_in_their_own_sessions_and_their_cost_adds_up(large):
    client = CountedViews()
    row = inferred(large, client, contexts=("image_alone",))
    views = row["reads"]["image_alone"]["views"]
    likeliest = [max(view["forward"], key=view["forward"].get) for view in views]
    assert likeliest == ["A", "E", "E", "E", "E"]
    assert row["cost"]["image_alone"]["calls"] == row["cost"]["image_alone, reversed"]["calls"] == 5
    assert row["cost"]["image_alone"]["prefilled"] == 50


@pytest.mark.parametrize("of_the_model", [True, False])
def test_only_an_error_of_the_model_is_stored_as_the_models(picture, of_the_model):
    """What the model writes in vain is the row's; what it cannot do is the run's."""
    replies = {"LetterReply": VLMError("no memory") if of_the_model else "no JSON"}
    row = inferred(picture, ScriptedClient(scripted_answers(**replies)), contexts=("image_alone",))
    assert row["error"]
    assert row["model_failed"] is of_the_model


# Statistics and maps


@pytest.mark.parametrize(("undefined", "bounded"), [(5, True), (6, False)])
def test_an_interval_stands_on_nineteen_draws_in_twenty(undefined, bounded):
    """95 of 100 draws are just enough."""
    on_draws = np.where(np.arange(100) < undefined, np.nan, np.linspace(0, 1, 100))
    sampled = statistics.Resampled(0.5, on_draws, SimpleNamespace(over="rows"), np.ones(9, bool), 0)
    assert np.isfinite(statistics.interval(sampled).low) == bounded


def test_a_difference_has_the_failures_of_the_mode_that_failed_more():
    draws = SimpleNamespace(over="rows")
    modes = [
        statistics.Resampled(0.5, np.linspace(0, 1, 40), draws, np.ones(9, bool), failed) for failed in (3, 5)
    ]
    assert statistics.paired_difference(*modes).failed == 5
    assert statistics.paired_difference(*reversed(modes)).failed == 5


@pytest.mark.parametrize(
    ("r_yz", "f"),
    [
        (0.9, 0.1 / (2 * 0.275)),  # Meng, Rosenthal and Rubin's (2): (1 − r_yz) / (2 (1 − r̄²)), r̄² = 0.725
        (0.3, 1.0),  # which would be 1.27 and must not pass 1
    ],
)
def test_mengs_f_is_at_most_one(r_yz, f):
    h = (1 - f * 0.725) / (1 - 0.725)
    z = (math.atanh(0.9) - math.atanh(0.8)) * math.sqrt((50 - 3) / (2 * (1 - r_yz) * h))
    assert statistics.meng(0.9, 0.8, r_yz, 50).z == pytest.approx(z)


def test_srcc_on_draws_counts_ties_as_scipy_does_on_repeated_rows():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, 30).astype(float), rng.integers(0, 4, 30).astype(float)
    on_weights = bootstrap._srcc_on_weights(x, y)
    for _ in range(20):
        weights = rng.integers(0, 4, 30)
        repeated = spearmanr(np.repeat(x, weights), np.repeat(y, weights)).statistic
        assert on_weights(weights) == pytest.approx(repeated)


def test_a_line_is_a_candidate_where_no_curve_converges(monkeypatch):
    """Every search ends where it began: the line alone ranks and correlates as the scores themselves."""
    monkeypatch.setattr(
        agreement, "least_squares", lambda error, start, **options: SimpleNamespace(x=np.array(start))
    )
    x = np.linspace(0, 1, 40)
    y = 3 * x + np.where(np.arange(40) % 2, 0.2, -0.2)
    fit = statistics.vqeg_logistic(x, y)
    assert np.corrcoef(fit.mapped, y)[0, 1] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert fit.parameters[0] == 0


@pytest.mark.parametrize(("b1", "b4"), [(3.0, -0.01), (-3.0, 0.01)])
def test_a_map_is_checked_where_it_is_steepest_and_where_it_is_flattest(b1, b4):
    """The slope is b1·b2/4 + b4 at b3 and about b4 at 100, far from it: one of the two runs the wrong way."""
    found = LogisticMap(
        tool="T", b1=b1, b2=0.5, b3=50.0, b4=b4, b5=3.0, domain=(0.0, 100.0), lower_better=False,
        source="test", fitted_on="none",
    )  # fmt: skip
    assert b1 * 0.5 / 4 * b4 < 0
    assert found.turning_point() is not None


def test_scores_beyond_a_tools_range_count_as_its_end_in_a_fit():
    truth = LogisticMap(
        tool="T", b1=3.0, b2=0.2, b3=40.0, b4=0.005, b5=3.0, domain=(0.0, 100.0), lower_better=False,
        source="test", fitted_on="none",
    )  # fmt: skip
    raw = np.random.default_rng(0).uniform(0, 100, 200)
    quality = np.array([truth.unclipped(value) for value in raw])
    raw[raw > 90] += 1e6
    kept = np.where(raw > 1e5, truth.unclipped(100.0), quality)
    found, _ = fit_logistic(
        raw, kept, tool="T", domain=(0, 100), lower_better=False, source="test", fitted_on="none"
    )
    assert max(abs(found(value) - truth(value)) for value in np.linspace(0, 100, 21)) < 0.02


# Votes and warnings of the evidence


def test_votes_of_one_score_stand_by_the_names_of_their_tools():
    """They come out of a set, whose order differs from process to process."""
    tools = ["BRISQUE", "CLIPIQA", "ILNIQE", "LocalNR", "MANIQA", "MUSIQ", "NIQE", "PIQE"]
    scores = {f"kind {tool}": (tool, 3.0) for tool in reversed(tools)}
    evidence = ExecutorOutput(quality_scores={"Global": scores | {"Blurs": ("TOPIQ", 2.0)}})
    expected = [("TOPIQ", 2.0), *((tool, 3.0) for tool in tools)]
    assert votes(evidence) == object_votes(evidence, "Global") == expected


def test_only_a_region_without_a_box_is_warned_of():
    assert evidence_warnings(ExecutorOutput(boxes={"car": (0, 0, 5, 5)})) == []
    missed = ExecutorOutput(boxes={"sky": None, "car": (0, 0, 5, 5)})
    assert evidence_warnings(missed) == ["no box for sky, tools see the whole image"]


def test_a_column_far_from_zero_is_not_constant():
    """A spread of 0.01 at 10⁹ is far above rounding, which is 10⁻⁷ there."""
    steps = np.array([0, 1, 2, 3, 4, 5, 7, 6]) * 0.005
    found = _weighted_correlation(np.arange(8.0), 1e9 + steps, np.ones(8))
    assert found == pytest.approx(pearsonr(np.arange(8.0), steps).statistic, abs=1e-6)
