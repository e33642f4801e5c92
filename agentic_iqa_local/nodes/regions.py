"""Where the regions of a query lie in the picture: by the user's boxes, or by those of a model that
can write them."""

from collections.abc import Iterable, Mapping, Sequence

from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import same_words
from agentic_iqa_local.nodes.replies import boxes_reply
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.state import Box
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

ROLE = "planner"  # its model writes boxes
MARKED = "marked region"  # what a box without a name is called where the query names no region


def with_boxes(named: Iterable[str], boxes: Mapping[str, Box]) -> dict[str, Box | None]:
    """The regions of a question, those that it has `named` and those of the user's `boxes`, each
    with its box if there is one. A box without a name is that of the first region that has none."""
    others = [name for name in named if not any(same_words(name, own) for own in boxes)]
    unnamed = others[0] if others else MARKED
    regions = {name or unnamed: box for name, box in boxes.items()}
    return regions | {name: None for name in others if name not in regions}


def found_boxes(query: str, names: list[str], bench: Workbench) -> dict[str, Box]:
    """Where the model sees these regions, in pixels of the upright picture; of one that it does not
    see, and of models that are not said to write boxes, none. Raises OutOfMemory, ModelLost."""
    section = bench.services.section(ROLE)
    scale = bench.settings.model(section.backend).boxes
    if scale == "none" or not names:
        return {}
    try:
        prompt = objects_prompt("boxes", query, names)
        reply = ask(bench.models.session(ROLE), prompt, boxes_reply(names), section)
    except (OutOfMemory, ModelLost):
        raise
    except (InvalidAnswer, VLMError) as error:
        bench.warn(f"the model wrote no boxes for {', '.join(names)} ({error})")
        return {}
    found = {}
    for name, written in reply.model_dump(by_alias=True).items():
        if written is None:
            continue
        box = _box_in_picture(written, scale, bench)
        if box is None:
            bench.warn(f"the model's box for {name} is no part of the picture: {written}")
            continue
        found[name] = box
        bench.warn(f"the model placed {name} at {','.join(map(str, box))}")
    return found


def _box_in_picture(written: Sequence[int], scale: str, bench: Workbench) -> Box | None:
    """A box that the model wrote of its first view, in what it saw or in thousandths of that, as
    one in pixels of the upright picture; None for one that is no part of the view, or too small."""
    view, seen = bench.models.seen_views(ROLE)[0]
    wide, high = (1000, 1000) if scale == "thousandths" else (seen.width, seen.height)
    left, top, right, bottom = written
    if not wide or not high or not (left < right <= wide and top < bottom <= high):
        return None
    x, y = (view[2] - view[0]) / wide, (view[3] - view[1]) / high
    box = round(left * x), round(top * y), round(right * x), round(bottom * y)
    return moved(box, view[:2]) if bench.pictures.is_large_enough(box) else None
