"""Assessments as tools of the Model Context Protocol: a program that talks to a language model asks for them
over stdin and stdout."""

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import ValidationError

from agentic_iqa_local import __version__
from agentic_iqa_local.config import Pipeline
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.comparison import Ranked, Ranking, compare, rank
from agentic_iqa_local.output.comparison_report import comparison_headline, headline_of
from agentic_iqa_local.output.picture_lines import worst_distortion
from agentic_iqa_local.output.report import headline
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services

MOST_COMPARED = 20  # pictures in one call
ASSESS = (
    "Assesses the technical quality of a picture file: q from 1 (bad) to 5 (excellent) with a 90 % interval,"
    " level, distortions, tools' scores and why. `path` lies below the server's folder; `reference` is its"
    " pristine original; `query` a question about its quality; `choices` 2 to 10 answers to choose from;"
    " `pipeline` agent (plan, evidence, reasoning) or letters (quick); `map` looks for the damaged parts."
)
COMPARE = (
    "Says which of two picture files has the better quality and how probable that is; of 3 to 20, their order"
    " from the best to the worst. `reference` is the pristine original of all."
)
FIELDS = (  # of a row that clients get
    *("image", "sha256", "reference", "query", "choices", "final_answer", "q", "q_bar", "p_c"),
    *("interval", "answer_set", "not_sure", "gate", "quality_reasoning", "warnings", "seconds"),
)


class OutsideError(UserError):
    """A path that the server may not read."""


class PictureError(UserError):
    """A picture that could not be assessed."""


class Pictures:
    """The files below one folder, assessed with one set-up, whose model is loaded at the first call and then
    kept; one call at a time."""

    def __init__(self, root: Path, services: Services) -> None:
        self.root = Path(os.path.realpath(root))
        self._services = services
        self._turn = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a call is in hand."""
        return self._turn.locked()

    def file(self, path: str) -> str:
        """The real path of a file below the root; a relative one begins there. Raises OutsideError for one
        that lies outside, also by way of a link, and ImageError for one that cannot be read."""

        try:
            real = os.path.realpath(self.root / path)
        except (OSError, ValueError):  # a NUL, or a name that no file can have
            real = None
        if real is None or not Path(real).is_relative_to(self.root):
            raise OutsideError(
                f"{path[:200]}: expected a file below the folder that this server may read, {self.root}",
                "copy it there, or start the server with another --root",
            )
        check_file(real)
        return real

    def assess(
        self,
        path: str,
        reference: str | None,
        query: str | None,
        choices: list[str] | None,
        pipeline: Pipeline,
        map: bool,
    ) -> Assessment:
        """The assessment of one picture. Raises UserError, and ValueError for a query or choices that make no
        sense."""

        picture, original = self.file(path), None if reference is None else self.file(reference)
        with self._turn:
            row = assess(
                picture, original, query, choices, pipeline=pipeline, map=map, services=self._services
            )
        if row.error:
            raise PictureError(row.error)
        return row

    def compare(self, paths: list[str], reference: str | None) -> dict[str, Any]:
        """The order of 2 to 20 pictures and, of two, the probability that the first is better. Raises
        UserError."""
        if not 2 <= len(paths) <= MOST_COMPARED:
            raise PictureError(f"paths: expected 2 to {MOST_COMPARED} pictures, got {len(paths)}")
        files = list(map(self.file, paths))
        original = None if reference is None else self.file(reference)

        with self._turn:
            if len(files) > 2:
                return _order(rank(files, reference=original, services=self._services))
            found = compare(files[0], files[1], reference=original, services=self._services)
        if found.pair is None:
            raise PictureError(found.error or "the pictures could not be compared")
        return {
            "summary": comparison_headline(found),
            "probability_first_is_better": found.pair.probability,
            "pictures": [short_row(row) for row in (found.first, found.second)],
        }


def _order(found: Ranking) -> dict[str, Any]:
    def place(ranked: Ranked) -> dict[str, Any]:
        ahead = {"place": ranked.place, "better_than_next": ranked.better_than_next}
        return ahead | short_row(ranked.assessment)

    failures = [{"image": row.image, "error": row.error} for row in found.failed]
    return {"summary": headline_of(found), "order": list(map(place, found.order)), "failed": failures}


def short_row(row: Assessment) -> dict[str, Any]:
    """The fields of a row that say what came of it, without plan, passes and costs: `FIELDS`, the level in a
    word, the tools' scores (name → raw score and score in 1..5), the worst distortion, and of a map its worst
    boxes."""
    fields = row.to_dict()
    short = {name: fields[name] for name in FIELDS if fields[name] is not None}
    tools = {
        run.tool_name: {"raw": run.raw_score, "score": run.normalized_score}
        for run in row.tools
        if run.error is None
    }
    found = {"level": row.level, "tools": tools, "worst_distortion": worst_distortion(row) or None}
    if row.map:
        found["map"] = {name: fields["map"][name] for name in ("median", "worst", "notes")}
    found["no_map"] = row.no_map
    return short | {name: value for name, value in found.items() if value is not None}


class _Server(MCPServer):
    """Tells wrong arguments in one sentence, as whatever else is wrong."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"error: {one_line(first_mistake(error.__cause__))}") from error
            raise


def server(pictures: Pictures) -> MCPServer:
    """The server with its tools `assess` and `compare`."""

    async def assess_picture(
        path: str,
        ctx: Context,
        reference: str | None = None,
        query: str | None = None,
        choices: list[str] | None = None,
        pipeline: Pipeline = "agent",
        map: bool = False,
    ) -> CallToolResult:
        await ctx.report_progress(0, 1, "assessing")
        return await _answered(
            lambda: _account(pictures.assess(path, reference, query, choices, pipeline, map))
        )

    async def compare_pictures(
        paths: list[str], ctx: Context, reference: str | None = None
    ) -> CallToolResult:
        await ctx.report_progress(0, len(paths), "assessing")
        return await _answered(partial(pictures.compare, paths, reference))

    made = _Server(
        "agentic-iqa",
        version=__version__,
        instructions=f"Quality of pictures below {pictures.root}.",
        log_level="WARNING",
    )
    made.add_tool(assess_picture, "assess", description=ASSESS)
    made.add_tool(compare_pictures, "compare", description=COMPARE)
    return made


def _account(row: Assessment) -> dict[str, Any]:
    why = row.quality_reasoning
    return {"summary": headline(row) + (f"\n{one_line(why)}" if why else "")} | short_row(row)


async def _answered(work: Callable[[], dict[str, Any]]) -> CallToolResult:
    """What a tool answers: `work`'s result with its summary as text, or what is wrong in one sentence."""
    try:
        found = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except (UserError, ValueError) as error:
        text = TextContent(type="text", text=f"error: {one_line(str(error))}")
        return CallToolResult(content=[text], is_error=True)
    text = TextContent(type="text", text=found["summary"])
    return CallToolResult(content=[text], structured_content=found)
