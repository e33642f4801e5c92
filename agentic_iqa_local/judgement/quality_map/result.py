"""What a map of a picture's quality holds, field by field, and what may be asked of one."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.levels import Severity


class MapError(UserError, ValueError):
    """A map that cannot be made, drawn or written; the message is one sentence for the user."""


@dataclass(frozen=True)
class MapRequest:
    """What is asked of a map: at most `max_tiles` tiles (9 or more), no new batch of tiles after `seconds`,
    and where it is drawn to, if it is. Raises MapError."""

    png: Path | None = None
    max_tiles: int = 256
    seconds: float = 120.0

    def __post_init__(self) -> None:
        if not 9 <= self.max_tiles <= 4096:
            raise MapError(f"max_tiles: expected 9 to 4096, got {self.max_tiles}")
        if not self.seconds > 0:
            raise MapError(f"seconds: expected more than 0, got {self.seconds:g}")


def map_request(wanted: bool | str | Path | MapRequest) -> MapRequest | None:
    """What `assess(..., map=wanted)` asks for; None where no map is. Raises TypeError."""
    if isinstance(wanted, MapRequest):
        return wanted
    if isinstance(wanted, str | Path):
        return MapRequest(Path(wanted))
    if not isinstance(wanted, bool):
        raise TypeError(f"map: expected True, a path or a MapRequest, got {type(wanted).__name__}")
    return MapRequest() if wanted else None


class DamagedBox(BaseModel):
    """A part of the picture that is clearly worse than the rest."""

    box: tuple[int, int, int, int] = Field(
        description="left, top, right, bottom in pixels of the upright image."
    )
    place: str = Field(description='Which ninth of the picture its centre lies in: "top left", "middle" ...')
    q: float = Field(description="Mean of the map's cells in it, 1..5.")
    below: float = Field(description="How many levels that lies below the median of the map.")
    distortion: str | None = Field(
        default=None, description="Its likeliest distortion; None where the model cannot be asked in words."
    )
    probability: float | None = Field(
        default=None, description="Of that distortion among the seven types, 0..1."
    )
    distortions: dict[str, float] = Field(
        default={}, description="Probability of each type of distortion; sums to 1."
    )
    severity: Severity | None = Field(
        default=None, description="The likeliest severity of that distortion; None where it was not read."
    )
    severities: dict[str, float] = Field(default={}, description="Probability of each severity; sums to 1.")
    tools: dict[str, float] = Field(
        default={}, description="Scores of the configured tools on this box alone, 1..5; not part of q."
    )

    @property
    def seen(self) -> str | None:
        """Its distortion and how severe that is, in words; None where the model cannot be asked."""
        if self.distortion is None or self.severity is None:
            return self.distortion
        if self.severity == "none":
            return f"{self.distortion}, barely visible to the model"
        return f"{self.severity} {self.distortion}"


class TileBias(BaseModel):
    """What cropping does to the letters: the mean over clean photographs of the tiles' expected level less
    that of the whole photograph."""

    levels: float = Field(description="In levels; subtracted from each tile's level.")
    low: float = Field(description="Lower end of its 95 % interval over photographs.")
    high: float = Field(description="Upper end.")
    tile: int = Field(description="Side in pixels of the tiles that it was measured on.")
    photographs: int = Field(description="How many it is the mean over.")
    source: str = Field(description="Which photographs, and when.")


class MapCost(BaseModel):
    """What a map took, and what limited it."""

    tiles: int = Field(description="Tiles of the map.")
    read: int = Field(description="How many of them were read; cells that none of these covers are null.")
    max_tiles: int = Field(description="How many were allowed.")
    max_seconds: float = Field(description="Seconds after which no more were to be begun.")
    tokens: int = Field(description="Tokens that went through the model.")
    seconds: float = Field(description="Of making the map, without the drawing.")
    stopped: str | None = Field(default=None, description="Why not all tiles were read.")


class QualityMap(BaseModel):
    """The quality of a picture from place to place.

    Each tile is read by itself at native resolution, with the scoring prompt and without evidence. A cell's
    level by the letters is the mean over the tiles that cover it, weighted by how much of it each covers; its
    level by LocalNR follows from the severity that this tool sees there. q is the weighted mean of both.
    """

    tile: int = Field(description="Side of a tile in pixels: what is read.")
    stride: int = Field(description="The widest step from tile to tile, in pixels.")
    xs: list[int] = Field(description="Edges of the cells from left to right, in pixels.")
    ys: list[int] = Field(description="Edges of the cells from top to bottom, in pixels.")
    q: list[list[float | None]] = Field(
        description="Quality of each cell, 1..5, row by row from the top; null where no tile was read."
    )
    letters: list[list[float | None]] = Field(description="Level of each cell by the letters alone, 1..5.")
    tool: list[list[float]] | None = Field(
        description="Level of each cell by LocalNR alone, 1..5; None where the tool could not run."
    )
    tool_weight: float = Field(description="Of the tool's level in q, 0..1.")
    median: float = Field(description="Of the cells.")
    worst: list[DamagedBox] = Field(
        description="At most three boxes that do not overlap, the worst first; empty where none stands out."
    )
    bias: TileBias | None = Field(
        default=None, description="What was corrected of the tiles' levels; None where nothing was."
    )
    similarity: dict[str, list[list[float]]] = Field(
        default={},
        description=(
            "With a reference: the mean in each cell of SSIM's, GMSD's and FSIM's own map; 1 where nothing"
            " was lost."
        ),
    )
    cost: MapCost
    notes: list[str] = Field(default=[], description="What a reader of the map must know.")
    png: str | None = Field(default=None, description="The file that it was drawn to.")
    not_drawn: str | None = Field(default=None, description="Why it was not drawn where it should have been.")
