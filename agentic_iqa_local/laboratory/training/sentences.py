"""True sentences about a distorted picture: its distortions by type, strength and place, made of parts so
that few repeat.

Knows what was done to the picture and nothing of prompts. The words keep to what `reasoning.misstatements`
reads: a sentence about one family names no other, and the strength that stands at a name is the distortion's
own.
"""

import re
from collections.abc import Sequence

import numpy as np

from agentic_iqa_local.levels import DISTORTION_TYPES
from agentic_iqa_local.synthetic.distortions import DISTORTIONS, Part

SEVERITY_WORDS = ("none", "slight", "moderate", "moderate", "severe", "extreme")
"""The word of each severity 0..5."""

# The first is the program's own word and stands in most sentences.
STRENGTHS = {
    "slight": ("slight", "mild", "minor", "faint"),
    "moderate": ("moderate", "clear", "noticeable", "visible"),
    "severe": ("severe", "strong", "heavy"),
    "extreme": ("extreme", "very strong", "overwhelming", "massive"),
}
OWN_WORD_SHARE = 0.6
# What a strength does to the picture, as a sentence's second half.
CONSEQUENCES = {
    "slight": ("most of the picture is unharmed", "it takes a close look to see it", "it hardly disturbs",
               "the detail is still there", "a casual viewer may miss it"),
    "moderate": ("it is easy to see", "it disturbs without ruining the picture", "some detail is lost to it",
                 "one notices it at normal size", "the content is still easy to make out"),
    "severe": ("it catches the eye at once", "much detail is lost to it", "it spoils the picture", "it dominates the impression",
               "fine structure has suffered a lot"),
    "extreme": ("it ruins the picture", "little detail is left", "hardly anything survives it", "the picture is close to useless",
                "the content is hard to make out"),
}  # fmt: skip
EVERYWHERE = ("across the whole picture", "everywhere", "over the whole frame", "all over the picture", "from edge to edge",
              "throughout the picture")  # fmt: skip
QUARTERS = {
    "top left": ("in the top left quarter", "in the upper left", "in the top left part", "at the top left",
                 "in the upper left quarter"),
    "top right": ("in the top right quarter", "in the upper right", "in the top right part", "at the top right",
                  "in the upper right quarter"),
    "bottom left": ("in the bottom left quarter", "in the lower left", "in the bottom left part", "at the bottom left",
                    "in the lower left quarter"),
    "bottom right": ("in the bottom right quarter", "in the lower right", "in the bottom right part", "at the bottom right",
                     "in the lower right quarter"),
}  # fmt: skip

