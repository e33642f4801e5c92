"""Every setting, and every option of an assessment, with its default and its limits.

`Settings` is what configs/*.yaml holds: a file is complete in itself, what it leaves out has the
default given here, and unknown keys are errors. `Options` is what a caller may ask for: the command
line, HTTP and Python all validate through it, and `Options.applied_to` makes them count in the
settings.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from PIL import ImageColor
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)

from agentic_iqa_local.errors import UserError, did_you_mean
from agentic_iqa_local.files import (
    CONFIGS,
    EMBEDDED,
    ROOT,
    FileError,
    first_mistake,
    models_root,
    read_json,
    read_yaml,
)
from agentic_iqa_local.state import (
    DEFAULT_MAX_REPLAN_ITERATIONS,
    EYE,
    Mode,
    lower_edge,
    revised,
)

DEFAULT_CONFIG = CONFIGS / "model_backends.yaml"
ROLES = ("planner", "executor", "summarizer")
LONGEST_TEXT = 4000  # characters of a query; of ten choices together

MOST_BOXES = 4  # regions of a picture
_NUMBER = r"\s*(\d{1,6})\s*"
# a name that is not "Global", and four numbers
_BOX = re.compile(
    rf"(?!\s*global\s*=)(?:([^=;]{{1,40}})=)?{','.join([_NUMBER] * 4)}", re.IGNORECASE
)

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels
Pipeline = Literal["agent", "letters"]
Engine = Literal["transformers", "vllm", "server", "llamacpp"]
AnySection = TypeVar("AnySection", bound="Section")


class ConfigError(UserError, ValueError):
    """A setting or an option that cannot be used; the message says which, and of a file in
    which."""


def _told_apart(choices: Sequence[str]) -> list[str]:
    if not 2 <= len(choices) <= 10:
        raise ValueError(f"expected 2 to 10 answers, got {len(choices)}")
    if len({choice.strip().casefold() for choice in choices} - {""}) < len(choices):
        raise ValueError(f"expected answers that differ and are not blank, got {choices}")
    return list(choices)


def _opaque(colour: str) -> str:
    try:
        _, _, _, *alpha = ImageColor.getrgb(colour)
    except ValueError:
        alpha = [0]
    if alpha and alpha != [255]:
        raise ValueError("expected an opaque colour such as white, #808080 or rgb(128, 128, 128)")
    return colour


def boxes_of(text: str | None) -> dict[str, Box]:
    """The boxes in a text "NAME=LEFT,TOP,RIGHT,BOTTOM; ...", by the name of what lies there, ""
    without one. Raises ValueError."""
    boxes: dict[str, Box] = {}
    parts = text.split(";") if text else []
    for part in parts:
        found = _BOX.fullmatch(part)
        if found:
            left, top, right, bottom = map(int, found.groups()[1:])
            if left < right and top < bottom:
                boxes[(found[1] or "").strip()] = left, top, right, bottom
    if not len(parts) == len(boxes) <= MOST_BOXES:
        expected = "expected NAME=LEFT,TOP,RIGHT,BOTTOM in pixels (the name may be left out)"
        several = f"several, up to {MOST_BOXES}, parted by ;, each name once"
        raise ValueError(f"box: {expected}, {several}, got {text!r:.80}")
    return boxes


def box_text(boxes: Mapping[str, Sequence[int]]) -> str:
    """The text that `boxes_of` reads."""
    texts = {name: ",".join(map(str, box)) for name, box in boxes.items()}
    return "; ".join(f"{name}={text}" if name else text for name, text in texts.items())


def _box_text(value: Any) -> str:
    """Boxes as one text: of such a text, of four numbers, or of {name: four numbers}."""
    boxes = {"": value} if isinstance(value, (list, tuple)) else value
    text = box_text(boxes) if isinstance(boxes, Mapping) else boxes
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected NAME=LEFT,TOP,RIGHT,BOTTOM")
    return box_text(boxes_of(text))


def _path(value: Any) -> str:
    with suppress(TypeError, UnicodeEncodeError):  # no path, or a name that no file has
        if isinstance(path := os.fspath(value), str) and b"\0" not in os.fsencode(path):
            return path
    raise ValueError(f"expected a path as text, got {value!r:.200}")


# PathText: also of a name that is no UTF-8
PathText = Annotated[str, PlainValidator(_path)]
Colour = Annotated[str, AfterValidator(_opaque)]
Width = Annotated[float, Field(gt=0, le=4)]  # of an interval, in levels
Level = Annotated[
    float, Field(ge=1, le=5), BeforeValidator(lambda x: lower_edge(x) if isinstance(x, str) else x)
]
Rate = Annotated[float, Field(ge=0.01, lt=0.5)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Limit = Annotated[int, Field(ge=0)]
Query = Annotated[str, Field(pattern=r"\S", max_length=LONGEST_TEXT)]
Choices = Annotated[
    Sequence[Annotated[str, Field(max_length=LONGEST_TEXT // 10)]], AfterValidator(_told_apart)
]
Boxes = Annotated[str, Field(max_length=LONGEST_TEXT), BeforeValidator(_box_text)]


def split_backend(backend: str) -> tuple[str, str]:
    """The engine and the model folder of a backend, "ENGINE.FOLDER". Raises ValueError where it is
    none."""
    engine, _, folder = backend.partition(".")
    engines = get_args(Engine)
    if engine in engines and folder:
        return engine, folder
    raise ValueError(
        f"expected ENGINE.FOLDER with ENGINE one of {', '.join(engines)}, such as"
        " transformers.embedded: models run on your own machines, never in a cloud,"
        f" got {backend!r:.80}"
    )


class Section(BaseModel):
    # pydantic's own errors would show a password in an address
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class RoleSettings(Section):
    """One agent's section: which model answers and how it generates."""

    # ENGINE.FOLDER; sections with the same backend share one copy
    backend: str = "transformers.embedded"
    # of the generation, 0 is greedy; not the letters' temperature
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: int = Field(default=512, ge=16, le=4096)  # the longest answer of one call

    @field_validator("backend")
    @classmethod
    def _is_local(cls, backend: str) -> str:
        split_backend(backend)
        return backend


