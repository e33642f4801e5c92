"""XMP sidecars: what was found of a picture, where programs for photographs look. No picture's file
is ever written."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from agentic_iqa_local.errors import UserError, counted, one_line, percent
from agentic_iqa_local.files import FileError, WriteError, path_from_text, read_bytes, write_whole
from agentic_iqa_local.images.reading import own_xmp
from agentic_iqa_local.output.words import damage, trial_notice
from agentic_iqa_local.output.xmp import EMPTY, SidecarError, merged, read
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import EYE, LETTER_TO_LEVEL

Kind = Literal["darktable", "adobe"]
LARGEST = 2**24  # bytes of a sidecar
NAMED = 5  # pictures or files in a message
RATING, LABEL, WORDS = "xmp:Rating", "xmp:Label", "dc:description"
PICK = {LABEL: "Green", "digiKam:PickLabel": "3", "xmpDM:pick": "1"}
"""What says that a picture is the one to keep: a green label, which all of these programs read, the
accepted flag of digiKam, and the pick flag of Adobe."""


def stars_of(row: Assessment) -> int | None:
    """1 to 5 stars: of the level that was answered, with an eye of what that says; None where
    nothing was rated or the answer is held back."""
    if row.level is None or row.letter is None or row.not_sure:
        return None
    if row.eye:
        for run in row.tools:
            if run.tool_name == EYE and run.normalized_score is not None:
                return min(5, max(1, round(run.normalized_score)))
    return LETTER_TO_LEVEL[row.letter]


def words_of(row: Assessment) -> str:
    """A result as one line that says what it is about."""
    said = f"Image quality: {row.answer}"
    if row.interval:
        chance = percent(row.interval.coverage)
        said += f" ({chance}: {row.interval.low:.1f} to {row.interval.high:.1f})"
    return one_line("; ".join([said, *damage(row)]) + trial_notice(row))


class Sidecars:
    """The sidecars of pictures, and what became of them so far.

    Args:
        kind: "darktable": photo.jpg.xmp, as darktable and digiKam name them; "adobe": photo.xmp.
        pictures: All that may get one.

    Raises:
        SidecarError: Two pictures would share one, or one is itself among the pictures.
    """

    def __init__(self, kind: Kind, pictures: Iterable[Path]):
        self.kind: Kind = kind
        self.changed = self.same = 0
        self.kept: list[str] = []  # what somebody gave
        self.failed: list[str] = []
        every = {os.path.abspath(picture) for picture in pictures}
        times = Counter(str(self.place(Path(picture))) for picture in every)
        for place, number in times.items():
            if place in every:
                raise SidecarError(f"{place}: expected a sidecar, but it is named as a picture")
            if number > 1:
                said = f"{place}: expected a sidecar for each picture, {number} would share it"
                raise SidecarError(said, "use --xmp darktable, which keeps the suffix")

    def place(self, picture: Path, kind: Kind | None = None) -> Path:
        """Where a picture's sidecar lies; of another kind where one is named."""
        if (kind or self.kind) == "adobe":
            return picture.with_suffix(".xmp")
        return picture.with_name(f"{picture.name}.xmp")

    def note(self, row: Assessment) -> None:
        """Puts down stars and words; nothing of a picture that failed."""
        if row.error is None:
            stars = stars_of(row)
            values = {RATING: None if stars is None else str(stars), WORDS: words_of(row)}
            self._change(row.image, lambda _: values)

    def pick(self, image: str, words: str) -> None:
        """Says that a picture is the best of its group."""
        self._change(image, lambda _: PICK | {WORDS: f"Image quality: {one_line(words)}"})

    def pass_over(self, image: str) -> None:
        """Takes back what `pick` said of a picture earlier."""
        self._change(image, lambda written: _nothing({*PICK, WORDS} if LABEL in written else ()))

    def undo(self, picture: Path) -> None:
        """Takes back everything that was written, to sidecars of every kind, and that nobody changed
        since."""
        for kind in get_args(Kind):
            if os.path.lexists(self.place(picture, kind)):
                self._change(str(picture), _nothing, kind)

    def _change(
        self,
        image: str,
        changes: Callable[[Iterable[str]], Mapping[str, str | None]],
        kind: Kind | None = None,
    ) -> None:
        """Merges what `changes` makes of the properties that this program wrote; what goes wrong is
        noted."""
        picture = Path(path_from_text(image))
        place = self.place(picture, kind)
        try:
            there = _content(place)
            values = changes(read(there).written if there else ())
            given = _given_inside(picture) if any(values.values()) else ()
            content, kept = merged(there or EMPTY, values, given)
            _put(place, there, content)
        except (FileError, SidecarError, WriteError) as error:
            said = str(error).removeprefix(f"{one_line(str(place))}: ")
            self.failed.append(f"{place}: {said}")
            return
        told = [name.partition(":")[2].lower() for name in kept if name in values]
        if told:
            self.kept.append(f"{picture.name} ({', '.join(told)})")
        if content == (there or EMPTY):
            self.same += 1
        else:
            self.changed += 1

    def account(self, done: str = "written") -> list[str]:
        """What became of the sidecars, a sentence each."""
        said = f"{counted(self.changed, 'sidecar')} {done}"
        if self.same:
            said += f", {self.same} had nothing to change"
        lines = [said]
        if self.kept:
            lines.append(f"left what somebody gave to {_listed(self.kept, 'picture')}")
        if self.failed:
            lines.append(f"error: could not merge into {_listed(self.failed, 'sidecar')}")
        return [one_line(line) for line in lines]


def _nothing(names: Iterable[str]) -> dict[str, str | None]:
    return dict.fromkeys(names)


def _listed(names: list[str], noun: str) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{counted(len(names), noun)}: {'; '.join(names[:NAMED])}{more}"


def _content(place: Path) -> bytes:
    """A sidecar's bytes; none where there is no file. Raises FileError."""
    if not os.path.lexists(place):
        return b""
    if place.is_symlink():
        raise FileError("expected a regular file, got a link")
    return read_bytes(place, LARGEST)


def _put(place: Path, there: bytes, content: bytes) -> None:
    """Replaces a sidecar, whose mode it keeps; one that only this program wrote in goes. Raises
    WriteError."""
    try:
        if content == EMPTY:
            place.unlink(missing_ok=True)
        elif content != there:
            mode = place.stat().st_mode if there else None
            write_whole(place, [content], sync=True)
            if mode is not None:
                place.chmod(mode)
    except OSError as error:
        raise WriteError(f"{place}: could not be written ({error.strerror})") from error


def _given_inside(picture: Path) -> list[str]:
    """The properties that the picture's own XMP gives."""
    try:
        own = read(own_xmp(picture))
    except (UserError, SidecarError):
        return []
    return [name for name in (RATING, *PICK, WORDS) if own.gives(name)]
