"""What follows from an interval: closer looks, another plan, answers held back, a gate. The calibration has
201 errors from −1 to 1 level in steps of 0.01, so that its quantiles are known."""

import json
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, scripted_answers, scripted_services

from agentic_iqa_local import IQA
from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.cli.assess import main
from agentic_iqa_local.config import Settings, load_settings
from agentic_iqa_local.config_sections import ConfigError, DecisionSettings
from agentic_iqa_local.judgement.assessment import answered, assess, question
from agentic_iqa_local.judgement.calibrations import calibration_for
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.judgement.intervals import (
    FEATURES,
    LOOKS,
    Answers,
    Condition,
    Errors,
    IntervalCalibration,
)
from agentic_iqa_local.judgement.sureness import Sureness
from agentic_iqa_local.levels import lower_edge
from agentic_iqa_local.nodes.letter_reading import read_and_fuse, scoring_prompts
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.output.tally import Tally
from agentic_iqa_local.provenance import folder_hash
from agentic_iqa_local.state import FusionResult, PlannerOutput

SAMPLE = Path(__file__).parent / "data" / "sumac.png"
ERRORS = tuple(np.round(np.linspace(-1, 1, 201), 2).tolist())
ALIKE = tuple(float(name == "constant") for name in FEATURES)  # every picture has difficulty 1
LIKE_HALF = {"A": 0.1, "B": 0.4, "C": 0.4, "D": 0.05, "E": 0.05}
PLAN = {"query_type": "IQA", "query_scope": "Global", "distortion_source": "Inferred",
        "reference_mode": "No-Reference", "plan": {}}  # fmt: skip


def calibration(errors=ERRORS, weights=ALIKE, tools=(("NIQE",),), **changes) -> IntervalCalibration:
    ratings = [
        Errors(
            condition=Condition(pipeline=pipeline, reference=False, look=look),
            line=(0.0, 1.0),
            weights=weights,
            errors=errors,
            difficulties=(1.0,) * len(errors),
            tools=tools,
        )
        for pipeline in ("agent", "letters")
        for look in LOOKS
    ]
    fields = {
        "source": "a test", "images": len(errors), "date": "2026-11-24", "model": "M", "dtype": "float32",
        "quantization": "none", "query": DEFAULT_QUERY, "mode": "logits", "temperature": 1.0, "eta": "auto",
        "ratings": tuple(ratings),
    }  # fmt: skip
    return IntervalCalibration(**fields | changes)


def sureness(of=None, *, pipeline="letters", query=DEFAULT_QUERY, **decisions) -> Sureness:
    of = calibration() if of is None else of
    return Sureness(DecisionSettings(**decisions), of, None, pipeline=pipeline, query=query)


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


def looks(picture, **decisions):
    """(the fusion, how often letters were read) of a picture with the calibration above, whose interval is
    1.8 levels wide at every look."""
    client = ScriptedClient(scripted_answers(), {letter: math.log(p) for letter, p in LIKE_HALF.items()})
    images = OpenImages(scripted_services(client, ScriptedTools({}), Settings()), picture)
    images.sureness = sureness(**decisions)
    fusion = read_and_fuse(scoring_prompts(DEFAULT_QUERY, None), [("NIQE", 3.0)], images)
    return fusion, [name for name, _ in client.calls].count("read_letters")


@pytest.mark.parametrize(
    ("decisions", "reads", "both_orders", "crops"),
    [
        ({}, 1, False, 0),  # no width is asked for
        ({"target_width": 2.0}, 1, False, 0),  # it is narrow enough
        ({"target_width": 1.0}, 12, True, 5),  # the other order, then five crops in both
        ({"target_width": 1.0, "most_reads": 2}, 2, True, 0),
        ({"target_width": 1.0, "most_reads": 11}, 2, True, 0),  # crops would be ten more
        ({"target_width": 1.0, "most_seconds": 1e-9}, 1, False, 0),
    ],
)
def test_letters_are_looked_at_more_closely_while_the_interval_is_too_wide(
    large, decisions, reads, both_orders, crops
):
    fusion, read = looks(large, **decisions)
    assert (read, fusion.both_orders, fusion.crops) == (reads, both_orders, crops)


