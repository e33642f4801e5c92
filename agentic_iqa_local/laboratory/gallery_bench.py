"""How a large gallery opens and scrolls in Chromium, and how long its thumbnails take.

    python scripts/assess.py PICTURES --map maps/ --out rows.jsonl
    python -m agentic_iqa_local.laboratory.gallery_bench rows.jsonl --out benchmarks/gallery/5000.json

Each row of the gallery is one of ROWS with its scores moved, and has a picture of its own: a crop of that
row's picture, mirrored or not, lighter or darker. Chromium is driven by Playwright (of the extra `test`).
"""

import argparse
import base64
import hashlib
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from agentic_iqa_local.cli.console import Parser, bar, exit_status, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.levels import LETTER_TO_LEVEL
from agentic_iqa_local.output.gallery.page import write_gallery
from agentic_iqa_local.output.gallery.rows import Row, read_rows
from agentic_iqa_local.output.gallery.thumbnails import Sizes, thumbnail
from agentic_iqa_local.provenance import commit, machine

SIZE = (640, 480)  # pixels of a picture
WINDOW = (1280, 800)  # pixels
PHOTOGRAPH = (4000, 3000)  # pixels of a camera's picture, for the time that a thumbnail of one takes
BAR_SECONDS = 2.0
FAST = 600  # pixels that each frame scrolls on: at 60 frames a second a window of 800 pixels in 22 ms
OPENS = 5
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

# In the page, before its own script: when the first rows are there, and when the window's thumbnails are
# decoded, each as seconds from the start of the navigation to the frame that shows it.
OPENED = """
(() => {
  const frame = () => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
  const seconds = () => performance.now() / 1000;
  window.opened = new Promise((done) => {
    const look = async () => {
      if (!document.querySelector("#list .card")) return requestAnimationFrame(look);
      await frame();
      const rows = seconds();
      const images = [...document.querySelectorAll("#list img")];
      const inside = images.filter((one) => one.getBoundingClientRect().top < innerHeight);
      await Promise.all(inside.map((one) => one.decode()));
      await frame();
      done({ rows, thumbnails: seconds() });
    };
    look();
  });
})();
"""

# Of 48 points of the list's part of the window, the share at which there is no card, and the number of cards.
# A point in the gap between two cards counts as filled where one lies a gap further.
HOLES = """
window.holes = () => {
  const list = document.getElementById("roll").getBoundingClientRect();
  const head = document.querySelector("header").getBoundingClientRect().bottom;
  const [top, bottom] = [Math.max(list.top, head, 0), Math.min(list.bottom, innerHeight)];
  const filled = (x, y) => {
    const card = document.elementFromPoint(x, y)?.closest("#list .card");
    return card && (card.querySelector("img")?.complete ?? true);
  };
  let missing = 0;
  for (let i = 0; i < 48; i += 1) {
    const x = list.left + ((i % 6) + 0.5) * list.width / 6;
    const y = top + (Math.floor(i / 6) + 0.5) * (bottom - top - 20) / 8;
    const near = [[0, 0], [0, 18], [18, 0], [18, 18]];
    if (y > top && !near.some(([right, down]) => filled(x + right, y + down))) missing += 1;
  }
  return { missing: missing / 48, cards: document.querySelectorAll("#list .card").length };
};
"""

SCROLL = """
(step) => new Promise((done) => {
  const found = { frames: [], missing: 0, cards: 0 };
  let before = performance.now();
  const frame = (now) => {
    found.frames.push(now - before);
    before = now;
    const { missing, cards } = holes();
    found.missing = Math.max(found.missing, missing);
    found.cards = Math.max(found.cards, cards);
    const at = scrollY;
    scrollBy({ top: step, behavior: "instant" });
    if (scrollY === at || found.frames.length > 4000) done(found);
    else requestAnimationFrame(frame);
  };
  scrollTo(0, 0);
  requestAnimationFrame((now) => { before = now; requestAnimationFrame(frame); });
})
"""


class BenchError(UserError):
    """The bench cannot run; one sentence."""


