"""The replan loop's bookkeeping, by its own rules."""

import logging
from types import SimpleNamespace

import pytest

from agentic_iqa_local.nodes.replanning import append_replan_reason, gaps_to_close, may_replan
from agentic_iqa_local.state import NO_REASON, Gap


@pytest.mark.parametrize(
    ("state", "may"),
    [
        ({"max_replan_iterations": 0}, False),  # no round was asked for yet, and none is allowed: 0 < 0
        ({"max_replan_iterations": 1}, True),  # 0 < 1
        ({"iteration_count": 1, "max_replan_iterations": 1}, False),
        ({"iteration_count": 1}, True),  # the default is 2
        ({"iteration_count": 2, "max_replan_iterations": None}, False),
    ],
)
def test_the_limit_is_judged_on_the_rounds_asked_for(state, may):
    assert may_replan(state) == may


def asked(**changes):
    result = {"need_replan": True, "gaps": [], "replan_reason": None} | changes
    return {"summarizer_result": SimpleNamespace(**result)}


def test_what_a_pass_is_to_close_is_what_the_one_before_asked_for():
    gap = Gap(kind="analysis", reason="too dark")
    assert gaps_to_close({}) == []
    assert gaps_to_close(asked(need_replan=False, gaps=[gap])) == []
    assert gaps_to_close(asked(gaps=[gap], replan_reason="another")) == [gap]
    # a reason without gaps asks for another look
    assert gaps_to_close(asked(replan_reason="too dark")) == [Gap(kind="analysis", reason="too dark")]
    assert gaps_to_close(asked()) == [Gap(kind="analysis", reason=NO_REASON)]


def test_too_long_a_history_is_told_in_the_programs_own_log(caplog):
    with caplog.at_level(logging.WARNING, logger="agentic_iqa_local"):
        history = append_replan_reason([f"[Iteration {n}] again" for n in range(10)], 10, "again")
    assert (len(history), history[-1]) == (10, "[Iteration 10] again")
    assert [record.name for record in caplog.records] == ["agentic_iqa_local.nodes.replanning"]
