"""Collects what a configuration needs into one bundle, for a machine without a network. Only this command downloads.

examples:
  {bundle} --config qwen2_5_vl_7b --tools TOPIQ_NR LPIPS
  {bundle} --config qwen3_vl_8b --wheels --out /media/usb/iqa.iqabundle.tar
  {bundle} --config mine.yaml --repo My-VL-7B=org/My-VL-7B@main

Every file is recorded with its size, SHA-256, source and licence; repositories are pinned to a commit. HF_TOKEN,
HF_ENDPOINT, HF_HUB_CACHE and proxy variables work as they do for huggingface_hub. After an interruption the same
command goes on.

Exit status: 0 the bundle is written, 1 it is not (a licence not accepted, something that cannot be had or is
damaged), 2 wrong usage, 130 interrupted.
"""

import argparse
import re
import shlex
import shutil
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from agentic_iqa_local.cli.command import Command, Parser, UsageError
from agentic_iqa_local.cli.console import meter, tell
from agentic_iqa_local.cli.options import add, output_file
from agentic_iqa_local.config import ConfigError, load_settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PACKAGE, PROGRAM, ROOT, command, models_root
from agentic_iqa_local.iqa_tools import find_tool
from agentic_iqa_local.offline import bundle as bundles
from agentic_iqa_local.offline import fetch
from agentic_iqa_local.offline.manifest import WHEELS, Manifest, Notice

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings

STORE = """Verifies a bundle of models, or unpacks it on a machine without a network. Nothing is downloaded or run.

The command bundle prints the HASH of a bundle's manifest. Bring it by another way than the bundle: with --expect HASH
nothing but that very bundle is accepted.

examples:
  {verify} qwen.iqabundle.tar --expect HASH
  {unpack} qwen.iqabundle.tar --expect HASH --models /srv/iqa-models

Files in the models folder that are already right are kept, so the same command goes on after an interruption.

Exit status: 0 all is well, 1 something is damaged, missing or not what was expected, 2 wrong usage, 130 interrupted.
"""
OPTIONS = """
--config NAME           a set-up of configs/ by name, or a YAML file (default: embedded)
--tools TOOL...         tools whose weights are taken (default: those that the configuration names)
--models DIR            folder of model folders: what lies there is not downloaded (default: the configuration's)
--weights DIR           torch hub folder; tools' weights that lie there are taken
--repo FOLDER=ORG/NAME@REVISION...  the repository of a model folder, which is then downloaded
--out FILE              the bundle (default: NAME.iqabundle.tar here)
--accept-licences       accept the licences that are shown, without a question
"""
MODELS = "--models DIR  the models folder (default: $AGENTIC_IQA_MODELS, else models/)"


def options(parser: Parser) -> None:
    add(parser, OPTIONS)
    about = "also wheels of an engine's environment (default: transformers), for this platform and Python"
    parser.add_argument("--wheels", nargs="?", choices=fetch.LOCKS, const="transformers", help=about)


def read(parser: Parser, argv: list[str] | None) -> argparse.Namespace:
    args = parser.parse_args(argv)
    try:
        args.repo = dict(map(fetch.repo_option, args.repo or []))
    except ValueError as error:
        parser.error(f"--repo: {error}")
    for option in ("models", "weights"):
        if (folder := getattr(args, option)) and not folder.is_dir():
            parser.error(f"--{option}: expected a folder, found none at {folder}")
    if args.wheels and not (ROOT / fetch.LOCKS[args.wheels]).is_file():
        parser.error("--wheels: expected a checkout with its locked versions, this is an installed package")
    return args


