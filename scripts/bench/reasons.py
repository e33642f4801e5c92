"""Asks 300 questions about 60 pictures and counts the answers whose parts contradict each other or repeat themselves.

    python scripts/bench/reasons.py --photos PHOTOS MORE --real FOLDER --out answers.jsonl [--lies] [--part 0/4]

The evidence of a row is taken as the truth: each sentence of the reason, the words of severity, the level and the
answer must agree with it. --lies: the model's texts are replaced by ones that contradict, loop, are empty, in another
language or marked up; its letters and plans stay, but for a question about the content, which is always planned as one.
The rules of this check are its own, not those of the program.
"""

import argparse
import io
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from PIL import Image, ImageFilter

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from graphics import KINDS, draw
from local_nr_pool import split

from agentic_iqa_local.api import Conversation
from agentic_iqa_local.config import ImageSettings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.output.report import summary
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services, load_services
from agentic_iqa_local.vlm_client import VLMClient

SMALLEST = ImageSettings().min_side
BLUR_NOISE = ["blur", "noise", "compression", "none"]
EXPOSURE = ["too dark", "too bright", "neither"]
HOW = ["none", "slight", "moderate", "severe", "extreme"]
YES_NO = ["Yes", "No"]
QUESTIONS: list[tuple[str | None, list[str] | None]] = [
    (None, None),
    ("Which distortion is the strongest?", BLUR_NOISE),
    ("Is it blurry?", YES_NO),
    ("Are the leaves blurry?", None),
    ("What is wrong with this picture?", None),
    ("Is there visible compression?", YES_NO),
    ("Is this picture too dark or too bright?", EXPOSURE),
    ("Rate the face", None),
    ("How severe is the noise?", HOW),
    ("Can I print this as a large poster?", None),
    ("Is the picture free of noise?", YES_NO),
    ("Where is the damage?", None),
    ("How good is the quality?", ["excellent", "good", "fair", "poor", "bad"]),
    ("What is in the picture?", None),
    ("Is the sky noisy and is the contrast low?", None),
    ("Why is the quality not better?", None),
    ("Is it sharp?", None),
    ("Rate the colours", None),
    ("What should I fix first?", ["the colours", "the exposure", "the sharpness", "nothing"]),
    ("Describe the distortions", None),
]

ASKED = {  # the family of each question that Yes or No answers
    "Is it blurry?": "Blurs",
    "Is there visible compression?": "Compression",
    "Is the picture free of noise?": "Noise",
}
FAMILIES = {
    "Blurs": r"blur\w*|unsharp|smear\w*|soft",
    "Noise": r"nois\w+|grain\w*|speckl\w*",
    "Compression": r"compression|compressed|jpeg|block\w*|ringing|banding",
    "Color distortions": r"colou?rs?\b|casts?|tints?|saturat\w*",
    "Brightness change": r"underexpos\w+|overexpos\w+|brightness|too dark|too bright|exposure",
    "Contrast": r"contrast",
    "Sharpness": r"over-?sharp\w*|halos?",
}
LEVELS = "excellent|good|fair|poor|bad"
SEVERE = r"\b(slight|moderate|severe|extreme)(?:ly)?\b"
DENIED = re.compile(r"\b(no|not|free of|without|never|cannot be told|not looked for)\b", re.I)
ALL_CLEAN = re.compile(
    r"\bno (visible )?(distortion|damage|defect)s?\b(?! analysis)|is clean", re.I
)
MARKUP = re.compile(r"<(?!Pillow |array )\w+|\*\*|```|\]\(|^#|\x1b|&\w+;", re.M)
FOREIGN = re.compile(
    r"[^\x00-\x7f‘’“”–—…→×²ση]|\b(?:das|der|ist|und|el|la|está|imagen|bild)\b", re.I
)
LOOP = re.compile(r"\b(\w+(?:\W+\w+){0,5})(?:\W+\1\b){2}", re.I)


# Sixty pictures


