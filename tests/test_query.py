"""What a query says in so many words: the committed table of everyday queries, by rule and end to
end."""

import json
import re
from dataclasses import replace

import pytest
import yaml
from conftest import DATA
from scripted import (
    ScriptedClient,
    ScriptedTools,
    plan_reply,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.iqa_tools.local_nr import LocalNR
from agentic_iqa_local.iqa_tools.specs import tool_key
from agentic_iqa_local.nodes.planner import correct_plan
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import (
    asks_about_damage,
    asks_for_advice,
    asks_for_rating,
    asks_where,
    choices_in,
    distortions_in,
    named_metrics,
    region_in,
    speaks_of_reference,
)
from agentic_iqa_local.output.report import account, headline
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import PlannerOutput

QUERIES = yaml.safe_load((DATA / "queries.yaml").read_text(encoding="utf-8"))


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", rows("everyday_queries.jsonl"), ids=lambda row: row["query"])
def test_everyday_queries_by_rule(row):
    """Whatever the model proposes: here the region of the table and a tool that nobody named."""
    tools = named_metrics(row["query"], row["reference"])
    assert tools == [*row["tools"], *row["unknown_tools"]]
    assert choices_in(row["query"]) == row["choices"]
    proposed = PlannerOutput.model_validate(
        plan_reply(query_scope=row["proposed_scope"], required_tool="QAlign")
    )
    plan = correct_plan(proposed, row["query"], row["reference"])
    assert plan.required_tool == next(iter(tools), None)
    if row["scope_by"] == "rule" or row["scope"] != "Global":
        assert plan.query_scope == row["scope"]


def test_200_plans_that_a_person_wrote_follow_from_the_queries():
    """Tool, distortions and type of each."""
    for row in rows("planner_queries.jsonl"):
        query, plan = row["query"], row["plan"]
        named = named_metrics(query, row["reference"])
        assert named == [*filter(None, [plan["required_tool"]])], query
        if plan["query_type"] == "IQA":
            written = {kind for kinds in (plan["distortions"] or {}).values() for kind in kinds}
            assert set(distortions_in(query)) == written, query
        else:
            assert not asks_about_damage(query), query
            assert not asks_for_rating(query), query


@pytest.mark.parametrize(("query", "names"), QUERIES["metrics"].items())
def test_names_of_metrics_and_words_that_only_look_like_them(query, names):
    assert named_metrics(query, True) == names


@pytest.mark.parametrize("name", [*TOOLS, "MUSIQ-SPAQ", "lpips+", "laion_aes"])
def test_tools_and_other_metrics_of_pyiqa_are_recognised(name):
    (named,) = named_metrics(f"Use {name}.", True)
    assert tool_key(named) == tool_key(name)


@pytest.mark.parametrize(
    ("query", "name", "region"),
    [
        ("Is it risky?", "sky", None), ("Rate this image of a cat.", "this image", None),
        ("Rate this photo of my dog.", "photo of my dog", "dog"), ("Are the boxes sharp?", "box", "box"),
        ("Is it worse at the top or at the bottom?", "top", None), ("Rate the left half.", "left half", "left half"),
    ],
)  # fmt: skip
def test_regions_are_words_of_the_query(query, name, region):
    assert region_in(query, name) == region


@pytest.mark.parametrize(("query", "choices"), QUERIES["choices"].items())
def test_answers_that_a_query_lists(query, choices):
    assert choices_in(query) == choices


def test_whether_a_query_asks_for_a_place():
    assert asks_where("which corner is out of focus")
    assert asks_where("Is it worse on the left or on the right?")
    assert not asks_where("How noisy is it?")


@pytest.mark.parametrize(("query", "kinds"), QUERIES["distortions"].items())
def test_words_for_distortions_and_words_that_look_like_them(query, kinds):
    assert distortions_in(query) == kinds


@pytest.mark.parametrize(("query", "about"), QUERIES["about damage"].items())
def test_a_question_about_damage_is_one_about_quality(query, about):
    assert asks_about_damage(query) is about


@pytest.mark.parametrize(("query", "wanted"), QUERIES["for advice"].items())
def test_a_question_what_to_do_is_told_from_one_about_quality(query, wanted):
    assert asks_for_advice(query) is wanted
    assert asks_about_damage(query) is wanted


@pytest.mark.parametrize(("query", "wanted"), QUERIES["for a rating"].items())
def test_a_query_for_a_rating_is_about_quality(query, wanted):
    assert asks_for_rating(query) is wanted
    other = PlannerOutput.model_validate(
        rows("planner_queries.jsonl")[0]["plan"] | {"query_type": "Other"}
    )
    assert (correct_plan(other, query, False).query_type == "IQA") is wanted


@pytest.mark.parametrize(("query", "wanted"), QUERIES["of an original"].items())
def test_a_query_that_speaks_of_an_original(query, wanted):
    assert speaks_of_reference(query) is wanted


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_an_original_that_was_not_given_is_missed(pipeline, noisy_path, services):
    query, said = "How far is it from the original?", "none was given (assess takes --reference)"
    how = {"query": query, "services": services, "pipeline": pipeline}
    alone, beside = (
        assess(noisy_path, reference=reference, **how) for reference in (None, noisy_path)
    )
    assert said in " ".join(alone.warnings)
    assert said not in " ".join(beside.warnings)


@pytest.fixture(scope="module")
def noisy_row(noisy_path, services):
    return assess(noisy_path, query="Is it noisy?", services=services)


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_every_tool_that_the_query_names_runs_and_counts(picture, pipeline):
    tools = ScriptedTools({"NIQE": 4.0, "PIQE": 2.0, "QAlign": 5.0})
    services = scripted_services(ScriptedClient(scripted_answers()), tools)
    row = assess(picture, query="Compare NIQE and PIQE.", pipeline=pipeline, services=services)
    assert (row.fusion.voters, row.fusion.q_bar) == (["NIQE", "PIQE"], pytest.approx(3.0))
    assert "; NIQE 4 (lower is better, from 0 to 50): 4.00 of 5; PIQE 2 " in headline(row)


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("BRISQUE", "BRISQUE is unavailable: missing weights"),
        ("PSNR", "PSNR compares with a reference image"),
        ("VMAF", "there is no tool 'VMAF' here; "),
    ],
)
def test_where_no_named_tool_can_run_the_configured_ones_do(
    photo_path, services, name, reason, pipeline
):
    """With the real tools; the first line says so."""
    given = scripted_services(ScriptedClient(scripted_answers()), services.tools)
    row = assess(photo_path, query=f"Use {name}.", pipeline=pipeline, services=given)
    assert f"; {reason}" in headline(row)
    assert headline(row).endswith("; LocalNR measured")
    assert row.q == assess(photo_path, pipeline=pipeline, services=given).q


