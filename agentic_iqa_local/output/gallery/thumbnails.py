"""Small copies of the pictures of a batch, made once from the originals."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from agentic_iqa_local.errors import printable
from agentic_iqa_local.images.reading import ImageError, load_image


class Thumbnail(NamedTuple):
    """What the page knows of a picture before it shows it, and two copies as WebP in base64. Of one that cannot be
    read `about` has the reason, as `missing`."""

    about: dict[str, Any]
    small: str | None = None
    large: str | None = None


def thumbnail(path: Path, side: int, view: int | None) -> Thumbnail:
    """Of the picture in a file, turned upright as its EXIF data say; transparent pixels become white. `side` and `view`
    are the longest sides of the copies in pixels; the larger one is only made of a picture beyond `side`."""
    try:
        loaded = load_image(path, min_side=1, background="white")
    except ImageError as error:
        return Thumbnail({"missing": printable(str(error))})
    about = {"size": (loaded.width, loaded.height), "sha256": loaded.sha256, "address": path.absolute().as_uri()}
    large = _webp(loaded.pixels, view, 80) if view and max(loaded.pixels.size) > side else None
    return Thumbnail(about, _webp(loaded.pixels, side, 68), large)


def _webp(pixels: Image.Image, side: int, quality: int) -> str:
    copy = pixels.copy()
    copy.thumbnail((side, side), reducing_gap=3.0)
    content = BytesIO()
    copy.save(content, "WEBP", quality=quality, method=2)
    return base64.b64encode(content.getvalue()).decode()
