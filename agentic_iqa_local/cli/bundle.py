"""Collects what a configuration needs into one bundle, for a machine without a network. Only this command
downloads.

examples:
  {bundle}                       the embedded model; nothing is downloaded
  {bundle} --config qwen2_5_vl_7b --tools TOPIQ_NR LPIPS
  {bundle} --config qwen3_vl_8b --wheels --out /media/usb/iqa.iqabundle.tar
  {bundle} --config qwen2_5_vl_7b --models /srv/models   it lies there: not downloaded
  {bundle} --tools LPIPS --weights ~/.cache/torch/hub --accept-licences
  {bundle} --tools TOPIQ_NR --weights ~/.cache/torch/hub --huggingface ~/.cache/hf/hub
  {bundle} --config mine.yaml --repo My-VL-7B=org/My-VL-7B@main

Every file is recorded with its size, SHA-256, source and licence; repositories are pinned to a commit. Of a
repository's weights only safetensors are taken where it has them. Downloads lie in OUT.downloads until the
bundle is written: after an interruption the same command goes on. HF_TOKEN, HF_ENDPOINT and proxy variables
work as they do for huggingface_hub.

Exit status: 0 the bundle is written, 1 it is not (a licence not accepted, something that cannot be had or is
damaged), 2 wrong usage, 130 interrupted.
"""

import argparse
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local.cli.console import Parser, exit_status, meter, safe_streams
from agentic_iqa_local.cli.outputs import UsageError, result_file, result_folder
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PROGRAM, command
from agentic_iqa_local.offline.bundle import describe, write_bundle
from agentic_iqa_local.offline.fetch import (
    LOCKS,
    NVIDIA,
    PYIQA,
    PYIQA_WEIGHTS,
    REPOS,
    REQUIREMENTS,
    FetchError,
    Found,
    Repo,
    model_files,
    model_repo,
    repo_option,
    restrictions,
    tool_weight,
    wheels,
)
from agentic_iqa_local.offline.manifest import MANIFEST, WHEELS, Manifest, Notice, amount

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings


def _repo(text: str) -> tuple[str, Repo]:
    try:
        return repo_option(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser.of("bundle", __doc__)
    add_contents(parser)
    add_places(parser)
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


def add_contents(parser: argparse.ArgumentParser) -> None:
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


def add_places(parser: argparse.ArgumentParser) -> None:
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
        type=_repo,
        default=[],
        metavar="FOLDER=ORG/NAME@REVISION",
        help="the repository of a model folder, which is then downloaded",
    )


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    from agentic_iqa_local.config import ConfigError, load_settings
    from agentic_iqa_local.iqa_tools import ToolError

    return exit_status(
        lambda: collect(args, load_settings(args.config)),
        failed=1,
        wrong_usage=(ConfigError, ToolError, UsageError),
        interrupted="interrupted: what was downloaded is kept; the same command goes on",
    )


def collect(args: argparse.Namespace, settings: "Settings") -> int:
    """Finds, downloads and bundles what the options ask for. Raises ConfigError, ToolError, FetchError and
    BundleError."""
    from agentic_iqa_local.iqa_tools import find_tool

    name = Path(args.config or "embedded").stem
    out = (args.out or Path(f"{name}.iqabundle{'' if args.no_archive else '.tar'}")).absolute()
    if args.no_archive:
        result_folder("--out", out, MANIFEST)
    elif out.exists():
        result_file("--out", out, "bundle")
    downloads = out.with_name(f"{out.name}.downloads")
    places, repos = model_places(args, settings, name), dict(args.repo)
    sources = {folder: model_repo(folder, place, repos) for folder, place in places.items()}
    names = args.tools or (*settings.tools.full_reference, *settings.tools.no_reference)
    tools = [tool for tool in map(find_tool, names) if tool.weights]
    weights = dict.fromkeys(weight for tool in tools for weight in tool.weights)
    licences = [(repo.licence, folder) for folder, repo in sources.items() if repo]
    licences += [
        (REPOS[folder].licence, folder) for folder in places if not sources[folder] and folder in REPOS
    ]
    licences += [("unknown" if w.startswith("hf:") else PYIQA_WEIGHTS.licence, w) for w in weights]
    notices = restrictions(licences) + [PYIQA] * bool(tools or args.wheels) + [NVIDIA] * bool(args.wheels)
    ask(notices, args.accept_licences)

    contents = [f"configuration {name}: {', '.join(places)}"]
    found = [
        f for folder, place in places.items() for f in model_files(folder, place, sources[folder], downloads)
    ]
    found += [f for weight in weights for f in tool_weight(weight, args.weights, args.huggingface, downloads)]
    if tools:
        contents.append(f"weights of the tools {', '.join(tool.name for tool in tools)}")
    if args.wheels:
        found += wheels(args.wheels, downloads / WHEELS)
        contents.append(
            f"wheels of the engine {args.wheels} for Python {sysconfig.get_python_version()} on"
            f" {sysconfig.get_platform()}"
        )
    manifest, sha256 = write(out, found, contents, notices, archive=not args.no_archive)
    shutil.rmtree(downloads, ignore_errors=True)
    print(directions(out, manifest, sha256, args, settings))
    return 0


