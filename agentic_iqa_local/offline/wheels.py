"""The wheels of an engine's locked environment and of this project, for an installation without a network."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.metadata import parse_email
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from agentic_iqa_local.offline.fetch import FetchError, Wanted, short
from agentic_iqa_local.offline.licences import OWN
from agentic_iqa_local.offline.manifest import WHEELS
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.paths import ROOT

# What an offline installation for an engine consists of.
LOCKS = {"transformers": "constraints.txt", "vllm": "constraints-gpu.txt"}
# What the project's own wheel is built of: pyproject.toml's packages and the data that they name.
SOURCE = (
    "agentic_iqa_local",
    "configs",
    "models/embedded",
    "pyproject.toml",
    "README.md",
    "tests/data/sumac.png",
)
LONGEST_NAME = 100  # of a file in a tar archive
REQUIREMENTS = f"{WHEELS}/requirements.txt"


def wheels(engine: str, folder: Path) -> Iterator[Wanted]:
    """Builds or downloads a wheel of every package of an engine's lock, and of this project; and a list of
    them with hashes."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        # pip builds from a copy: it leaves files in the source, and would pack what an earlier build left
        # there.
        source = copied_source(Path(place) / "source")
        line = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--disable-pip-version-check",
            "--no-deps",
            "--wheel-dir",
            str(folder),
        ]
        if status := subprocess.run(
            [*line, "--requirement", str(ROOT / LOCKS[engine]), str(source)], stdout=sys.stderr
        ).returncode:
            raise FetchError(f"wheels: pip ended with status {status}", "its own message stands above")
    requirements = []
    for wheel in sorted(map(with_short_name, folder.glob("*.whl"))):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        requirements.append(f"{name}=={version} --hash=sha256:{file_hash(wheel)}\n")
        yield Wanted(f"{WHEELS}/{wheel.name}", wheel, f"pip wheel {wheel.name}", wheel_licence(wheel))
    (folder / "requirements.txt").write_text("".join(requirements), encoding="utf-8")
    yield Wanted(REQUIREMENTS, folder / "requirements.txt", "this script", OWN)


def copied_source(folder: Path) -> Path:
    """A copy of what the project's wheel is built of, in a new `folder`, which is returned."""
    for name in SOURCE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def with_short_name(wheel: Path) -> Path:
    """The wheel, renamed where an archive cannot hold its name: of its platforms only the one that fits here
    best is kept."""
    if len(wheel.name) <= LONGEST_NAME:
        return wheel
    tags = parse_wheel_filename(wheel.name)[-1]
    best = next(tag for tag in sys_tags() if tag in tags)
    return wheel.rename(wheel.with_name(f"{wheel.name.rpartition('-')[0]}-{best.platform}.whl"))


def wheel_licence(wheel: Path) -> str:
    """What a wheel's metadata says of its licence, in one line."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(
                (name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), "METADATA"
            )
            with archive.open(name) as file:
                metadata, _ = parse_email(file.read(1 << 20))
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(
            f"{wheel}: expected a wheel with its metadata, got another file ({error})", "build it anew"
        ) from error
    text = metadata.get("license_expression") or metadata.get("license") or ""
    return short((text.strip() or "in the wheel").splitlines()[0])
