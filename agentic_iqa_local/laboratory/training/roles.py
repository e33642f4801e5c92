"""Role samples: for one distorted crop, the pipeline's own prompts with the answers that are true of it.

No leak: more than half of the rating prompts carry no scores, and those that do carry scores drawn around the
pseudo-MOS with noise of 0.7 levels, under the name of any tool, or missing, or contradictory, so that the
letters must come from the pixels.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.laboratory.training.choices import HOW_GOOD, choice_question
from agentic_iqa_local.laboratory.training.data import level_targets
from agentic_iqa_local.laboratory.training.queries import CORNERS, draw_object, draw_query, pick, templates
from agentic_iqa_local.laboratory.training.questions import (
    ANSWERS_OF_OTHERS,
    COMPARISONS,
    OTHERS,
    WHY_OF_OTHERS,
    Question,
    ask,
    draw_row,
    row_for,
)
from agentic_iqa_local.laboratory.training.questions import SHARES as TOPICS
from agentic_iqa_local.laboratory.training.samples import (
    MOST_FOUND,
    RoleSample,
    as_json,
    evidence_of,
    hidden_families,
    judged,
    letter_answer,
    misjudged,
    types_asked,
    visible_parts,
    wrong_analysis,
)
from agentic_iqa_local.laboratory.training.sentences import findings, level_sentence, reasoning
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS, OVERALL, PLACES
from agentic_iqa_local.nodes.tool_choice import tool_line
from agentic_iqa_local.prompts import (
    DEFAULT_QUERY,
    Prompt,
    analysis_prompt,
    detection_prompt,
    planner_prompt,
    selection_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.reasoning import from_evidence
from agentic_iqa_local.state import ExecutorOutput
from agentic_iqa_local.synthetic.distortions import Part
from agentic_iqa_local.synthetic.photos import Crop


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
        parts = misjudged(parts, rng)[:MOST_FOUND]
        evidence = evidence_of(crop, parts, rng)
        if rng.random() < 0.1:
            evidence = ExecutorOutput(
                distortion_analysis={"Global": [wrong_analysis(rng)]}, quality_scores=evidence.quality_scores
            )
            read_only = True
    prompt = summarizer_prompt(_rating_query(rng), evidence, scoring=True, reversed_letters=reversed_letters)
    if with_evidence and not read_only and rng.random() < 0.05:
        prompt = prompt.holding_to(from_evidence(evidence, word.capitalize()))
    text = reasoning(parts, word, rng)
    if evidence and evidence.quality_scores and rng.random() < 0.15:
        tool, score = pick(rng, list(evidence.quality_scores["Global"].values()))
        text += f" The tool {tool} gives {score:.1f}."
    return RoleSample(prompt, letter_answer(letter, text), target, levels, read_only)


def detection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The distortions of each object, up to three, the strongest first."""
    objects = _objects(crop, rng)
    found = {name: [p.family for p in parts][:MOST_FOUND] for name, parts in objects.items()}
    return RoleSample(detection_prompt(_query_for(list(objects), rng), list(objects)), as_json(found))


def analysis(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Severity and impact of the true distortions and, at times, of one that is not there."""
    objects = _objects(crop, rng)
    asked = {name: types_asked(crop, parts, rng) for name, parts in objects.items()}
    items = {
        name: [judged(t, objects[name], rng).model_dump() for t in types] for name, types in asked.items()
    }
    return RoleSample(analysis_prompt(_query_for(list(objects), rng), asked), as_json(items))


def selection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The first listed tool that is good for the distortion, else the first listed."""
    tools = [TOOLS[str(n)] for n in rng.permutation(list(TOOLS))[: int(rng.integers(2, 6))]]
    asked = {
        name: types_asked(crop, parts, rng) if rng.random() < 0.8 else []
        for name, parts in _objects(crop, rng).items()
    }

    def best(distortion: str) -> str:
        return next((t.name for t in tools if distortion in t.good_for), tools[0].name)

    answer = {name: {t: best(t) for t in types or [OVERALL]} for name, types in asked.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for)) for t in tools]
    return RoleSample(selection_prompt(_rating_query(rng), asked, lines), as_json(answer))


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
    level, parts = LETTER_TO_LEVEL[letter], misjudged(visible_parts(crop), rng)[:MOST_FOUND]
    word = LEVEL_WORDS[level].lower()
    if rng.random() < 0.08:
        row = draw_row(OTHERS, rng)
        evidence = evidence_of(crop, parts, rng) if rng.random() < 0.5 else None
        told = pick(rng, WHY_OF_OTHERS[row["topic"]])
        text = f"I cannot tell. {told}" if row["topic"] == "unknown" else told
        prompt = summarizer_prompt(row["text"], evidence, scoring=True)
        return RoleSample(
            prompt,
            letter_answer(letter, f"{text} {level_sentence(word, rng)}"),
            target,
            np.arange(5.0, 0.0, -1.0),
        )
    question = _question_about(crop, parts, rng, has_reference)
    evidence = None
    if rng.random() < 0.5:
        name = question.objects[0] if question.objects else "Global"
        there = [part for part in parts if not question.objects or part.place in (None, question.place)]
        evidence = evidence_of(crop, there, rng, question.types, name, analysed=0.95)
    text = question.answer(level)
    if question.wanted and len(text) < 90 and rng.random() < 0.35:
        text += f" {findings(question.wanted, rng)}"
    if rng.random() < 0.35 and question.topic != "rate":
        text += f" {level_sentence(word, rng)}"
    prompt = summarizer_prompt(question.query, evidence, scoring=True)
    return RoleSample(prompt, letter_answer(letter, text), target, np.arange(5.0, 0.0, -1.0))


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
        return RoleSample(summarizer_prompt(question.query, None, scoring=False), as_json(answer))
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
    return RoleSample(summarizer_prompt(text, None, scoring=False), as_json(answer))


def planning(rng: np.random.Generator, has_reference: bool) -> RoleSample:
    """A plan for a query of the grammar."""
    drawn = draw_query(rng)
    while drawn.has_reference != has_reference:
        drawn = draw_query(rng)
    prompt = planner_prompt(drawn.query, has_reference, drawn.choices, drawn.replan_history)
    return RoleSample(prompt, as_json(drawn.plan.model_dump()))


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
