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

from agentic_iqa_local.images.colours import grey8
from agentic_iqa_local.images.files import local_path
from agentic_iqa_local.images.reading import SEVERAL_PICTURES, strict_pillow

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


Picture: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray | bytes | bytearray | memoryview | PictureFile


def check_picture(picture: Picture) -> None:
    """Raises TypeError or ValueError for what is no picture. No file is read; a Pillow image is decoded."""
    if isinstance(picture, str):
        if len(picture) > _LONGEST_PATH or picture.startswith("data:"):
            raise ValueError("image: expected a path, got data in a text; give bytes: base64.b64decode(text)")
        local_path(picture)  # an address is refused
    elif isinstance(picture, Image.Image):
        _check_pillow(picture)
    elif isinstance(picture, np.ndarray):
        _check_array(picture)
    elif not isinstance(picture, (os.PathLike, bytes, bytearray, memoryview, PictureFile)):
        expected = "a path, a Pillow image, a NumPy array H×W×3 of uint8 or the bytes of an image file"
        raise TypeError(f"image: expected {expected}, got {type(picture).__name__}")


def _check_pillow(image: Image.Image) -> None:
    if image.mode not in _MODES:  # I and F have no fixed white: a conversion would clip
        expected = "image: expected a Pillow image of 8 or 16 bits with a fixed white"
        raise ValueError(f"{expected}, got mode {image.mode}; scale its values, or use .convert('RGB')")
    if getattr(image, "is_animated", False) and image.format not in SEVERAL_PICTURES:
        raise ValueError(f"image: expected one picture, got a {image.format} of several; give image.copy()")
    with strict_pillow("image"):
        image.load()


def _check_array(array: np.ndarray) -> None:
    if array.dtype != np.uint8:
        remedy = "give (array * (255 / white)).round().astype('uint8'), white being the value of white"
    elif 0 in array.shape or array.ndim not in (2, 3):
        remedy = "give one picture"
    elif array.ndim == 3 and array.shape[2] not in (3, 4):
        remedy = "put the channels last: array.transpose(1, 2, 0)"
    else:
        return
    expected = "image: expected an array H×W, H×W×3 (RGB) or H×W×4 (RGBA) of uint8"
    raise ValueError(f"{expected}, got {'×'.join(map(str, array.shape))} of {array.dtype}; {remedy}")


@contextmanager
def as_file(picture: Picture) -> Iterator[PictureFile]:
    """The picture as a file; one in memory is written without loss to a temporary folder, which is removed
    afterwards. A Pillow image keeps its EXIF orientation and its profile. Raises as `check_picture`."""
    check_picture(picture)
    if isinstance(picture, PictureFile):
        yield picture
        return
    if isinstance(picture, (str, os.PathLike)):
        path = local_path(os.fsdecode(picture))
        yield PictureFile(path, path)
        return
    with tempfile.TemporaryDirectory(prefix="agentic_iqa_") as folder:
        file = Path(folder) / "picture.png"
        if isinstance(picture, (bytes, bytearray, memoryview)):
            name = f"<{file.write_bytes(picture)} bytes>"
        elif isinstance(picture, np.ndarray):
            Image.fromarray(np.ascontiguousarray(picture)).save(file)
            name = f"<array {picture.shape[1]}×{picture.shape[0]}>"
        else:
            image = grey8(picture) if picture.mode.startswith("I") else picture
            image.save(file, "TIFF" if image.mode == "CMYK" else "PNG", exif=picture.getexif())
            name = f"<Pillow image {picture.width}×{picture.height}>"
        yield PictureFile(str(file), name)
