"""What a query says in so many words: the committed table of everyday queries, by rule and end to end."""

import json

import numpy as np
import pytest
from conftest import DATA
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.graph import initial_state
from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.levels import DISTORTION_TYPES
from agentic_iqa_local.nodes import named_distortions
from agentic_iqa_local.nodes.named_distortions import asks_about_damage, distortions_in
from agentic_iqa_local.nodes.planner import correct_plan, planner_node
from agentic_iqa_local.nodes.query import (
    asks_where,
    choices_in,
    named_tools,
    region_in,
    unknown_metrics,
)
from agentic_iqa_local.output.report import account, headline
from agentic_iqa_local.state import PlannerOutput

ROWS = [
    json.loads(line) for line in (DATA / "everyday_queries.jsonl").read_text(encoding="utf-8").splitlines()
]


def test_the_table_has_what_it_promises():
    """At least 60 queries, 30 of them about tools, and each other kind."""
    assert len(ROWS) >= 60
    assert sum(bool(row["tools"]) or bool(row["unknown_tools"]) for row in ROWS) >= 27
    assert sum(bool(row["choices"]) for row in ROWS) >= 5
    assert sum(row["scope"] != "Global" for row in ROWS) >= 5
    assert sum(not row["query"].isascii() for row in ROWS) >= 5
    assert {name for row in ROWS for name in row["tools"]} <= set(TOOLS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["query"])
def test_everyday_queries_by_rule(row):
    """Whatever the model proposes: here the region of the table and a tool that nobody named."""
    assert named_tools(row["query"], row["reference"]) == row["tools"]
    assert unknown_metrics(row["query"]) == row["unknown_tools"]
    assert choices_in(row["query"]) == row["choices"]
    proposed = PlannerOutput.model_validate(
        plan_reply(query_scope=row["proposed_scope"], required_tool="QAlign")
    )
    plan, corrections = correct_plan(proposed, row["query"], row["reference"], replanning=False)
    assert plan.required_tool == next(iter([*row["tools"], *row["unknown_tools"]]), None)
    if row["scope_by"] == "rule" or row["scope"] != "Global":
        assert plan.query_scope == row["scope"]
    assert any(line.startswith("required_tool: QAlign") for line in corrections) == (
        plan.required_tool != "QAlign"
    )
    assert plan.plan.tool_execution == (plan.required_tool is not None or plan.query_scope == "Global")


def test_everyday_queries_with_the_embedded_model(services, photo_path):
    """The plan that the shipped program makes of each: right by rule; a region that the model misses is its
    own to miss."""
    wrong = []
    for row in ROWS:
        state = initial_state(row["query"], photo_path, photo_path if row["reference"] else None)
        assert state.get("choices") == row["choices"]
        made = planner_node(state, {"configurable": {"services": services}})
        if "error" in made:
            wrong.append((row["query"], made["error"]))
            continue
        plan = made["plan"]
        right = plan.required_tool == next(iter([*row["tools"], *row["unknown_tools"]]), None)
        right &= plan.query_scope == row["scope"] or row["scope_by"] == "model"
        right &= row["choices"] is None or made["plan_corrections"][0].startswith("choices: ")
        if not right:
            wrong.append((row["query"], plan))
    assert wrong == []


@pytest.mark.parametrize(
    ("query", "tools"),
    [
        ("Is this a fine photo of tres amigos?", []),  # A-FINE, TReS
        ("IS THIS UNIQUE?", []),
        ("USE MAD", ["MAD"]),
        ("a unique score please", ["UNIQUE"]),
        ("Give me the no-reference NIQE score", ["NIQE"]),
        ("There is no reference so use NIQE", ["NIQE"]),
        ("I do not want you to use NIQE", []),
        ("不要用NIQE", []),
        ("SSIM and MS-SSIM", ["SSIM", "MS-SSIM"]),
        ("ＶＳＩ", ["VSI"]),  # full-width letters
        ("use BRISQUEs", []),
    ],
)
def test_names_of_tools_are_words(query, tools):
    assert named_tools(query, True) == tools


