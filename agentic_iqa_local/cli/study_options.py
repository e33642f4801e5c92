"""What the subcommands of study have in common: help that ends with examples, and numbers."""

import argparse
import textwrap

from agentic_iqa_local.files import command

STUDY = command("study")
Subcommands = argparse._SubParsersAction


def add_command(
    commands: Subcommands, name: str, about: str, description: str, *examples: str
) -> argparse.ArgumentParser:
    """A subcommand's parser, whose help ends with examples."""
    return commands.add_parser(
        name,
        help=about,
        description=textwrap.fill(description, 79, break_on_hyphens=False),
        epilog="examples:\n" + textwrap.indent("\n".join(f"{STUDY} {name} {line}" for line in examples), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def count(text: str) -> int:
    """A number of one or more, as an option's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)