def collect(args: argparse.Namespace) -> int:
    """Finds, downloads and bundles what the options ask for. Raises UserError."""
    settings, name = load_settings(args.config), Path(args.config or "embedded").stem
    out = output_file("--out", (args.out or Path(f"{name}.iqabundle.tar")).absolute(), ".tar")
    downloads = out.with_name(f"{out.name}.downloads")
    places, repos = model_places(args, settings, name), args.repo
    sources = {folder: fetch.model_repo(folder, place, repos) for folder, place in places.items()}
    names = args.tools or (*settings.tools.full_reference, *settings.tools.no_reference)
    tools = [tool for tool in map(find_tool, names) if tool.weights]
    weights = dict.fromkeys(weight for tool in tools for weight in tool.weights)
    licences = [(repo.licence, folder) for folder, repo in sources.items() if repo]
    licences += [(fetch.REPOS[f].licence, f) for f in places if not sources[f] and f in fetch.REPOS]
    licences += [("unknown" if w.startswith("hf:") else fetch.PYIQA_WEIGHTS.licence, w) for w in weights]
    licences += [fetch.PYIQA] * bool(tools or args.wheels) + [fetch.NVIDIA] * bool(args.wheels)
    notices = fetch.restrictions(licences)
    ask(notices, args.accept_licences)

    contents = [f"configuration {name}: {', '.join(places)}"]
    contents += [f"weights of the tools {', '.join(tool.name for tool in tools)}"] if tools else []
    found = [f for name, place in places.items() for f in fetch.model_files(name, place, sources[name], downloads)]
    found += [f for w in weights for f in fetch.tool_weight(w, args.weights, downloads)]
    if args.wheels:
        found += fetch.wheels(args.wheels, downloads / WHEELS)
        platform = f"Python {sysconfig.get_python_version()} on {sysconfig.get_platform()}"
        contents.append(f"wheels of the engine {args.wheels} for {platform}")
    with meter() as progress:
        files = {one.path: (one.file, one.source, one.licence) for one in found}
        manifest, sha256 = bundles.write_bundle(out, files, tuple(contents), tuple(notices), progress)
    shutil.rmtree(downloads, ignore_errors=True)
    print(directions(out, manifest, sha256, args))
    return 0


def model_places(args: argparse.Namespace, settings: "Settings", name: str) -> dict[str, Path]:
    """Each model folder's name, and where it would lie on this machine. Raises ConfigError for a --repo of another
    folder, or a model that does not lie in the models folder itself."""
    places: dict[str, Path] = {}
    for backend in settings.backends:
        folder = backend.partition(".")[2]
        options = settings.models.get(folder)
        folder = (options and options.path) or folder
        if "/" in folder:
            raise ConfigError(f"models.path: expected the name of a folder in the models folder, got {folder}")
        places[folder] = args.models / folder if args.models else settings.folder(backend)
    if unused := set(args.repo) - set(places):
        expected = f"expected a folder of configuration {name} ({', '.join(places)})"
        raise ConfigError(f"--repo {min(unused)}: {expected}")
    return places


def ask(notices: list[Notice], accepted: bool) -> None:
    """Shows licences that bind and asks whether to go on. Raises FetchError where the answer is no."""
    if notices:
        tell("These licences restrict what you may do:")
    for notice in notices:
        tell(one_line(f"  {notice}"))
    if not notices or accepted:
        return
    if not sys.stdin.isatty():
        why = "licences: expected --accept-licences, since nobody can be asked here"
        raise fetch.FetchError(why, "read them, then pass it")
    tell("Accept them and go on? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise fetch.FetchError("licences: not accepted, so nothing was downloaded")


def directions(out: Path, manifest: Manifest, sha256: str, args: argparse.Namespace) -> str:
    """What was written, and the commands for the server."""
    bundle, config = shlex.quote(out.name), f" --config {shlex.quote(args.config)}" if args.config else ""
    lines = f"""Wrote {out}: {len(manifest.files)} files, {decimal(manifest.size)}.
Manifest SHA-256: {sha256}
Copy it, with a copy of this checkout and your own configuration. There, without a network:
  {PROGRAM} unpack {bundle} --expect {sha256} --models models
  {command("doctor")}{config}
  {command("assess")} PHOTO{config} --explain"""
    return "\n".join(map(one_line, lines.split("\n")))


def store_options(parser: Parser) -> None:
    about = "archive or folder (default of verify: the models folder)"
    parser.add_argument("bundle", nargs="*", type=Path, metavar="BUNDLE", help=about)
    parser.add_argument("--expect", type=_manifest_hash, metavar="HASH", help="refuse every other bundle")
    add(parser, MODELS)


def read_store(parser: Parser, argv: list[str] | None) -> argparse.Namespace:
    args = parser.parse_args(argv)
    if len(args.bundle) > 1:
        parser.error(f"expected the path of one bundle, got {len(args.bundle)}")
    args.bundle = args.bundle[0] if args.bundle else None
    return args


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
    if not args.bundle:
        raise UsageError("unpack: expected the path of a bundle", "name it")
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


INTERRUPTED = "interrupted: what is whole is kept; the same command goes on"
main = Command("bundle", __doc__, options, collect, read, failed=1, interrupted=INTERRUPTED)
unpack = Command("unpack", STORE, store_options, unpack_bundle, read_store, failed=1, interrupted=INTERRUPTED)
verify = replace(unpack, name="verify", action=verify_bundle)
