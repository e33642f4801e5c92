"""The architectures of the shipped set-ups, as config.json of each model's page on the Hugging Face Hub has them, and the
parameters (in billions) that the page states. They are built on torch's meta device: without weights."""

import functools
import math

import torch
import transformers as tf

TOWER_2_5 = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14, "window_size": 112}  # fmt: skip
TOWER_3 = {"num_heads": 16, "patch_size": 16, "num_position_embeddings": 2304}
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "image_size": 384, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip


def text(width, inner, layers, heads, shared, words, **more):
    return {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": shared, "vocab_size": words, "max_position_embeddings": 32768, **more,
    }  # fmt: skip


# folder: (billions of parameters, transformers' class, whether the head is the embedding, text, vision)
MODELS = {
    "Qwen2.5-VL-3B-Instruct": (
        3.75, "Qwen2_5_VL", True, text(2048, 11008, 36, 16, 2, 151936), TOWER_2_5 | {"out_hidden_size": 2048},
    ),
    "Qwen2.5-VL-7B-Instruct": (
        8.29, "Qwen2_5_VL", False, text(3584, 18944, 28, 28, 4, 152064), TOWER_2_5 | {"out_hidden_size": 3584},
    ),
    "Qwen3-VL-2B-Instruct": (
        2.13, "Qwen3VL", True, text(2048, 6144, 28, 16, 8, 151936, head_dim=128),
        TOWER_3 | {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17]},
    ),
    "Qwen3-VL-8B-Instruct": (
        8.77, "Qwen3VL", False, text(4096, 12288, 36, 32, 8, 151936, head_dim=128),
        TOWER_3 | {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096, "deepstack_visual_indexes": [8, 16, 24]},
    ),
    "llava-onevision-qwen2-0.5b-ov-hf": (
        0.89, "LlavaOnevision", True, text(896, 4864, 24, 14, 2, 152000, model_type="qwen2"), SIGLIP,
    ),
    "llava-onevision-qwen2-7b-ov-hf": (
        8.03, "LlavaOnevision", False, text(3584, 18944, 28, 28, 4, 152128, model_type="qwen2"), SIGLIP,
    ),
}  # fmt: skip
MODELS["q-sit-mini"] = MODELS["llava-onevision-qwen2-0.5b-ov-hf"]
ROPE = {"rope_type": "default", "rope_theta": 1e6}
SECTIONS = {"Qwen2_5_VL": [16, 24, 24], "Qwen3VL": [24, 20, 20]}


def config_of(folder: str) -> tf.PreTrainedConfig:
    _, kind, tied, language, vision = MODELS[folder]
    language = language | {"tie_word_embeddings": tied, "rope_parameters": dict(ROPE)}
    if kind in SECTIONS:
        language["rope_parameters"]["mrope_section"] = SECTIONS[kind]
    made = getattr(tf, f"{kind}Config")
    return made(text_config=language, vision_config=dict(vision), tie_word_embeddings=tied)


@functools.cache
def on_meta(folder: str) -> tf.PreTrainedModel:
    """The model in bfloat16, with the shapes of its weights alone."""
    config = config_of(folder)
    made = getattr(tf, f"{MODELS[folder][1]}ForConditionalGeneration")
    with torch.device("meta"):
        model = made._from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    return model


def shapes(folder: str) -> dict[str, tuple[int, ...]]:
    """The shape of each weight that is stored."""
    return {name: tuple(weight.shape) for name, weight in on_meta(folder).named_parameters()}


def cache_bytes(folder: str, tokens: int) -> int:
    """Keys and values of so many tokens in 2 bytes a number."""
    of = config_of(folder).get_text_config()
    width = getattr(of, "head_dim", None) or of.hidden_size // of.num_attention_heads
    return math.prod([2, 2, tokens, of.num_hidden_layers, of.num_key_value_heads, width])
