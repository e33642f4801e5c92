"""Verifies a bundle of models, or unpacks it on a machine without a network. Nothing is downloaded, loaded or run.

The command bundle prints the HASH of a bundle's manifest. Bring it by another way than the bundle: with --expect HASH
nothing but that very bundle is accepted.

examples:
  {verify} qwen.iqabundle.tar --expect HASH
  {unpack} qwen.iqabundle.tar --expect HASH --models /srv/iqa-models

Files in the models folder that are already right are kept, so the same command goes on after an interruption.

Exit status: 0 all is well, 1 something is damaged, missing or not what was expected, 2 wrong usage, 130 interrupted.
"""

import argparse
import re
import shlex
from dataclasses import replace
from pathlib import Path

from rich.filesize import decimal

from agentic_iqa_local.cli.command import Command, Parser, UsageError
from agentic_iqa_local.cli.console import meter, tell
from agentic_iqa_local.cli.options import add
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PACKAGE, models_root
from agentic_iqa_local.offline import bundle as bundles

MODELS = "--models DIR  the models folder (default: $AGENTIC_IQA_MODELS, else models/)"


def unpack_options(parser: Parser, nargs: str | None = None, default: str = "") -> None:
    parser.add_argument("bundle", nargs=nargs, type=Path, help=f"archive or folder{default}")
    parser.add_argument("--expect", type=_manifest_hash, metavar="HASH", help="refuse every other bundle")
    add(parser, MODELS)


def verify_options(parser: Parser) -> None:
    unpack_options(parser, "?", " (default: the models folder)")


def _manifest_hash(text: str) -> str:
    """A manifest's SHA-256 as a user gives it."""
    if not re.fullmatch("[0-9a-f]{64}", text.strip().lower()):
        raise argparse.ArgumentTypeError("expected the 64 hexadecimal digits of the manifest that bundle printed")
    return text.strip().lower()


def verify_bundle(args: argparse.Namespace) -> int:
    bundle = args.bundle or models_root(args.models)
    describe(bundle, args.expect)
    with meter() as progress:
        problems = bundles.verify(bundle, args.expect, progress)
    for problem in problems:
        tell(f"error: {problem}")
    if not problems:
        print("Every file is as its manifest says.")
    return 1 if problems else 0


def unpack_bundle(args: argparse.Namespace) -> int:
    root = models_root(args.models)
    if root.is_relative_to(PACKAGE):
        raise UsageError("expected a models folder outside the package", "pass --models or set AGENTIC_IQA_MODELS")
    describe(args.bundle, args.expect)
    with meter() as progress:
        bundles.unpack(args.bundle, root, args.expect, progress)
    print(f"Unpacked into {one_line(str(root))}.")
    if root != models_root():
        print(one_line(f"Let the package know: export AGENTIC_IQA_MODELS={shlex.quote(str(root))}"))
    return 0


def describe(bundle: Path, expect: str | None) -> None:
    """Prints what a bundle holds and which licences bind."""
    with bundles.opened(bundle, expect) as opened:
        manifest = opened.manifest
    files = f"{len(manifest.files)} files, {decimal(manifest.size)}"
    print(f"{one_line(str(bundle))}: {files}, manifest SHA-256 {opened.sha256}")
    for line in (*manifest.contents, *(f"Licence: {notice}" for notice in manifest.notices)):
        print(f"  {line}")


KEPT = "interrupted: files that are whole are kept; the same command goes on"
unpack = Command("unpack", __doc__, unpack_options, unpack_bundle, failed=1, interrupted=KEPT)
verify = replace(unpack, name="verify", add=verify_options, action=verify_bundle)
