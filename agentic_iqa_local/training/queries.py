"""A grammar of user queries with the plan that each one calls for, by the rules of the paper (see `nodes.planner.derive_flags`)."""

from dataclasses import dataclass

import numpy as np

from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.state import PlannerOutput

OBJECTS = """vehicle,car,bus,truck,bicycle,train,boat,ship,plane,motorcycle,road,street,bridge,building,house,tower,church,window,
door,wall,roof,sign,text,label,logo,poster,screen,clock,lamp,sky,cloud,clouds,sun,moon,sea,water,river,lake,beach,sand,mountain,
mountains,hill,rocks,forest,tree,trees,leaves,grass,flower,flowers,garden,field,snow,background,foreground,person,man,woman,child,
baby,face,faces,eyes,hair,hand,skin,crowd,dancer,player,dog,cat,horse,bird,birds,fish,cow,sheep,butterfly,insect,food,cake,bread,
fruit,apple,vegetables,plate,cup,glass,bottle,table,chair,sofa,bed,book,books,shelf,phone,laptop,keyboard,camera,toy,ball,shirt,
dress,hat,shoes,bag,jewelry,ring,statue,painting,stage,fence,fountain,market,shop,bench,umbrella,flag,left side,right side,center,
top left corner,bottom edge,upper half,lower half,red car,white house,traffic light,license plate,tail light,street sign""".replace(
    "\n", ""
).split(",")

NOUNS = {
    "Blurs": ("blur", "motion blur", "camera shake", "softness", "defocus", "smearing", "blurriness", "lack of focus", "focus problems"),
    "Color distortions": ("color cast", "a tint", "color shift", "wrong colors", "color distortion", "dull colors", "washed-out colors", "faded colors", "color bleeding"),
    "Compression": ("compression artifacts", "JPEG artifacts", "blockiness", "blocks", "ringing", "blocking artifacts", "compression", "macroblocks"),
    "Noise": ("noise", "grain", "graininess", "speckles", "image noise", "sensor noise", "color noise", "ISO noise"),
    "Brightness change": ("overexposure", "underexposure", "darkness", "exposure problems", "blown highlights", "brightness problems", "wrong brightness"),
    "Sharpness": ("oversharpening", "halos", "sharpening halos", "edge halos", "too much sharpening", "sharpening artifacts"),
    "Contrast": ("low contrast", "contrast loss", "too much contrast", "contrast problems", "flat contrast", "harsh contrast"),
}  # fmt: skip
ADJECTIVES = {
    "Blurs": ("blurry", "blurred", "out of focus", "soft", "smeared", "unfocused", "fuzzy", "shaky"),
    "Color distortions": ("tinted", "washed out", "dull in color", "discolored", "faded", "off in color", "oddly colored"),
    "Compression": ("blocky", "over-compressed", "compressed", "pixelated by compression", "full of JPEG artifacts"),
    "Noise": ("noisy", "grainy", "speckled", "full of grain"),
    "Brightness change": ("too dark", "overexposed", "underexposed", "too bright", "dark", "blown out"),
    "Sharpness": ("oversharpened", "over-sharpened", "full of halos", "too crisp"),
    "Contrast": ("low in contrast", "flat", "too contrasty", "lacking contrast"),
}  # fmt: skip
TOOLS = ("LPIPS", "SSIM", "MS-SSIM", "FSIM", "VSI", "PSNR", "VIF", "GMSD", "DISTS", "TOPIQ_FR", "TOPIQ_NR", "QAlign", "MUSIQ",
         "CLIPIQA", "NIQE", "BRISQUE", "PIQE", "MANIQA", "LIQE", "NIMA", "ARNIQA", "HyperIQA", "DBCNN", "NLPD", "MAD")  # fmt: skip

