"""What each role is told. Pure text: no model, no file.

One assessment is one conversation prefix (images, then a fixed preamble) that every role continues with its
own text. The Summarizer's two templates are AgenticIQA's (arXiv 2509.26006), word for word.
"""

import json
from collections.abc import Sequence
from typing import Any

from agentic_iqa_local.state import DISTORTION_TYPES, LETTERS, LEVEL_WORDS, DamagedBox, ExecutorOutput, PlannerOutput
from agentic_iqa_local.vlm_client.chat import ChatPrompt as Prompt

TWO_PICTURES_PREAMBLE = "Two images are shown, one after the other. Neither is a reference."
DEFAULT_QUERY = "Rate the perceptual quality of this image."
REASONING_LIMIT = "Keep quality_reasoning below 300 characters."  # in the case: the template is the paper's
ANSWER_PREFIX = '{"final_answer": "'
"""The Summarizer's own answer up to the letter: the JSON value position at which the letters are read."""
FIRST_AND_SECOND = ("The first image", "The second image")

PLANNER_TEMPLATE = f"""You are the planner of an image quality assessment system. Read the user's query and plan the assessment.
- query_type: "IQA" if the query is about technical quality or degradation, "Other" if it is about content, aesthetics
or emotion.
- query_scope: the objects or regions named in the query, else "Global".
- distortion_source: "Explicit" if the query names distortions, else "Inferred".
- distortions: if Explicit, the types for each object, else null. Types: {", ".join(DISTORTION_TYPES)}.
- reference_mode: "Full-Reference" if a reference image is given, else "No-Reference".
- required_tool: the tool named in the query, else null. Never recommend one.
- plan: Other: all false. IQA: distortion_detection if Inferred; distortion_analysis true; tool_selection if neither
object nor tool is named; tool_execution if a tool or no object is named.
Return the JSON:
{{"query_type": "...", "query_scope": ..., "distortion_source": "...", "distortions": ..., "reference_mode": "...",
"required_tool": ..., "plan": {{"distortion_detection": ..., "distortion_analysis": ..., "tool_selection": ...,
"tool_execution": ...}}}}"""

DETECTION_TEMPLATE = f"""You detect distortions. For each object listed, name the visible distortion types, the strongest first.
Use only these types: {", ".join(DISTORTION_TYPES)}. Judge each object by itself. Give an empty list when a distortion
is barely visible.
Return the JSON:
{{"<object or Global>": ["<distortion>"]}}"""

PRESENCE_TEMPLATE = f"""You detect distortions. For each object listed, say of each distortion type whether it is visible there: Yes or No.
The types are {", ".join(DISTORTION_TYPES)}. Judge each object by itself. Say No when a distortion is barely visible.
Return the JSON:
{{"<object or Global>": {{"<distortion>": "<Yes or No>"}}}}"""

ANALYSIS_TEMPLATE = """You analyse distortions. For each distortion listed, judge its severity and explain its visual impact.
Severity is one of none, slight, moderate, severe, extreme: none when it is barely visible, unclear when it
cannot be told. Keep each explanation short
and about visual quality only, below 160 characters.
Return the JSON:
{"<object or Global>": [{"type": "<distortion>", "severity": "<level>", "explanation": "<text>"}]}"""

SELECTION_TEMPLATE = """You choose image quality tools. For each distortion of each object, choose the tool that measures it best.
Use only the tools listed. Full-reference tools need the reference image.
Return the JSON:
{"<object or Global>": {"<distortion>": "<tool>"}}"""

LOCATION_TEMPLATE = """You locate objects. For each object listed, give the box that holds it as [left, top, right, bottom], or null when you
cannot find it. Coordinates are COORDINATES.
Return the JSON:
{"<object>": [left, top, right, bottom]}"""

EXPLANATION_PROMPT_TEMPLATE = """System:
You are a visual quality assessment assistant. Your task is to select the most appropriate answer to the user's
question. You are given:
- Distortion analysis (severity and visual impact of listed distortions)
- Tool response (overall quality scores from IQA models)
- Image content
Decision process
1. First, understand what kind of visual information is needed to answer the user's question.
2. Check if the provided distortion analysis or tool response already contains the required information.
3. If the provided information is sufficient, use it to answer.
4. If the information is unclear or insufficient, analyze the image directly to determine the best answer.
Return a valid JSON object in the following format:
{
  "final_answer": "<one of the above letters>",
  "quality_reasoning": "<brief explanation, based on either distortion analysis, tool response, or direct visual observation>"
}
"""

