"""The commands bundle, verify and unpack: models for a machine without a network."""

import argparse
import hashlib
import shlex
from collections.abc import Iterable
from pathlib import Path

from rich.filesize import decimal

from agentic_iqa_local.cli.console import say, tell, watch
from agentic_iqa_local.cli.options import UsageError, chosen_settings
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import (
    PACKAGE,
    PROGRAM,
    file_hash,
    models_root,
    read_bytes,
    write_whole,
)
from agentic_iqa_local.iqa_tools import find_tool
from agentic_iqa_local.iqa_tools.weights import SUMS, BundleError, read_sums
from agentic_iqa_local.offline import bundle as bundles
from agentic_iqa_local.offline import fetch


def collect(args: argparse.Namespace) -> None:
    """Finds, downloads and bundles what the options ask for. Raises UserError."""
    settings = chosen_settings(args)
    folders = map(settings.folder, settings.backends)
    places = {folder.name: folder for folder in folders}
    for folder, place in places.items():
        fetch.check_model(folder, place)
    weights = tool_weights(args.tools or settings.tools.all_configured)
    notices = accepted_notices(list(places), weights, args.accept_licences)

    name = Path(args.config or "embedded").stem
    out = (args.out or Path(f"{name}.iqabundle")).absolute()
    bundles.begin_bundle(out)
    parts = [fetch.fetch_model(folder, place, out) for folder, place in places.items()]
    parts += [fetch.fetch_weight(weight, out) for weight in weights]
    write_about(out, parts, notices)
    sha256 = bundles.finish_bundle(out, watch)
    describe(out)
    config = f" --config {shlex.quote(args.config)}" if args.config else ""
    unpacks = f"{PROGRAM} unpack {shlex.quote(out.name)} --expect {sha256} --models models"
    say("Copy it with this checkout and your own configuration. There, without a network:")
    say(one_line(f"  {unpacks}"))
    say(one_line(f"  {PROGRAM} doctor{config}"))
    say(one_line(f"  {PROGRAM} assess PHOTO{config} --explain"))


def accepted_notices(folders: list[str], weights: list[str], accepted: bool) -> list[str]:
    """A sentence for each licence that restricts the use of these models and weights, which is also
    told. Raises BundleError if there are any, and they were not accepted."""
    licences = [(fetch.SOURCES.model(folder).licence, folder) for folder in folders]
    licences += [(fetch.weight_licence(weight), weight) for weight in weights]
    if weights:
        licences.append(fetch.PYIQA)
    notices = fetch.restrictions(licences)
    for notice in notices:
        tell(f"This licence restricts what you may do: {notice}")
    if notices and not accepted:
        wrong = "licences: expected to be accepted, nothing was downloaded"
        raise BundleError(wrong, "add --accept-licences")
    return notices


def tool_weights(names: Iterable[str]) -> list[str]:
    """The weights of these tools, each once. Raises ToolError."""
    weights: list[str] = []
    for name in names:
        weights += find_tool(name).weights
    return list(dict.fromkeys(weights))


def write_about(out: Path, parts: list[fetch.Part], notices: list[str]) -> None:
    """Writes where a bundle's files were taken from, to a file that bears a model's name and its
    own hash: several bundles may go into one models folder."""
    lines = [f"{part.path}: {part.source}, licence {part.licence}" for part in parts]
    lines += [f"Licence that restricts what you may do: {notice}" for notice in notices]
    text = "\n".join(map(one_line, lines))
    number = hashlib.sha256(text.encode()).hexdigest()[:8]
    place = out / bundles.ABOUT / f"{parts[0].path}-{number}.txt"
    place.parent.mkdir(exist_ok=True)
    write_whole(place, text)


def verify(args: argparse.Namespace) -> int:
    bundle = args.bundle or models_root(args.models)
    problems = bundles.verify(bundle, args.expect, watch)
    for problem in problems:
        tell(f"error: {problem}")
    if problems:
        return 1
    describe(bundle)
    say("Every file is as the list says.")
    return 0


def unpack(args: argparse.Namespace) -> None:
    root = models_root(args.models)
    if root.is_relative_to(PACKAGE):
        remedy = "pass --models or set AGENTIC_IQA_MODELS"
        raise UsageError("expected a models folder outside the package", remedy)
    bundles.unpack(args.bundle, root, args.expect, watch)
    describe(args.bundle)
    say(f"Unpacked into {one_line(str(root))}.")
    if root != models_root():
        say(one_line(f"Let the package know: export AGENTIC_IQA_MODELS={shlex.quote(str(root))}"))


def describe(bundle: Path) -> None:
    """Prints what a bundle holds, where that came from and which licences bind."""
    sums = read_sums(bundle)
    size = decimal(sum((bundle / path).stat().st_size for path in sums))
    sha256 = file_hash(bundle / SUMS)
    say(one_line(f"{bundle}: {counted(len(sums), 'file')}, {size}, SHA-256 of {SUMS}: {sha256}"))
    for path in sums:
        if path.startswith(f"{bundles.ABOUT}/"):
            say(read_bytes(bundle / path).decode(errors="replace").rstrip())