def varied(rows: list[Row], count: int, folder: Path, rng: np.random.Generator) -> Iterator[Row]:
    """`count` rows made of real ones, each with a picture of its own in `folder`."""
    photos = {row["image"]: load_image(row["image"], min_side=1).pixels for row in rows if not row["error"]}
    for number in range(count):
        row = json.loads(json.dumps(rows[number % len(rows)]))
        file = folder / f"{number:05}.jpg"
        if row["error"]:
            file.write_bytes(b"no picture")
        else:
            _picture(photos[row["image"]], rng).save(file, quality=88)
            _move(row, float(rng.normal(0, 0.5)))
        row["error"] = row["error"] and row["error"].replace(row["image"], str(file))
        row["image"], row["sha256"] = str(file), hashlib.sha256(file.read_bytes()).hexdigest()
        yield row


def _picture(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    side = rng.uniform(0.6, 1)
    width, height = int(photo.width * side), int(photo.height * side)
    left, top = rng.integers([photo.width - width + 1, photo.height - height + 1]).tolist()
    crop = photo.crop((left, top, left + width, top + height))
    crop = ImageOps.fit(ImageOps.mirror(crop) if rng.random() < 0.5 else crop, SIZE)
    return ImageEnhance.Brightness(crop).enhance(rng.uniform(0.8, 1.2))


def _move(row: Row, by: float) -> None:
    """Moves q by so many levels, and with it the interval and the letter."""
    if row["q"] is None:
        return
    row["q"] = min(5.0, max(1.0, row["q"] + by))
    row["final_answer"] = min(LETTER_TO_LEVEL, key=lambda letter: abs(LETTER_TO_LEVEL[letter] - row["q"]))
    if row["interval"]:
        row["interval"]["low"] = min(row["q"], max(1.0, row["interval"]["low"] + by))
        row["interval"]["high"] = max(row["q"], min(5.0, row["interval"]["high"] + by))


def measure(rows: list[Row], count: int, folder: Path, shots: Path | None) -> dict[str, Any]:
    """Figures of a gallery of `count` rows, in `folder`."""
    (folder / "pictures").mkdir()
    made = list(varied(rows, count, folder / "pictures", np.random.default_rng(0)))
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    clock: list[float] = [time.monotonic()]
    read = read_rows(source)
    clock.append(time.monotonic())

    def progress(paths: Iterable[str]) -> Iterator[str]:
        yield from bar(list(paths), desc="thumbnails", unit="picture", leave=False)
        clock.append(time.monotonic())

    page = folder / "gallery.html"
    write_gallery(read, page, name=f"{count} rows", progress=progress)
    clock.append(time.monotonic())
    reading, thumbnails, writing = np.diff(clock)
    return {
        "rows": count,
        "made_of": len(rows),
        "page_mb": round(page.stat().st_size / 1e6, 1),
        "making": {
            "read_rows_s": round(reading, 2),
            "thumbnails_s": round(thumbnails, 1),
            "thumbnail_ms": round(1000 * thumbnails / count, 2),
            "rest_s": round(writing, 2),
            "photograph_thumbnail_ms": _photograph(folder),
        },
        **in_chromium(page, shots),
    }


def _photograph(folder: Path) -> float:
    """Milliseconds for the thumbnail of a camera's picture, a JPEG of 12 megapixels; the median of five."""
    rng = np.random.default_rng(1)
    noise = Image.fromarray(rng.integers(0, 256, (300, 400, 3), dtype=np.uint8))
    noise.resize(PHOTOGRAPH, Image.Resampling.BICUBIC).save(folder / "photograph.jpg", quality=90)
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        thumbnail(folder / "photograph.jpg", Sizes.of(5000))
        seconds.append(time.monotonic() - began)
    return round(1000 * statistics.median(seconds), 1)


def in_chromium(page: Path, shots: Path | None) -> dict[str, Any]:
    """How the page opens (the median of several times, in a new window each) and scrolls."""
    from playwright.sync_api import sync_playwright

    opened = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(OPENS):
            window = browser.new_context(viewport={"width": WINDOW[0], "height": WINDOW[1]}).new_page()
            window.add_init_script(OPENED)
            window.goto(page.as_uri(), wait_until="commit")
            opened.append(window.evaluate("opened"))
            window.wait_for_load_state()
            if len(opened) < OPENS:
                window.close()
        window.evaluate(HOLES)
        slow, fast = window.evaluate(SCROLL, 120), window.evaluate(SCROLL, FAST)
        jumps = [_jump(window, share) for share in np.linspace(0, 1, 60)]
        blank = _shown(window, shots)
        version = browser.version
        browser.close()
    return {
        "chromium": version,
        "opening": {
            f"{what}_s": {"median": round(statistics.median(times), 2), "longest": round(max(times), 2)}
            for what in ("rows", "thumbnails")
            for times in ([one[what] for one in opened],)
        },
        "scrolling": {
            "120_pixels_a_frame": _frames(slow),
            f"{FAST}_pixels_a_frame": _frames(fast),
            "jumps": {"number": len(jumps), "largest_hole": max(jumps)},
            "frames_shown": {"number": len(blank), "blank": sum(blank)},
        },
    }


def _frames(found: dict[str, Any]) -> dict[str, Any]:
    times = np.array(found["frames"][1:])
    return {
        "frames": len(times),
        "frame_ms": {
            "median": round(float(np.median(times)), 1),
            "p95": round(float(np.quantile(times, 0.95)), 1),
        },
        "largest_hole": found["missing"],
        "most_cards": found["cards"],
    }


def _jump(window: Any, share: float) -> float:
    """Scrolls to a share of the page at once; the share of the window that lacks cards two frames later."""
    window.evaluate(
        "(share) => new Promise((go) => {"
        " scrollTo({ top: share * document.documentElement.scrollHeight, behavior: 'instant' });"
        " requestAnimationFrame(() => requestAnimationFrame(go)); })",
        share,
    )
    return window.evaluate("holes().missing")


def _shown(window: Any, folder: Path | None) -> list[bool]:
    """Turns the wheel fast: of each frame that is shown meanwhile, whether a strip of the list is of one
    colour.

    The frames are those of the browser's screencast. A screenshot in the middle of scrolling may be of a
    frame that nobody is shown: without a GPU some are white all over.
    """
    area = window.evaluate(
        "(({left, right}) => [left, right])(document.getElementById('roll').getBoundingClientRect())"
    )
    frames: list[bytes] = []
    session = window.context.new_cdp_session(window)

    def keep(frame: dict[str, Any]) -> None:
        frames.append(base64.b64decode(frame["data"]))
        session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    session.on("Page.screencastFrame", keep)
    window.evaluate("scrollTo(0, 0)")
    session.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})
    window.mouse.move(sum(area) / 2, 500)
    for _ in range(20):
        for _ in range(6):
            window.mouse.wheel(0, 2400)
        window.wait_for_timeout(150)
    session.send("Page.stopScreencast")
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for number, frame in enumerate(frames):
            (folder / f"scroll_{number:03}.png").write_bytes(frame)
    return [_blank(frame, area) for frame in frames]


