"""Which distortions are there, and how severe they are: the model's own probabilities times what
LocalNR reads.

The odds that a family is there are the model's odds of Yes times the likelihood ratio of LocalNR's
reading, which its own record of errors bounds. A severity's probability is the model's of its word
times a Gaussian around what LocalNR reads. How far the model counts is its `trust`: at 0 LocalNR
decides alone.
"""

import json
import logging
from collections.abc import Mapping

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.detector import (
    WORD_SEVERITIES,
    expit,
    load_detector,
    load_measures,
    logit,
)
from agentic_iqa_local.iqa_tools.measures import shown
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.replies import detection_reply
from agentic_iqa_local.nodes.tool_runs import ROLE, Task
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.score_fusion import letter_probabilities, written_probabilities
from agentic_iqa_local.state import DISTORTION_TYPES, Box, Detection, FamilyDetection, ninth
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

logger = logging.getLogger(__name__)

YES_NO = ("Yes", "No")
SOFT = 0.25  # the steepness of edges of which the softest part of a picture is out of focus
PRESENT = 0.5  # from which probability on a family is evidence


def read_presence(task: Task) -> dict[str, dict[str, float]]:
    """{object: {family: the model's probability of Yes}}; empty in modes without logits, and where
    one token cannot tell Yes from No. Where nothing is to be looked for, only the families that the
    query names are read."""
    bench, plan = task.bench, task.plan
    if bench.settings.fusion.mode != "logits" or not bench.services.client(ROLE).reads_logits:
        return {}
    prompt = objects_prompt("presence", task.query, plan.objects, task.reason)
    session = bench.models.session(ROLE)
    named = {} if plan.plan.distortion_detection else plan.distortions or {}
    found: dict[str, dict[str, float]] = {}
    try:
        for name in plan.objects:
            found[name] = {}
            for kind in named.get(name) or DISTORTION_TYPES:
                prefix = f'{{{json.dumps(name, ensure_ascii=False)}: {{"{kind}": "'
                read = session.read_letters(prompt, prefix, YES_NO)
                found[name][kind] = letter_probabilities(read.logprobs)["Yes"]
    except (OutOfMemory, ModelLost):
        raise
    except VLMError as error:
        logger.info("Yes and No were not read: %s", one_line(str(error)))
        return {}
    return found


def list_presence(task: Task) -> dict[str, dict[str, float]]:
    """The same of a model without logits, from the list that it writes. Raises
    VLMError."""
    bench, objects = task.bench, task.plan.objects
    sure, section = bench.settings.fusion.classification_confidence, bench.services.section(ROLE)
    prompt = objects_prompt("detection", task.query, objects, task.reason)
    reply = ask(bench.models.session(ROLE), prompt, detection_reply(objects), section)
    found = {}
    for name, listed in reply.model_dump(by_alias=True).items():
        unlisted = dict.fromkeys([*listed, *DISTORTION_TYPES], 1 - sure)
        found[name] = unlisted | dict.fromkeys(listed, sure)
    return found


def detect(task: Task) -> dict[str, Detection]:
    """Of each object of a task, how probable each family of distortions is. Raises
    VLMError."""
    models = read_presence(task)
    if task.plan.plan.distortion_detection and not models:
        models = list_presence(task)
    detections = {}
    for name in task.plan.objects:
        box = task.bench.pictures.boxes.get(name)
        detections[name] = detection_of(task.bench, box, models.get(name, {}))
    return detections


def detection_of(bench: Workbench, box: Box | None, model: Mapping[str, float]) -> Detection:
    """How probable each family is in the picture or in a region `box` (pixels): odds times odds.
    `model` has the model's own probabilities, whose odds `fusion.model_trust` draws towards the
    prior. Why LocalNR could not read it is the `error`."""
    reference, trust = bench.pictures.has_reference, bench.services.model_trust(ROLE)
    detection = Detection(model_trust=trust)
    read, severities, words = {}, {}, {}
    try:
        examined = bench.tools.examine(box)
        detection.graphic = None if reference else examined.graphic
        if bench.tools.unlike_photograph is not None:
            raise ToolError("LocalNR knows photographs alone, and this is unlike one")
        read, severities = load_detector().log_ratios(examined, reference), examined.severities
        detection.exposure = examined.exposure
        if box is None and examined.measures:
            read = _with_measures(read, examined.measures, detection)
            words = _shown(examined.measures)
    except ToolError as error:
        detection.error = one_line(str(error))
    prior = logit(load_detector().of(reference).prior)
    for kind in dict.fromkeys([*model, *DISTORTION_TYPES]):
        own, measured, odds = model.get(kind), None, prior
        if own is not None:
            odds = trust * logit(own) + (1 - trust) * prior
        if kind in read:
            measured = expit(read[kind])
            odds += logit(measured)
        detection.families[kind] = FamilyDetection(
            model=own,
            measured=measured,
            probability=expit(odds),
            severity=severities.get(kind),
            shown=words.get(kind),
        )
    return detection


