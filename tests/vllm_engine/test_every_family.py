"""The vLLM engine on the CPU with a tiny model of every family but the embedded model's own (test_vllm.py)."""

import pytest
from families import SCORING, apart, build, load

from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, objects_prompt
from agentic_iqa_local.nodes.replies import detection_reply
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client.vllm_client import VllmClient

DETECTION = objects_prompt("detection", DEFAULT_QUERY, ["Global"])
# Both engines compute in float32 with sums in another order: differences of 1e-6 in logits that reach about 20.
BOUND = 1e-4


@pytest.mark.parametrize(
    "family",
    ["qwen2_vl", "qwen3_vl", "llava_clip", "llava_siglip", "smolvlm", "idefics3"],
)
def test_both_engines_agree_on_every_family(family, photo, tmp_path):
    theirs = load(build(family, tmp_path / family))
    own = VllmClient(family, theirs.settings, "cpu")
    crops = [photo.crop(box) for box in ((0, 0, 256, 224), (0, 0, 192, 160), (200, 100, 392, 260))]
    try:
        for images in (crops[:1], crops[1:]):
            sessions = [client.open(images) for client in (own, theirs)]
            one, other = (
                session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for session in sessions
            )
            assert one.token_ids == other.token_ids
            assert apart(one, other) < BOUND
            assert sessions[0].seen == sessions[1].seen
            texts = [
                session.generate(DETECTION, detection_reply(["Global"])) for session in sessions
            ]
            assert texts[0] == texts[1]
    finally:
        own.close()
