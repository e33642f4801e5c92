"""The map of the code is that of the code."""

import pytest
from conftest import ROOT

from agentic_iqa_local.laboratory.code_map import PACKAGE, first_sentence, main, written

PAGE = ROOT / "docs" / "architecture.md"


def test_the_page_has_every_module_with_what_its_docstring_says():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run python -m agentic_iqa_local.laboratory.code_map docs/architecture.md"


@pytest.mark.parametrize(
    "module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_every_module_says_what_it_is(module):
    assert first_sentence(module)


def test_a_page_without_marks_is_refused_and_left_alone(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    assert main([str(page)]) == 2
    assert "expected the marks" in capsys.readouterr().err
    assert page.read_text() == "# A page\n"


def test_a_line_is_the_first_sentence(tmp_path):
    (tmp_path / "a.py").write_text('"""Reads files\nof rows. And more.\n\nDetails."""\n')
    assert first_sentence(tmp_path / "a.py") == "Reads files of rows."