SCORING_PROMPT_TEMPLATE = """System:
You are a visual quality assessment assistant. Given the question and the analysis (tool scores, distortion
analysis). Your task is to assess the image quality.
You must select one single answer from the following:
A. Excellent
B. Good
C. Fair
D. Poor
E. Bad
Return the JSON:
{
  "final_answer": "<one letter>",
  "quality_reasoning": "<concise justification referencing distortions or tool scores>"
}
"""

COMPARISON_TEMPLATE = """You compare the technical quality of two images. Judge sharpness, noise, compression, exposure and colour, not content.
Answer which of the two images has the better quality.
Return the JSON:
{
  "final_answer": "<one letter>"
}"""

LEVELS = tuple(LEVEL_WORDS.values())  # from Excellent to Bad
_OPTIONS, _REVERSED = (
    "".join(f"{letter}. {word}\n" for letter, word in zip(LETTERS, words, strict=True))
    for words in (LEVELS, LEVELS[::-1])
)
REVERSED_SCORING_PROMPT_TEMPLATE = SCORING_PROMPT_TEMPLATE.replace(_OPTIONS, _REVERSED)
"""The scoring prompt from A. Bad to E. Excellent: a check of how much the letters' order counts."""


def choice_letters(choices: Sequence[str]) -> list[str]:
    """A, B, C, ... for the user's own choices."""
    return [chr(ord("A") + i) for i in range(len(choices))]


def chosen_answer(choices: Sequence[str], letter: str) -> str:
    """The user's own answer that a letter stands for."""
    return choices[choice_letters(choices).index(letter)]


def _json(value: Any) -> str:
    """As JSON, in which no text can end its line and pose as instructions."""
    return json.dumps(value, ensure_ascii=False)


def _query(query: str, choices: Sequence[str] | None = None) -> list[str]:
    lettered = zip(choice_letters(choices or ()), choices or (), strict=True)
    listed = [f"{letter}. {_json(choice)[1:-1]}" for letter, choice in lettered]
    return [f"Query: {_json(query)}", *(["Choices:", *listed] if listed else [])]


def planner_prompt(
    query: str,
    has_reference: bool,
    choices: Sequence[str] | None = None,
    replan_history: Sequence[str] = (),
    plan: PlannerOutput | None = None,
    evidence: ExecutorOutput | None = None,
    earlier: Sequence[str] = (),
) -> Prompt:
    """The Planner's prompt. On a replan `replan_history` says what the Summarizer found missing, `plan` and
    `evidence` what the last round did and found. `earlier` are the lines of a conversation's earlier turns."""
    lines = [*earlier, *_query(query, choices), f"Reference image: {'given' if has_reference else 'none'}"]
    if replan_history:
        lines += [f"The last plan: {plan.model_dump_json()}"] if plan else []
        lines += [f"Its evidence: {part}" for part in evidence_parts(evidence).values()]
        lines.append("The last plans left gaps. Plan again to close them:")
        lines += [" ".join(line.split()) for line in replan_history]
    return Prompt(PLANNER_TEMPLATE, "\n".join(lines))


def _about(template: str, what: str, named: Any, gap: str | None, *query: str) -> Prompt:
    """Asks `template` about what is named; `gap` says why it is asked again."""
    lines = [*query, f"{what}: {_json(named)}"]
    lines += [f"The last pass left a gap. Look again: {' '.join(gap.split())}"] if gap else []
    return Prompt(template, "\n".join(lines))


def detection_prompt(query: str, objects: Sequence[str], gap: str | None = None) -> Prompt:
    """Asks for a list of the distortions that each object has."""
    return _about(DETECTION_TEMPLATE, "Objects", list(objects), gap, *_query(query))


def presence_prompt(query: str, objects: Sequence[str], gap: str | None = None) -> Prompt:
    """Asks of each distortion type, Yes or No, whether each object has it."""
    return _about(PRESENCE_TEMPLATE, "Objects", list(objects), gap, *_query(query))


