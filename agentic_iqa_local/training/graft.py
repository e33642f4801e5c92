"""SmolLM2-135M-Instruct inside Qwen2.5-VL's architecture: what training starts from.

SmolLM2 is Llama: with biases of zero and its own RoPE the language model of Qwen2.5-VL computes the same log-probabilities.
Four special tokens that SmolLM2 reserves for code mark the pictures.
"""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from agentic_iqa_local.assembly import read_llama

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
            patch_size=16,
            spatial_merge_size=2,
            temporal_patch_size=2,
            window_size=128,
            fullatt_block_indexes=list(range(VISION_DEPTH)),
        ),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
        **ids,
    )


def gguf_in(folder: Path) -> Path:
    """The one GGUF file of `folder`."""
    (file,) = Path(folder).glob("*.gguf")
    return file


def graft_tokenizer(gguf_folder: Path) -> PreTrainedTokenizerFast:
    """SmolLM2's tokenizer with the names of the vision tokens that Qwen2.5-VL's processor looks for.

    Digits stand alone, as SmolLM2's own pre-tokenizer has it ("smollm" in the GGUF). Not a `Qwen2Tokenizer`: that class
    replaces the pre-tokenizer by Qwen's, which cuts indentation and punctuation otherwise than SmolLM2 has learned.
    """
    from gguf import GGUFReader

    fields = GGUFReader(gguf_in(gguf_folder)).fields
    tokens = [RENAMED.get(token, token) for token in fields["tokenizer.ggml.tokens"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
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


def grafted_model(gguf_folder: Path) -> Qwen2_5_VLForConditionalGeneration:
    """The grafted model in float32: SmolLM2's weights, biases of zero, a vision tower and merger that know nothing yet."""
    config = graft_config()
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    language = model.model.language_model
    missing, unexpected = language.load_state_dict(read_llama(gguf_in(gguf_folder)), strict=False)
    if unexpected or not all(name.endswith("_proj.bias") for name in missing):
        raise ValueError(f"expected the GGUF to lack biases alone, got missing {missing} and unexpected {unexpected}")
    with torch.no_grad():
        for name in missing:
            language.get_parameter(name).zero_()
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD, do_sample=False)
    return model
