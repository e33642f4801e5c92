"""From the letters to q: reads the answer letters of a picture as closely as is needed, and fuses
them with the tools' scores. They are read once; where a narrower interval is asked for, with A for
Bad too, then those of crops."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentic_iqa_local.errors import percent
from agentic_iqa_local.iqa_tools.reliability import Score
from agentic_iqa_local.nodes.ask import ask, read_letters
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, Prompt, choice_letters, summarizer_prompt
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.nodes.sessions import RoleSession
from agentic_iqa_local.nodes.workbench import Workbench
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
# Levels: letters that can move q by no more are not read on every view of a large picture
LITTLE = 0.05

Probabilities = dict[str, float]  # of each letter


def _mean(readings: Iterable[Probabilities]) -> Probabilities:
    readings = list(readings)
    return {letter: statistics.fmean(p[letter] for p in readings) for letter in readings[0]}


@dataclass
class _Letters:
    """The letters of one picture, read on the `looks` after `prompt(turned, crop)`: `turned` where
    A stands for Bad, of a `crop` without the evidence of the whole picture."""

    prompt: Callable[[bool, bool], Prompt]
    letters: Sequence[str]
    mode: Mode
    bench: Workbench
    looks: Sequence[Box]
    temperature: float = 1.0  # of a rating's letters; nothing was fitted for choices
    orders: list[Probabilities] = field(default_factory=list)  # of all looks, for each order
    crops: list[Probabilities] = field(default_factory=list)
    off_masses: list[float] = field(default_factory=list)

    def read_looks(self, *, turned: bool) -> None:
        """Every look at the picture, or at its regions, in one order."""
        sessions = self.bench.models.sessions(ROLE, self.looks)
        self.orders.append(_mean(self._read(session, turned) for session in sessions))

    def read_others(self, looks: Sequence[Box]) -> None:
        """More looks in the first order, after the first of them."""
        sessions = self.bench.models.sessions(ROLE, looks)
        self.orders = [_mean([*self.orders, *(self._read(one, False) for one in sessions)])]
        self.looks = [*self.looks, *looks]

    def read_crops(self, crops: Sequence[Box]) -> None:
        """Every crop in both orders."""
        for session in self.bench.models.sessions(ROLE, crops):
            orders = (self._read(session, turned, crop=True) for turned in (False, True))
            self.crops.append(_mean(orders))

    def _read(self, session: RoleSession, turned: bool, crop: bool = False) -> Probabilities:
        """The probability of each letter, turned back to A for the best."""
        section = self.bench.services.section(ROLE)
        prompt = self.prompt(turned, crop)
        if self.mode == "uniform":
            return dict.fromkeys(self.letters, 1 / len(self.letters))
        if self.mode == "logits":
            read = read_letters(session, prompt, ANSWER_PREFIX, self.letters, section)
            self.off_masses.append(read.off_letter_mass)
            p = letter_probabilities(read.logprobs, self.temperature)
        else:
            schema = answer_reply(self.letters, reasoned=False)
            answer = ask(session, prompt, schema, section).final_answer
            confidence = self.bench.settings.fusion.classification_confidence
            p = written_probabilities(answer, self.letters, confidence)
        return dict(zip(self.letters, reversed(p.values()), strict=True)) if turned else p

    def result(self) -> FusionResult:
        """p_c is the mean over the orders; where crops were read, of that and the mean over the
        crops."""
        p_c = _mean(self.orders)
        off_mass = statistics.fmean(self.off_masses) if self.off_masses else None
        result = FusionResult(mode=self.mode, vlm_letter=None, p_c=p_c, off_letter_mass=off_mass)
        if self.mode == "logits":
            result.temperature = self.temperature
        if len(self.orders) > 1:
            levels = [expected_level(p) for p in self.orders]
            result.both_orders = True
            result.order_gap = max(levels) - min(levels)
        if self.crops:
            result.p_c = p_c = _mean([p_c, _mean(self.crops)])
            result.crops = len(self.crops)
            result.crop_spread = statistics.pstdev(map(expected_level, self.crops))
        if self.mode != "uniform":
            result.vlm_letter = max(p_c, key=p_c.__getitem__)
        return result


def _warn_of_other_words(fusion: FusionResult, answers: str, bench: Workbench) -> None:
    """Warns where the model would have written something else than an answer."""
    off_mass = fusion.off_letter_mass
    if off_mass is not None and off_mass > bench.settings.fusion.off_letter_warning:
        bench.warn(
            f"the model did not keep to the answers {answers}: with a probability of {percent(off_mass)}"
            " it would have written something else; rely little on its answer, or use a larger model"
        )


def read_and_fuse(
    query: str,
    evidence: ExecutorOutput | None,
    bench: Workbench,
    *,
    shown: bool = True,
    earlier: Sequence[str] = (),
    plan: PlannerOutput | None = None,
    objects: Sequence[str] = (),
) -> FusionResult:
    """p_c from the model's letters, after a prompt with the `earlier` turns and, where it is `shown`, the
    `evidence`, fused with the scores of the tools that vote in it. The picture is looked at more closely as
    long as the workbench `wants_more` of the answer to `plan`; where each of its `objects` has a box, at
    these. Raises VLMError."""
    tools = votes(evidence, bench.settings.fusion.vote)
    if not tools:  # ScoreFusion logs it
        bench.warn("no tool gave a score: q is the model's own opinion alone", log=False)

    def prompt(turned: bool, crop: bool) -> Prompt:
        told = evidence if shown and not crop else None
        return summarizer_prompt(
            query, told, scoring=True, reversed_letters=turned, earlier=earlier
        )

    models, looks = bench.models, bench.models.looks(ROLE, objects)
    # the temperature weighs letters against tools; where they stand alone there is nothing to weigh
    temperature = bench.settings.fusion.letters_temperature if tools else 1.0
    letters = _Letters(prompt, LETTERS, _usable_mode(bench), bench, looks[:1], temperature)
    checking = votes(evidence, checking=True)

    def wanted(reads: int) -> bool:
        return bool(bench.wants_more and bench.wants_more(fusion, plan, reads))

    letters.read_looks(turned=False)
    fusion = _fused(letters.result(), tools, checking, bench)
    whole = looks == models.views(ROLE)
    if len(looks) > 1 and not (whole and _hardly_counts(fusion)):
        letters.read_others(looks[1:])
        fusion = _fused(letters.result(), tools, checking, bench)
    if letters.mode != "logits" or not wanted(2 * len(letters.looks)):
        return fusion
    letters.read_looks(turned=True)
    fusion = _fused(letters.result(), tools, checking, bench)
    crops = models.crops(ROLE) if whole else []
    if not crops or not wanted(2 * (len(looks) + len(crops))):
        return fusion
    letters.read_crops(crops)
    return _fused(letters.result(), tools, checking, bench)


def _fused(
    letters: FusionResult, tools: Sequence[Score], checking: Sequence[Score], bench: Workbench
) -> FusionResult:
    """A fusion of letters and tools; those that are `checking` disagree, but have no vote. α is a
    Gaussian likelihood of q̄ with variance σ², so that `eta: auto` is 1/(2σ²); without tools it is
    uniform whatever η is."""
    eta, sigma = bench.settings.fusion.eta, None
    if eta == "auto":
        eta = 1.0
        if tools:
            # that nothing was lost is known exactly: quality is not beyond the ends of the tools'
            # scales
            reachable = {} if bench.pictures.identical else bench.tools.reachable()
            sigma = bench.tools.reliability().sigma_of_mean(tools, reachable)
            eta = 1 / (2 * sigma**2)
    scores = [score for _, score in tools]
    measured = [*scores, *(score for _, score in checking)]
    fusion = ScoreFusion(eta)
    p_c = {LETTER_TO_LEVEL[letter]: p for letter, p in letters.p_c.items()}
    fused = revised(
        letters,
        alpha=fusion.compute_perceptual_weights(scores),
        q_bar=fusion.mean_score(scores),
        q=fusion.fuse_scores(scores, p_c),
        dq_dqbar=fusion.sensitivity(scores, p_c),
        eta=eta if scores else None,
        sigma=sigma,
        voters=sorted({tool for tool, _ in tools}),
        disagreement=max(measured) - min(measured) if measured else None,
    )
    if not _hardly_counts(fused):
        _warn_of_other_words(fused, f"{LETTERS[0]} to {LETTERS[-1]}", bench)
    return fused


def _hardly_counts(fusion: FusionResult) -> bool:
    """Whether letters that are as sure as these, of whichever level, leave q within LITTLE: it is
    then what the tools say, and other views of the picture cannot change it."""
    if fusion.q_bar is None or fusion.eta is None:
        return False
    rising = sorted(fusion.p_c.values())
    fused = ScoreFusion(fusion.eta)
    low = fused.fuse_scores([fusion.q_bar], dict(zip(range(5, 0, -1), rising, strict=True)))
    high = fused.fuse_scores([fusion.q_bar], dict(zip(range(1, 6), rising, strict=True)))
    return high - low <= LITTLE


def read_choices(
    prompt: Prompt,
    choices: Sequence[str],
    bench: Workbench,
    objects: Sequence[str] = (),
    *,
    count: bool = True,
) -> FusionResult:
    """Probabilities of the letters of the user's own choices, averaged over the picture's views, or
    those of the `objects`' boxes. Warns of a model that keeps to none where they `count` in the
    answer. Raises InvalidAnswer, and VLMError in uniform mode, which prefers no letter."""
    mode = _usable_mode(bench)
    if mode == "uniform":
        said = "mode uniform reads no letters, so it cannot answer a question with choices"
        raise VLMError(said, "use logits or classification")
    looks = bench.models.looks(ROLE, objects)
    read = _Letters(lambda turned, crop: prompt, choice_letters(choices), mode, bench, looks)
    read.read_looks(turned=False)
    fusion = read.result()
    if count:
        _warn_of_other_words(fusion, ", ".join(choices), bench)
    return fusion


def _usable_mode(bench: Workbench) -> Mode:
    """The configured mode, or what it allows for a model without logits. Raises VLMError where it
    allows nothing."""
    settings, client = bench.settings.fusion, bench.services.client(ROLE)
    if settings.mode != "logits" or client.reads_logits:
        return settings.mode
    if settings.on_missing_logits == "error":
        said = f"{client.name}: expected a client that reads logits, this one cannot"
        raise VLMError(said, "use mode classification or set on_missing_logits: classification")
    bench.warn(
        f"{client.name} gives no logits: p_c comes from the generated letter (classification)"
    )
    return "classification"
