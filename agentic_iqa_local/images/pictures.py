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
    """Raises TypeError or ValueError for what is no picture. No file is read; a Pillow image is decoded."""
    if isinstance(picture, str):
        if len(picture) > _LONGEST_PATH or picture.startswith("data:"):
            raise ValueError(
                "image: expected a path, got data in a text; give bytes: base64.b64decode(text)"
            )
        local_path(picture)  # an address is refused
    elif isinstance(picture, Image.Image):
        if picture.mode not in _MODES:  # I and F have no fixed white: a conversion would clip
            expected = "image: expected a Pillow image of 8 or 16 bits with a fixed white"
            raise ValueError(
                f"{expected}, got mode {picture.mode}; scale its values, or use .convert('RGB')"
            )
        if getattr(picture, "is_animated", False) and picture.format not in SEVERAL_PICTURES:
            raise ValueError(
                f"image: expected one picture, got a {picture.format} of several; give image.copy()"
            )
        with strict_pillow("image"):
            picture.load()
    elif isinstance(picture, np.ndarray):
        one_picture = picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] in (3, 4))
        if picture.dtype != np.uint8 or 0 in picture.shape or not one_picture:
            got = f"{'×'.join(map(str, picture.shape))} of {picture.dtype}"
            advice = "scale it with (array * (255 / white)).round().astype('uint8'), put channels last with transpose"
            raise ValueError(
                f"image: expected an array H×W, H×W×3 (RGB) or H×W×4 (RGBA) of uint8, got {got}; {advice}"
            )
    elif not isinstance(picture, (os.PathLike, bytes, bytearray, memoryview, PictureFile)):
        expected = (
            "a path, a Pillow image, a NumPy array H×W×3 of uint8 or the bytes of an image file"
        )
        raise TypeError(f"image: expected {expected}, got {type(picture).__name__}")


@contextmanager
def as_file(picture: Picture) -> Iterator[PictureFile]:
    """The picture as a file; one in memory is written without loss to a temporary folder, which is removed
    afterwards. A Pillow image keeps its EXIF orientation and its profile. Raises as `check_picture`."""
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
        with within_memory(name, "written"):
            _write(picture, file)
        yield PictureFile(str(file), name)


def _name_in_memory(picture: Image.Image | np.ndarray | bytes | bytearray | memoryview) -> str:
    """What a picture in memory is called."""
    if isinstance(picture, np.ndarray):
        return f"<array {picture.shape[1]}×{picture.shape[0]}>"
    if isinstance(picture, Image.Image):
        return f"<Pillow image {picture.width}×{picture.height}>"
    return f"<{memoryview(picture).nbytes} bytes>"


def _write(picture: Image.Image | np.ndarray | bytes | bytearray | memoryview, file: Path) -> None:
    """Writes a picture in memory without loss."""
    if isinstance(picture, np.ndarray):
        Image.fromarray(np.ascontiguousarray(picture)).save(file)
    elif isinstance(picture, Image.Image):
        image = grey8(picture) if picture.mode.startswith("I") else picture
        image.save(file, "TIFF" if image.mode == "CMYK" else "PNG", exif=picture.getexif())
    else:
        file.write_bytes(picture)
