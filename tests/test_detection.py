"""What is said of distortions: the model's scripted probabilities times a scripted reading of LocalNR. Expected values
follow from odds times odds."""

import math
from types import SimpleNamespace

import pytest
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import state
from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools.detector import FamilyError, load_detector, logit
from agentic_iqa_local.nodes.evidence import found_damage
from agentic_iqa_local.nodes.executor import executor_node
from agentic_iqa_local.nodes.measured_answers import measure_choices
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
        "measures": {},
    }
    return SimpleNamespace(
        quality=3.0, presence=read, presence_in_part=read, graphic=graphic, **about
    )


def gather(
    picture, examination, yes=None, severity="moderate", reads_logits=True, listed=(), **settings
) -> ExecutorOutput:
    def answer(prompt, schema):
        if schema.__name__ != "AnalysisReply":
            return scripted_answers(DetectionReply={"Global": list(listed)})(prompt, schema)
        kinds = [kind for kind in DISTORTION_TYPES if f'"{kind}"' in prompt.case]
        items = [{"type": kind, "severity": severity, "explanation": "Seen."} for kind in kinds]
        return scripted_answers(AnalysisReply={"Global": items})(prompt, schema)

    client = ScriptedClient(answer, yes=yes, reads_logits=reads_logits)
    tools = ScriptedTools({"NIQE": 3.0}, examination=examination)
    services = scripted_services(client, tools, Settings(fusion=settings))
    asked = {"query": "Rate it.", "image_path": picture, "plan": PLAN}
    return executor_node(asked, {"configurable": {"services": services}})["executor_evidence"]


@pytest.mark.parametrize(
    ("read", "yes", "there"),
    [(1e-6, 0.99, True), (1 - 1e-6, 0.01, False), (1 - 1e-6, 0.4, True), (1e-6, 0.55, False)],
)
def test_the_surer_of_model_and_reading_wins(picture, read, yes, there):
    evidence = gather(picture, reading(Noise=read), yes={"Noise": yes})
    assert ("Noise" in {one.type for one in found_damage(evidence)}) is there


def family_of(evidence: ExecutorOutput, kind: str = "Noise") -> state.FamilyDetection:
    return evidence.detection["Global"].families[kind]


@pytest.mark.parametrize(("trust", "counts"), [(1, 0.3), (0, load_detector().no_reference.prior)])
def test_the_product_is_odds_times_odds(picture, trust, counts):
    """A model without trust counts as the prior."""
    given = {"yes": {"Noise": 0.3}, "model_trust": trust}
    family = family_of(gather(picture, reading(Noise=0.9), **given))
    assert family.model == pytest.approx(0.3)
    assert logit(family.probability) == pytest.approx(logit(counts) + logit(family.measured))


def test_without_logits_the_list_that_the_model_writes_counts(picture):
    told = {"reads_logits": False, "listed": ["Noise"], "on_missing_logits": "classification"}
    evidence = gather(picture, reading(Noise=0.5), **told)
    assert family_of(evidence, "Noise").model == pytest.approx(0.8)
    assert family_of(evidence, "Blurs").model == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("read", "error"),
    [(None, "scripted to fail"), (reading(graphic=1.0, Noise=1 - 1e-6), "photographs alone")],
)
def test_where_localnr_cannot_read_the_model_stands_alone(picture, read, error):
    evidence = gather(picture, read, yes={"Noise": 0.3})
    assert error in evidence.detection["Global"].error
    assert family_of(evidence).probability == pytest.approx(0.3)


def test_the_severity_is_the_models_words_times_a_gaussian(picture):
    told = {"yes": {"Noise": 0.9}, "severity": "severe", "mode": "classification"}
    evidence = gather(picture, reading(severity=4.0, Noise=1 - 1e-6), **told)
    p = evidence.severity_probabilities["Global"]["Noise"]
    distance = (4.0 - 2.5) / load_detector().no_reference.severity_sigma
    assert sum(p.values()) == pytest.approx(1)
    assert p["severe"] / p["moderate"] == pytest.approx(0.8 / 0.05 * math.exp(distance**2 / 2))
    assert evidence.distortion_analysis["Global"][0].severity == "severe"


def test_a_reading_says_no_more_than_its_record_allows():
    errors = {"hit": 0.9, "hit_left_out": 0.5, "false_alarm": 0.1, "most": 9}
    record = FamilyError(slope=1, slope_in_part=0.5, intercept=0, base=0.2, **errors)
    assert record.log_ratio(1, 1, 0) == pytest.approx(math.log(9))
    assert record.log_ratio(0, 0, 0) == pytest.approx(math.log((1 - 0.9) / (1 - 0.1)))


def evidence_of(exposure=(0.5, 0.5), pixelation=None, **p: float) -> ExecutorOutput:
    """Evidence with these probabilities of families, each of severity 3."""
    named = {kind.replace("_", " "): value for kind, value in p.items()}
    p = {kind: named.get(kind, 0.05) for kind in DISTORTION_TYPES}
    families = {kind: state.FamilyDetection(probability=p[kind], severity=3.0) for kind in p}
    sides = dict(zip(("too dark", "too bright"), exposure, strict=True))
    words = {"none": 0.0, "slight": 0.1, "moderate": 0.6, "severe": 0.2, "extreme": 0.1}
    return ExecutorOutput(
        detection={
            "Global": state.Detection(families=families, exposure=sides, pixelation=pixelation)
        },
        severity_probabilities={"Global": dict.fromkeys(named, words)},
        quality_scores={"Global": {"Overall quality": ("LocalNR", 4.2)}},
    )