@pytest.mark.parametrize(
    "query",
    [
        "Do not use either NIQE or PIQE", "don't use NIQE or PIQE", "Anything but NIQE", "Use anything except for NIQE",
        "NIQE and PIQE should not be used", "NIQE nicht verwenden", "не используй NIQE", "NIQEを使わないで",
        "Use all tools except NIQE and PIQE", "Le rouge est-il trop vif ?", "Photo by Nima, is it sharp?",
        "Is the ifc building sharp?", "My raspberry PI camera took this", "Is it a fine measure of quality?", "The file is niqe.png",
        "Have a look at SSIM_result.png", "use unique colours",
    ],
)  # fmt: skip
def test_ordinary_words_and_negated_names_are_no_tools(query):
    assert named_tools(query, True) + unknown_metrics(query) == []


@pytest.mark.parametrize(
    ("query", "tools"),
    [
        ("use mad", ["MAD"]), ("Use Mad to compare", ["MAD"]), ("vif please", ["VIF"]), ("what is the mad?", ["MAD"]),
        ("use a-fine", ["A-FINE"]), ("not NIQE but PIQE", ["PIQE"]), ("Use MUSIQ instead of NIQE and PIQE", ["MUSIQ"]),
        ("blind referenceless image spatial quality evaluator", ["BRISQUE"]), ("clip iqa plus", ["CLIPIQA+"]),
    ],
)  # fmt: skip
def test_names_that_are_words_too_are_tools_where_they_are_asked_for(query, tools):
    assert named_tools(query, True) == tools


@pytest.mark.parametrize("name", list(TOOLS))
@pytest.mark.parametrize("how", ["Use {}.", "{} score please", "what is the {} value?"])
def test_every_tool_of_the_table_is_recognised_as_spelled(name, how):
    assert named_tools(how.format(name), has_reference=True) == [name]


@pytest.mark.parametrize(
    ("query", "name", "region"),
    [
        ("Is the tree sharp?", "tree me", "tree"),  # a small model's slip of the pen
        ("Rate the sky.", "lower sky band", "sky"),
        ("Rate the quality.", "lit", None),
        ("Is it risky?", "sky", None),
        ("Are the leaves sharp?", "leaf", "leaf"),
        ("How is the glass?", "glas", None),
        ("Rate this image of a cat.", "this image", None),
        ("The background noise", "background", "background"),
        ("Rate this photo of my dog.", "photo of my dog", "dog"),
        ("Rate my screenshot.", "screenshot", None),
    ],
)
def test_regions_are_words_of_the_query(query, name, region):
    assert region_in(query, name) == region


@pytest.mark.parametrize(
    ("query", "choices"),
    [
        ("Tell me: a) is it sharp b) is it noisy", None),  # questions, not answers
        ("Plan A: good. Plan B: better?", None),
        ("Vitamin C. and B. are fine; rate it", None),
        ("Rate this. A. good B. bad. Which one?", ["good", "bad"]),
        ("Which is it: A: Blur, B: Noise or C: JPEG?", ["Blur", "Noise", "JPEG"]),
        ("Yes or no: is it sharp?", ["Yes", "no"]),
        ("A. same B. same", None),
        ("A. only one", None),
        ("Do two things: a) rate it b) explain why", None),  # instructions
        (
            (
                "Please consider: A. the sharpness of edges B. the noise in the shadows and give an overall"
                " rating."
            ),
            None,
        ),
        ("Rate it. A. blur, B. noise. How strong are both?", None),
        ("Photo by J. A. Smith. B. Miller edited. Rate it.", None),  # an initial
        ("I don't know whether yes or no", None),
        ("Is the person saying yes or no?", None),
        ("Which?  A. f/2.8 B. f/4 C. it is e.g. f/8", ["f/2.8", "f/4", "it is e.g. f/8"]),
        ("Is it blurry? 1. yes 2. no", ["yes", "no"]),
        ("曝光如何？A. 太暗 B. 太亮 C. 正好", ["太暗", "太亮", "正好"]),
        ("有噪点吗？是或否", ["是", "否"]),
        ("How? A.too dark\nB.too bright", ["too dark", "too bright"]),
        ("Is it ok? [A] dark [B] bright", ["dark", "bright"]),
        ("Sharp? Y/N", ["Y", "N"]),
        ("Answer with yes or no: is it noisy?", ["yes", "no"]),
        ("Is it noisy, yes or no? Explain briefly why.", ["yes", "no"]),
        ("Which poster is it? Options: A. Dr. No B. Yes", ["Dr. No", "Yes"]),
        ("Options: A. Yes B. Dr. No", ["Yes", "Dr. No"]),
        ("Who took it? A. J. Smith B. Mr. T. Jones. Pick one.", ["J. Smith", "Mr. T. Jones"]),
        (
            "Which? A. St. Paul's Cathedral at 5 p.m. Monday B. No",
            ["St. Paul's Cathedral at 5 p.m. Monday", "No"],
        ),
    ],
)
def test_answers_that_a_query_lists(query, choices):
    assert choices_in(query) == choices


