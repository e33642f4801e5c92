"""Every setting with its default and its limits, read from configs/*.yaml.

A configuration file is complete in itself: what it leaves out has the default given here. Unknown keys are
errors.
"""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import unquote, urlsplit, urlunsplit

from PIL import ImageColor
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError
from agentic_iqa_local.iqa_tools.specs import ToolError, find_tool
from agentic_iqa_local.levels import Mode, lower_edge
from agentic_iqa_local.offline.store import models_root
from agentic_iqa_local.paths import EMBEDDED, ROOT
from agentic_iqa_local.plain_yaml import read_yaml
from agentic_iqa_local.prompts import PromptLayout
from agentic_iqa_local.replanning import DEFAULT_MAX_REPLAN_ITERATIONS
from agentic_iqa_local.state import revised

CONFIGS = ROOT / "configs"
DEFAULT_CONFIG = CONFIGS / "model_backends.yaml"
ROLES = ("planner", "executor", "summarizer")


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used; the message says which key of which file."""


def model_folder(name: str) -> Path:
    """Where a model lies by name: below `store.models_root()`, or where only this project's own models/ has
    it, there. The embedded one is expected there too where it is nowhere, since it is assembled there."""
    folder, shipped = models_root() / name, EMBEDDED if name == "embedded" else ROOT / "models" / name
    ours = os.path.isdir(shipped) or shipped == EMBEDDED
    return shipped if ours and not os.path.isdir(folder) else folder


def server_key() -> str | None:
    """$AGENTIC_IQA_SERVER_KEY, for a model server that asks for a key. Raises ConfigError, which does not
    quote it."""
    key = os.environ.get("AGENTIC_IQA_SERVER_KEY")
    if key and not re.fullmatch("[!-~]+", key):
        raise ConfigError(
            "$AGENTIC_IQA_SERVER_KEY: expected printable ASCII characters without blanks or line ends, got"
            " others too",
            "set it anew",
        )
    return key or None


def split_server(address: str) -> tuple[str, tuple[str, str] | None]:
    """A server's address without user and password, and those two. Raises ConfigError, which does not quote
    it."""
    try:
        if not address.isprintable() or " " in address or "\\" in address:
            raise ValueError("blanks or control characters in an address")
        url = urlsplit(address)
        if (
            url.scheme not in ("http", "https")
            or not url.hostname
            or url.port == 0
            or "?" in address
            or "#" in address
        ):
            raise ValueError("not a server's address")
    except ValueError:
        raise ConfigError(
            "server: expected http://HOST:PORT or https://HOST:PORT, got something else, which is not shown"
            " since it may hold a password",
            "percent-encode signs in a user's name or password",
        ) from None
    user, _, place = url.netloc.rpartition("@")
    login = (unquote(url.username or ""), unquote(url.password or "")) if user else None
    return urlunsplit((url.scheme, place, url.path, "", "")).rstrip("/"), login


def check_colour(colour: str) -> None:
    """Raises ValueError unless Pillow's ImageColor knows `colour` and it is opaque."""
    expected = "expected an opaque colour such as white, #808080 or rgb(128, 128, 128)"
    try:
        samples = ImageColor.getrgb(colour)
    except ValueError:
        near = difflib.get_close_matches(colour.lower(), ImageColor.colormap, n=1)
        raise ValueError(
            f"{expected}, got '{colour}'{f'; did you mean {near[0]}?' if near else ''}"
        ) from None
    if len(samples) > 3 and samples[3] < 255:
        raise ValueError(f"{expected}, got '{colour}', which is transparent itself")


class Section(BaseModel):
    # pydantic's own errors would show a password in an address
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class RoleSettings(Section):
    """One agent's section: which model answers and how it generates."""

    backend: str = Field(
        default="transformers.embedded",
        description="ENGINE.FOLDER; sections with the same backend share one copy.",
    )
    temperature: float = Field(
        default=0.0, ge=0, le=2, description="Of the generation; 0 is greedy. Not the letters' temperature."
    )
    max_tokens: int = Field(default=512, ge=16, le=4096, description="Longest answer of one call, in tokens.")


