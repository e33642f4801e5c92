"""Tiny random-weight models of every family, with the embedded model's tokenizer, built where a test needs
them."""

from pathlib import Path

import torch
import transformers
from conftest import EMBEDDED
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

CHAT_TEMPLATE = (EMBEDDED / "chat_template.jinja").read_text(encoding="utf-8")

FAMILIES = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "llava_clip",
    "llava_siglip",
    "llava_onevision",
    "smolvlm",
    "idefics3",
    "internvl",
)
TEXT = dict(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096
)  # fmt: skip
TOWER = dict(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=112,
    patch_size=14,
)
QWEN_TOWER = dict(depth=2, num_heads=2, spatial_merge_size=2, temporal_patch_size=2)
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
SQUARE = {"height": 112, "width": 112}
RANGE = {"shortest_edge": 64 * 64, "longest_edge": 256 * 256}
MORE_TOKENS = {
    "smolvlm": ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"],
    "idefics3": ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"],
    "internvl": ["<img>", "</img>"],
}


def make_sensitive(model):
    """transformers' default initialisation gives logits that hardly see the image: draw the matrices
    larger."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 1.4 / weight[0].numel() ** 0.5)
    return model


def build(family: str, folder: Path) -> None:
    """Saves model and processor of `family` to `folder`, as its maker's checkpoints are laid out."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True)
    more = MORE_TOKENS.get(family, [])
    if family in ("smolvlm", "idefics3"):
        more = [*more, *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))]
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in more], special_tokens=True
    )
    model, processor = (_qwen if family.startswith("qwen") else _llava if "llava" in family else _tiled)(
        family, tokenizer
    )
    make_sensitive(model).save_pretrained(folder)
    processor.save_pretrained(folder)
    if family in ("llava_clip", "llava_siglip"):
        _name_as_published(folder)


