"""Merges the rows of all shards of a list into one file, in the order of the list.

examples:
  {merge} rows.*-of-64.jsonl --out rows.jsonl
  {merge} rows.*-of-64.jsonl --out rows.jsonl --allow-missing

The shards are what `assess --out rows.jsonl --shard 1/64` to `64/64` wrote, each with its FILE.run.json and
FILE.items. They must be of one list and one run: the same settings, weights and versions. Failed rows are
kept. A row that is there twice is taken once where both are equal but for times. The merged file is there
whole or not at all, and `assess --out rows.jsonl --resume` goes on with it. Exit status: 0 merged, 1 shards
or rows are missing (they are named, and nothing is written without --allow-missing), 2 wrong usage or files
that do not go together.
"""

import argparse
import sys
from pathlib import Path

from agentic_iqa_local.cli.console import Parser, bar, exit_status, safe_streams
from agentic_iqa_local.text import one_line


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = Parser.of("merge", __doc__)
    parser.add_argument(
        "shards", type=Path, nargs="+", metavar="SHARD", help="files that assess --shard wrote"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the merged rows, a new file")
    parser.add_argument(
        "--allow-missing", action="store_true", help="merge what there is, and say what is missing"
    )
    args = parser.parse_args(argv)
    return exit_status(lambda: merge_all(args))


def merge_all(args: argparse.Namespace) -> int:
    """Raises UserError."""
    from agentic_iqa_local.batch.merging import Incomplete, merge
    from agentic_iqa_local.cli.outputs import result_file

    out = result_file("--out", args.out, "file of rows")
    files = list(dict.fromkeys(args.shards))
    try:
        with bar(unit="row", leave=False) as shown:

            def show(rows: int) -> None:
                shown.update(rows - shown.n)

            merged = merge(files, out, allow_missing=args.allow_missing, done=show)
    except Incomplete as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    said = f"{merged.rows} rows of {len(files)} shard{'s' * (len(files) > 1)} in {args.out}"
    said += f", {merged.failed} of them failures" if merged.failed else ""
    said += f"; {merged.doubled} that were there twice are in it once" if merged.doubled else ""
    print(one_line(said))
    if lacks := merged.lacks():
        print(one_line(f"missing: {lacks}"), file=sys.stderr)
    return 0
