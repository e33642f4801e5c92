"""Makes versions of clean photographs of which it is known which are better, and assesses them: what
comparisons are fitted and measured on."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from agentic_iqa_local.assessment import assess
from agentic_iqa_local.near_duplicates import fingerprint
from agentic_iqa_local.pairwise_read import read_pair
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.synthetic.distortions import DISTORTIONS
from agentic_iqa_local.synthetic.photos import split_photos
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

Part = Literal["training", "held-out"]
SEVERITIES = ((1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5))  # two or more apart
BURST = (1, 2, 3, 4, 5)  # the severities of a burst's distorted versions, beside the clean one


@dataclass(frozen=True)
class Version:
    """One version of a photograph: `series` names the pair or burst that it was made for; a clean one belongs
    to every burst."""

    photo: str
    series: str
    kind: str | None
    severity: int
    mos: float
    fingerprint: np.ndarray
    row: Assessment

    def line(self) -> str:
        """As one line of JSON."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("photo", "series", "kind")}
        fields |= {"severity": self.severity, "mos": self.mos}
        fields |= {"fingerprint": np.packbits(self.fingerprint).tobytes().hex()}
        return json.dumps(fields | {"row": self.row.to_dict()})

    @classmethod
    def of(cls, line: str) -> "Version":
        """What `line` wrote."""
        fields = json.loads(line)
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(fields.pop("fingerprint")), np.uint8)).astype(bool)
        row = Assessment.model_validate(fields.pop("row"))
        return cls(fingerprint=bits, row=row, **fields)


def drawn(
    photo: np.ndarray, kinds: Iterator[str], pairs: int, bursts: int, rng: np.random.Generator
) -> Iterator[tuple[str, str | None, int, np.ndarray]]:
    """(series, kind, severity, pixels) of a photograph's versions: the clean one, `pairs` of one kind at two
    severities, and `bursts` of five kinds at severities 1 to 5."""
    yield "clean", None, 0, photo
    for number in range(pairs):
        kind, severities = next(kinds), SEVERITIES[rng.integers(len(SEVERITIES))]
        for severity in severities:
            yield f"pair {number}", kind, severity, DISTORTIONS[kind].apply(photo, severity, rng)
    for number in range(bursts):
        for kind, severity in zip(rng.permutation(list(DISTORTIONS)), BURST, strict=False):
            yield f"burst {number}", str(kind), severity, DISTORTIONS[kind].apply(photo, severity, rng)


def _all_kinds_in_turn(rng: np.random.Generator) -> Iterator[str]:
    while True:
        yield from map(str, rng.permutation(list(DISTORTIONS)))


@dataclass
class Collection:
    """What is made of a folder of photographs."""

    services: Services
    photos: Path
    part: Part
    seed: int
    reference: bool = False

    def versions(self, photographs: int, pairs: int, bursts: int) -> Iterator[Version]:
        """Of the first `photographs` in a drawn order, assessed by the pipeline letters."""
        rng, measure = np.random.default_rng(self.seed), PseudoMos()
        kinds = _all_kinds_in_turn(rng)
        for file in self.files(rng)[:photographs]:
            photo = np.asarray(Image.open(file).convert("RGB"))
            for series, kind, severity, pixels in drawn(photo, kinds, pairs, bursts, rng):
                original = photo if self.reference and kind is not None else None
                row = assess(pixels, original, pipeline="letters", services=self.services)
                yield Version(
                    photo=file.name,
                    series=series,
                    kind=kind,
                    severity=severity,
                    mos=measure(pixels, photo),
                    fingerprint=fingerprint(Image.fromarray(pixels)),
                    row=row,
                )

    def files(self, rng: np.random.Generator) -> list[Path]:
        """The part's photographs in a drawn order."""
        training, held_out = split_photos(self.photos)
        files = training if self.part == "training" else held_out
        return [files[i] for i in rng.permutation(len(files))]

    def reads(self, count: int) -> Iterator[dict[str, Any]]:
        """`count` pairwise reads of one kind at two severities, the better picture first, one of each
        photograph in turn."""
        rng = np.random.default_rng(self.seed)
        kinds, files = _all_kinds_in_turn(rng), self.files(rng)
        client = self.services.client("summarizer")
        for number in range(count):
            file, kind = files[number % len(files)], next(kinds)
            photo = np.asarray(Image.open(file).convert("RGB"))
            better, worse = (
                Image.fromarray(DISTORTIONS[kind].apply(photo, severity, rng))
                for severity in SEVERITIES[rng.integers(len(SEVERITIES))]
            )
            began = time.perf_counter()
            read = read_pair(client, better, worse)
            seconds = time.perf_counter() - began
            yield {"photo": file.name, "kind": kind, "wall_seconds": seconds, **read.model_dump()}


def read_versions(files: Sequence[Path]) -> list[Version]:
    """The versions of files of JSON lines."""
    return [Version.of(line) for file in files for line in file.read_text().splitlines()]
