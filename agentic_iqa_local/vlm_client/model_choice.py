"""Which model `--gpu N` takes where none was chosen: the largest complete vision-language model
below the models folder. Reads configurations and the headers of weight files, and loads nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentic_iqa_local.config import CONFIGS, ConfigError, load_settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.model_folder import check_files, read_object

NOTICE = "agentic_iqa_notice"  # in config.json of this project's own small models


class ModelChoice(NamedTuple):
    """The folder that was found (None: the embedded model is left) and the set-up that fits it;
    `said` tells in one line what was chosen and why."""

    folder: Path | None
    config: str | None
    said: str


def choose(root: Path) -> ModelChoice:
    """The largest model with complete weights below `root` by the bytes of its weights; of equal
    ones the first."""
    sizes: dict[Path, int] = {}
    also = ""
    for folder in _folders(root):
        try:
            sizes[folder] = _size(folder)
        except VLMError as error:
            also += f"; left out: {error.message}"
    largest = max(sizes, key=sizes.__getitem__, default=None)
    if largest is None or not sizes[largest]:
        said = (
            f"warning: no model chosen and no complete vision-language model below {root}:"
            " the small embedded one answers, which is no judge of photographs; put a folder"
            " such as Qwen2.5-VL-7B-Instruct there, or name one with --model"
        )
        return ModelChoice(None, None, one_line(said + also))
    config = _set_up_for(largest.name)
    about = f"{sizes[largest] / 1e9:.1f} GB, set-up {config or 'default'}"
    said = f"no model chosen: {largest.name} is the largest below {root} ({about})"
    another = "; --model or --config names another"
    return ModelChoice(largest, config, one_line(said + another + also))


def _folders(root: Path) -> Iterator[Path]:
    """Folders NAME and MAKER/NAME with a config.json, in order. Links are followed."""
    for config in sorted([*root.glob("*/config.json"), *root.glob("*/*/config.json")]):
        if not any(name.startswith(".") for name in config.relative_to(root).parts):
            yield config.parent


def _size(folder: Path) -> int:
    """Bytes of the weights of a vision-language model; 0 for a model of another kind, and for one
    of this project's own small ones. Raises VLMError for one that misses something or is
    damaged."""
    config = read_object(folder, "config.json")
    writes_text = "ForConditionalGeneration" in str(config.get("architectures"))
    if not writes_text or not isinstance(config.get("vision_config"), dict) or NOTICE in config:
        return 0
    weights = check_files(folder)
    return sum(file.stat().st_size for file in weights.files) if weights else 0


def _set_up_for(name: str) -> str | None:
    """The shipped set-up that is made for a folder of this name and keeps its weights as they
    are."""
    for path in sorted(CONFIGS.glob("*.yaml")):
        try:
            settings = load_settings(path)
        except ConfigError:  # a table of tools, or somebody's own that is damaged
            continue
        models = {
            (settings.folder(x).name, settings.model(x).quantization) for x in settings.backends
        }
        if models == {(name, "none")}:
            return path.stem
    return None
