"""Writes the map of the code: each module with the first sentence of its docstring.

  python -m agentic_iqa_local.laboratory.code_map docs/architecture.md

The tables stand between the page's marks <!-- map --> and <!-- end of map -->.
"""

import argparse
import ast
import sys
from pathlib import Path

from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.paths import ROOT

PACKAGE = ROOT / "agentic_iqa_local"
BEGIN, END = "<!-- map -->\n", "<!-- end of map -->"


def first_sentence(module: Path) -> str:
    """Of the module's docstring, in one line."""
    text = " ".join((ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").split())
    sentence, period, _ = text.partition(". ")
    return sentence + period.rstrip() if period else text


def code_map() -> str:
    """A table for each folder of the package, the package's own modules first."""
    folders = sorted({module.parent for module in PACKAGE.rglob("*.py")})
    parts = []
    for folder in folders:
        modules = sorted(module for module in folder.glob("*.py") if module.name != "__init__.py")
        name = folder.relative_to(ROOT).as_posix()
        about = first_sentence(folder / "__init__.py")
        parts.append(f"### {name}/\n\n{about}\n\n| module | |\n|---|---|\n")
        parts[-1] += "".join(f"| `{module.name}` | {first_sentence(module)} |\n" for module in modules)
    return "\n".join(parts)


def written(page: str) -> str:
    """The page with the map between its marks. Raises ValueError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the marks {BEGIN.strip()} and {END}, found none; add them")
    return f"{before}{begin}\n{code_map()}\n{end}{after}"


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="a Markdown file with both marks")
    args = parser.parse_args(argv)
    try:
        args.page.write_text(written(args.page.read_text(encoding="utf-8")), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"error: {args.page}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
