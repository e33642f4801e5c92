"""The preview in a camera's RAW file: a JPEG that the camera developed. LibRaw finds it; what the
sensor measured is not decoded."""

from io import BytesIO

from agentic_iqa_local.images.files import ImageError


def preview_of(path: str, data: bytes) -> tuple[bytes, str]:
    """The JPEG in a RAW file, turned as the photograph is, and the size of the RAW data in pixels.
    Raises ImageError."""
    try:
        import rawpy  # an extra, which need not be installed
    except ImportError:
        missing = f"{path}: this is a camera's RAW file, whose preview needs an extra"
        raise ImageError(missing, "pip install 'agentic_iqa_local[raw]'.") from None
    try:
        with rawpy.imread(BytesIO(data)) as raw:
            size = f"{raw.sizes.width}×{raw.sizes.height}"
            preview = raw.extract_thumb()
    except rawpy.LibRawError as error:  # pyright: ignore[reportAttributeAccessIssue]
        said = f"{path}: expected a RAW file with a preview, but LibRaw says {error}"
        raise ImageError(said, "develop it: export it as JPEG or TIFF.") from None
    if not isinstance(preview.data, bytes):
        said = f"{path}: expected a RAW file with a preview, but that is no JPEG"
        raise ImageError(said, "develop it: export it as JPEG or TIFF.")
    return preview.data, size
