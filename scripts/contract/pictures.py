"""The pictures and files that the contract's calls are about, made anew from the sample photographs and a seed."""

import csv
import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = ROOT / "tests" / "data"


def make(folder: Path) -> None:
    """Everything that the calls read, below `folder`."""
    pictures = folder / "pictures"
    pictures.mkdir()
    leaf = cut("sumac", 64, 96, 320, 288)
    leaf.save(pictures / "leaf.png")
    leaf.save(pictures / "leaf_q8.jpg", quality=8)
    leaf.filter(ImageFilter.GaussianBlur(3)).save(pictures / "leaf_blur.png")
    noisy(leaf, 35, 0).save(pictures / "leaf_noise.png")
    Image.fromarray(np.roll(np.asarray(leaf), 4, 1)).save(pictures / "leaf_shifted.png")  # is planned again
    leaf.point(lambda value: int(value * 0.45)).save(pictures / "leaf_dark.png")
    cut("prudential", 0, 0, 256, 320).save(pictures / "tower.png")
    scene().save(pictures / "scene.png")
    drawing().save(pictures / "drawing.png")
    framed = Image.new("RGB", (400, 384))
    framed.paste(leaf, (40, 48))
    framed.save(pictures / "framed.png")
    see_through = leaf.convert("RGBA")
    see_through.putalpha(Image.linear_gradient("L").resize(leaf.size))
    see_through.save(pictures / "see_through.png")
    leaf.convert("L").save(pictures / "grey.png")
    Image.open(ROOT / "docs" / "images" / "sumac_damaged.webp").convert("RGB").save(pictures / "damaged.png")

    broken = folder / "broken"
    broken.mkdir()
    (broken / "words.png").write_text("no picture")
    (broken / "cut.jpg").write_bytes((pictures / "leaf_q8.jpg").read_bytes()[:2000])
    (broken / "huge.png").write_bytes(png_header(60000, 60000))
    (broken / "crushed.png").write_bytes(flipped((pictures / "leaf.png").read_bytes()))
    os.mkfifo(broken / "pipe.png")
    (broken / "nowhere.png").symlink_to("gone.png")
    (folder / "empty").mkdir()
    shutil.copy(PHOTOS / "sumac.png", folder / "sample.png")
    (folder / "photos").mkdir()
    shutil.copy(PHOTOS / "prudential.png", folder / "photos")

    for name, members in {
        "mixed": ("leaf.png", "leaf_q8.jpg", "tower.png"),
        "burst": ("leaf.png", "leaf_blur.png", "leaf_noise.png", "tower.png", "scene.png"),
        "growing": ("leaf.png", "tower.png"),
        "killed": ("leaf.png", "leaf_q8.jpg", "leaf_blur.png", "tower.png", "scene.png", "grey.png"),
        "ray": ("leaf.png", "tower.png"),
    }.items():
        (folder / name).mkdir()
        for member in members:
            shutil.copy(pictures / member, folder / name)
    for name in ("words.png", "cut.jpg", "huge.png", "crushed.png", "nowhere.png"):
        shutil.copy(broken / name, folder / "mixed", follow_symlinks=False)
    shutil.copy(broken / "words.png", folder / "growing")
    (folder / "originals").mkdir()
    for name in ("leaf_q8.png", "leaf_blur.png", "leaf_noise.png"):
        leaf.save(folder / "originals" / name)
    lists(folder)
    data_sets(folder)


