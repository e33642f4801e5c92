"""What scores depend on at one worker, so that those of unlike workers never go into one file."""

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.work import Work
from agentic_iqa_local.files import PACKAGE
from agentic_iqa_local.judgement.intervals import SHIPPED as SHIPPED_INTERVALS
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.provenance import SCORING, folder_hash, of_settings, versions
from agentic_iqa_local.services import Services

# beside those of provenance: they decode, resize, tokenise, constrain and fuse
PACKAGES = (
    *SCORING,
    *("torchvision", "timm", "tokenizers", "accelerate", "bitsandbytes", "llguidance", "langgraph"),
    *("numpy", "scipy", "pillow", "pillow-heif", "pydantic", "crepes"),
)
OF_MODELS = ("engine", "torch", "type", "parameters", "dtype", "quantization", "attention", "prompt_layout")
NAMED, LONGEST = 5, 60  # differences that a message names, and characters of each value


def of_node(work: Work[Any, Any], device: str) -> dict[str, str | None]:
    """Versions, the package's own code, and the files of models and tools, by the names that messages use. No
    model is loaded. Raises BundleError for a models folder whose manifest is damaged, CalibrationError for
    tool maps that cannot be read."""
    settings = work.settings
    backends = {settings.role(role).backend for role in work.roles}
    folders = {settings.folder(backend) for backend in backends if not backend.startswith("server.")}
    intervals = Path(settings.decisions.calibration or SHIPPED_INTERVALS)
    about = of_settings(settings, device)
    about.pop("versions")
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **versions(PACKAGES),
        "agentic_iqa_local": package_hash(),
        **{f"model {folder.name}": folder_hash(folder) if folder.is_dir() else None for folder in folders},
        "interval calibration": file_hash(intervals) if intervals.is_file() else None,
        **about,
    }


def of_loaded(services: Services, roles: Sequence[str]) -> dict[str, Any]:
    """What loading decided: the models' dtype, attention kernel, quantisation and more, and the threads that
    a CPU computes with, on which the last bits depend."""
    import torch

    found: dict[str, Any] = {"threads": torch.get_num_threads()} if services.device == "cpu" else {}
    for backend in sorted({services.section(role).backend for role in roles}):
        client = next(services.client(role) for role in roles if services.section(role).backend == backend)
        about = client.describe()
        found |= {f"{about['name']}: {name}": about[name] for name in OF_MODELS if name in about}
    return found


def package_hash(folder: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the package's code and data."""
    digest = hashlib.sha256()
    for file in sorted(_code(folder)):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _code(folder: Path) -> Iterator[Path]:
    kinds = {".py", ".jinja", ".json", ".yaml", ".npz", ".safetensors"}
    inside = {"configs", "models", "tests"}  # of a wheel; their files are told apart by names of their own
    for file in folder.rglob("*"):
        if file.suffix in kinds and file.relative_to(folder).parts[0] not in inside:
            yield file


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """What a worker has otherwise than expected, in words with both values; empty where it has all alike."""
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    told = [
        f"{name} is {_short(found.get(name))}, expected {_short(expected.get(name))}"
        for name in names[:NAMED]
    ]
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(told) + more


def _short(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:12]}…"