class ModelSettings(Section):
    """How one model folder is loaded."""

    path: str | None = Field(
        default=None, description="Folder, in the models folder unless absolute; default: the backend's name."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description=(
            "auto: bfloat16 on a GPU that has it, float16 on older ones; float32 on a CPU, or bfloat16 where"
            " it has AMX and the model is known to hold in it."
        ),
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    quantization: Literal["none", "8bit", "4bit"] = Field(
        default="none", description="bitsandbytes; 4bit is nf4 with double quantisation."
    )
    device_map: Literal["none", "auto"] = Field(
        default="none", description="auto: accelerate spreads the model over all visible devices."
    )
    boxes: Literal["none", "pixels", "thousandths"] = Field(
        default="none",
        description=(
            "How the model gives boxes of objects: pixels of what it saw (Qwen2.5-VL), thousandths of a side"
            " (Qwen3-VL), or not at all."
        ),
    )
    prompt_layout: PromptLayout = Field(
        default="images_first",
        description="system_first is the paper's order; its roles share no image cache.",
    )
    share_prefix: bool = Field(
        default=True,
        description="false computes the images again in every call, to measure what sharing saves.",
    )
    skip_template: bool = Field(
        default=True,
        description=(
            "transformers: text that a schema leaves no choice about is put in instead of decoded; false to"
            " measure that."
        ),
    )
    exact: bool = Field(
        default=False,
        description=(
            "The same bits run after run, whatever else is asked meanwhile: deterministic kernels; vLLM"
            " answers one request at a time and without its cache. Slower."
        ),
    )
    max_in_flight: int = Field(default=8, ge=1, description="vLLM: requests that are computed together.")
    left_for_tools_gib: float = Field(
        default=4.0,
        ge=0,
        description=(
            "vLLM on a GPU: memory of the card that stays free for the tools; the engine takes the rest."
        ),
    )
    server: str = Field(
        default="http://127.0.0.1:8000",
        repr=False,
        description=(
            "Backend server: where vLLM's OpenAI-compatible server listens. http://USER:PASSWORD@HOST logs"
            " in, instead of with $AGENTIC_IQA_SERVER_KEY; neither is ever written or shown."
        ),
    )
    served_name: str | None = Field(
        default=None, description="Backend server: the model's name there; default: the only one."
    )
    server_timeout: float = Field(
        default=600,
        gt=0,
        le=86400,
        description="Backend server: seconds from a request to the end of its answer.",
    )
    min_pixels: int | None = Field(default=None, ge=1, description="Default: the processor's own.")
    max_pixels: int | None = Field(
        default=None, ge=1, description="Largest picture seen in one piece; default: the processor's own."
    )

    @field_validator("server")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        split_server(address)
        return address

    @field_serializer("server")
    def _without_login(self, address: str) -> str:
        return split_server(address)[0]


class PlacedModel(ModelSettings):
    """A model's settings with its folder filled in (`Settings.model`)."""

    path: str = Field(default="", description="The model's folder.")


class ImageSettings(Section):
    """Limits on what is opened, and how large photographs are cut."""

    min_side: int = Field(default=32, ge=1, description="Pixels; smaller images are refused.")
    max_pixels: int = Field(
        default=100_000_000, ge=1, description="Refused above this: a decompression bomb."
    )
    max_crops: int = Field(
        default=5, ge=1, le=5, description="Native-resolution crops of a photograph beyond the model's range."
    )
    background: str | None = Field(
        default=None,
        description=(
            "Colour that transparent pictures are composited onto (white, #808080); default: they are"
            " refused."
        ),
    )

    @field_validator("background")
    @classmethod
    def _is_an_opaque_colour(cls, colour: str | None) -> str | None:
        if colour is not None:
            check_colour(colour)
        return colour


class FusionSettings(Section):
    """The letter read and its fusion."""

    mode: Mode = "logits"
    eta: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        default="auto",
        description=(
            "η of α_c = softmax(−η(q̄ − c)²). auto: 1/(2σ²), σ the error of the tools' mean by"
            " configs/tool_reliability.yaml. 1 is the paper's."
        ),
    )
    temperature: float = Field(
        default=1.0, gt=0, description="Divides the letters' log-probabilities before p_c is formed."
    )
    classification_confidence: float = Field(
        default=0.8, gt=0.5, le=1, description="p_c of the generated letter; the rest is shared."
    )
    on_missing_logits: Literal["error", "classification"] = "error"
    fitted: str | None = Field(
        default=None, description="Where eta and temperature come from, when assess.py --fit set them."
    )
    off_letter_warning: float = Field(
        default=0.5, ge=0, le=1, description="Warn when this much probability lies off the letters."
    )
    vote: Literal["runs", "entries"] = Field(
        default="runs", description="q̄ over distinct (tool, region) runs, or over every listed entry."
    )
    trailing_tools: Literal["check", "vote"] = Field(
        default="check",
        description=(
            "What a tool does that another one on the same picture clearly leads: only check it, or vote in"
            " q̄ too."
        ),
    )


