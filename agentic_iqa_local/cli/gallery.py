"""Makes a gallery of a batch: one HTML file with thumbnails, to sort, filter and triage, that opens from disk and
asks nothing of the network.

examples:
  {gallery} rows.jsonl
  {gallery} rows.jsonl --out gallery.html --images /mnt/archive/scans

rows.jsonl is what assess --out wrote. Exit status: 0 written, 1 written but some pictures could not be read and show
the reason instead, 2 wrong usage or rows that cannot be read.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.cli.command import Command, UsageError
from agentic_iqa_local.cli.options import SUFFIXES, add, output_file
from agentic_iqa_local.errors import one_line

OPTIONS = """
rows FILE     JSON lines of assess --out
--out FILE    the page (default: that name with the suffix .html)
--images DIR  where the pictures are now, if they are no longer at the paths in the rows
"""


def make(args: argparse.Namespace) -> int:
    """Raises UserError."""
    from agentic_iqa_local.output.gallery.rows import read_rows

    out = output_file("--out", args.out or args.rows.with_suffix(".html"), *SUFFIXES["gallery"])
    if args.images and not args.images.is_dir():
        raise UsageError(f"--images {args.images}: expected a folder, there is none", "name another")
    message, missing = written(read_rows(args.rows), out, args.rows.name, args.images)
    print(message)
    return 1 if missing else 0


def written(rows: Sequence[dict[str, Any]], out: Path, name: str, images: Path | None = None) -> tuple[str, int]:
    """Writes the gallery; one sentence on it, and how many pictures it lacks. Raises WriteError."""
    from agentic_iqa_local.output.gallery.page import write_gallery

    missing = write_gallery(rows, out, name=name, images=images)
    lacking = f", {missing} without a picture (the page says why)" if missing else ""
    return one_line(f"gallery {out}: {len(rows)} rows{lacking}; open it in a browser"), missing


main = Command("gallery", __doc__, lambda parser: add(parser, OPTIONS), make, usage="%(prog)s FILE [options]")