# By kind: names ("a " before what is counted, "+" before plurals) and effects, clauses that say what one
# sees.
NAMES: dict[str, tuple[str, ...]] = {
    "gaussian_blur": ("blur", "blurring", "softness and blur", "a soft blur", "a lack of sharpness from blur"),
    "defocus_blur": ("blur", "defocus blur", "blur from missed focus", "out-of-focus blur", "a focus blur"),
    "motion_blur": ("motion blur", "blur", "blur from camera shake", "directional blur", "blur from movement"),
    "upscale": ("blur", "blur from enlargement", "upscaling blur", "blur from a low resolution", "softness and blur"),
    "denoise": ("blur", "blurring of texture", "smoothing blur", "blur from overdone smoothing", "detail-eating blur"),
    "white_noise": ("noise", "grain", "random noise", "sensor noise", "fine-grained noise"),
    "chroma_noise": ("noise", "color noise", "chroma noise", "noise in the colors", "colored noise"),
    "impulse_noise": ("noise", "salt-and-pepper noise", "impulse noise", "noise of black and white dots", "dotted noise"),
    "speckle_noise": ("noise", "speckle noise", "+speckles", "speckling", "multiplicative noise"),
    "poisson_noise": ("noise", "shot noise", "grain", "low-light noise", "photon noise"),
    "blotchy_noise": ("noise", "coarse grain", "blotchy noise", "clumpy noise", "coarse noise"),
    "jpeg": ("compression", "JPEG compression", "+JPEG artifacts", "blocking", "+compression artifacts"),
    "jpeg2000": ("compression", "JPEG 2000 compression", "wavelet compression", "+compression artifacts", "ringing from compression"),
    "webp": ("compression", "WebP compression", "+compression artifacts", "low-bitrate compression", "+coding artifacts"),
    "palette": ("compression", "banding", "color compression to few tones", "banding from compression",
                "compression of the palette"),
    "brighten": ("overexposure", "brightness change", "brightening", "excess brightness and overexposure", "a brightness shift"),
    "darken": ("underexposure", "brightness change", "darkening", "a brightness loss", "a brightness shift into the dark"),
    "contrast_decrease": ("contrast loss", "a loss of contrast", "a lack of contrast", "flatness from low contrast",
                          "contrast reduction"),
    "contrast_increase": ("excess contrast", "contrast exaggeration", "overdone contrast", "a contrast boost",
                          "an overdose of contrast"),
    "desaturate": ("color loss", "desaturation", "color fading", "color distortion", "a loss of color"),
    "colour_cast": ("a color cast", "a color shift", "a tint", "color distortion", "a shift of the colors"),
    "colour_bleed": ("color bleeding", "color distortion", "color smearing", "a bleeding of the colors", "color bleed"),
    "aberration": ("color fringing", "chromatic aberration", "color distortion", "+color fringes", "lateral chromatic aberration"),
    "oversharpen": ("oversharpening", "over-sharpening", "excess sharpness", "artificial sharpness", "overdone sharpening"),
    "halo": ("oversharpening with halos", "+halos", "+sharpening halos", "sharpening with wide halos", "haloing from sharpening"),
}  # fmt: skip
EFFECTS: dict[str, tuple[str, ...]] = {
    "gaussian_blur": ("edges are soft", "fine detail is blurred away", "contours melt into each other", "texture is washed smooth",
                      "small structures run together", "outlines lack definition", "lines spread and lose their bite",
                      "nothing looks crisp"),
    "defocus_blur": ("the focus is off", "edges spread into small discs", "bright points swell into discs",
                     "the lens did not catch the focus", "detail is out of focus", "contours double and dissolve",
                     "the plane of focus lies elsewhere", "fine lines vanish into soft discs"),
    "motion_blur": ("edges smear in one direction", "the camera seems to have shaken", "points are drawn out into streaks",
                    "detail is dragged along one line", "contours are doubled along the movement", "the picture looks shaken",
                    "lines across the movement are wiped out", "everything trails to one side"),
    "upscale": ("detail is coarse, as if enlarged from a small file", "edges are soft and stepped", "fine texture is missing",
                "it looks enlarged beyond its resolution", "there are too few real pixels behind it",
                "small structures were never resolved", "outlines look thick and woolly", "lettering and texture dissolve"),
    "denoise": ("texture is smoothed to patches", "fine detail is wiped away and only strong edges stay", "surfaces look like wax",
                "a smoothing filter ate the texture", "foliage and skin turn to paint", "small structures are ironed out",
                "it looks painted instead of photographed", "areas between edges are empty of detail"),
    "white_noise": ("grain covers flat areas", "random dots hide fine texture", "smooth areas look sandy", "every pixel flickers",
                    "a carpet of grain lies over the picture", "even tones are restless", "fine detail drowns in grain",
                    "dark and light grains are strewn over everything"),
    "chroma_noise": ("colored speckles cover flat areas", "red, green and blue dots dance over smooth areas",
                     "grey areas sparkle in false colors", "the colors of neighboring pixels jump", "rainbow grain lies on surfaces",
                     "colored grain flickers from pixel to pixel", "skin and sky are strewn with colored dots", "colored grain veils the detail"),
    "impulse_noise": ("black and white dots are scattered about", "single pixels are stuck at black or white",
                      "it looks strewn with salt and pepper", "isolated dots replace pixels", "bright and dark specks break up surfaces",
                      "dead pixels pierce the picture", "stray dots sit on every surface", "white and black grains pepper it"),
    "speckle_noise": ("bright areas are speckled", "the lighter the tone, the stronger the grain", "light surfaces look gritty",
                      "highlights are rough with grain while shadows are calmer", "bright tones crawl with dots",
                      "the lighter a place, the rougher it is", "speckles break up bright surfaces", "pale areas look like sandpaper"),
    "poisson_noise": ("it is grainy, as in low light", "grain shows as if too little light was caught", "tones are restless as at high ISO",
                      "it looks pushed by several stops", "grain eats the fine tones", "smooth areas are gritty",
                      "it resembles a night shot with high gain", "grain roughens lit areas most"),
    "blotchy_noise": ("coarse grain covers the picture", "grain forms wide blotches", "clumps of grain sit on smooth areas",
                      "surfaces look mottled", "wide spots of grain wander over even tones", "the grain is wide and clumpy",
                      "flat areas are stained by grain", "it looks like enlarged film grain"),
    "jpeg": ("block edges show", "flat areas break into blocks", "ringing surrounds edges", "a grid of 8 by 8 squares shows",
             "gradients turn into steps of blocks", "detail is replaced by block patterns", "it was saved at a low JPEG setting",
             "squares stand out in smooth areas"),
    "jpeg2000": ("texture is smeared by the codec and edges ring", "coding washes out the texture", "ripples follow the contours",
                 "fine texture fell to the codec", "wavelet ripples surround edges", "smooth patches replace texture",
                 "detail is coded away", "ringing runs along strong edges"),
    "webp": ("detail is flattened by the codec and block borders show", "texture is replaced by coding patterns",
             "patches of flat color stand where texture was", "the codec kept too few bits", "block borders cut through texture",
             "fine detail was coded away", "surfaces look like plastic between block borders", "the encoder dropped the fine texture"),
    "palette": ("smooth areas break into bands of one color", "too few colors are left", "gradients turn into steps",
                "skies and skin fall into bands", "contour lines run through smooth areas", "tones jump from band to band",
                "it looks posterized", "shading is reduced to flat patches"),
    "brighten": ("it is too bright and pale", "bright tones are washed out", "highlights have lost their detail", "the whites are empty",
                 "light areas bleach into white", "it looks lit far too much", "pale tones swallow the structure",
                 "the exposure was too long"),
    "darken": ("it is too dark", "detail sinks into the shadows", "shadows have closed up", "dark areas hide what is in them",
               "it looks as if too little light came in", "the mid-tones are buried in darkness", "the exposure was too short",
               "black swallows the structure"),
    "contrast_decrease": ("the tones are flat and grey", "light and dark lie too close together", "blacks and whites are missing",
                          "a grey veil lies over it", "it looks dull as through fog", "shadows and lights meet in the middle",
                          "the tonal range is narrow", "depth is missing because all tones are alike"),
    "contrast_increase": ("tones are clipped at both ends", "shadows and lights are crushed", "mid-tones are missing",
                          "dark parts fall to black and light parts to white", "the tones are hard and brutal",
                          "shading breaks off abruptly", "structure is lost in black and in white", "transitions are harsh"),
    "desaturate": ("colors are dull", "colors are faded towards grey", "hues are nearly gone", "it looks like an old print",
                   "reds and greens have paled", "the colors lack life", "only a trace of color is left", "everything drifts to grey"),
    "colour_cast": ("a tint lies over it", "the hues are shifted", "white is not white any more", "the white balance is off",
                    "greys look colored", "all colors lean to one side", "skin and neutral tones look unnatural",
                    "a colored veil changes every hue"),
    "colour_bleed": ("colors run over edges", "color no longer follows the objects", "hues spill into their surroundings",
                     "outlines and colors do not agree", "small colored things lose their color to neighbors",
                     "color clouds float around objects", "the colors are smeared though the outlines stand",
                     "color spreads past its borders"),
    "aberration": ("colored fringes line the edges", "red and blue edges do not coincide", "contours have a red and a blue side",
                   "the color planes are shifted against each other", "outlines are doubled in color",
                   "purple and green rims follow edges", "it looks like a misregistered print", "edges split into colors"),
    "oversharpen": ("edges and texture are harsh", "fine edges are exaggerated", "texture looks gritty and etched",
                    "outlines are cut too hard", "every pore and leaf is overdrawn", "fine structure looks brittle",
                    "detail is crunchy and artificial", "edges look carved"),
    "halo": ("halos line the edges", "bright and dark rims surround objects", "contours glow", "white lines follow dark outlines",
             "objects look cut out", "a light border runs along every contour", "edges overshoot on both sides",
             "rims of light stand around outlines"),
}  # fmt: skip
CLEAN_STARTS = (
    "No distortion is visible", "The picture is clean", "I see no distortion", "Nothing is wrong technically",
    "There is no visible damage", "No flaw stands out", "It looks undistorted", "The picture looks natural",
    "I find no technical flaw", "It is free of visible distortion",
)  # fmt: skip
CLEAN_DETAILS = (
    "edges are crisp and texture is fine", "edges and textures look natural", "tones and colors are balanced",
    "fine detail is intact", "colors are true and smooth areas are even", "detail holds up to a close look",
    "highlights and shadows keep their structure", "surfaces are smooth and lines are clear", "texture is rich down to the small things",
    "gradients are smooth", "lines are clean and colors are lively", "light and shade are well spread", "neither grain nor blocks show",
)  # fmt: skip
LEVEL_SENTENCES = (
    "The quality is {w}.", "Overall the quality is {w}.", "The overall quality is {w}.", "That makes {a} picture.",
    "All in all {a} picture.", "So the quality is {w}.", "I rate it {w}.", "In sum, {a} picture.",
)  # fmt: skip
# By family, what tells in a text that it speaks of it; no word is in two of them.
KEYWORDS: dict[str, re.Pattern[str]] = {
    "Blurs": re.compile(r"\bblur\w*|\b(de|un|mis)?focus\w*|\bsoft(ness|er)?\b|\bshak\w+|\bunsharp|\bsmooth(ing|ed)\b", re.I),
    "Color distortions": re.compile(r"\bcolou?r (loss|shift|distortion|bleed|fring|smear|fading|cast)\w*|\bdesaturat\w+|\btint\w*|\bcolou?r cast"
                                    r"|\bhues?\b|aberration|(loss|shift|bleeding) of (the )?colou?rs?|\bfad(ed|ing)\b|\bfring\w+", re.I),
    "Compression": re.compile(r"\bcompress\w*|\bblock\w*|\bjpe?g\b|\bring(ing)?\b|\bbanding\b|\bcod(ing|ec|ed)\b|\bartifacts?\b|\bposteri[sz]\w+", re.I),
    "Noise": re.compile(r"\bnois[ey]\w*|\bgrain\w*|\bspeckl\w*|\bblotch\w*", re.I),
    "Brightness change": re.compile(r"\b(over|under)-?expos\w+|\bbright(ness|ening|ened)\b|\btoo (bright|dark)\b|\bdarken\w*", re.I),
    "Sharpness": re.compile(r"\bover-?sharpen\w*|\bsharpen(ing|ed)\b|\bhalo\w*|\b(excess|artificial|overdone) sharpness\b", re.I),
    "Contrast": re.compile(r"\bcontrast\w*|\bflatness\b", re.I),
}  # fmt: skip
STRENGTH_WORDS: dict[str, re.Pattern[str]] = {
    "slight": re.compile(r"\b(slight(ly)?|mild(ly)?|minor|faint(ly)?|a little|barely)\b", re.I),
    "moderate": re.compile(r"\b(moderate(ly)?|medium|clear(ly)?|noticeabl[ey]|visibl[ey])\b", re.I),
    "severe": re.compile(r"\b(severe(ly)?|(?<!very )strong(ly)?|heav(y|ily)|bad(ly)?)\b", re.I),
    "extreme": re.compile(r"\b(extreme(ly)?|very strong(ly)?|overwhelming(ly)?|massive(ly)?)\b", re.I),
}


