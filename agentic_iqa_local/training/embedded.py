"""The embedded VLM's shape: a plain Qwen2_5_VLForConditionalGeneration of about 11 M parameters, its tokenizer and processor.

What decides success on a CPU is the patch embedding: it starts as a whitened block DCT. A 16-pixel patch holds four 8×8
blocks, so that JPEG's block grid lines up with it, and each output is one DCT coefficient of one block.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from agentic_iqa_local.training.distortions import RGB_TO_YCC

PATCH, MERGE, BLOCK = 16, 2, 8
FACTOR = PATCH * MERGE
LUMA_TERMS, CHROMA_TERMS = 48, 8  # of each 8×8 block: 4·(48 + 2·8) = 256 = the vision tower's width
VISION_WIDTH = 4 * (LUMA_TERMS + 2 * CHROMA_TERMS)
TRAINED_MIN_PIXELS, TRAINED_MAX_PIXELS = 96 * 96, 512 * 512

NOTICE = (
    "the small embedded model answered: it was trained on synthetic distortions to prove an installation and to run tests; "
    "use a Qwen-VL folder for real assessments"
)

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
SPACE = "Ġ"  # as byte-level BPE writes it
# Qwen2's pre-tokenizer: a letter after a quote and a space stands alone, so that `"A` never merges.
PRETOKENIZER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}{%- for c in m['content'] -%}"
    "{%- if c['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif c['type'] == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else -%}{{ c['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def build_tokenizer(corpus: Iterable[str], vocab_size: int) -> Qwen2Tokenizer:
    """A byte-level BPE tokenizer with Qwen2's pre-tokenization, trained on `corpus`.

    Its pieces are learned without the space before a word; then the pieces that begin words get a second version with the
    space. A name is so cut alike after a space in a query and after a quote in JSON, and can be copied piece by piece.
    """
    corpus = list(corpus)
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZER), "isolated"),
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=len(alphabet) + (vocab_size - len(alphabet) - len(SPECIAL_TOKENS)) // 2,
            show_progress=False,
            initial_alphabet=alphabet,
        ),
    )
    trained = json.loads(bpe.to_str())["model"]
    vocab, merges = trained["vocab"], [tuple(pair) for pair in trained["merges"]]
    begins = Counter(
        after
        for encoding in bpe.encode_batch(corpus)
        for before, after in itertools.pairwise(encoding.tokens)
        if before == SPACE and after != SPACE
    )
    for piece, _ in begins.most_common(vocab_size - len(vocab) - len(SPECIAL_TOKENS)):
        vocab[SPACE + piece] = len(vocab)
        merges.append((SPACE, piece))
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=4096,
    )
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS], special_tokens=True)
    tokenizer.padding_side = "left"
    return tokenizer


def build_processor(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLProcessor:
    """The processor; its size limits are the range of pixels that training covered."""
    size = {"shortest_edge": TRAINED_MIN_PIXELS, "longest_edge": TRAINED_MAX_PIXELS}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE, size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=MERGE),
        chat_template=CHAT_TEMPLATE,
    )


def _dct_patch_embedding() -> torch.Tensor:
    """Weights VISION_WIDTH×3×2×16×16: orthonormal 8×8 DCT-II of each block, scaled so that natural spectra come out white."""
    k = np.arange(BLOCK)
    basis = np.cos(np.pi * (2 * k[None] + 1) * k[:, None] / (2 * BLOCK)) * np.sqrt(2 / BLOCK)
    basis[0] /= np.sqrt(2)
    order = sorted(((u, v) for u in k for v in k), key=lambda uv: (uv[0] + uv[1], uv))
    weight = np.zeros((VISION_WIDTH, 3, 2, PATCH, PATCH), np.float32)
    row = 0
    for top in (0, BLOCK):
        for left in (0, BLOCK):
            for channel, terms, ac_gain, dc_gain in (
                (0, LUMA_TERMS, 0.55, 0.12),
                (1, CHROMA_TERMS, 1.2, 0.25),
                (2, CHROMA_TERMS, 1.2, 0.25),
            ):
                for u, v in order[:terms]:
                    # Amplitudes of natural images fall about as 1/frequency: the gain rises with it.
                    gain = ac_gain * (1 + np.hypot(u, v)) if u or v else dc_gain
                    pattern = gain * np.outer(basis[u], basis[v])
                    for c in range(3):  # a still image is fed as two equal frames: half of the weight on each
                        weight[row, c, :, top : top + BLOCK, left : left + BLOCK] = pattern * RGB_TO_YCC[channel, c] / 2
                    row += 1
    return torch.from_numpy(weight)


def _initialise_vision(visual: torch.nn.Module) -> None:
    """Unit-gain layers and the DCT patch embedding.

    transformers' default (standard deviation 0.02) leaves the gated MLPs of so narrow a tower almost silent, and their
    products are what turns DCT coefficients into local energies.
    """
    depth = len(visual.blocks)
    for name, weight in visual.named_parameters():
        if weight.ndim == 2:
            gain = 1 / (2 * depth) ** 0.5 if name.endswith(("attn.proj.weight", "down_proj.weight")) else 1.0
            torch.nn.init.normal_(weight, std=gain / weight.shape[1] ** 0.5)
    visual.patch_embed.proj.weight.data.copy_(_dct_patch_embedding())


def _initialise_language(language: torch.nn.Module, depth: int) -> None:
    """Unit-gain layers with quiet outputs: a token's own identity must outlast them, or copying from the query is learned late."""
    for name, weight in language.named_parameters():
        if weight.ndim == 2:
            gain = 0.3 / (2 * depth) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            torch.nn.init.normal_(weight, std=gain / weight.shape[1] ** 0.5)


