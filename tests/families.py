"""Tiny random-weight models of every family, with the embedded model's tokenizer, built where a test needs
them, and one plain pass through transformers to compare letters with."""

from pathlib import Path

import torch
import transformers as tf
from conftest import EMBEDDED
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

FAMILIES = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "llava_clip", "llava_siglip", "llava_onevision", "smolvlm", "idefics3", "internvl",
)  # fmt: skip
PRESETS = ("llava_onevision_0_5b", "q_sit_mini")
SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
REVERSED = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)

CHAT_TEMPLATE = (EMBEDDED / "chat_template.jinja").read_text(encoding="utf-8")
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TEXT = dict(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096
)  # fmt: skip
TOWER = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=112, patch_size=14)  # fmt: skip
QWEN_TOWER = dict(depth=2, num_heads=2, spatial_merge_size=2, temporal_patch_size=2)
PLACES = dict(image_token="<|image_pad|>", video_token="<|video_pad|>", chat_template=CHAT_TEMPLATE)


def load(folder, device: str = "cpu", **options) -> TransformersClient:
    return TransformersClient(Path(folder).name, ModelSettings(path=str(folder), **options), device)


def plain_logprobs(client, images, prompt=SCORING, prefix=ANSWER_PREFIX) -> torch.Tensor:
    """Log-probabilities of one plain pass through processor and model, with no cache of any kind."""
    text = client.renderer.render(prompt, len(images), prefix).text
    batch = client.renderer.processor(text=[text], images=images, return_tensors="pt")
    if hasattr(client.model.model, "rope_deltas"):
        client.model.model.rope_deltas = None
    with torch.inference_mode():
        return client.model(**batch, use_cache=False).logits[0, -1].double().log_softmax(-1)


def apart(read, other) -> float:
    """The largest difference of a letter's log-probability from another read, or from `plain_logprobs`."""
    theirs = (
        other.logprobs
        if hasattr(other, "logprobs")
        else {x: other[i] for x, i in read.token_ids.items()}
    )
    return max(abs(read.logprobs[letter] - float(theirs[letter])) for letter in read.logprobs)


