"""Collects what a configuration needs into one bundle, for a machine without a network. Only this command
downloads.

examples:
  python scripts/fetch_models.py                       the embedded model; nothing is downloaded
  python scripts/fetch_models.py --config qwen2_5_vl_7b --tools TOPIQ_NR LPIPS
  python scripts/fetch_models.py --config qwen3_vl_8b --wheels --out /media/usb/iqa.iqabundle.tar
  python scripts/fetch_models.py --config qwen2_5_vl_7b --models /srv/models   it lies there: not downloaded
  python scripts/fetch_models.py --tools LPIPS --weights ~/.cache/torch/hub --accept-licences
  python scripts/fetch_models.py --tools TOPIQ_NR --weights ~/.cache/torch/hub --huggingface ~/.cache/hf/hub
  python scripts/fetch_models.py --config mine.yaml --repo My-VL-7B=org/My-VL-7B@main

Every file is recorded with its size, SHA-256, source and licence; repositories are pinned to a commit. Of a
repository's weights only safetensors are taken where it has them. Downloads lie in OUT.downloads until the
bundle is written: after an interruption the same command goes on. HF_TOKEN, HF_ENDPOINT and proxy variables
work as they do for huggingface_hub.

Exit status: 0 the bundle is written, 1 it is not (a licence not accepted, something that cannot be had or is
damaged), 2 wrong usage, 130 interrupted.
"""

import argparse
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local.commands.console import Parser, exit_status, meter, safe_streams
from agentic_iqa_local.offline.fetch import FetchError, Repo
from agentic_iqa_local.offline.licences import NVIDIA, PYIQA, binding
from agentic_iqa_local.offline.manifest import WHEELS, Manifest, Notice, amount
from agentic_iqa_local.offline.wanted import check_downloads, folder_of, model_folder, tool_weight
from agentic_iqa_local.offline.wheels import LOCKS, REQUIREMENTS, wheels
from agentic_iqa_local.offline.writing import Piece, describe, write_bundle
from agentic_iqa_local.paths import PROGRAM, command
from agentic_iqa_local.text import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings

BUNDLE = command("bundle")


def repo_option(text: str) -> tuple[str, Repo]:
    found = re.fullmatch(r"([\w.-]+)=([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected FOLDER=ORG/NAME@REVISION, got {text!r}")
    return found[1], Repo(found[2], found[3] or "main")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog=BUNDLE.removeprefix("python "),
        description=__doc__.replace("python scripts/fetch_models.py", BUNDLE),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to collect")
    what.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    what.add_argument(
        "--tools",
        nargs="+",
        metavar="TOOL",
        help="tools whose weights are taken (default: those that the configuration names)",
    )
    what.add_argument(
        "--wheels",
        nargs="?",
        choices=LOCKS,
        const="transformers",
        help=(
            "also wheels of the locked environment of an engine (default: transformers), for this machine's"
            " platform and Python"
        ),
    )
    where = parser.add_argument_group("where it comes from")
    where.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="folder that holds model folders (default: the configuration's)",
    )
    where.add_argument(
        "--weights",
        type=Path,
        metavar="DIR",
        help="torch hub folder; tools' weights that lie there are taken",
    )
    where.add_argument(
        "--huggingface",
        type=Path,
        metavar="DIR",
        help="Hugging Face cache; tools' snapshots that lie there are taken",
    )
    where.add_argument(
        "--repo",
        nargs="+",
        type=repo_option,
        default=[],
        metavar="FOLDER=ORG/NAME@REVISION",
        help="the repository of a model folder, which is then downloaded",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, metavar="FILE", help="the bundle (default: NAME.iqabundle.tar here)"
    )
    output.add_argument(
        "--no-archive", action="store_true", help="write a folder, which any tool can copy file by file"
    )
    output.add_argument(
        "--accept-licences",
        action="store_true",
        help="accept the licences that are shown, without a question",
    )
    args = parser.parse_args(argv)
    for option in ("models", "weights", "huggingface"):
        if (folder := getattr(args, option)) is not None and not folder.is_dir():
            parser.error(f"--{option}: expected a folder, found none at {folder}")
    return args


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    from agentic_iqa_local.config import ConfigError, load_settings
    from agentic_iqa_local.iqa_tools import ToolError

    return exit_status(
        lambda: collect(args, load_settings(args.config)),
        failed=1,
        wrong_usage=(ConfigError, ToolError),
        interrupted="interrupted: what was downloaded is kept; the same command goes on",
    )


