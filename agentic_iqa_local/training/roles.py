"""Role samples: for one distorted crop, the pipeline's own prompts with the answers that are true of it.

No leak: more than half of the rating prompts carry no scores, and those that do carry scores drawn around the pseudo-MOS with
noise of 0.7 levels, under the name of any tool, or missing, or contradictory, so that the letters must come from the pixels.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS, OVERALL
from agentic_iqa_local.nodes.executor import tool_line
from agentic_iqa_local.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    Prompt,
    analysis_prompt,
    choice_letters,
    detection_prompt,
    planner_prompt,
    selection_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput
from agentic_iqa_local.training.data import Crop, level_targets
from agentic_iqa_local.training.distortions import Part, Sample, draw_parts
from agentic_iqa_local.training.queries import draw_object, draw_query, phrases, pick, templates

SEVERITY_WORDS = ("none", "slight", "moderate", "moderate", "severe", "extreme")
EFFECTS = {
    "gaussian_blur": ("Edges appear soft everywhere.", "Fine detail is blurred away."),
    "defocus_blur": ("The picture is out of focus.", "Edges spread into small discs."),
    "motion_blur": ("Edges smear in one direction.", "The picture looks shaken."),
    "upscale": ("Detail is coarse, as if enlarged.", "Edges are soft and stepped, as if enlarged."),
    "denoise": ("Texture is smoothed to patches.", "Fine detail is wiped away and edges stay."),
    "white_noise": ("Grain covers flat areas.", "Random noise hides fine texture."),
    "chroma_noise": ("Colored speckles cover flat areas.", "Noise shows in the colors."),
    "impulse_noise": ("Black and white dots are scattered all over.", "Isolated dots replace pixels."),
    "speckle_noise": ("Bright areas are speckled.", "Noise grows with brightness."),
    "poisson_noise": ("The picture is grainy, as in low light.", "Grain is stronger in bright areas."),
    "blotchy_noise": ("Coarse grain covers the picture.", "Noise forms soft blotches."),
    "jpeg": ("Block edges and ringing show.", "Flat areas break into blocks."),
    "jpeg2000": ("Texture is smeared and edges ring.", "Coding washes out the texture."),
    "webp": ("Detail is smoothed by coding and blocks show.", "Texture is replaced by coding artifacts."),
    "palette": ("Smooth areas break into bands of one color.", "Too few colors are left."),
    "brighten": ("The picture is too bright and pale.", "Bright tones are washed out."),
    "darken": ("The picture is too dark.", "Detail sinks into the shadows."),
    "contrast_decrease": ("The tones are flat and grey.", "Light and dark lie too close together."),
    "contrast_increase": ("The contrast is harsh and tones are clipped.", "Shadows and highlights are crushed."),
    "desaturate": ("Colors are dull.", "Colors are faded towards grey."),
    "colour_cast": ("A tint lies over the picture.", "The hues are shifted."),
    "colour_bleed": ("Colors bleed over edges.", "Color no longer follows the objects."),
    "aberration": ("Colored fringes line the edges.", "Red and blue edges do not coincide."),
    "oversharpen": ("Edges and texture are harsh.", "Fine edges are exaggerated."),
    "halo": ("Halos line the edges.", "Bright and dark rims surround objects."),
}
CLEAN = ("No distortion is visible.", "Edges and textures look natural.", "The picture is clean.")
FREE_ANSWER = ("I can only judge technical quality.", "This question is not about technical quality.")
BARELY_VISIBLE = 4.0  # pseudo-MOS from which a distortion of severity 1 does not count as seen; a clean photograph has 4.27
WHICH = ("Which distortion is most visible in the image?", "What is the main distortion?", "Which of these affects the image?",
         "What is wrong with this picture?", "Which degradation do you see?", "Pick the distortion that fits best.")  # fmt: skip
WHETHER = ("Is the image {a}?", "Is this photo {a}?", "Does the picture look {a}?", "Would you call it {a}?",
           "Is there {n} in this image?", "Do you see {n}?", "Does the photo suffer from {n}?", "Any {n} here?")  # fmt: skip
HOW_SEVERE = ("How severe is the distortion?", "How strong is the degradation?", "How visible are the artifacts?")
HOW_GOOD = ("What is the quality of the image?", "How good is the image?", "Rate the picture.")


@dataclass(frozen=True)
class RoleSample:
    """A prompt and its answer.

    `letters` is the distribution at the letter position (None: no letter is read) and `levels` the quality level that each
    letter stands for, 0 where they stand for none. Of a `read_only` sample nothing but the letter is learned.
    """

    prompt: Prompt
    answer: str
    letters: np.ndarray | None = None
    levels: np.ndarray | None = None
    read_only: bool = False


def visible_parts(crop: Crop) -> tuple[Part, ...]:
    """The distortions that count as seen, the strongest first: all but a barely visible one of severity 1."""
    return tuple(p for p in crop.sample.parts if p.severity > 1 or crop.quality < BARELY_VISIBLE)


def _json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _reasoning(crop: Crop, letter: str, reversed_letters: bool, rng: np.random.Generator) -> str:
    level = LETTER_TO_LEVEL[letter]
    word = LEVEL_WORDS[6 - level if reversed_letters else level].lower()
    parts = visible_parts(crop)
    if not parts:
        return f"{pick(rng, CLEAN)} The quality is {word}."
    first = parts[0]
    severity = SEVERITY_WORDS[first.severity].capitalize()
    return f"{severity} {first.family.lower()}: {pick(rng, EFFECTS[first.kind])} The quality is {word}."


def _objects(rng: np.random.Generator) -> list[str]:
    if rng.random() < 0.65:
        return ["Global"]
    return list(dict.fromkeys(draw_object(rng) for _ in range(1 if rng.random() < 0.7 else 2)))


def _rating_query(rng: np.random.Generator) -> str:
    if rng.random() < 0.35:
        return DEFAULT_QUERY
    return pick(rng, templates("overall"))["text"]


def _query_for(objects: list[str], rng: np.random.Generator) -> str:
    return _rating_query(rng) if objects == ["Global"] else f"Rate the {' and the '.join(objects)}."


def _analysis(crop: Crop, distortion: str, rng: np.random.Generator) -> DistortionAnalysis:
    for part in crop.sample.parts:
        if part.family == distortion:
            effect = pick(rng, EFFECTS[part.kind])
            return DistortionAnalysis(type=distortion, severity=SEVERITY_WORDS[part.severity], explanation=effect)
    return DistortionAnalysis(type=distortion, severity="none", explanation=CLEAN[0])


def _types(crop: Crop, rng: np.random.Generator) -> list[str]:
    """What an analysis is asked about: the true distortions, and at times one that is not there."""
    true = [str(p.family) for p in visible_parts(crop)]
    others = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    types = true + others[: int(not true or rng.random() < 0.3)]
    return [types[i] for i in rng.permutation(len(types))]


def _wrong_analysis(rng: np.random.Generator) -> DistortionAnalysis:
    kind = pick(rng, list(EFFECTS))
    part = Part(kind, int(rng.integers(1, 6)))
    return DistortionAnalysis(type=part.family, severity=SEVERITY_WORDS[part.severity], explanation=pick(rng, EFFECTS[kind]))


def _evidence(crop: Crop, rng: np.random.Generator) -> ExecutorOutput:
    types = _types(crop, rng) if crop.sample.parts or rng.random() < 0.3 else []
    analyses = [_wrong_analysis(rng)] if rng.random() < 0.1 else [_analysis(crop, t, rng) for t in types]
    centre = float(rng.uniform(1, 5)) if rng.random() < 0.15 else crop.quality
    names = list(TOOLS)
    scores = {t: (str(pick(rng, names)), float(np.clip(centre + rng.normal(0, 0.7), 1, 5))) for t in (types or [OVERALL])}
    return ExecutorOutput(
        distortion_analysis={"Global": analyses} if rng.random() < 0.8 else None,
        quality_scores={"Global": scores} if rng.random() < 0.8 else None,
    )


def _letter_answer(letter: str, reasoning: str) -> str:
    return f'{ANSWER_PREFIX}{letter}", "quality_reasoning": {_json(reasoning)}}}'


def rating(crop: Crop, rng: np.random.Generator, with_evidence: bool, read_only: bool, reversed_letters: bool) -> RoleSample:
    """The Summarizer's scoring prompt with a soft target at the letter."""
    target = level_targets(np.array([crop.quality]))[0]
    levels = np.arange(5.0, 0.0, -1.0)
    if reversed_letters:
        target, levels = target[::-1], levels[::-1]
    letter = str(rng.choice(LETTERS, p=target))
    evidence = _evidence(crop, rng) if with_evidence else None
    prompt = summarizer_prompt(_rating_query(rng), evidence, scoring=True, reversed_letters=reversed_letters)
    return RoleSample(prompt, _letter_answer(letter, _reasoning(crop, letter, reversed_letters, rng)), target, levels, read_only)