class ToolSettings(Section):
    """Which tools the letters pipeline runs, and what stands in for an unavailable one."""

    full_reference: Annotated[list[str], Field(min_length=1)] = ["VSI", "FSIM"]
    no_reference: Annotated[list[str], Field(min_length=1)] = ["LocalNR", "NIQE"]
    not_offered: list[str] = Field(
        default=["MAD", "CW-SSIM"],
        description=(
            "Not offered to the model, for they take long (--list-tools); a query can still name them."
        ),
    )
    maps: str | None = Field(default=None, description="Tool maps file; default: configs/tool_maps.yaml.")
    cache: str | None = Field(
        default=None,
        description="SQLite file that keeps raw scores by content, tool and versions; default: none.",
    )

    @field_validator("full_reference", "no_reference", "not_offered")
    @classmethod
    def _are_tools(cls, names: list[str]) -> list[str]:
        try:
            return [find_tool(name).name for name in names]
        except ToolError as error:
            raise ValueError(str(error)) from None

    @field_validator("no_reference")
    @classmethod
    def _need_no_reference(cls, names: list[str]) -> list[str]:
        if wrong := [name for name in names if find_tool(name).reference == "FR"]:
            raise ValueError(f"{wrong[0]} compares with a reference; list it under full_reference")
        return names


class DecisionSettings(Section):
    """How sure an answer has to be, and what follows where it is not."""

    calibration: str | None = Field(
        default=None,
        description=(
            "A fit of study.py that calibrates the intervals; default: configs/intervals.json, made on"
            " synthetic distortions with the embedded model."
        ),
    )
    target_width: float | None = Field(
        default=None,
        gt=0,
        le=4,
        description=(
            "Levels: while the interval of q is wider, the letters are read in the other order, then those"
            " of crops, then it is planned again; once it is as narrow, nothing more is read. Default: no"
            " such loop."
        ),
    )
    most_reads: int | None = Field(
        default=None, ge=1, description="Letter reads of the answer that target_width may take in all."
    )
    most_seconds: float | None = Field(
        default=None, gt=0, description="Seconds after which target_width asks for nothing more."
    )
    abstain_wider_than: float | None = Field(
        default=None, gt=0, le=4, description="Levels: answers with a wider interval are held back: not sure."
    )
    at_least: float | None = Field(
        default=None, ge=1, le=5, description="The quality that a picture has to have to pass the gate."
    )
    error_rate: float = Field(
        default=0.1, ge=0.01, lt=0.5, description="How often the gate's pass or fail may be wrong."
    )


class Settings(Section):
    """A whole configuration."""

    planner: RoleSettings = RoleSettings()
    executor: RoleSettings = RoleSettings()
    summarizer: RoleSettings = RoleSettings()
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
        return PlacedModel.model_validate(dict(settings) | {"path": str(model_folder(settings.path or name))})

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
