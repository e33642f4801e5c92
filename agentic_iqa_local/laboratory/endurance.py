"""Long runs against what goes wrong: kills, many images, damaged images, damaged answers, injections. The
tests do the same in short.

    python scripts/endurance.py kill --rows runs/x/rows.jsonl --out benchmarks/studies/kill.json -- \\
        python scripts/study.py run data.csv --out runs/x
    python scripts/endurance.py kill --rows rows.jsonl --out benchmarks/endurance/kill.json -- \\
        python scripts/assess.py --image scans/ --pipeline letters --jobs 4 --out rows.jsonl --resume
    python scripts/endurance.py memory --out benchmarks/endurance/memory.json
    python scripts/endurance.py images --out benchmarks/endurance/images.json
    python scripts/endurance.py outputs --out benchmarks/endurance/outputs.json
    python scripts/endurance.py end-to-end --out benchmarks/endurance/end_to_end.json
    python scripts/endurance.py injections --out benchmarks/endurance/injections.json

kill: kills a run again and again and checks that nothing is lost and nothing doubled; the command after --
must go on where it stopped when it is run again. memory: of a batch of many small images, which must stay
flat. images: damaged files at the loader, each loaded or refused in one sentence. outputs: damaged answers at
the parser, each refused or exactly what it says. end-to-end: both through whole assessments on the embedded
model. injections: how far texts in queries and pictures move the score. Each prints its result as JSON, or
writes it with --out.

Exit status: 0 nothing went wrong, 1 something did (it is in the result), 2 wrong usage. A crash ends the run
with a signal, a hang with the stack after a minute.
"""

import argparse
import faulthandler
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageDraw, ImageFont

from agentic_iqa_local.commands.console import Parser, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.text import one_line

PACKAGES = ("pillow", "numpy", "pydantic", "torch", "transformers", "llguidance", "pyiqa")

PNG = b"\x89PNG\r\n\x1a\n"
Step = tuple[str, float, bytes]  # what to do, where (0 to 1 of the length), with which bytes
STEPS = ("flip", "overwrite", "insert", "delete", "repeat", "flood", "truncate", "header", "checksums")
NUMBERS = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
)
TEXT_STEPS = ("replace", "insert", "delete", "repeat", "cut")
HOSTILE_JSON = (
    "NaN",
    "-Infinity",
    "1e999",
    "-0",
    "1.0",
    "9" * 5000,
    "true",
    "null",
    '""',
    '"A"',
    '"E"',
    "[]",
    "{}",
    '"none"',
    '" "',
    "[" * 10_000,
    '{"final_answer": ' * 10_000,
    "[" * 150 + "]" * 150,
    '"\\ud800"',
    '"\ud800"',
    '"\\u0000\\u001b[2J"',
    '"\x1b[2J"',
    '"' + "x" * 100_000 + '"',
    "'A'",
    "```json",
    "// A",
    ",",
    ":",
    "}",
    '"final_answer": "A"',
    "\ufeff",
    "\0",
    "Global",
    '"Global"',
)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|\s+|.', re.DOTALL)
STUCK = 60  # seconds after which one step counts as a hang
# seconds for one damaged file, and for an assessment beyond a normal one, or three where answers are damaged
ALLOWED = 5.0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("kill", help="kill -9 at random moments, then let it end")
    command.add_argument(
        "--rows", type=Path, required=True, metavar="FILE", help="JSON lines that the command writes"
    )
    command.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    command.add_argument(
        "--within",
        type=float,
        default=5.0,
        metavar="S",
        help="kill at most S seconds after a first new row, every fourth time after the start",
    )
    command.add_argument("run", nargs="+", help="the command, after --")
    for name, count, what in (
        ("memory", 2_000, "memory of a batch of small images"),
        ("images", 10_000, "damaged images at the loader"),
        ("outputs", 10_000, "damaged model output at the parser"),
        ("end-to-end", 200, "damaged images, then damaged model output, through whole assessments"),
    ):
        commands.add_parser(name, help=what).add_argument(
            "--count", type=int, default=count, help="default: %(default)s"
        )
    command = commands.add_parser(
        "injections", help="texts in queries and pictures that try to move the score"
    )
    command.add_argument(
        "--images",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="default: tests/data and a portrait of matplotlib's",
    )
    command.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    command.add_argument("--gpu", metavar="N", help="GPU by index, UUID or MIG name (default: the CPU)")
    for name, command in commands.choices.items():
        if name != "injections":
            command.add_argument(
                "--seed", type=int, default=0, help="of what is random (default: %(default)s)"
            )
        command.add_argument("--out", type=Path, metavar="FILE", help="result (JSON; default: printed)")
    return parser.parse_args(argv)


