"""What a replan does: the gap reaches the Executor, what was found stays, the better supported pass wins, and the row
tells each. A scripted model forces each gap."""

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

from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.evidence import outvoted, should_replan
from agentic_iqa_local.state import ExecutorOutput, PlannerOutput
from agentic_iqa_local.vlm_client import VLMError

PLAN = PlannerOutput.model_validate(plan_reply())
SURE = dict(zip("ABCDE", np.log([0.02, 0.06, 0.12, 0.6, 0.18]).tolist(), strict=True))  # near Poor
SEVERE = moderate_blur(severity="severe")


def judged(severity: str, kind: str = "Blurs") -> dict:
    return {"Global": [{"type": kind, "severity": severity, "explanation": "It shows."}]}


def evidence(severity: str | None, score: float) -> ExecutorOutput:
    """One blur of that severity (None: nothing was found), and a tool's score of the whole picture."""
    found = judged(severity) if severity else {"Global": []}
    scores = {"Global": {"Overall quality": ("VSI", score)}}
    return ExecutorOutput(distortion_analysis=found, quality_scores=scores)


def rated(picture, replies, scores, settings=None, logprobs=SURE, **options):
    """(row, client, tools) of an assessment with a scripted model and tools, and one replan at most."""
    client, tools = ScriptedClient(scripted_answers(**replies), logprobs), ScriptedTools(scores)
    tools.part = options.pop("damaged_part", None)
    row = assess(
        picture,
        services=scripted_services(client, tools, settings),
        max_replan_iterations=2,
        **options,
    )
    return row, client, tools


# Gaps


@pytest.mark.parametrize(
    ("severity", "score", "contradicts"),
    [
        ("severe", 4.1, True), ("severe", 3.9, False), ("moderate", 4.9, False),
        ("unclear", 1.1, False), (None, 2.1, True), ("slight", 2.1, True), ("slight", 2.3, False),
    ],
)  # fmt: skip
def test_contradictions_count_in_both_directions(severity, score, contradicts):
    assert should_replan(evidence(severity, score), "Global", PLAN)[0] is contradicts


@pytest.mark.parametrize(
    ("scores", "alone"),
    [
        ({"VSI": 2.0, "FSIM": 2.1, "GMSD": 4.9}, "GMSD"),
        ({"VSI": 2.0, "FSIM": 4.9}, None),  # one against one
        ({"VSI": 1.0, "FSIM": 3.0, "GMSD": 5.0}, None),  # each against each
        ({"VSI": 1.2, "FSIM": 1.2, "GMSD": 4.8, "MS-SSIM": 4.8}, None),  # two against two
        ({"VSI": 2.0, "FSIM": 2.1, "GMSD": 2.4}, None),
    ],
)
def test_a_tool_is_outvoted_by_all_others_only(scores, alone):
    assert outvoted(list(scores.items()), {}, load_reliability()) == alone


# What the second pass does


def test_the_planner_is_given_the_last_plan_and_what_it_found(picture):
    _, client, _ = rated(picture, {"AnalysisReply": SEVERE}, {"NIQE": 4.5})
    first, second = (prompt.case for prompt in prompts(client, "PlannerReply"))
    assert "The last plan" not in first
    for told in ('The last plan: {"query_type":"IQA"', '"severity": "severe"', '["NIQE", 4.5]'):
        assert told in second


def test_a_missed_distortion_is_looked_for_again(picture):
    """Nothing was found, but the tool reads 1.5: detection is told why it is asked again."""
    replies = {
        "DetectionReply": [{"Global": []}, {"Global": ["Noise"]}],
        "SelectionReply": {"Global": {"Overall quality": "NIQE"}},
        "AnalysisReply": judged("severe", "Noise"),
    }
    row, client, _ = rated(picture, replies, {"NIQE": 1.5})
    assert [item.type for item in row.evidence.distortion_analysis["Global"]] == ["Noise"]
    first, second = prompts(client, "DetectionReply")
    assert "low scores" not in first.case
    assert "low scores (NIQE 1.50)" in second.case
    assert not row.need_replan


