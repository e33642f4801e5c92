#!/usr/bin/env python3
"""Makes the pictures of docs/images anew: terminals, pages in Chromium, and a damaged picture with its map.

python scripts/docs_pictures.py     (needs Chromium, and the extras `serve` and `test`; some minutes)

One is not made here: eye_curve.svg is a figure of `study report` over rows of BIQ2021, a data set that does not ship.
"""

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from PIL import Image, ImageEnhance, ImageFilter
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import browser_page  # noqa: E402  # pyright: ignore[reportMissingImports]
from test_study_report import analysed, make_rows, make_run  # noqa: E402  # pyright: ignore[reportMissingImports]

from agentic_iqa_local.studies.plots import draw as figures  # noqa: E402
from agentic_iqa_local.studies.report import write_page  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DATA = ROOT / "tests" / "data"
COLUMNS = 90
MOST_BYTES = 150_000  # of a picture
DAMAGES = {
    "blurred": lambda picture: picture.filter(ImageFilter.GaussianBlur(2.5)),
    "dark": lambda picture: ImageEnhance.Brightness(picture).enhance(0.35),
    "grey": lambda picture: ImageEnhance.Contrast(picture).enhance(0.3),
    "noisy": lambda picture: Image.blend(
        picture, Image.effect_noise(picture.size, 60).convert("RGB"), 0.35
    ),
}


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


def photographs() -> dict[str, Image.Image]:
    """The two photographs of the tests, by name."""
    return {
        name: Image.open(DATA / f"{name}.png").convert("RGB") for name in ("sumac", "prudential")
    }


def blocky(picture: Image.Image, quality: int) -> Image.Image:
    """A picture as JPEG gives it back."""
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=quality)
    return Image.open(content).convert("RGB")


def run(*words: str, cwd: Path) -> None:
    """A command of this program; its exit status counts failures and verdicts, so none is an error."""
    line = [sys.executable, "-m", "agentic_iqa_local", *words, "--cpu"]
    subprocess.run(line, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)


def kept(picture: Image.Image, name: str) -> None:
    """Writes docs/images/NAME: WebP as good as MOST_BYTES allow, PNG with a palette."""
    file = IMAGES / name
    for quality in (90, 82, 74, 66, 58):
        if file.suffix == ".webp":
            picture.convert("RGB").save(file, quality=quality, method=6)
        else:
            colours = 256 if quality == 90 else quality
            picture.convert("RGB").quantize(colours).save(file, optimize=True)
        if file.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{file}: {file.stat().st_size} bytes, more than {MOST_BYTES}")


def screen(page, name: str) -> None:
    """Writes what the window shows."""
    kept(Image.open(io.BytesIO(page.screenshot())), name)


def damaged_with_map(folder: Path) -> None:
    """sumac_damaged: JPEG blocks in the bottom left quarter, and the map of it."""
    picture = photographs()["sumac"]
    width, height = picture.size
    quarter = (0, height // 2, width // 2, height)
    picture.paste(blocky(picture.crop(quarter), 6), quarter)
    kept(picture, "sumac_damaged.webp")
    run("assess", str(IMAGES / "sumac_damaged.webp"), "--map", "map.png", cwd=folder)
    drawn = Image.open(folder / "map.png")
    drawn.thumbnail((640, 640))
    kept(drawn, "sumac_damaged.map.png")


def gallery_page(folder: Path) -> None:
    """A gallery of ten pictures with gates, four of them decided."""
    pictures = folder / "spring"
    pictures.mkdir()
    for name, picture in photographs().items():
        picture.save(pictures / f"{name}.png")
        for damage, damaged in DAMAGES.items():
            damaged(picture).save(pictures / f"{name}_{damage}.png")
    run(
        "assess",
        "spring/",
        "--pipeline",
        "letters",
        "--at-least",
        "Fair",
        "--out",
        "spring.jsonl",
        "--gallery",
        "spring.html",
        cwd=folder,
    )
    with browser_page() as watched:
        watched.page.goto((folder / "spring.html").as_uri())
        watched.page.locator(".card").first.focus()
        for key in "rruk":
            watched.page.keyboard.press(key)
        screen(watched.page, "gallery_1280_light.webp")


def gate_page(folder: Path) -> None:
    """The page of a gate: twelve crops, of which the new version's are blocky or the same."""
    for version in ("old", "new"):
        (folder / version).mkdir()
    for name, picture in photographs().items():
        for number in range(6):
            left, top = 128 * (number % 3), 256 * (number // 3)
            crop = picture.crop((left, top, left + 256, top + 256))
            crop.save(folder / "old" / f"{name}_{number}.png")
            changed = blocky(crop, 8 + 3 * number) if number else crop
            changed.save(folder / "new" / f"{name}_{number}.png")
    run("gate", "old", "new", "--page", "gate.html", cwd=folder)
    with browser_page() as watched:
        watched.page.goto((folder / "gate.html").as_uri())
        shown = f"document.body.innerHTML.replaceAll({str(folder)!r}, '/pictures')"
        watched.page.evaluate(f"document.body.innerHTML = {shown}")  # a path that means something
        screen(watched.page, "gate_1280_light.webp")


def report_page(folder: Path) -> None:
    """A study's report, of made-up rows."""
    study = analysed(make_rows(), make_run("koniq10k"), draws=200, name="made-up rows")
    file = folder / "report.html"
    write_page([(study, figures(study.run, study.tables))], file, pd.DataFrame())
    with browser_page() as watched:
        watched.page.goto(file.as_uri())
        screen(watched.page, "report_1280_light.png")


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """The address of a service."""
    line = [sys.executable, "-m", "agentic_iqa_local", "serve", "--cpu", "--port", "0"]
    process = subprocess.Popen(
        [*line, "--batches", str(folder / "batches")],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stderr is not None
        said = (re.search(r"http://\S+:\d+(?=:)", text) for text in process.stderr)
        yield next(found[0] for found in said if found)
    finally:
        process.terminate()
        process.communicate()


def service_pages(folder: Path) -> None:
    """An answer with a map beside the reference, and three pictures compared."""
    damaged, whole = str(IMAGES / "sumac_damaged.webp"), str(DATA / "sumac.png")
    with service(folder) as address:
        with browser_page() as watched:
            page = watched.page
            page.goto(address)
            page.wait_for_selector("#presets button")
            page.set_input_files("#image", damaged)
            page.set_input_files("#reference", whole)
            page.check("#map")
            page.click("#go")
            page.wait_for_selector("article.answer", timeout=600_000)
            page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
            screen(page, "serve_answer_1280_light.webp")
        with browser_page() as watched:
            page = watched.page
            page.emulate_media(color_scheme="dark")
            page.goto(address)
            page.wait_for_selector("#presets button")
            page.set_input_files("#image", [damaged, whole, str(DATA / "prudential.png")])
            page.click("#go")
            page.wait_for_selector(".order > li", timeout=600_000)
            screen(page, "serve_compare_1280_dark.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "scans"
        folder.mkdir()
        scans(folder)
        draw("batch", "assess", "scans/", cwd=Path(place))
        draw("assess_help", "assess", "--help", cwd=Path(place))
        damaged_with_map(Path(place))
        for make in (gate_page, report_page, gallery_page, service_pages):
            make(Path(place))


if __name__ == "__main__":
    main()
