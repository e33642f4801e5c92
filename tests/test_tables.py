"""Rows as a table for spreadsheets."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.batch.cells import plain_cell, safe_cell
from agentic_iqa_local.output.tables import csv_text


def rows(picture, *queries, **options):
    services = scripted_services(
        ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 3.0, "PIQE": 2.0})
    )
    return [assess(picture, query=query, services=services, **options) for query in queries]


def read(found):
    return list(csv.DictReader(io.StringIO(csv_text(found))))


def test_a_line_for_each_row_a_column_for_each_tool(picture):
    found = rows(picture, "What is the NIQE?", "Compare NIQE and PIQE.")
    first, second = read(found)
    assert float(first["q"]) == found[0].q
    assert (first["NIQE 1-5"], first["PIQE raw"]) == ("3.0", "")
    assert (second["NIQE raw"], second["PIQE 1-5"]) == ("3.0", "2.0")
    assert first["distortions"] == "moderate blur"
    assert sum(float(first[f"p_{letter}"]) for letter in "ABCDE") == pytest.approx(1)


@pytest.mark.parametrize("severity", ["none", "unclear"])
def test_what_was_not_found_is_no_distortion_of_a_table(picture, severity):
    client = ScriptedClient(scripted_answers(AnalysisReply=moderate_blur(severity=severity)))
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}))
    (row,) = read([assess(picture, services=services)])
    assert row["distortions"] == ""


def test_a_choice_stands_in_words_a_failure_has_its_reason(picture, tmp_path):
    chosen, failed = read(
        [*rows(picture, "Is it noisy? yes or no"), *rows(tmp_path / "none.png", "Rate it.")]
    )
    assert chosen["answer"] in ("yes", "no")
    assert chosen["q"] == ""
    assert "no such file" in failed["error"]
    assert {failed[name] for name in ("answer", "level", "q", "tools_mean", "p_A", "seconds")} <= {
        "",
        failed["seconds"],
    }


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1+1|cmd", "'+1+1|cmd"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ('"=1', "'\"=1"),
        # behind what begins a cell for some programs
        ("a;=1", "a;'=1"),
        ("\t=1", "\t'=1"),
        ("a\n=1", "a\n'=1"),
        ("a\r\n＝1", "a\r\n'＝1"),
    ],
)
def test_no_text_is_taken_for_a_formula(text, cell, picture):
    assert safe_cell(text) == cell
    (row,) = read(rows(picture, f"rate it{text}"))
    assert row["query"] == safe_cell(f"rate it{text}")


ENDS = st.sampled_from(["\n", "\r\n", "\t", ";", ",", '"', "'", "''", "=", "-1", "+", "@", "|"])
WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(st.lists(ENDS | WORDS).map("".join))
def test_a_cell_is_read_as_the_text_that_was_written(text):
    assert plain_cell(safe_cell(text)) == text
