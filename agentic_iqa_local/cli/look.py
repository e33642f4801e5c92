"""The commands that look at what is there: doctor at this machine, tools at the IQA tools, gallery
at rows."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentic_iqa_local.cli.console import Console, say, tell
from agentic_iqa_local.cli.options import chosen_settings, device_of
from agentic_iqa_local.cli.outputs import SUFFIXES, check_apart, output_file
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import PAGE
from agentic_iqa_local.result import Assessment


def doctor(args: argparse.Namespace) -> int:
    """Prints the checks; 1 where one failed. Raises UserError for a configuration that cannot be
    used."""
    from agentic_iqa_local.offline.checks import Setup
    from agentic_iqa_local.offline.doctor import examine

    checks = []
    for check in examine(
        Setup(chosen_settings(args), args.gpu, args.cpu, args.quick), is_deep=args.deep
    ):
        checks.append(check)
        if not args.json:
            remedy = f"\n                remedy: {check.remedy}" if check.remedy else ""
            say(f"{check.status}  {check.seconds:6.1f} s  {check.name}: {check.found}{remedy}")
    count = Counter(check.status for check in checks)
    if args.json:
        say(json.dumps({"ok": not count["fail"], "checks": [asdict(check) for check in checks]}))
    else:
        say(f"\n{count['pass']} passed, {count['warn']} warned, {count['fail']} failed")
    return 1 if count["fail"] else 0


def tools(args: argparse.Namespace) -> None:
    from agentic_iqa_local.iqa_tools import ToolRunner
    from agentic_iqa_local.output.tables import tool_table

    settings = chosen_settings(args)
    runner = ToolRunner(device_of(args), settings.tools.maps, settings.models_dir)
    with Console() as console:
        tell(tool_table(runner.info()), console.results)


def gallery(args: argparse.Namespace) -> int:
    from agentic_iqa_local.output.gallery.rows import read_rows

    named = args.out or args.rows.with_suffix(".html")
    out = output_file("--out", named, *SUFFIXES["gallery"], mark=PAGE)
    check_apart([("--out", out)], [args.rows])
    message, missing = make_gallery(read_rows(args.rows), out, args.rows.name, args.images)
    say(message)
    return 1 if missing else 0


def make_gallery(
    rows: Sequence[Assessment], out: Path, name: str, images: Path | None = None
) -> tuple[str, int]:
    """Writes the gallery; one sentence on it, and how many pictures it lacks. Raises WriteError."""
    from agentic_iqa_local.output.gallery.page import write_gallery

    missing = write_gallery(rows, out, name=name, images=images)
    said = f"gallery {out}: {counted(len(rows), 'row')}"
    if failed := sum(row.error is not None for row in rows):
        said += f", {counted(failed, 'failure')}"
    if missing:
        said += f", {counted(missing, 'picture')} that cannot be opened (the page says why)"
    return one_line(f"{said}; open it in a browser"), missing