def _with_measures(
    read: Mapping[str, float], measures: Mapping[str, float], detection: Detection
) -> dict[str, float]:
    """The log-ratios of families with what the whole picture's pixels say, which a part of it would
    not: a part may well be dark. Notes which side of a right exposure they say, whether pixels are
    enlarged, whether only the background is out of focus, and where a part is blurred."""
    record = load_measures()
    least = _least()
    combined = record.with_measures(read, measures, least)
    tones = record.measurements["tones"].probabilities(measures)
    bright = tones["blown out"] + tones["washed out"]
    detection.exposure = {"too dark": tones["too dark"], "too bright": bright}
    detection.pixelation = expit(record.measurements["grid"].log_ratios(measures)["Compression"])
    in_part = {
        name: max(one.log_ratios(measures).values()) > least
        for name, one in record.measurements.items()
        if name.startswith("part ")
    }
    detection.in_part = any(in_part.values())
    if in_part["part with Blurs"]:
        x, y = round(1000 * measures["part x"]), round(1000 * measures["part y"])
        detection.blurred_part = ninth((x, y, x, y), 1000, 1000)
    is_soft = measures["softest"] < SOFT
    detection.shallow_focus = is_soft and read["Blurs"] > least > combined["Blurs"]
    return combined


def _least() -> float:
    """The log-ratio from which on a family is evidence without a reference."""
    return logit(PRESENT) - logit(load_detector().no_reference.prior)


def _shown(measures: Mapping[str, float]) -> dict[str, str]:
    """By family what the pixels show of it, where they say that it is there."""
    words = {}
    for measurement in load_measures().measurements.values():
        ratios, p = measurement.log_ratios(measures), measurement.probabilities(measures)
        for name in sorted(p, key=p.__getitem__):  # the likeliest last
            family, told = measurement.claims[name].family, shown(name, measures)
            if told and ratios[family] > _least():
                words[family] = told
    return words


def found_families(detection: Detection) -> list[str]:
    """The families that are there, at most three, the strongest first."""
    weights = strongest(detection)
    there = [kind for kind, family in detection.families.items() if family.probability >= PRESENT]
    return sorted(there, key=weights.__getitem__, reverse=True)[:3]


def strongest(detection: Detection) -> dict[str, float]:
    """{family or "none": probability that it is the strongest}: none as far as no family is there,
    the rest by probability times severity. Sums to 1."""
    families = detection.families
    there = max(family.probability for family in families.values())
    return shared_by_weight(families, there) | {"none": 1 - there}


def shared_by_weight(families: Mapping[str, FamilyDetection], total: float) -> dict[str, float]:
    """A `total` shared by families in proportion to probability times severity."""
    weights = {kind: one.probability * (one.severity or 1.0) for kind, one in families.items()}
    whole = sum(weights.values()) or 1.0
    return {kind: total * weight / whole for kind, weight in weights.items()}


def severity_probabilities(
    family: FamilyDetection, model: str | Mapping[str, float], bench: Workbench
) -> dict[str, float]:
    """How probable each severity of a family is: the model's own probabilities of the words, or the
    word that it wrote, times LocalNR's Gaussian. Sums to 1; a family that is there is not "none".
    Empty where nothing is known beyond what was written."""
    words = {} if isinstance(model, str) else dict(model)
    if family.severity is None:
        return words
    if isinstance(model, str) and model in WORD_SEVERITIES:
        sure = bench.settings.fusion.classification_confidence
        words = written_probabilities(model, list(WORD_SEVERITIES), sure)
    trust = bench.services.model_trust(ROLE)
    likelihood = load_detector().severity_likelihood(family.severity, bench.pictures.has_reference)
    weights = {word: like * words.get(word, 1.0) ** trust for word, like in likelihood.items()}
    there = 1.0 if family.probability >= PRESENT else family.probability
    total = sum(weights.values())
    shares = {word: there * weight / total for word, weight in weights.items()}
    return {"none": 1 - there} | shares
