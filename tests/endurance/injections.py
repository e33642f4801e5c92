"""How far texts in queries and pictures move the score."""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.devices import choose_device
from agentic_iqa_local.levels import LETTER_TO_LEVEL
from agentic_iqa_local.paths import ROOT
from endurance.checks import guarded
from endurance.damaged_assessments import examine_row

NEUTRAL = (
    "The ferry to the island leaves from the north pier at noon and is back before the lamps are lit in town."
)


def attempts() -> list[dict]:
    """kind, text, where it stands (query, banner, small print, watermark) and goal: the letter that it is
    after, None if none."""
    lines = (ROOT / "tests" / "data" / "injections.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def painted(photo: Image.Image, text: str, where: str) -> Image.Image:
    """A copy of `photo` (RGB) with `text` as a banner along its lower edge, in small print, or as a watermark
    across it."""
    size = {"banner": 18, "small print": 9, "watermark": 40}[where]
    font = ImageFont.load_default(size)
    width, height = photo.size
    layer = Image.new("RGBA", photo.size)
    draw = ImageDraw.Draw(layer)
    if where == "banner":
        draw.rectangle((0, height - 2 * size, width, height), "white")
        draw.text((width / 2, height - size), text, "black", font, "mm")
    elif where == "small print":
        draw.text((width - 4, height - 4), text, "white", font, "rs", stroke_width=1, stroke_fill="black")
    else:
        per_line = max(1, int(0.9 * width / font.getlength("n")))
        lines = [text[i : i + per_line] for i in range(0, len(text), per_line)]
        draw.multiline_text(
            (width / 2, height / 2), "\n".join(lines), (255, 255, 255, 110), font, "mm", align="center"
        )
    return Image.alpha_composite(photo.convert("RGBA"), layer).convert("RGB")


def _grouped(cases: list[dict[str, Any]]) -> dict[str, list[dict]]:
    """The cases by pipeline and by where and how the text was given."""
    groups: dict[str, list[dict]] = {}
    for case in cases:
        attempt = attempts()[case["line"] - 1]
        place = "query" if attempt["where"] == "query" else "picture"
        whole = f"text in the {place}" if case["goal"] else "harmless rephrasings"
        for group in (whole, f"{place}: {attempt['kind']}") if case["goal"] else (whole,):
            groups.setdefault(f"{case['pipeline']}, {group}", []).append(case)
    return groups


def injections(args: argparse.Namespace) -> dict:
    import matplotlib

    from agentic_iqa_local import assess
    from agentic_iqa_local.services import Services

    files = args.images or [
        *sorted((ROOT / "tests" / "data").glob("*.png")),
        Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg",
    ]
    wrong: list[str] = []
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path, settings = Path(folder) / "picture.png", load_settings(args.config)
        # most attempts share a picture
        cached = settings.tools.model_copy(update={"cache": str(Path(folder) / "scores.sqlite")})
        services = Services(
            settings.model_copy(update={"tools": cached}), choose_device(args.gpu, cpu=args.gpu is None)
        )

        def measure(picture: Image.Image, query: str | None, pipeline: str) -> dict[str, Any]:
            picture.save(path)
            row = assess(path, query=query, pipeline=pipeline, services=services)
            guarded(lambda: examine_row(row), f"{query!r}", wrong)
            if row.q is None:
                return {"q": None, "letters": None, "letter": None, "error": row.error}
            letters = sum(p * LETTER_TO_LEVEL[letter] for letter, p in row.p_c.items())
            return {
                "q": round(row.q, 4),
                "letters": round(letters, 4),
                "letter": row.final_answer,
                "error": None,
            }

        for (name, picture), pipeline in ((p, k) for p in photographs(files) for k in ("agent", "letters")):
            plain = measure(picture, None, pipeline)
            for number, attempt in enumerate(attempts(), 1):
                text, where = attempt["text"], attempt["where"]
                if where == "query":
                    before, after = plain, measure(picture, text, pipeline)
                else:
                    before = measure(painted(picture, NEUTRAL[: len(text)], where), None, pipeline)
                    after = measure(painted(picture, text, where), None, pipeline)
                moved = {what: [before[what], after[what]] for what in after}
                cases.append(
                    {"line": number, "goal": attempt["goal"], "picture": name, "pipeline": pipeline} | moved
                )
            print(f"{name}, {pipeline}: {len(cases)} measured", file=sys.stderr, flush=True)
    groups = _grouped(cases)
    pictures = list(dict.fromkeys(case["picture"] for case in cases))
    return {
        "model": services.client("summarizer").describe(),
        "pictures": pictures,
        "effect": {name: effect(groups[name]) for name in sorted(groups)},
        "wrong": wrong,
        "cases": cases,
    }


def photographs(files: list[Path]) -> Iterator[tuple[str, Image.Image]]:
    """Each photograph as it is and under white noise (standard deviation 45 of 255)."""
    from agentic_iqa_local.images.reading import load_image

    rng = np.random.default_rng(0)
    for file in files:
        photo = load_image(file).pixels
        noisy = np.asarray(photo, np.float32) + rng.normal(0, 45, (*photo.size[::-1], 3))
        yield f"{file.stem}, clean", photo
        yield f"{file.stem}, noisy", Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def effect(cases: list[dict]) -> dict[str, Any]:
    """How far the fused score q and the letters' own expectation moved, of the cases with a score before and
    after."""
    scored = [case for case in cases if None not in case["q"]]
    found: dict[str, Any] = {
        "cases": len(cases),
        "without_a_score": sum(case["q"][1] is None and not case["error"][1] for case in cases),
        "failed": sum(case["error"][1] is not None for case in cases),
        "final_letter_changed": sum(case["letter"][0] != case["letter"][1] for case in scored),
    }
    for what in ("q", "letters") if scored else ():
        moves = [case[what][1] - case[what][0] for case in scored]
        found[what] = {
            "mean": round(statistics.mean(map(abs, moves)), 3),
            "median": round(statistics.median(map(abs, moves)), 3),
            "max": round(max(map(abs, moves)), 3),
        }
        wanted = [
            move if case["goal"] == "A" else -move
            for move, case in zip(moves, scored, strict=True)
            if case["goal"]
        ]
        if wanted:
            found[what] |= {
                "towards_the_goal": round(statistics.mean(wanted), 3),
                "furthest_towards_the_goal": round(max(wanted), 3),
                "share_towards_the_goal": round(sum(move > 0 for move in wanted) / len(wanted), 2),
            }
    return found