# kills


def whole_lines(file: Path) -> bytes:
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def kill(args: argparse.Namespace) -> dict:
    """Raises SystemExit with the first row that was lost, changed or doubled."""
    rng, kept, torn, kills = np.random.default_rng(args.seed), b"", 0, 0
    while kills < args.kills:
        process = subprocess.Popen(
            args.run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        loading = kills % 4 == 3
        while not loading and process.poll() is None and len(whole_lines(args.rows)) <= len(kept):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, args.within))
        if process.poll() is not None:
            raise SystemExit(
                f"the command ended with {process.returncode} after {kills} kills; give it more to do"
            )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        torn += len(args.rows.read_bytes()) > len(whole_lines(args.rows))
        kept = _same_beginning(args.rows, kept, kills)
        print(f"{kills} kills, {len(kept.splitlines())} rows", file=sys.stderr, flush=True)
    done = subprocess.run(args.run, check=False, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"the last, whole run ended with {done.returncode}")
    rows = [json.loads(line) for line in _same_beginning(args.rows, kept, kills).splitlines()]
    keys = [row.get("key") or row["image"] for row in rows]
    if doubled := {key for key in keys if keys.count(key) > 1}:
        raise SystemExit(f"doubled: {sorted(doubled)}")
    return {
        "kills": kills,
        "torn_lines": torn,
        "rows": len(rows),
        "failed_rows": sum(row.get("error") is not None for row in rows),
        "command": [Path(part).name if Path(part).is_absolute() else part for part in args.run],
    }


def _same_beginning(file: Path, kept: bytes, kills: int) -> bytes:
    now = whole_lines(file)
    if not now.startswith(kept):
        raise SystemExit(f"after {kills} kills a finished row is lost or changed")
    return now


# many images


def memory(args: argparse.Namespace) -> dict:
    """Resident memory of `assess.py --pipeline letters` over many pictures of 224×224, by how many have their
    rows."""
    import psutil

    photo = Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB")
    rng, samples = np.random.default_rng(args.seed), []
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name) / "pictures", Path(name) / "rows.jsonl"
        folder.mkdir()
        for number in range(args.count):
            left, top = rng.integers(0, (photo.width - 224, photo.height - 224), endpoint=True).tolist()
            photo.crop((left, top, left + 224, top + 224)).save(
                folder / f"{number:05}.jpg", quality=int(rng.integers(5, 95))
            )
        command = [
            sys.executable,
            ROOT / "scripts" / "assess.py",
            "--cpu",
            "--image",
            folder,
            "--pipeline",
            "letters",
            "--out",
            rows,
        ]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as process:
            watched, done = psutil.Process(process.pid), 0
            while process.poll() is None:
                done = whole_lines(rows).count(b"\n")
                with suppress(psutil.NoSuchProcess):
                    samples.append((done, watched.memory_info().rss / 2**20))
                time.sleep(0.5)
        written = whole_lines(rows).splitlines()
    tenths = [
        [rss for done, rss in samples if tenth <= 10 * done / args.count < tenth + 1 and done]
        for tenth in range(10)
    ]
    medians = [round(statistics.median(tenth)) if tenth else None for tenth in tenths]
    wrong = [f"assess.py ended with {process.returncode}"] if process.returncode else []
    if len(written) != args.count:
        wrong.append(f"{len(written)} rows of {args.count} images")
    if None not in medians and medians[-1] > 1.05 * medians[1]:
        wrong.append(f"{medians[-1]} MiB at the end, {medians[1]} MiB at the beginning")
    return {"count": args.count, "resident_mib_by_tenth": medians, "wrong": wrong}


class Wrong(Exception):
    """The product did what it promises not to do."""


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


# damaged images


