"""Where the regions of a query lie in the picture: by the user's boxes, or by those of a model that
can write them."""

from collections.abc import Iterable, Mapping, Sequence

from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.pictures import MARKED
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import same_words
from agentic_iqa_local.nodes.replies import boxes_reply
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.state import Box
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

ROLE = "planner"  # its model writes boxes


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
