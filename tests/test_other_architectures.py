"""Other families through the same client: tiny random-weight models with the embedded model's tokenizer and template."""

import pytest
import torch
import transformers
from conftest import EMBEDDED
from PIL import Image

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.replies import detection_reply, summary_reply
from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, chat_messages, detection_prompt, summarizer_prompt
from agentic_iqa_local.training.embedded import CHAT_TEMPLATE
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
TEXT = dict(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096
)  # fmt: skip


def make_sensitive(model):
    """transformers' default initialisation gives logits that hardly see the image: draw the matrices larger."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 1.4 / weight[0].numel() ** 0.5)
    return model


def build(family, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True)
    token = tokenizer.convert_tokens_to_ids
    ids = dict(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    vision = dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=112, patch_size=14
    )
    if family == "qwen3_vl":
        config = transformers.Qwen3VLConfig(
            text_config=dict(
                **TEXT, **ids, head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
            ),
            vision_config=dict(
                depth=2, hidden_size=64, intermediate_size=128, num_heads=2, patch_size=16, spatial_merge_size=2, temporal_patch_size=2,
                out_hidden_size=128, num_position_embeddings=256, deepstack_visual_indexes=[0],
            ),
            image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
            vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
        )  # fmt: skip
        model = transformers.Qwen3VLForConditionalGeneration(config)
        images = transformers.Qwen2VLImageProcessor(patch_size=16, size={"shortest_edge": 64 * 64, "longest_edge": 256 * 256})
        processor = transformers.Qwen3VLProcessor(
            image_processor=images,
            tokenizer=tokenizer,
            video_processor=transformers.Qwen3VLVideoProcessor(),
            chat_template=CHAT_TEMPLATE,
        )
    else:
        siglip = family == "llava_siglip"
        tower = (
            transformers.SiglipVisionConfig(**vision, vision_use_head=False)
            if siglip
            else transformers.CLIPVisionConfig(**vision, projection_dim=32)
        )
        strategy = "full" if siglip else "default"
        config = transformers.LlavaConfig(
            vision_config=tower, text_config=transformers.LlamaConfig(**TEXT, **ids), image_token_index=token("<|image_pad|>"),
            image_seq_length=64, vision_feature_select_strategy=strategy, vision_feature_layer=-1,
        )  # fmt: skip
        model = transformers.LlavaForConditionalGeneration(config)
        square = {"height": 112, "width": 112}
        images = (
            transformers.SiglipImageProcessor(size=square)
            if siglip
            else transformers.CLIPImageProcessor(size={"shortest_edge": 112}, crop_size=square)
        )
        processor = transformers.LlavaProcessor(
            image_processor=images, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy=strategy,
            num_additional_image_tokens=0 if siglip else 1, image_token="<|image_pad|>", chat_template=CHAT_TEMPLATE,
        )  # fmt: skip
    make_sensitive(model).save_pretrained(folder)
    processor.save_pretrained(folder)


@pytest.fixture(scope="module", params=["qwen3_vl", "llava_clip", "llava_siglip"])
def family_client(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    build(request.param, folder)
    return TransformersClient(request.param, ModelSettings(path=str(folder)), "cpu")


@pytest.mark.parametrize("count", [1, 2], ids=["one-image", "two-images"])
def test_shared_prefix_letters_equal_a_plain_full_forward_pass(family_client, photo, count):
    client = family_client
    images: list[Image.Image] = [photo.crop((0, 0, 192, 160)), photo.crop((200, 100, 392, 260))][:count]
    session = client.open(images)
    detection_reply(["Global"]).model_validate_json(
        session.generate(detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"]))
    )
    read = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert session.usage.reused >= session.seen[0].tokens * count
    text = client.processor.apply_chat_template(
        chat_messages(SCORING, count, "images_first"), add_generation_prompt=True, tokenize=False
    )
    batch = client.processor(text=[text + ANSWER_PREFIX], images=images, return_tensors="pt")
    if hasattr(client.model.model, "rope_deltas"):
        client.model.model.rope_deltas = None
    with torch.inference_mode():
        logprobs = client.model(**batch, use_cache=False).logits[0, -1].double().log_softmax(-1)
    assert {x: logprobs[i].item() for x, i in read.token_ids.items()} == pytest.approx(read.logprobs, abs=1e-4)


def test_answers_are_valid_under_the_schema(family_client, photo):
    session = family_client.open([photo.crop((0, 0, 192, 160))])
    text = session.generate(SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")
    assert summary_reply(LETTERS).model_validate_json(text).final_answer == "B"