def _pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[int(rng.integers(len(items)))]


def sentence(text: str) -> str:
    """`text` with a capital and a full stop."""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def strength(severity: str, rng: np.random.Generator) -> str:
    """A word for a severity, mostly the program's own."""
    words = STRENGTHS[severity]
    return words[0] if rng.random() < OWN_WORD_SHARE else _pick(rng, words[1:])


def where(place: str | None, rng: np.random.Generator, always: bool = False) -> str:
    """ " in the top left quarter"; what is everywhere says so now and then, or `always`."""
    if place is not None:
        return f" {_pick(rng, QUARTERS[place])}"
    return f" {_pick(rng, EVERYWHERE)}" if always or rng.random() < 0.3 else ""


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _named(kind: str, word: str, rng: np.random.Generator) -> tuple[str, bool]:
    """("a severe color cast", whether it is a plural)."""
    name = _pick(rng, NAMES[kind])
    if name.startswith(("a ", "an ")):
        return f"{_article(word)} {word} {name.split(' ', 1)[1]}", False
    return f"{word} {name.removeprefix('+')}", name.startswith("+")


def named(part: Part, rng: np.random.Generator) -> str:
    """Strength and type: "severe motion blur", "a slight color cast"."""
    return _named(part.kind, strength(SEVERITY_WORDS[part.severity], rng), rng)[0]