RATINGS = """Rate the perceptual quality of this image.|Rate this image.|How good is this photo?|What is the quality of this image?|
Assess the image quality.|Please assess the quality of this picture.|Score this photo.|Is this a high quality image?|
How would you rate the technical quality?|Give me a quality score.|Evaluate the visual quality of the picture.|quality?|
Is this picture technically OK?|What quality level does this image have?|How bad is this image?|Judge the overall quality.|
Overall quality please|Would you say this photo is of good quality?|Is the picture degraded?|Are there any distortions?|
What distortions does this image have?|Which distortion is most visible?|What is wrong with this picture?|
Does anything degrade this photo?|Find the artifacts in this image.|How severe is the degradation?|Can I print this photo?|
Is this image good enough for publication?|Compare the image with the reference.|How close is it to the original?|
How much quality was lost?|Did the processing damage the image?|Describe the technical flaws.|List all quality problems.|
What is the most severe distortion in the image?|Is the quality of this image acceptable?|rate it from excellent to bad|
How does the image quality look to you?|Tell me whether this scan is usable.|Is this frame good or bad?|
Does the photo look clean?|What would a viewer think of the quality?|Please rate the picture quality on five levels.|
I need a quality check of this file.|Quality control: pass or fail?|How visible are the artifacts?""".replace("\n", "").split("|")  # fmt: skip
OBJECT_RATINGS = """Rate the quality of the {o}.|How good is the {o}?|Assess the {o}.|Is the {o} of good quality?|
How does the {o} look in terms of quality?|What is the quality of the {o} in this photo?|Is the {o} degraded?|
What distortions does the {o} have?|Judge the technical quality of the {o}.|Check the {o} for distortions.|
Is there anything wrong with the {o}?|Please evaluate the {o}.|Focus on the {o}: how good is the quality?|
Which distortion affects the {o}?|How bad is the {o}?|quality of {o}?|Score the {o} please.|Only look at the {o} and rate it.|
Does the {o} look clean?|I only care about the {o}. How is its quality?|How severe is the degradation of the {o}?""".replace("\n", "").split("|")  # fmt: skip
TWO_OBJECTS = ("Compare the quality of the {o} and the {p}.", "Rate the {o} and the {p}.", "How good are the {o} and the {p}?",
               "Is the {o} better than the {p}?", "Assess the {o} and the {p} separately.", "Which is more degraded, the {o} or the {p}?")  # fmt: skip
NOUN_QUERIES = """Is there {n} in this image?|How strong is the {n}?|Check the photo for {n}.|Do you see {n}?|Any {n}?|
Does this picture suffer from {n}?|How severe is the {n} in this photo?|Rate the {n}.|Is {n} visible?|Look for {n} please.|
I think there is {n}. How bad is it?|Analyze the {n} in this image.|Tell me about the {n}.|Is the image affected by {n}?|
How much {n} do you see?|Does {n} reduce the quality?|Evaluate the image with respect to {n}.|{n}?""".replace("\n", "").split("|")  # fmt: skip
NOUN_OBJECT_QUERIES = """Is there {n} on the {o}?|How strong is the {n} on the {o}?|Does the {o} show {n}?|Check the {o} for {n}.|
How much {n} affects the {o}?|Do you see {n} in the {o}?|Is the {o} affected by {n}?|Rate the {n} of the {o}.|
How severe is the {n} in the {o}?|Does the {o} suffer from {n}?""".replace("\n", "").split("|")  # fmt: skip
ADJECTIVE_QUERIES = """Is the image {a}?|Is this photo {a}?|Why does it look {a}?|This looks {a} to me, how bad is it?|
Is the picture too {a}?|My photo came out {a}. How bad is it?|Does the image look {a}?|Would you call this {a}?|{a} or not?|
How {a} is this picture?|The image seems {a}, can you check?""".replace("\n", "").split("|")  # fmt: skip
ADJECTIVE_OBJECT_QUERIES = """Is the {o} {a}?|Why does the {o} look {a}?|Does the {o} look {a}?|How {a} is the {o}?|
The {o} looks {a}. How bad is it?|Would you say the {o} is {a}?|I find the {o} {a}, do you agree?""".replace("\n", "").split("|")  # fmt: skip
TOOL_QUERIES = """Use {t} to rate this image.|What is the {t} score?|Rate the image with {t}.|Run {t} on this photo.|
Compute {t}.|Assess the quality using {t}.|Please apply {t} and tell me the quality.|How good is it according to {t}?|{t} score please|
Measure the quality with {t}.|Give me the quality by {t}.""".replace("\n", "").split("|")  # fmt: skip
TOOL_OBJECT_QUERIES = """Use {t} to rate the {o}.|What is the {t} score of the {o}?|Run {t} on the {o}.|Assess the {o} with {t}.|
How good is the {o} according to {t}?|Measure the quality of the {o} using {t}.""".replace("\n", "").split("|")  # fmt: skip
OTHER = """What is in this picture?|Describe the scene.|Where was this photo taken?|How does this image make you feel?|
Is this photo beautiful?|What is the mood of the picture?|Tell me a story about this image.|Who is in the picture?|
Is the composition pleasing?|What season is it?|How many people are there?|What is happening here?|Is this a good artwork?|
Which emotion does the picture convey?|Suggest a title for this photo.|Do you like this picture?|What style is this painting?|
Is it day or night?|What time of day was it taken?|Does the photo look romantic?|Is the framing artistic?|
Write a caption.|What objects can you see?|Would this make a nice postcard?|Is it a happy scene?|Count the animals.|
What is the weather like?|Which country is this?|How aesthetic is the image?|Is the scene peaceful or tense?""".replace("\n", "").split("|")  # fmt: skip
OTHER_OBJECT = """What color is the {o}?|What is the {o} doing?|How many {o} are there?|Is the {o} beautiful?|Who owns the {o}?|
Describe the {o}.|Where is the {o}?|What kind of {o} is this?|Does the {o} look happy?|How big is the {o}?""".replace("\n", "").split("|")  # fmt: skip
PREFIXES = (
    "",
    "",
    "",
    "",
    "",
    "",
    "Hi, ",
    "Please: ",
    "Quick question: ",
    "As a photographer, ",
    "For our archive: ",
    "Hello! ",
    "Hey, ",
)
SUFFIXES = ("", "", "", "", "", "", " Thanks!", " Be honest.", " Answer briefly.", " Please explain.", " Thank you.")
REASONS = (
    "Missing tool scores for {o} region", "No tool scores available", "Distortion analysis does not cover all query_scope objects",
    "Missing analysis for {o}", "Contradictory evidence: severe {n} but high scores", "Executor reported uncertainty",
)  # fmt: skip