def detection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The distortions of each object: the crop's own, which are the same everywhere."""
    objects = _objects(rng)
    found = [p.family for p in visible_parts(crop)]
    return RoleSample(detection_prompt(_query_for(objects, rng), objects), _json(dict.fromkeys(objects, found)))


def analysis(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Severity and impact of the true distortions and, at times, of one that is not there."""
    objects = _objects(rng)
    asked = {name: _types(crop, rng) for name in objects}
    items = {name: [_analysis(crop, t, rng).model_dump() for t in types] for name, types in asked.items()}
    return RoleSample(analysis_prompt(_query_for(objects, rng), asked), _json(items))


def selection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The first listed tool that is good for the distortion, else the first listed."""
    tools = [TOOLS[str(n)] for n in rng.permutation(list(TOOLS))[: int(rng.integers(2, 6))]]
    asked = {name: _types(crop, rng) if rng.random() < 0.8 else [] for name in _objects(rng)}

    def best(distortion: str) -> str:
        return next((t.name for t in tools if distortion in t.good_for), tools[0].name)

    answer = {name: {t: best(t) for t in types or [OVERALL]} for name, types in asked.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for)) for t in tools]
    return RoleSample(selection_prompt(_rating_query(rng), asked, lines), _json(answer))


def _question(query: str, choices: list[str], target: np.ndarray, reasoning: str, evidence, rng) -> RoleSample:
    order = rng.permutation(len(choices))
    choices, target = [choices[i] for i in order], target[order]
    letter = choice_letters(choices)[int(rng.choice(len(choices), p=target))]
    prompt = summarizer_prompt(query, evidence, scoring=False, choices=choices)
    return RoleSample(prompt, _letter_answer(letter, reasoning), target, np.zeros(len(choices)), bool(rng.random() < 0.6))


