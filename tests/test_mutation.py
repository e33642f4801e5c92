"""The command that plants faults, and a sample of what it finds: the rest is in benchmarks/mutation/scores.json."""

import json
import subprocess
import sys

import pytest

from agentic_iqa_local.laboratory.mutation import EQUIVALENT, PACKAGE, TESTS, mutants
from agentic_iqa_local.paths import ROOT


def diffs(source: str) -> list[str]:
    return [" ".join(line.replace("    ", "") for line in mutant.diff) for mutant in mutants(source)]


def test_every_kind_of_fault_is_planted_once():
    source = """
def f(a: "str" = None, b=1) -> "int":
    '''Adds.'''
    if a and not b:
        raise ValueError(f"wrong {a!r}")
    return g(a, key=b)
"""
    assert sorted(diffs(source)) == sorted(
        [
            "-def f(a: 'str'=None, b=1) -> 'int': +def f(a: 'str'=None, b=2) -> 'int':",
            "-def f(a: 'str'=None, b=1) -> 'int': +def f(a: 'str'=None, b=0) -> 'int':",
            "-if a and (not b): +if not (a and (not b)):",
            "-if a and (not b): +if a or not b:",
            "-if a and (not b): +if a and b:",
            "-raise ValueError(f'wrong {a!r}') +pass",
            "-return g(a, key=b) +return None",
            "-return g(a, key=b) +return g(None, key=b)",
            "-return g(a, key=b) +return g(a)",
        ]
    )


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("x = a < b", ["x = a <= b", "x = a >= b"]),
        ("x = a + b", ["x = a - b"]),
        ("x = 2.5", ["x = 3.5", "x = 1.5"]),
        ("x = True", ["x = False"]),
        ("x = 'ab'", ["x = 'XXabXX'"]),
        ("x -= y", ["x += y", "pass"]),
        ("logger.info('said', x)", ["pass"]),
    ],
)
def test_what_stands_in_the_place_of_a_line(line, faults):
    found = [mutant.source for mutant in mutants(line)]
    assert sorted(found) == sorted(faults)


def measured(tmp_path, *arguments: str) -> dict:
    out = tmp_path / "mutation.json"
    command = [sys.executable, "-m", f"{PACKAGE}.laboratory.mutation", *arguments, "--out", str(out)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    (figures,) = json.loads(out.read_text())["modules"].values()
    return figures


def test_the_tests_of_the_fusion_notice_a_sample_of_faults(tmp_path):
    figures = measured(
        tmp_path, "score_fusion", "--tests", "test_score_fusion.py", "--sample", "25", "--seed", "18"
    )
    assert figures["tried"] == 25
    assert figures["score"] >= 0.92, figures["survived"]


def test_tests_of_something_else_notice_nothing(tmp_path):
    figures = measured(tmp_path, "score_fusion", "--tests", "test_text.py", "--sample", "2")
    assert (figures["killed"], len(figures["survived"])) == (0, 2)


def test_an_unknown_module_is_one_sentence():
    command = [sys.executable, "-m", f"{PACKAGE}.laboratory.mutation", "scorefusion"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 2
    assert said.stderr.startswith("error: scorefusion: there is no file")
    assert said.stderr.count("\n") == 1


def test_every_module_and_its_tests_exist_and_every_reviewed_mutant_has_a_reason():
    for module, names in TESTS.items():
        assert (ROOT / PACKAGE / f"{module.replace('.', '/')}.py").is_file()
        assert all((ROOT / "tests" / f"test_{name}.py").is_file() for name in names.split())
    for entries in json.loads(EQUIVALENT.read_text()).values():
        assert all(entry["function"] and entry["diff"] and entry["reason"] for entry in entries)
