"""The sections of a configuration: every setting with its default and its limits."""

import difflib
import os
import re
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from PIL import ImageColor
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
)

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.iqa_tools.specs import ToolError, find_tool
from agentic_iqa_local.levels import Mode, PromptLayout


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used; the message says which key of which file."""


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
    answers: Literal["letters", "words"] = Field(
        default="letters",
        description=(
            "How a rating is read: at the letters A to E, or at the words Excellent to Bad, for a model that"
            " was trained to say these."
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
            "Backend server: where vLLM's OpenAI-compatible server listens. http://USER:PASSWORD@HOST logs in,"
            " instead of with $AGENTIC_IQA_SERVER_KEY; neither is ever written or shown."
        ),
    )
    served_name: str | None = Field(
        default=None, description="Backend server: the model's name there; default: the only one."
    )
    server_timeout: float = Field(
        default=600,
        gt=0,
        le=86400,
        description="Backend server: seconds without an answer before a request is tried once more.",
    )
    min_pixels: int | None = Field(default=None, ge=1, description="Default: the processor's own.")
    max_pixels: int | None = Field(
        default=None, ge=1, description="Largest picture seen in one piece; default: the processor's own."
    )

    @field_validator("server", mode="before")
    @classmethod
    def _is_an_address(cls, address: object) -> object:
        if not isinstance(address, str):
            raise ValueError("expected one address, as text; several servers go behind a proxy of yours")
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
    model_trust: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "How far the model's own Yes and No about distortions and its severities count beside what"
            " LocalNR reads: an exponent. Default: what the model's config.json says (agentic_iqa_trust), 1"
            " where it says nothing."
        ),
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