class ModelSettings(Section):
    """How one model folder is loaded."""

    # a folder, in the models folder unless absolute; default: the backend's name
    path: str | None = None
    # auto: bfloat16 on a GPU that has it, float16 on older ones, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # bitsandbytes; 4bit is nf4 with double quantisation
    quantization: Literal["none", "8bit", "4bit"] = "none"
    # auto: accelerate spreads the model over all visible devices
    device_map: Literal["none", "auto"] = "none"
    # how the model writes where something lies, if it can: in pixels of what it sees (Qwen2.5-VL)
    # or in thousandths of its sides (Qwen3-VL). none: it is not asked where the regions of a query
    # are
    boxes: Literal["none", "pixels", "thousandths"] = "none"
    # how a rating is read: at the letters A to E, or at the words Excellent to Bad, for a model
    # trained to say these
    answers: Literal["letters", "words"] = "letters"
    # the same bits run after run, whatever else is asked meanwhile: deterministic kernels; vLLM and
    # llama.cpp answer one request at a time and without their cache; slower
    exact: bool = False
    # vLLM: requests that are computed together; llama.cpp on a GPU: those whose cache is kept
    max_in_flight: int = Field(default=8, ge=1)
    # vLLM on a GPU: memory of the card that stays free for the tools; the engine takes the rest
    left_for_tools_gib: float = Field(default=4.0, ge=0)
    # where a server listens, with $AGENTIC_IQA_SERVER_KEY as its key. Engine server: vLLM's, by default
    # at http://127.0.0.1:8000. Engine llamacpp: a llama-server; by default the program starts its own
    server: str | None = None
    # engines server and llamacpp: seconds to wait for an answer
    server_timeout: float = Field(default=600, gt=0, le=86400)
    # the largest picture that is seen in one piece; default: the processor's own
    max_pixels: int | None = Field(default=None, ge=1)

    @field_validator("server")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is None:
            return None
        if not re.fullmatch(
            r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[\w./-]*)?", address
        ):
            raise ValueError("expected http://HOST:PORT or https://HOST:PORT, got something else")
        return address.rstrip("/")


class ImageSettings(Section):
    """Limits on what is opened, and how large photographs are cut."""

    min_side: int = Field(default=32, ge=1)  # pixels; smaller images are refused
    max_pixels: int = Field(default=100_000_000, ge=1)  # refused above this: a decompression bomb
    # native-resolution crops of a photograph beyond the model's range
    max_crops: int = Field(default=5, ge=1, le=5)
    # the colour behind transparent pictures; default: they are refused
    background: Colour | None = None
    # of a camera's RAW file the preview in it is judged; default: such files are refused
    raw_previews: bool = False