def _ids(tokenizer) -> dict:
    return dict(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


def _qwen(family, tokenizer):
    token = tokenizer.convert_tokens_to_ids
    places = dict(
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    patch = 16 if family.startswith("qwen3") else 14
    if family == "qwen2_vl":
        tower = dict(embed_dim=64, hidden_size=128, mlp_ratio=2, patch_size=patch, **QWEN_TOWER)
        config = transformers.Qwen2VLConfig(
            text_config=TEXT | _ids(tokenizer) | {"rope_parameters": rope}, vision_config=tower, **places
        )
        model, kind = transformers.Qwen2VLForConditionalGeneration(config), transformers.Qwen2VLProcessor
    elif family == "qwen2_5_vl":
        tower = dict(
            hidden_size=64,
            intermediate_size=128,
            patch_size=patch,
            window_size=56,
            out_hidden_size=128,
            fullatt_block_indexes=[1],
        )
        config = transformers.Qwen2_5_VLConfig(
            text_config=TEXT | _ids(tokenizer) | {"rope_parameters": rope},
            vision_config=tower | QWEN_TOWER,
            **places,
        )
        model, kind = (
            transformers.Qwen2_5_VLForConditionalGeneration(config),
            transformers.Qwen2_5_VLProcessor,
        )
    else:
        tower = dict(
            hidden_size=64,
            intermediate_size=128,
            patch_size=patch,
            out_hidden_size=128,
            num_position_embeddings=256,
            **QWEN_TOWER,
        )
        text = TEXT | _ids(tokenizer) | {"head_dim": 64}
        if family == "qwen3_vl":
            text |= {"rope_parameters": rope | {"mrope_section": [12, 10, 10], "mrope_interleaved": True}}
            config = transformers.Qwen3VLConfig(
                text_config=text, vision_config=tower | {"deepstack_visual_indexes": [0]}, **places
            )
            model = transformers.Qwen3VLForConditionalGeneration(config)
        else:
            text |= {
                "rope_parameters": (
                    rope
                    | {
                        "mrope_section": [3, 3, 2],
                        "mrope_interleaved": True,
                        "partial_rotary_factor": 0.25,
                    }
                ),
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 32,
                "linear_value_head_dim": 32,
            }
            config = transformers.Qwen3_5Config(text_config=text, vision_config=tower, **places)
            model = transformers.Qwen3_5ForConditionalGeneration(config)
        kind = transformers.Qwen3VLProcessor
    video = (
        transformers.Qwen3VLVideoProcessor
        if family.startswith("qwen3")
        else transformers.Qwen2VLVideoProcessor
    )
    images = transformers.Qwen2VLImageProcessor(patch_size=patch, size=RANGE)
    return model, kind(
        image_processor=images, tokenizer=tokenizer, video_processor=video(), chat_template=CHAT_TEMPLATE
    )


def _llava(family, tokenizer):
    place = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    llama = transformers.LlamaConfig(**TEXT, **_ids(tokenizer))
    siglip = transformers.SiglipVisionConfig(**TOWER, vision_use_head=False)
    if family == "llava_onevision":
        pinpoints = [[112, 112], [112, 224], [224, 112], [224, 224]]
        config = transformers.LlavaOnevisionConfig(
            vision_config=siglip, text_config=llama, image_token_index=place,
            video_token_index=tokenizer.convert_tokens_to_ids("<|video_pad|>"), image_grid_pinpoints=pinpoints,
            vision_feature_select_strategy="full", vision_feature_layer=-1,
        )  # fmt: skip
        processor = transformers.LlavaOnevisionProcessor(
            image_processor=transformers.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=pinpoints),
            tokenizer=tokenizer, video_processor=transformers.LlavaOnevisionVideoProcessor(size=SQUARE), num_image_tokens=64,
            vision_feature_select_strategy="full", image_token="<|image_pad|>", video_token="<|video_pad|>",
            chat_template=CHAT_TEMPLATE,
        )  # fmt: skip
        return transformers.LlavaOnevisionForConditionalGeneration(config), processor
    clip = family == "llava_clip"
    tower = transformers.CLIPVisionConfig(**TOWER, projection_dim=32) if clip else siglip
    strategy = "default" if clip else "full"
    config = transformers.LlavaConfig(
        vision_config=tower, text_config=llama, image_token_index=place, image_seq_length=64,
        vision_feature_select_strategy=strategy, vision_feature_layer=-1,
    )  # fmt: skip
    images = (
        transformers.CLIPImageProcessor(size={"shortest_edge": 112}, crop_size=SQUARE)
        if clip
        else transformers.SiglipImageProcessor(size=SQUARE)
    )
    processor = transformers.LlavaProcessor(
        image_processor=images, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy=strategy,
        num_additional_image_tokens=int(clip), image_token="<|image_pad|>", chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config), processor


def _tiled(family, tokenizer):
    token = tokenizer.convert_tokens_to_ids
    llama = dict(model_type="llama", **TEXT, **_ids(tokenizer))
    if family == "internvl":
        config = transformers.InternVLConfig(
            vision_config=dict(
                hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=[112, 112], patch_size=[14, 14]
            ),
            text_config=dict(model_type="qwen2", **TEXT, **_ids(tokenizer)), image_token_id=token("<|image_pad|>"), image_seq_length=16,
        )  # fmt: skip
        names = {
            "start_image": "<img>",
            "end_image": "</img>",
            "context_image": "<|image_pad|>",
            "video": "<|video_pad|>",
        }
        tokenizer._set_model_specific_special_tokens({f"{name}_token": text for name, text in names.items()})
        processor = transformers.InternVLProcessor(
            image_processor=transformers.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=4),
            tokenizer=tokenizer, video_processor=transformers.InternVLVideoProcessor(size=SQUARE), image_seq_length=16,
            chat_template=CHAT_TEMPLATE,
        )  # fmt: skip
        return transformers.InternVLForConditionalGeneration(config), processor
    smol = family == "smolvlm"
    config_kind = transformers.SmolVLMConfig if smol else transformers.Idefics3Config
    config = config_kind(
        vision_config=TOWER, text_config=llama, image_token_id=token("<image>"), scale_factor=2,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    sizes = dict(size={"longest_edge": 224}, max_image_size={"longest_edge": 112}, do_image_splitting=True)
    common = dict(
        tokenizer=tokenizer, image_seq_len=16, chat_template=CHAT_TEMPLATE.replace(QWEN_IMAGE, "<image>")
    )
    if smol:
        video = transformers.SmolVLMVideoProcessor(
            max_image_size={"longest_edge": 112}, size={"longest_edge": 112}
        )
        processor = transformers.SmolVLMProcessor(
            transformers.SmolVLMImageProcessor(**sizes), video_processor=video, **common
        )
        return transformers.SmolVLMForConditionalGeneration(config), processor
    processor = transformers.Idefics3Processor(transformers.Idefics3ImageProcessor(**sizes), **common)
    return transformers.Idefics3ForConditionalGeneration(config), processor


def _name_as_published(folder: Path) -> None:
    """transformers 5 saves LLaVA's tower without the level `vision_model` that published checkpoints have."""
    file = folder / "model.safetensors"
    weights = {
        (
            name.replace("vision_tower.", "vision_tower.vision_model.", 1)
            if name.startswith("vision_tower.") and ".vision_model." not in name
            else name
        ): value
        for name, value in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})