def effect(kind: str, rng: np.random.Generator) -> str:
    """What one sees of it, a clause without capital and full stop."""
    return _pick(rng, EFFECTS[kind])


def explanation(part: Part, rng: np.random.Generator) -> str:
    """What an analysis says of one distortion, below 160 characters: its effect and place, and mostly its
    name or its strength."""
    seen, place = effect(part.kind, rng), where(part.place, rng)
    word = SEVERITY_WORDS[part.severity]
    name, _ = _named(part.kind, strength(word, rng), rng)
    draw = rng.random()
    if draw < 0.35:
        return sentence(f"{name}{place}: {seen}")
    if draw < 0.6:
        return sentence(f"{seen}{place}; {_pick(rng, CONSEQUENCES[word])}")
    if draw < 0.8:
        return sentence(f"{seen}{place}")
    return sentence(f"{name}{place}; {_pick(rng, CONSEQUENCES[word])}")


def finding(part: Part, rng: np.random.Generator) -> str:
    """A sentence that names type and strength, the place where it has one, and mostly what one sees."""
    word = SEVERITY_WORDS[part.severity]
    said = strength(word, rng)
    name, plural = _named(part.kind, said, rng)
    seen, place = effect(part.kind, rng), where(part.place, rng)
    draw = int(rng.integers(9))
    if draw == 0:
        return sentence(f"{name}{place}: {seen}")
    if draw == 1:
        return sentence(f"there {'are' if plural else 'is'} {name}{place}; {seen}")
    if draw == 2:
        return sentence(f"I see {name}{place}, and {_pick(rng, CONSEQUENCES[word])}")
    if draw == 3:
        return sentence(f"{seen}{place}: {name}")
    if draw == 4:
        return sentence(f"the picture has {name}{place}; {_pick(rng, CONSEQUENCES[word])}")
    if draw == 5:
        return sentence(
            f"{name} {'show' if plural else 'shows'}{place or ' ' + _pick(rng, EVERYWHERE)},"
            f" {_pick(rng, CONSEQUENCES[word])}"
        )
    if draw == 6:
        return sentence(f"{place.strip()}, {seen}; this is {name}" if place else f"{seen}; this is {name}")
    if draw == 7:
        return sentence(f"it suffers from {name}{place}: {seen}")
    return sentence(f"the main flaw is {name}{place}; {seen}")