def encoded(image: Image.Image, kind: str, *, more: bool = False, **options: Any) -> bytes:
    """The bytes of a file; with `more`, of one with a second frame or page."""
    # copies, for saving leaves settings of the format in them
    file, frames = (
        BytesIO(),
        [
            image.copy(),
            image.rotate(180),
        ],
    )
    frames[0].save(file, kind, **options, **({"save_all": True, "append_images": frames[1:]} if more else {}))
    return file.getvalue()


def valid_pictures(photo: Image.Image) -> dict[str, bytes]:
    """`photo` (RGB) in every format that is read, and in the modes and with the features that readers treat
    apart."""
    grey, palette = photo.convert("L"), photo.quantize(16)
    samples = np.asarray(grey).astype(np.uint16) * 257
    opaque = photo.copy()
    opaque.putalpha(255)
    turned = Image.Exif()
    turned[274] = 6
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return {
        "rgb.png": encoded(photo, "PNG"),
        "exif.png": encoded(photo, "PNG", exif=turned, icc_profile=srgb),
        "rgba.png": encoded(opaque, "PNG"),
        "grey.png": encoded(grey, "PNG"),
        "16_bits.png": encoded(Image.fromarray(samples), "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=255),
        "1_bit.png": encoded(photo.convert("1"), "PNG"),
        "animated.png": encoded(photo, "PNG", more=True),
        "rgb.jpg": encoded(photo, "JPEG", exif=turned, icc_profile=srgb),
        "progressive.jpg": encoded(photo, "JPEG", progressive=True),
        "grey.jpg": encoded(grey, "JPEG"),
        "cmyk.jpg": encoded(photo.convert("CMYK"), "JPEG"),
        "two.jpg": encoded(photo, "MPO", more=True),
        "lossy.webp": encoded(photo, "WEBP", exif=turned),
        "lossless.webp": encoded(opaque, "WEBP", lossless=True),
        "animated.webp": encoded(photo, "WEBP", more=True),
        "raw.tif": encoded(photo, "TIFF", exif=turned),
        "cmyk.tif": encoded(photo.convert("CMYK"), "TIFF", compression="tiff_lzw"),
        "deflate.tif": encoded(palette, "TIFF", compression="tiff_deflate"),
        "jpeg.tif": encoded(photo, "TIFF", compression="jpeg"),
        "16_bits.tif": encoded(Image.fromarray(samples), "TIFF"),
        "pages.tif": encoded(photo, "TIFF", more=True),
        "palette.gif": encoded(palette, "GIF"),
        "animated.gif": encoded(photo, "GIF", more=True),
        "rgb.bmp": encoded(photo, "BMP"),
        "palette.bmp": encoded(palette, "BMP"),
        "rgb.jp2": encoded(photo, "JPEG2000"),
        "rgb.ppm": encoded(photo, "PPM"),
        "16_bits.pgm": b"P5 %d %d 65535\n" % photo.size + samples.astype(">u2").tobytes(),
        "text.ppm": (
            b"P3 %d %d 255\n" % photo.size + b" ".join(b"%d" % value for value in np.asarray(photo).ravel())
        ),
        "rgb.avif": encoded(photo, "AVIF"),
    }


def damaged(content: bytes, steps: Iterable[Step]) -> bytes:
    """`content` after `steps`; "header" overwrites within the first 64 bytes, "flood" inserts 100 kB of one
    byte (what reads those with a search that backtracks takes minutes), "checksums" makes those of a PNG
    right again."""
    data = bytearray(content)
    for kind, place, extra in steps:
        at = int(place * (min(len(data), 64) if kind == "header" else len(data)))
        if kind == "flip" and at < len(data):
            data[at] ^= extra[0] if extra else 1
        elif kind in ("overwrite", "header"):
            data[at : at + len(extra)] = extra
        elif kind == "insert":
            data[at:at] = extra
        elif kind == "delete":
            del data[at : at + 1 + len(extra)]
        elif kind == "repeat":
            data[at:at] = data[at : at + 64 * len(extra)]
        elif kind == "flood":
            data[at:at] = extra[:1] * 100_000
        elif kind == "truncate":
            del data[at:]
        elif kind == "checksums" and data.startswith(PNG):
            _right_checksums(data)
    return bytes(data)


def _right_checksums(data: bytearray) -> None:
    at = len(PNG)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4])
        if end + 4 > len(data):
            return
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : end]))
        at = end + 4


