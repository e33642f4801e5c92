"""Every setting with its default and its limits, read from configs/*.yaml.

A configuration file is complete in itself: what it leaves out has the default given here. Unknown keys are
errors.
"""

import difflib
import os
from pathlib import Path
from typing import Any, get_args

from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from agentic_iqa_local.config_sections import (
    ConfigError,
    DecisionSettings,
    FusionSettings,
    ImageSettings,
    ModelSettings,
    PlacedModel,
    RoleSettings,
    Section,
    ToolSettings,
    check_colour,
)
from agentic_iqa_local.files import FileError
from agentic_iqa_local.levels import Mode, lower_edge
from agentic_iqa_local.nodes.replanning import DEFAULT_MAX_REPLAN_ITERATIONS
from agentic_iqa_local.offline.store import models_root
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.plain_yaml import read_yaml
from agentic_iqa_local.state import revised

CONFIGS = ROOT / "configs"
DEFAULT_CONFIG = CONFIGS / "model_backends.yaml"
ROLES = ("planner", "executor", "summarizer")


def model_folder(name: str, models: str | None = None) -> Path:
    """Where a model lies by name: below `store.models_root(models)`, or where only this project's own models/
    has it, there."""
    folder, shipped = models_root(models) / name, ROOT / "models" / name
    return shipped if os.path.isdir(shipped) and not os.path.isdir(folder) else folder


class Settings(Section):
    """A whole configuration."""

    planner: RoleSettings = RoleSettings()
    executor: RoleSettings = RoleSettings()
    summarizer: RoleSettings = RoleSettings()
    models_dir: str | None = Field(
        default=None, exclude=True, description="The models folder, in place of $AGENTIC_IQA_MODELS."
    )
    models: dict[str, ModelSettings] = Field(default={}, description="Model folder name → how it is loaded.")
    images: ImageSettings = ImageSettings()
    fusion: FusionSettings = FusionSettings()
    tools: ToolSettings = ToolSettings()
    decisions: DecisionSettings = DecisionSettings()
    max_replan_iterations: int = Field(
        default=DEFAULT_MAX_REPLAN_ITERATIONS, ge=0, description="n allows n − 1 replans; 0 and 1 allow none."
    )

    @model_validator(mode="after")
    def _every_model_setting_is_used(self) -> "Settings":
        named = {backend.partition(".")[2] for backend in self.backends}
        if unused := set(self.models) - named:
            raise ValueError(
                f"models: {', '.join(sorted(unused))} not named by any section's backend"
                f" ({', '.join(sorted(named))})"
            )
        return self

    def role(self, name: str) -> RoleSettings:
        """The section of "planner", "executor" or "summarizer"."""
        return getattr(self, name)

    @property
    def backends(self) -> list[str]:
        """The backends of all roles, each once."""
        return list(dict.fromkeys(self.role(role).backend for role in ROLES))

    def model(self, backend: str) -> PlacedModel:
        """Loading options of a backend's folder, with its path filled in."""
        name = backend.partition(".")[2]
        settings = self.models.get(name, ModelSettings())
        folder = model_folder(settings.path or name, self.models_dir)
        return PlacedModel.model_validate(dict(settings) | {"path": str(folder)})

    def folder(self, backend: str) -> Path:
        """The folder of a backend's model."""
        return Path(self.model(backend).path)

    def with_engine(self, engine: str) -> "Settings":
        """The same configuration with every section's model served by `engine` (transformers, vllm,
        server)."""
        folders = {name: self.role(name).backend.partition(".")[2] for name in ROLES}
        return self._with_backends({name: f"{engine}.{folder}" for name, folder in folders.items()})

    def _with_backends(self, backends: dict[str, str], **changes: Any) -> "Settings":
        roles = {name: revised(self.role(name), backend=backend) for name, backend in backends.items()}
        return revised(self, **roles, **changes)

    def with_mode(self, mode: str) -> "Settings":
        """The same configuration with p_c from `mode`. Raises ConfigError for one that there is not."""
        modes = get_args(Mode)
        if mode not in modes:
            raise ConfigError(f"mode: expected {', '.join(modes)}, got '{mode}'")
        return revised(self, fusion=revised(self.fusion, mode=mode))

    def with_decisions(self, **changes: Any) -> "Settings":
        """The same configuration with other `decisions`; `at_least` may be a level's letter or word. Raises
        ConfigError."""
        try:
            if isinstance(changes.get("at_least"), str):
                changes["at_least"] = lower_edge(changes["at_least"])
            return revised(self, decisions=revised(self.decisions, **changes))
        except ValidationError as error:
            raise ConfigError(_first_mistake(error)) from None
        except ValueError as error:
            raise ConfigError(f"at_least: {error}") from None

    def with_background(self, colour: str) -> "Settings":
        """The same configuration with transparent pictures composited onto `colour`. Raises ConfigError for
        one that is none."""
        try:
            check_colour(colour)
        except ValueError as error:
            raise ConfigError(f"background: {error}") from None
        return revised(self, images=revised(self.images, background=colour))

    def with_model(self, model: str) -> "Settings":
        """The same configuration with every section on `model`, served by the Summarizer's engine.

        A folder takes over the loading options of the configuration's own model: it is the same model in
        another place. A name below the models folder has its own options in the configuration, or the
        defaults.
        """
        folder = Path(model)
        if os.path.isdir(folder) or "/" in model:
            name = folder.resolve().name
            own = self.models.get(self.summarizer.backend.partition(".")[2], ModelSettings())
            options = revised(own, path=str(folder.resolve()))
        else:
            name, options = model, self.models.get(model, ModelSettings())
        engine = self.summarizer.backend.partition(".")[0]
        return self._with_backends(dict.fromkeys(ROLES, f"{engine}.{name}"), models={name: options})


def find_config(name: str | Path | None) -> Path:
    """A path, or the name of a shipped set-up; None is model_backends.yaml, the embedded set-up."""
    if name is None or str(name) == "embedded":
        return DEFAULT_CONFIG
    for path in (Path(name), CONFIGS / f"{name}.yaml"):
        if os.path.isfile(path):  # unlike Path.is_file it says no to a name that is too long
            return path
    others = (
        path.stem
        for path in CONFIGS.glob("*.yaml")
        if not path.stem.startswith("tool_") and path.stem != DEFAULT_CONFIG.stem
    )
    shipped = ["embedded", *sorted(others)]
    near = difflib.get_close_matches(str(name), shipped, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"config '{name}': no such file or set-up", f"shipped are {', '.join(shipped)}{hint}")


def load_settings(name: str | Path | None = None) -> Settings:
    """Reads a configuration. Raises ConfigError that names the file, the key and what was expected."""
    path = find_config(name)
    try:
        data = read_yaml(path)
    except FileError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, got {type(data).__name__}")
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_mistake(error)}") from None


def _first_mistake(error: ValidationError) -> str:
    """The first key that is wrong, and how; without its value, which aliases can make endless."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "file"
    unknown = first["type"] == "extra_forbidden"
    return f"{key:.200}: {'unknown key' if unknown else first['msg'].removeprefix('Value error, ')}"
