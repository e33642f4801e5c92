"""The Planner: the paper's rules for its flags, what the query decides whatever the model says, and
its node."""

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
    derive_flags,
    flags_against,
    planner_node,
)
from agentic_iqa_local.nodes.prompts import planner_prompt
from agentic_iqa_local.state import Gap, PlanControlFlags, PlannerOutput

QUERY = "Rate the perceptual quality of this image."
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
    flags = [source == "Inferred", True, *TOOL_FLAGS[region, tool]]
    assert [on for _, on in derive_flags("IQA", *asked)] == flags
    assert derive_flags("Other", *asked) == PlanControlFlags()


@pytest.mark.parametrize(
    ("kind", "on"),
    [("severity", {"distortion_analysis"}), ("tools", {"tool_execution"})],
)
def test_a_gap_switches_on_the_parts_that_can_close_it(kind, on):
    flags = flags_against([Gap(kind=kind, reason="why")], PlanControlFlags())
    assert {name for name, value in flags if value} == on


@pytest.mark.parametrize(("given", "mode"), [(True, "Full-Reference"), (False, "No-Reference")])
def test_the_reference_mode_is_a_fact(given, mode):
    made = plan(reference_mode="Full-Reference")
    assert correct_plan(made, QUERY, given).reference_mode == mode


def test_distortions_that_the_model_adds_do_not_count():
    made = plan(query_scope=["car"], distortions={"photo of the car": ["Noise"]})
    corrected = correct_plan(made, "Rate the car.", False)
    assert (corrected.distortions, corrected.distortion_source) == (None, "Inferred")


def test_a_question_about_something_else_switches_all_off():
    made = plan(query_type="Other", distortions={"Global": ["Noise"]})
    corrected = correct_plan(made, "Who is this?", False)
    assert (corrected.distortions, corrected.plan) == (None, PlanControlFlags())


def test_what_the_query_names_is_analysed_of_every_object():
    made = plan(query_scope=["dog", "sky"], distortions={"dog": ["Blurs"], "sky": ["Contrast"]})
    corrected = correct_plan(made, "Is the dog blurry and the sky noisy?", False)
    assert corrected.distortion_source == "Explicit"
    assert corrected.distortions == {key: ["Blurs", "Noise"] for key in ["dog", "sky"]}


def test_what_the_user_said_stays_on_a_replan_and_more_comes():
    """The region, its noise and NIQE stand in the query; the sea does too, and no tree."""
    before = plan(query_scope=["sky"], distortions={"sky": ["Noise"]})
    planned = {"query_scope": ["sea", "tree"], "distortions": {"sea": ["Blurs"]}}
    made = plan(query_type="Other", required_tool="PIQE", **planned)
    after = correct_plan(made, "How noisy is the sky by NIQE? And the sea?", False, before)
    assert (after.query_type, after.required_tool) == ("IQA", "NIQE")
    assert after.distortions == {"sky": ["Noise", "Blurs"], "sea": ["Noise", "Blurs"]}


# The node


def make_plan(client: ScriptedClient, picture: str, **state) -> dict:
    services = scripted_services(client, ScriptedTools({}))
    return planner_node(
        {"query": QUERY, "image_path": picture} | state, {"configurable": {"services": services}}
    )


def test_the_planner_corrects_its_plan_and_says_what(picture):
    reply = plan_reply(plan=ALL_OFF, reference_mode="Full-Reference")
    update = make_plan(ScriptedClient(scripted_answers(PlannerReply=reply)), picture)
    assert update["plan"] == plan()
    mode, flags = update["plan_corrections"]
    assert mode == "reference_mode: Full-Reference → No-Reference"
    assert flags.startswith("plan: ")


@pytest.mark.parametrize("reply", ["no JSON", plan_reply(query_type="INVALID")])
def test_no_valid_plan_in_three_tries_is_an_error(picture, reply):
    client = ScriptedClient(scripted_answers(PlannerReply=reply))
    assert set(make_plan(client, picture)) == {"error"}
    cases = [prompt.case for prompt in prompts(client, "PlannerReply")]
    assert ["Return ONLY valid JSON" in case for case in cases] == [False, True, True]


def test_the_planner_sees_choices_and_the_reference(picture):
    client = ScriptedClient(scripted_answers())
    make_plan(client, picture, choices=["The car", "The sky"], reference_path=picture)
    lines = prompts(client, "PlannerReply")[0].case.split("\n")
    assert {"A. The car", "B. The sky", "Reference image: given"} <= set(lines)


@given(st.text(min_size=1))
def test_choices_stay_inside_their_json_string(text):
    case = planner_prompt("Rate it.", False, choices=[text, "none"]).case.split("\n")
    assert json.loads(f'"{case[2].removeprefix("A. ")}"') == text
    assert case[3] == "B. none"