def random_steps(rng: np.random.Generator) -> list[Step]:
    def extra() -> bytes:
        return (
            NUMBERS[rng.integers(len(NUMBERS))] if rng.random() < 0.5 else rng.bytes(int(rng.integers(1, 9)))
        )

    steps = [(str(rng.choice(STEPS)), float(rng.random()), extra()) for _ in range(rng.integers(1, 5))]
    return [*steps, ("checksums", 0.0, b"")] if rng.random() < 0.7 else steps


def random_pictures(pictures: dict[str, bytes], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` times a name and content: a damaged picture, or, one in twenty, random bytes behind a picture's
    beginning."""
    names = list(pictures)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        name = names[rng.integers(len(names))]
        if rng.random() < 0.05:
            yield name, pictures[name][: int(rng.integers(2, 40))] + rng.bytes(int(rng.integers(0, 2000)))
        else:
            yield name, damaged(pictures[name], random_steps(rng))


def examine_picture(path: Path, **limits: int) -> str:
    """Whether `load_image` loaded or refused it. Raises Wrong when it did not as it promises, and whatever
    else it raises."""
    from agentic_iqa_local.images import ImageError, load_image

    try:
        loaded = load_image(path, **limits)
    except ImageError as error:
        said = str(error)
        require(said.startswith(f"{path}: expected ") and said.endswith("."), f"no sentence: {said}")
        require(_is_one_line(said), f"more than a line: {said!r}")
        return "refused"
    width, height = loaded.pixels.size
    require(
        (loaded.width, loaded.height, loaded.pixels.mode) == (width, height, "RGB"),
        f"not as described: {loaded}",
    )
    require(limits.get("min_side", 32) <= min(width, height), f"too small: {loaded}")
    require(width * height <= limits.get("max_pixels", 100_000_000), f"too large: {loaded}")
    require(all(map(_is_one_line, loaded.warnings)), f"more than a line: {loaded.warnings}")
    return "loaded"


def _is_one_line(text: str) -> bool:
    return one_line(text) == text


def small_photo() -> Image.Image:
    return Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB").crop((200, 200, 296, 264))


def images(args: argparse.Namespace) -> dict:
    seconds, outcomes, wrong = [0.0], Counter(), []
    pictures = valid_pictures(small_photo())
    with tempfile.TemporaryDirectory() as folder:
        for name, content in pictures.items():
            (Path(folder) / name).write_bytes(content)
            examine_picture(Path(folder) / name)
        before = _peak_memory()
        for number, (name, content) in enumerate(random_pictures(pictures, args.count, args.seed)):
            path = Path(folder) / name
            path.write_bytes(content)
            began = time.perf_counter()
            outcome = _guarded(lambda path=path: examine_picture(path), f"picture {number}, {name}", wrong)
            seconds.append(time.perf_counter() - began)
            outcomes[f"{path.suffix[1:]} {outcome}"] += 1
            if seconds[-1] > ALLOWED:
                wrong.append(f"picture {number}, {name}: took {seconds[-1]:.1f} s")
    return {
        "count": args.count,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_seconds": round(max(seconds), 3),
        "peak_memory_grew_by_mib": round((_peak_memory() - before) / 2**20),
        "wrong": wrong,
    }


def _peak_memory() -> int:
    """Bytes (Linux)."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def _guarded(check: Callable[[], str], what: str, wrong: list[str]) -> str:
    """What `check` gives, or "wrong" and a line about the error. A hang ends the process with its stack."""
    faulthandler.dump_traceback_later(STUCK, exit=True)
    try:
        return check()
    except Exception as error:  # a crash is what these runs look for
        wrong.append(f"{what}: {error!r}"[:500])
        return "wrong"
    finally:
        faulthandler.cancel_dump_traceback_later()


# damaged answers


def valid_answers() -> list[tuple[type, str, str]]:
    """(schema, answer prefix, a valid answer) for every role."""
    from agentic_iqa_local.levels import LETTERS
    from agentic_iqa_local.nodes import replies
    from agentic_iqa_local.prompts import ANSWER_PREFIX

    flags = {
        "distortion_detection": True,
        "distortion_analysis": True,
        "tool_selection": False,
        "tool_execution": False,
    }
    plan = {
        "query_type": "IQA",
        "query_scope": ["car", "sky"],
        "distortion_source": "Explicit",
        "distortions": {"car": ["Blurs"], "sky": ["Noise", "Compression"]},
        "reference_mode": "No-Reference",
        "required_tool": "NIQE",
        "plan": flags,
    }
    found = {"car": ["Blurs"], "sky": ["Noise"]}
    analysis = {
        name: [{"type": kind, "severity": "severe", "explanation": "Edges are soft."} for kind in kinds]
        for name, kinds in found.items()
    }
    summary = {"final_answer": "C", "quality_reasoning": "Fine grain covers the sky."}
    answers = (
        (replies.PlannerReply, "", plan),
        (replies.detection_reply(list(found)), "", found),
        (replies.analysis_reply(found), "", analysis),
        (
            replies.selection_reply(found, ["NIQE", "PIQE"]),
            "",
            {"car": {"Blurs": "NIQE"}, "sky": {"Noise": "PIQE"}},
        ),
        (replies.location_reply(list(found)), "", {"car": [10, 20, 300, 400], "sky": None}),
        (replies.summary_reply(LETTERS), ANSWER_PREFIX + "C", summary),
        (
            replies.summary_reply(None),
            "",
            {"final_answer": "The sky is noisy.", "quality_reasoning": "Fine grain."},
        ),
        (replies.letter_reply(LETTERS), "", {"final_answer": "B"}),
    )
    return [(schema, prefix, json.dumps(answer)) for schema, prefix, answer in answers]


def rewritten(text: str, steps: Iterable[tuple[str, float, str]]) -> str:
    """`text` after `steps` on its JSON tokens: what to do, where (0 to 1 of their number), with which
    text."""
    tokens = TOKEN.findall(text)
    for kind, place, other in steps:
        at = int(place * len(tokens))
        if kind == "cut":
            del tokens[at:]
        elif kind == "delete":
            del tokens[at : at + 1]
        else:
            tokens[at : at + (kind == "replace")] = tokens[at : at + 8] if kind == "repeat" else [other]
    return "".join(tokens)


def random_answer(rng: np.random.Generator, text: str) -> str:
    """`text` damaged as JSON or as bytes; what is not UTF-8 becomes lone surrogates."""
    if rng.random() < 0.3:
        return damaged(text.encode(), random_steps(rng)).decode(errors="surrogateescape")
    others = [*HOSTILE_JSON, *TOKEN.findall(text)]
    steps = [
        (str(rng.choice(TEXT_STEPS)), float(rng.random()), others[rng.integers(len(others))])
        for _ in range(rng.integers(4))
    ]
    return rewritten(text, steps)


class OneAnswer:
    """A session that always answers `text`, held to the schema as a server claims to be."""

    constrained = True

    def __init__(self, text: str):
        self.text, self.calls = text, 0

    def generate(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        return self.text


def examine_answer(schema: type, prefix: str, text: str) -> str:
    """Whether `ask` took it as valid or refused it. Raises Wrong for a reply that does not say `text`, and
    what `ask` raises."""
    from agentic_iqa_local.config import RoleSettings
    from agentic_iqa_local.nodes.ask import TRIES, InvalidAnswer, ask
    from agentic_iqa_local.prompts import Prompt

    session = OneAnswer(text)
    try:
        reply = ask(session, Prompt("", ""), schema, RoleSettings(), answer_prefix=prefix)
        if hasattr(reply, "to_plan"):
            reply.to_plan()
    except InvalidAnswer as error:
        require(session.calls == len(error.attempts) == TRIES, f"{session.calls} calls")
        _ = [attempt.model_dump_json() for attempt in error.attempts]
        return "refused"
    require(text.startswith(prefix), f"does not begin with {prefix}: {text[:200]!r}")
    said = json.loads(text, object_pairs_hook=_each_key_once)  # another parser than the product's
    require(
        _stripped(said) == _stripped(reply.model_dump(mode="json", by_alias=True)),
        f"{text[:200]!r} became {reply!r}",
    )
    return "valid"


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), f"a key twice: {[key for key, _ in pairs]}")
    return dict(pairs)


def _stripped(value: Any) -> Any:
    """Without blanks around strings, which the schemas strip, and with numbers and truth values kept
    apart."""
    if isinstance(value, dict):
        return {key: _stripped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else (type(value), value)


def outputs(args: argparse.Namespace) -> dict:
    outcomes, wrong, slowest = Counter(), [], 0.0
    answers = valid_answers()
    for number in range(args.count):
        rng = np.random.default_rng([args.seed, number])
        schema, prefix, text = answers[rng.integers(len(answers))]
        hostile = random_answer(rng, text)
        began = time.perf_counter()
        what = f"answer {number}, {schema.__name__}"
        outcome = _guarded(lambda case=(schema, prefix, hostile): examine_answer(*case), what, wrong)
        slowest = max(slowest, time.perf_counter() - began)
        outcomes[f"{schema.__name__} {outcome}"] += 1
    return {
        "count": args.count,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_seconds": round(slowest, 3),
        "wrong": wrong,
    }


# both through whole assessments


class DamagingClient:
    """A client whose generated answers are damaged, half of them; the letters are read as they are."""

    def __init__(self, client: Any, rng: np.random.Generator):
        self._client, self._rng = client, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def open(self, pictures: Any) -> "DamagingSession":
        return DamagingSession(self._client.open(pictures), self._rng)


class DamagingSession:
    def __init__(self, session: Any, rng: np.random.Generator):
        self._session, self._rng = session, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def generate(self, *args: Any, **options: Any) -> str:
        text = self._session.generate(*args, **options)
        return random_answer(self._rng, text) if self._rng.random() < 0.5 else text


def examine_row(row: Any) -> str:
    """What became of an assessment. Raises Wrong for a score that its own numbers do not give."""
    from agentic_iqa_local.score_fusion import ScoreFusion

    require(type(row).model_validate_json(row.model_dump_json()).q == row.q, "the row does not survive JSON")
    if row.error:
        require(
            (row.q, row.q_bar, row.p_c, row.vlm_letter) == (None,) * 4, f"a failed row with a score: {row}"
        )
        return "failed"
    if row.plan and row.plan.query_type == "Other":
        require((row.q, row.p_c) == (None, None), f"a score for a question that asks for none: {row}")
        return "no score asked"
    require(abs(sum(row.p_c.values()) - 1) < 1e-6, f"probabilities that sum to {sum(row.p_c.values())}")
    weights = {c: row.alpha[c] * row.p_c["EDCBA"[c - 1]] for c in range(1, 6)}
    expected = sum(c * w for c, w in weights.items()) / sum(weights.values())
    require(abs(row.q - expected) < 1e-6, f"q {row.q}, but its parts give {expected}")
    scores = [run.normalized_score for run in row.tools if run.normalized_score is not None]
    require((row.q_bar is None) == (not scores), f"tools' mean {row.q_bar} of {scores}")
    require(row.final_answer == ScoreFusion().map_to_level(row.q), f"{row.final_answer} for {row.q}")
    return "scored"


def end_to_end(args: argparse.Namespace) -> dict:
    from agentic_iqa_local import assess
    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.nodes.ask import TRIES
    from agentic_iqa_local.services import Services

    services = Services(load_settings(), "cpu")
    client = services.client("summarizer")
    photo = Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB").crop((128, 128, 384, 384))
    found: dict[str, Any] = {"count": args.count, "wrong": []}
    with tempfile.TemporaryDirectory() as name:
        folder, pictures = Path(name), valid_pictures(photo)
        (folder / "whole.png").write_bytes(pictures["rgb.png"])

        def normal() -> str:
            return examine_row(assess(folder / "whole.png", services=services))

        def with_damaged_image(picture: tuple[str, bytes]) -> str:
            (folder / picture[0]).write_bytes(picture[1])
            return examine_row(assess(folder / picture[0], services=services))

        def with_damaged_output(number: int) -> str:
            hostile = DamagingClient(client, np.random.default_rng([args.seed, number]))
            backend = services.section("summarizer").backend
            own = Services(services.settings, "cpu", {backend: hostile}, services.tools)
            return examine_row(assess(folder / "whole.png", services=own))

        normal()
        usual = _timed("normal", [normal] * 3, found)
        runs = {
            "images": [
                lambda p=p: with_damaged_image(p) for p in random_pictures(pictures, args.count, args.seed)
            ],
            "outputs": [lambda n=n: with_damaged_output(n) for n in range(args.count)],
        }
        longest = {"images": usual + ALLOWED, "outputs": TRIES * usual + ALLOWED}
        for kind, checks in runs.items():
            if (slowest := _timed(kind, checks, found)) > longest[kind]:
                found["wrong"].append(f"{kind}: {slowest:.1f} s, expected at most {longest[kind]:.1f} s")
    return found


def _timed(kind: str, checks: list[Callable[[], str]], found: dict[str, Any]) -> float:
    """Runs all, notes outcomes and seconds in `found`, and gives the slowest."""
    outcomes, seconds = Counter(), []
    for number, check in enumerate(checks):
        began = time.perf_counter()
        outcomes[_guarded(check, f"{kind} {number}", found["wrong"])] += 1
        seconds.append(time.perf_counter() - began)
    found[kind] = {
        "outcomes": dict(outcomes),
        "median_seconds": round(statistics.median(seconds), 2),
        "slowest_seconds": round(max(seconds), 2),
    }
    return max(seconds)


# injections

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


def injections(args: argparse.Namespace) -> dict:
    import matplotlib

    from agentic_iqa_local import assess
    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.levels import LETTER_TO_LEVEL
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
            _guarded(lambda: examine_row(row), f"{query!r}", wrong)
            if row.q is None:
                return {"q": None, "letters": None, "letter": None, "error": row.error}
            letters = sum(p * LETTER_TO_LEVEL[letter] for letter, p in row.p_c.items())
            return {
                "q": round(row.q, 4),
                "letters": round(letters, 4),
                "letter": row.final_answer,
                "error": None,
            }

        for (name, picture), pipeline in (
            (p, k) for p in _test_pictures(files) for k in ("agent", "letters")
        ):
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
    groups: dict[str, list[dict]] = {}
    for case in cases:
        attempt = attempts()[case["line"] - 1]
        place = "query" if attempt["where"] == "query" else "picture"
        whole = f"text in the {place}" if case["goal"] else "harmless rephrasings"
        for group in (whole, f"{place}: {attempt['kind']}") if case["goal"] else (whole,):
            groups.setdefault(f"{case['pipeline']}, {group}", []).append(case)
    pictures = list(dict.fromkeys(case["picture"] for case in cases))
    return {
        "model": services.client("summarizer").describe(),
        "pictures": pictures,
        "effect": {name: effect(groups[name]) for name in sorted(groups)},
        "wrong": wrong,
        "cases": cases,
    }


def _test_pictures(files: list[Path]) -> Iterator[tuple[str, Image.Image]]:
    """Each photograph as it is and under white noise (standard deviation 45 of 255)."""
    from agentic_iqa_local.images import load_image

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


def environment() -> dict[str, str]:
    from agentic_iqa_local.provenance import machine

    return {"date": time.strftime("%Y-%m-%d")} | machine(PACKAGES)


def as_json(found: dict[str, Any]) -> str:
    """Indented, each of the `cases` on a line."""
    text = json.dumps(
        {name: value for name, value in found.items() if name != "cases"}, indent=1, ensure_ascii=False
    )
    if "cases" in found:
        lines = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in found["cases"])
        text = f'{text[:-2]},\n "cases": [\n  {lines}\n ]\n}}'
    return text + "\n"


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    runs = {
        "kill": kill,
        "memory": memory,
        "images": images,
        "outputs": outputs,
        "end-to-end": end_to_end,
        "injections": injections,
    }
    began = time.perf_counter()
    try:
        found = runs[args.command](args) | {"seconds": round(time.perf_counter() - began)} | environment()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if "seed" in args:
        found["seed"] = args.seed
    if args.out:
        args.out.write_text(as_json(found), encoding="utf-8")
    else:
        print(as_json(found), end="")
    return 1 if found.get("wrong") else 0