TEMPERATURE = "agentic_iqa_temperature"  # key of a model's config.json


class FusionSettings(Section):
    """The letter read and its fusion."""

    mode: Mode = "logits"
    # η of α_c = softmax(−η(q̄ − c)²); auto: 1/(2σ²), σ the error of the tools' mean by
    # configs/tool_reliability.yaml. 1 is the paper's
    eta: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    # divides the log-probabilities of a rating's letters before p_c is formed where tools vote; auto:
    # what the model's config.json says (agentic_iqa_temperature), 1 where it says nothing
    temperature: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    # p_c of the generated letter; the rest is shared
    classification_confidence: float = Field(default=0.8, gt=0.5, le=1)
    on_missing_logits: Literal["error", "classification"] = "error"
    fitted: str | None = None  # where eta and temperature come from, when --fit set them
    # warn when this much probability lies off the letters
    off_letter_warning: float = Field(default=0.5, ge=0, le=1)
    # q̄ over distinct (tool, region) runs, or over every listed entry
    vote: Literal["runs", "entries"] = "runs"
    # how far the model's own Yes and No about distortions and its severities count beside what
    # LocalNR reads: an exponent. Default: what the model's config.json says (agentic_iqa_trust), 1
    # where it says nothing
    model_trust: float | None = Field(default=None, ge=0, le=1)
    # what a tool does that another one on the same picture clearly leads: only check it, or vote in
    # q̄ too
    trailing_tools: Literal["check", "vote"] = "check"

    @property
    def letters_temperature(self) -> float:
        """The temperature as a number: 1 where no fit tells what auto is."""
        return 1.0 if self.temperature == "auto" else self.temperature


class ToolSettings(Section):
    """Which tools the letters pipeline runs, as the command tools spells them; `services.tools_of`
    checks them."""

    full_reference: list[str] = Field(default=["VSI", "FSIM"], min_length=1)
    no_reference: list[str] = Field(default=["LocalNR", "NIQE"], min_length=1)
    # not offered to the model, for they take long (the command tools lists them); a query can still
    # name them
    not_offered: list[str] = ["MAD", "CW-SSIM"]
    maps: str | None = None  # the file of tool maps; default: configs/tool_maps.yaml
    eye: str | None = None  # a folder that the command learn made

    def configured(self, has_reference: bool) -> list[str]:
        """The tools that the letters pipeline runs, with a reference or without one."""
        if has_reference:
            return self.full_reference
        return [EYE, *self.no_reference] if self.eye else self.no_reference

    @property
    def all_configured(self) -> list[str]:
        """The tools for pictures with a reference and without one."""
        return list(dict.fromkeys([*self.full_reference, *self.configured(False)]))


def option(description: str, default: Any = None) -> Any:
    """An option; the description is what --help and the HTTP interface say of it."""
    return Field(default=default, description=description)


class Decisions(Section):
    """What a caller may say of how sure an answer has to be."""

    abstain_wider_than: Width | None = option(
        "answers whose interval is wider than W levels are held back: not sure"
    )
    at_least: Level | None = option(
        "pass, fail or unsure: is the quality LEVEL (A to D, Good, 1 to 5) or better?"
    )
    error_rate: Rate | None = option(
        "how often pass or fail of at_least may be wrong (default: 0.1)"
    )
    target_width: Width | None = option(
        "while the interval is wider than W levels: read the letters in the other order, then those of crops"
    )
    most_reads: Count | None = option("letter reads that target_width may take in all")


class DecisionSettings(Decisions):
    """How sure an answer has to be, and what follows where it is not."""

    error_rate: Rate = 0.1
    # a fit of study.py that calibrates the intervals; default: configs/intervals.json
    calibration: str | None = None


