"""Reasoning that contradicts its evidence gives way to the evidence."""

import json
import re

import numpy as np
import pytest
from conftest import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, plan_reply, prompts, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTER_TO_LEVEL, LEVEL_WORDS
from agentic_iqa_local.nodes.reasoning import findings, from_evidence, misstatements, speaks_for_another
from agentic_iqa_local.output.report import account
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput
from agentic_iqa_local.synthetic.distortions import draw_sample


def evidence(*found: tuple[str, str], explanation: str = "It shows.") -> ExecutorOutput:
    items = [
        DistortionAnalysis(type=kind, severity=severity, explanation=explanation) for kind, severity in found
    ]
    return ExecutorOutput(distortion_analysis={"Global": items})


NOISE = evidence(("Noise", "moderate"), ("Compression", "none"))
CLEAN = evidence(("Compression", "none"))


@pytest.mark.parametrize(
    ("text", "known", "level", "wrong"),
    [
        (
            "Moderate compression: Texture is smeared. The quality is fair.",
            CLEAN,
            "Fair",
            "names Compression",
        ),
        ("The image is blurry.", NOISE, None, "names Blurs"),
        *((f"Moderate {kind.lower()}: It shows.", CLEAN, None, f"names {kind}") for kind in DISTORTION_TYPES),
        ("There is JPEG blocking, and noise.", NOISE, None, "names Compression"),
        ("Severe noise covers the sky.", NOISE, None, "calls Noise severe"),
        ("There is no noise.", NOISE, None, "denies Noise"),
        ("No distortion is visible.", NOISE, None, "nothing is visible"),
        ("Edges and textures look natural.", NOISE, None, "nothing is visible"),
        ("The quality is good.", CLEAN, "Fair", "says that the quality is good"),
        ("It has excellent overall quality.", CLEAN, "Poor", "says that the quality is excellent"),
    ],
)
def test_contradictions_are_found(text, known, level, wrong):
    assert any(wrong in line for line in misstatements(text, known, level))


@pytest.mark.parametrize(
    ("text", "known", "level"),
    [
        ("Moderate noise: Grain covers flat areas. The quality is fair.", NOISE, "Fair"),
        ("The image shows moderate noise, but no visible compression artifacts.", NOISE, None),
        ("Noise grows with brightness.", NOISE, None),
        ("The picture is sharp and bright, with good contrast.", NOISE, None),  # virtues
        ("No distortion is visible. The quality is good.", CLEAN, "Good"),
        ("The picture is blurry.", None, None),  # nothing is known of distortions
        ("Fair quality, consistent with a tool score of 2.6.", NOISE, "Fair"),
    ],
)
def test_what_fits_is_left_alone(text, known, level):
    assert misstatements(text, known, level) == []


COLLECTED = [json.loads(line) for line in (DATA / "reasoning.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", COLLECTED, ids=lambda row: row["text"])
def test_sentences_that_a_reviewer_collected(row):
    """Sound and wrong ones, as a capable model might write them, collected by someone who had not written the
    check."""
    known = evidence(*row["evidence"].items())
    assert bool(misstatements(row["text"], known, row["level"])) is not row["sound"]


SENTENCES = st.sampled_from(
    ["Edges appear soft.", "Grain covers flat areas.", "No distortion is visible.", "Block edges and ringing show.", "It shows.",
     "The quality is bad.", "Severe blur.", "Halos line the edges."]
)  # fmt: skip
ITEMS = st.lists(
    st.builds(
        DistortionAnalysis,
        type=st.sampled_from(DISTORTION_TYPES),
        severity=st.sampled_from(["none", "slight", "moderate", "severe", "extreme"]),
        explanation=SENTENCES,
    ),
    max_size=3,
    unique_by=lambda item: item.type,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["Global", "sky"]), ITEMS), st.sampled_from([None, *LEVEL_WORDS.values()])
)
def test_sentences_made_of_the_evidence_never_contradict_it(analysis, level):
    known = ExecutorOutput(distortion_analysis=analysis)
    text = from_evidence(known, level)
    assert misstatements(text, known, level) == []
    for items in findings(known).values():
        for item in items:
            assert f"{item.severity} {item.type}".casefold() in text.casefold()


def test_only_an_object_that_was_judged_can_be_without_distortions():
    assert from_evidence(ExecutorOutput(distortion_analysis={}), "Fair") == "The quality is fair."
    judged = ExecutorOutput(distortion_analysis={"Global": []})
    assert from_evidence(judged, "Fair") == "No visible distortion was found. The quality is fair."


def summaries(*texts: str) -> list[str]:
    return [
        json.dumps({"final_answer": "C", "quality_reasoning": text}).replace('": "', '": "', 1)
        for text in texts
    ]


def asked(picture, *texts):
    """An assessment whose model analyses a moderate blur and then reasons with `texts`, one a try."""
    client = ScriptedClient(
        scripted_answers(SummaryReply=[reply.replace(", ", ",", 0) for reply in summaries(*texts)])
    )
    row = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    return row, prompts(client, "SummaryReply")