def test_tools_that_disagree_bring_a_third_and_one_is_outvoted(picture):
    settings = Settings(fusion={"trailing_tools": "vote"})  # so that both run at once
    scores = {"NIQE": 4.9, "LocalNR": 2.0, "BRISQUE": 2.1}
    row, _, tools = rated(picture, {}, scores, settings)
    assert "tools disagree about Global (LocalNR 2.00, NIQE 4.90)" in row.replan_history[0]
    assert [name for name, _ in tools.runs] == ["LocalNR", "NIQE", "BRISQUE"]  # each once
    assert {log.tool_name for log in row.tools if log.outvoted} == {"NIQE"}
    assert row.fusion.q_bar == pytest.approx(2.05)  # of LocalNR and BRISQUE


def test_a_tool_without_a_vote_runs_where_something_is_in_doubt(picture):
    row, _, tools = rated(picture, {"AnalysisReply": SEVERE}, {"NIQE": 2.4, "LocalNR": 4.5})
    assert "severe Blurs of Global but high scores" in row.replan_history[0]
    assert [name for name, _ in tools.runs] == ["LocalNR", "NIQE"]
    assert (row.fusion.voters, row.fusion.disagreement) == (["LocalNR"], pytest.approx(2.1))


def test_only_the_distortion_in_doubt_is_judged_again(picture):
    both = {"Global": judged("moderate", "Noise")["Global"] + judged("unclear", "Blurs")["Global"]}
    replies = {
        "DetectionReply": {"Global": ["Noise", "Blurs"]},
        "SelectionReply": {"Global": {"Noise": "NIQE", "Blurs": "NIQE"}},
        "AnalysisReply": [both, judged("slight", "Blurs")],
    }
    row, client, _ = rated(picture, replies, {"NIQE": 2.6})
    assert len(prompts(client, "DetectionReply")) == 1
    assert '{"Global": ["Blurs"]}' in prompts(client, "AnalysisReply")[1].case
    found = {item.type: item.severity for item in row.evidence.distortion_analysis["Global"]}
    assert found == {"Noise": "moderate", "Blurs": "slight"}
    assert "cannot tell how severe Blurs" in row.replan_history[0]


# Which pass wins


def test_an_answer_stays_when_a_later_pass_cannot_plan(picture):
    replies = {"AnalysisReply": SEVERE, "PlannerReply": [plan_reply(), VLMError("out of memory")]}
    row, _, _ = rated(picture, replies, {"NIQE": 4.5, "LocalNR": 4.4})
    assert (row.error, row.q is None) == (None, False)
    said = [line for line in row.warnings if "another pass was asked for and failed (" in line]
    assert "out of memory" in said[0]


@pytest.mark.parametrize(
    ("rule", "expected", "runs"), [("check", 2.6, ["LocalNR"]), ("vote", 2.5, ["LocalNR", "NIQE"])]
)
def test_a_tool_without_a_vote_does_not_run_in_either_pipeline(picture, rule, expected, runs):
    """The record has LocalNR lead NIQE by 0.11 of SRCC."""
    settings, scores = Settings(fusion={"trailing_tools": rule}), {"NIQE": 2.4, "LocalNR": 2.6}
    row, _, tools = rated(picture, {}, scores, settings)
    assert row.fusion.q_bar == pytest.approx(expected)
    assert [name for name, _ in tools.runs] == runs
    tools = ScriptedTools(scores)
    services = scripted_services(ScriptedClient(scripted_answers()), tools, settings)
    letters = assess(picture, services=services, pipeline="letters")
    assert [name for name, _ in tools.runs] == runs
    assert (letters.fusion.voters, letters.fusion.q_bar) == (row.fusion.voters, row.fusion.q_bar)
