"""The tools by name: what each measures, which way it runs, and which files it needs, as
data/tools.yaml lists them."""

import difflib
import math
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import PROGRAM, read_record

DATA = Path(__file__).parent / "data"  # the table, and parameter files that ship with the tools
LOCAL_NR = (DATA / "local_nr.safetensors", DATA / "local_nr_people.safetensors")
FARTHEST = 100  # widths of its domain that a raw score may lie beyond the domain's ends
ROUNDING = 1e-4  # of a bound, by which float32 may miss it


class ToolError(UserError, RuntimeError):
    """A tool that cannot be found, built or trusted; the message is one sentence for the user."""


class FileRecord(BaseModel):
    """A part of a file of figures or settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ToolSpec(FileRecord):
    """One tool.

    `metric` is pyiqa's name of it, or with `own` that of a tool of this package, which pyiqa has no
    part in. `domain` is the raw range over which a map must be monotone, `bounds` are the ends that
    the metric's definition sets to its raw value, and `of_copy` is that value of a picture against
    itself (None: only measuring tells). `weights` are the files that it needs (empty: none to
    fetch), `bundled` is a parameter file in this package's data folder, and `modules` are Python
    modules that its code imports beyond pyiqa's own requirements. `min_side` is the smallest image
    side in pixels that it accepts, and `most_megapixels` the largest picture that is measured whole
    (None: any); of a larger one crops are. `seconds` is what a megapixel takes on one CPU core
    (None: not measured). `no_map` says why a map to 1..5 would mean nothing for it (empty: a map
    makes sense).
    """

    model_config = ConfigDict(allow_inf_nan=True)

    name: str
    metric: str
    reference: Literal["FR", "NR"]
    lower_better: bool = False
    domain: tuple[float, float]
    bounds: tuple[float, float] = (-math.inf, math.inf)
    of_copy: float | None = None
    good_for: tuple[str, ...] = ()
    description: str
    min_side: int = 64
    most_megapixels: float | None = None
    seconds: float | None = None
    weights: tuple[str, ...] = ()
    bundled: str = ""
    modules: tuple[str, ...] = ()
    own: bool = False
    no_map: str = ""

    @property
    def scale(self) -> str:
        """How a raw score is to be read: its direction, and the range that is mapped to 1..5."""
        low, high = self.domain
        better = "lower" if self.lower_better else "higher"
        return f"{better} is better, from {low:g} to {high:g}"

    def is_score(self, raw: float) -> bool:
        """Whether the tool can mean a raw value: one within its bounds, and not absurdly far from
        its domain."""
        low, high = self.domain
        lowest, highest = self.bounds
        far = FARTHEST * (high - low)
        return max(lowest - ROUNDING, low - far) <= raw <= min(highest + ROUNDING, high + far)


class ToolTable(FileRecord):
    """What data/tools.yaml holds."""

    tools: tuple[ToolSpec, ...]


def tool_key(name: str) -> str:
    """A tool's name without what spelling varies: case, '-', '_' and blanks."""
    return re.sub(r"[-_ ]", "", name).casefold()


TOOLS: dict[str, ToolSpec] = {}
_BY_KEY: dict[str, ToolSpec] = {}
for _spec in read_record(DATA / "tools.yaml", ToolTable).tools:
    TOOLS[_spec.name] = _spec
    _BY_KEY[tool_key(_spec.metric)] = _BY_KEY[tool_key(_spec.name)] = _spec


def is_tool(name: str) -> bool:
    """Whether there is a tool of this name, in any spelling that `find_tool` takes."""
    return tool_key(name) in _BY_KEY


def find_tool(name: str) -> ToolSpec:
    """The tool called `name`, in the field's spelling or pyiqa's; case, '-', '_' and spaces do not
    matter. Raises ToolError, with the nearest names, when there is none."""
    if is_tool(name):
        return _BY_KEY[tool_key(name)]
    near = ", ".join(nearest_tools(name))
    advice = f"did you mean {near}?" if near else f"{PROGRAM} tools lists all."
    raise ToolError(f"there is no tool {name!r} here", advice)


def nearest_tools(name: str) -> list[str]:
    """At most three tools whose names are near to one that there is none of."""
    near = difflib.get_close_matches(tool_key(name), _BY_KEY, n=3, cutoff=0.6)
    return list(dict.fromkeys(_BY_KEY[known].name for known in near))
