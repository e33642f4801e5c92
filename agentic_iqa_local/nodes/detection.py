"""Which distortions are there, and how severe they are: the model's own probabilities times what LocalNR reads.

The odds that a family is there are the model's odds of Yes times the likelihood ratio of LocalNR's reading, which its
own record of errors bounds. A severity's probability is the model's of its word times a Gaussian around what LocalNR
reads. How far the model counts is its `trust`: at 0 LocalNR decides alone.
"""

import json
import logging
from collections.abc import Mapping

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.detector import WORD_SEVERITIES, expit, load_detector, logit
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.prompts import distortion_prompt
from agentic_iqa_local.nodes.replies import detection_reply
from agentic_iqa_local.nodes.tool_runs import ROLE, Task
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.score_fusion import letter_probabilities, written_probabilities
from agentic_iqa_local.state import DISTORTION_TYPES, Box, Detection, FamilyDetection
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

logger = logging.getLogger(__name__)

YES_NO = ("Yes", "No")
PRESENT = 0.5  # from which probability on a family is evidence


def read_presence(task: Task) -> dict[str, dict[str, float]]:
    """{object: {family: the model's probability of Yes}}; empty in modes without logits, and where one token cannot
    tell Yes from No. Where nothing is to be looked for, only the families that the query names are read."""
    bench, plan, found = task.bench, task.plan, {}
    if bench.settings.fusion.mode != "logits" or not bench.services.client(ROLE).reads_logits:
        return {}
    prompt, session = (
        distortion_prompt("presence", task.query, plan.objects, task.reason),
        bench.models.session(ROLE),
    )
    named = {} if plan.plan.distortion_detection else plan.distortions or {}
    try:
        for name in plan.objects:
            kinds, begun = (
                named.get(name) or DISTORTION_TYPES,
                f'{{{json.dumps(name, ensure_ascii=False)}: {{"',
            )
            reads = {
                kind: session.read_letters(prompt, f'{begun}{kind}": "', YES_NO) for kind in kinds
            }
            found[name] = {
                kind: letter_probabilities(read.logprobs)["Yes"] for kind, read in reads.items()
            }
    except (OutOfMemory, ModelLost):
        raise
    except VLMError as error:
        logger.info("Yes and No were not read: %s", one_line(str(error)))
        return {}
    return found


def detect(task: Task) -> dict[str, Detection]:
    """Of each object of a task, how probable each family of distortions is. Without logits the model writes a list.
    Raises InvalidAnswer, VLMError."""
    bench, objects, models = task.bench, task.plan.objects, read_presence(task)
    if task.plan.plan.distortion_detection and not models:
        sure, section = (
            bench.settings.fusion.classification_confidence,
            bench.services.section(ROLE),
        )
        prompt = distortion_prompt("detection", task.query, objects, task.reason)
        lists = ask(
            bench.models.session(ROLE), prompt, detection_reply(objects), section
        ).model_dump(by_alias=True)
        for name, listed in lists.items():
            kinds = dict.fromkeys([*listed, *DISTORTION_TYPES])
            models[name] = {kind: sure if kind in listed else 1 - sure for kind in kinds}
    return {
        name: detection_of(bench, bench.pictures.boxes.get(name), models.get(name, {}))
        for name in objects
    }


def detection_of(bench: Workbench, box: Box | None, model: Mapping[str, float]) -> Detection:
    """How probable each family is in the picture or in a region `box` (pixels): odds times odds. `model` has the
    model's own probabilities, whose odds `fusion.model_trust` draws towards the prior."""
    detection = _read(bench, box)
    trust = detection.model_trust = bench.services.model_trust(ROLE)
    prior = logit(load_detector().of(bench.pictures.has_reference).prior)
    kinds = dict.fromkeys([*model, *DISTORTION_TYPES])
    detection.families = {kind: detection.families.get(kind, FamilyDetection()) for kind in kinds}
    for kind, family in detection.families.items():
        family.model = model.get(kind)
        own = prior if family.model is None else trust * logit(family.model) + (1 - trust) * prior
        family.probability = expit(
            own + (0.0 if family.measured is None else logit(family.measured))
        )
    return detection


def _read(bench: Workbench, box: Box | None) -> Detection:
    """What LocalNR reads of the picture or of a region; why it could not is the `error`."""
    try:
        examined = bench.tools.examine(box)
    except ToolError as error:
        return Detection(error=one_line(str(error)))
    reference = bench.pictures.has_reference
    graphic = None if reference else examined.graphic
    if bench.tools.unlike_photograph is not None:
        return Detection(
            graphic=graphic, error="LocalNR knows photographs alone, and this is unlike one"
        )
    families = {}
    for kind, ratio in load_detector().log_ratios(examined, reference).items():
        read, severity = (
            max(examined.presence[kind], examined.presence_in_part[kind]),
            examined.severities[kind],
        )
        families[kind] = FamilyDetection(read=read, measured=expit(ratio), severity=severity)
    return Detection(graphic=graphic, families=families, exposure=examined.exposure)


def found_families(detection: Detection) -> list[str]:
    """The families that are there, at most three, the strongest first."""
    weights = strongest(detection)
    there = [kind for kind, family in detection.families.items() if family.probability >= PRESENT]
    return sorted(there, key=weights.__getitem__, reverse=True)[:3]


def strongest(detection: Detection) -> dict[str, float]:
    """{family or "none": probability that it is the strongest}: none as far as no family is there, the rest by
    probability times severity. Sums to 1."""
    families = detection.families
    weights = {
        kind: family.probability * (family.severity or 1.0) for kind, family in families.items()
    }
    there, total = (
        max(family.probability for family in families.values()),
        sum(weights.values()) or 1.0,
    )
    return {kind: there * weight / total for kind, weight in weights.items()} | {"none": 1 - there}


def severity_probabilities(
    detection: Detection | None,
    item: Mapping[str, str],
    words: Mapping[str, float] | None,
    bench: Workbench,
) -> dict[str, float] | None:
    """How probable each severity of a family is: the model's `words`, or what it wrote in `item`, times LocalNR's
    Gaussian. Sums to 1; a family that is there is not "none". None where nothing is known beyond what was written."""
    family = detection.families.get(item["type"]) if detection else None
    if family is None or family.severity is None:
        return dict(words) if words else None
    trust, sure = (
        bench.services.model_trust(ROLE),
        bench.settings.fusion.classification_confidence,
    )
    if words is None and item["severity"] in WORD_SEVERITIES:
        words = written_probabilities(item["severity"], list(WORD_SEVERITIES), sure)
    likelihood = load_detector().severity_likelihood(family.severity, bench.pictures.has_reference)
    weights = {
        word: like * (words or {}).get(word, 1.0) ** trust for word, like in likelihood.items()
    }
    there = 1.0 if family.probability >= PRESENT else family.probability
    total = sum(weights.values())
    return {"none": 1 - there} | {word: there * weight / total for word, weight in weights.items()}
