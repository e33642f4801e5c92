"""The hash by which a row knows its picture again; light to import, as a process without models needs it."""

import hashlib
from pathlib import Path

from agentic_iqa_local.images.files import ImageError, read_file


def file_sha256(path: str | Path) -> str | None:
    """SHA-256 (hex) of a file's bytes, None where there is none that could be a picture: missing, no regular
    file, or beyond 1 GiB."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except ImageError:
        return None
