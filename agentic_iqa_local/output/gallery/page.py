"""The gallery's page: one HTML file with style, script, thumbnails and accounts inside, which asks
nothing of the network.

Names, queries and a model's words are untrusted: they are data in JSON blocks, which the script
shows as text only, and the page's policy runs no other script.
"""

import base64
import json
import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from agentic_iqa_local.errors import one_line, printable
from agentic_iqa_local.files import path_from_text, write_whole
from agentic_iqa_local.images.reading import ImageError, load_image
from agentic_iqa_local.output import pages
from agentic_iqa_local.output.gallery.rows import account, entry, identities
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import LETTER_WORDS

STYLES = ("account/account.css", "gallery.css")
SCRIPTS = (
    "account/dom.js",
    "account/scale.js",
    "account/account.js",
    "gallery_parts.js",
    "gallery_csv.js",
    "gallery_filters.js",
    "gallery_account.js",
    "gallery.js",
)
BLOCK = {"accounts": 50, "copies": 20}  # of how many items each block of data is


class Thumbnail(NamedTuple):
    """What the page knows of a picture before it shows it, and a copy as WebP in base64. `about`
    has the reason, as `missing`, for one that cannot be read."""

    about: dict[str, Any]
    copy: str | None = None


def write_gallery(
    rows: Sequence[Assessment], file: Path, *, name: str, images: Path | None = None
) -> int:
    """Writes the page of at least one row and returns how many pictures it could not show.

    `name` is the batch's. `images`: a folder in which pictures are looked for that are no longer at
    their path, by as much of its end as matches. Raises WriteError.
    """
    places = {path: place for place, path in enumerate(dict.fromkeys(row.image for row in rows))}
    side = 640 if len(places) <= 400 else 320  # 1,000 pictures take about 15 MB
    pictures = [thumbnail(_found(path, images), side) for path in places]
    entries = []
    for row, key in zip(rows, identities(rows), strict=True):
        entries.append(entry(row, key, places[row.image]))
    index = {
        "name": one_line(name),
        "block": BLOCK,
        "levels": list(LETTER_WORDS.items()),
        "rows": entries,
        "pictures": [picture.about for picture in pictures],
    }
    blocks = [
        *_blocks("accounts", [account(row) for row in rows]),
        *_blocks("copies", [picture.copy for picture in pictures]),
    ]
    page = pages.environment().get_template("gallery.html.jinja")
    own = pages.own_files(STYLES, SCRIPTS)
    write_whole(file, page.render(own, name=one_line(name), index=_json(index), blocks=blocks))
    return sum("missing" in picture.about for picture in pictures)


def _found(path: str, images: Path | None) -> Path:
    """Where the picture is: at the longest end of its path that is a file below `images`, else at
    its path."""
    original = Path(path_from_text(path))
    if images is None:
        return original
    names = original.relative_to(original.anchor).parts
    if ".." not in names:
        for start in range(len(names)):
            place = images.joinpath(*names[start:])
            if os.path.isfile(place):
                return place
    return original


def thumbnail(path: Path, side: int) -> Thumbnail:
    """A picture of a file, turned upright as its EXIF data say; transparent pixels become white.
    `side` is the longest side of the copy in pixels."""
    try:
        loaded = load_image(path, min_side=1, background="white")
    except ImageError as error:
        return Thumbnail({"missing": printable(str(error))})
    about = {
        "size": (loaded.width, loaded.height),
        "sha256": loaded.sha256,
        "address": path.absolute().as_uri(),
    }
    copy, content = loaded.pixels.copy(), BytesIO()
    copy.thumbnail((side, side), reducing_gap=3.0)
    copy.save(content, "WEBP", quality=75, method=2)
    return Thumbnail(about, base64.b64encode(content.getvalue()).decode())


def _blocks(kind: str, items: Sequence[Any]) -> Iterator[tuple[str, Markup]]:
    """(name, JSON) of each run of items: a block is read when the first of its items is shown."""
    size = BLOCK[kind]
    for number, start in enumerate(range(0, len(items), size)):
        part = items[start : start + size]
        if any(item is not None for item in part):
            yield f"{kind}-{number}", _json(part)


def _json(value: Any) -> Markup:
    """JSON for the inside of a <script>: no `<`, so that nothing in it ends or opens a tag."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))
