"""Role samples: for one distorted crop, the pipeline's own prompts with the answers that are true of it.

No leak: more than half of the rating prompts carry no scores, and those that do carry scores drawn around the
pseudo-MOS with noise of 0.7 levels, under the name of any tool, or missing, or contradictory, so that the
letters must come from the pixels.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.laboratory.training.data import level_targets
from agentic_iqa_local.laboratory.training.queries import CORNERS, draw_object, draw_query, pick, templates
from agentic_iqa_local.laboratory.training.questions import (
    ANSWERS_OF_OTHERS,
    COMPARISONS,
    EVERYDAY,
    OTHERS,
    WHY_OF_OTHERS,
    Question,
    ask,
    draw_row,
    row_for,
    words_of,
)
from agentic_iqa_local.laboratory.training.questions import SHARES as TOPICS
from agentic_iqa_local.laboratory.training.sentences import (
    NAMES,
    SEVERITY_WORDS,
    clean,
    explanation,
    finding,
    findings,
    level_sentence,
    reasoning,
)
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS, OVERALL, PLACES
from agentic_iqa_local.nodes.tool_choice import tool_line
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
from agentic_iqa_local.reasoning import from_evidence
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput
from agentic_iqa_local.synthetic.distortions import DISTORTIONS, KINDS_BY_FAMILY, Part
from agentic_iqa_local.synthetic.photos import Crop

BARELY_VISIBLE = 4.0  # pseudo-MOS from which a distortion of severity 1 does not count as seen; a clean photograph has 4.27
MOST_FOUND = 3  # distortions of one object in a detection
NOT_THERE = "It is not visible."
WHICH = ("Which distortion is most visible in the image?", "What is the main distortion?", "Which of these affects the image?",
         "What is wrong with this picture?", "Which degradation do you see?", "Pick the distortion that fits best.")  # fmt: skip
WHETHER = ("Is the image {a}?", "Is this photo {a}?", "Does the picture look {a}?", "Would you call it {a}?",
           "Is there {n} in this image?", "Do you see {n}?", "Does the photo suffer from {n}?", "Any {n} here?")  # fmt: skip
HOW_SEVERE = ("How severe is the distortion?", "How strong is the degradation?", "How visible are the artifacts?", "How bad is it?",
              "Which strength has the damage?", "How badly is the picture degraded?")  # fmt: skip
HOW_GOOD = ("What is the quality of the image?", "How good is the image?", "Rate the picture.", "How would you rate the quality?",
            "Which word fits the quality best?")  # fmt: skip
WHICH_PLACE = ("Which part of the picture is damaged?", "Where is the damage?", "In which quarter is the distortion?",
               "Where do you see the flaw?", "Which corner is affected?")  # fmt: skip
WHICH_OF_TWO = (
    "Which picture is better?",
    "Which of the two has the better quality?",
    "Which one is damaged less?",
)
USES = ((3.3, "Can I print it?"), (3.3, "Is it good enough for a poster?"), (3.3, "Is the quality sufficient for a magazine?"),
        (2.5, "Is it good enough for a web page?"), (2.5, "Can I post it online?"), (2.0, "Is it usable at all?"))  # fmt: skip


@dataclass(frozen=True)
class RoleSample:
    """A prompt and its answer.

    `letters` is the distribution at the letter position (None: no letter is read) and `levels` the quality
    level that each letter stands for, 0 where they stand for none. Of a `read_only` sample nothing but the
    letter is learned.
    """

    prompt: Prompt
    answer: str
    letters: np.ndarray | None = None
    levels: np.ndarray | None = None
    read_only: bool = False


def visible_parts(crop: Crop) -> tuple[Part, ...]:
    """The distortions that count as seen, the strongest first: all but a barely visible one of severity 1."""
    seen = [p for p in crop.sample.parts if p.severity > 1 or crop.quality < BARELY_VISIBLE]
    return tuple(sorted(seen, key=lambda part: -part.severity))


def hidden_families(crop: Crop) -> tuple[str, ...]:
    """The families of damage that is there and does not count as seen: questions about it have no true
    answer."""
    seen = {part.family for part in visible_parts(crop)}
    return tuple(family for family in crop.sample.families if family not in seen)


def _json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _child(rng: np.random.Generator) -> np.random.Generator:
    """A generator for the words of an answer, so that their number does not move what is drawn next."""
    return np.random.default_rng(int(rng.integers(2**32)))


def _corners(rng: np.random.Generator, parts: Sequence[Part]) -> dict[str, str]:
    """{a corner's name: its place}, one or two, where there is local damage mostly that of it first."""
    places = [str(place) for place in rng.permutation(list(PLACES))[: 1 if rng.random() < 0.6 else 2]]
    if parts and parts[0].place and parts[0].place not in places and rng.random() < 0.5:
        places[0] = parts[0].place
    return {pick(rng, CORNERS[place]): place for place in places}


def _objects(crop: Crop, rng: np.random.Generator) -> dict[str, tuple[Part, ...]]:
    """What a detection or analysis is asked about, with the distortions that are seen there: the whole
    picture, corners of it, or things, of which only what is everywhere is known."""
    parts, draw = visible_parts(crop), rng.random()
    local = any(part.place for part in crop.sample.parts)
    if draw < 0.6:
        return {"Global": parts}
    if local or draw < 0.68:
        return {
            name: tuple(p for p in parts if p.place in (None, place))
            for name, place in _corners(rng, parts).items()
        }
    return dict.fromkeys((draw_object(rng) for _ in range(1 if rng.random() < 0.7 else 2)), parts)


def _rating_query(rng: np.random.Generator) -> str:
    if rng.random() < 0.35:
        return DEFAULT_QUERY
    return pick(rng, templates("overall"))["text"]


def _query_for(objects: Sequence[str], rng: np.random.Generator) -> str:
    return _rating_query(rng) if list(objects) == ["Global"] else f"Rate the {' and the '.join(objects)}."


def _judged(distortion: str, parts: Sequence[Part], rng: np.random.Generator) -> DistortionAnalysis:
    """What is true of one family, given all that is there."""
    for part in parts:
        if part.family == distortion:
            return DistortionAnalysis(
                type=distortion, severity=SEVERITY_WORDS[part.severity], explanation=explanation(part, rng)
            )
    return DistortionAnalysis(type=distortion, severity="none", explanation=NOT_THERE)


def _types(crop: Crop, parts: Sequence[Part], rng: np.random.Generator) -> list[str]:
    """What an analysis is asked about: the true distortions, and at times one that is not there."""
    true = [str(p.family) for p in parts][:MOST_FOUND]
    others = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    types = true + others[: int(not true or rng.random() < 0.3)]
    return [types[i] for i in rng.permutation(len(types))]


def _wrong_analysis(rng: np.random.Generator) -> DistortionAnalysis:
    part = Part(pick(rng, list(DISTORTIONS)), int(rng.integers(1, 6)))
    return _judged(part.family, [part], rng)


def _misjudged(parts: Sequence[Part], rng: np.random.Generator) -> tuple[Part, ...]:
    """The parts as an analysis may find them: every fourth a step too strong or too weak."""
    step = [int(rng.choice((-1, 1))) if rng.random() < 0.25 else 0 for _ in parts]
    return tuple(
        replace(p, severity=int(np.clip(p.severity + s, 1, 5))) for p, s in zip(parts, step, strict=True)
    )


def _scores(crop: Crop, types: Sequence[str], rng: np.random.Generator) -> dict[str, tuple[str, float]]:
    """Scores around the pseudo-MOS, one in seven around nothing, for the types and one or two that judge the
    whole."""
    centre = float(rng.uniform(1, 5)) if rng.random() < 0.15 else crop.quality + rng.normal(0, 0.5)
    names = [str(name) for name in rng.permutation(list(TOOLS))]
    scores = {}
    for purpose in (types or [OVERALL])[:2] if rng.random() < 0.5 else []:
        scores[purpose] = names.pop()
    for _ in range(int(rng.integers(0 if scores else 1, 3))):
        scores[f"{OVERALL} ({names[-1]})"] = names.pop()
    return {
        purpose: (name, float(np.clip(centre + rng.normal(0, 0.5), 1, 5))) for purpose, name in scores.items()
    }


def _evidence(
    crop: Crop,
    parts: Sequence[Part],
    rng: np.random.Generator,
    asked: Sequence[str] = (),
    name: str = "Global",
    analysed: float = 0.85,
) -> ExecutorOutput:
    """What the Executor hands over when it finds `parts`; where the query names types (`asked`) it judges
    those alone."""
    types = list(asked) or (_types(crop, parts, rng) if parts or rng.random() < 0.2 else [])
    analyses = [_judged(t, parts, rng) for t in types]
    scores = _scores(crop, types, rng) if name == "Global" and rng.random() < 0.85 else None
    return ExecutorOutput(
        distortion_analysis={name: analyses} if rng.random() < analysed else None,
        quality_scores={name: scores} if scores else None,
    )


def _letter_answer(letter: str, text: str) -> str:
    return f'{ANSWER_PREFIX}{letter}", "quality_reasoning": {_json(text)}}}'


def rating(
    crop: Crop, rng: np.random.Generator, with_evidence: bool, read_only: bool, reversed_letters: bool
) -> RoleSample:
    """The Summarizer's scoring prompt with a soft target at the letter. One evidence in ten is wrong: of it
    the letter alone is learned, since the words have to agree with it."""
    target = level_targets(np.array([crop.quality]))[0]
    levels = np.arange(5.0, 0.0, -1.0)
    if reversed_letters:
        target, levels = target[::-1], levels[::-1]
    letter = str(rng.choice(LETTERS, p=target))
    level = LETTER_TO_LEVEL[letter]
    word = LEVEL_WORDS[6 - level if reversed_letters else level].lower()
    parts, evidence = visible_parts(crop), None
    if with_evidence:
        parts = _misjudged(parts, rng)[:MOST_FOUND]
        evidence = _evidence(crop, parts, rng)
        if rng.random() < 0.1:
            evidence = ExecutorOutput(
                distortion_analysis={"Global": [_wrong_analysis(rng)]}, quality_scores=evidence.quality_scores
            )
            read_only = True
    prompt = summarizer_prompt(_rating_query(rng), evidence, scoring=True, reversed_letters=reversed_letters)
    if with_evidence and not read_only and rng.random() < 0.05:
        prompt = prompt.holding_to(from_evidence(evidence, word.capitalize()))
    text = reasoning(parts, word, rng)
    if evidence and evidence.quality_scores and rng.random() < 0.15:
        tool, score = pick(rng, list(evidence.quality_scores["Global"].values()))
        text += f" The tool {tool} gives {score:.1f}."
    return RoleSample(prompt, _letter_answer(letter, text), target, levels, read_only)


def detection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The distortions of each object, up to three, the strongest first."""
    objects = _objects(crop, rng)
    found = {name: [p.family for p in parts][:MOST_FOUND] for name, parts in objects.items()}
    return RoleSample(detection_prompt(_query_for(list(objects), rng), list(objects)), _json(found))


def analysis(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Severity and impact of the true distortions and, at times, of one that is not there."""
    objects = _objects(crop, rng)
    asked = {name: _types(crop, parts, rng) for name, parts in objects.items()}
    items = {
        name: [_judged(t, objects[name], rng).model_dump() for t in types] for name, types in asked.items()
    }
    return RoleSample(analysis_prompt(_query_for(list(objects), rng), asked), _json(items))


def selection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The first listed tool that is good for the distortion, else the first listed."""
    tools = [TOOLS[str(n)] for n in rng.permutation(list(TOOLS))[: int(rng.integers(2, 6))]]
    asked = {
        name: _types(crop, parts, rng) if rng.random() < 0.8 else []
        for name, parts in _objects(crop, rng).items()
    }

    def best(distortion: str) -> str:
        return next((t.name for t in tools if distortion in t.good_for), tools[0].name)

    answer = {name: {t: best(t) for t in types or [OVERALL]} for name, types in asked.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for)) for t in tools]
    return RoleSample(selection_prompt(_rating_query(rng), asked, lines), _json(answer))


def _question(
    query: str,
    choices: list[str],
    target: np.ndarray,
    told: Callable[[np.random.Generator, str], str],
    evidence: ExecutorOutput | None,
    rng: np.random.Generator,
) -> RoleSample:
    """A question with choices in random order; `told(rng, chosen)` is the reasoning for the answer that is
    chosen."""
    order = rng.permutation(len(choices))
    choices, target = [choices[i] for i in order], target[order]
    chosen = int(rng.choice(len(choices), p=target))
    prompt = summarizer_prompt(query, evidence, scoring=False, choices=choices)
    read_only = bool(rng.random() < 0.7)
    text = told(_child(rng), choices[chosen])
    return RoleSample(
        prompt,
        _letter_answer(choice_letters(choices)[chosen], text),
        target,
        np.zeros(len(choices)),
        read_only,
    )


def four_choices(crop: Crop, rng: np.random.Generator, evidence: ExecutorOutput | None = None) -> RoleSample:
    """Which distortion? The strongest (or None on a clean picture) among three that are not there."""
    parts = visible_parts(crop)
    right = parts[0].family if parts else "None"
    wrong = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    if parts and rng.random() < 0.3:
        wrong[0] = "None"

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"{right}: {finding(parts[0], words) if parts else clean(words)}"

    return _question(pick(rng, WHICH), [right, *wrong[:3]], np.eye(4)[0], told, evidence, rng)


def yes_or_no(crop: Crop, rng: np.random.Generator, with_evidence: bool = False) -> RoleSample:
    """Is it blurry? Yes as often as no, as far as the picture has a distortion. A yes is asked for by words
    that are true of the kind that is there ("too dark" of a darkened picture alone), a no by words of a
    family of which there is nothing.
    """
    parts = visible_parts(crop)
    yes = bool(parts) and rng.random() < 0.5 + 0.07
    absent = [t for t in DISTORTION_TYPES if t not in crop.sample.families]
    present = pick(rng, parts) if yes else None
    kind = present.kind if present else pick(rng, KINDS_BY_FAMILY[str(pick(rng, absent))])
    family = DISTORTIONS[kind].family
    noun, adjective = words_of(kind, family, rng)
    choices = [["Yes", "No"], ["yes", "no"]][int(rng.random() < 0.2)]
    query = pick(rng, WHETHER).format(n=noun, a=adjective)
    evidence = _evidence(crop, parts, _child(rng), asked=[family]) if with_evidence else None

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"Yes. {finding(present, words)}" if present else f"No, I see no {EVERYDAY[family]}."

    return _question(query, choices, np.eye(2)[0 if yes else 1], told, evidence, rng)


def kind_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Which flaw, in everyday words: two to five of them, at times "none of these"."""
    parts, count = visible_parts(crop), int(rng.integers(2, 6))
    absent = [t for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    wrong = [_label(pick(rng, KINDS_BY_FAMILY[str(family)]), rng) for family in absent[: count - 1]]
    none = pick(rng, ("none of these", "nothing", "no flaw"))
    right = _label(parts[0].kind, rng) if parts else none
    if parts and rng.random() < 0.3:
        wrong[0] = none

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen.capitalize()}: {finding(parts[0], words) if parts else clean(words)}"

    row = pick(rng, [r for r in templates("questions") if r["topic"] == "type"])
    query = row["text"] if rng.random() < 0.6 else pick(rng, WHICH)
    choices = list(dict.fromkeys([right, *wrong]))
    return _question(query, choices, np.eye(len(choices))[0], told, None, rng)


def _label(kind: str, rng: np.random.Generator) -> str:
    name = pick(rng, NAMES[kind][:3]).removeprefix("+").removeprefix("a ")
    return name if rng.random() < 0.5 else name[0].upper() + name[1:]


def place_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """In which quarter, or everywhere, or nowhere."""
    parts = visible_parts(crop)
    right = (parts[0].place or "everywhere") if parts else "nowhere"
    places = [str(p) for p in rng.permutation(list(PLACES)) if p != right]
    others = places[:3] if right in PLACES else places
    if rng.random() < 0.4:
        others = [*others, *(word for word in ("everywhere", "nowhere") if word != right)]

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen.capitalize()}: {finding(parts[0], words) if parts else clean(words)}"

    spelled = [place.capitalize() if rng.random() < 0.5 else place for place in [right, *others]]
    return _question(pick(rng, WHICH_PLACE), spelled, np.eye(len(spelled))[0], told, None, rng)


