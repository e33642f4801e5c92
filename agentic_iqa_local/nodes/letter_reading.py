"""From the letters to q: reads the answer letters of a picture as closely as is needed, and fuses them with the
tools' scores. They are read once; where a narrower interval is asked for, with A for Bad too, then those of crops."""

import statistics
from collections.abc import Callable, Sequence

from agentic_iqa_local.iqa_tools.reliability import Score, load_reliability
from agentic_iqa_local.nodes.ask import ask, read_letters
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, Prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import answer_reply
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
    Box,
    ExecutorOutput,
    FusionResult,
    Mode,
    PlannerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

ROLE = "summarizer"

Probabilities = dict[str, float]  # of each letter


def _mean(readings: Sequence[Probabilities]) -> Probabilities:
    return {letter: statistics.fmean(p[letter] for p in readings) for letter in readings[0]}


class _Letters:
    """The letters of one picture, read on the `looks` after `prompt(turned, crop)`: `turned` where A stands for Bad, of
    a `crop` without the evidence of the whole picture."""

    def __init__(
        self,
        prompt: Callable[[bool, bool], Prompt],
        letters: Sequence[str],
        mode: Mode,
        images: OpenImages,
        looks: Sequence[Box],
    ):
        self.prompt, self.letters, self.images, self.looks = prompt, letters, images, looks
        self.mode: Mode = mode
        self.whole: dict[bool, Probabilities] = {}
        self.crops: list[Probabilities] = []
        self.off_masses: list[float] = []

    def read_whole(self, turned: bool) -> None:
        """Every look at the picture, or at its regions, in one order."""
        sessions = self.images.sessions(ROLE, self.looks)
        self.whole[turned] = _mean([self._read(session, turned) for session in sessions])

    def read_crops(self) -> None:
        """Every crop in both orders."""
        for crop in self.images.crops(ROLE):
            with self.images.session_on(ROLE, crop) as session:
                self.crops.append(
                    _mean([self._read(session, turned, crop=True) for turned in (False, True)])
                )

    def closer_look(self) -> tuple[int, Callable[[], None]] | None:
        """The cheapest look that is left: how many reads it takes, and what reads them."""
        if True not in self.whole:
            return len(self.looks), lambda: self.read_whole(turned=True)
        of_regions = self.looks != self.images.views(ROLE)
        crops = [] if self.crops or of_regions else self.images.crops(ROLE)
        return (2 * len(crops), self.read_crops) if crops else None

    def _read(self, session: RoleSession, turned: bool, crop: bool = False) -> Probabilities:
        """The probability of each letter, turned back to A for the best."""
        settings, prompt = self.images.services.settings.fusion, self.prompt(turned, crop)
        if self.images.sureness is not None:
            self.images.sureness.reads += 1
        if self.mode == "logits":
            section = self.images.services.section(ROLE)
            read = read_letters(session, prompt, ANSWER_PREFIX, self.letters, section)
            self.off_masses.append(read.off_letter_mass)
            p = letter_probabilities(read.logprobs, settings.temperature)
        else:
            reply = ask(
                session,
                prompt,
                answer_reply(self.letters, reasoned=False),
                self.images.services.section(ROLE),
            )
            p = written_probabilities(
                reply.final_answer, self.letters, settings.classification_confidence
            )
        return dict(zip(self.letters, reversed(p.values()), strict=True)) if turned else p

    def result(self) -> FusionResult:
        """p_c is the mean over the orders; where crops were read, of that and the mean over the crops."""
        p_c = _mean([*self.whole.values()])
        p_c = _mean([p_c, _mean(self.crops)]) if self.crops else p_c
        off_mass = statistics.fmean(self.off_masses) if self.off_masses else None
        if (
            off_mass is not None
            and off_mass > self.images.services.settings.fusion.off_letter_warning
        ):
            self.images.warn(
                f"the model gave {off_mass:.0%} of the probability to something else than the letters "
                f"{self.letters[0]}–{self.letters[-1]} of the answers: trust its own answer less"
            )
        levels = [expected_level(p) for p in self.whole.values()] if len(self.whole) > 1 else []
        return FusionResult(
            mode=self.mode,
            vlm_letter=max(p_c, key=p_c.__getitem__),
            p_c=p_c,
            off_letter_mass=off_mass,
            both_orders=bool(levels),
            crops=len(self.crops),
            order_gap=max(levels) - min(levels) if levels else None,
            crop_spread=statistics.pstdev(map(expected_level, self.crops)) if self.crops else None,
        )


