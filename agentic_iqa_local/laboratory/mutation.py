"""Puts small faults into a module, one at a time, and says which of them its tests do not notice.

    python -m agentic_iqa_local.laboratory.mutation score_fusion
    python -m agentic_iqa_local.laboratory.mutation rows state --sample 60 --out scores.json
    python -m agentic_iqa_local.laboratory.mutation levels --tests test_text.py

A mutant is the module with one comparison, operator, constant, argument, condition, result or statement
changed. Each runs in a forked process that has the libraries loaded and imports the package anew, against the
module's own test files and no others, until a test fails ("killed") or all pass ("survived"). One that runs
much longer than the module as it is counts as killed. Tests that start other processes see the module
unchanged there. Docstrings, annotations, decorators, the text of exceptions, logs and f-strings, fields'
descriptions and zip's `strict` are never mutated. Tests that wait for the real metrics or the real model are
left out.

A survivor wants a test. One that changes nothing that can be observed goes into mutation_equivalent.json
beside this file, with the reason, and does not count: the score is killed / (tried − equivalent). With --out
a module's figures replace those that the file had of it. Needs Linux or macOS, and the folder of tests.
"""

import argparse
import ast
import copy
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentic_iqa_local.batch.rows import write_whole
from agentic_iqa_local.cli.console import Parser, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import read_json
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.provenance import machine
from agentic_iqa_local.text import one_line

PACKAGE = "agentic_iqa_local"
PACKAGES = ("pytest", "numpy", "scipy", "pydantic", "langgraph")  # whose versions are told with the figures
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.json")
TESTS = {  # the test files of a module; one that is not here has test_NAME.py
    "batch": "batch batch_time faults durability",
    "evidence": "replanning planner_executor summarizer state faults",
    "graph": "graph ask faults",
    "intervals": "intervals sureness",
    "iqa_tools.calibration": "calibration faults",
    "nodes.letter_reading": "sureness summarizer replanning faults",
    "nodes.summarizer": "summarizer replanning reasoning conversation faults",
    "replanning": "replan_loop state graph replanning summarizer",
    "request": "request state graph faults",
    "rows": "rows durability",
    "runs": "batch durability faults",
    "score_fusion": "score_fusion faults summarizer",
    "state": "state planner_executor summarizer",
    "studies.inference": "faults study_run",
    "studies.statistics.agreement": "statistics faults",
    "studies.statistics.bootstrap": "statistics faults",
    "studies.statistics.comparisons": "statistics faults",
    "studies.statistics.levels": "statistics faults",
}

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
REAL = {
    "services",
    "client",
    "runner",
    "flat_model",
}  # fixtures: tests that take them wait for a model or metrics
N = TypeVar("N", bound=ast.AST)
UNTOLD = ("strict", "description")  # arguments: of zip, where lengths are equal, and of pydantic's fields
LOGS = ("debug", "info", "warning", "error", "exception")


class MutationError(UserError, ValueError):
    """A module that cannot be measured; one sentence for the user."""


@dataclass(frozen=True)
class Mutant:
    """One fault. `diff` has the lines that it changes, as `ast.unparse` writes them, with - and + before."""

    line: int
    function: str
    diff: tuple[str, ...]
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module's source once, in the order of its lines."""
    tree = ast.parse(source)
    before = ast.unparse(tree).splitlines()
    made: dict[str, Mutant] = {}
    for field_of, name, index, changed, line, function in _changes(tree, "<module>"):
        kept = getattr(field_of, name)
        setattr(field_of, name, changed if index is None else [*kept[:index], *changed, *kept[index + 1 :]])
        text = ast.unparse(tree)
        setattr(field_of, name, kept)
        lines = difflib.unified_diff(before, text.splitlines(), lineterm="", n=0)
        diff = tuple(entry for entry in lines if entry[:3] not in ("---", "+++") and entry[0] in "-+")
        if diff:
            made.setdefault(text, Mutant(line, function, diff, text))
    return sorted(made.values(), key=lambda mutant: mutant.line)