# The whole way


def assessed(query: str, picture: str, scores: dict[str, float], **options):
    client = ScriptedClient(scripted_answers())
    return assess(
        picture,
        query=query,
        services=scripted_services(client, ScriptedTools(scores, options.pop("names", None))),
        **options,
    )


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_every_tool_that_the_query_names_runs_and_counts(picture, pipeline):
    row = assessed(
        "Compare NIQE and PIQE.", picture, {"NIQE": 4.0, "PIQE": 2.0, "QAlign": 5.0}, pipeline=pipeline
    )
    assert row.error is None
    assert {run.tool_name for run in row.tools} == {"NIQE", "PIQE"}
    assert row.q_bar == pytest.approx(3.0)  # (4 + 2) / 2
    assert headline(row).endswith("; NIQE 4 (4.00 of 5); PIQE 2 (2.00 of 5)")  # what was asked for is told


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
@pytest.mark.parametrize("query", ["Run BRISQUE.", "What is the VMAF?", "Use PSNR."])
def test_a_named_tool_that_cannot_run_is_said_in_the_first_line(picture, services, query, pipeline):
    """With the real tools: BRISQUE lacks its weights, VMAF is not in the table, PSNR has no reference to
    compare with."""
    tools = services.tools
    client = ScriptedClient(scripted_answers())
    row = assess(picture, query=query, pipeline=pipeline, services=scripted_services(client, tools))
    name = query.strip(".?").split()[-1]
    assert row.error is None
    first = headline(row)
    reasons = {
        "BRISQUE": "missing weights",
        "VMAF": "it is not in the table of tools",
        "PSNR": "compares with a reference image",
    }
    assert f"; {name} could not run ({reasons[name]}" in first
    assert first.count("(") == first.count(")")
    assert first.endswith(f"{row.tools[-1].tool_name} ran instead")
    assert row.tools[-1].normalized_score == row.q_bar
    assert sum(line.startswith(f"{name} could not score") for line in row.warnings) == 1


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_answers_in_the_query_are_offered_to_the_model_and_said_to_be_taken(picture, pipeline):
    row = assessed("Is it noisy? yes or no", picture, {"NIQE": 4.0}, pipeline=pipeline)
    assert row.choices == ["yes", "no"]
    assert set(row.p_c) == {"A", "B"}
    assert row.plan_corrections[0] == "choices: yes | no (the query lists them)"
    given = assessed(
        "Is it noisy? yes or no", picture, {"NIQE": 4.0}, pipeline=pipeline, choices=["very", "hardly"]
    )
    assert given.choices == ["very", "hardly"]


def test_a_question_about_a_region_says_in_words_what_was_not_measured(picture):
    client = ScriptedClient(
        scripted_answers(
            PlannerReply=plan_reply(query_scope=["sky"]),
            DetectionReply={"sky": ["Blurs"]},
            AnalysisReply={
                "sky": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]
            },
        ),
        logprobs=dict(
            zip("ABCDE", np.log([0.1, 0.2, 0.5, 0.1, 0.1]), strict=True)
        ),  # no preference would be a gap
    )
    row = assess(
        picture, query="Is the sky blurred?", services=scripted_services(client, ScriptedTools({"NIQE": 4.0}))
    )
    told = " ".join(account(row).split())
    assert "None ran: tools measure whole pictures, and the question is about sky." in told
    assert "No tool measured this, so the score rests on the model alone" in told
    assert not set("αη") & set(told + " ".join(row.warnings))


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        ("Where is the damage?", True), ("which corner is out of focus", True), ("Does the noise cover the entire frame?", True),
        ("Wo ist das Bild unscharf?", True), ("¿Dónde está el ruido?", True), ("Which part should we look at?", True),
        ("How noisy is it?", False), ("Rate the perceptual quality of this image.", False), ("Which distortion is strongest?", False),
        ("Would you print it?", False), ("Rate the quality of the entire image.", False), ("Is the dove sharp?", False),
        ("Is the whole picture blurred?", False), ("Dov'è il rumore?", True),
    ],
)  # fmt: skip
def test_whether_a_query_asks_for_a_place(query, asks):
    assert asks_where(query) is asks


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("Which part of the picture is damaged?", "IQA"),
        ("where is the grain", "IQA"),
        ("Where was this taken?", "Other"),
    ],
)
def test_where_damage_is_is_a_question_about_quality(query, kind):
    planned = PlannerOutput.model_validate(plan_reply(query_type="Other"))
    assert correct_plan(planned, query, has_reference=False, replanning=False)[0].query_type == kind