def quiet_outputs(name: str) -> float:
    """A tenth of the learning rate for the quiet weights of `_initialise_language`, and for values: Adam's steps would soon make
    the former loud, so that what a token is drowns in what the layers add, and unlearn what the latter copy."""
    slow = ("v_proj.weight", "o_proj.weight", "down_proj.weight")
    return 0.1 if name.startswith("language.") and name.endswith(slow) else 1.0


def _initialise_copying(language: torch.nn.Module, the: int, fields: list[int]) -> None:
    """Heads that look one and two tokens back in the first layer, an induction head in the second (Olsson et al. 2022, arXiv
    2209.11895), and two heads in the fourth that begin a name.

    A plan copies every name of its query, which so small a model learns late by itself. The subspaces of the residual stream are
    orthogonal: `match` of a token's identity goes to `before` of the next token and to `earlier` of the one after it. The
    second layer looks for its own `match` in `before` and copies `content` from there. The fourth, two tokens after one of
    `fields`, looks behind the token `the` to begin with, and copies `name`, which the second leaves as the embedding made it.
    """
    first, second, _, fourth, *_ = (layer.self_attn for layer in language.layers)
    embeddings, head = language.embed_tokens.weight, first.head_dim
    # RoPE hardly turns these in 200 tokens.
    slow = torch.tensor([*range(head * 5 // 16, head // 2), *range(head * 13 // 16, head)])
    size, quarter = len(slow), head // 4
    basis = torch.linalg.qr(torch.randn(embeddings.shape[1], 3 * size + 2 * head))[0].T
    match, before, earlier, content, name = basis.split([size, size, size, head, head])
    with torch.no_grad():
        for written in (before, earlier):
            embeddings -= embeddings @ written.T @ written
        # A constant query d positions behind a constant key: Σ cos(θ(Δ − d)) over the fast half has its peak at Δ = d.
        angle = language.rotary_emb.inv_freq[:quarter]
        first.k_proj.weight[:head] = 0
        first.k_proj.bias[:head] = 0
        first.k_proj.bias[:quarter] = 8
        first.v_proj.weight[:size] = 0.5 * match
        for distance, (start, written) in enumerate(((0, before), (head, earlier)), 1):
            query = first.q_proj.bias[start : start + head]
            first.q_proj.weight[start : start + head] = 0
            query[:] = 0
            query[:quarter] = 8 * (distance * angle).cos()
            query[head // 2 : head // 2 + quarter] = -8 * (distance * angle).sin()
            first.o_proj.weight[:, start : start + size] = 0.36 * written.T
        for projection, subspace in ((second.q_proj, match), (second.k_proj, before)):
            projection.weight[:head] = 0
            projection.weight[slow] = 2.5 * subspace
        second.v_proj.weight[:head] = content
        second.o_proj.weight[:, :head] = 1.1 * content.T
        # The middle frequencies prefer the query, up to 100 tokens back, to the instructions.
        recent = ((angle > 0.01) & (angle < 0.03)).nonzero().flatten()
        fourth.k_proj.weight[slow] = 2.5 * before
        fourth.k_proj.bias[recent] = 3
        fourth.q_proj.weight[: 2 * head] *= 0.1
        known = torch.nn.functional.normalize(embeddings[[the, *fields]] @ match.T)
        gate = known[1:].sum(0) @ earlier
        for start in (0, head):
            fourth.q_proj.weight[start + slow] = 5 * torch.outer(known[0], gate)
            fourth.q_proj.weight[start + recent] = 2 * gate
        fourth.v_proj.weight[:head] = name
        fourth.o_proj.weight[:, : 2 * head] = 4 * torch.cat([name, name]).T


def look_back_circuit(model: Qwen2_5_VLForConditionalGeneration) -> torch.nn.ModuleList:
    """What `_initialise_copying` builds on in the first two layers: to be kept still until something has learned to use it, or
    training would unlearn or drown it."""
    first, second, *_ = model.model.language_model.layers
    return torch.nn.ModuleList([first, second.input_layernorm, second.self_attn])


def _relate_pieces(embeddings: torch.Tensor, tokenizer: Qwen2Tokenizer) -> None:
    """A piece with the space before it starts as nearly the same vector as the piece without it."""
    vocab = tokenizer.get_vocab()
    for piece, row in vocab.items():
        if piece.startswith(SPACE) and (bare := vocab.get(piece[len(SPACE) :])) is not None:
            embeddings.data[row] = 0.9 * embeddings.data[bare] + (1 - 0.9**2) ** 0.5 * embeddings.data[row]


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A freshly initialised model in float32."""
    torch.manual_seed(seed)
    token = tokenizer.convert_tokens_to_ids
    ids = dict(bos_token_id=token("<|endoftext|>"), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(tokenizer),
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]},
            tie_word_embeddings=True,
            **ids,
        ),
        vision_config=dict(
            depth=6,
            hidden_size=VISION_WIDTH,
            intermediate_size=512,
            num_heads=4,
            out_hidden_size=256,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            temporal_patch_size=2,
            window_size=4 * FACTOR,
            fullatt_block_indexes=list(range(6)),
        ),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
        agentic_iqa_notice=NOTICE,
        **ids,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    _initialise_vision(model.model.visual)
    _initialise_language(model.model.language_model, config.text_config.num_hidden_layers)
    _relate_pieces(model.model.language_model.embed_tokens.weight, tokenizer)
    _initialise_copying(model.model.language_model, token(f"{SPACE}the"), [token("_scope"), token("distortions")])
    model.generation_config = GenerationConfig(**ids, do_sample=False)
    return model


def load_vision(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Starts `model`'s vision tower from the one in `folder`, which must have the same shape."""
    donor = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, local_files_only=True)  # nosec B615 # a local folder
    model.model.visual.load_state_dict(donor.model.visual.state_dict())


def grow_vision(visual: torch.nn.Module, donor: torch.nn.Module, embedding_rms: float) -> None:
    """Starts a deeper and wider tower as the same function as `donor`: what it has more of adds nothing at first.

    Only the merger's last layer, into another width, starts afresh, at the size of the language model's embeddings.
    """
    weights = donor.state_dict()
    with torch.no_grad():
        for name, weight in visual.state_dict().items():
            if name.startswith("merger.mlp.2."):
                weight.normal_(std=embedding_rms / weight.shape[-1] ** 0.5) if weight.ndim == 2 else weight.zero_()
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


def save_model(model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, folder: Path) -> None:
    """Writes bf16 safetensors, configuration, tokenizer and processor, as any transformers checkpoint."""
    half = build_model(processor.tokenizer, seed=0)
    half.load_state_dict(model.state_dict())
    half.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