def collect(args: argparse.Namespace, settings: "Settings") -> int:
    """Finds, downloads and bundles what the options ask for. Raises ConfigError, ToolError, FetchError and
    BundleError."""
    from agentic_iqa_local.config import ConfigError
    from agentic_iqa_local.iqa_tools import find_tool

    name = Path(args.config or "embedded").stem
    out = (args.out or Path(f"{name}.iqabundle{'' if args.no_archive else '.tar'}")).absolute()
    downloads = out.with_name(f"{out.name}.downloads")
    backends = dict.fromkeys(settings.role(role).backend for role in ("planner", "executor", "summarizer"))
    places = {folder_of(settings, backend): Path(settings.model(backend).path) for backend in backends}
    repos = dict(args.repo)
    if unused := set(repos) - set(places):
        raise ConfigError(
            f"--repo {min(unused)}: expected a folder of configuration {name} ({', '.join(places)})"
        )
    tools = [
        find_tool(tool)
        for tool in args.tools or (*settings.tools.full_reference, *settings.tools.no_reference)
    ]
    wanted = []
    for folder, place in places.items():
        wanted += model_folder(folder, args.models / folder if args.models else place, repos, downloads)
    for weight in dict.fromkeys(weight for tool in tools for weight in tool.weights):
        wanted += tool_weight(weight, args.weights, args.huggingface, downloads)
    carried = [tool.name for tool in tools if tool.weights]
    notices = binding(wanted) + [PYIQA] * bool(carried or args.wheels) + [NVIDIA] * bool(args.wheels)
    ask(notices, args.accept_licences)

    contents = [f"configuration {name}: {', '.join(places)}"]
    if carried:
        contents.append(f"weights of the tools {', '.join(carried)}")
    for item in wanted:
        if item.fetch and not item.file.is_file():
            print(f"fetching {one_line(item.path)}", file=sys.stderr)
            item.fetch()
    if args.wheels:
        wanted += wheels(args.wheels, downloads / WHEELS)
        contents.append(
            f"wheels of the engine {args.wheels} for Python {sysconfig.get_python_version()} on"
            f" {sysconfig.get_platform()}"
        )
    with meter() as progress:
        pieces = [Piece(item.path, item.file, item.source, item.licence) for item in wanted]
        manifest = describe(pieces, contents, notices, progress)
        check_downloads(manifest, {item.path: item for item in wanted})
    with meter() as progress:
        sha256 = write_bundle(
            out, manifest, {item.path: item.file for item in wanted}, not args.no_archive, progress
        )
    shutil.rmtree(downloads, ignore_errors=True)
    print(directions(out, manifest, sha256, args, settings))
    return 0


def ask(notices: list[Notice], accepted: bool) -> None:
    """Shows licences that bind and asks whether to go on. Raises FetchError where the answer is no or nobody
    can answer."""
    if not notices:
        return
    print("These licences restrict what you may do:", file=sys.stderr)
    for item in notices:
        print(one_line(f"  {item}"), file=sys.stderr)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise FetchError(
            "licences: expected --accept-licences, since nobody can be asked here", "read them, then pass it"
        )
    print("Accept them and go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FetchError("licences: not accepted, so nothing was downloaded")


def directions(
    out: Path, manifest: Manifest, sha256: str, args: argparse.Namespace, settings: "Settings"
) -> str:
    """What was written, and the commands for the server."""
    bundle = shlex.quote(out.name)
    own = [
        Path(file).absolute() for file in (args.config, settings.tools.maps) if file and Path(file).is_file()
    ]
    beside = [*([] if args.no_archive else [out.with_name(f"{out.name}.sha256")]), *own]
    copying = [f"rsync {'-a' if args.no_archive else '--append-verify'} {shlex.quote(str(out))} SERVER:"]
    copying += [f"rsync {shlex.join(map(str, beside))} SERVER:"] if beside else []
    moved = shlex.join(f"../{place.name}" for place in (out, *beside))
    lines = [
        f"Wrote {out}: {len(manifest.files)} files, {amount(manifest.size)}.",
        f"Manifest SHA-256: {sha256}",
        "",
    ]
    lines += [
        "Copy it, beside a copy of this checkout; after a break the same commands go on:",
        *(f"  {line}" for line in copying),
    ]
    lines += ["", "On the server, in the copy of the checkout, without a network:", f"  mv {moved} ."]
    if listed := next((file.sha256 for file in manifest.files if file.path == REQUIREMENTS), None):
        place = f"{bundle}/{WHEELS}" if args.no_archive else WHEELS
        lines += [] if args.no_archive else [f"  tar -xf {bundle} {WHEELS}"]
        lines += [f'  echo "{listed}  {place}/requirements.txt" | sha256sum -c']
        lines += ["  python3 -m venv .venv && source .venv/bin/activate"]
        lines += [
            f"  pip install --no-index --no-deps --find-links {place} --require-hashes -r"
            f" {place}/requirements.txt"
        ]
    lines += [
        f"  {PROGRAM} verify {bundle} --expect {sha256}",
        f"  {PROGRAM} unpack {bundle} --expect {sha256} --models models",
    ]
    config = f" --config {shlex.quote(Path(args.config).name)}" if args.config else ""
    lines += [f"  {command('doctor')}{config}", f"  {command('assess')}{config} --image PHOTO --explain"]
    return "\n".join(map(one_line, lines))
