"""The embedded VLM around its language model: the processor, the notice, and the start of its vision
tower."""

import torch
from transformers import (
    PreTrainedTokenizerBase,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

PATCH, MERGE = 16, 2
FACTOR = PATCH * MERGE
TRAINED_MIN_PIXELS, TRAINED_MAX_PIXELS = 96 * 96, 512 * 512

NOTICE = (
    "the small embedded model answered: it was trained on synthetic distortions so that everything runs at"
    " once and anywhere; use a Qwen-VL folder for real assessments"
)
CHAT_TEMPLATE = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}{%- for c in m['content'] -%}"
    "{%- if c['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif c['type'] == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else -%}{{ c['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def build_processor(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLProcessor:
    """The processor; its size limits are the range of pixels that training covered."""
    size = {"shortest_edge": TRAINED_MIN_PIXELS, "longest_edge": TRAINED_MAX_PIXELS}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE, size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=MERGE),
        chat_template=CHAT_TEMPLATE,
    )


def grow_vision(visual: torch.nn.Module, donor: torch.nn.Module, embedding_rms: float) -> None:
    """Starts a deeper and wider tower as the same function as `donor`: what it has more of adds nothing at
    first.

    Only the merger's last layer, into another width, starts afresh, at the size of the language model's
    embeddings.
    """
    weights = donor.state_dict()
    with torch.no_grad():
        for name, weight in visual.state_dict().items():
            if name.startswith("merger.mlp.2."):
                (
                    weight.normal_(std=embedding_rms / weight.shape[-1] ** 0.5)
                    if weight.ndim == 2
                    else weight.zero_()
                )
            elif name in weights:
                grown = [slice(0, size) for size in weights[name].shape]
                if weight.ndim == 2:
                    weight.normal_(std=weights[name].std().item())
                if name.endswith("down_proj.weight"):
                    weight.zero_()
                weight[tuple(grown)] = weights[name]
            elif weight.ndim == 2:
                silent = name.endswith(("attn.proj.weight", "down_proj.weight"))
                weight.zero_() if silent else weight.normal_(std=weight.shape[1] ** -0.5)
            elif "norm" not in name:
                weight.zero_()