def test_crops_make_up_half_of_the_probabilities(large):
    """Scripted letters are alike in every read, and the reversed order turns them around: the whole picture
    and each crop have the mean of p and its mirror."""
    fusion, _ = looks(large, target_width=1.0)
    mirror = dict(zip("ABCDE", reversed(LIKE_HALF.values()), strict=True))
    assert fusion.p_c == pytest.approx({c: (LIKE_HALF[c] + mirror[c]) / 2 for c in "ABCDE"})
    # E[level] is 3.45 by LIKE_HALF, and its mirror image 2.55 in the other order
    assert fusion.order_gap == pytest.approx(0.9)
    assert fusion.crop_spread == pytest.approx(0, abs=1e-12)


def test_an_interval_lies_between_the_quantiles_of_the_errors():
    """Of 201 errors 202·6.5 % = 13.1 lie at or below the lower end and 202·3.5 % = 7.1 at or above the upper
    one: the ends are the 13th from below, −0.88, and the 7th from above, 0.94."""
    interval, why = sureness().interval(fused(3.0), None)
    assert why is None
    assert interval.widened == []
    assert (interval.low, interval.high) == pytest.approx((2.12, 3.94), abs=0.011)
    assert interval.coverage == 0.9


def test_another_query_widens_it_to_95_percent():
    interval, _ = sureness(query="How good is it?").interval(fused(3.0), None)
    # 202·3.25 % = 6.6 and 202·1.75 % = 3.5: the 6th from below and the 3rd from above
    assert (interval.low, interval.high) == pytest.approx((2.05, 3.98), abs=0.011)
    assert interval.widened == [f"the query is another than the calibration's ({DEFAULT_QUERY})"]


@pytest.mark.parametrize(
    ("fusion", "plan", "reason"),
    [
        (fused(mode="classification"), None, "calibrated in mode logits, this is mode classification"),
        (fused(), PlannerOutput(**PLAN | {"query_scope": ["sky"]}), "the query is about a part"),
        (fused(q_bar=None, voters=[]), None, "no tool scored this picture"),
    ],
)
def test_an_answer_unlike_the_calibrations_has_no_interval(fusion, plan, reason):
    interval, why = sureness().interval(fusion, plan)
    assert interval is None
    assert reason in why


@pytest.mark.parametrize(
    ("fusion", "plan", "reason"),
    [
        (fused(voters=["PIQE"]), None, "measured by just PIQE"),
        (fused(), PlannerOutput(**PLAN | {"distortions": {"Global": ["Noise"]}}), "particular distortions"),
    ],
)
def test_an_answer_that_is_a_little_unlike_them_has_a_wider_one(fusion, plan, reason):
    interval, _ = sureness().interval(fusion, plan)
    assert [reason in line for line in interval.widened] == [True]


def test_too_few_errors_give_the_whole_scale_and_say_so():
    interval, _ = sureness(calibration(errors=ERRORS[:28])).interval(fused(3.0), None)
    assert (interval.low, interval.high) == (1, 5)
    assert interval.widened == ["28 pictures of known quality are fewer than the 29 that 90% need: it is the"
                                " whole scale"]  # fmt: skip


def test_without_a_calibration_the_reason_is_told():
    of = Sureness(missing="no interval: calibrated with another model than qwen; fit it")
    assert of.interval(fused(), None) == (
        None,
        "no interval: calibrated with another model than qwen; fit it",
    )
    assert of.gate(None, 3.0) is None


@pytest.mark.parametrize(
    ("q", "verdict", "probability"),
    [
        (4.6, "pass", 1.0),  # the truth is 3.6 or better
        (3.5, "unsure", 101 / 201),
        (2.4, "fail", 0.0),
        (4.3, "pass", 181 / 201),  # 3.5 and more: errors from −0.8 on
    ],
)
def test_a_gate_decides_only_where_it_is_sure_enough(q, verdict, probability):
    of = sureness(at_least=3.5)
    gate = of.gate(of.interval(fused(q), None)[0], q)
    assert gate.verdict == verdict
    assert gate.probability == pytest.approx(probability, abs=1 / 201)


