"""Which new picture belongs to which old one, and what is plain of a pair before anything is
assessed: the same pixels, another size, a file that cannot be read."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from agentic_iqa_local.batch.inputs import Item, manifest_entries
from agentic_iqa_local.config import ImageSettings
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import LoadedImage, load_image
from agentic_iqa_local.judgement.ordering import fingerprint


@dataclass(frozen=True)
class Pair:
    """An old picture and the new one in its place; None where there is no file. `scene`: what
    pictures of one scene share, where a manifest says so."""

    old: Path | None
    new: Path | None
    reference: Path | None = None
    scene: str | None = None

    @property
    def name(self) -> str:
        return str((self.new or self.old or Path()).name)

    @property
    def items(self) -> list[Item]:
        """The old picture and the new one, to be assessed."""
        return [Item(file, self.reference) for file in (self.old, self.new) if file]


class PairLine(BaseModel, extra="allow"):
    """The columns of a manifest of pairs."""

    old: str = Field(min_length=1)
    new: str = Field(min_length=1)
    reference: str | None = None
    scene: str | None = None


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a manifest (CSV with a header, or JSON lines); paths in it are relative to it, and
    a file that is not there is told later, as its pair's problem. Raises ManifestError."""

    def pair(line: PairLine) -> Pair:
        reference = path.parent / line.reference if line.reference else None
        return Pair(path.parent / line.old, path.parent / line.new, reference, line.scene)

    return manifest_entries(path, PairLine, pair)


def paired(old: Sequence[Path], new: Sequence[Path]) -> list[Pair]:
    """Pairs by name, else by a name that differs in its suffix alone and is the only such one on
    both sides. What has no partner stands alone, at the end."""
    by_name = {file.name: file for file in old}
    partner = {file: by_name.pop(file.name) for file in new if file.name in by_name}
    left = [file for file in new if file not in partner]
    old_stems, new_stems = _unique_stems(by_name.values()), _unique_stems(left)
    for stem in old_stems.keys() & new_stems.keys():
        partner[new_stems[stem]] = old_stems[stem]
    found = set(partner.values())
    pairs = [
        Pair(partner.get(file), file) for file in sorted(new, key=lambda file: file not in partner)
    ]
    return pairs + [Pair(file, None) for file in old if file not in found]


def _unique_stems(files: Iterable[Path]) -> dict[str, Path]:
    files = list(files)
    times = Counter(file.stem for file in files)
    return {file.stem: file for file in files if times[file.stem] == 1}


@dataclass(frozen=True)
class Look:
    """What is plain of a pair: its `problem` if it cannot be compared, whether both pictures have
    the `same` pixels, and the perceptual hash of the new one."""

    problem: str = ""
    same: bool = False
    fingerprint: np.ndarray | None = None


def look_at(pair: Pair, limits: ImageSettings, old_sha256: str | None = None) -> Look:
    """Looks at a pair. `old_sha256`: of the old picture's file, where a stored row stands for it."""
    options = limits.model_dump(include={"max_pixels", "min_side", "background"})
    if pair.new is None:
        return Look(f"{pair.name}: there is no new picture of this name")
    if pair.old is None and old_sha256 is None:
        return Look(f"{pair.name}: there is no old picture of this name")
    try:
        new = load_image(pair.new, **options)
        seen = fingerprint(new.pixels)
        if old_sha256 is not None or pair.old is None:
            return Look("", new.sha256 == old_sha256, seen)
        return _against(load_image(pair.old, **options), new, seen)
    except ImageError as error:
        return Look(str(error))


def _against(old: LoadedImage, new: LoadedImage, seen: Any) -> Look:
    if old.pixels.size != new.pixels.size:
        sizes = f"{new.width}x{new.height} pixels, {old.path} has {old.width}x{old.height}"
        return Look(f"{new.path}: expected the old picture's size, but it has {sizes}")
    return Look("", old.pixels == new.pixels, seen)
