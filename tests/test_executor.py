"""The Executor's four subtasks (facts of the paper), with a scripted model and scripted tools."""

import re

import numpy as np
import pytest
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    plan_reply,
    prompts,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local.config import Settings, ToolSettings
from agentic_iqa_local.nodes.evidence import damaged_half
from agentic_iqa_local.nodes.executor import executor_node
from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.state import ExecutorOutput, PlanControlFlags, PlannerOutput
from agentic_iqa_local.vlm_client import ONE_PASS, ModelLost, VLMError

QUERY = "Rate the perceptual quality of this image."


def plan(**changes) -> PlannerOutput:
    """A plan with the flags that the rules give it, unless `plan` is among the changes."""
    fields = plan_reply(**changes)
    if "plan" not in changes:
        asked = ("query_type", "query_scope", "distortion_source", "required_tool")
        fields["plan"] = derive_flags(*(fields[name] for name in asked))
    return PlannerOutput.model_validate(fields)


def execute(picture: str, tools: dict, client=None, **changes) -> ExecutorOutput:
    services = scripted_services(client or scripted(), ScriptedTools(tools))
    state = {"query": QUERY, "image_path": picture, "plan": plan(**changes)}
    return executor_node(state, {"configurable": {"services": services}})["executor_evidence"]


def scripted(**replies) -> ScriptedClient:
    return ScriptedClient(scripted_answers(**replies))


NAMED = {"distortion_source": "Explicit", "distortions": {"Global": ["Blurs"]}}


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        (None, set()),
        ("distortion_detection", {"distortion_set"}),
        ("distortion_analysis", {"distortion_analysis"}),
        ("tool_selection", {"selected_tools"}),
        ("tool_execution", {"selected_tools", "quality_scores"}),
    ],
)
def test_each_part_runs_only_if_its_flag_is_on(picture, flag, parts):
    flags = {name: name == flag for name in PlanControlFlags.model_fields}
    found = execute(picture, {"NIQE": 2.6}, plan=flags, **NAMED)
    names = ("distortion_set", "distortion_analysis", "selected_tools", "quality_scores")
    assert {name for name in names if getattr(found, name)} == parts


def test_what_the_model_adds_to_a_query_is_told_only_where_it_is_there(picture):
    judged = [{"type": "Blurs", "severity": "none", "explanation": "edges are crisp"}]
    client = scripted(AnalysisReply={"Global": judged})
    told = execute(picture, {"NIQE": 2.6}, client, **NAMED).distortion_analysis["Global"]
    assert [item.severity for item in told] == ["none"]
    added = NAMED | {"distortion_source": "Inferred"}
    assert execute(picture, {"NIQE": 2.6}, client, **added).distortion_analysis == {"Global": []}


@pytest.mark.parametrize(
    ("failure", "tries"),
    [({"Global": ["Haze"]}, 3), (VLMError("the server hung up"), 3), (ModelLost("gone"), 1)],
)
def test_a_failed_detection_leaves_its_error_in_the_evidence(picture, failure, tries):
    client = scripted(DetectionReply=failure)
    found = execute(picture, {"NIQE": 2.6}, client)
    assert found.error
    assert found.is_empty
    assert len(prompts(client, "DetectionReply")) == tries


def test_what_was_found_stays_when_a_later_part_fails(picture):
    found = execute(picture, {"NIQE": 2.6}, scripted(AnalysisReply="no JSON"))
    assert found.error
    assert found.distortion_set == {"Global": ["Blurs"]}
    assert found.distortion_analysis is None
    assert found.quality_scores == {"Global": {"Blurs": ("NIQE", 2.6)}}


def grid(*rows: str) -> np.ndarray:
    """Cells of severity 3 where there is an x, else of 0.1."""
    return np.array([[3.0 if cell == "x" else 0.1 for cell in row] for row in rows])


@pytest.mark.parametrize(
    ("cells", "half"),
    [
        (grid("xx..", "xx..", "xx..", "xx.."), "left half"),
        (grid("....", "....", "xxxx", ".xxx"), "bottom half"),
        (grid("xxxxx", ".xxxx", "....."), "top half"),
        (grid("...xx", "....x", "...xx", "...xx"), "right half"),
        (grid("....", "....", "xx..", "xx.."), None),  # a quarter
        (grid("....", "x...", "x...", "...."), None),  # less than a quarter of either
        (grid("xxxx", "xxxx", "xxxx", "xxxx"), None),
        (grid("xx..", "xx..", "....", "....") * [0.1, 0.1, 1e-3, 1e-3], None),  # 0.3 beside 0.01
    ],
)
def test_damage_of_two_quarters_side_by_side_is_of_a_half(cells, half):
    assert damaged_half([cells]) == half
    assert damaged_half([]) is None