def _changes(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str, int | None, Any, int, str]]:
    """(node, field, index in the field, what to put there, line, function) for each fault below a node."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _left_alone(child, node):
                continue
            inside = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = child.name if function == "<module>" else f"{function}.{child.name}"
            line = getattr(child, "lineno", getattr(node, "lineno", 0))
            for changed in _faults(child, node, name):
                yield node, name, index, changed if index is None else [changed], line, inside
            yield from _changes(child, inside)


def _left_alone(node: ast.AST, parent: ast.AST) -> bool:
    """What says something to a person, and what only a type checker reads."""
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.Constant():
            return isinstance(parent, ast.JoinedStr)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in LOGS and isinstance(parent, ast.Expr)
        case ast.Call(func=ast.Name(id=name)):
            return name == "TypeVar" or isinstance(parent, ast.Raise)
        case ast.keyword(arg=name):
            return name in UNTOLD
        case ast.Subscript(value=ast.Name(id=name)):
            return name in ("Literal", "Annotated")
    return False


def _faults(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """What could wrongly stand in the place of `node`."""
    if field in ("test", "ifs"):
        yield ast.parse(f"not ({ast.unparse(node)})", mode="eval").body
    if isinstance(node, ast.Constant):
        yield from map(ast.Constant, _other_values(node.value))
    elif isinstance(node, ast.Call):
        yield from _other_arguments(node)
    elif isinstance(node, ast.Expr | ast.Raise | ast.AugAssign | ast.Delete):
        yield ast.Pass()
    match node:
        case ast.Compare(ops=operators):
            for number, operator in enumerate(operators):
                for other in COMPARISONS[type(operator)]:
                    yield _with(node, ops=[*operators[:number], other(), *operators[number + 1 :]])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            if type(operator) in OPERATORS:
                yield _with(node, op=OPERATORS[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Return(value=ast.AST() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _other_values(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1]
    return [f"XX{value}XX"] if isinstance(value, str) else []


def _other_arguments(call: ast.Call) -> Iterator[ast.Call]:
    """The call with None for one positional argument, or without one by name."""
    for number, argument in enumerate(call.args):
        if not isinstance(argument, ast.Starred | ast.Constant):
            yield _with(call, args=[*call.args[:number], ast.Constant(None), *call.args[number + 1 :]])
    for number, keyword in enumerate(call.keywords):
        if keyword.arg not in UNTOLD:
            yield _with(call, keywords=call.keywords[:number] + call.keywords[number + 1 :])


def _with(node: N, **fields: Any) -> N:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Loader(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Imports one module from the source that it is given."""

    def __init__(self, module: str, path: Path, source: str):
        super().__init__(module, str(path))
        self.source = source

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname == self.name:
            return importlib.util.spec_from_file_location(fullname, self.path, loader=self)
        return None

    def get_code(self, fullname: str) -> Any:
        return compile(self.source, str(self.path), "exec")


class Tests:
    """A module's tests, run against one source of it or another. Raises MutationError when they fail on the
    source as it is."""

    def __init__(self, module: str, files: Sequence[str]):
        self.module, self.files = f"{PACKAGE}.{module}", [str(ROOT / "tests" / file) for file in files]
        self.path = ROOT / PACKAGE / f"{module.replace('.', '/')}.py"
        if missing := [path for path in map(str, [self.path, *self.files]) if not Path(path).is_file()]:
            raise MutationError(
                f"{module}: there is no file {missing[0]}", "name modules such as studies.run"
            )
        self.source = self.path.read_text(encoding="utf-8")
        start = time.monotonic()
        with tempfile.NamedTemporaryFile("r") as loaded:
            if self.killed(self.source, 900, keep=loaded.name):
                raise MutationError(
                    f"{module}: its tests fail on the module as it is", f"run pytest {' '.join(self.files)}"
                )
            for name in loaded.read().split():
                with suppress(Exception):  # what fails here is imported by each mutant's process
                    importlib.import_module(name)
        self.limit = 15 + 3 * (time.monotonic() - start)  # seconds after which a mutant hangs

    def killed(self, source: str, limit: float, keep: str | None = None) -> bool:
        """Whether a test fails, or `limit` seconds do not suffice. The file `keep` gets the names of the
        libraries that were loaded."""
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            child = os.fork()
            if not child:
                os._exit(self._run(source, folder, keep))
            end = time.monotonic() + limit
            ended, status = 0, 1
            while not ended and time.monotonic() < end:
                time.sleep(0.01)
                ended, status = os.waitpid(child, os.WNOHANG)
            with suppress(OSError):  # with the processes that its tests have left
                os.killpg(child, signal.SIGKILL)
            if not ended:
                os.waitpid(child, 0)
            return not ended or status != 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """pytest's hook, for which this is a plugin."""
        items[:] = [item for item in items if REAL.isdisjoint(item.fixturenames)]

    def _run(self, source: str, folder: str, keep: str | None) -> int:
        """In the forked process: the tests' exit status."""
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        os.chdir(ROOT)
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Loader(self.module, self.path, source))
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        import pytest  # here: the command's --help needs none

        options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        status = int(pytest.main([*options, *self.files], [self]))
        if keep:
            libraries = [
                name
                for name, module in sys.modules.items()
                if getattr(module, "__spec__", None)
                and name.split(".")[0] != PACKAGE
                and not str(getattr(module, "__file__", "")).startswith(str(ROOT / "tests"))
            ]
            Path(keep).write_text("\n".join(libraries), encoding="utf-8")
        return status


