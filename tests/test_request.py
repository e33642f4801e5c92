"""What may be asked: the bounds, and the one sentence where one is passed."""

import pytest

from agentic_iqa_local.request import check_choices, check_query


@pytest.mark.parametrize("query", ["Rate it.", "x" * 4000, "?"])
def test_a_query_of_up_to_4000_characters_is_taken(query):
    check_query(query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (3, "query: expected a text, got int"),
        ("", "query: expected a question"),
        (" \n", "query: expected a question"),
        ("x" * 4001, "query: expected at most 4000 characters, got 4001"),
        ("ab\udcff", "query: expected text in UTF-8, got another byte as character 3"),
    ],
)
def test_what_is_no_query_is_refused(query, message):
    with pytest.raises(ValueError, match=message):
        check_query(query)


def test_choices_are_no_longer_together_than_a_query():
    check_choices(["x" * 2000, "y" * 2000])
    with pytest.raises(ValueError, match="choices: expected at most 4000 characters, got 4001"):
        check_choices(["x" * 2000, "y" * 2001])


@pytest.mark.parametrize("choices", ["yes or no", {"yes": 1, "no": 2}, ["yes", 2], 3])
def test_choices_are_a_list_of_texts(choices):
    with pytest.raises(ValueError, match=r"choices: expected a list of texts such as \['Yes', 'No'\], got "):
        check_choices(choices)