def four_choices(crop: Crop, rng: np.random.Generator, evidence: ExecutorOutput | None = None) -> RoleSample:
    """Which distortion? The strongest (or None on a clean picture) among three that are not there."""
    parts = visible_parts(crop)
    right = parts[0].family if parts else "None"
    wrong = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    if parts and rng.random() < 0.3:
        wrong[0] = "None"
    effect = pick(rng, EFFECTS[parts[0].kind]) if parts else pick(rng, CLEAN)
    return _question(pick(rng, WHICH), [right, *wrong[:3]], np.eye(4)[0], f"{right}: {effect}", evidence, rng)


def yes_or_no(crop: Crop, rng: np.random.Generator, evidence: ExecutorOutput | None = None) -> RoleSample:
    """Is it blurry? Yes as often as no, as far as the picture has a distortion."""
    parts = visible_parts(crop)
    yes = bool(parts) and rng.random() < 0.5 + 0.07
    present = pick(rng, parts) if yes else None
    asked = present.family if present else str(pick(rng, [t for t in DISTORTION_TYPES if t not in crop.sample.families]))
    words = {"a": pick(rng, phrases("adjectives")[asked]), "n": pick(rng, phrases("nouns")[asked])}
    effect = pick(rng, EFFECTS[present.kind]) if present else pick(rng, CLEAN) if not parts else f"No {asked.lower()}."
    choices = [["Yes", "No"], ["yes", "no"]][int(rng.random() < 0.2)]
    return _question(pick(rng, WHETHER).format(**words), choices, np.eye(2)[0 if yes else 1], effect, evidence, rng)


