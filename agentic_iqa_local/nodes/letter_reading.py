"""From the letters to q: reads the answer letters of a picture as closely as is needed, and fuses them with
the tools' scores.

The letters are read once. Where an interval of q is asked for that is narrower than they give, they are
looked at more closely, the cheapest look first: with A for Bad too, then those of crops of the picture.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, Prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import letter_reply
from agentic_iqa_local.nodes.workbench import OpenImages, RoleSession
from agentic_iqa_local.score_fusion import (
    ScoreFusion,
    expected_level,
    letter_probabilities,
    written_probabilities,
)
from agentic_iqa_local.state import (
    LETTER_TO_LEVEL,
    LETTERS,
    ExecutorOutput,
    FusionResult,
    Look,
    Mode,
    PlannerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

ROLE = "summarizer"

Probabilities = dict[str, float]  # of each letter
Scores = Sequence[tuple[str, float]]  # (tool, score 1..5)


@dataclass(frozen=True)
class ScoringPrompts:
    """What the letters are read after: the usual prompt, the one in which A stands for Bad, and the same for
    a crop, which tell of no evidence of the whole picture."""

    usual: Prompt
    opposite: Prompt
    crop: Prompt
    crop_opposite: Prompt


def scoring_prompts(
    query: str, evidence: ExecutorOutput | None, earlier: Sequence[str] = ()
) -> ScoringPrompts:
    """The prompts of a rating that rests on `evidence`; `earlier` are the lines of a conversation's earlier
    turns."""
    prompt = partial(summarizer_prompt, query, scoring=True, earlier=earlier)
    return ScoringPrompts(
        usual=prompt(evidence),
        opposite=prompt(evidence, reversed_letters=True),
        crop=prompt(None),
        crop_opposite=prompt(None, reversed_letters=True),
    )


def _mean(readings: Sequence[Probabilities]) -> Probabilities:
    return {letter: sum(p[letter] for p in readings) / len(readings) for letter in readings[0]}


@dataclass
class _Letters:
    """The letters of one picture: what was read so far of each view of it, in each order, and of each crop."""

    prompts: ScoringPrompts
    mode: Mode
    images: OpenImages
    usual: list[Probabilities] = field(default_factory=list)
    opposite: list[Probabilities] = field(default_factory=list)
    crops: list[Probabilities] = field(default_factory=list)
    off_masses: list[float] = field(default_factory=list)

    def read_whole(self, *, usual: bool = True, opposite: bool = False) -> None:
        """Every view in the orders asked for; the reasoning goes on from the usual one, read last."""
        sureness = self.images.sureness
        again = sureness is not None and sureness.may_want_more
        for view in range(len(self.images.views(ROLE))):
            session = self.images.session(ROLE, view)
            if opposite:
                self.opposite.append(self._read(session, self.prompts.opposite, turned=True))
            if usual:
                self.usual.append(self._read(session, self.prompts.usual))
            if view > 0 and not again:
                self.images.close_session(ROLE, view)

    def read_crops(self) -> None:
        """Each crop by itself, in both orders."""
        for crop in self.images.crops(ROLE):
            with self.images.session_on(ROLE, crop.box) as session:
                usual = self._read(session, self.prompts.crop)
                turned = self._read(session, self.prompts.crop_opposite, turned=True)
            self.crops.append(_mean([usual, turned]))

    def closer_looks(self) -> Iterator[tuple[Callable[[], None], int]]:
        """The looks that are left, the cheapest first, each with its number of reads."""
        if not self.opposite:
            yield partial(self.read_whole, usual=False, opposite=True), len(self.images.views(ROLE))
        if not self.crops and (crops := self.images.crops(ROLE)):
            yield self.read_crops, 2 * len(crops)

    def _read(self, session: RoleSession, prompt: Prompt, *, turned: bool = False) -> Probabilities:
        """The probability of each letter; `turned` where A stands for Bad."""
        p, off_mass = read_once(session, prompt, LETTERS, self.mode, self.images)
        if self.images.sureness is not None:
            self.images.sureness.reads += 1
        self.off_masses += [] if off_mass is None else [off_mass]
        return dict(zip(LETTERS, reversed(p.values()), strict=True)) if turned else p

    def result(self) -> FusionResult:
        """p_c is the mean over views and orders; where crops were read, of that and the mean over the crops."""
        whole, gap = _mean([*self.usual, *self.opposite]), None
        if self.opposite:
            gap = abs(expected_level(_mean(self.usual)) - expected_level(_mean(self.opposite)))
        p_c = _mean([whole, _mean(self.crops)]) if self.crops else whole
        return revised(
            _result(p_c, self.off_masses, self.mode, self.images),
            both_orders=bool(self.opposite),
            crops=len(self.crops),
            order_gap=gap,
            crop_spread=statistics.pstdev(map(expected_level, self.crops)) if self.crops else None,
        )


def read_and_fuse(
    prompts: ScoringPrompts,
    tools: Scores,
    images: OpenImages,
    *,
    checks: Scores = (),
    look: Look = "one order",
    plan: PlannerOutput | None = None,
) -> FusionResult:
    """p_c from the model's letters, averaged over what was read of the picture, fused with the tools' scores.

    Args:
        prompts: what the letters are read after.
        tools: the scores that vote; `checks` are those without a vote.
        images: the picture; as long as its `sureness` wants more of the answer to `plan`, it is looked at
            more closely.
        look: how closely to begin with.

    Raises:
        InvalidAnswer, VLMError
    """
    mode = usable_mode(images)
    if not tools:
        images.note("no tool scores: q rests on the model's letters alone")  # ScoreFusion logs it
    if mode == "uniform":
        p_c = dict.fromkeys(LETTERS, 1 / len(LETTERS))
        alike = FusionResult(mode="uniform", vlm_letter=None, p_c=p_c, off_letter_mass=None)
        return _fused(alike, tools, checks, images)
    letters, sureness = _Letters(prompts, mode, images), images.sureness
    letters.read_whole(opposite=look != "one order")
    if look == "crops":
        letters.read_crops()
    fusion = _fused(letters.result(), tools, checks, images)
    if mode != "logits" or sureness is None:
        return fusion
    for look_closer, reads in letters.closer_looks():
        if not sureness.wants_more(fusion, plan, reads):
            break
        look_closer()
        fusion = _fused(letters.result(), tools, checks, images)
    return fusion


def _fused(letters: FusionResult, tools: Scores, checks: Scores, images: OpenImages) -> FusionResult:
    """The letters' part of a fusion with the tools' part."""
    settings, scores, sigma = images.services.settings.fusion, [score for _, score in tools], None
    if settings.eta == "auto" and tools:
        maps = images.services.tools.maps
        # that nothing was lost is known exactly: quality is not beyond the ends of the tools' scales
        ends = {} if images.identical else {name: maps[name].reachable for name, _ in tools if name in maps}
        sigma = load_reliability().sigma_of_mean(tools, ends)
    fusion = fusion_of(settings, sigma)
    p_c = {LETTER_TO_LEVEL[letter]: p for letter, p in letters.p_c.items()}
    measured = [score for _, score in (*tools, *checks)]
    return revised(
        letters,
        alpha=fusion.compute_perceptual_weights(scores),
        q_bar=fusion.mean_score(scores),
        q=fusion.fuse_scores(scores, p_c),
        dq_dqbar=fusion.sensitivity(scores, p_c),
        eta=fusion.eta if scores else None,
        sigma=sigma,
        voters=sorted({tool for tool, _ in tools}),
        disagreement=max(measured) - min(measured) if measured else None,
    )


def fusion_of(settings: FusionSettings, sigma: float | None) -> ScoreFusion:
    """The fusion that the configuration describes. α is a Gaussian likelihood of q̄ with variance σ², so that
    `eta: auto` is 1/(2σ²); without tools (None) α is uniform whatever η is."""
    eta = settings.eta if settings.eta != "auto" else 1 / (2 * sigma**2) if sigma else 1.0
    return ScoreFusion(
        eta, temperature=settings.temperature, classification_confidence=settings.classification_confidence
    )


def answer_letter(fusion: FusionResult) -> str:
    """The letter that a fusion answers with: of the level nearest to q, or of the likeliest choice. Raises
    ValueError where there is neither."""
    if fusion.q is not None:
        return ScoreFusion().map_to_level(fusion.q)
    if fusion.vlm_letter is None:
        raise ValueError("fusion: expected a score or a letter, got neither")
    return max(fusion.p, key=fusion.p.__getitem__)


def read_choices(prompt: Prompt, letters: Sequence[str], images: OpenImages) -> FusionResult:
    """Probabilities of the user's own choices, averaged over the picture's views. Raises VLMError in uniform
    mode: no letter is preferred there, so none can be answered."""
    mode = usable_mode(images)
    if mode == "uniform":
        raise VLMError(
            "mode uniform reads no letters, so it cannot answer a question with choices",
            "use logits or classification",
        )
    readings, off_masses = [], []
    for view in range(len(images.views(ROLE))):
        p, off_mass = read_once(images.session(ROLE, view), prompt, letters, mode, images)
        readings.append(p)
        off_masses += [] if off_mass is None else [off_mass]
        if view > 0:
            images.close_session(ROLE, view)
    return _result(_mean(readings), off_masses, mode, images)


def _result(p_c: Probabilities, off_masses: Sequence[float], mode: Mode, images: OpenImages) -> FusionResult:
    """The letters' part of a fusion. Warns where the model hardly takes the format."""
    off_mass, letters = sum(off_masses) / len(off_masses) if off_masses else None, list(p_c)
    if off_mass is not None and off_mass > images.services.settings.fusion.off_letter_warning:
        images.warn(
            f"{off_mass:.0%} of the probability lies off the letters {letters[0]}–{letters[-1]}: "
            "this model hardly takes the answer format, trust its letters less"
        )
    return FusionResult(
        mode=mode, vlm_letter=max(p_c, key=p_c.__getitem__), p_c=p_c, off_letter_mass=off_mass
    )


def usable_mode(images: OpenImages) -> Mode:
    """The configured mode, or what the configuration allows for a model that gives no logits. Raises VLMError
    where it allows nothing."""
    settings = images.services.settings.fusion
    if settings.mode != "logits" or (client := images.services.client(ROLE)).reads_logits:
        return settings.mode
    if settings.on_missing_logits == "error":
        raise VLMError(
            f"{client.name}: expected a client that reads logits, this one cannot",
            "use mode classification or set on_missing_logits: classification",
        )
    images.warn(f"{client.name} gives no logits: p_c comes from the generated letter (classification)")
    return "classification"


def read_once(
    session: RoleSession, prompt: Prompt, letters: Sequence[str], mode: Mode, images: OpenImages
) -> tuple[Probabilities, float | None]:
    """(probability of each letter, probability off the letters) of one prompt on one view; without logits the
    written letter's, and None."""
    settings = images.services.settings.fusion
    if mode == "logits":
        read = session.read_letters(prompt, ANSWER_PREFIX, letters)
        return letter_probabilities(read.logprobs, settings.temperature), read.off_letter_mass
    answer = ask(session, prompt, letter_reply(letters), images.services.section(ROLE)).final_answer
    return written_probabilities(answer, letters, settings.classification_confidence), None