def measure(module: str, files: Sequence[str], sample: int | None, seed: int) -> dict[str, Any]:
    """A module's figures; of all its mutants, or of a sample. Raises MutationError."""
    tests = Tests(module, files)
    every = mutants(tests.source)
    tried = every
    if sample is not None and sample < len(every):
        tried = sorted(random.Random(seed).sample(every, sample), key=lambda mutant: mutant.line)
    reviewed = json.loads(EQUIVALENT.read_text(encoding="utf-8")).get(module, [])
    reasons = {(entry["function"], tuple(entry["diff"])): entry["reason"] for entry in reviewed}
    if stale := reasons.keys() - {(mutant.function, mutant.diff) for mutant in every}:
        progress(f"{module}: {EQUIVALENT.name} has mutants that are no more: {sorted(stale)}")
    killed = 0
    equivalent: list[dict[str, Any]] = []
    survived: list[dict[str, Any]] = []
    for number, mutant in enumerate(tried, 1):
        entry = {"line": mutant.line, "function": mutant.function, "diff": mutant.diff}
        if reason := reasons.get((mutant.function, mutant.diff)):
            equivalent.append(entry | {"reason": reason})
        elif tests.killed(mutant.source, tests.limit):
            killed += 1
        else:
            survived.append(entry)
            progress(f"{module}:{mutant.line} survived: {' '.join(mutant.diff)}")
        if number % 20 == 0:
            progress(f"{module}: {number} of {len(tried)} mutants, {killed} killed")
    counted = len(tried) - len(equivalent)
    return {
        "tests": list(files),
        "mutants": len(every),
        "tried": len(tried),
        "seed": seed if len(tried) < len(every) else None,
        "killed": killed,
        "score": round(killed / counted, 4) if counted else None,
        "equivalent": equivalent,
        "survived": survived,
    }


def tests_of(module: str) -> list[str]:
    return [f"test_{name}.py" for name in TESTS.get(module, module.rpartition(".")[2]).split()]


def progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {one_line(what)}", file=sys.stderr, flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="mutation", description=__doc__ or "", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="below the package, such as studies.run")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="try N mutants of each module, drawn at random; default all"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample; default 0")
    parser.add_argument(
        "--tests", nargs="+", metavar="FILE", help="files of tests/ to run instead of the module's own"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file of the figures; default stdout")
    return parser.parse_args(argv)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        results = read_json(args.out) if args.out and args.out.exists() else {"modules": {}}
        for module in args.modules:
            figures = measure(module, args.tests or tests_of(module), args.sample, args.seed)
            results["modules"] = dict(sorted({**results["modules"], module: figures}.items()))
            results["machine"] = machine(PACKAGES)
            if args.out:
                write_whole(args.out, json.dumps(results, indent=1, ensure_ascii=False))
            progress(f"{module}: {figures['killed']} of {figures['tried']} killed, score {figures['score']}")
    except (UserError, OSError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the modules that were finished are kept", file=sys.stderr)
        return 130
    if not args.out:
        print(json.dumps(results, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