def lists(folder: Path) -> None:
    rows = [
        ("pictures/leaf_q8.jpg", "pictures/leaf.png", "", ""),
        ("pictures/leaf_blur.png", "", "Which distortion dominates?", "Blur|Noise|Compression|None"),
        ("pictures/tower.png", "", "Use NIQE to score this picture.", ""),
    ]
    table(folder / "list.csv", ("image", "reference", "query", "choices"), rows)
    table(folder / "no_image_column.csv", ("file", "reference"), [("pictures/leaf.png", "")])
    lines = [
        {"image": "pictures/leaf_noise.png"},
        {"image": "pictures/leaf_blur.png", "reference": "pictures/leaf.png"},
        {"image": "pictures/scene.png", "query": "Is it sharp?", "choices": ["Yes", "No"]},
    ]
    (folder / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "notes.csv").write_text("my own notes, no table of this program\n")
    (folder / "notes.html").write_text("<p>my own page</p>\n")
    (folder / "not_rows.jsonl").write_text("no rows\n")
    (folder / "mine.yaml").write_text(
        (ROOT / "configs" / "model_backends.yaml").read_text()
        + "fusion: {eta: 2.0, temperature: 1.5}\ntools: {no_reference: [NIQE, PIQE], full_reference: [GMSD]}\n"
    )
    (folder / "misspelt.yaml").write_text("fusoin: {eta: 2.0}\n")


def data_sets(folder: Path) -> None:
    """A data set as KADID-10k's authors lay theirs out, and questions with answers."""
    images = folder / "kadid" / "images"
    images.mkdir(parents=True)
    places = [
        ("sumac", 0, 0),
        ("sumac", 256, 256),
        ("prudential", 0, 0),
        ("prudential", 256, 200),
        ("sumac", 256, 0),
    ]
    rows = []
    for number, (photo, left, top) in enumerate(places, 1):
        original = cut(photo, left, top, 224, 192)
        original.save(images / f"I{number:02}.png")
        blurred, grainy = (
            original.filter(ImageFilter.GaussianBlur(number * 0.7)),
            noisy(original, 6 * number, number),
        )
        for kind, picture, score in (("01", blurred, 4.6 - 0.6 * number), ("11", grainy, 4.3 - 0.5 * number)):
            name = f"I{number:02}_{kind}_{number:02}.png"
            picture.save(images / name)
            rows.append((name, f"I{number:02}.png", f"{score:.2f}", "0.4"))
    table(folder / "kadid" / "dmos.csv", ("dist_img", "ref_img", "dmos", "var"), rows)
    questions = [
        ("pictures/leaf_blur.png", "Is it sharp?", "Yes|No", "No"),
        ("pictures/leaf_noise.png", "Which distortion dominates?", "Blur|Noise|None", "B"),
        ("pictures/leaf.png", "Is it sharp?", "Yes|No", "Yes"),
    ]
    table(folder / "questions.csv", ("image", "question", "choices", "answer"), questions)
    table(folder / "no_scores.csv", ("image", "beauty"), [("pictures/leaf.png", "5")])


def table(file: Path, header: tuple[str, ...], rows: list) -> None:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])


def cut(photo: str, left: int, top: int, width: int, height: int) -> Image.Image:
    with Image.open(PHOTOS / f"{photo}.png") as whole:
        return whole.convert("RGB").crop((left, top, left + width, top + height))


def noisy(picture: Image.Image, deviation: float, seed: int) -> Image.Image:
    pixels = np.asarray(picture, float)
    pixels = pixels + np.random.default_rng(seed).normal(0, deviation, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def scene() -> Image.Image:
    """A landscape of noise whose amplitude falls with frequency, as that of photographs does."""
    height, width = 256, 288
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)) + 0.01
    rng = np.random.default_rng(7)
    planes = [np.fft.ifft2(np.fft.fft2(rng.normal(size=(height, width))) / frequency).real for _ in range(3)]
    planes = [128 + 45 * (0.7 * planes[0] + 0.3 * plane) / np.std(planes[0]) for plane in planes]
    return Image.fromarray(np.stack(planes, -1).clip(0, 255).astype(np.uint8))


def drawing() -> Image.Image:
    """A chart, which is unlike a photograph."""
    chart = Image.new("RGB", (480, 400), "white")
    pen = ImageDraw.Draw(chart)
    for column, height in enumerate((100, 250, 160, 310, 70)):
        pen.rectangle((50 + 80 * column, 360 - height, 110 + 80 * column, 360), "steelblue", "black")
    pen.line((20, 20, 20, 360, 460, 360), "black", 3)
    return chart


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds a line of it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def flipped(data: bytes) -> bytes:
    """The file with damage in the middle of its pixels."""
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 255 for byte in data[middle : middle + 64]) + data[middle + 64 :]
