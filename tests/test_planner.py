"""The Planner: the paper's rules for its flags, what the query decides whatever the model says, and its node."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    ScriptedClient,
    ScriptedTools,
    plan_reply,
    prompts,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local.nodes.planner import (
    correct_plan,
    corrections,
    derive_flags,
    flags_against,
    planner_node,
)
from agentic_iqa_local.nodes.prompts import planner_prompt
from agentic_iqa_local.state import Gap, PlanControlFlags, PlannerOutput

QUERY = "Rate the perceptual quality of this image."
NAMING = "Rate the car and the sky."
ALL_OFF = dict.fromkeys(PlanControlFlags.model_fields, False)


def plan(**changes) -> PlannerOutput:
    return PlannerOutput.model_validate(plan_reply(**changes))


# paper.md: (region named, tool named) → (tool_selection, tool_execution)
TOOL_FLAGS = {
    (True, True): (False, True),
    (True, False): (False, False),
    (False, True): (False, True),
    (False, False): (True, True),
}


@pytest.mark.parametrize("source", ["Explicit", "Inferred"])
@pytest.mark.parametrize(("region", "tool"), TOOL_FLAGS)
def test_flags_follow_the_papers_rules(region, tool, source):
    asked = (["car"] if region else "Global", source, "LPIPS" if tool else None)
    detection = source == "Inferred"
    assert tuple(derive_flags("IQA", *asked).model_dump().values()) == (
        detection,
        True,
        *TOOL_FLAGS[region, tool],
    )
    assert derive_flags("Other", *asked).model_dump() == ALL_OFF


@pytest.mark.parametrize(
    ("kind", "scores", "on"),
    [
        ("contradiction", True, {"distortion_detection", "distortion_analysis", "tool_execution"}),
        ("severity", True, {"distortion_analysis"}),
        ("scores", False, {"tool_execution"}),
        ("tools", True, {"tool_execution"}),
        ("tools", False, set()),
    ],
)
def test_a_gap_switches_on_the_parts_that_can_close_it(kind, scores, on):
    flags = flags_against([Gap(kind=kind, reason="why")], PlanControlFlags(), scores)
    assert {name for name, value in flags if value} == on


@pytest.mark.parametrize("given", [True, False])
def test_the_reference_mode_is_a_fact(given):
    made, right = (
        plan(reference_mode="Full-Reference"),
        "Full-Reference" if given else "No-Reference",
    )
    corrected = correct_plan(made, QUERY, given)
    assert corrected.reference_mode == right
    assert corrections(made, corrected) == (
        [] if given else [f"reference_mode: Full-Reference → {right}"]
    )


@pytest.mark.parametrize(
    ("made", "added"),
    [
        (
            {"distortion_source": "Explicit", "distortions": {"Global": ["Noise"]}},
            {"Global": ["Noise"]},
        ),
        (
            {
                "query_scope": ["car", "sky"],
                "distortions": {"photo of the car": ["Noise"], "sun": ["Blurs"]},
            },
            {key: ["Noise", "Blurs"] for key in ["car", "sky"]},
        ),
    ],
)
@pytest.mark.parametrize("before", [None, plan()])
def test_distortions_that_the_query_does_not_name_are_looked_at_on_a_replan_alone(
    made, added, before
):
    corrected = correct_plan(
        plan(**made), NAMING if "query_scope" in made else QUERY, False, before
    )
    assert corrected.distortion_source == "Inferred"
    assert corrected.distortions == (added if before else None)
    assert corrected.plan.distortion_detection


def test_a_question_that_is_not_about_quality_switches_everything_off():
    corrected = correct_plan(
        plan(query_type="Other", distortions={"Global": ["Noise"]}), "Who is this?", False
    )
    assert (corrected.query_type, corrected.distortions, corrected.plan) == (
        "Other",
        None,
        PlanControlFlags(),
    )


def test_what_the_query_names_is_analysed_of_every_object():
    made = plan(
        query_scope=["dog", "sky"], distortions={"dog": ["Blurs"], "sky": ["Noise", "Contrast"]}
    )
    corrected = correct_plan(made, "Is the dog blurry and the sky noisy?", False)
    assert corrected.distortion_source == "Explicit"
    assert corrected.distortions == {key: ["Blurs", "Noise"] for key in ["dog", "sky"]}
    told = (
        'distortions: {"dog": ["Blurs"], "sky": ["Noise", "Contrast"]} → {"dog": ["Blurs", "Noise"]'
    )
    assert told in corrections(made, corrected)[1]


def test_only_a_replan_may_have_tools_measure_for_a_region():
    wanted = plan(query_scope=["car", "sky"], plan=ALL_OFF | {"tool_execution": True})
    for before in (None, wanted):
        flags = correct_plan(wanted, NAMING, False, before).plan
        assert flags.tool_execution is (before is not None)
        assert (flags.distortion_detection, flags.tool_selection) == (True, False)


def test_what_the_user_said_stays_on_a_replan():
    """The region, its noise and NIQE stand in the query; the sea does too, and no tree."""
    query = "How noisy is the sky by NIQE? And the sea?"
    before = plan(query_scope=["sky"], distortion_source="Explicit", distortions={"sky": ["Noise"]})
    planned = {
        "query_scope": ["sea", "tree"],
        "distortions": {"sea": ["Blurs"]},
        "required_tool": "PIQE",
    }
    after = correct_plan(plan(query_type="Other", **planned), query, False, before)
    assert (after.query_type, after.query_scope, after.required_tool) == (
        "IQA",
        ["sky", "sea"],
        "NIQE",
    )
    assert after.distortions == {"sky": ["Noise", "Blurs"], "sea": ["Noise", "Blurs"]}


# The node


def make_plan(client: ScriptedClient, picture: str, **state) -> dict:
    services = scripted_services(client, ScriptedTools({}))
    return planner_node(
        {"query": QUERY, "image_path": picture} | state, {"configurable": {"services": services}}
    )


def test_the_planner_returns_the_corrected_plan_and_says_what_it_corrected(picture):
    reply = plan_reply(plan=ALL_OFF, reference_mode="Full-Reference")
    update = make_plan(ScriptedClient(scripted_answers(PlannerReply=reply)), picture)
    assert update["plan"] == plan()
    assert [line.partition(":")[0] for line in update["plan_corrections"]] == [
        "reference_mode",
        "plan",
    ]


@pytest.mark.parametrize(
    "reply", ["no JSON", plan_reply(query_type="INVALID"), {"query_type": "IQA"}]
)
def test_a_planner_without_a_valid_plan_in_three_tries_is_an_error(picture, reply):
    client = ScriptedClient(scripted_answers(PlannerReply=reply))
    assert set(make_plan(client, picture)) == {"error"}
    stricter = [
        "Return ONLY valid JSON" in prompt.case for prompt in prompts(client, "PlannerReply")
    ]
    assert stricter == [False, True, True]


def test_the_planner_sees_choices_and_whether_there_is_a_reference(picture):
    client = ScriptedClient(scripted_answers())
    make_plan(client, picture, choices=["The car", "The sky"], reference_path=picture)
    lines = prompts(client, "PlannerReply")[0].case.split("\n")
    assert {"A. The car", "B. The sky", "Reference image: given"} <= set(lines)


@given(st.text(min_size=1))
def test_choices_stay_inside_their_json_string(text):
    case = planner_prompt("Rate it.", False, choices=[text, "none"]).case.split("\n")
    assert json.loads(f'"{case[2].removeprefix("A. ")}"') == text
    assert case[3] == "B. none"
