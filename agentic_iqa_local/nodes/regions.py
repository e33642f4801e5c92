"""Where the regions of a query lie in the picture: by the user's boxes, or by those of a model that can write them."""

from collections.abc import Iterable, Mapping

from agentic_iqa_local.config import Box
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import boxes_prompt
from agentic_iqa_local.nodes.query import same_words
from agentic_iqa_local.nodes.replies import boxes_reply
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

ROLE = "planner"  # its model writes boxes
MARKED = "marked region"  # what a box without a name is called where the query names no region


def with_boxes(named: Iterable[str], boxes: Mapping[str, Box]) -> dict[str, Box | None]:
    """The regions of a question, those that it has `named` and those of the user's `boxes`, each with its box if there
    is one. A box without a name is that of the first region that has none."""
    others = [name for name in named if not any(same_words(name, own) for own in boxes)]
    unnamed = others[0] if others else MARKED
    regions = {name or unnamed: box for name, box in boxes.items()}
    return regions | {name: None for name in others if name not in regions}


def found_boxes(query: str, names: list[str], images: OpenImages) -> dict[str, Box]:
    """Where the model sees these regions, in pixels of the upright picture; of one that it does not see, and of models
    that are not said to write boxes, none. Raises OutOfMemory, ModelLost."""
    section = images.services.section(ROLE)
    scale = images.services.settings.model(section.backend).boxes
    if scale == "none" or not names:
        return {}
    try:
        prompt = boxes_prompt(query, names)
        reply = ask(images.session(ROLE), prompt, boxes_reply(names), section)
    except (OutOfMemory, ModelLost):
        raise
    except (InvalidAnswer, VLMError) as error:
        images.warn(f"the model wrote no boxes for {', '.join(names)} ({error})")
        return {}
    found = {}
    for name, written in reply.model_dump(by_alias=True).items():
        box = written and images.box_in_view(ROLE, written, thousandths=scale == "thousandths")
        if box:
            found[name] = box
            images.warn(f"the model placed {name} at {','.join(map(str, box))}")
        elif written:
            images.warn(f"the model's box for {name} is no part of the picture: {written}")
    return found
