"""Questions in everyday words with answers that are true of one picture. grammar/questions.jsonl holds the
sentences.

A row has a `topic` (below, one function each) and, where it names damage, its `types` or the slots {n} and
{a}; {c} is a corner. `kinds` are those for which "yes" is true, `yes` what a yes stands for, `needs` the
level that a use asks for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from agentic_iqa_local.laboratory.training.queries import CORNERS, phrases, pick, templates
from agentic_iqa_local.laboratory.training.sentences import (
    EVERYWHERE,
    QUARTERS,
    SEVERITY_WORDS,
    clean,
    effect,
    finding,
    findings,
    named,
    sentence,
    true_of,
)
from agentic_iqa_local.levels import DISTORTION_TYPES, PLACES
from agentic_iqa_local.synthetic.distortions import KINDS_BY_FAMILY, Part

EVERYDAY = {"Blurs": "blur", "Color distortions": "color distortion", "Compression": "compression damage", "Noise": "noise",
            "Brightness change": "exposure problem", "Sharpness": "oversharpening", "Contrast": "contrast problem"}  # fmt: skip
NAMED = 0.5  # of the questions that name damage name what is there
CAUSES = {
    "gaussian_blur": ("The lens was not focused on the subject.", "The focus missed, or the picture was softened later."),
    "defocus_blur": ("The focus missed.", "The lens was focused at another distance."),
    "motion_blur": ("The camera moved during the exposure.", "The shutter was too slow for the movement."),
    "upscale": ("It was enlarged from too few pixels.", "A small file was scaled up."),
    "denoise": ("A smoothing filter was set too strong.", "Noise reduction took the texture along."),
    "white_noise": ("The sensor ran at a high ISO.", "Too little light reached the sensor."),
    "chroma_noise": ("The sensor ran at a high ISO.", "The sensor's color channels are noisy, as in low light."),
    "impulse_noise": ("Pixels were lost in the sensor or in transmission.", "Single pixels are defective."),
    "speckle_noise": ("The recording multiplies noise with the signal.", "The sensor or scanner is noisy in bright tones."),
    "poisson_noise": ("Too little light reached the sensor.", "It was taken in low light and amplified."),
    "blotchy_noise": ("Noise was spread by processing or enlargement.", "It was taken at a high ISO and processed."),
    "jpeg": ("It was saved with a strong JPEG setting.", "JPEG compression was set too strong."),
    "jpeg2000": ("It was compressed too strongly as JPEG 2000.", "The encoder had too few bits."),
    "webp": ("It was compressed too strongly as WebP.", "The upload compressed it too hard."),
    "palette": ("It was reduced to too few colors.", "It was saved with a small palette."),
    "brighten": ("The exposure was too long.", "Too much light reached the sensor."),
    "darken": ("The exposure was too short.", "Too little light reached the sensor."),
    "contrast_decrease": ("The tone curve was set too flat.", "Haze or a flat profile took the contrast."),
    "contrast_increase": ("The contrast was pushed too far.", "The tone curve is too steep."),
    "desaturate": ("The saturation was turned down, or the colors faded.", "The colors were lost in processing."),
    "colour_cast": ("The white balance was wrong.", "The light was colored and the white balance did not correct it."),
    "colour_bleed": ("The color channels were stored too coarsely.", "Processing smeared the color channels."),
    "aberration": ("The lens bends colors differently.", "The color channels are shifted, as by a cheap lens."),
    "oversharpen": ("The sharpening was set too strong.", "A sharpening filter was overdone."),
    "halo": ("The sharpening radius was too wide.", "A sharpening filter was overdone."),
}  # fmt: skip
UNKNOWN = (
    "The picture does not show that; I can only judge its technical quality.", "That cannot be seen in the pixels.",
    "Nothing in the picture tells me that.", "I judge technical quality and do not know this.",
    "The image alone does not say it.", "I have only the pixels, and they do not tell.",
    "I can judge sharpness, color and the like, but not this.",
)  # fmt: skip
REFUSALS = (
    "This is not about the picture; I only judge technical image quality.", "I only assess the quality of pictures.",
    "That has nothing to do with the quality of the image.", "I am made to judge image quality and cannot help with this.",
    "Please ask me about the quality of the picture.", "I cannot help with that; ask me how good the picture is.",
)  # fmt: skip
SUBJECTS = (
    "I can only judge technical quality.", "This question is not about technical quality.",
    "I judge how well it is reproduced, not what it shows.", "Content and taste are not mine to judge; I look at technical quality.",
    "I look at the technical side only.", "What it shows or whether it pleases is beyond me; I judge technical quality.",
)  # fmt: skip
ANSWERS_OF_OTHERS = {
    "unknown": ("I cannot tell", "I cannot tell.", "I cannot tell from the picture.", "I do not know."),
    "refuse": ("I cannot tell", "I can only judge image quality.", "That is not something I can answer."),
    "subject": ("I cannot tell", "I can only judge technical quality.", "I cannot judge that."),
}
WHY_OF_OTHERS = {"unknown": UNKNOWN, "refuse": REFUSALS, "subject": SUBJECTS}
SHARES = {"whether": 0.15, "kind": 0.15, "clean": 0.06, "where": 0.12, "part": 0.04, "corner": 0.04, "type": 0.12, "strength": 0.08,
          "cause": 0.07, "why": 0.03, "use": 0.08, "keep": 0.03, "rate": 0.03}  # fmt: skip
COMPARISONS = {"compare": 0.4, "changed": 0.6}
OTHERS = {"unknown": 0.4, "refuse": 0.35, "subject": 0.25}


@dataclass(frozen=True)
class Question:
    """A question about one picture.

    `types` are the families that it names and `objects` the regions. `yes` is whether yes is true of it (None
    where it is no yes/no question), `answer(level)` one true sentence for a picture of `level` 1..5, `wanted`
    the distortions that it speaks of, and `place` the quarter that it names.
    """

    query: str
    topic: str
    types: tuple[str, ...]
    objects: tuple[str, ...]
    yes: bool | None
    answer: Callable[[int], str]
    wanted: tuple[Part, ...]
    place: str | None = None


def draw_row(topics: dict[str, float], rng: np.random.Generator) -> dict:
    """A row of questions.jsonl, its topic drawn by share."""
    topic = str(rng.choice(list(topics), p=np.array(list(topics.values())) / sum(topics.values())))
    return pick(rng, rows_of(topic))


@cache
def rows_of(topic: str) -> tuple[dict, ...]:
    """The sentences of one topic."""
    return tuple(row for row in templates("questions") if row["topic"] == topic)


def row_for(parts: Sequence[Part], rng: np.random.Generator, topics: Sequence[str]) -> dict:
    """A row of one of `topics` for a picture with `parts`: of those that ask for certain kinds half ask for
    what is there, and damage in one place is mostly asked where it is."""
    shares = np.array([SHARES[topic] for topic in topics])
    if parts and parts[0].place:
        shares = shares * [3.0 if topic in ("where", "part", "corner") else 1.0 for topic in topics]
    rows = rows_of(topics[int(rng.choice(len(topics), p=shares / shares.sum()))])
    there = [row for row in rows if {part.kind for part in parts} & set(row.get("kinds", ()))]
    if there and rng.random() < 0.5:
        return pick(rng, there)
    return pick(rng, rows)


def asked_kind(parts: Sequence[Part], rng: np.random.Generator, share: float = NAMED) -> str:
    """A kind to ask about: one that is there with `share`, else one of a family that is not, at times another
    of the same family."""
    if parts and rng.random() < share:
        return pick(rng, parts).kind
    if parts and rng.random() < 0.2:
        part = pick(rng, parts)
        return pick(rng, KINDS_BY_FAMILY[part.family])
    absent = [family for family in DISTORTION_TYPES if family not in {part.family for part in parts}]
    return pick(rng, KINDS_BY_FAMILY[pick(rng, absent)])


def words_of(kind: str, family: str, rng: np.random.Generator) -> tuple[str, str]:
    """(a noun, an adjective) that are true names of a kind; those that are narrower than it are left out."""
    found = []
    for form in ("nouns", "adjectives"):
        every = phrases(form)[family]
        fitting = [phrase for phrase in every if kind in true_of(family, phrase)]
        found.append(pick(rng, fitting or every))
    return found[0], found[1]


def place_of(part: Part, rng: np.random.Generator) -> str:
    """ "in the top left quarter" or "across the whole picture"."""
    return pick(rng, QUARTERS[part.place] if part.place else EVERYWHERE)


def _absent(name: str, rng: np.random.Generator) -> str:
    return pick(rng, ("I see no {n}", "there is no {n}", "no {n} is visible", "it shows no {n}")).format(
        n=name
    )


def ask(
    row: dict, parts: Sequence[Part], rng: np.random.Generator, hidden: Sequence[str] = ()
) -> Question | None:
    """`row` about a picture with the visible `parts`, the strongest first; None where no true answer is
    known. `hidden` are families of damage too weak to be seen, which are not asked for."""
    text, words = row["text"], {}
    types, kinds = tuple(row.get("types", ())), row.get("kinds")
    if "{n}" in text or "{a}" in text:
        types, kinds, words = _flaw_asked(text, parts, rng)
        if not kinds:
            return None
    place = None
    if "{c}" in text:
        place, words["c"] = _corner_asked(parts, rng)
    if set(types) & set(hidden):
        return None
    about = _spoken_of(parts, types, place)
    hit = about if kinds is None else [part for part in about if part.kind in kinds]
    yes, answer = None, _ANSWERS[row["topic"]](row, hit, about, parts, place, words, rng)
    if isinstance(answer, tuple):
        yes, answer = answer
    return Question(
        query=text.format(**words),
        topic=row["topic"],
        types=types,
        objects=(words["c"],) if place else (),
        yes=yes,
        answer=answer if callable(answer) else lambda _: answer,
        wanted=tuple(about),
        place=place,
    )


def _flaw_asked(
    text: str, parts: Sequence[Part], rng: np.random.Generator
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """What fills the slots {n} and {a}: the family, the kinds that the words are true of, and the words."""
    kind = asked_kind(parts, rng)
    family = next(f for f, members in KINDS_BY_FAMILY.items() if kind in members)
    noun, adjective = words_of(kind, family, rng)
    kinds = true_of(family, noun if "{n}" in text else adjective)
    return (family,), kinds, {"n": noun, "a": adjective}


def _corner_asked(parts: Sequence[Part], rng: np.random.Generator) -> tuple[str, str]:
    """What fills the slot {c}: a place, half of the time that of the damage where it has one, and its name."""
    place = pick(rng, list(PLACES))
    if parts and parts[0].place and rng.random() < 0.5:
        place = parts[0].place
    return place, pick(rng, CORNERS[place])


def _spoken_of(parts: Sequence[Part], types: Sequence[str], place: str | None) -> list[Part]:
    """The parts of the families that a question names, or of all, and of the place that it names."""
    return [
        part
        for part in parts
        if (not types or part.family in types) and (place is None or part.place in (None, place))
    ]


def _yes_no(yes: bool, text: str) -> str:
    return sentence(f"{'yes' if yes else 'no'}, {text}")


def _whether(row, hit, about, parts, corner, words, rng):
    """Is it blurry? Is the exposure right? `yes` "absent" turns it round. What is there but not what was
    asked is named instead."""
    good = row.get("yes") == "absent"
    yes = bool(hit) != good
    if hit:
        part = hit[0]
        name = named(part, rng)
        text = pick(rng, (f"it has {name}", f"{effect(part.kind, rng)}: {name}", f"I see {name}", name))
        return yes, _yes_no(yes, f"{text} {place_of(part, rng)}" if part.place else text)
    name = EVERYDAY[(row.get("types") or [next(iter(_families_of(words)), "Blurs")])[0]]
    if about:  # the same family in another form
        return yes, _yes_no(yes, f"it is rather {named(about[0], rng)}")
    return yes, _yes_no(yes, _absent(name, rng))


def _families_of(words: dict[str, str]) -> list[str]:
    return [family for family, every in phrases("nouns").items() if words.get("n") in every]


def _clean(row, hit, about, parts, corner, words, rng):
    yes = (not parts) == (row["yes"] == "clean")
    text = clean(rng) if not parts else finding(parts[0], rng)
    return yes, _yes_no(yes, text[0].lower() + text[1:] if not text.startswith("I ") else text)


def _where(row, hit, about, parts, corner, words, rng):
    if hit or about:
        part = (hit or about)[0]
        where = place_of(part, rng)
        told = named(part, rng)
        return sentence(
            pick(
                rng,
                (
                    f"{where}: {told}",
                    f"{told} {where}",
                    f"it is {where}",
                    where,
                    f"the damage is {where}: {told}",
                ),
            )
        )
    if not parts:
        return pick(
            rng,
            (
                "Nowhere, the picture is clean.",
                "Nowhere; no distortion is visible.",
                "Nowhere: I see no damage.",
            ),
        )
    return sentence(
        f"nowhere, {_absent(EVERYDAY[_families_of(words)[0]] if _families_of(words) else 'such damage', rng)}"
    )


def _part(row, hit, about, parts, corner, words, rng):
    if not parts:
        return False, pick(
            rng,
            ("No, there is no visible damage.", "No, no part of it is damaged.", "No, the picture is clean."),
        )
    local = parts[0].place is not None
    yes = local == (row["yes"] == "local")
    return yes, _yes_no(
        yes, f"{named(parts[0], rng)} {'is ' if rng.random() < 0.3 else ''}{place_of(parts[0], rng)}"
    )


def _corner(row, hit, about, parts, corner, words, rng):
    if about:
        return sentence(f"the {words['c']} has {named(about[0], rng)}: {effect(about[0].kind, rng)}")
    return sentence(
        pick(
            rng,
            (
                f"the {words['c']} is fine",
                f"nothing is wrong in the {words['c']}",
                f"the {words['c']} is intact",
            ),
        )
    )


def _type(row, hit, about, parts, corner, words, rng):
    return findings(parts, rng)


def _strength(row, hit, about, parts, corner, words, rng):
    if hit or about:  # of a flaw that goes by another name as well
        part = (hit or about)[0]
        word = SEVERITY_WORDS[part.severity]
        forms = (
            f"{word}: {effect(part.kind, rng)}",
            f"it is {word}",
            f"{named(part, rng)}",
            f"the damage is {word}: {named(part, rng)}",
        )
        return sentence(pick(rng, forms))
    if not parts:
        return pick(
            rng,
            (
                "There is no visible damage.",
                "None: the picture is clean.",
                "Not at all, no damage is visible.",
            ),
        )
    families = _families_of(words) or row.get("types") or []
    return sentence(f"none, {_absent(EVERYDAY[families[0]] if families else 'such damage', rng)}")


def _why(row, hit, about, parts, corner, words, rng):
    if not parts:
        return pick(
            rng, ("Nothing went wrong, the picture is clean.", "There is no visible damage to explain.")
        )
    return f"{pick(rng, CAUSES[parts[0].kind])} {sentence(named(parts[0], rng) + ' is the result')}"


def _flaw(parts, rng):
    return named(parts[0], rng) if parts else "no damage"


def _use(row, hit, about, parts, corner, words, rng):
    flaw = _flaw(parts, rng)

    def answer(level: int) -> str:
        if level >= row["needs"]:
            good = "nothing disturbs" if flaw == "no damage" else f"{flaw} does not stand in the way"
            return f"Yes, it is good enough: {good}."
        blame = "its quality is not high enough" if flaw == "no damage" else f"{flaw} spoils it"
        if level == row["needs"] - 1:
            return f"{'Only small' if row['needs'] == 4 else 'Only if you must'}: {blame}."
        return f"No, {blame}."

    return answer


def _keep(row, hit, about, parts, corner, words, rng):
    flaw = _flaw(parts, rng)
    blame = "" if flaw == "no damage" else f": {flaw}"

    def answer(level: int) -> str:
        if level >= 4:
            return "Keep it, it is good." if not blame else f"Keep it, in spite of {flaw}."
        if level == 3:
            return f"Keep it unless you have a better one{blame}."
        return f"Take it again if you can{blame}." if level == 2 else f"Delete it{blame}."

    return answer


def _rate(row, hit, about, parts, corner, words, rng):
    words_of_level = {5: "excellent", 4: "good", 3: "fair", 2: "poor", 1: "bad"}
    text = findings(parts, rng)
    return lambda level: f"The quality is {words_of_level[level]}. {text}"


def _compare(row, hit, about, parts, corner, words, rng):
    if not parts:
        return pick(rng, ("I see no difference between the two.", "Both are alike: no damage is visible in the second.",
                          "They look the same."))  # fmt: skip
    return sentence(pick(rng, ("the first is better: the second has {n}", "the first one, since the second shows {n}",
                               "the second is worse: {n}")).format(n=named(parts[0], rng)))  # fmt: skip


def _changed(row, hit, about, parts, corner, words, rng):
    if not parts:
        return pick(
            rng,
            (
                "Nothing visible changed.",
                "I see no difference to the original.",
                "Nothing was lost: both look alike.",
            ),
        )
    text = finding(parts[0], rng)
    return pick(rng, (f"The second picture has {named(parts[0], rng)} {place_of(parts[0], rng)}.", text,
                      sentence(f"against the first, {effect(parts[0].kind, rng)}: {named(parts[0], rng)}"),
                      sentence(f"{named(parts[0], rng)} was added")))  # fmt: skip


_ANSWERS = {"whether": _whether, "kind": _whether, "cause": _whether, "clean": _clean, "where": _where, "part": _part,
            "corner": _corner, "type": _type, "strength": _strength, "why": _why, "use": _use, "keep": _keep, "rate": _rate,
            "compare": _compare, "changed": _changed}  # fmt: skip
