#!/usr/bin/env python
"""Makes a folder for llama.cpp of a Qwen2.5-VL folder: its text part, its vision part and the
processor's files.

Names of tensors and keys are those that llama.cpp's own convert_hf_to_gguf.py writes. Tensors are
converted one by one, so that a model larger than the memory can be converted too.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from safetensors import safe_open
from transformers import AutoImageProcessor, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.command import Parser, exit_status
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.model_folder import read_weights
from agentic_iqa_local.vlm_client.rendering import LOCAL, check_folder

try:
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
    from gguf.quants import quantize
except ModuleNotFoundError:
    sys.exit("error: expected the package gguf; pip install 'agentic_iqa_local[llamacpp]'")

EPILOG = """\
examples:
  # the small model that ships, to try the engine
  python scripts/make_gguf.py models/embedded models/embedded-GGUF
  python scripts/assess.py photo.jpg --engine llamacpp --model embedded-GGUF

  # a model for a machine without a card, a quarter of the size that transformers needs there
  python scripts/make_gguf.py models/Qwen2.5-VL-3B-Instruct models/Qwen2.5-VL-3B-Instruct-GGUF --type q8_0
"""
KIND = "qwen2_5_vl"
SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.md", "LICEN*", "NOTICE*")
WEIGHTS_INDEX = "model.safetensors.index.json"

TEXT_TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
VISION_TENSORS = {
    "attn.proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "norm1": "ln1",
    "norm2": "ln2",
}
OUTER_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
VISION_NORM_EPSILON = 1e-6  # of Qwen2_5_VLVisionBlock
WINDOW = 112  # pixels; the windows of llama.cpp, and of every published Qwen2.5-VL
USUAL_SIZE = 560  # pixels; llama.cpp wants one for its warm-up, and takes any other

# --type → kind of the text part's file and of its matrices
TYPES = {
    "f32": (LlamaFileType.ALL_F32, GGMLQuantizationType.F32),
    "f16": (LlamaFileType.MOSTLY_F16, GGMLQuantizationType.F16),
    "q8_0": (LlamaFileType.MOSTLY_Q8_0, GGMLQuantizationType.Q8_0),
}


class Writer:
    """One GGUF file, with matrices of a `--type`; vectors stay in float32."""

    def __init__(self, path: Path, architecture: str, kind: str):
        self.file_type, self.matrices = TYPES[kind]
        self.gguf = GGUFWriter(path, architecture, use_temp_file=True)
        self.gguf.add_file_type(self.file_type)

    def add(self, name: str, tensor: np.ndarray) -> None:
        """Adds a float32 tensor; in float16 where its rows cannot be quantised."""
        if tensor.ndim == 1 or self.matrices == GGMLQuantizationType.F32:
            self.gguf.add_tensor(name, tensor)
        elif self.matrices == GGMLQuantizationType.F16 or tensor.shape[-1] % 32:
            self.gguf.add_tensor(name, tensor.astype(np.float16))
        else:
            self.gguf.add_tensor(name, quantize(tensor, self.matrices), raw_dtype=self.matrices)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def convert(folder: Path, out: Path, kind: str) -> list[Path]:
    """Writes the text and the vision part of `folder` and copies its small files to `out`. Returns
    the two files. Raises VLMError for a folder of another architecture."""
    config = check_folder(folder)
    if config.model_type != KIND:
        mistake = f"model folder {folder}: expected {KIND}, got {config.model_type}"
        raise VLMError(mistake, "use llama.cpp's convert_hf_to_gguf.py")
    name = folder.resolve().name
    out.mkdir(parents=True, exist_ok=True)
    vision_kind = "f32" if kind == "f32" else "f16"
    text_path, vision_path = out / f"{name}-{kind}.gguf", out / f"mmproj-{name}-{vision_kind}.gguf"
    text, vision = Writer(text_path, "qwen2vl", kind), Writer(vision_path, "clip", vision_kind)
    _describe_text(text.gguf, folder, config)
    _describe_vision(vision.gguf, folder, config)
    for tensor_name, tensor in track(_tensors(folder), "tensors", len(read_weights(folder).shapes)):
        if tensor_name.startswith("visual."):
            _add_vision(vision, tensor_name.removeprefix("visual."), tensor)
        else:
            text.add(_text_name(tensor_name), tensor)
    text.close()
    vision.close()
    if not out.samefile(folder):
        _copy_small_files(folder, out)
    return [text_path, vision_path]


def _copy_small_files(folder: Path, out: Path) -> None:
    for pattern in SMALL_FILES:
        for file in folder.glob(pattern):
            if file.name != WEIGHTS_INDEX:
                shutil.copyfile(file, out / file.name)


def _tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor in float32 by its name, without the prefixes of some editions."""
    for file in read_weights(folder).files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                short = name.replace("model.language_model.", "model.")
                short = short.replace("model.visual.", "visual.")
                yield short, opened.get_tensor(name).to(torch.float32).numpy()