NOISY, DARK = evidence_of(Noise=0.9), evidence_of(exposure=(0.9, 0.1), Brightness_change=0.8)
BLOCKS = evidence_of(pixelation=0.9, Compression=0.8)
FAMILIES, YES_NO = ["Blur", "Noise", "JPEG artifacts", "None"], ["Yes", "No"]


@pytest.mark.parametrize(
    ("query", "choices", "known", "p"),
    [
        ("Is it noisy?", YES_NO, NOISY, [0.9, 0.1]),
        ("Is it free of noise?", YES_NO, NOISY, [0.1, 0.9]),
        ("Is it too dark? A. Yes B. No", YES_NO, DARK, [0.72, 0.28]),
        ("Too dark or too bright?", ["Too dark", "Too bright", "Neither"], DARK, [0.72, 0.08, 0.2]),
        # what is no choice is left out: moderate; none has the floor of 0.01
        ("How strong is the noise?", ["None", "Slight", "Strong"], NOISY, [0.01 / 0.31, 0.1 / 0.31, 0.2 / 0.31]),
        ("Is it pixelated?", YES_NO, BLOCKS, [0.72, 0.28]),
        ("Is it compressed?", YES_NO, BLOCKS, [0.8, 0.2]),
        ("Is it a dog?", YES_NO, NOISY, None),
        ("What is it?", ["A dog", "A cat"], NOISY, None),
    ],
)  # fmt: skip
def test_choices_that_name_a_measurement_have_its_probabilities(query, choices, known, p):
    measured, _ = measure_choices(query, choices, PLAN, known)
    assert measured == (p and pytest.approx(dict(zip("ABCD", p, strict=False))))


@pytest.mark.parametrize(
    ("query", "choices", "known", "answer"),
    [
        ("Which distortion dominates?", FAMILIES, NOISY, "Noise"),
        ("Which distortion dominates?", FAMILIES, evidence_of(), "None"),
        ("Which is it?", ["JPEG artifacts", "Pixelation", "None"], BLOCKS, "Pixelation"),
        ("Is the quality good?", YES_NO, NOISY, "Yes"),  # LocalNR's score is 4.2
        ("How is the quality?", ["Poor", "Fair", "Good"], NOISY, "Good"),
    ],
)
def test_the_likeliest_choice_is_what_was_measured(query, choices, known, answer):
    p, _ = measure_choices(query, choices, PLAN, known)
    assert sum(p.values()) == pytest.approx(1)
    assert choices["ABCD".index(max(p, key=p.__getitem__))] == answer


@pytest.mark.parametrize(
    ("query", "part", "p"),
    [
        ("Which side is worse?", "bottom left", [0.94, 0.06]),
        ("Which side is worse?", "right half", [0.06, 0.94]),
        ("Which side is worse?", "top", None),
        ("Which side is better?", "bottom left", None),
    ],
)
def test_choices_of_sides_are_answered_by_where_the_damage_lies(query, part, p):
    """Of 72 photographs in 100 whose damaged quarter was named, 68 were right: 94 %."""
    known = evidence_of().model_copy(update={"damaged_part": part})
    measured, _ = measure_choices(query, ["the left side", "the right"], PLAN, known)
    assert measured == (p and pytest.approx(dict(zip("AB", p, strict=True))))


def answered(picture, query, a, b, **fusion) -> SummarizerOutput:
    """The answer of a model whose letters have probabilities `a` and `b` to a Yes and No about a noisy picture."""
    client = ScriptedClient(scripted_answers(), {"A": math.log(a), "B": math.log(b)})
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}), Settings(fusion=fusion))
    asked = {"query": query, "image_path": picture, "plan": PLAN, "choices": YES_NO}
    asked["executor_evidence"] = evidence_of(Noise=0.9)
    return summarizer_node(asked, {"configurable": {"services": services}})["summarizer_result"]


def test_a_row_has_the_letters_the_measurement_and_their_product(picture):
    result = answered(picture, "Is it noisy?", 0.3, 0.6)
    assert result.fusion.p_c == pytest.approx({"A": 1 / 3, "B": 2 / 3})
    assert result.fusion.measured == pytest.approx({"A": 0.9, "B": 0.1})
    assert result.fusion.product == pytest.approx({"A": 0.9 / 1.1, "B": 0.2 / 1.1})
    assert result.final_answer == "A"


def test_letters_about_distortions_count_as_far_as_trusted(picture):
    """Without trust the measurement alone decides; letters about the level of quality always count."""
    noisy = answered(picture, "Is it noisy?", 0.001, 0.99, model_trust=0.0)
    assert noisy.fusion.product == pytest.approx(noisy.fusion.measured)
    good = answered(picture, "Is the quality good?", 0.001, 0.99, model_trust=0.0)
    assert good.final_answer == "B"
    assert "by the tools' scores it has 0.1" in good.quality_reasoning
