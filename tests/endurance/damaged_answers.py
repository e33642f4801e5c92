"""Damaged answers of a model at the parser: each is refused or exactly what it says."""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from endurance.checks import guarded, require
from endurance.damaged_pictures import damaged, random_steps

TEXT_STEPS = ("replace", "insert", "delete", "repeat", "cut")
HOSTILE_JSON = (
    "NaN",
    "-Infinity",
    "1e999",
    "-0",
    "1.0",
    "9" * 5000,
    "true",
    "null",
    '""',
    '"A"',
    '"E"',
    "[]",
    "{}",
    '"none"',
    '" "',
    "[" * 10_000,
    '{"final_answer": ' * 10_000,
    "[" * 150 + "]" * 150,
    '"\\ud800"',
    '"\ud800"',
    '"\\u0000\\u001b[2J"',
    '"\x1b[2J"',
    '"' + "x" * 100_000 + '"',
    "'A'",
    "```json",
    "// A",
    ",",
    ":",
    "}",
    '"final_answer": "A"',
    "\ufeff",
    "\0",
    "Global",
    '"Global"',
)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|\s+|.', re.DOTALL)


def valid_answers() -> list[tuple[type, str, str]]:
    """(schema, answer prefix, a valid answer) for every role."""
    from agentic_iqa_local.levels import LETTERS
    from agentic_iqa_local.nodes import replies
    from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX

    flags = {
        "distortion_detection": True,
        "distortion_analysis": True,
        "tool_selection": False,
        "tool_execution": False,
    }
    plan = {
        "query_type": "IQA",
        "query_scope": ["car", "sky"],
        "distortion_source": "Explicit",
        "distortions": {"car": ["Blurs"], "sky": ["Noise", "Compression"]},
        "reference_mode": "No-Reference",
        "required_tool": "NIQE",
        "plan": flags,
    }
    found = {"car": ["Blurs"], "sky": ["Noise"]}
    analysis = {
        name: [{"type": kind, "severity": "severe", "explanation": "Edges are soft."} for kind in kinds]
        for name, kinds in found.items()
    }
    summary = {"final_answer": "C", "quality_reasoning": "Fine grain covers the sky."}
    answers = (
        (replies.PlannerReply, "", plan),
        (replies.detection_reply(list(found)), "", found),
        (replies.analysis_reply(found), "", analysis),
        (
            replies.selection_reply(found, ["NIQE", "PIQE"]),
            "",
            {"car": {"Blurs": "NIQE"}, "sky": {"Noise": "PIQE"}},
        ),
        (replies.location_reply(list(found)), "", {"car": [10, 20, 300, 400], "sky": None}),
        (replies.summary_reply(LETTERS), ANSWER_PREFIX + "C", summary),
        (
            replies.summary_reply(None),
            "",
            {"final_answer": "The sky is noisy.", "quality_reasoning": "Fine grain."},
        ),
        (replies.letter_reply(LETTERS), "", {"final_answer": "B"}),
    )
    return [(schema, prefix, json.dumps(answer)) for schema, prefix, answer in answers]


def rewritten(text: str, steps: Iterable[tuple[str, float, str]]) -> str:
    """`text` after `steps` on its JSON tokens: what to do, where (0 to 1 of their number), with which
    text."""
    tokens = TOKEN.findall(text)
    for kind, place, other in steps:
        at = int(place * len(tokens))
        if kind == "cut":
            del tokens[at:]
        elif kind == "delete":
            del tokens[at : at + 1]
        else:
            tokens[at : at + (kind == "replace")] = tokens[at : at + 8] if kind == "repeat" else [other]
    return "".join(tokens)


def random_answer(rng: np.random.Generator, text: str) -> str:
    """`text` damaged as JSON or as bytes; what is not UTF-8 becomes lone surrogates."""
    if rng.random() < 0.3:
        return damaged(text.encode(), random_steps(rng)).decode(errors="surrogateescape")
    others = [*HOSTILE_JSON, *TOKEN.findall(text)]
    steps = [
        (str(rng.choice(TEXT_STEPS)), float(rng.random()), others[rng.integers(len(others))])
        for _ in range(rng.integers(4))
    ]
    return rewritten(text, steps)


class OneAnswer:
    """A session that always answers `text`, held to the schema as a server claims to be."""

    constrained = True

    def __init__(self, text: str):
        self.text, self.calls = text, 0

    def generate(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        return self.text


def examine_answer(schema: type, prefix: str, text: str) -> str:
    """Whether `ask` took it as valid or refused it. Raises Wrong for a reply that does not say `text`, and
    what `ask` raises."""
    from agentic_iqa_local.config_sections import RoleSettings
    from agentic_iqa_local.nodes.ask import TRIES, InvalidAnswer, ask
    from agentic_iqa_local.nodes.prompts import Prompt

    session: Any = OneAnswer(text)  # of a session it has what `ask` uses
    try:
        reply = ask(session, Prompt("", ""), schema, RoleSettings(), answer_prefix=prefix)
        if hasattr(reply, "to_plan"):
            reply.to_plan()
    except InvalidAnswer as error:
        require(session.calls == len(error.attempts) == TRIES, f"{session.calls} calls")
        _ = [attempt.model_dump_json() for attempt in error.attempts]
        return "refused"
    require(text.startswith(prefix), f"does not begin with {prefix}: {text[:200]!r}")
    said = json.loads(text, object_pairs_hook=_each_key_once)  # another parser than the product's
    require(
        _stripped(said) == _stripped(reply.model_dump(mode="json", by_alias=True)),
        f"{text[:200]!r} became {reply!r}",
    )
    return "valid"


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), f"a key twice: {[key for key, _ in pairs]}")
    return dict(pairs)


def _stripped(value: Any) -> Any:
    """Without blanks around strings, which the schemas strip, and with numbers and truth values kept
    apart."""
    if isinstance(value, dict):
        return {key: _stripped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else (type(value), value)


def outputs(args: argparse.Namespace) -> dict:
    outcomes, wrong, slowest = Counter(), [], 0.0
    answers = valid_answers()
    for number in range(args.count):
        rng = np.random.default_rng([args.seed, number])
        schema, prefix, text = answers[rng.integers(len(answers))]
        hostile = random_answer(rng, text)
        began = time.perf_counter()
        what = f"answer {number}, {schema.__name__}"
        outcome = guarded(lambda case=(schema, prefix, hostile): examine_answer(*case), what, wrong)
        slowest = max(slowest, time.perf_counter() - began)
        outcomes[f"{schema.__name__} {outcome}"] += 1
    return {
        "count": args.count,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_seconds": round(slowest, 3),
        "wrong": wrong,
    }
