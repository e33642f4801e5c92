"""The embedded model: its card is of its weights, and it sees what its card says that it sees."""

import json

import numpy as np
import pytest
from conftest import DATA, EMBEDDED, ROOT
from distortions import Part, distort
from families import PRESETS
from PIL import Image
from scipy.stats import spearmanr

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.files import file_hash, folder_hash
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.planner import correct_plan
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    objects_prompt,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import PlannerReply, detection_reply
from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
from agentic_iqa_local.state import LETTERS, PlannerOutput

KINDS = ("gaussian_blur", "upscale", "white_noise", "impulse_noise", "jpeg", "palette", "darken", "contrast_decrease", "colour_cast",
         "oversharpen", "halo")  # fmt: skip


def level(session, *, reversed_letters=False):
    """E[level] of the letters for the default query; with A for Bad, mapped back by meaning."""
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=reversed_letters)
    read = session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
    expected = expected_level(letter_probabilities(read.logprobs))
    return 6 - expected if reversed_letters else expected


def test_card_and_records_are_of_these_weights():
    digest = file_hash(EMBEDDED / "model.safetensors")
    for card in ("README.md", "training.json", "evaluation.json"):
        assert digest in (EMBEDDED / card).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["intervals.json", "comparisons.json"])
def test_what_ships_for_it_is_of_this_folder(file):
    assert folder_hash(EMBEDDED) in (ROOT / "configs" / file).read_text(encoding="utf-8")


def test_the_folder_is_small_safetensors_without_code():
    assert sum(f.stat().st_size for f in EMBEDDED.iterdir()) <= 32e6
    assert not [f.name for f in EMBEDDED.iterdir() if f.suffix in {".py", ".bin", ".pt", ".pkl"}]
    assert "auto_map" not in (EMBEDDED / "config.json").read_text()


def test_its_note_names_the_command_that_fetches_the_next(client):
    assert f"agentic-iqa bundle --config {PRESETS[0]}" in client.describe()["notice"]


@pytest.fixture(scope="module")
def seen(client):
    """Two photographs that training never saw, clean and with eleven kinds of distortion at three severities by turns,
    made here: (family, severity, level, level with A for Bad, the types that the model names)."""
    prompt = objects_prompt("detection", DEFAULT_QUERY, ["Global"])
    reply, rows = detection_reply(["Global"]), []
    parts = [Part(kind, severity) for kind in KINDS for severity in (1, 3, 5)]
    for turn, name in enumerate(("sumac", "prudential")):
        clean = np.asarray(Image.open(DATA / f"{name}.png").convert("RGB"))[96:416, 96:416]
        pictures = [(None, 0, clean)]
        for part in parts[turn::2]:
            picture = distort(clean, (part,), np.random.default_rng(part.severity)).image
            pictures.append((part.family, part.severity, picture))
        for family, severity, picture in pictures:
            session = client.open([Image.fromarray(picture)])
            types = ask(session, prompt, reply, RoleSettings()).model_dump(by_alias=True)["Global"]
            levels = level(session), level(session, reversed_letters=True)
            rows.append((family, severity, *levels, types))
    return rows


def test_levels_fall_with_the_severity(seen):
    assert spearmanr([row[1] for row in seen], [row[2] for row in seen]).statistic < -0.55


def test_strong_distortions_are_named(seen):
    """By chance one of eight would be right."""
    right = [types[:1] == [family] for family, severity, _, _, types in seen if severity >= 3]
    assert np.mean(right) > 0.5


def test_levels_do_not_hang_on_the_letters_order(seen):
    assert np.mean([abs(forward - backward) for _, _, forward, backward, _ in seen]) < 0.4


def test_plans_for_queries_of_a_person_are_mostly_right(client):
    """A fifth of the 200, with the corrections by rule; of all 200 the card says three quarters."""
    lines = (DATA / "planner_queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [query for query in map(json.loads, lines) if not query["reference"]][::4]
    session = client.open([Image.new("RGB", (128, 128), "grey")])
    right = []
    for line in queries:
        query, choices = line["query"], line["choices"] or ()
        reply = ask(session, planner_prompt(query, False, choices), PlannerReply, RoleSettings())
        plan = PlannerOutput.model_validate(reply.model_dump(by_alias=True))
        plan = correct_plan(plan, query, False, choices=choices)
        right.append(plan.model_dump(mode="json") == line["plan"])
    assert np.mean(right) > 0.6