def _text_name(name: str) -> str:
    if name in OUTER_TENSORS:
        return OUTER_TENSORS[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{TEXT_TENSORS[part]}.{kind}"


def _add_vision(writer: Writer, name: str, tensor: np.ndarray) -> None:
    """Adds a tensor of the vision part: the two frames' kernels and the queries, keys and values
    apart, as llama.cpp has them."""
    if name == "patch_embed.proj.weight":
        writer.add("v.patch_embd.weight", np.ascontiguousarray(tensor[:, :, 0]))
        writer.add("v.patch_embd.weight.1", np.ascontiguousarray(tensor[:, :, 1]))
    elif name == "merger.ln_q.weight":
        writer.add("v.post_ln.weight", tensor)
    elif name.startswith("merger.mlp."):
        writer.add(f"mm.{name.removeprefix('merger.mlp.')}", tensor)
    else:
        _, layer, rest = name.split(".", 2)
        part, _, kind = rest.rpartition(".")
        if part == "attn.qkv":
            for letter, share in zip("qkv", np.split(tensor, 3), strict=True):
                writer.add(f"v.blk.{layer}.attn_{letter}.{kind}", np.ascontiguousarray(share))
        else:
            writer.add(f"v.blk.{layer}.{VISION_TENSORS[part]}.{kind}", tensor)


def _describe_text(gguf: GGUFWriter, folder: Path, config: Any) -> None:
    text = config.get_text_config()
    gguf.add_type("model")
    gguf.add_name(folder.resolve().name)
    gguf.add_block_count(text.num_hidden_layers)
    gguf.add_context_length(text.max_position_embeddings)
    gguf.add_embedding_length(text.hidden_size)
    gguf.add_feed_forward_length(text.intermediate_size)
    gguf.add_head_count(text.num_attention_heads)
    gguf.add_head_count_kv(text.num_key_value_heads)
    gguf.add_layer_norm_rms_eps(text.rms_norm_eps)
    gguf.add_rope_freq_base(text.rope_parameters["rope_theta"])
    gguf.add_rope_dimension_sections([*text.rope_parameters["mrope_section"], 0])
    gguf.add_vocab_size(text.vocab_size)
    _describe_tokens(gguf, folder, text.vocab_size)


def _describe_tokens(gguf: GGUFWriter, folder: Path, size: int) -> None:
    """The tokenizer; rows of the embedding that no token has are filled up."""
    tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)  # nosec B615 # a local folder
    names = [f"[PAD{index}]" for index in range(size)]
    kinds = [TokenType.UNUSED] * size
    for name, index in tokenizer.get_vocab().items():
        names[index], kinds[index] = name, TokenType.NORMAL
    for index, token in tokenizer.added_tokens_decoder.items():
        kinds[index] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    written = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = written["model"]["merges"]
    gguf.add_tokenizer_model("gpt2")
    gguf.add_tokenizer_pre("qwen2")
    gguf.add_token_list(names)
    gguf.add_token_types(kinds)
    gguf.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    )
    gguf.add_eos_token_id(tokenizer.eos_token_id)
    gguf.add_pad_token_id(tokenizer.pad_token_id)
    gguf.add_add_bos_token(False)


def _describe_vision(gguf: GGUFWriter, folder: Path, config: Any) -> None:
    vision = config.vision_config
    images = AutoImageProcessor.from_pretrained(folder, **LOCAL)  # nosec B615 # a local folder
    gguf.add_type("mmproj")
    gguf.add_clip_has_vision_encoder(True)
    gguf.add_clip_projector_type("qwen2.5vl_merger")
    gguf.add_vision_use_silu(True)
    gguf.add_vision_projection_dim(config.get_text_config().hidden_size)
    gguf.add_vision_image_size(USUAL_SIZE)
    gguf.add_vision_patch_size(vision.patch_size)
    gguf.add_vision_embedding_length(vision.hidden_size)
    gguf.add_vision_feed_forward_length(vision.intermediate_size)
    gguf.add_vision_block_count(vision.depth)
    gguf.add_vision_head_count(vision.num_heads)
    gguf.add_vision_attention_layernorm_eps(VISION_NORM_EPSILON)
    gguf.add_vision_spatial_merge_size(vision.spatial_merge_size)
    gguf.add_vision_image_mean(images.image_mean)
    gguf.add_vision_image_std(images.image_std)
    gguf.add_vision_min_pixels(images.size["shortest_edge"])
    gguf.add_vision_max_pixels(images.size["longest_edge"])
    gguf.add_vision_n_wa_pattern(window_pattern(vision))


def window_pattern(vision: Any) -> int:
    """Every how many layers the vision part attends to the whole picture; 0 for all of them, where
    the 1 that llama.cpp's converter writes ends its process at the first picture. Raises VLMError
    for layers at other distances, and for windows of another size, which llama.cpp would not heed."""
    full, depth = vision.fullatt_block_indexes, vision.depth
    if len(full) == depth:
        return 0
    if vision.window_size != WINDOW:
        expected = f"expected a window_size of {WINDOW}, as llama.cpp has, got {vision.window_size}"
        raise VLMError(f"config.json: {expected}", "use the backend transformers")
    step = full[0] + 1
    if full != list(range(step - 1, depth, step)):
        raise VLMError(f"config.json: expected each {step}th layer to see all, got {full}")
    return step


def parser() -> argparse.ArgumentParser:
    made = Parser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("model", type=Path, help="a Qwen2.5-VL folder as transformers loads it")
    made.add_argument("out", type=Path, help="the folder to write")
    made.add_argument("--type", choices=TYPES, default="q8_0", help="of its matrices (%(default)s)")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    return exit_status(lambda: make(args))


def make(args: argparse.Namespace) -> None:
    for file in convert(args.model, args.out, args.type):
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