def pictures(photos: list[Path], real: Path) -> Iterator[tuple[str, Image.Image, Any]]:
    """(kind, picture, reference or None)."""
    rng = np.random.default_rng(54)
    every = split(photos)[1]
    files = [every[i] for i in rng.permutation(len(every))[:20]]
    clear = [Image.open(file).convert("RGB") for file in files]
    for i in range(8):
        yield "clean", clear[i], None
    for i in range(6):
        yield "blur", clear[i].filter(ImageFilter.GaussianBlur((1, 2, 4)[i % 3])), None
        yield "jpeg", _jpeg(clear[i + 3], (5, 12, 30)[i % 3]), None
        yield "noise", _noisy(clear[i + 6], (8, 20, 45)[i % 3], rng), None
    for i in range(3):
        yield "dark", clear[i + 9].point(lambda v: v * 0.3), None
        yield (
            "bright",
            clear[i + 12].point([min(255, round(1.9 * v)) for v in range(256)] * 3),
            None,
        )
        yield "mosaic", _mosaic(clear[i + 15], (4, 8, 16)[i]), None
        yield "two damages", _jpeg(_noisy(clear[i], 25, rng), 10), None
    for kind in list(KINDS)[:6]:
        yield "drawing", Image.fromarray(draw(kind, rng, 320)), None
    for i in range(4):
        yield "reference, clean", clear[i + 4], clear[i + 4]
        yield "reference, jpeg", _jpeg(clear[i + 8], 8), clear[i + 8]
    for size in ((8, 8), (33, 24), (90, 64)):
        yield "tiny", clear[18].resize(size), None
    yield "gradient", Image.linear_gradient("L").convert("RGB"), None
    folder = sorted(itertools.chain(real.glob("*.jpg"), real.glob("*.bmp"), real.glob("*.JPG")))
    for file in folder[:: max(1, len(folder) // 8)][:4]:
        yield "real", Image.open(file).convert("RGB"), None


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def _noisy(image: Image.Image, sigma: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image, float) + rng.normal(0, sigma, (image.height, image.width, 3))
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def _mosaic(image: Image.Image, cell: int) -> Image.Image:
    small = image.resize((image.width // cell, image.height // cell), Image.Resampling.BOX)
    return small.resize(image.size, Image.Resampling.NEAREST)


# A model that lies

LIES = {
    "contradicts": [
        "No visible distortion.",
        "Extreme blur and severe noise cover everything.",
        "The quality is excellent; there is no blur.",
        "The picture is pristine, without compression.",
        "Severe over-sharpening with halos.",
        "It is perfectly sharp and free of noise.",
        "The noise is slight but the compression is extreme.",
    ],
    "loops": [
        "Noise grows with noise noise noise light light light light",
        "the edges are soft the edges are soft the edges are soft",
        "Blur. Blur. Blur. Blur. Blur.",
    ],
    "empty": ["", " ", ".", "-", "…", "N/A", "null"],
    "other language": [
        "图像非常模糊，噪点严重。",
        "Das Bild ist stark verrauscht und unscharf.",
        "La compression est sévère, le contraste est faible.",
        "Изображение чистое.",
    ],
    "markup": [
        "<b>Severe blur</b><script>alert(1)</script>",
        "**Moderate noise** and [link](http://x.y)",
        "# Answer\n```json\n{}\n```",
        "\u001b[31mred\u001b[0m &lt;i&gt;",
    ],
    "half words": ["Nois blurr comp sev", "The pict", "moder noi se bl ur"],
}


class Liar:
    """A client whose written texts are lies; the rest is the real one's."""

    def __init__(self, client: Any):
        self.client, self.kind = client, "contradicts"
        self.rng = np.random.default_rng(3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def open(self, images: Any) -> Any:
        return LyingSession(self, self.client.open(images))


class LyingSession:
    def __init__(self, liar: Liar, session: Any):
        self.liar, self.session = liar, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def generate(self, prompt: Any, schema: Any, **limits: Any) -> str:
        if schema.__name__ == "SummaryReply":
            return json.dumps(self._summary(schema))
        if schema.__name__ == "AnalysisReply":
            return json.dumps(self._analysis(schema))
        written = self.session.generate(prompt, schema, **limits)
        if schema.__name__ == "PlannerReply" and "What is in the picture" in str(prompt):
            written = json.dumps(json.loads(written) | {"query_type": "Other"})
        return written

    def _lie(self) -> str:
        texts = LIES[self.liar.kind]
        return texts[int(self.liar.rng.integers(len(texts)))]

    def _summary(self, schema: Any) -> dict[str, str]:
        letters = get_args(schema.model_fields["final_answer"].annotation)
        forced = letters and isinstance(letters[0], str)
        answer = letters[0] if forced else self._lie()
        return {"final_answer": answer, "quality_reasoning": self._lie()}

    def _analysis(self, schema: Any) -> dict[str, list[dict[str, str]]]:
        reply = {}
        for field in schema.model_fields.values():
            reply[field.alias] = []
            for item in get_args(field.annotation):
                kinds = [one for one in item.model_fields.values() if one.alias == "type"]
                kind = get_args(kinds[0].annotation)[0]
                severity = HOW[int(self.liar.rng.integers(len(HOW)))]
                lie = {"type": kind, "severity": severity, "explanation": self._lie()}
                reply[field.alias].append(lie)
        return reply


# What contradicts what


def judged(row: Assessment) -> dict[str, set[str]]:
    """{family: severities} of the evidence, "none" among them."""
    analysis = (row.evidence and row.evidence.distortion_analysis) or {}
    severities: dict[str, set[str]] = {}
    for items in analysis.values():
        for item in items:
            severities.setdefault(item.type, set()).add(item.severity)
    return severities


def faults(row: Assessment) -> list[str]:
    """What is wrong with a row, one line each."""
    if row.error:
        return [f"failed: {row.error}"]
    texts = [row.quality_reasoning or "", "" if row.choices else row.final_answer or ""]
    analysis = (row.evidence and row.evidence.distortion_analysis) or {}
    texts += [item.explanation for items in analysis.values() for item in items]
    shown = f"{summary(row)}\n" + "\n".join(texts)
    lines = []
    for name, pattern in (("loop", LOOP), ("markup", MARKUP), ("foreign", FOREIGN)):
        match = pattern.search(" ".join(shown.replace(row.query, "").split()))
        lines += [f"{name}: {match[0]}"] if match else []
    sentences = Counter(re.split(r"[.:]\s+", (row.quality_reasoning or "").rstrip(".")))
    lines += [f"twice: {said}" for said, count in sentences.items() if count > 1 and len(said) > 9]
    if not re.search(r"[a-z]{2,}.*[a-z]{2,}", row.quality_reasoning or "", re.I | re.S):
        lines.append("no reason")
    about = judged(row)
    unseen = "not looked for" in texts[0] and not about
    if about or unseen:
        for text in texts:
            lines += _against(text, about, row)
    return lines + _answer_against(row, about)


def _against(text: str, about: dict[str, set[str]], row: Assessment) -> list[str]:
    """What a text says against the evidence, clause by clause."""
    lines = []
    there = {kind for kind, severities in about.items() if severities - {"none"}}
    everything = row.evidence is not None and row.evidence.distortion_set is not None
    for clause in re.split(r"[.;:](?:\s|$)|,? but ", text):
        if re.search(
            r"looked for|available|No answer names|says \d|most probable answer|by the model|Contradictory",
            clause,
        ):
            continue
        if ALL_CLEAN.search(clause) and (there or not everything):
            lines.append(f"clean said: {clause}")
        named = {
            kind for kind, words in FAMILIES.items() if re.search(rf"\b(?:{words})\b", clause, re.I)
        }
        if "Sharpness" in named:
            named -= {"Blurs"}
        denied = bool(DENIED.search(clause))
        if denied and named & there and not re.search("cannot be told", clause):
            elsewhere = all("none" in about[kind] for kind in named & there)
            lines += [] if elsewhere else [f"denied what was found: {clause}"]
        if not denied and named - there:
            lines.append(f"named what was not found: {clause}")
        severities = {found.lower() for found in re.findall(SEVERE, clause, re.I)}
        known = (
            set().union(*(about[kind] for kind in named & there))
            if named & there
            else set().union(*about.values())
        )
        if severities - known:
            lines.append(f"other severity: {clause}")
    level = re.search(rf"quality is ({LEVELS})\b", text, re.I)
    if level and row.level and level[1].lower() != row.level.lower():
        lines.append(f"other level: {level[0]}")
    return lines


def _answer_against(row: Assessment, about: dict[str, set[str]]) -> list[str]:
    """What an answer to choose from says against the evidence and its own reason."""
    if not (row.choices and row.fusion and row.final_answer):
        return []
    answer, lines = row.choices[ord(row.final_answer) - 65], []
    p = row.fusion.p
    if max(p, key=p.__getitem__) != row.final_answer:
        lines.append("not the most probable answer")
    said = re.search(r"most probable answer is (.+?) \(", row.quality_reasoning or "")
    if said and said[1] != answer:
        lines.append(f"the reason says {said[1]}, the answer {answer}")
    there = {kind for kind, severities in about.items() if severities - {"none"}}
    if not about or row.fusion.measured is None:
        return lines
    if row.choices == BLUR_NOISE:
        kinds = {"blur": {"Blurs"}, "noise": {"Noise"}, "compression": {"Compression"}}.get(answer)
        offered = there & {"Blurs", "Noise", "Compression"}
        if (kinds and not kinds & there) or (not kinds and offered):
            lines.append(f"answer {answer}, found {sorted(there)}")
    if row.choices == HOW and answer not in about.get("Noise", {answer}):
        lines.append(f"answer {answer}, evidence {about['Noise']}")
    kind = {
        "Is it blurry?": "Blurs",
        "Is there visible compression?": "Compression",
        "Is the picture free of noise?": "Noise",
    }
    if row.query in kind:
        present = (answer == "Yes") != row.query.startswith("Is the picture free")
        if present != (kind[row.query] in there):
            lines.append(f"answer {answer}, found {sorted(there)}")
    return lines


def questions_of(number: int) -> list[tuple[str | None, list[str] | None]]:
    """Five questions for the picture of a number, all of them asked equally often."""
    return [QUESTIONS[(number * 3 + 4 * i + number // 20) % len(QUESTIONS)] for i in range(5)]


def ask(
    number: int, picture: Image.Image, reference: Any, services: Services
) -> Iterator[Assessment]:
    """The answers about one picture; of two in three in a conversation."""
    if number % 3 and min(picture.size) >= SMALLEST:  # a conversation refuses a smaller one
        with Conversation(services, picture, reference) as conversation:
            for query, choices in questions_of(number):
                yield conversation.ask(query, choices)
        return
    for query, choices in questions_of(number):
        yield assess(picture, reference, query, choices, services=services)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--photos", type=Path, nargs="+", required=True, help="folders of photographs"
    )
    parser.add_argument("--real", type=Path, required=True, help="a folder of pictures as they are")
    parser.add_argument("--lies", action="store_true", help="the model's texts are lies")
    parser.add_argument("--part", default="0/1", help="which part of the pictures, of how many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first picture")
    parser.add_argument("--out", type=Path, help="file for the answers, JSON lines")
    args = parser.parse_args()
    services, liar = load_services(), None
    if args.lies:
        liar = Liar(services.client("summarizer"))
        services = Services(
            services.settings,
            services.device,
            {services.section("summarizer").backend: cast(VLMClient, liar)},
            services.tools,
        )
    part, parts = map(int, args.part.split("/"))
    count, wrong = Counter(), Counter()
    out = args.out.open("a") if args.out else None
    for number, (kind, picture, reference) in enumerate(pictures(args.photos, args.real)):
        if number % parts != part or number < args.first:
            continue
        if liar:
            liar.kind = list(LIES)[number // parts % len(LIES)]
        for row in ask(number, picture, reference, services):
            lines = faults(row)
            count["questions"] += 1
            wrong.update({line.partition(":")[0] for line in lines})
            count["wrong"] += bool(lines)
            for line in lines:
                print(
                    f"{number} {kind} {liar.kind if liar else ''} {row.query!r}: {line}", flush=True
                )
            if out:
                about = {"number": number, "kind": kind, "lie": liar and liar.kind, "faults": lines}
                out.write(json.dumps(about | {"shown": summary(row), "row": row.to_dict()}) + "\n")
                out.flush()
    print(f"{count['questions']} questions, {count['wrong']} answers with a fault: {dict(wrong)}")


if __name__ == "__main__":
    main()