# Models that the presets of configs/ name, small and of random weights: the parts, the order of tiles, the patches
# and the pixel ranges are those of the published folders; widths, depths and vocabulary are not.
def build_preset(name: str, folder: Path) -> None:
    """Saves a model that has the architecture and processor settings of the preset `name`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True)
    model, processor = (_onevision if name in ("llava_onevision_0_5b", "q_sit_mini") else _qwen_preset)(
        name, tokenizer
    )
    make_sensitive(model).save_pretrained(folder)
    processor.save_pretrained(folder)


def _onevision(name, tokenizer):
    """SigLIP with 384×384 in patches of 14 (729 tokens a tile), a Qwen2 language model, up to 6×6 tiles."""
    place = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    pinpoints = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
    tile = {"height": 384, "width": 384}
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**TOWER | {"image_size": 384}, vision_use_head=False),
        text_config=transformers.Qwen2Config(
            **TEXT | {"max_position_embeddings": 32768}, **_ids(tokenizer), tie_word_embeddings=True
        ),
        image_token_index=place, video_token_index=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        image_grid_pinpoints=pinpoints, vision_feature_select_strategy="full", vision_feature_layer=-1,
        vision_aspect_ratio="anyres_max_9", tie_word_embeddings=True,
    )  # fmt: skip
    processor = transformers.LlavaOnevisionProcessor(
        image_processor=transformers.LlavaOnevisionImageProcessor(size=tile, image_grid_pinpoints=pinpoints),
        tokenizer=tokenizer, video_processor=transformers.LlavaOnevisionVideoProcessor(size=tile),
        num_image_tokens=729, vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_9",
        image_token="<|image_pad|>", video_token="<|video_pad|>", chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    return transformers.LlavaOnevisionForConditionalGeneration(config), processor


def _qwen_preset(name, tokenizer):
    """Qwen3-VL-2B: patches of 16, features of three depths, 256² to 4096² pixels. Qwen2.5-VL-3B: patches of 14,
    windows of 112 pixels, 56² to 12,845,056 pixels."""
    model, processor = _qwen("qwen3_vl" if name == "qwen3_vl_2b" else "qwen2_5_vl", tokenizer)
    config = model.config
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = True
    if name == "qwen3_vl_2b":
        config.vision_config.depth = 4
        config.vision_config.deepstack_visual_indexes = [0, 1, 2]
        config.vision_config.num_position_embeddings = 2304
        config.text_config.num_hidden_layers = 4
        processor.image_processor.size = {"shortest_edge": 65536, "longest_edge": 16777216}
    else:
        config.vision_config.window_size = 112
        processor.image_processor.size = {"shortest_edge": 3136, "longest_edge": 12845056}
    return type(model)(config), processor