def test_an_earlier_error_ends_the_executor_and_no_plan_is_one(picture):
    state = {"query": QUERY, "image_path": picture}
    assert executor_node({**state, "plan": plan(), "error": "Planner: no valid JSON"}) == {}
    assert set(executor_node(state)) == {"error"}


def test_only_listed_tools_can_be_selected(picture):
    """LIVE Challenge, TID2013 and others put NIQE more than 0.1 of SRCC behind both others."""
    client = scripted()  # it chooses NIQE
    found = execute(picture, {"NIQE": 3.0, "MUSIQ": 4.0, "CLIPIQA+": 3.5}, client)
    assert len(prompts(client, "SelectionReply")) == 3
    # no choice is valid, so that the configuration's tools measure alone
    assert found.selected_tools == {"Global": {"Overall quality (NIQE)": "NIQE"}}
    assert found.error is None
    tools = prompts(client, "SelectionReply")[0].case.split("Tools:\n")[1].splitlines()
    assert [line.partition(":")[0] for line in tools] == ["- CLIPIQA+", "- MUSIQ"]
    assert all(re.search(r"; SRCC 0\.6\d$", line) for line in tools)


def test_slow_tools_are_not_offered_but_can_be_named(picture):
    client, tools = scripted(), {"MAD": 2.0, "MUSIQ": 3.0, "CLIPIQA+": 3.0}
    execute(picture, tools, client)
    assert "- MUSIQ" in prompts(client, "SelectionReply")[0].case
    assert "MAD" not in prompts(client, "SelectionReply")[0].case
    named = execute(picture, tools, client, required_tool="MAD")
    assert named.quality_scores == {"Global": {"Blurs": ("MAD", 2.0)}}


@pytest.mark.parametrize(
    ("listed", "warned"), [({"no_reference": ["NIQE", "PIQE"]}, True), ({}, False)]
)
def test_tools_of_the_users_list_that_do_not_run_are_told(picture, caplog, listed, warned):
    """The model chooses LocalNR, which is clearly more reliable than both."""
    client = scripted(SelectionReply={"Global": {"Blurs": "LocalNR"}})
    tools = ScriptedTools({"LocalNR": 3.0, "NIQE": 3.0, "PIQE": 3.0})
    services = scripted_services(client, tools, Settings(tools=ToolSettings(**listed)))
    state = {"query": QUERY, "image_path": picture, "plan": plan()}
    executor_node(state, {"configurable": {"services": services}})
    assert ("NIQE, PIQE of tools.no_reference did not run: LocalNR can be" in caplog.text) == warned


LEAVES = {"DetectionReply": {"leaves": ["Blurs"]}, "AnalysisReply": moderate_blur("leaves")}


def test_a_tool_named_for_a_region_without_a_box_sees_the_whole(picture, caplog):
    found = execute(
        picture, {"NIQE": 2.6}, scripted(**LEAVES), query_scope=["leaves"], required_tool="NIQE"
    )
    assert found.quality_scores == {"leaves": {"Blurs": ("NIQE", 2.6)}}
    assert [(log.measured, log.box) for log in found.tool_logs] == [("whole picture", None)]
    assert "the tool that the query names measures the whole picture in its stead" in caplog.text


def test_no_model_computes_while_qalign_runs(picture):
    """It puts classes of its own in place of transformers' Llama; another thread would compute with them."""
    held = []

    class Tools(ScriptedTools):
        def score(self, name, *pictures):
            held.append((name, ONE_PASS.locked()))
            return super().score(name, *pictures)

    bench = Workbench(
        scripted_services(scripted(), Tools({"QAlign": 3.0, "NIQE": 3.0})), str(picture)
    )
    bench.tools.score("QAlign"), bench.tools.score("NIQE")
    assert held == [("QAlign", True), ("NIQE", False)]
    assert not ONE_PASS.locked()