def findings(parts: Sequence[Part], rng: np.random.Generator) -> str:
    """One or two sentences about the strongest distortions, the strongest first; `clean` without any."""
    if not parts:
        return clean(rng)
    if len(parts) == 1:
        return finding(parts[0], rng)
    first, second = parts[:2]
    other = named(second, rng)
    draw = int(rng.integers(5))
    if draw == 0:
        return sentence(
            f"{named(first, rng)}{where(first.place, rng)} and {other}{where(second.place, rng)}:"
            f" {effect(first.kind, rng)}"
        )
    if draw == 1:
        return f"{finding(first, rng)} There is also {other}{where(second.place, rng)}."
    if draw == 2:
        return f"{finding(first, rng)} In addition, {effect(second.kind, rng)}: {other}."
    if draw == 3:
        return sentence(f"two things harm it: {named(first, rng)}, and {other}; {effect(first.kind, rng)}")
    return f"{finding(first, rng)} On top of it comes {other}."


def clean(rng: np.random.Generator) -> str:
    """That nothing is wrong, in one sentence."""
    start, draw = _pick(rng, CLEAN_STARTS), rng.random()
    if draw < 0.2:
        return sentence(start)
    if draw < 0.6:
        return sentence(f"{start}: {_pick(rng, CLEAN_DETAILS)}")
    if draw < 0.8:
        return sentence(f"{start}; {_pick(rng, CLEAN_DETAILS)}")
    first, second = (CLEAN_DETAILS[i] for i in rng.choice(len(CLEAN_DETAILS) - 1, 2, replace=False))
    return sentence(f"{first}, and {second}")