def severity_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """How strong: of the picture's strongest distortion."""
    parts = visible_parts(crop)
    words = ["None", "Slight", "Moderate", "Severe", "Extreme"]
    right = SEVERITY_WORDS[parts[0].severity].capitalize() if parts else "None"
    if rng.random() < 0.4:  # fewer words, the right one among them
        words = [w for w in words if w == right or rng.random() < 0.5]
        words += (
            ["Slight"] if len(words) == 1 and right != "Slight" else ["Extreme"] if len(words) == 1 else []
        )
    query = pick(rng, HOW_SEVERE)

    def told(answer: np.random.Generator, chosen: str) -> str:
        return f"{chosen}: {finding(parts[0], answer) if parts else clean(answer)}"

    return _question(query, words, np.eye(len(words))[words.index(right)], told, None, rng)


def level_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """How good, in the words of the levels."""
    target = level_targets(np.array([crop.quality]))[0]

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"The quality is {chosen.lower()}. {findings(visible_parts(crop), words)}"

    return _question(pick(rng, HOW_GOOD), list(LEVEL_WORDS.values()), target, told, None, rng)


def use_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Good enough for a print, for the web: surely so one level above what the use needs, surely not one
    below."""
    needs, query = pick(rng, USES)
    yes = 1 / (1 + np.exp(-4 * (crop.quality - needs)))

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen}. {findings(visible_parts(crop), words)}"

    return _question(query, ["Yes", "No"], np.array([yes, 1 - yes]), told, None, rng)


def topic_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Yes or no to a question of questions.jsonl: exposure, cause, place, flawless or not."""
    question = None
    while question is None or question.yes is None:
        row = row_for(visible_parts(crop), rng, ("kind", "cause", "part", "clean", "whether"))
        question = ask(row, visible_parts(crop), rng, hidden_families(crop))

    def told(words: np.random.Generator, chosen: str) -> str:
        return question.answer(3)

    return _question(question.query, ["Yes", "No"], np.eye(2)[0 if question.yes else 1], told, None, rng)


