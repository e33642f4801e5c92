"""Makes versions of clean photographs of which it is known which are better, and assesses them: what
comparisons are fitted and measured on."""

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from agentic_iqa_local.assessment import assess
from agentic_iqa_local.judgement.ordering import fingerprint
from agentic_iqa_local.judgement.pairwise_read import read_pair
from agentic_iqa_local.nodes.summarizer import ROLE
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.synthetic.distortions import DISTORTIONS
from agentic_iqa_local.synthetic.photos import split_photos
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

Part = Literal["training", "held-out"]
SEVERITIES = ((1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5))  # two or more apart
PAIR, IN_BURST, CLEAN = "pair", "burst", "clean"  # how the names of series begin
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


@dataclass(frozen=True)
class Picture:
    """A version before it is assessed, and the clean photograph; both uint8 H×W×3."""

    photo: str
    series: str
    kind: str | None
    severity: int
    pixels: np.ndarray
    clean: np.ndarray


def drawn(
    photo: np.ndarray, kinds: Iterator[str], pairs: int, bursts: int, rng: np.random.Generator
) -> Iterator[tuple[str, str | None, int, np.ndarray]]:
    """(series, kind, severity, pixels) of a photograph's versions: the clean one, `pairs` of one kind at two
    severities, and `bursts` of five kinds at severities 1 to 5."""
    yield CLEAN, None, 0, photo
    for number in range(pairs):
        kind, severities = next(kinds), SEVERITIES[rng.integers(len(SEVERITIES))]
        for severity in severities:
            yield f"{PAIR} {number}", kind, severity, DISTORTIONS[kind].apply(photo, severity, rng)
    for number in range(bursts):
        for kind, severity in zip(rng.permutation(list(DISTORTIONS)), BURST, strict=False):
            yield f"{IN_BURST} {number}", str(kind), severity, DISTORTIONS[kind].apply(photo, severity, rng)


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

    def pictures(self, photographs: int, pairs: int, bursts: int) -> Iterator[Picture]:
        """The versions of the first `photographs` in a drawn order; the same ones each time."""
        rng = np.random.default_rng(self.seed)
        training, held_out = split_photos(self.photos)
        files = training if self.part == "training" else held_out
        order = rng.permutation(len(files))[:photographs]
        kinds = _all_kinds_in_turn(rng)
        for file in (files[i] for i in order):
            photo = np.asarray(Image.open(file).convert("RGB"))
            for series, kind, severity, pixels in drawn(photo, kinds, pairs, bursts, rng):
                yield Picture(file.name, series, kind, severity, pixels, photo)

    def versions(self, pictures: Iterator[Picture]) -> Iterator[Version]:
        """Each picture, assessed by the pipeline letters."""
        measure = PseudoMos()
        for picture in pictures:
            original = picture.clean if self.reference and picture.kind is not None else None
            yield Version(
                photo=picture.photo,
                series=picture.series,
                kind=picture.kind,
                severity=picture.severity,
                mos=measure(picture.pixels, picture.clean),
                fingerprint=fingerprint(Image.fromarray(picture.pixels)),
                row=assess(picture.pixels, original, pipeline="letters", services=self.services),
            )

    def reads(self, pictures: Iterator[Picture], count: int) -> Iterator[dict[str, Any]]:
        """`count` pairwise reads of one kind at two severities, the better picture first."""
        client = self.services.client(ROLE)
        in_pairs = (picture for picture in pictures if picture.series.startswith(PAIR))
        for better, worse in itertools.islice(zip(in_pairs, in_pairs, strict=False), count):
            began = time.perf_counter()
            read = read_pair(client, *(Image.fromarray(picture.pixels) for picture in (better, worse)))
            seconds = time.perf_counter() - began
            about = {"photo": better.photo, "series": better.series, "kind": better.kind}
            yield about | {"wall_seconds": seconds, "read": read.model_dump()}


def read_versions(files: Sequence[Path]) -> list[Version]:
    """The versions of files of JSON lines."""
    return [Version.of(line) for file in files for line in file.read_text().splitlines()]
