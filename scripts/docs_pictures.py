#!/usr/bin/env python3
"""Draws the terminals that the pages show: docs/images/batch.svg and assess_help.svg, from what the commands print.

python scripts/docs_pictures.py
"""

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageFilter
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 90


def on_a_terminal(*words: str, cwd: Path) -> str:
    """What a command prints on a terminal of COLUMNS columns, with its colours."""
    master, slave = pty.openpty()
    environment = os.environ | {
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
    }
    line = [sys.executable, "-m", "agentic_iqa_local", *words]
    process = subprocess.Popen(
        line, stdout=slave, stderr=subprocess.DEVNULL, env=environment, cwd=cwd
    )
    os.close(slave)
    printed = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the command has ended
            break
        if not part:
            break
        printed += part
    process.wait()
    return printed.decode().replace("\r\n", "\n")


def draw(name: str, *words: str, cwd: Path) -> None:
    """Writes docs/images/NAME.svg."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ agentic-iqa {' '.join(words)}"))
    console.print(Text.from_ansi(on_a_terminal(*words, cwd=cwd)))
    console.save_svg(str(ROOT / "docs" / "images" / f"{name}.svg"), title="agentic-iqa")


def scans(folder: Path) -> None:
    """Six scans: two clean, three damaged, and one that is torn."""
    sumac = Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB")
    prudential = Image.open(ROOT / "tests" / "data" / "prudential.png").convert("RGB")
    sumac.save(folder / "sumac.png")
    prudential.save(folder / "prudential.png")
    sumac.save(folder / "blocky.jpg", quality=8)
    prudential.filter(ImageFilter.GaussianBlur(3)).save(folder / "blurry.jpg", quality=95)
    noise = Image.effect_noise(prudential.size, 60).convert("RGB")
    Image.blend(prudential, noise, 0.35).save(folder / "noisy.jpg", quality=95)
    whole = (folder / "blocky.jpg").read_bytes()
    (folder / "torn.jpg").write_bytes(whole[: len(whole) // 2])


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "scans"
        folder.mkdir()
        scans(folder)
        draw("batch", "assess", "scans/", cwd=Path(place))
        draw("assess_help", "assess", "--help", cwd=Path(place))


if __name__ == "__main__":
    main()