def test_a_gate_is_stricter_with_a_smaller_error_rate():
    of = sureness(at_least=3.5, error_rate=0.05)
    gate = of.gate(of.interval(fused(4.35), None)[0], 4.35)
    assert gate.probability == pytest.approx(186 / 201, abs=1 / 201)  # errors from −0.85 on
    assert gate.verdict == "unsure"


def test_answers_wider_than_allowed_are_held_back():
    of = sureness(abstain_wider_than=1.5)
    interval, _ = of.interval(fused(3.0), None)
    assert of.not_sure(interval) == "not sure: the interval is 1.82 levels wide, more than 1.5"
    assert of.not_sure(None) == "not sure: there is no interval to tell"
    assert sureness(abstain_wider_than=1.9).not_sure(interval) is None


@pytest.mark.parametrize(
    ("p", "letters"),
    [
        ({"A": 0.9, "B": 0.06, "C": 0.04}, ["A"]),  # B is reached at 0.96
        ({"A": 0.06, "B": 0.86, "C": 0.08}, ["B", "C"]),  # C is reached at 0.94, A at 1
        ({"A": 0.5, "B": 0.3, "C": 0.2}, ["A", "B"]),
    ],
)
def test_a_set_holds_the_choices_that_are_not_ruled_out(p, letters):
    """Of the known questions 91 reach their right answer at 0.95 and nine at 1. A choice that is reached beyond
    0.95 has nine of them at least as far off, and itself: 10 of 101, less than 10 %."""
    known = (0.95,) * 91 + (1.0,) * 9
    of = calibration(
        questions=(Answers(pipeline="letters", reference=False, choices=(3,) * 100, right=known),)
    )
    answers, why = sureness(of).answer_set(p, "logits", None)
    assert why is None
    assert answers.letters == letters


def test_a_set_of_two_choices_is_not_judged_by_questions_of_five():
    of = Answers(
        pipeline="agent",
        reference=False,
        choices=(2,) * 9 + (5,) * 20,
        right=(0.1,) * 9 + (0.7,) * 20,
    )
    assert of.like(2).tolist() == [0.1] * 9
    assert len(of.like(3)) == 29  # nothing about as many choices: all of them


def agent_passes(picture, tools, **decisions):
    client = ScriptedClient(scripted_answers(), {letter: math.log(p) for letter, p in LIKE_HALF.items()})
    settings = Settings(decisions=DecisionSettings(**decisions))
    services = scripted_services(client, ScriptedTools(tools), settings)
    images = OpenImages(services, picture)
    services.__dict__["calibration"] = (
        calibration(tools=(("NIQE",), ("LocalNR",), ("LocalNR", "NIQE"))),
        None,
    )
    state = question(_File(picture), None, None, None, 3, settings)
    return answered(state, images, "agent")


class _File:
    def __init__(self, path):
        self.path = path


def test_a_wide_interval_is_planned_again_and_a_narrow_one_is_not(large):
    wide = agent_passes(large, {"NIQE": 3.3, "LocalNR": 3.4}, target_width=1.0)
    assert wide["iteration_count"] == 2  # the third pass is the last that is allowed
    assert len(wide["passes"]) == 3
    assert not wide["need_replan"]
    assert "levels wide, 1 were asked for" in wide["replan_history"][0]
    narrow = agent_passes(large, {"NIQE": 3.3, "LocalNR": 3.4}, target_width=3.0)
    assert narrow["replan_history"] == []


def test_answers_held_back_are_in_no_mean():
    tally = Tally()
    row = {"image": "a.png", "error": None, "q": 2.0, "final_answer": "D", "choices": None, "gate": None}
    tally.add(row | {"not_sure": None})
    tally.add(row | {"image": "b.png", "q": 4.0, "final_answer": "B", "not_sure": None})
    tally.add(row | {"image": "c.png", "q": 5.0, "final_answer": "A", "not_sure": "not sure: wide"})
    text = tally.text(3, 0)
    assert "3 pictures" in text
    assert "A Excellent 0" in text
    assert "1 not sure" in text
    assert "mean 3.00" in text
    assert "c.png" not in text


@pytest.mark.parametrize(
    ("level", "quality"), [("B", 3.5), ("good", 3.5), ("Excellent", 4.5), ("d", 1.5), ("3.2", 3.2)]
)
def test_a_level_begins_half_way_to_the_one_below(level, quality):
    assert lower_edge(level) == quality