def level_sentence(word: str, rng: np.random.Generator) -> str:
    """That the quality is `word` (excellent, good, fair, poor, bad)."""
    return _pick(rng, LEVEL_SENTENCES).format(w=word, a=f"{_article(word)} {word}")


def reasoning(parts: Sequence[Part], level: str | None, rng: np.random.Generator) -> str:
    """Sentences below 300 characters: what is wrong, and mostly the `level` ("fair")."""
    text = findings(parts, rng)
    return f"{text} {level_sentence(level, rng)}" if level and rng.random() < 0.8 else text


def families_named(text: str) -> set[str]:
    """The families that a text speaks of."""
    return {family for family in DISTORTION_TYPES if KEYWORDS[family].search(text)}


def strengths_named(text: str) -> set[str]:
    """The severities that a text speaks of."""
    return {word for word, pattern in STRENGTH_WORDS.items() if pattern.search(text)}


# What a phrase that asks for a family is true of; a phrase that none of its family's patterns finds is true
# of all its kinds.
_TRUE_OF: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Blurs": (
        (r"motion|shak|movement|direction|panning|trailing|vibration|tremor|wobble|streak|shutter", ("motion_blur",)),
        (r"radial|zoom|box|hunting|bokeh|depth", ()),
        (r"focus|lens", ("defocus_blur", "gaussian_blur")),
        (r"gaussian", ("gaussian_blur",)),
        (r"smear|smudg", ("motion_blur", "denoise")),
    ),
    "Color distortions": (
        (r"desatur|undersatur|dull|fade|washed|muted|drained|saturation loss|sepia|gr[ae]y", ("desaturate",)),
        (r"fring|aberration", ("aberration",)),
        (r"bleed|contamination", ("colour_bleed",)),
        (r"oversatur|too saturated|garish|neon|colorful", ()),
        (r"\b(yellow|green|magenta|blue|bluish|orange|reddish|pink|purple|warm|cold)", ()),
        (r"cast|tint|white.balance|hue|shift|drift|tinge", ("colour_cast",)),
    ),
    "Compression": (
        (r"jpeg ?2000|wavelet", ("jpeg2000",)),
        (r"webp", ("webp",)),
        (r"jpe?g", ("jpeg",)),
        (r"banding|posteri|palette|gradient", ("palette",)),
        (r"block|square|pixelat|dct|8x8|tiling", ("jpeg", "webp")),
        (r"ring|mosquito", ("jpeg", "jpeg2000")),
        (r"quanti", ("jpeg", "palette")),
    ),
    "Noise": (
        (r"salt|impulse|pepper|hot pixel|stuck|dot", ("impulse_noise",)),
        (r"chroma|colou?r", ("chroma_noise",)),
        (r"speckl|multiplicative", ("speckle_noise", "impulse_noise")),
        (r"shot|low-light|photon|quantum", ("poisson_noise",)),
        (r"gaussian|white|additive|thermal|read", ("white_noise",)),
        (r"clump|mottle|blotch|coarse", ("blotchy_noise",)),
        (r"grain|gritty|sand", ("white_noise", "poisson_noise", "speckle_noise", "blotchy_noise")),
    ),
    "Brightness change": (
        (r"insufficient|uneven|falloff|problem|error|wrong|badly|change|shift|drift", ("brighten", "darken")),
        (r"under|dark|dim|lack|black|loss|\blow\b", ("darken",)),
        (r"over|bright|blown|blow|burn|clip|flash|excess|light|white|high", ("brighten",)),
    ),
    "Sharpness": (),
    "Contrast": (
        (r"low|poor|lack|weak|loss|reduc|insufficient|little|flat|narrow|squash|miss|deficien|drop|short|without|starv|gr[ae]y|bad",
         ("contrast_decrease",)),
        (r"high|excess|much|harsh|extreme|exagger|overdone|boost|contrasty|punchy", ("contrast_increase",)),
    ),
}  # fmt: skip


def true_of(family: str, phrase: str) -> tuple[str, ...]:
    """The kinds of `family` that `phrase` is a true name of: "too dark" of darkening alone, "noisy" of every
    noise; none where only a part that is not recorded, such as the hue of a cast, would tell."""
    for pattern, kinds in _TRUE_OF[family]:
        if re.search(pattern, phrase, re.IGNORECASE):
            return kinds
    return tuple(kind for kind, distortion in DISTORTIONS.items() if distortion.family == family)