def _blank(frame: bytes, area: Sequence[float]) -> bool:
    """A row of cards is at most 300 pixels tall: each such strip must show one."""
    shown = Image.open(io.BytesIO(frame)).convert("RGB").resize(WINDOW)
    pixels = np.asarray(shown.crop((int(area[0]), 120, int(area[1]), WINDOW[1])))
    strips = [pixels[top : top + 300].std() for top in range(0, len(pixels) - 300, 100)]
    return bool(min(strips) < 8)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="ROWS", help="rows of assess --out, with their pictures")
    parser.add_argument(
        "--count", type=int, default=5000, metavar="N", help="rows of the gallery (default: 5000)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="result file (JSON)")
    parser.add_argument("--shots", type=Path, metavar="DIR", help="keep the pictures taken while it scrolls")
    return parser.parse_args(argv)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)

    def bench() -> int:
        if CHROMIUM is None:
            raise BenchError("Chromium: it is not installed", "apt-get install chromium, or set CHROMIUM")
        rows = read_rows(args.rows)
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(rows, args.count, Path(folder), args.shots)
        figures |= {
            "bar": {"opens_within_s": BAR_SECONDS, "largest_hole": 0, "blank": 0},
            "machine": machine(("pillow", "playwright")) | {"load_average": os.getloadavg()[1]},
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(
            json.dumps({key: figures[key] for key in ("page_mb", "making", "opening", "scrolling")}, indent=1)
        )
        return 0

    return exit_status(bench)


if __name__ == "__main__":
    sys.exit(main())
