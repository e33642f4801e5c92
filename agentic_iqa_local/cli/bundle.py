"""The commands bundle, verify and unpack: models for a machine without a network."""

import argparse
import os
import shlex
import shutil
import sysconfig
from pathlib import Path

from rich.filesize import decimal

from agentic_iqa_local.cli.console import meter, say, tell
from agentic_iqa_local.cli.options import UsageError, chosen_settings
from agentic_iqa_local.cli.outputs import output_file
from agentic_iqa_local.config import ConfigError, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PACKAGE, PROGRAM, ROOT, command, models_root, write_whole
from agentic_iqa_local.iqa_tools import find_tool
from agentic_iqa_local.offline import bundle as bundles
from agentic_iqa_local.offline import fetch
from agentic_iqa_local.offline.manifest import WHEELS, BundleError

MARK = "CACHEDIR.TAG"  # the common mark of a folder that may be deleted, see bford.info/cachedir
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# Downloads of a bundle\n"


def download_folder(out: Path) -> Path:
    """The folder beside a bundle that holds what was downloaded until the bundle is whole: a run that was cut off
    goes on with it. Raises BundleError for a folder of that name that is somebody else's."""
    folder = out.with_name(f"{out.name}.downloads")
    mark = folder / MARK
    if os.path.lexists(folder):
        # other programs mark folders so too, with another second line
        own = folder.is_dir() and mark.is_file() and mark.read_bytes() == SIGNATURE.encode()
        if not own:
            said = (
                f"{folder}: expected to make this folder for downloads, something else has the name"
            )
            raise BundleError(said, "choose another --out, or move it away")
        return folder
    folder.mkdir()
    write_whole(mark, SIGNATURE)
    return folder


def collect(args: argparse.Namespace) -> None:
    """Finds, downloads and bundles what the options ask for. Raises UserError."""
    if args.wheels and not (ROOT / fetch.LOCKS[args.wheels]).is_file():
        raise UsageError(
            "--wheels: expected a checkout with its locked versions, this is an installed package"
        )
    settings, name = chosen_settings(args), Path(args.config or "embedded").stem
    named = (args.out or Path(f"{name}.iqabundle.tar")).absolute()
    out = output_file("--out", named, ".tar", mark=bundles.BEGIN)
    repos, places = dict(map(fetch.repo_option, args.repo)), model_places(settings)
    if unused := set(repos) - set(places):
        expected = f"expected a folder of configuration {name} ({', '.join(places)})"
        raise ConfigError(f"--repo {min(unused)}: {expected}")
    sources = {folder: fetch.model_repo(folder, place, repos) for folder, place in places.items()}
    names = args.tools or (*settings.tools.full_reference, *settings.tools.no_reference)
    tools = [tool for tool in map(find_tool, names) if tool.weights]
    weights = dict.fromkeys(weight for tool in tools for weight in tool.weights)
    notices = fetch.notices_of(sources, weights, bool(tools), args.wheels)
    for notice in notices:
        tell(one_line(f"This licence restricts what you may do: {notice}"))
    if notices and not args.accept_licences:
        raise BundleError(
            "licences: expected to be accepted, nothing was downloaded", "add --accept-licences"
        )
    downloads = download_folder(out)
    contents = [f"configuration {name}: {', '.join(places)}"]
    contents += [f"weights of the tools {', '.join(tool.name for tool in tools)}"] if tools else []
    found = [
        f
        for name, place in places.items()
        for f in fetch.model_files(name, place, sources[name], downloads)
    ]
    found += [f for w in weights for f in fetch.tool_weight(w, downloads)]
    if args.wheels:
        found += fetch.wheels(args.wheels, downloads / WHEELS)
        platform = f"Python {sysconfig.get_python_version()} on {sysconfig.get_platform()}"
        contents.append(f"wheels of the engine {args.wheels} for {platform}")
    with meter() as progress:
        files = {one.path: (one.file, one.source, one.licence) for one in found}
        manifest, sha256 = bundles.write_bundle(out, files, tuple(contents), notices, progress)
    shutil.rmtree(downloads, ignore_errors=True)
    config = f" --config {shlex.quote(args.config)}" if args.config else ""
    for line in (
        f"Wrote {out}: {len(manifest.files)} files, {decimal(manifest.size)}.",
        f"Manifest SHA-256: {sha256}",
        "Copy it, with a copy of this checkout and your own configuration. There, without a network:",
        f"  {PROGRAM} unpack {shlex.quote(out.name)} --expect {sha256} --models models",
        f"  {command('doctor')}{config}",
        f"  {command('assess')} PHOTO{config} --explain",
    ):
        say(one_line(line))


def model_places(settings: Settings) -> dict[str, Path]:
    """Each model folder's name, and where it would lie. Raises ConfigError for one outside the models folder."""
    places: dict[str, Path] = {}
    for backend in settings.backends:
        name = backend.partition(".")[2]
        folder = settings.models[name].path or name if name in settings.models else name
        if "/" in folder:
            raise ConfigError(
                f"models.path: expected the name of a folder in the models folder, got {folder}"
            )
        places[folder] = settings.folder(backend)
    return places


def verify(args: argparse.Namespace) -> int:
    bundle = args.bundle or models_root(args.models)
    describe(bundle, args.expect)
    with meter() as progress:
        problems = bundles.verify(bundle, args.expect, progress)
    for problem in problems:
        tell(f"error: {problem}")
    if not problems:
        say("Every file is as its manifest says.")
    return 1 if problems else 0


def unpack(args: argparse.Namespace) -> None:
    root = models_root(args.models)
    if root.is_relative_to(PACKAGE):
        raise UsageError(
            "expected a models folder outside the package",
            "pass --models or set AGENTIC_IQA_MODELS",
        )
    describe(args.bundle, args.expect)
    with meter() as progress:
        bundles.unpack(args.bundle, root, args.expect, progress)
    say(f"Unpacked into {one_line(str(root))}.")
    if root != models_root():
        say(one_line(f"Let the package know: export AGENTIC_IQA_MODELS={shlex.quote(str(root))}"))


def describe(bundle: Path, expect: str | None) -> None:
    """Prints what a bundle holds and which licences bind."""
    with bundles.opened(bundle, expect) as opened:
        manifest = opened.manifest
    size = decimal(manifest.size)
    say(
        f"{one_line(str(bundle))}: {len(manifest.files)} files, {size}, manifest SHA-256 {opened.sha256}"
    )
    for line in (*manifest.contents, *(f"Licence: {notice}" for notice in manifest.notices)):
        say(f"  {line}")