def test_the_letters_pipeline_runs_no_tool_beside_choices(picture):
    services = scripted_services(ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 4.0}))
    how = {"choices": ["Yes", "No"], "pipeline": "letters", "services": services}
    row = assess(picture, query="Is its NIQE good?", **how)
    assert any("NIQE did not measure" in line for line in row.warnings)


@pytest.fixture
def without_local_nr(services, monkeypatch):
    """Services whose LocalNR reads no number."""
    examine = LocalNR.examine
    broken = {"quality": float("nan")}
    monkeypatch.setattr(LocalNR, "examine", lambda *given: replace(examine(*given), **broken))
    return Services(services.settings, "cpu", services.clients)


@pytest.mark.parametrize("query", [DEFAULT_QUERY, "Is it noisy?"])
def test_where_localnr_reads_no_number_no_damage_is_denied(photo_path, without_local_nr, query):
    """The other tool goes on. The embedded model's own word of distortions counts for nothing."""
    row = assess(photo_path, query=query, services=without_local_nr)
    assert (row.error, row.fusion.voters) == (None, ["NIQE"])
    assert [run.tool_name for run in row.tools if run.error] == ["LocalNR"]
    assert any("could not score the picture: " in line for line in row.warnings)
    assert row.evidence.distortion_analysis is None
    assert "Distortions were not looked for: LocalNR failed" in row.quality_reasoning
    assert not re.search(r"\bno (visible|noise|damage|distortion)|clean", account(row), re.I)


def test_answers_in_the_query_are_offered_to_the_model(picture):
    services = scripted_services(ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 4.0}))
    row = assess(picture, query="Is it noisy? yes or no", services=services)
    assert (row.choices, set(row.fusion.p_c)) == (["yes", "no"], {"A", "B"})


@pytest.mark.parametrize(
    ("query", "begins"),
    [
        ("Is it noisy?", "yes, (severe|extreme) noise; [A-E] "),
        ("Is it sharp, apart from the noise?", "yes, no blur found; "),
        ("Are there halos?", "no, no oversharpening found; "),  # a distortion, by a word of its own
        ("How noisy is it?", "(severe|extreme) noise; "),
        ("Where is the noise?", "(severe|extreme) noise everywhere in the picture; "),
        ("Where is the blur?", r"no blur found in any part \(--map draws how good each is\); "),
        ("How many people are in it?", "judged for picture quality alone: .*noise"),
        (DEFAULT_QUERY, "[A-E] "),
    ],
)
def test_a_rating_is_preceded_by_what_was_found_of_the_question(noisy_row, query, begins):
    known = noisy_row.evidence.model_copy(update={"damaged_part": "everywhere"})
    said = headline(noisy_row.model_copy(update={"query": query, "evidence": known}))
    assert re.match(begins, said.removeprefix(f"{noisy_row.image}: "))