def better_of_two(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Which of the reference and the test image is better; both alike where nothing is seen."""
    parts = visible_parts(crop)
    choices = pick(
        rng,
        (
            ["The first", "The second"],
            ["the reference", "the test image"],
            ["first picture", "second picture"],
        ),
    )
    same = pick(rng, ("Both are alike", "no difference", "equal"))
    choices = [*choices, same] if not parts or rng.random() < 0.5 else choices
    target = np.eye(len(choices))[0 if parts else 2]

    def told(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen[0].upper()}{chosen[1:]}: {finding(parts[0], words) if parts else clean(words)}"

    return _question(pick(rng, WHICH_OF_TWO), choices, target, told, None, rng)


CHOICES: dict[Callable[[Crop, np.random.Generator], RoleSample], float] = {
    kind_choices: 0.12, place_choices: 0.08, severity_choices: 0.08, level_choices: 0.05, use_choices: 0.05, topic_choices: 0.14,
}  # fmt: skip


def choice_question(crop: Crop, rng: np.random.Generator, has_reference: bool = False) -> RoleSample:
    """A question with choices in random order; the truth is among them. Types and yes/no half of the time,
    and place, strength, level, use and cause; place mostly where it is not everywhere."""
    if has_reference and rng.random() < 0.15:
        return better_of_two(crop, rng)
    if any(part.place for part in visible_parts(crop)) and rng.random() < 0.4:
        return place_choices(crop, rng)
    draw = rng.random()
    if draw < 0.24:
        evidence = None
        if rng.random() < 0.2:
            evidence = _evidence(crop, visible_parts(crop)[:MOST_FOUND], rng)
        return four_choices(crop, rng, evidence)
    if draw < 0.48:
        return yes_or_no(crop, rng, with_evidence=rng.random() < 0.2)
    shares = np.array(list(CHOICES.values()))
    return list(CHOICES)[int(rng.choice(len(shares), p=shares / shares.sum()))](crop, rng)


def _question_about(
    crop: Crop, parts: Sequence[Part], rng: np.random.Generator, has_reference: bool
) -> Question:
    question = None
    while question is None:
        compares = has_reference and rng.random() < 0.5
        row = draw_row(COMPARISONS, rng) if compares else row_for(parts, rng, tuple(TOPICS))
        question = ask(row, parts, rng, hidden_families(crop))
    return question


def natural_question(crop: Crop, rng: np.random.Generator, has_reference: bool = False) -> RoleSample:
    """A question in free words in scoring mode: the letter of the quality, and a reasoning whose first
    sentence answers. One in twelve is not about quality and was planned as if it were."""
    target = level_targets(np.array([crop.quality]))[0]
    letter = str(rng.choice(LETTERS, p=target))
    level, parts = LETTER_TO_LEVEL[letter], _misjudged(visible_parts(crop), rng)[:MOST_FOUND]
    word = LEVEL_WORDS[level].lower()
    if rng.random() < 0.08:
        row = draw_row(OTHERS, rng)
        evidence = _evidence(crop, parts, rng) if rng.random() < 0.5 else None
        told = pick(rng, WHY_OF_OTHERS[row["topic"]])
        text = f"I cannot tell. {told}" if row["topic"] == "unknown" else told
        prompt = summarizer_prompt(row["text"], evidence, scoring=True)
        return RoleSample(
            prompt,
            _letter_answer(letter, f"{text} {level_sentence(word, rng)}"),
            target,
            np.arange(5.0, 0.0, -1.0),
        )
    question = _question_about(crop, parts, rng, has_reference)
    evidence = None
    if rng.random() < 0.5:
        name = question.objects[0] if question.objects else "Global"
        there = [part for part in parts if not question.objects or part.place in (None, question.place)]
        evidence = _evidence(crop, there, rng, question.types, name, analysed=0.95)
    text = question.answer(level)
    if question.wanted and len(text) < 90 and rng.random() < 0.35:
        text += f" {findings(question.wanted, rng)}"
    if rng.random() < 0.35 and question.topic != "rate":
        text += f" {level_sentence(word, rng)}"
    prompt = summarizer_prompt(question.query, evidence, scoring=True)
    return RoleSample(prompt, _letter_answer(letter, text), target, np.arange(5.0, 0.0, -1.0))


def free_question(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """A question without choices that was planned as not about quality. Mostly it is none, and the honest
    answer is that the model cannot tell; at times it is one all the same, and has its answer."""
    draw = rng.random()
    if draw < 0.2:
        parts = visible_parts(crop)
        question = _question_about(crop, parts, rng, has_reference=False)
        level = LETTER_TO_LEVEL[LETTERS[int(level_targets(np.array([crop.quality]))[0].argmax())]]
        short = question.answer(level)
        answer = {
            "final_answer": short if len(short) <= 100 else short.split(". ")[0][:100],
            "quality_reasoning": findings(parts, rng),
        }
        return RoleSample(summarizer_prompt(question.query, None, scoring=False), _json(answer))
    if draw < 0.75:
        row = draw_row(OTHERS, rng)
        text, topic = row["text"], row["topic"]
    else:
        drawn = draw_query(rng)
        while drawn.plan.query_type != "Other":
            drawn = draw_query(rng)
        text, topic = drawn.query, "subject"
    answer = {
        "final_answer": pick(rng, ANSWERS_OF_OTHERS[topic]),
        "quality_reasoning": pick(rng, WHY_OF_OTHERS[topic]),
    }
    return RoleSample(summarizer_prompt(text, None, scoring=False), _json(answer))


def planning(rng: np.random.Generator, has_reference: bool) -> RoleSample:
    """A plan for a query of the grammar."""
    drawn = draw_query(rng)
    while drawn.has_reference != has_reference:
        drawn = draw_query(rng)
    prompt = planner_prompt(drawn.query, has_reference, drawn.choices, drawn.replan_history)
    return RoleSample(prompt, _json(drawn.plan.model_dump()))


def draw_roles(crop: Crop, rng: np.random.Generator, has_reference: bool = False) -> list[RoleSample]:
    """What one picture is asked in one training step; every prompt continues from the same image prefix.

    Prompts with the same instructions stand together: they share them in `language.pack`. `has_reference`:
    the clean original stands before the picture.
    """
    reversed_letters = rng.random() < 0.3
    samples = [
        rating(
            crop, rng, with_evidence=False, read_only=rng.random() < 0.75, reversed_letters=reversed_letters
        )
    ]
    draw = rng.random()
    if draw < 0.3:
        samples += [natural_question(crop, rng, has_reference) for _ in range(2)]
        return samples if rng.random() < 0.75 else [*samples, free_question(crop, rng)]
    if rng.random() < 0.35:
        samples.append(
            rating(
                crop, rng, with_evidence=True, read_only=rng.random() < 0.4, reversed_letters=reversed_letters
            )
        )
    if draw < 0.6:
        samples += [choice_question(crop, rng, has_reference) for _ in range(4)]
    elif draw < 0.78:
        samples.append(detection(crop, rng))
    elif draw < 0.96:
        samples.append(analysis(crop, rng))
    else:
        samples.append(selection(crop, rng))
    return samples


def draw_looks(crop: Crop, rng: np.random.Generator, has_reference: bool = False) -> list[RoleSample]:
    """A rating and two questions with choices, of all the letter alone, under instructions of a few words: a
    fifth of the text that they have later, so that the phase that learns to read pictures reads five times as
    many."""
    scored = rating(crop, rng, with_evidence=False, read_only=True, reversed_letters=rng.random() < 0.5)
    options = "\n".join(line for line in scored.prompt.instructions.splitlines() if line[1:3] == ". ")
    samples = [replace(scored, prompt=Prompt(options, pick(rng, HOW_GOOD)))]
    for question in (choice_question(crop, rng, has_reference) for _ in range(2)):
        lines = question.prompt.case.splitlines()[1:]  # without the limit of a reasoning that is not written
        if all(line[:7] == "Query: " or line == "Choices:" or line[1:3] == ". " for line in lines):
            samples.append(
                replace(question, prompt=Prompt("Answer with a letter.", "\n".join(lines)), read_only=True)
            )
    return samples


def draw_light_roles(crop: Crop, rng: np.random.Generator, has_reference: bool = False) -> list[RoleSample]:
    """Letters alone and the shortest answers, for an early phase: ratings in both orders, or questions with
    choices, or a detection."""
    draw = rng.random()
    if draw < 0.4:
        questions = [choice_question(crop, rng, has_reference) for _ in range(5)]
        return [
            replace(question, read_only=True) for question in questions if len(question.prompt.case) < 260
        ]
    if draw < 0.7:
        return [
            rating(crop, rng, with_evidence=False, read_only=True, reversed_letters=order)
            for order in (False, True)
        ]
    return [
        rating(crop, rng, with_evidence=False, read_only=True, reversed_letters=rng.random() < 0.5),
        detection(crop, rng),
    ]