def analysis_prompt(query: str, distortions: dict[str, list[str]], gap: str | None = None) -> Prompt:
    """Asks for the severity and impact of each distortion."""
    return _about(ANALYSIS_TEMPLATE, "Distortions", distortions, gap, *_query(query))


def location_prompt(objects: Sequence[str], coordinates: str, gap: str | None = None) -> Prompt:
    """Asks where each object is; `coordinates` says in which units the model was taught to answer."""
    return _about(LOCATION_TEMPLATE.replace("COORDINATES", coordinates), "Objects", list(objects), gap)


def selection_prompt(query: str, distortions: dict[str, list[str]], tools: Sequence[tuple[str, str]]) -> Prompt:
    """Asks for one tool a distortion; `tools` are (name, description) of those that can run here."""
    listed = [f"- {name}: {description}" for name, description in tools]
    lines = [*_query(query), f"Distortions: {_json(distortions)}", "Tools:", *listed]
    return Prompt(SELECTION_TEMPLATE, "\n".join(lines))


def evidence_parts(evidence: ExecutorOutput | None) -> dict[str, str]:
    """The evidence as JSON, by title; a part without content is left out.

    The analysis is {object: [{type, severity, explanation}]}, the scores are {object: {distortion: [tool, score]}}
    with two decimals.
    """
    evidence = evidence or ExecutorOutput()
    scores = {
        name: {distortion: [tool, round(score, 2)] for distortion, (tool, score) in of_object.items()}
        for name, of_object in (evidence.quality_scores or {}).items()
    }
    analysis = evidence.model_dump(include={"distortion_analysis"})["distortion_analysis"]
    return {title: _json(part) for title, part in (("Distortion analysis", analysis), ("Tool scores", scores)) if part}


def worst_part_in_words(worst: DamagedBox) -> str:
    """Where the worst part of a map is, what damages it, and what the tools say of it alone."""
    left, top, right, bottom = worst.box
    scores = [f"{tool} {score:.2f} there" for tool, score in worst.tools.items()]
    where = f"{worst.place}, pixels ({left}, {top}) to ({right}, {bottom})"
    return "; ".join(filter(None, [where, worst.seen, *scores]))


def is_scoring(plan: PlannerOutput, choices: Sequence[str] | None) -> bool:
    """Scoring mode for an IQA query; the user's own choices always take the explanation/QA mode."""
    return plan.query_type == "IQA" and not choices


def summarizer_prompt(
    query: str,
    evidence: ExecutorOutput | None,
    *,
    scoring: bool,
    choices: Sequence[str] | None = None,
    reversed_letters: bool = False,
    earlier: Sequence[str] = (),
) -> Prompt:
    """The Summarizer's prompt in scoring or explanation/QA mode; sections without evidence are left out.
    `reversed_letters`: the scoring options from A. Bad to E. Excellent."""
    lines = [REASONING_LIMIT, *earlier, *_query(query, choices)]
    lines += [f"{title}: {part}" for title, part in evidence_parts(evidence).items()]
    if evidence and evidence.damaged_part:
        lines.append(f"Damaged part of the picture: {evidence.damaged_part}")
    if evidence and evidence.worst_part and not scoring:  # a rating, and its interval, are the same without a map
        lines.append(f"Worst part of the picture: {worst_part_in_words(evidence.worst_part)}")
    case = "\n".join(lines)
    if not scoring:
        return Prompt(EXPLANATION_PROMPT_TEMPLATE, case)
    if reversed_letters:
        return Prompt(REVERSED_SCORING_PROMPT_TEMPLATE, case, words=LEVELS[::-1])
    return Prompt(SCORING_PROMPT_TEMPLATE, case, words=LEVELS)


def comparison_prompt(reversed_letters: bool = False) -> Prompt:
    """Asks which of two images is better: A is the first, or with `reversed_letters` the second."""
    answers = FIRST_AND_SECOND[::-1] if reversed_letters else FIRST_AND_SECOND
    lines = _query("Which image has the better quality?", answers)
    return Prompt(COMPARISON_TEMPLATE, "\n".join(lines), TWO_PICTURES_PREAMBLE)