PLANS = [
    json.loads(line) for line in (DATA / "planner_queries.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize(
    "row", [row for row in PLANS if row["plan"]["query_type"] == "IQA"], ids=lambda row: row["query"][:60]
)
def test_the_distortions_that_a_query_names_by_rule(row):
    """Of the plans that were written by hand to measure the Planner."""
    written = {kind for kinds in (row["plan"]["distortions"] or {}).values() for kind in kinds}
    assert set(distortions_in(row["query"], planned=written)) == written


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("How blurry is it?", ["Blurs"]),
        ("Is this photo too noisy to print?", ["Noise"]),
        ("Does it look pixelated?", ["Compression"]),
        ("Is it too sharp?", ["Sharpness"]),  # not blur
        ("Is it sharp?", ["Blurs"]),
        ("Noise first, then blur.", ["Noise", "Blurs"]),
        ("How is the exposure? A. too dark B. too noisy", ["Brightness change"]),
        ("Blur, noise, compression or contrast: which is worst?", []),  # a list of what there may be
        ("What is the peak signal-to-noise ratio?", []),  # a tool
        ("Focus on the dog and rate its quality.", []),
        ("Is the dog in focus?", ["Blurs"]),
        ("Ignore the noise, how is the contrast?", ["Contrast"]),
        ("Is the dark bird captured well?", []),
        ("Is it a dark image?", ["Brightness change"]),
        ("What colour is the car?", []),
        ("Are there any artifacts?", []),
        ("Did I manage to focus on the eyes?", ["Blurs"]),
        ("Rate the quality with a focus on the face.", []),
        ("Apart from the noise and the blur, is anything wrong?", []),
        ("Ignore the film grain and judge sharpness.", ["Blurs"]),
        ("Ignore everything except blur.", ["Blurs"]),
        ("Don't ignore the noise.", ["Noise"]),
        ("It is noisy. What else is wrong with it?", []),  # the model looks for more
        ("Check for any artifacts (blur, noise, etc.).", []),
        ("This is a 30 s long exposure, is there noise?", ["Noise"]),
        ("How noisy are the dark areas?", ["Noise"]),
        ("Are the building blocks sharp?", ["Blurs"]),
        ("Does it have colour noise?", ["Noise"]),
        ("Is the face too yellow and noisy?", ["Color distortions", "Noise"]),
        # a thing of that name
        ("Rate the quality of the focus group photo.", []),
        ("Rate the photo of the soft drink.", []),
        ("How good is the picture of the colour guard?", []),
        ("Rate the dark chocolate cake photo.", []),
        ("Is the contrast natural?", ["Contrast"]),
        ("Has the contrast dropped?", ["Contrast"]),
    ],
)
def test_words_for_distortions_and_words_that_only_look_like_them(query, kinds):
    assert distortions_in(query) == kinds


@pytest.mark.parametrize(
    ("text", "about_quality"),
    [
        ("Is this photo too noisy to print?", True),
        ("Does it look pixelated or blocky?", True),
        ("How many colours has the flag?", False),
        ("Is it dark outside?", False),
        ("How many blocks are in the tower?", False),
        ("What does the blurry text say?", False),
        ("Who is in this blurry photo?", False),
        ("Is this a noisy neighbourhood?", False),
        ("Is the noise barrier made of wood?", False),
        ("Is the quality good enough despite the noise?", True),
    ],
)
def test_a_question_about_damage_is_one_about_quality(text, about_quality):
    other = PlannerOutput.model_validate(plan_reply(query_type="Other"))
    made, _ = correct_plan(other, text, False, False)
    assert made.query_type == ("IQA" if about_quality else "Other")
    assert made.plan.tool_execution is about_quality


@pytest.mark.parametrize("row", [row for row in PLANS if row["plan"]["query_type"] == "Other"])
def test_no_other_question_is_made_one_about_damage(row):
    assert not asks_about_damage(row["query"])