def model_places(args: argparse.Namespace, settings: "Settings", name: str) -> dict[str, Path]:
    """Each model folder's name, and where it would lie on this machine. Raises ConfigError for a --repo of another
    folder, or a model that does not lie in the models folder itself."""
    from agentic_iqa_local.config import ConfigError

    places: dict[str, Path] = {}
    for backend in settings.backends:
        folder = backend.partition(".")[2]
        options = settings.models.get(folder)
        folder = (options and options.path) or folder
        if "/" in folder:
            raise ConfigError(
                f"models.path: expected the name of a folder in the models folder, got {folder}"
            )
        places[folder] = args.models / folder if args.models else settings.folder(backend)
    if unused := set(dict(args.repo)) - set(places):
        raise ConfigError(
            f"--repo {min(unused)}: expected a folder of configuration {name} ({', '.join(places)})"
        )
    return places


def write(
    out: Path, found: list[Found], contents: list[str], notices: list[Notice], *, archive: bool
) -> tuple[Manifest, str]:
    """Writes the bundle; its manifest, and that one's SHA-256. Raises BundleError."""
    with meter() as progress:
        files = {one.path: (one.file, one.source, one.licence) for one in found}
        manifest = describe(files, tuple(contents), tuple(notices), progress)
    with meter() as progress:
        places = {one.path: one.file for one in found}
        return manifest, write_bundle(out, manifest, places, archive, progress)


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
    config = f" --config {shlex.quote(Path(args.config).name)}" if args.config else ""
    lines = [
        f"Wrote {out}: {len(manifest.files)} files, {amount(manifest.size)}.",
        f"Manifest SHA-256: {sha256}",
        "",
        "Copy it, beside a copy of this checkout; after a break the same commands go on:",
        *(f"  {line}" for line in copying),
        "",
        "On the server, in the copy of the checkout, without a network:",
        f"  mv {moved} .",
        *installation(bundle, manifest, args.no_archive),
        f"  {PROGRAM} verify {bundle} --expect {sha256}",
        f"  {PROGRAM} unpack {bundle} --expect {sha256} --models models",
        f"  {command('doctor')}{config}",
        f"  {command('assess')}{config} --image PHOTO --explain",
    ]
    return "\n".join(map(one_line, lines))


def installation(bundle: str, manifest: Manifest, as_folder: bool) -> list[str]:
    """The commands that make an environment of a bundle's wheels, where it has some."""
    sha256 = next((file.sha256 for file in manifest.files if file.path == REQUIREMENTS), None)
    if sha256 is None:
        return []
    place = f"{bundle}/{WHEELS}" if as_folder else WHEELS
    return [
        *([] if as_folder else [f"  tar -xf {bundle} {WHEELS}"]),
        f'  echo "{sha256}  {place}/requirements.txt" | sha256sum -c',
        "  python3 -m venv .venv && source .venv/bin/activate",
        f"  pip install --no-index --no-deps --find-links {place} --require-hashes -r"
        f" {place}/requirements.txt",
    ]
