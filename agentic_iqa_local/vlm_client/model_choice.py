"""Which model `--gpu N` takes where none was chosen: the largest complete vision-language model below the
models folder. Reads configurations and the headers of weight files, and loads nothing."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentic_iqa_local.config import CONFIGS, DEFAULT_CONFIG, ConfigError, load_settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import EMBEDDED
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.model_folder import examine, read_object

DEEPEST = 2  # folders below the models folder: NAME, and MAKER/NAME
NOTICE = "agentic_iqa_notice"  # in config.json of this project's own small models
NEEDED = (  # one file of each
    ("preprocessor_config.json", "processor_config.json"),
    ("tokenizer.json", "tokenizer.model", "vocab.json"),
    ("tokenizer_config.json",),
)


@dataclass(frozen=True)
class ModelChoice:
    """The folder that was found and the set-up that fits it; without a folder the embedded model is left.
    `said` tells in one line what was chosen and why."""

    folder: Path | None
    config: str | None
    said: str


def choose(root: Path) -> ModelChoice:
    """The largest complete model below `root` by the bytes of its weights; of equal ones the first."""
    sizes: dict[Path, int] = {}
    incomplete: list[str] = []
    for folder in _folders(root):
        try:
            if size := _size(folder):
                sizes[folder] = size
        except VLMError as error:
            incomplete.append(error.message.replace(f"model folder {folder}", folder.name))
    left_out = f"; left out: {'; '.join(incomplete)}" if incomplete else ""
    if not sizes:
        said = (
            f"warning: no model chosen and no complete vision-language model below {root}: the small embedded one"
            " answers, which is no judge of photographs; put a folder such as Qwen2.5-VL-7B-Instruct there, or name one"
            f" with --model{left_out}"
        )
        return ModelChoice(None, None, one_line(said))
    folder = max(sizes, key=sizes.__getitem__)
    config = _set_up_for(folder.name)
    said = (
        f"no model chosen: {folder.name}, the largest of {len(sizes)} below {root} ({sizes[folder] / 1e9:.1f} GB"
        f"{f', set-up {config}' if config else ''}); --model or --config names another{left_out}"
    )
    return ModelChoice(folder, config, one_line(said))


def _folders(root: Path) -> Iterator[Path]:
    """Folders with a config.json, by name, but for the embedded model's own. Links are followed."""
    for place, below, files in os.walk(root, followlinks=True):
        depth = len(Path(place).relative_to(root).parts)
        below[:] = (
            sorted(name for name in below if not name.startswith(".")) if depth < DEEPEST else []
        )
        if depth and "config.json" in files:
            below.clear()
            if not os.path.samefile(place, EMBEDDED):
                yield Path(place)


def _size(folder: Path) -> int | None:
    """Bytes of the weights of a complete vision-language model; None for a model of another kind, and for one
    of this project's own small ones. Raises VLMError where something of it is missing or damaged."""
    config = read_object(folder, "config.json")
    writes_text = "ForConditionalGeneration" in str(config.get("architectures"))
    if not writes_text or not isinstance(config.get("vision_config"), dict) or NOTICE in config:
        return None
    weights = examine(folder)
    for names in NEEDED:
        if not any((folder / name).is_file() for name in names):
            raise VLMError(f"model folder {folder}: expected {' or '.join(names)}, found none")
    return sum(file.stat().st_size for file in weights.files) if weights else None


def _set_up_for(name: str) -> str | None:
    """The shipped set-up that is made for a folder of this name and keeps its weights as they are."""
    for path in sorted({*CONFIGS.glob("*.yaml")} - {DEFAULT_CONFIG, *CONFIGS.glob("tool_*.yaml")}):
        try:
            settings = load_settings(path)
        except ConfigError:  # somebody's own, damaged
            continue
        models = [
            (settings.folder(backend).name, settings.model(backend))
            for backend in settings.backends
        ]
        if all(folder == name and model.quantization == "none" for folder, model in models):
            return path.stem
    return None