def test_a_contradiction_is_asked_for_again_once_and_a_sound_second_answer_stands(picture):
    row, asked_for = asked(picture, "Severe noise.", "Moderate blur: edges are soft.")
    assert row.quality_reasoning.startswith("Moderate blur: edges are soft.")
    assert row.reasoning_corrections == []
    assert len(asked_for) == 2
    assert asked_for[1].case.endswith(
        "Your reasoning must agree with this: Moderate blurs: Edges appear soft. The quality is fair."
    )


def test_a_contradiction_said_twice_gives_way_to_the_evidence_and_the_account_says_so(picture):
    row, asked_for = asked(picture, "Severe noise.", "Severe noise again.", "never asked")
    assert row.quality_reasoning.startswith("Moderate blurs: Edges appear soft. The quality is fair.")
    assert row.reasoning_corrections == ["names Noise, which the evidence does not hold"]
    assert len(asked_for) == 2
    assert "the model's own words contradicted them" in " ".join(account(row).split())


def test_reasoning_that_fits_is_asked_for_once(picture):
    row, asked_for = asked(picture, "Moderate blur.")
    assert row.quality_reasoning.startswith("Moderate blur.")
    assert len(asked_for) == 1


@pytest.mark.parametrize(
    ("text", "chosen", "wrong"),
    [
        ("Blurs: Edges smear in one direction.", "None", True),
        ("Blurs: Edges smear in one direction.", "Blur", False),
        ("There is more noise than blur.", "Noise", False),  # it names both
        ("No distortion is visible.", "None", False),
    ],
)
def test_reasoning_that_speaks_for_another_answer_is_found(text, chosen, wrong):
    assert bool(speaks_for_another(text, ["Blur", "Noise", "Compression", "None"], chosen)) is wrong


def test_reasoning_for_another_answer_gives_way_to_the_chosen_one(picture):
    """The letters prefer C (no, none is everyday): the written reason speaks for A."""
    said = '{"final_answer": "C", "quality_reasoning": "A red ball, plainly."}'
    letters = {"A": -3.0, "B": -3.0, "C": -0.2}
    client = ScriptedClient(
        scripted_answers(PlannerReply=plan_reply(query_type="Other"), SummaryReply=said), letters
    )
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}))
    row = assess(
        picture,
        query="What lies on the grass?",
        choices=["red ball", "blue ball", "kite"],
        services=services,
    )
    assert row.final_answer == "C"
    assert row.quality_reasoning.startswith("The most probable answer is kite (0.")
    assert row.reasoning_corrections == ["speaks for red ball, the answer is kite"]


def test_what_was_looked_for_in_vain_is_no_finding(picture):
    row, _ = asked(picture, "Moderate blur.")
    row = row.model_copy(update={"evidence": CLEAN})
    told = account(row)
    assert "no distortion found (looked for Compression)" in told
    assert "none Compression" not in told


SAID = re.compile(r"^(Slight|Moderate|Severe|Extreme) ([a-z ]+?)(?: of [^:.]+)?[:.]")


def test_a_hundred_default_queries_of_the_shipped_model_contradict_nothing(services, tmp_path):
    """Judged apart from the rules: the first sentence is the severity and type of a finding, or says that
    there is none; the level named is the fused one."""
    rng = np.random.default_rng(14)
    photos = [np.asarray(Image.open(DATA / name).convert("RGB")) for name in ("sumac.png", "prudential.png")]
    wrong = []
    for i in range(100):
        top, left = rng.integers(0, 512 - 224, 2)
        sample = draw_sample(photos[i % 2][top : top + 224, left : left + 224], rng)
        Image.fromarray(sample.image).save(tmp_path / "crop.png")
        row = assess(tmp_path / "crop.png", services=services)
        assert row.error is None
        held = {(x.severity, x.type.lower()) for items in findings(row.evidence).values() for x in items}
        text = row.quality_reasoning
        said = SAID.match(text)
        fits = (said[1].lower(), said[2]) in held if said else not held
        level = LEVEL_WORDS[LETTER_TO_LEVEL[row.final_answer]].lower()
        if not fits or f"The quality is {level}." not in text:
            wrong.append((text, held, row.final_answer))
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "contradicts"),
    [
        ("Moderate blurs in the upper-left corner.", False),
        ("The top left is soft. The quality is fair.", False),
        ("Moderate blurs at the bottom right.", True),
        ("The left lower part is soft.", True),
        ("Moderate blurs. The quality is fair.", False),
    ],
)
def test_a_quarter_that_the_map_does_not_have_is_a_misstatement(text, contradicts):
    found = DistortionAnalysis(type="Blurs", severity="moderate", explanation="Edges appear soft.")
    held = ExecutorOutput(distortion_analysis={"Global": [found]}, damaged_part="top left")
    assert any("LocalNR's map" in line for line in misstatements(text, held, "Fair")) is contradicts
    assert "LocalNR's map has the damage in the top left quarter." in from_evidence(held, "Fair")
