"""What every attack asserts: it ended, in one sentence, and nothing in it steers a terminal."""

import os
import signal
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 600  # so long only what hangs takes, on a busy machine too


@contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    """Fails the test where the block hangs, in a system call too."""

    def hung(*_: object) -> None:
        pytest.fail(f"still at it after {seconds} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def is_sentence(text: str) -> bool:
    """One line that UTF-8 holds, without what steers a terminal and without a traceback."""
    safe = all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text)
    return bool(text.strip()) and safe and "Traceback" not in text


class Touch:
    """A pickle of it makes whoever loads it create a file."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("touched"),)


def _sparse(place: Path) -> None:
    place.touch()
    os.truncate(place, 2 << 30)


def _link(target: str) -> Callable[[Path], None]:
    return lambda place: place.symlink_to(target)


# What may lie where a small regular file is expected
ODD_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "sparse 2 GB": _sparse,
    "empty": Path.touch,
    "endless device": _link("/dev/zero"),
    "loop of links": lambda place: place.symlink_to(place.name),
    "dangling link": _link("nowhere"),
}
