"""Where the regions of a query lie in the picture: by the user's boxes, or by those of a model that
can write them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.pictures import MARKED
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import region_in, same_words
from agentic_iqa_local.nodes.replies import boxes_reply
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.state import Box, PlannerOutput
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

ROLE = "planner"  # its model writes boxes
# By a word for a place: left, top, right and bottom in sixths of the picture
_PLACES = {
    "left": (0, 0, 3, 6),
    "right": (3, 0, 6, 6),
    "top": (0, 0, 6, 3),
    "upper": (0, 0, 6, 3),
    "bottom": (0, 3, 6, 6),
    "lower": (0, 3, 6, 6),
    "centre": (2, 2, 4, 4),
    "center": (2, 2, 4, 4),
    "middle": (2, 2, 4, 4),
}
_PARTS = {"half", "side", "part", "corner", "quarter", "area", "region"}
_RATED = re.compile(
    r"\W*(?:please )?(?:rate|score|judge|assess|evaluate|grade|how \w+ (?:is|are))"
    r"(?: only| just)?(?: the quality of)? (?:the|my|his|her|their) "
    r"(?!aesthetics|beauty|details?|resolution|overall)([a-z]+)\W*",
    re.IGNORECASE,
)
_ALONE = {"left", "right", "centre", "center", "middle"}  # "the top" may be something to wear


def with_boxes(named: Iterable[str], boxes: Mapping[str, Box]) -> dict[str, Box | None]:
    """The regions of a question, those that it has `named` and those of the user's `boxes`, each
    with its box if there is one. A box without a name is that of the first region that has none."""
    others = [name for name in named if not any(same_words(name, own) for own in boxes)]
    unnamed = others[0] if others else MARKED
    regions = {name or unnamed: box for name, box in boxes.items()}
    return regions | {name: None for name in others if name not in regions}


def placed(name: str, whole: Box) -> Box | None:
    """The box of a region that is named by its place alone ("left half", "top right corner",
    "centre"), within that of the `whole` picture; None for any other name. The centre is the middle
    third of both sides."""
    words = re.findall(r"\w+", name.casefold())
    said = [word for word in words if word not in _PARTS]
    if not said or not _PLACES.keys() >= {*said}:
        return None
    if len(words) == 1 and words[0] not in _ALONE:
        return None
    lefts, tops, rights, bottoms = zip(*(_PLACES[word] for word in said), strict=True)
    first, upper, last, lower = max(lefts), max(tops), min(rights), min(bottoms)
    if first >= last or upper >= lower:  # "left right"
        return None
    left, top, right, bottom = whole
    wide, high = right - left, bottom - top
    return (
        left + wide * first // 6,
        top + high * upper // 6,
        left + wide * last // 6,
        top + high * lower // 6,
    )


def unplaced(query: str, plan: PlannerOutput, boxes: Mapping[str, Box]) -> list[str]:
    """The regions that a plan names, or that a query asks to be rated, of which no box is known."""
    named = [name for name in plan.objects if name != "Global"]
    rated = _RATED.fullmatch(query)
    region = rated and region_in(query, rated[1])
    if region and plan.query_type == "IQA":
        named.append(region)
    lacking: list[str] = []
    for name in named:
        if not any(same_words(name, other) for other in (*boxes, *lacking)):
            lacking.append(name)
    return lacking


def found_boxes(query: str, names: list[str], bench: Workbench) -> dict[str, Box]:
    """Where the model sees these regions, in pixels of the upright picture; of one that it does not
    see, and of models that are not said to write boxes, none. Raises OutOfMemory, ModelLost."""
    section = bench.services.section(ROLE)
    if bench.settings.model(section.backend).boxes == "none" or not names:
        return {}
    try:
        prompt = objects_prompt("boxes", query, names)
        reply = ask(bench.models.session(ROLE), prompt, boxes_reply(names), section)
    except (OutOfMemory, ModelLost):
        raise
    except VLMError as error:
        bench.warn(f"the model wrote no boxes for {', '.join(names)} ({error})")
        return {}
    found = {}
    for name, written in reply.model_dump(by_alias=True).items():
        box = _in_picture(written, bench) if written else None
        if box and bench.pictures.holds(box):
            found[name] = box
            bench.warn(f"the model placed {name} at {','.join(map(str, box))}")
        else:
            bench.warn(f"the model has no box in the picture for {name}: {written}")
    return found


def _in_picture(written: Sequence[int], bench: Workbench) -> Box | None:
    """A box that the model wrote of its first view, in what it saw or in thousandths of that, as
    one in pixels of the upright picture."""
    view, seen = bench.models.seen_views(ROLE)[0]
    wide, high = seen.width, seen.height
    if bench.settings.model(bench.services.section(ROLE).backend).boxes == "thousandths":
        wide = high = 1000
    if not wide or not high:  # what the model saw is not known
        return None
    x, y = (view[2] - view[0]) / wide, (view[3] - view[1]) / high
    left, top, right, bottom = written
    box = round(left * x), round(top * y), round(right * x), round(bottom * y)
    return moved(box, view[:2])