@pytest.mark.parametrize("level", ["E", "bad", "0.9", "5.1", "great", "nan"])
def test_what_is_no_level_is_refused(level):
    with pytest.raises(ValueError, match="expected a level from D"):
        lower_edge(level)


def test_python_takes_the_same_options(picture):
    with pytest.raises(ConfigError, match="at_least: expected a level"):
        IQA(cpu=True, at_least="great")
    with pytest.raises(ConfigError, match="target_width: expected more than 0, got 0"):
        IQA(cpu=True, target_width=0)
    with pytest.raises(ConfigError, match="at_leat: there is no such option; did you mean at_least"):
        IQA(cpu=True, at_leat="B")


def test_the_embedded_model_has_an_interval_that_tells_where_it_is_from():
    """The shipped calibration belongs to the shipped model."""
    row = assess(SAMPLE, pipeline="letters")
    assert row.error is None
    assert row.interval is not None
    assert row.interval.low < row.interval.high
    assert row.interval.calibrated_on.startswith("synthetic distortions")
    assert json.loads(json.dumps(row.to_dict()))["interval"]["condition"]["pipeline"] == "letters"
    assert f"{row.interval.low:.2f} and {row.interval.high:.2f}" in row.explain()


EMBEDDED = {"name": "embedded", "dtype": "float32", "quantization": "none"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "another"}, "calibrated with another model than embedded"),
        ({"dtype": "bfloat16"}, "calibrated with dtype bfloat16, this model runs with float32"),
        ({"quantization": "4bit"}, "calibrated with quantization 4bit, this model runs with none"),
        ({"temperature": 2.0}, "calibrated with temperature 2 and η auto, here they are 1 and auto"),
    ],
)
def test_a_calibration_of_another_set_up_is_refused(tmp_path, change, reason):
    folder = load_settings().folder("transformers.embedded")
    of = calibration(**{"model": folder_hash(folder)} | change)
    fit = Fit(of.temperature, "auto", "keep", 0.0, 0.0, "manifest", of.model, ("a.png",), intervals=of)
    fit.write(tmp_path / "fit.json")
    settings = Settings(decisions=DecisionSettings(calibration=str(tmp_path / "fit.json")))
    found, why = calibration_for(settings, folder, EMBEDDED)
    assert found is None
    assert reason in why
    assert "study.py fit" in why


def test_a_fit_brings_its_intervals(tmp_path):
    folder = load_settings().folder("transformers.embedded")
    of = calibration(model=folder_hash(folder), tools=(("LocalNR",),), source="my pictures")
    Fit(1.0, "auto", "keep", 0.0, 0.0, "manifest", of.model, ("a.png",), intervals=of).write(
        tmp_path / "fit.json"
    )
    with IQA(cpu=True, fit=tmp_path / "fit.json", pipeline="letters") as iqa:
        row = iqa(SAMPLE)
    assert row.error is None
    assert row.interval.calibrated_on == "my pictures, 201 pictures, 2026-11-24"
    # NIQE votes too in the pipeline letters: not as in this calibration
    assert row.interval.widened == ["no picture of the calibration was measured by just LocalNR, NIQE"]


def test_a_fit_without_intervals_says_so(tmp_path):
    folder = load_settings().folder("transformers.embedded")
    fit = Fit(1.0, 1.0, "srcc", 0.7, 0.8, "manifest", folder_hash(folder), ("a.png",))
    fit.write(tmp_path / "fit.json")
    settings = choose_settings(fit=tmp_path / "fit.json")
    found, why = calibration_for(settings, folder, EMBEDDED)
    assert found is None
    assert why.endswith("fit.json calibrates none; fit it anew with study.py fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--most-reads", "3"], "--most-reads: expected with --target-width, which it limits"),
        (["--error-rate", "0.1"], "--error-rate: expected with --at-least"),
        (["--strict"], "--strict: expected with --at-least or --abstain-wider-than"),
        (["--at-least", "super"], "--at-least: expected a level from D (Poor) to A (Excellent) or a number"),
        (["--target-width", "9"], "--target-width: expected 4 or less"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(options, message, capfd):
    with suppress(SystemExit):
        assert main([str(SAMPLE), *options]) == 2
    assert message in capfd.readouterr().err
