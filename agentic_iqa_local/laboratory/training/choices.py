"""Questions with choices about one distorted crop, the true choice among them."""

from collections.abc import Callable

import numpy as np

from agentic_iqa_local.laboratory.training.data import level_targets
from agentic_iqa_local.laboratory.training.queries import pick, templates
from agentic_iqa_local.laboratory.training.questions import EVERYDAY, ask, row_for, words_of
from agentic_iqa_local.laboratory.training.samples import (
    MOST_FOUND,
    RoleSample,
    child,
    evidence_of,
    hidden_families,
    letter_answer,
    visible_parts,
)
from agentic_iqa_local.laboratory.training.sentences import NAMES, SEVERITY_WORDS, clean, finding, findings
from agentic_iqa_local.levels import DISTORTION_TYPES, LEVEL_WORDS, PLACES
from agentic_iqa_local.prompts import choice_letters, summarizer_prompt
from agentic_iqa_local.state import ExecutorOutput
from agentic_iqa_local.synthetic.distortions import DISTORTIONS, KINDS_BY_FAMILY
from agentic_iqa_local.synthetic.photos import Crop

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


def _question(
    query: str,
    choices: list[str],
    target: np.ndarray,
    reasoning: Callable[[np.random.Generator, str], str],
    evidence: ExecutorOutput | None,
    rng: np.random.Generator,
) -> RoleSample:
    """A question with choices in random order; `reasoning(rng, chosen)` is the reasoning for the answer that is
    chosen."""
    order = rng.permutation(len(choices))
    choices, target = [choices[i] for i in order], target[order]
    chosen = int(rng.choice(len(choices), p=target))
    prompt = summarizer_prompt(query, evidence, scoring=False, choices=choices)
    read_only = bool(rng.random() < 0.7)
    text = reasoning(child(rng), choices[chosen])
    return RoleSample(
        prompt,
        letter_answer(choice_letters(choices)[chosen], text),
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

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"{right}: {finding(parts[0], words) if parts else clean(words)}"

    return _question(pick(rng, WHICH), [right, *wrong[:3]], np.eye(4)[0], reasoning, evidence, rng)


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
    evidence = evidence_of(crop, parts, child(rng), asked=[family]) if with_evidence else None

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"Yes. {finding(present, words)}" if present else f"No, I see no {EVERYDAY[family]}."

    return _question(query, choices, np.eye(2)[0 if yes else 1], reasoning, evidence, rng)


def kind_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Which flaw, in everyday words: two to five of them, at times "none of these"."""
    parts, count = visible_parts(crop), int(rng.integers(2, 6))
    absent = [t for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    wrong = [_label(pick(rng, KINDS_BY_FAMILY[str(family)]), rng) for family in absent[: count - 1]]
    none = pick(rng, ("none of these", "nothing", "no flaw"))
    right = _label(parts[0].kind, rng) if parts else none
    if parts and rng.random() < 0.3:
        wrong[0] = none

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen.capitalize()}: {finding(parts[0], words) if parts else clean(words)}"

    row = pick(rng, [r for r in templates("questions") if r["topic"] == "type"])
    query = row["text"] if rng.random() < 0.6 else pick(rng, WHICH)
    choices = list(dict.fromkeys([right, *wrong]))
    return _question(query, choices, np.eye(len(choices))[0], reasoning, None, rng)


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

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen.capitalize()}: {finding(parts[0], words) if parts else clean(words)}"

    spelled = [place.capitalize() if rng.random() < 0.5 else place for place in [right, *others]]
    return _question(pick(rng, WHICH_PLACE), spelled, np.eye(len(spelled))[0], reasoning, None, rng)


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

    def reasoning(answer: np.random.Generator, chosen: str) -> str:
        return f"{chosen}: {finding(parts[0], answer) if parts else clean(answer)}"

    return _question(query, words, np.eye(len(words))[words.index(right)], reasoning, None, rng)


def level_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """How good, in the words of the levels."""
    target = level_targets(np.array([crop.quality]))[0]

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"The quality is {chosen.lower()}. {findings(visible_parts(crop), words)}"

    return _question(pick(rng, HOW_GOOD), list(LEVEL_WORDS.values()), target, reasoning, None, rng)


def use_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Good enough for a print, for the web: surely so one level above what the use needs, surely not one
    below."""
    needs, query = pick(rng, USES)
    yes = 1 / (1 + np.exp(-4 * (crop.quality - needs)))

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen}. {findings(visible_parts(crop), words)}"

    return _question(query, ["Yes", "No"], np.array([yes, 1 - yes]), reasoning, None, rng)


def topic_choices(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Yes or no to a question of questions.jsonl: exposure, cause, place, flawless or not."""
    question = None
    while question is None or question.yes is None:
        row = row_for(visible_parts(crop), rng, ("kind", "cause", "part", "clean", "whether"))
        question = ask(row, visible_parts(crop), rng, hidden_families(crop))

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return question.answer(3)

    return _question(question.query, ["Yes", "No"], np.eye(2)[0 if question.yes else 1], reasoning, None, rng)


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

    def reasoning(words: np.random.Generator, chosen: str) -> str:
        return f"{chosen[0].upper()}{chosen[1:]}: {finding(parts[0], words) if parts else clean(words)}"

    return _question(pick(rng, WHICH_OF_TWO), choices, target, reasoning, None, rng)


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
            evidence = evidence_of(crop, visible_parts(crop)[:MOST_FOUND], rng)
        return four_choices(crop, rng, evidence)
    if draw < 0.48:
        return yes_or_no(crop, rng, with_evidence=rng.random() < 0.2)
    shares = np.array(list(CHOICES.values()))
    return list(CHOICES)[int(rng.choice(len(shares), p=shares / shares.sum()))](crop, rng)