def read_and_fuse(
    query: str,
    evidence: ExecutorOutput | None,
    tools: Sequence[Score],
    images: OpenImages,
    *,
    earlier: Sequence[str] = (),
    plan: PlannerOutput | None = None,
    objects: Sequence[str] = (),
) -> FusionResult:
    """p_c from the model's letters, after a prompt with the `evidence` and the `earlier` turns, fused with the `tools`'
    scores, 1..5. The picture is looked at more closely as long as the `sureness` of the images wants more of the answer
    to `plan`; where each of its `objects` has a box, at these. Raises InvalidAnswer, VLMError."""
    mode, sureness = _usable_mode(images), images.sureness
    measured = [score for _, score in (*tools, *votes(evidence, checking=True))]
    apart = max(measured) - min(measured) if measured else None
    if not tools:  # ScoreFusion logs it
        images.warn("no tool gave a score: q is the model's own opinion alone", log=False)
    if mode == "uniform":
        p_c = dict.fromkeys(LETTERS, 1 / len(LETTERS))
        alike = FusionResult(
            mode="uniform", vlm_letter=None, p_c=p_c, off_letter_mass=None, disagreement=apart
        )
        return _fused(alike, tools, images)

    def prompt(turned: bool, crop: bool) -> Prompt:
        told = None if crop else evidence
        return summarizer_prompt(
            query, told, scoring=True, reversed_letters=turned, earlier=earlier
        )

    letters = _Letters(prompt, LETTERS, mode, images, images.looks(ROLE, objects))
    letters.read_whole(turned=False)
    while True:
        fusion = _fused(revised(letters.result(), disagreement=apart), tools, images)
        closer = letters.closer_look() if sureness and mode == "logits" else None
        if (
            sureness is None
            or closer is None
            or not sureness.wants_more(fusion, plan, reads=closer[0])
        ):
            return fusion
        closer[1]()


def _fused(letters: FusionResult, tools: Sequence[Score], images: OpenImages) -> FusionResult:
    """A fusion of letters and tools. α is a Gaussian likelihood of q̄ with variance σ², so that `eta: auto` is 1/(2σ²);
    without tools it is uniform whatever η is."""
    eta, scores, sigma = images.services.settings.fusion.eta, [score for _, score in tools], None
    if eta == "auto" and tools:
        # that nothing was lost is known exactly: quality is not beyond the ends of the tools' scales
        sigma = load_reliability().sigma_of_mean(
            tools, {} if images.identical else images.reachable()
        )
        eta = 1 / (2 * sigma**2)
    fusion = ScoreFusion(1.0 if eta == "auto" else eta)
    p_c = {LETTER_TO_LEVEL[letter]: p for letter, p in letters.p_c.items()}
    return revised(
        letters,
        alpha=fusion.compute_perceptual_weights(scores),
        q_bar=fusion.mean_score(scores),
        q=fusion.fuse_scores(scores, p_c),
        dq_dqbar=fusion.sensitivity(scores, p_c),
        eta=eta if scores else None,
        sigma=sigma,
        voters=sorted({tool for tool, _ in tools}),
    )


def answer_letter(fusion: FusionResult) -> str:
    """The letter of the level nearest to q, or of the likeliest choice."""
    return (
        max(fusion.p, key=fusion.p.__getitem__)
        if fusion.q is None
        else ScoreFusion().map_to_level(fusion.q)
    )


def read_choices(
    prompt: Prompt, letters: Sequence[str], images: OpenImages, objects: Sequence[str] = ()
) -> FusionResult:
    """Probabilities of the user's own choices, averaged over the picture's views, or those of the `objects`' boxes.
    Raises InvalidAnswer, and VLMError in uniform mode, which prefers no letter."""
    if (mode := _usable_mode(images)) == "uniform":
        said = "mode uniform reads no letters, so it cannot answer a question with choices"
        raise VLMError(said, "use logits or classification")
    looks = images.looks(ROLE, objects)
    read = _Letters(lambda turned, crop: prompt, letters, mode, images, looks)
    read.read_whole(turned=False)
    return read.result()


def _usable_mode(images: OpenImages) -> Mode:
    """The configured mode, or what it allows for a model without logits. Raises VLMError where it allows nothing."""
    settings, client = images.services.settings.fusion, images.services.client(ROLE)
    if settings.mode != "logits" or client.reads_logits:
        return settings.mode
    if settings.on_missing_logits == "error":
        said = f"{client.name}: expected a client that reads logits, this one cannot"
        raise VLMError(said, "use mode classification or set on_missing_logits: classification")
    images.warn(
        f"{client.name} gives no logits: p_c comes from the generated letter (classification)"
    )
    return "classification"
