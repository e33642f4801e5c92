"""The gallery's page: one HTML file with style, script, thumbnails and accounts inside, which asks nothing of
the network.

Names, queries and a model's words are untrusted: they are data in JSON blocks, which the script shows as text
only, and the page's policy runs no other script.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.output import pages
from agentic_iqa_local.output.gallery.rows import Row, account, entry, identities
from agentic_iqa_local.output.gallery.thumbnails import Sizes, Thumbnail, thumbnail
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS

STYLE = ("gallery.css",)
SCRIPT = ("gallery_parts.js", "gallery_csv.js", "gallery_filters.js", "gallery_account.js", "gallery.js")
BLOCK = {"accounts": 50, "small": 50, "large": 5}  # of how many items each block of data is


def write_gallery(rows: Sequence[Row], file: Path, *, name: str, images: Path | None = None) -> int:
    """Writes the page of the rows (JSON objects of assess; at least one) and returns how many pictures it
    could not show.

    `name` is the batch's. `images`: a folder in which pictures are looked for that are no longer at their
    path, by as much of its end as matches. Raises WriteError.
    """
    paths = list(dict.fromkeys(row["image"] for row in rows))
    sizes = Sizes.of(len(paths))
    pictures = [thumbnail(_found(path, images), sizes) for path in paths]
    places = {path: place for place, path in enumerate(paths)}
    write_whole(file, _page(rows, pictures, [places[row["image"]] for row in rows], name))
    return sum(picture.missing is not None for picture in pictures)


def _found(path: str, images: Path | None) -> Path:
    """Where the picture is: at the longest end of its path that is a file below `images`, else at its path."""
    original = Path(path)
    if images is None:
        return original
    parts = original.parts
    ends = (images.joinpath(*parts[start:]) for start in range(original.is_absolute(), len(parts)))
    return next((end for end in ends if ".." not in end.parts and os.path.isfile(end)), original)


def _page(rows: Sequence[Row], pictures: Sequence[Thumbnail], places: Sequence[int], name: str) -> str:
    environment = pages.environment()
    style, script = pages.source(*STYLE), pages.source(*SCRIPT)
    blocks = {
        "accounts": list(map(account, rows)),
        "small": [picture.small for picture in pictures],
        "large": [picture.large for picture in pictures],
    }
    return environment.get_template("gallery.html.jinja").render(
        name=one_line(name),
        style=Markup(style),
        script=Markup(script),
        policy=pages.policy(style, script),
        index=_json(_index(rows, pictures, places, name)),
        blocks=[block for kind, items in blocks.items() for block in _blocks(kind, items)],
    )


def _index(rows: Sequence[Row], pictures: Sequence[Thumbnail], places: Sequence[int], name: str) -> dict[str, Any]:
    """What the page reads when it opens."""
    return {
        "name": one_line(name),
        "block": BLOCK,
        "levels": [[letter, LEVEL_WORDS[LETTER_TO_LEVEL[letter]]] for letter in LETTERS],
        "rows": [entry(*one) for one in zip(rows, identities(rows), places, strict=True)],
        "pictures": [picture.told() for picture in pictures],
    }


def _blocks(kind: str, items: Sequence[Any]) -> Iterator[tuple[str, Markup]]:
    """(name, JSON) of each run of items: a block is read when the first of its items is shown."""
    size = BLOCK[kind]
    for number, start in enumerate(range(0, len(items), size)):
        part = items[start : start + size]
        if any(item is not None for item in part):
            yield f"{kind}-{number}", _json(part)


def _json(value: Any) -> Markup:
    """JSON for the inside of a <script>: no `<`, so that nothing in it ends or opens a tag."""
    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))
