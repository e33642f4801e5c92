"""What follows from an interval: closer looks, another plan, answers held back, a gate. The calibration has 201
errors from −1 to 1 level in steps of 0.01, so that its quantiles are known."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, scored, scripted_answers, scripted_services
from test_intervals import calibration as calibrated
from test_intervals import errors

from agentic_iqa_local.config import DecisionSettings, Settings, load_settings
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import Fit, calibration_for
from agentic_iqa_local.judgement.gates import Sureness
from agentic_iqa_local.judgement.intervals import FEATURES, Answers, IntervalCalibration
from agentic_iqa_local.nodes.letter_reading import read_and_fuse
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.result import Condition
from agentic_iqa_local.state import LOOKS, FusionResult, PlannerOutput, revised

SAMPLE = Path(__file__).parent / "data" / "sumac.png"
LIKE_HALF = {"A": 0.1, "B": 0.4, "C": 0.4, "D": 0.05, "E": 0.05}
PLAN = {"query_type": "IQA", "query_scope": "Global", "distortion_source": "Inferred",
        "reference_mode": "No-Reference", "plan": {}}  # fmt: skip


def calibration(**changes) -> IntervalCalibration:
    """Every picture has difficulty 1, however it was assessed."""
    part = errors(np.round(np.linspace(-1, 1, 201), 2).tolist())
    ratings = []
    for pipeline, look in itertools.product(("agent", "letters"), LOOKS):
        condition = Condition(pipeline=pipeline, reference=False, look=look)
        ratings.append(revised(part, condition=condition))
    about = {"query": DEFAULT_QUERY, "eta": "auto"}
    return revised(calibrated(*ratings), **about | changes)


def sureness(of=None, *, query=DEFAULT_QUERY, unlike_photograph=False, **decisions) -> Sureness:
    how = {"query": query, "unlike_photograph": unlike_photograph}
    return Sureness(DecisionSettings(**decisions), of or calibration(), "letters", **how)


def fused(q=3.0, **changes) -> FusionResult:
    fields = {"mode": "logits", "vlm_letter": "C", "p_c": LIKE_HALF, "off_letter_mass": 0.0, "q": q,
              "q_bar": q, "eta": 1.0, "voters": ["NIQE"], "disagreement": 0.0}  # fmt: skip
    return FusionResult(**fields | changes)


@pytest.fixture
def large(tmp_path):
    """A picture of one view of which five crops can be read."""
    pixels = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return str(tmp_path / "picture.png")


@pytest.mark.parametrize(
    ("decisions", "reads", "both_orders", "crops"),
    [
        ({"target_width": 2.0}, 1, False, 0),  # it is narrow enough
        ({"target_width": 1.0}, 12, True, 5),  # the other order, then five crops in both
        ({"target_width": 1.0, "most_reads": 11}, 2, True, 0),  # crops would be ten more
    ],
)
def test_letters_are_read_closer_while_the_interval_is_too_wide(
    large, decisions, reads, both_orders, crops
):
    """The interval is 1.82 levels wide at every look."""
    client = ScriptedClient(
        scripted_answers(), {letter: math.log(p) for letter, p in LIKE_HALF.items()}
    )
    bench = Workbench(scripted_services(client, ScriptedTools({}), Settings()), large)
    bench.wants_more = sureness(**decisions).wants_more
    fusion = read_and_fuse(DEFAULT_QUERY, scored(NIQE=3.0), bench)
    read = [name for name, _ in client.calls].count("read_letters")
    assert (read, fusion.both_orders, fusion.crops) == (reads, both_orders, crops)
    if crops:  # E[level] is 3.45 by LIKE_HALF and 2.55 by its mirror, which the other order gives
        assert (fusion.order_gap, fusion.crop_spread) == pytest.approx((0.9, 0), abs=1e-12)


@pytest.mark.parametrize(
    ("of", "fusion", "plan", "reason", "ends"),
    [
        # 202·3.25 % = 6.6 and 202·1.75 % = 3.5: the 6th from below and the 3rd from above
        (sureness(query="How good is it?"), fused(), {}, "learnt for another query", (2.05, 3.98)),
        (sureness(), fused(voters=["PIQE"]), {}, "measured by just PIQE", (2.05, 3.98)),
        (
            sureness(),
            fused(),
            {"distortion_source": "Explicit", "distortions": {"Global": ["Noise"]}},
            "particular",
            (2.05, 3.98),
        ),
        (sureness(unlike_photograph=True), fused(), {}, "unlike the photographs", (1, 5)),
    ],
)
def test_an_answer_a_little_unlike_them_has_a_wider_one(of, fusion, plan, reason, ends):
    interval = of.fields(fusion, PlannerOutput(**PLAN | plan))["interval"]
    assert [reason in line for line in interval.widened] == [True]
    assert (interval.low, interval.high) == pytest.approx(ends, abs=0.011)


@pytest.mark.parametrize(
    ("q", "options", "verdict", "probability"),
    [
        (4.6, {}, "pass", 1.0),  # the truth is 3.6 or better
        (4.3, {}, "pass", 181 / 201),  # 3.5 and more: errors from −0.8 on
        (
            4.3,
            {"query": "How good is it?"},
            "unsure",
            181 / 201,
        ),  # a widened interval halves the error rate
        (2.4, {}, "fail", 0.0),
        (4.6, {"unlike_photograph": True}, "unsure", 1.0),
    ],
)
def test_a_gate_decides_only_where_it_is_sure_enough(q, options, verdict, probability):
    of = sureness(at_least=3.5, **options)
    gate = of.fields(fused(q), None)["gate"]
    assert gate.verdict == verdict
    assert gate.probability == pytest.approx(probability, abs=1 / 201)


NOT_CALIBRATED = [
    (fused(mode="classification"), None, "calibrated in mode logits, this is mode classification"),
    (fused(), PlannerOutput(**PLAN | {"query_scope": ["sky"]}), "the query is about a part"),
    (fused(q_bar=None, voters=[]), None, "no tool scored this picture"),
]


@pytest.mark.parametrize(("fusion", "plan", "reason"), NOT_CALIBRATED)
def test_without_an_interval_nothing_passes_a_gate(fusion, plan, reason):
    found = sureness(at_least=3.5).fields(fusion, plan)
    assert found.keys() == {"no_interval", "not_sure"}
    assert reason in found["no_interval"]
    assert found["not_sure"] == "not sure: there is no interval to tell"


def test_a_disagreement_that_makes_an_interval_wide_is_told():
    """A difficulty of 0.1 + 0.5 times the tools' disagreement: of 2 levels that is 1.0 of 1.1, of 0.05 levels 0.025 of
    0.125."""
    weights = dict.fromkeys(FEATURES, 0.0) | {"constant": 0.1, "disagreement": 0.5}
    parts = [revised(part, weights=tuple(weights.values())) for part in calibration().ratings]
    of = sureness(calibration(ratings=tuple(parts)))
    apart, close = (of.fields(fused(disagreement=d), None)["interval"] for d in (2.0, 0.05))
    assert apart.disagreements == ["the tools disagree by 2.0 levels"]
    assert close.disagreements == []


def test_an_answer_that_is_too_unsure_is_held_back():
    held_back = sureness(abstain_wider_than=1.5).fields(fused(), None)["not_sure"]
    assert held_back == "not sure: the interval is 1.82 levels wide, more than 1.5"
    assert sureness(abstain_wider_than=2.0).fields(fused(), None)["not_sure"] is None


def test_a_question_has_a_set_of_answers_or_the_reason_why_not():
    about = {"pipeline": "letters", "reference": False, "measured": False}
    known = Answers(**about, choices=(3,) * 100, right=(0.95,) * 91 + (1.0,) * 9)
    of = sureness(calibration(questions=(known,)))
    asked = fused(None, p_c={"A": 0.9, "B": 0.06, "C": 0.04})
    answers = of.fields(asked, None)["answer_set"]
    assert (answers.letters, answers.widened) == (["A"], [])
    unlike = of.fields(asked, PlannerOutput(**PLAN | {"query_type": "Other"}))["answer_set"]
    assert len(unlike.widened) == 1
    # what is known of the letters alone says nothing of their product with a measurement
    product = revised(asked, product={"A": 0.98, "B": 0.01, "C": 0.01})
    assert "answered with a measurement" in of.fields(product, None)["no_interval"]
    assert sureness("why").fields(asked, None) == {"no_interval": "no set of answers: why"}


def test_the_embedded_model_has_an_interval():
    """The shipped calibration belongs to the shipped model."""
    row = assess(SAMPLE, pipeline="letters")
    assert row.interval.low < row.q < row.interval.high
    assert row.interval.calibrated_on.startswith("people's scores of LIVE Challenge")
    assert row.interval.condition.pipeline == "letters"


def test_a_calibration_of_another_set_up_is_refused(tmp_path):
    model = folder_hash(load_settings().folder("transformers.embedded"))
    about = {"objective": "keep", "dataset": "manifest", "model": model, "keys": ["a.png"]}
    settings = Settings(decisions=DecisionSettings(calibration=str(tmp_path / "fit.json")))
    for change, reason in (
        ({"model": "another"}, "calibrated with another model than embedded"),
        ({"dtype": "bfloat16"}, "calibrated with dtype bfloat16 (here float32); "),
        (
            {"eta": 1.0, "temperature": 3.0},
            "with temperature 3.0 (here 1.0), eta 1.0 (here auto); ",
        ),
        (None, "fit.json calibrates none; fit it anew with agentic-iqa study fit"),
    ):
        of = None if change is None else calibration(**{"model": model} | change)
        fit = Fit(temperature=1.0, eta="auto", intervals=of, **about)
        (tmp_path / "fit.json").write_text(fit.model_dump_json())
        why = calibration_for(
            settings, {"name": "embedded", "dtype": "float32", "quantization": "none"}
        )
        assert reason in why
        assert "agentic-iqa study fit" in why
