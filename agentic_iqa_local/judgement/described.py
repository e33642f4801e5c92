"""What a learner gets of a picture: computed once for each content and set-up, and kept in a
folder, since to compute it takes seconds and to learn from it does not."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import file_hash, write_whole
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.identity import ANSWERS, digest, identity
from agentic_iqa_local.judgement.ordering import fingerprint
from agentic_iqa_local.nodes.pictures import load_pictures
from agentic_iqa_local.services import Observer, Services
from agentic_iqa_local.state import LETTERS


class DescriptionError(UserError, ValueError):
    """A picture that cannot be assessed; one sentence for the user."""


@dataclass(frozen=True)
class Description:
    """What a picture is to a learner: LocalNR's `statistics`, (d,) float32; its perceptual hash;
    the `levels` of the configured tools; the letters' probabilities `p_c` of the levels 1 to 5,
    (5,); and `q`. `sha256` is the picture file's."""

    sha256: str
    statistics: np.ndarray
    fingerprint: np.ndarray
    levels: dict[str, float]
    p_c: np.ndarray
    q: float


class Describer:
    """Describes pictures by the letters pipeline, each content once.

    Args:
        services: The set-up, without an eye.
        folder: Where descriptions are kept; a folder that cannot be written keeps none.
    """

    def __init__(self, services: Services, folder: Path) -> None:
        self._services, self._folder = services, folder
        settings = services.settings.model_dump(mode="json")
        decided_by = identity(services.settings, [ANSWERS], services.device)
        self._set_up = digest(decided_by | {"settings": settings})

    def __call__(self, picture: Path) -> Description:
        """The description of a picture. Raises DescriptionError."""
        with _readable(picture):
            sha256 = file_hash(picture)
        file = self._folder / f"{digest([sha256, self._set_up])}.npz"
        with suppress(OSError, ValueError, KeyError):  # there is none, or it is damaged
            return _read(file.read_bytes(), sha256)
        description = self._compute(picture)
        with suppress(OSError, UserError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, _written(description))
        return description

    def _compute(self, picture: Path) -> Description:
        row = assess(picture, pipeline="letters", services=self._services, observer=Observer())
        if row.q is None or row.fusion is None or row.sha256 is None:
            raise DescriptionError(row.error or f"{picture}: it got no q")
        loaded, _ = load_pictures(self._services.settings.images, picture)
        levels = {}
        for run in row.tools:
            if run.normalized_score is not None:
                levels[run.tool_name] = run.normalized_score
        return Description(
            sha256=row.sha256,
            statistics=self._services.tools.examine(loaded.pixels).statistics,
            fingerprint=fingerprint(loaded.pixels),
            levels=levels,
            p_c=np.array([row.fusion.p_c[letter] for letter in reversed(LETTERS)]),
            q=row.q,
        )


@contextmanager
def _readable(picture: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DescriptionError(f"{picture}: {error.strerror}") from error


def _written(one: Description) -> bytes:
    """As a file of numpy."""
    file = io.BytesIO()
    np.savez(
        file,
        statistics=one.statistics,
        fingerprint=one.fingerprint,
        levels=np.array(json.dumps(one.levels)),
        p_c=one.p_c,
        q=np.array(one.q),
    )
    return file.getvalue()


def _read(data: bytes, sha256: str) -> Description:
    with np.load(io.BytesIO(data)) as arrays:
        return Description(
            sha256=sha256,
            statistics=arrays["statistics"],
            fingerprint=arrays["fingerprint"],
            levels=json.loads(str(arrays["levels"])),
            p_c=arrays["p_c"],
            q=float(arrays["q"]),
        )
