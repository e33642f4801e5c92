"""Several pictures of the command assess on a terminal: a line for each, as they finish or sorted at the
end."""

import argparse
import os
import shutil
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.errors import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.output.picture_lines import Layout
    from agentic_iqa_local.result import Assessment


class Screen:
    """The lines of the pictures that a command line names."""

    def __init__(self, args: argparse.Namespace, pictures: list[str], console: Console) -> None:
        self.args, self.console, self.pictures = args, console, pictures
        self._begun = False
        terminal, several = console.results.isatty(), len(pictures) > 1
        text = several and terminal and not (args.json or args.explain)
        self.lines = text and (args.out is None or args.sort is not None)
        """Whether each picture has its line."""

    def show(self, row: "Assessment") -> None:
        """The line of a row; nothing where lines are sorted at the end."""
        if not self.args.sort:
            self._print(row)

    def show_sorted(self, rows: Iterable[dict[str, Any]]) -> None:
        """The lines of all rows in the order that --sort asks for; where there are none, that it has none."""
        from agentic_iqa_local.output.picture_lines import in_order
        from agentic_iqa_local.result import Assessment

        if not self.lines:
            self.console.say("--sort orders lines of several pictures on a terminal: there are none here")
            return
        for row in in_order(map(Assessment.model_validate, rows), self.args.sort):
            self._print(row)

    def _print(self, row: "Assessment") -> None:
        from agentic_iqa_local.output.picture_lines import picture_line

        folder, short, longest = self._names
        if folder and not self._begun:
            self.console.show(one_line(f"{folder}{os.sep}"))
        self._begun = True
        name = self._shown(short(row.image))
        self.console.show_coloured(picture_line(row, name, self._layout(longest), self.console.coloured))

    @cached_property
    def _names(self) -> tuple[str, Callable[[str], str], int]:
        """The pictures' common folder, what makes a path relative to it, and the width of the longest
        name."""
        from agentic_iqa_local.output.picture_lines import short_names, text_width

        folder, short = short_names(self.pictures)
        widths = (text_width(self._shown(short(picture))) for picture in self.pictures)
        return folder, short, max(widths, default=0)

    def _shown(self, name: str) -> str:
        """The name with escapes for what the terminal's encoding lacks, so that its width is known."""
        encoding = self.console.results.encoding or "utf-8"
        return one_line(name).encode(encoding, "backslashreplace").decode(encoding)

    def _layout(self, longest: int) -> "Layout":
        """That of the terminal as it is now: it may have been resized."""
        from agentic_iqa_local.output.picture_lines import layout

        args = self.args
        verdict = args.at_least is not None or args.abstain_wider_than is not None
        columns = shutil.get_terminal_size().columns
        return layout(longest, columns, damage=args.pipeline == "agent", verdict=verdict)
