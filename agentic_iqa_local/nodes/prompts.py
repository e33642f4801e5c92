"""What each role is told: its instructions, from templates/*.txt, and the case at hand.

One assessment is one conversation prefix (images, then a fixed preamble) that every role continues
with its own text.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from agentic_iqa_local.nodes.replies import whole_sentences
from agentic_iqa_local.state import LETTERS, LEVEL_WORDS, ExecutorOutput, PlannerOutput
from agentic_iqa_local.vlm_client.chat import ChatPrompt as Prompt

DEFAULT_QUERY = "Rate the perceptual quality of this image."
# in the case: the template is the paper's
REASONING_LIMIT = "Keep quality_reasoning below 300 characters."
ANSWER_PREFIX = '{"final_answer": "'
"""The Summarizer's own answer up to the letter: the JSON value position at which the letters are
read."""


_TEMPLATES = {
    file.stem: file.read_text(encoding="utf-8").removesuffix("\n")
    for file in (Path(__file__).parent / "templates").glob("*.txt")
}
# AgenticIQA's (arXiv 2509.26006), word for word
EXPLANATION_PROMPT_TEMPLATE = _TEMPLATES["explanation"] + "\n"
SCORING_PROMPT_TEMPLATE = _TEMPLATES["scoring"] + "\n"

LEVELS = tuple(LEVEL_WORDS.values())  # from Excellent to Bad
_OPTIONS, _REVERSED = (
    "".join(map("{}. {}\n".format, LETTERS, words)) for words in (LEVELS, LEVELS[::-1])
)
REVERSED_SCORING_PROMPT_TEMPLATE = SCORING_PROMPT_TEMPLATE.replace(_OPTIONS, _REVERSED)
"""The scoring prompt from A. Bad to E. Excellent: a check of how much the letters' order counts."""

LONGEST_QUERY, LONGEST_ANSWER = 300, 200  # characters of an earlier turn


def earlier_lines(context: dict[str, Any] | None) -> list[str]:
    """The lines of a prompt that tell of the turns of `PlannerInput.prior_context`."""
    lines = []
    for turn in (context or {}).get("turns", []):
        query = _json(whole_sentences(turn["query"], LONGEST_QUERY))
        answer = _json(whole_sentences(turn["answer"], LONGEST_ANSWER))
        lines.append(f"{query} was answered {answer}")
    return ["Earlier in this conversation:", *lines] if lines else []


def choice_letters(choices: Sequence[str]) -> list[str]:
    """A, B, C, ... for the user's own choices."""
    return list(ascii_uppercase[: len(choices)])


def chosen_answer(choices: Sequence[str], letter: str) -> str:
    """The user's own answer that a letter stands for."""
    return choices[ascii_uppercase.index(letter)]


def _json(value: Any) -> str:
    """As JSON, in which no text can end its line and pose as instructions."""
    return json.dumps(value, ensure_ascii=False)


def _query(query: str, choices: Sequence[str] | None = None) -> list[str]:
    lines = [f"Query: {_json(query)}"]
    if choices:
        lines.append("Choices:")
        for letter, choice in zip(ascii_uppercase, choices, strict=False):
            lines.append(f"{letter}. {_json(choice)[1:-1]}")
    return lines


def planner_prompt(
    query: str,
    has_reference: bool,
    choices: Sequence[str] | None = None,
    replan_history: Sequence[str] = (),
    plan: PlannerOutput | None = None,
    evidence: ExecutorOutput | None = None,
    earlier: Sequence[str] = (),
) -> Prompt:
    """The Planner's prompt, with the `earlier` turns of a conversation. On a replan
    `replan_history` says what the Summarizer found missing, `plan` and `evidence` what the last
    round did and found."""
    given = "given" if has_reference else "none"
    lines = [*earlier, *_query(query, choices), f"Reference image: {given}"]
    if replan_history:
        if plan:
            lines.append(f"The last plan: {plan.model_dump_json()}")
        lines += [f"Its evidence: {part}" for part in evidence_parts(evidence).values()]
        lines.append("The last plans left gaps. Plan again to close them:")
        lines += [" ".join(line.split()) for line in replan_history]
    return Prompt(_TEMPLATES["planner"], "\n".join(lines))


def objects_prompt(
    template: Literal["boxes", "presence", "detection", "analysis", "selection"],
    query: str,
    about: Sequence[str] | dict[str, list[str]],
    gap: str | None = None,
    tools: Sequence[tuple[str, str]] = (),
) -> Prompt:
    """A prompt about objects, or about {object: [distortion]}.

    Args:
        template: Asks where the objects lie ("boxes"), which types of distortions they have, Yes or
            No for each ("presence") or as a list ("detection"), how severe each distortion is
            ("analysis"), or for a tool for each ("selection").
        query: The user's question.
        about: The objects or their distortions.
        gap: Why it is asked again.
        tools: The name and the description of each tool to choose from.
    """
    what = "Distortions" if isinstance(about, dict) else "Objects"
    lines = [*_query(query), f"{what}: {_json(about)}"]
    if gap:
        lines.append(f"The last pass left a gap. Look again: {' '.join(gap.split())}")
    if tools:
        lines.append("Tools:")
        lines += [f"- {name}: {description}" for name, description in tools]
    return Prompt(_TEMPLATES[template], "\n".join(lines))


def evidence_parts(evidence: ExecutorOutput | None) -> dict[str, str]:
    """The evidence as JSON, by title: {object: [{type, severity, explanation}]} and {object:
    {distortion: [tool, score]}}; a part without content is left out."""
    parts = {}
    if evidence and evidence.distortion_analysis:
        analysis = evidence.model_dump(include={"distortion_analysis"})
        parts["Distortion analysis"] = _json(analysis["distortion_analysis"])
    if evidence and evidence.quality_scores:
        scores: dict[str, dict[str, Any]] = {}
        for name, measured in evidence.quality_scores.items():
            rounded = {kind: [tool, round(score, 2)] for kind, (tool, score) in measured.items()}
            scores[name] = rounded
        parts["Tool scores"] = _json(scores)
    return parts


def summarizer_prompt(
    query: str,
    evidence: ExecutorOutput | None,
    *,
    scoring: bool,
    choices: Sequence[str] | None = None,
    reversed_letters: bool = False,
    earlier: Sequence[str] = (),
) -> Prompt:
    """The Summarizer's prompt in scoring or explanation/QA mode; sections without evidence are left
    out. `reversed_letters`: the scoring options from A. Bad to E. Excellent."""
    lines = [REASONING_LIMIT, *earlier, *_query(query, choices)]
    lines += [f"{title}: {part}" for title, part in evidence_parts(evidence).items()]
    if evidence and evidence.damaged_part:
        lines.append(f"Damaged part of the picture: {evidence.damaged_part}")
    if not scoring:
        return Prompt(EXPLANATION_PROMPT_TEMPLATE, "\n".join(lines))
    template = REVERSED_SCORING_PROMPT_TEMPLATE if reversed_letters else SCORING_PROMPT_TEMPLATE
    return Prompt(template, "\n".join(lines), words=LEVELS[::-1] if reversed_letters else LEVELS)
