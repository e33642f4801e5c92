"""Verifies a bundle of models and unpacks it on a machine without a network. Nothing is downloaded, loaded or
run.

A bundle is made on a connected machine by the command bundle (scripts/fetch_models.py), which prints the HASH
of its manifest. Note the HASH and bring it by another way than the bundle: with --expect HASH nothing but
that very bundle is accepted.

  python -m agentic_iqa_local verify qwen.iqabundle.tar --expect HASH
  python -m agentic_iqa_local unpack qwen.iqabundle.tar --expect HASH --models /srv/iqa-models
  python -m agentic_iqa_local verify /srv/iqa-models      (what was unpacked, months later)

The models folder is --models, else $AGENTIC_IQA_MODELS, else models/ of the checkout. Files in it that are
already right are kept, others of the same name replaced, so an interrupted unpacking is gone on with by the
same command. A copy that broke off is gone on with by rsync --append-verify; until then, unpacking takes the
files that are whole.

Exit status: 0 all is well, 1 something is damaged, missing or not what was expected, 2 wrong usage, 130
interrupted.
"""

import argparse
import re
import shlex
import sys
from pathlib import Path

from agentic_iqa_local.cli.console import Parser, exit_status, meter, safe_streams
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PACKAGE, PROGRAM, models_root
from agentic_iqa_local.offline.bundle import read_manifest, unpack, verify
from agentic_iqa_local.offline.manifest import amount


def manifest_hash(text: str) -> str:
    """A manifest's SHA-256 as a user gives it."""
    if not re.fullmatch("[0-9a-f]{64}", text.strip().lower()):
        raise argparse.ArgumentTypeError(
            "expected the 64 hexadecimal digits that fetch_models.py printed as the manifest's SHA-256"
        )
    return text.strip().lower()


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog=PROGRAM)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = (__doc__ or "").replace("python -m agentic_iqa_local", PROGRAM)
    layout = argparse.RawDescriptionHelpFormatter
    check = commands.add_parser("verify", description=about, formatter_class=layout)
    check.set_defaults(action=verify_bundle)
    check.add_argument("bundle", nargs="?", type=Path, help="archive or folder (default: the models folder)")
    put = commands.add_parser("unpack", description=about, formatter_class=layout)
    put.set_defaults(action=unpack_bundle)
    put.add_argument("bundle", type=Path, help="archive or folder")
    put.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="the models folder (default: $AGENTIC_IQA_MODELS, else models/)",
    )
    for command in (check, put):
        command.add_argument("--expect", type=manifest_hash, metavar="HASH", help="refuse every other bundle")
    args = parser.parse_args(argv)
    if args.command == "unpack" and models_root(args.models).is_relative_to(PACKAGE):
        parser.error(
            "expected a models folder outside the installed package; pass --models DIR or set"
            " AGENTIC_IQA_MODELS"
        )
    return args


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return exit_status(
        lambda: args.action(args),
        failed=1,
        interrupted="interrupted: files that are whole are kept; the same command goes on",
    )


def verify_bundle(args: argparse.Namespace) -> int:
    bundle = args.bundle or models_root()
    describe_bundle(bundle, args.expect)
    with meter() as progress:
        problems = verify(bundle, args.expect, progress)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print("Every file is as its manifest says.")
    return 1 if problems else 0


def unpack_bundle(args: argparse.Namespace) -> int:
    describe_bundle(args.bundle, args.expect)
    root = models_root(args.models)
    with meter() as progress:
        unpack(args.bundle, root, args.expect, progress)
    print(f"Unpacked into {one_line(str(root))}.")
    if root != models_root():
        print(one_line(f"Let the package know: export AGENTIC_IQA_MODELS={shlex.quote(str(root))}"))
    return 0


def describe_bundle(bundle: Path, expect: str | None) -> None:
    """Prints what a bundle holds and which licences bind."""
    manifest, sha256 = read_manifest(bundle, expect)
    print(
        f"{one_line(str(bundle))}: {len(manifest.files)} files, {amount(manifest.size)}, manifest SHA-256"
        f" {sha256}"
    )
    for line in (*manifest.contents, *(f"Licence: {notice}" for notice in manifest.notices)):
        print(f"  {line}")