def test_each_type_has_its_words():
    assert set(named_distortions._WORDS) == set(DISTORTION_TYPES)


def test_what_the_query_names_is_analysed_whatever_the_model_plans():
    plan = PlannerOutput.model_validate(plan_reply(distortions={"Global": ["Compression"]}))
    made, lines = correct_plan(plan, "How blurry is it?", False, False)
    assert (made.distortion_source, made.distortions) == ("Explicit", {"Global": ["Blurs"]})
    assert made.plan.distortion_analysis
    assert not made.plan.distortion_detection
    assert "distortions: Compression → Blurs (what the query names)" in lines


@pytest.mark.parametrize(
    ("planned", "made"),
    [
        ({"dog": ["Blurs"], "sky": ["Noise"]}, {"dog": ["Blurs"], "sky": ["Noise"]}),
        ({"dog": ["Blurs"], "sky": ["Noise", "Contrast"]}, {"dog": ["Blurs"], "sky": ["Noise"]}),
        # one that is named would be lost
        ({"dog": ["Blurs"], "sky": ["Blurs"]}, {"dog": ["Blurs", "Noise"], "sky": ["Blurs", "Noise"]}),
        ({"dog": ["Blurs"], "tree": ["Noise"]}, {"dog": ["Blurs"], "sky": ["Blurs", "Noise"]}),
    ],
)
def test_the_plan_divides_what_the_query_names_among_its_regions(planned, made):
    plan = PlannerOutput.model_validate(plan_reply(query_scope=["dog", "sky"], distortions=planned))
    corrected, _ = correct_plan(plan, "Is the dog blurry and the sky noisy?", False, False)
    assert corrected.distortions == made


def test_a_thing_that_is_called_like_a_distortion_is_one_where_the_plan_says_so():
    query = "Rate the colour accuracy."
    for planned, made in (
        (None, None),
        ({"Global": ["Color distortions", "Noise"]}, {"Global": ["Color distortions"]}),
    ):
        plan = PlannerOutput.model_validate(plan_reply(distortions=planned))
        assert correct_plan(plan, query, False, False)[0].distortions == made


@pytest.mark.parametrize(
    "query", ["Is the composition balanced?", "Rate the quality.", "What is wrong with the sky?"]
)
def test_distortions_that_the_query_does_not_name_are_none(query):
    plan = PlannerOutput.model_validate(
        plan_reply(distortion_source="Explicit", distortions={"Global": ["Noise"]})
    )
    made, lines = correct_plan(plan, query, False, False)
    assert (made.distortion_source, made.distortions, made.plan.distortion_detection) == (
        "Inferred",
        None,
        True,
    )
    assert "distortions: Noise → None (the query names none)" in lines


@pytest.mark.parametrize(
    ("query", "name", "region"),
    [
        ("How sharp are the horses?", "horse", "horse"), ("Are the waves sharp?", "wave", "wave"),
        ("Rate the cookies.", "cookie", "cookie"), ("Rate the knife.", "knives", "knives"), ("Are the buses sharp?", "bus", "bus"),
        ("Rate the houses and the glass.", "house", "house"), ("Rate the new car.", "news car", "news car"),
    ],
)  # fmt: skip
def test_a_region_may_be_named_in_the_other_number(query, name, region):
    assert region_in(query, name) == region


@pytest.mark.parametrize(
    ("query", "tools"),
    [
        ("Don't use NIQE, BRISQUE or PIQE", []), ("not NIQE, BRISQUE, or PIQE", []), ("Use neither NIQE, BRISQUE nor PIQE", []),
        ("Don't use NIQE, use BRISQUE", ["BRISQUE"]), ("Without NIQE. BRISQUE or PIQE is fine", ["BRISQUE", "PIQE"]),
        ("Use NIQE, BRISQUE and PIQE", ["NIQE", "BRISQUE", "PIQE"]),
    ],
)  # fmt: skip
def test_a_negation_carries_through_a_list(query, tools):
    assert sorted(named_tools(query, False)) == sorted(tools)


def test_a_region_is_no_distortion():
    plan = PlannerOutput.model_validate(plan_reply(query_scope=["blocks"]))
    corrected, _ = correct_plan(plan, "How is the quality of the blocks?", False, False)
    assert (corrected.query_scope, corrected.distortions) == (["blocks"], None)
