"""The families under vLLM: the letters of transformers, or a refusal that says why."""

import pytest
from families import build

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, detection_prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import detection_reply
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient
from agentic_iqa_local.vlm_client.vllm_client import VllmClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)


@pytest.mark.parametrize(
    "family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_clip", "llava_siglip", "smolvlm", "idefics3"]
)
def test_both_engines_agree_on_letters_tokens_and_answers(family, photo, tmp_path):
    build(family, tmp_path)
    settings = ModelSettings(path=str(tmp_path))
    theirs, ours = TransformersClient(family, settings, "cpu"), VllmClient(family, settings, "cpu")
    try:
        for images in (
            [photo.crop((0, 0, 256, 224))],
            [photo.crop((0, 0, 192, 160)), photo.crop((200, 100, 392, 260))],
        ):
            sessions = [client.open(images) for client in (ours, theirs)]
            reads = [session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for session in sessions]
            assert reads[0].token_ids == reads[1].token_ids
            assert reads[0].logprobs == pytest.approx(reads[1].logprobs, abs=1e-4)
            assert sessions[0].seen == sessions[1].seen
            prompt, schema = detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"])
            assert sessions[0].generate(prompt, schema) == sessions[1].generate(prompt, schema)
    finally:
        ours.close()