@dataclass(frozen=True)
class PlannedQuery:
    """A query with the plan that the rules give it."""

    query: str
    has_reference: bool
    choices: tuple[str, ...] | None
    replan_history: tuple[str, ...]
    plan: PlannerOutput


def pick(rng: np.random.Generator, items):
    """One item of a sequence."""
    return items[int(rng.integers(len(items)))]


def _phrase(rng: np.random.Generator, template: str, **words: str) -> str:
    text = template.format(**words)
    text = text[0].upper() + text[1:] if rng.random() < 0.8 else text
    prefix = pick(rng, PREFIXES)
    if prefix and prefix[-2] == ",":
        text = text[0].lower() + text[1:]
    text = prefix + text + pick(rng, SUFFIXES)
    return text.lower() if rng.random() < 0.1 else text


def draw_query(rng: np.random.Generator) -> PlannedQuery:
    """One query of the grammar; objects, tools and distortions are copied into the plan as the query spells them."""
    o, p = (str(x) for x in rng.choice(OBJECTS, 2, replace=False))
    first, second = (str(x) for x in rng.choice(list(NOUNS), 2, replace=False))
    words = dict(o=o, p=p, n=pick(rng, NOUNS[first]), a=pick(rng, ADJECTIVES[first]), t=pick(rng, TOOLS))
    scope: list[str] | str = "Global"
    types: list[str] | None = None
    tool: str | None = None
    other = False
    draw = rng.random()
    if draw < 0.24:
        text = _phrase(rng, pick(rng, RATINGS), **words)
    elif draw < 0.40:
        text, scope = _phrase(rng, pick(rng, OBJECT_RATINGS), **words), [o]
    elif draw < 0.46:
        text, scope = _phrase(rng, pick(rng, TWO_OBJECTS), **words), [o, p]
    elif draw < 0.70:
        types = [first]
        on_object = rng.random() < 0.5
        noun = rng.random() < 0.55
        if noun and rng.random() < 0.3:
            words["n"] += f" {pick(rng, ('and', 'or'))} {pick(rng, NOUNS[second])}"
            types = [first, second]
        elif not noun and rng.random() < 0.3:
            words["a"] += f" {pick(rng, ('and', 'or'))} {pick(rng, ADJECTIVES[second])}"
            types = [first, second]
        templates = (
            (NOUN_OBJECT_QUERIES if on_object else NOUN_QUERIES)
            if noun
            else (ADJECTIVE_OBJECT_QUERIES if on_object else ADJECTIVE_QUERIES)
        )
        text, scope = _phrase(rng, pick(rng, templates), **words), [o] if on_object else "Global"
    elif draw < 0.79:
        text, tool = _phrase(rng, pick(rng, TOOL_QUERIES), **words), words["t"]
    elif draw < 0.86:
        text, tool, scope = _phrase(rng, pick(rng, TOOL_OBJECT_QUERIES), **words), words["t"], [o]
    elif draw < 0.95:
        text, other = _phrase(rng, pick(rng, OTHER), **words), True
    else:
        text, other, scope = _phrase(rng, pick(rng, OTHER_OBJECT), **words), True, [o]
    if scope != "Global" and text == text.lower():
        scope = [name.lower() for name in scope]
    has_reference = bool(rng.random() < 0.3)
    history = ()
    if not other and rng.random() < 0.1:
        history = (f"[Iteration 1] {pick(rng, REASONS).format(**words)}",)
    choices = None
    if rng.random() < 0.12:
        choices = pick(rng, (("Yes", "No"), ("Excellent", "Good", "Fair", "Poor", "Bad"), ("Blur", "Noise", "Compression", "None"),
                             ("Low", "Medium", "High"), ("Slight", "Moderate", "Severe")))  # fmt: skip
    source = "Explicit" if types else "Inferred"
    query_type = "Other" if other else "IQA"
    plan = PlannerOutput(
        query_type=query_type,
        query_scope=scope,
        distortion_source=source,
        distortions=dict.fromkeys(["Global"] if scope == "Global" else scope, types) if types else None,
        reference_mode="Full-Reference" if has_reference else "No-Reference",
        required_tool=tool,
        plan=derive_flags(query_type, scope, source, tool),
    )
    return PlannedQuery(text, has_reference, choices, history, plan)