def build(name: str, folder: Path) -> Path:
    """Saves model and processor of a family, laid out as its maker's checkpoints, or of a preset of configs/: the
    parts, tiles, patches and pixel ranges of the published folder; widths, depths and vocabulary are not."""
    torch.manual_seed(0)
    tokenizer = tf.AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True)
    makers = {"qwen": qwen, "llava_clip": llava, "llava_siglip": llava, "smolvlm": idefics, "idefics3": idefics, "internvl": internvl}  # fmt: skip
    make = next((maker for start, maker in makers.items() if name.startswith(start)), onevision)
    model, processor = make(name, tokenizer)
    # transformers' default initialisation gives logits that hardly see the image: draw the matrices larger
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.copy_(
                    torch.randn(weight.shape, generator=generator) * 1.4 / weight[0].numel() ** 0.5
                )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if name in ("llava_clip", "llava_siglip"):
        # transformers 5 saves LLaVA's tower without the level `vision_model` that published checkpoints have
        weights = load_file(folder / "model.safetensors")
        tower, named = "vision_tower.", "vision_tower.vision_model."
        weights = {
            k if k.startswith(named) else k.replace(tower, named, 1): v for k, v in weights.items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def add(tokenizer, *tokens: str) -> None:
    tokenizer.add_tokens(
        [AddedToken(x, special=True, normalized=False) for x in tokens], special_tokens=True
    )


def ids(tokenizer) -> dict:
    return dict(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )  # fmt: skip


def qwen(name, tokenizer):
    token, third = tokenizer.convert_tokens_to_ids, name.startswith("qwen3")
    places = dict(
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    text = TEXT | ids(tokenizer) | {"rope_parameters": rope}
    tower = dict(hidden_size=64, intermediate_size=128, out_hidden_size=128, patch_size=16 if third else 14, **QWEN_TOWER)  # fmt: skip
    if name == "qwen2_vl":
        tower = dict(embed_dim=64, hidden_size=128, mlp_ratio=2, patch_size=14, **QWEN_TOWER)
    elif name == "qwen2_5_vl":
        tower |= {"window_size": 56, "fullatt_block_indexes": [1]}
    elif name == "qwen3_vl":
        tower |= {"num_position_embeddings": 256, "deepstack_visual_indexes": [0]}
        text |= {
            "head_dim": 64,
            "rope_parameters": rope | {"mrope_section": [12, 10, 10], "mrope_interleaved": True},
        }
    else:
        tower |= {"num_position_embeddings": 256}
        partial = rope | {
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
            "partial_rotary_factor": 0.25,
        }
        text |= {
            "head_dim": 64, "rope_parameters": partial, "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        }  # fmt: skip
    family = {
        "qwen2_vl": "Qwen2VL",
        "qwen2_5_vl": "Qwen2_5_VL",
        "qwen3_vl": "Qwen3VL",
        "qwen3_5": "Qwen3_5",
    }[name]
    config = getattr(tf, f"{family}Config")(text_config=text, vision_config=tower, **places)
    size = {"shortest_edge": 64 * 64, "longest_edge": 256 * 256}
    parts = {
        "image_processor": tf.Qwen2VLImageProcessor(patch_size=tower["patch_size"], size=size),
        "tokenizer": tokenizer,
    }
    parts["video_processor"] = tf.Qwen3VLVideoProcessor() if third else tf.Qwen2VLVideoProcessor()
    processor = getattr(tf, f"{'Qwen3VL' if third else family}Processor")(
        **parts, chat_template=CHAT_TEMPLATE
    )
    return getattr(tf, f"{family}ForConditionalGeneration")(config), processor


def llava(name, tokenizer):
    clip = name == "llava_clip"
    square, strategy = {"height": 112, "width": 112}, "default" if clip else "full"
    tower = tf.CLIPVisionConfig(**TOWER, projection_dim=32) if clip else tf.SiglipVisionConfig(**TOWER, vision_use_head=False)  # fmt: skip
    config = tf.LlavaConfig(
        vision_config=tower, text_config=tf.LlamaConfig(**TEXT, **ids(tokenizer)), image_seq_length=64, vision_feature_layer=-1,
        image_token_index=tokenizer.convert_tokens_to_ids("<|image_pad|>"), vision_feature_select_strategy=strategy,
    )  # fmt: skip
    images = tf.CLIPImageProcessor(size={"shortest_edge": 112}, crop_size=square) if clip else tf.SiglipImageProcessor(size=square)  # fmt: skip
    processor = tf.LlavaProcessor(
        image_processor=images, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy=strategy,
        num_additional_image_tokens=int(clip), image_token="<|image_pad|>", chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    return tf.LlavaForConditionalGeneration(config), processor


def onevision(name, tokenizer):
    """Of a preset: SigLIP with 384×384 in patches of 14 (729 tokens a tile), Qwen2, up to 6×6 tiles."""
    as_published = name in PRESETS
    side, steps = (384, 6) if as_published else (112, 2)
    tile = {"height": side, "width": side}
    pinpoints = [
        [side * rows, side * columns]
        for rows in range(1, steps + 1)
        for columns in range(1, steps + 1)
    ]
    reach = {"max_position_embeddings": 32768} if as_published else {}
    language = tf.Qwen2Config if as_published else tf.LlamaConfig
    tower = tf.SiglipVisionConfig(**TOWER | {"image_size": side}, vision_use_head=False)
    config = tf.LlavaOnevisionConfig(
        vision_config=tower, text_config=language(**TEXT | reach, **ids(tokenizer), tie_word_embeddings=as_published),
        image_token_index=tokenizer.convert_tokens_to_ids("<|image_pad|>"), image_grid_pinpoints=pinpoints,
        video_token_index=tokenizer.convert_tokens_to_ids("<|video_pad|>"), vision_feature_select_strategy="full",
        vision_feature_layer=-1, tie_word_embeddings=as_published,
    )  # fmt: skip
    processor = tf.LlavaOnevisionProcessor(
        image_processor=tf.LlavaOnevisionImageProcessor(size=tile, image_grid_pinpoints=pinpoints), tokenizer=tokenizer,
        video_processor=tf.LlavaOnevisionVideoProcessor(size=tile), num_image_tokens=(side // 14) ** 2,
        vision_feature_select_strategy="full", **PLACES,
    )  # fmt: skip
    return tf.LlavaOnevisionForConditionalGeneration(config), processor


def internvl(name, tokenizer):
    add(tokenizer, "<img>", "</img>")
    side, square = {"image_size": [112, 112], "patch_size": [14, 14]}, {"height": 112, "width": 112}
    config = tf.InternVLConfig(
        vision_config=TOWER | side, text_config=dict(model_type="qwen2", **TEXT, **ids(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"), image_seq_length=16,
    )  # fmt: skip
    names = {"start_image": "<img>", "end_image": "</img>", "context_image": "<|image_pad|>", "video": "<|video_pad|>"}  # fmt: skip
    tokenizer._set_model_specific_special_tokens(
        {f"{name}_token": text for name, text in names.items()}
    )
    processor = tf.InternVLProcessor(
        image_processor=tf.GotOcr2ImageProcessor(size=square, crop_to_patches=True, max_patches=4), tokenizer=tokenizer,
        video_processor=tf.InternVLVideoProcessor(size=square), image_seq_length=16, chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    return tf.InternVLForConditionalGeneration(config), processor


def idefics(name, tokenizer):
    cells = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    add(
        tokenizer,
        "<image>",
        "<fake_token_around_image>",
        "<global-img>",
        "<end_of_utterance>",
        *cells,
    )
    smol = name == "smolvlm"
    config = (tf.SmolVLMConfig if smol else tf.Idefics3Config)(
        vision_config=TOWER, text_config=dict(model_type="llama", **TEXT, **ids(tokenizer)), scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    tile = {"longest_edge": 112}
    sizes = dict(size={"longest_edge": 224}, max_image_size=tile, do_image_splitting=True)
    common = dict(tokenizer=tokenizer, image_seq_len=16, chat_template=CHAT_TEMPLATE.replace(QWEN_IMAGE, "<image>"))  # fmt: skip
    if smol:
        video = tf.SmolVLMVideoProcessor(max_image_size=tile, size=tile)
        processor = tf.SmolVLMProcessor(
            tf.SmolVLMImageProcessor(**sizes), video_processor=video, **common
        )
        return tf.SmolVLMForConditionalGeneration(config), processor
    return tf.Idefics3ForConditionalGeneration(config), tf.Idefics3Processor(tf.Idefics3ImageProcessor(**sizes), **common)  # fmt: skip
