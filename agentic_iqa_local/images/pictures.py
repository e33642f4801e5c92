"""Pictures that Python code holds: paths, Pillow images, arrays and bytes, each as a file that
`images.load_image` reads."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from agentic_iqa_local.images.files import local_path
from agentic_iqa_local.images.reading import SEVERAL_PICTURES, decode
from agentic_iqa_local.images.rgb import white_is_zero

Picture: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray | bytes | bytearray | memoryview

_MOST_PIXELS = 2 * 89_478_485  # Pillow's own limit for files; that of the configuration is lower
_LONGEST_PATH = 4096  # characters; what is longer is data in a text
_AS_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B", "I;16L", "I;16N")
_AS_TIFF = ("CMYK",)


@dataclass(frozen=True)
class PictureFile:
    """Where a picture lies, and what to call it: a path, or "<array 512×384>"."""

    path: str | os.PathLike[str]
    name: str | os.PathLike[str]

    def hide(self, text: str) -> str:
        """`text` with the name in place of the path of a temporary file."""
        return text.replace(os.fspath(self.path), os.fspath(self.name))


def check_picture(picture: Picture) -> None:
    """Raises TypeError or ValueError, in one sentence, for what is no picture. No file is read or written,
    but a Pillow image that was only opened is decoded."""
    if isinstance(picture, str):
        if len(picture) > _LONGEST_PATH or picture.lower().startswith("data:"):
            raise ValueError(
                f"image: expected a path, got a text of {len(picture)} characters; decode base64 with"
                " base64.b64decode and give the bytes"
            )
        local_path(picture)  # an address is refused
    elif isinstance(picture, Image.Image):
        if picture.mode not in _AS_PNG + _AS_TIFF:
            remedy = "convert it with .convert('RGB')"
            if picture.mode in ("I", "F"):  # no fixed white: a conversion would clip
                remedy = "scale its values to 0 to 255 and give them as an array of uint8"
            raise ValueError(
                f"image: expected a Pillow image of 8 or 16 bits, got mode {picture.mode}; {remedy}"
            )
        _check_size(*picture.size)
        if getattr(picture, "is_animated", False) and picture.format not in SEVERAL_PICTURES:
            raise ValueError(
                f"image: expected a single picture, got a {picture.format} of several frames or pages; give"
                " one of them: image.copy()"
            )
        decode(picture)
    elif isinstance(picture, np.ndarray):
        _check_array(picture)
    elif not isinstance(picture, (os.PathLike, bytes, bytearray, memoryview)):
        raise TypeError(
            "image: expected a path, a Pillow image, a NumPy array or the bytes of an image file, got"
            f" {type(picture).__name__}"
            + ("; IQA takes lists: IQA()(images)" if isinstance(picture, (list, tuple)) else "")
            + (
                "; give tensor.permute(1, 2, 0).cpu().numpy() of a tensor 3×H×W in uint8"
                if hasattr(picture, "permute")
                else ""
            )
        )


def _check_size(width: int, height: int) -> None:
    if min(width, height) < 1:
        raise ValueError(f"image: expected a picture with pixels, got one of {width}×{height}")
    if width * height > _MOST_PIXELS:
        raise ValueError(f"image: expected at most {_MOST_PIXELS} pixels, got {width}×{height}; crop it")


def _check_array(array: np.ndarray) -> None:
    shape = "×".join(map(str, array.shape))
    if array.size == 0:
        raise ValueError(f"image: expected an array with pixels, got one of {shape}")
    if array.ndim == 4:
        raise ValueError(
            f"image: expected one picture, got an array {shape}; give IQA a list of pictures: list(array)"
        )
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (3, 4):
        raise ValueError(
            f"image: expected an array H×W, H×W×3 or H×W×4, got {shape}; put the channels last:"
            " array.transpose(1, 2, 0)"
        )
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        raise ValueError(f"image: expected an array H×W (grey), H×W×3 (RGB) or H×W×4 (RGBA), got {shape}")
    if array.dtype != np.uint8:
        remedy = {
            "f": "(array * 255).round().astype('uint8') of values from 0 to 1",
            "b": "array.astype('uint8') * 255",
        }.get(array.dtype.kind, _remedy_for_integers(array))
        raise ValueError(f"image: expected an array of uint8, 0 to 255, got {array.dtype}; give {remedy}")
    _check_size(array.shape[1], array.shape[0])


def _remedy_for_integers(array: np.ndarray) -> str:
    if array.dtype.kind not in "iu" or (largest := array.max()) >= 2**16:
        return "values scaled to 0 to 255, as uint8"
    return (
        "array.astype('uint8')"
        if largest < 2**8
        else "(array / 257).round().astype('uint8') of 16-bit values"
    )


def _plain_grey(image: Image.Image) -> Image.Image:
    """An image of 16-bit grey in the byte order that PNG files are written from, white being 65535."""
    samples = np.asarray(image).astype(np.uint16)
    return Image.fromarray(np.uint16(65535) - samples if white_is_zero(image) else samples)


@contextmanager
def as_file(picture: Picture) -> Iterator[PictureFile]:
    """The picture as a file. A picture in memory is written without loss to a private temporary folder, which
    is removed afterwards.

    Arrays are H×W (grey), H×W×3 (RGB) or H×W×4 (RGBA), uint8. A Pillow image keeps its EXIF orientation and
    its profile. Raises TypeError and ValueError for anything else, in one sentence without the data.
    """
    check_picture(picture)
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
            kind = "array"
            if isinstance(picture, np.ndarray):
                picture = Image.fromarray(np.ascontiguousarray(picture))
                exif = None
            else:
                kind, exif = "Pillow image", picture.getexif()
            name = f"<{kind} {picture.width}×{picture.height}>"
            if picture.mode.startswith("I"):
                picture = _plain_grey(picture)
            picture.save(
                file, "TIFF" if picture.mode in _AS_TIFF else "PNG", **({"exif": exif} if exif else {})
            )
        yield PictureFile(str(file), name)
