"""Names the functions that decide too much: more than ten branches, counted in expressions too.

    python scripts/branches.py agentic_iqa_local

Linters count statements. Here a condition counts wherever it stands: `if`, loops, `except`, `case`, each further
operand of `and` and `or`, a conditional expression, a comprehension and each of its conditions.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MOST = 10
STATEMENTS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body, those of functions within it left out."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, FUNCTIONS):
            yield node
            yield from own_nodes(node)


def branches(node: ast.AST) -> int:
    """How many branches this node alone adds."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, STATEMENTS))


def main() -> int:
    """Prints a line for each function that has too many. Returns the exit status."""
    status = 0
    for folder in sys.argv[1:]:
        for file in sorted(Path(folder).rglob("*.py")):
            for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(function, FUNCTIONS):
                    continue
                count = sum(map(branches, own_nodes(function)))
                if count > MOST:
                    status = 1
                    print(
                        f"{file}:{function.lineno}: {function.name} has {count} branches, the most is {MOST}"
                    )
    return status


if __name__ == "__main__":
    sys.exit(main())
