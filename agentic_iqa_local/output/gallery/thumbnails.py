"""Small copies of the pictures of a batch, made once from the originals."""

import base64
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from agentic_iqa_local.errors import printable
from agentic_iqa_local.images.reading import ImageError, load_image


@dataclass(frozen=True)
class Sizes:
    """Longest sides in pixels; the fewer pictures the larger. The thumbnails of 1,000 pictures take about 10 MB."""

    thumbnail: int
    view: int | None  # of the larger copy; None: there is none

    @classmethod
    def of(cls, count: int) -> "Sizes":
        """For `count` pictures."""
        if count <= 400:
            return cls(320, 720)
        return cls(240, 480 if count <= 1500 else None)


@dataclass(frozen=True)
class Thumbnail:
    """Copies of one picture as WebP in base64, the upright original's size in pixels and its address
    (file://...); or why there are none."""

    small: str | None = None
    large: str | None = None
    size: tuple[int, int] | None = None
    sha256: str | None = None
    address: str | None = None
    missing: str | None = None

    def told(self) -> dict[str, Any]:
        """What the page knows of the picture before it shows it."""
        told = {"missing": self.missing, "size": self.size, "address": self.address, "sha256": self.sha256}
        return {name: value for name, value in told.items() if value}


def thumbnail(path: Path, sizes: Sizes) -> Thumbnail:
    """Of the picture in a file, turned upright as its EXIF data say; transparent pixels become white."""
    try:
        loaded = load_image(path, min_side=1, background="white")
    except ImageError as error:
        return Thumbnail(missing=printable(str(error)))
    large = None
    if sizes.view and max(loaded.pixels.size) > sizes.thumbnail:
        large = _webp(loaded.pixels, sizes.view, 80)
    return Thumbnail(
        _webp(loaded.pixels, sizes.thumbnail, 68),
        large,
        (loaded.width, loaded.height),
        loaded.sha256,
        path.absolute().as_uri(),
    )


def _webp(pixels: Image.Image, side: int, quality: int) -> str:
    copy = pixels.copy()
    copy.thumbnail((side, side), reducing_gap=3.0)
    content = BytesIO()
    copy.save(content, "WEBP", quality=quality, method=2)
    return base64.b64encode(content.getvalue()).decode()
