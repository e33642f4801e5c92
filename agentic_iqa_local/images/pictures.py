"""Pictures that Python code holds, each as a file that `reading.load_image` reads."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from agentic_iqa_local.images.colours import plain_grey
from agentic_iqa_local.images.files import local_path
from agentic_iqa_local.images.reading import SEVERAL_PICTURES, decode

_MOST_PIXELS = 2 * 89_478_485  # Pillow's own limit for files; that of the configuration is lower
_LONGEST_PATH = 4096  # characters; what is longer is data in a text
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B", "I;16L", "I;16N", "CMYK")


@dataclass(frozen=True)
class PictureFile:
    """Where a picture lies, and what to call it: a path, or "<array 512×384>"."""

    path: str | os.PathLike[str]
    name: str | os.PathLike[str]

    def hide(self, text: str) -> str:
        """`text` with the name in place of the path of a temporary file."""
        return text.replace(os.fspath(self.path), os.fspath(self.name))


Picture: TypeAlias = (
    str | os.PathLike[str] | Image.Image | np.ndarray | bytes | bytearray | memoryview | PictureFile
)


def check_picture(picture: Picture) -> None:
    """Raises TypeError or ValueError, in one sentence, for what is no picture. No file is read or written,
    but a Pillow image that was only opened is decoded."""
    if isinstance(picture, str):
        if len(picture) > _LONGEST_PATH or picture.lower().startswith("data:"):
            got = f"got a text of {len(picture)} characters"
            raise ValueError(f"image: expected a path, {got}; give bytes instead: base64.b64decode(text)")
        local_path(picture)  # an address is refused
    elif isinstance(picture, Image.Image):
        _check_size(*picture.size)
        if picture.mode not in _MODES:  # I and F have no fixed white: a conversion would clip
            remedy = (
                "scale its values to 0 to 255 and give"
                if picture.mode in "IF"
                else "use .convert('RGB') or give"
            )
            expected = f"image: expected a Pillow image of 8 or 16 bits, got mode {picture.mode}"
            raise ValueError(f"{expected}; {remedy} an array of uint8")
        if getattr(picture, "is_animated", False) and picture.format not in SEVERAL_PICTURES:
            got = f"got a {picture.format} of several frames or pages"
            raise ValueError(f"image: expected a single picture, {got}; give one of them: image.copy()")
        decode(picture)
    elif isinstance(picture, np.ndarray):
        _check_array(picture)
    elif not isinstance(picture, (os.PathLike, bytes, bytearray, memoryview, PictureFile)):
        raise TypeError(
            "image: expected a path, a Pillow image, a NumPy array H×W×3 of uint8 or the bytes of an image"
            f" file, got {type(picture).__name__}"
        )


def _check_size(width: int, height: int) -> None:
    if not 0 < width * height <= _MOST_PIXELS:
        raise ValueError(f"image: expected 1 to {_MOST_PIXELS} pixels, got {width}×{height}")


def _check_array(array: np.ndarray) -> None:
    shape = "×".join(map(str, array.shape))
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        remedy = "put the channels last: array.transpose(1, 2, 0)" if array.ndim == 3 else "give one picture"
        expected = "image: expected an array H×W (grey), H×W×3 (RGB) or H×W×4 (RGBA)"
        raise ValueError(f"{expected}, got {shape}; {remedy}")
    if array.dtype != np.uint8:
        remedy = "(array * 255).round().astype('uint8') of values from 0 to 1"
        raise ValueError(f"image: expected an array of uint8, 0 to 255, got {array.dtype}; give {remedy}")
    _check_size(array.shape[1], array.shape[0])


@contextmanager
def as_file(picture: Picture) -> Iterator[PictureFile]:
    """The picture as a file; one in memory is written without loss to a private temporary folder, which is
    removed afterwards. A Pillow image keeps its EXIF orientation and its profile. Raises as `check_picture`.
    """
    check_picture(picture)
    if isinstance(picture, PictureFile):
        yield picture
        return
    if isinstance(picture, (str, os.PathLike)):
        path = local_path(picture) if isinstance(picture, str) else os.fsdecode(picture)
        yield PictureFile(path, path)
        return
    with tempfile.TemporaryDirectory(prefix="agentic_iqa_") as folder:
        file = Path(folder) / "picture.png"
        if isinstance(picture, (bytes, bytearray, memoryview)):
            data = bytes(picture)
            file.write_bytes(data)
            name = f"<{len(data)} bytes>"
        else:
            is_image = isinstance(picture, Image.Image)
            image = picture if is_image else Image.fromarray(np.ascontiguousarray(picture))
            exif = image.getexif() if is_image else None
            name = f"<{'Pillow image' if is_image else 'array'} {image.width}×{image.height}>"
            if image.mode.startswith("I"):
                image = Image.fromarray(plain_grey(image, image, 2**16 - 1))
            image.save(file, "TIFF" if image.mode == "CMYK" else "PNG", **({"exif": exif} if exif else {}))
        yield PictureFile(str(file), name)