class Settings(Section):
    """A whole configuration."""

    planner: RoleSettings = RoleSettings()
    executor: RoleSettings = RoleSettings()
    summarizer: RoleSettings = RoleSettings()
    # the models folder, in place of $AGENTIC_IQA_MODELS
    models_dir: str | None = Field(default=None, exclude=True)
    models: dict[str, ModelSettings] = {}  # model folder name → how it is loaded
    images: ImageSettings = ImageSettings()
    fusion: FusionSettings = FusionSettings()
    tools: ToolSettings = ToolSettings()
    decisions: DecisionSettings = DecisionSettings()
    # n allows n − 1 replans; 0 and 1 allow none
    max_replan_iterations: int = Field(default=DEFAULT_MAX_REPLAN_ITERATIONS, ge=0)

    @model_validator(mode="after")
    def _every_model_setting_is_used(self) -> Self:
        named = {backend.partition(".")[2] for backend in self.backends}
        if unused := set(self.models) - named:
            raise ValueError(
                f"models: {', '.join(sorted(unused))} not named by any section's backend ({', '.join(sorted(named))})"
            )
        return self

    def role(self, name: str) -> RoleSettings:
        """The section of "planner", "executor" or "summarizer"."""
        return getattr(self, name)

    @property
    def backends(self) -> list[str]:
        """The backends of all roles, each once."""
        return list(dict.fromkeys(self.role(role).backend for role in ROLES))

    def folder(self, backend: str) -> Path:
        """The folder of a backend's model."""
        name = backend.partition(".")[2]
        return model_folder(self.models.get(name, ModelSettings()).path or name, self.models_dir)

    def model(self, backend: str) -> ModelSettings:
        """Loading options of a backend's folder, with its path filled in. The embedded model computes
        in float32 on a GPU too: its intervals were calibrated so, and it is too small to gain from
        half precision."""
        usual = ModelSettings()
        if backend == f"transformers.{EMBEDDED.name}":
            usual = ModelSettings(dtype="float32")
        settings = self.models.get(backend.partition(".")[2], usual)
        return revised(settings, path=str(self.folder(backend)))

    def weights(self, backend: str) -> Literal["safetensors", "GGUF"] | None:
        """The format of the weights that a backend loads from its folder; None where a server of the
        user's has them."""
        engine = backend.partition(".")[0]
        if engine in ("transformers", "vllm"):
            return "safetensors"
        is_own = engine == "llamacpp" and self.model(backend).server is None
        return "GGUF" if is_own else None


def fitted(settings: Settings, client: Any = None) -> Settings:
    """The settings with the letters' temperature as a number: where they say auto, what the `client` or
    its model's config.json says, else 1. A folder without a sound config.json is refused when it is
    loaded."""
    if settings.fusion.temperature != "auto":
        return settings
    config = settings.folder(settings.summarizer.backend) / "config.json"
    try:
        told = {} if client else read_json(config)
        temperature = told.get(TEMPERATURE, getattr(client, "letters_temperature", 1.0))
        fusion = revised(settings.fusion, temperature=temperature)
    except (FileError, ValueError):
        fusion = revised(settings.fusion, temperature=1.0)
    return revised(settings, fusion=fusion)


def model_folder(name: str, models: str | None = None) -> Path:
    """Where a model lies by name: below `models_root(models)`, or where only this project's own
    models/ has it, there."""
    folder = models_root(models) / name
    shipped = ROOT / "models" / name
    if os.path.isdir(shipped) and not os.path.isdir(folder):
        return shipped
    return folder


def find_config(name: str | Path | None) -> Path:
    """A path, or the name of a shipped set-up; None is model_backends.yaml, the embedded set-up."""
    if name is None or str(name) == EMBEDDED.name:
        return DEFAULT_CONFIG
    for path in (Path(name), CONFIGS / f"{name}.yaml"):
        # unlike Path.exists it says no to a name that is too long; a pipe is told as such when it
        # is read
        if os.path.exists(path) and not os.path.isdir(path):
            return path
    shipped = [EMBEDDED.name]
    for path in sorted(CONFIGS.glob("*.yaml")):
        if path != DEFAULT_CONFIG and not path.stem.startswith(("tool_", "detector")):
            shipped.append(path.stem)
    near = did_you_mean(str(name), shipped)
    raise ConfigError(
        f"config '{name}': no such file or set-up",
        f"choose a file, or one of the shipped: {', '.join(shipped)}{near}",
    )


def load_settings(name: str | Path | None = None) -> Settings:
    """Reads a configuration. Raises ConfigError that names the file, the key and what was
    expected."""
    path = find_config(name)
    try:
        return Settings.model_validate(read_yaml(path))
    except FileError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_mistake(error)}{_near_key(error)}") from None


def _near_key(error: ValidationError) -> str:
    """What an unknown key may have been meant for, of those of its section."""
    first, *_ = error.errors()
    if first["type"] != "extra_forbidden":
        return ""
    *sections, key = first["loc"]
    kind = Settings.model_fields[str(sections[0])].annotation if sections else Settings
    if sections[:1] == ["models"]:
        kind = ModelSettings
    return did_you_mean(str(key), getattr(kind, "model_fields", ()))


