"""What is said of distortions: the model's scripted probabilities times a scripted reading of LocalNR. Expected values
follow from odds times odds."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import state
from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools.detector import FamilyError, load_detector, logit
from agentic_iqa_local.nodes.executor import executor_node
from agentic_iqa_local.nodes.measured_answers import measure_choices
from agentic_iqa_local.nodes.query import distortions_in, says_present
from agentic_iqa_local.nodes.summarizer import summarizer_node
from agentic_iqa_local.state import (
    DISTORTION_TYPES,
    ExecutorOutput,
    PlannerOutput,
    SummarizerOutput,
)

PLAN = PlannerOutput.model_validate(plan_reply())


def reading(graphic: float = 0.0, severity: float = 3.0, **presence: float) -> SimpleNamespace:
    """An examination by LocalNR: of each family named its presence, of the others none."""
    named = {kind.replace("_", " "): p for kind, p in presence.items()}
    read = {kind: named.get(kind, 1e-6) for kind in DISTORTION_TYPES}
    about = {
        "severities": dict.fromkeys(read, severity),
        "exposure": {"too dark": 0.5, "too bright": 0.5},
    }
    return SimpleNamespace(
        quality=3.0, presence=read, presence_in_part=read, graphic=graphic, **about
    )


def gather(
    picture, examination, yes=None, severity="moderate", reads_logits=True, listed=(), **settings
) -> ExecutorOutput:
    def answer(prompt, schema, prefix):
        if schema.__name__ != "AnalysisReply":
            return scripted_answers(DetectionReply={"Global": list(listed)})(prompt, schema, prefix)
        kinds = [kind for kind in DISTORTION_TYPES if f'"{kind}"' in prompt.case]
        items = [{"type": kind, "severity": severity, "explanation": "Seen."} for kind in kinds]
        return scripted_answers(AnalysisReply={"Global": items})(prompt, schema, prefix)

    client = ScriptedClient(answer, yes=yes, reads_logits=reads_logits)
    tools = ScriptedTools({"NIQE": 3.0}, examination=examination)
    services = scripted_services(client, tools, Settings(fusion=settings))
    asked = {"query": "Rate it.", "image_path": picture, "plan": PLAN}
    return executor_node(asked, {"configurable": {"services": services}})["executor_evidence"]


def found(evidence: ExecutorOutput) -> set[str]:
    items = (evidence.distortion_analysis or {}).get("Global", [])
    return {item.type for item in items if item.severity != "none"}


@pytest.mark.parametrize("kind", DISTORTION_TYPES)
def test_a_sure_model_wins_against_a_wrong_reading_and_an_unsure_one_loses_against_a_clear_one(
    picture, kind
):
    there, absent = reading(**{kind: 1 - 1e-6}), reading()
    assert kind in found(gather(picture, absent, yes={kind: 0.99}))
    assert kind not in found(gather(picture, there, yes={kind: 0.01}))
    assert kind in found(gather(picture, there, yes={kind: 0.4}))
    if kind != "Color distortions":  # of which LocalNR misses most, so that its silence says little
        assert kind not in found(gather(picture, absent, yes={kind: 0.55}))


def test_the_product_is_odds_times_odds(picture):
    family = (
        gather(picture, reading(Noise=0.9), yes={"Noise": 0.3})
        .detection["Global"]
        .families["Noise"]
    )
    assert family.model == pytest.approx(0.3)
    odds = (0.3 / 0.7) * family.measured / (1 - family.measured)
    assert family.probability == pytest.approx(odds / (1 + odds))


def test_a_model_without_trust_counts_as_the_prior(picture):
    evidence = gather(picture, reading(Noise=0.9), yes={"Noise": 0.999}, model_trust=0)
    family, prior = (
        evidence.detection["Global"].families["Noise"],
        load_detector().no_reference.prior,
    )
    assert logit(family.probability) == pytest.approx(logit(prior) + logit(family.measured))


def test_without_logits_the_list_that_the_model_writes_counts(picture):
    told = {"reads_logits": False, "listed": ["Noise"], "on_missing_logits": "classification"}
    families = gather(picture, reading(Noise=0.5), **told).detection["Global"].families
    assert (families["Noise"].model, families["Blurs"].model) == pytest.approx((0.8, 0.2))


def test_where_localnr_cannot_read_the_model_stands_alone(picture):
    evidence = gather(picture, None, yes={"Blurs": 0.7})
    assert found(evidence) == {"Blurs"}
    assert "scripted to fail" in evidence.detection["Global"].error
    assert evidence.detection["Global"].families["Blurs"].probability == pytest.approx(0.7)


def test_of_graphics_localnrs_reading_counts_for_nothing(picture):
    evidence = gather(picture, reading(graphic=1.0, Noise=1 - 1e-6), yes={"Noise": 0.3})
    assert found(evidence) == set()
    assert evidence.detection["Global"].families["Noise"].probability == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("severity", "word"), [(1.0, "slight"), (2.5, "moderate"), (4.0, "severe"), (5.0, "extreme")]
)
def test_the_severity_is_the_models_words_times_a_gaussian(picture, severity, word):
    examination = reading(severity=severity, Noise=1 - 1e-6)
    evidence = gather(
        picture, examination, yes={"Noise": 0.9}, severity=word, mode="classification"
    )
    (item,) = evidence.distortion_analysis["Global"]
    p = evidence.severity_probabilities["Global"]["Noise"]
    sigma = load_detector().no_reference.severity_sigma
    centres = {"slight": 1.0, "moderate": 2.5, "severe": 4.0, "extreme": 5.0}
    weights = {
        w: (0.8 if w == word else 0.05) * math.exp(-0.5 * ((severity - c) / sigma) ** 2)
        for w, c in centres.items()
    }
    assert item.severity == word
    assert p == pytest.approx(
        {"none": 0.0} | {w: weight / sum(weights.values()) for w, weight in weights.items()}
    )


ERRORS = st.floats(0.01, 0.99)


@given(
    presence=st.floats(0, 1),
    part=st.floats(0, 1),
    hit=ERRORS,
    alarm=ERRORS,
    left_out=st.floats(0, 0.5),
)
def test_a_reading_says_no_more_than_its_record_allows(presence, part, hit, alarm, left_out):
    hit, alarm = max(hit, alarm), min(hit, alarm)
    errors = {"hit": hit, "hit_left_out": alarm, "false_alarm": alarm, "most": 9}
    record = FamilyError(slope=1, slope_in_part=0.5, intercept=0, base=0.2, **errors)
    mixed = (1 - left_out) * hit + left_out * alarm
    ratio = record.log_ratio(presence, part, left_out)
    assert math.log((1 - mixed) / (1 - alarm)) - 1e-9 <= ratio <= math.log(9)


def evidence_of(exposure=(0.5, 0.5), **p: float) -> ExecutorOutput:
    """Evidence with these probabilities of families, each of severity 3."""
    named = {kind.replace("_", " "): value for kind, value in p.items()}
    p = {kind: named.get(kind, 0.05) for kind in DISTORTION_TYPES}
    families = {kind: state.FamilyDetection(probability=p[kind], severity=3.0) for kind in p}
    sides = dict(zip(("too dark", "too bright"), exposure, strict=True))
    words = {"none": 0.0, "slight": 0.1, "moderate": 0.6, "severe": 0.2, "extreme": 0.1}
    return ExecutorOutput(
        detection={"Global": state.Detection(families=families, exposure=sides)},
        severity_probabilities={"Global": dict.fromkeys(named, words)},
        quality_scores={"Global": {"Overall quality": ("LocalNR", 4.2)}},
    )


def test_what_yes_says_of_a_question():
    present = {"Is it noisy?": True, "Is it out of focus?": True, "Is this photo free of noise?": False,
               "Is it sharp?": False, "Are the colours natural?": False, "Does this photo show any distortion?": True,
               "Is it a dog?": None}  # fmt: skip
    assert {query: says_present(query, distortions_in(query)) for query in present} == present


NOISY, DARK = evidence_of(Noise=0.9), evidence_of(exposure=(0.9, 0.1), Brightness_change=0.8)
FAMILIES, YES_NO = ["Blur", "Noise", "JPEG artifacts", "None"], ["Yes", "No"]


@pytest.mark.parametrize(
    ("query", "choices", "known", "p"),
    [
        ("Is it noisy?", YES_NO, NOISY, [0.9, 0.1]),
        ("Is it free of noise?", YES_NO, NOISY, [0.1, 0.9]),
        ("Is it noisy? Yes or no", YES_NO, NOISY, [0.9, 0.1]),  # "no" among the answers denies nothing
        ("Is it too dark? A. Yes B. No", YES_NO, DARK, [0.72, 0.28]),
        ("Too dark or too bright?", ["Too dark", "Too bright", "Neither"], DARK, [0.72, 0.08, 0.2]),
        # moderate, which is no choice, lies as near to slight as to strong and counts for the first; none has the
        # floor of 0.01
        ("How strong is the noise?", ["None", "Slight", "Strong"], NOISY, [0.01 / 1.01, 0.7 / 1.01, 0.3 / 1.01]),
        ("Is it a dog?", YES_NO, NOISY, None),
        ("What is it?", ["A dog", "A cat"], NOISY, None),
        ("What is it?", ["Blur", "A cat"], NOISY, None),
    ],
)  # fmt: skip
def test_choices_that_name_what_was_measured_have_its_probabilities(query, choices, known, p):
    found, _ = measure_choices(query, choices, PLAN, known)
    assert found == (p and pytest.approx(dict(zip("ABCD", p, strict=False))))


@pytest.mark.parametrize(
    ("query", "choices", "known", "answer"),
    [
        ("Which distortion dominates?", FAMILIES, NOISY, "Noise"),
        ("Which distortion dominates?", FAMILIES, evidence_of(), "None"),
        ("Is the quality good?", YES_NO, NOISY, "Yes"),  # LocalNR's score is 4.2
        ("How is the quality?", ["Poor", "Fair", "Good"], NOISY, "Good"),
        ("Is it too bright?", YES_NO, DARK, "No"),
        (
            "What is wrong with it?",
            ["too bright", "too dark", "blurry", "nothing"],
            DARK,
            "too dark",
        ),
    ],
)
def test_the_likeliest_choice_is_what_was_measured(query, choices, known, answer):
    p, _ = measure_choices(query, choices, PLAN, known)
    assert sum(p.values()) == pytest.approx(1)
    assert choices["ABCD".index(max(p, key=p.__getitem__))] == answer


def answered(picture, query, logprobs, **fusion) -> SummarizerOutput:
    """The answer to a question with Yes and No about a noisy picture."""
    client = ScriptedClient(
        scripted_answers(), {letter: math.log(p) for letter, p in logprobs.items()}
    )
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}), Settings(fusion=fusion))
    asked = {"query": query, "image_path": picture, "plan": PLAN, "choices": YES_NO}
    asked["executor_evidence"] = evidence_of(Noise=0.9)
    return summarizer_node(asked, {"configurable": {"services": services}})["summarizer_result"]


def test_a_row_has_the_letters_the_measurement_and_their_product(picture):
    result = answered(picture, "Is it noisy?", {"A": 0.3, "B": 0.6})
    assert result.fusion.p_c == pytest.approx({"A": 1 / 3, "B": 2 / 3})
    assert result.fusion.measured == pytest.approx({"A": 0.9, "B": 0.1})
    assert result.fusion.product == pytest.approx({"A": 0.9 / 1.1, "B": 0.2 / 1.1})
    assert result.final_answer == "A"


def test_letters_that_decide_against_the_measurement_are_named_in_the_reasoning(picture):
    result = answered(picture, "Is it noisy?", {"A": 0.001, "B": 0.998})
    assert result.final_answer == "B"
    assert "The model's letters decided against what was measured." in result.quality_reasoning


def test_letters_about_distortions_count_as_far_as_the_model_is_trusted(picture):
    """Without trust the measurement alone decides; letters about the level of quality always count."""
    noisy = answered(picture, "Is it noisy?", {"A": 0.001, "B": 0.99}, model_trust=0.0)
    assert noisy.final_answer == "A"
    assert noisy.fusion.product == pytest.approx(noisy.fusion.measured)
    assert (
        answered(
            picture, "Is the quality good?", {"A": 0.001, "B": 0.99}, model_trust=0.0
        ).final_answer
        == "B"
    )
