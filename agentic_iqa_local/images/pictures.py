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
from agentic_iqa_local.images.files import local_path, within_memory
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


Picture: TypeAlias = (
    str | os.PathLike[str] | Image.Image | np.ndarray | bytes | bytearray | memoryview | PictureFile
)


def check_picture(picture: Picture) -> None:
    """Raises TypeError or ValueError for what is no picture. No file is read; a Pillow image is
    decoded."""
    if isinstance(picture, str):
        if len(picture) > _LONGEST_PATH or picture.startswith("data:"):
            mistake = "expected a path, got data in a text; give bytes: base64.b64decode(text)"
            raise ValueError(f"image: {mistake}")
        local_path(picture)  # an address is refused
    elif isinstance(picture, Image.Image):
        _check_image(picture)
    elif isinstance(picture, np.ndarray):
        _check_array(picture)
    elif not isinstance(picture, (os.PathLike, bytes, bytearray, memoryview, PictureFile)):
        expected = (
            "a path, a Pillow image, a NumPy array H×W×3 of uint8 or the bytes of an image file"
        )
        raise TypeError(f"image: expected {expected}, got {type(picture).__name__}")


def _check_image(image: Image.Image) -> None:
    with strict_pillow("image"):
        image.load()
    if image.mode not in _MODES:  # I and F have no fixed white: a conversion would clip
        expected = "image: expected a Pillow image of 8 or 16 bits with a fixed white"
        raise ValueError(
            f"{expected}, got mode {image.mode}; scale its values, or use .convert('RGB')"
        )
    if getattr(image, "is_animated", False) and image.format not in SEVERAL_PICTURES:
        got = f"a {image.format} of several"
        raise ValueError(f"image: expected one picture, got {got}; give image.copy()")


def _check_array(array: np.ndarray) -> None:
    channels = array.shape[2:]
    if array.dtype == np.uint8 and array.size and channels in ((), (3,), (4,)) and array.ndim > 1:
        return
    got = f"{'×'.join(map(str, array.shape))} of {array.dtype}"
    expected = "image: expected an array H×W, H×W×3 (RGB) or H×W×4 (RGBA) of uint8"
    advice = (
        "scale it with (array * (255 / white)).round().astype('uint8'), white being the value of white,"
        " put channels last with transpose"
    )
    raise ValueError(f"{expected}, got {got}; {advice}")


@contextmanager
def as_file(picture: Picture) -> Iterator[PictureFile]:
    """The picture as a file; one in memory is written without loss to a temporary folder, which is
    removed afterwards. A Pillow image keeps its EXIF orientation and its profile. Raises as
    `check_picture`."""
    check_picture(picture)
    if isinstance(picture, (str, os.PathLike)):
        path = local_path(os.fsdecode(picture))
        picture = PictureFile(path, path)
    if isinstance(picture, PictureFile):
        yield picture
        return
    with tempfile.TemporaryDirectory(prefix="agentic_iqa_") as folder:
        file = Path(folder) / "picture.png"
        name = _name_in_memory(picture)
        with within_memory(name):
            if isinstance(picture, np.ndarray):
                picture = Image.fromarray(np.ascontiguousarray(picture))
            if isinstance(picture, Image.Image):
                _write(picture, file)
            else:
                file.write_bytes(picture)
        yield PictureFile(str(file), name)


def _name_in_memory(picture: Image.Image | np.ndarray | bytes | bytearray | memoryview) -> str:
    """What a picture in memory is called."""
    if isinstance(picture, np.ndarray):
        return f"<array {picture.shape[1]}×{picture.shape[0]}>"
    if isinstance(picture, Image.Image):
        return f"<Pillow image {picture.width}×{picture.height}>"
    return f"<{memoryview(picture).nbytes} bytes>"


def _write(image: Image.Image, file: Path) -> None:
    """Writes a picture in memory without loss."""
    pixels = grey8(image) if image.mode.startswith("I") else image
    pixels.save(file, "TIFF" if pixels.mode == "CMYK" else "PNG", exif=image.getexif())