def choice_question(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """A question with choices in random order; the truth is among them."""
    evidence = _evidence(crop, rng) if rng.random() < 0.15 else None
    draw = rng.random()
    if draw < 0.42:
        return four_choices(crop, rng, evidence)
    if draw < 0.84:
        return yes_or_no(crop, rng, evidence)
    if draw < 0.92:
        words = ["None", "Slight", "Moderate", "Severe", "Extreme"]
        right = SEVERITY_WORDS[crop.sample.severity].capitalize()
        return _question(pick(rng, HOW_SEVERE), words, np.eye(5)[words.index(right)], f"{right}.", evidence, rng)
    target = level_targets(np.array([crop.quality]))[0]
    word = LEVEL_WORDS[LETTER_TO_LEVEL[LETTERS[int(target.argmax())]]]
    return _question(pick(rng, HOW_GOOD), list(LEVEL_WORDS.values()), target, f"The quality is {word.lower()}.", evidence, rng)


def free_question(rng: np.random.Generator) -> RoleSample:
    """A question that is not about quality: the honest answer is that the model cannot tell."""
    query = draw_query(rng)
    while query.plan.query_type != "Other":
        query = draw_query(rng)
    answer = {"final_answer": "I cannot tell", "quality_reasoning": pick(rng, FREE_ANSWER)}
    return RoleSample(summarizer_prompt(query.query, None, scoring=False), _json(answer))


def planning(rng: np.random.Generator, has_reference: bool) -> RoleSample:
    """A plan for a query of the grammar."""
    drawn = draw_query(rng)
    while drawn.has_reference != has_reference:
        drawn = draw_query(rng)
    prompt = planner_prompt(drawn.query, has_reference, drawn.choices, drawn.replan_history)
    return RoleSample(prompt, _json(drawn.plan.model_dump()))


def draw_roles(crop: Crop, rng: np.random.Generator) -> list[RoleSample]:
    """What one picture is asked in one training step; every prompt continues from the same image prefix.

    Prompts with the same instructions stand together: they share them in `language.pack`.
    """
    reversed_letters = rng.random() < 0.35
    samples = [rating(crop, rng, with_evidence=False, read_only=rng.random() < 0.8, reversed_letters=reversed_letters)]
    if rng.random() < 0.3:
        samples.append(rating(crop, rng, with_evidence=True, read_only=rng.random() < 0.5, reversed_letters=reversed_letters))
    draw = rng.random()
    if draw < 0.45:
        samples += [choice_question(crop, rng) for _ in range(3)]
        if rng.random() < 0.06:
            samples.append(free_question(rng))
    elif draw < 0.75:
        samples.append(detection(crop, rng))
    elif draw < 0.93:
        samples.append(analysis(crop, rng))
    else:
        samples.append(selection(crop, rng))
    return samples


def corpus(seed: int, rows: int = 5000) -> Iterator[str]:
    """Prompts and answers to train a tokenizer on; the pictures behind them are blank."""
    rng = np.random.default_rng([seed, 2])
    blank = np.zeros((8, 8, 3), np.uint8)
    for _ in range(rows):
        crop = Crop(Sample(blank, draw_parts(rng)), blank, float(rng.uniform(1, 5)))
        seen = set()
        for sample in [*draw_roles(crop, rng), *(planning(rng, bool(rng.random() < 0.25)) for _ in range(3))]:
            instructions = sample.prompt.instructions
            yield f"{sample.prompt.case}\n{sample.answer}"
            if instructions not in seen:
                yield instructions
            seen.add(instructions)