class Options(Decisions):
    """What a caller may choose of a set-up; None leaves it to the configuration."""

    background: Colour | None = option(
        "the colour behind transparent pictures, such as white (default: refuse them)"
    )
    raw_previews: bool | None = option(
        "judge the previews in RAW files (DNG, CR2, CR3, NEF, ARW, RAF), which a warning says"
    )
    gpu: int | str | None = option(
        "GPU by index, UUID or MIG name, among those CUDA_VISIBLE_DEVICES allows (default: GPU 0 if there is one);"
        " without --config and --model with the largest complete vision-language model below the models folder"
    )
    cpu: bool = option("run on the CPU", default=False)
    config: PathText | None = option(
        "a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    eye: PathText | None = option("your eye, a folder that the command learn made")
    engine: Engine | None = option(
        "what serves the model: transformers, vllm, llamacpp or server (default: the configuration's)"
    )
    model: PathText | None = option(
        "a model below the models folder, or a folder; overrides the configuration's"
    )
    models: PathText | None = option(
        "the models folder (default: $AGENTIC_IQA_MODELS, else models/)"
    )
    pipeline: Pipeline | None = option(
        "agent: plan, evidence, reasoning, replanning; letters: one read and the configured tools, for volume"
        " (default: agent, but letters to compare)"
    )
    mode: Mode | None = option(
        "where the letters' probabilities come from (default: the configuration's, logits)"
    )
    fit: PathText | None = option(
        "temperature, η and intervals of q from a fit of study.py, for the model of the fit"
    )
    max_replan_iterations: Limit | None = option(
        "N allows N - 1 replans: 0 and 1 none, the default 2 one"
    )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options with these values. Raises ConfigError, in one sentence that begins with the
        option's name."""
        if unknown := sorted(options.keys() - cls.model_fields.keys()):
            raise ConfigError(
                f"{unknown[0]}: there is no such option{did_you_mean(unknown[0], cls.model_fields)}"
            )
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise ConfigError(first_mistake(error, quoted=True)) from None

    def applied_to(self, settings: Settings) -> Settings:
        """`settings` with what these options change in them; a fit is read by `judgement.fit`."""
        if self.models:
            settings = revised(settings, models_dir=os.path.abspath(self.models))
        settings = self._with_models(settings)
        changes: dict[str, Any] = {
            "decisions": self._changed(settings.decisions),
            "images": self._changed(settings.images),
            "fusion": self._changed(settings.fusion),
        }
        if self.eye:
            changes["tools"] = revised(settings.tools, eye=os.path.abspath(self.eye))
        if self.max_replan_iterations is not None:
            changes["max_replan_iterations"] = self.max_replan_iterations
        return revised(settings, **changes)

    def _changed(self, section: AnySection) -> AnySection:
        """A section with the values of the options that are called as its keys are."""
        names = set(type(section).model_fields)
        return revised(section, **self.model_dump(include=names, exclude_none=True))

    def _with_models(self, settings: Settings) -> Settings:
        """Every section on `model`, served by `engine`. A folder takes over the loading options of
        the configuration's own model, since it is that model in another place; a name has its own
        in the configuration, or the defaults."""
        own_engine, _, own_model = settings.summarizer.backend.partition(".")
        models, name = settings.models, self.model
        if name and (os.path.isdir(name) or "/" in name):
            folder = Path(name).resolve()
            name = folder.name
            own = models.get(own_model, ModelSettings())
            models = {name: revised(own, path=str(folder))}
        elif name:
            models = {own: of for own, of in models.items() if own == name}
        roles = {}
        for role in ROLES:
            section = settings.role(role)
            backend = f"{own_engine}.{name}" if name else section.backend
            engine, _, model = backend.partition(".")
            roles[role] = revised(section, backend=f"{self.engine or engine}.{model}")
        return revised(settings, **roles, models=models)


class Request(Options):
    """What a caller may ask of pictures, with a set-up's options."""

    query: Query | None = option(
        "a question or instruction (default: rate the perceptual quality); a tool that it names runs, and"
        ' answers that it lists ("... A. too dark B. too bright", "yes or no") are the choices'
    )
    choices: Choices | None = option("2 to 10 answers: a multiple-choice question")
    box: Boxes | None = option(
        "where what the query names lies, [NAME=]LEFT,TOP,RIGHT,BOTTOM in pixels, several parted by ; : tools measure"
        " it and letters are read there"
    )
    map: bool = option("true: the quality from place to place too", default=False)
