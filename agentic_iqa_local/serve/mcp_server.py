"""Assessments as tools of the Model Context Protocol: a program that talks to a language model asks
for them."""

import os
import threading
from pathlib import Path
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from agentic_iqa_local import __version__
from agentic_iqa_local.config import Request
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.output.comparison_report import explain, headline_of
from agentic_iqa_local.serve.asks import TO_ASSESS, TO_COMPARE, Answer, SetUp, answered, failure_of
from agentic_iqa_local.services import Services

MOST_COMPARED = 20  # pictures in one call
LONG = (
    "plan",
    "evidence",
    "failed_tries",
    "map",
    "fusion_settings",
    "tokens",
    "seen",
    "model",
    "prior_context",
)
PATH = {"type": "string", "description": "a picture file below the server's folder"}
PATHS = {"type": "array", "items": PATH, "minItems": 2, "maxItems": MOST_COMPARED}
TOOLS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "assess": ("Assesses the technical quality of a picture file: q from 1 (bad) to 5 (excellent) with a 90 % interval,"
               " level, distortions, tools' scores and why.", {"path": PATH}, TO_ASSESS),
    "compare": ("Says which of two picture files has the better quality and how probable that is; of more, their"
                " order.", {"paths": PATHS}, TO_COMPARE),
}  # fmt: skip


class Pictures:
    """The files below `root`, one call about them at a time, with models that are loaded at the
    first and kept."""

    def __init__(self, root: Path, set_up: SetUp, services: Services):
        self.root = Path(os.path.realpath(root))
        self.set_up = set_up
        self.services = services
        self.turn = threading.Lock()

    def file(self, path: Any) -> PictureFile:
        """A file by its path from the root on, or its absolute one. Raises UserError for one that
        lies outside, also by way of a link, and for one that cannot be read."""
        try:
            real = os.path.realpath(self.root / path)
        except (OSError, ValueError, TypeError):  # a NUL, or no text
            real = "/"
        if not Path(real).is_relative_to(self.root):
            wanted = f"expected a file below the folder that this server may read, {self.root}"
            raise UserError(f"{str(path)[:200]}: {wanted}", "copy it there, or name another --root")
        check_file(real)
        return PictureFile(real, real)

    def call(self, tool: str, given: dict[str, Any]) -> Answer:
        """What a tool answers. Raises UserError for arguments that make no sense, and if there is
        no answer."""
        if tool == "assess":
            paths, known = [given.pop("path", None)], TO_ASSESS
        else:
            paths, known = given.pop("paths", None), TO_COMPARE
            given = {"pipeline": "letters"} | given
            if not isinstance(paths, list) or not 2 <= len(paths) <= MOST_COMPARED:
                raise UserError(f"paths: expected 2 to {MOST_COMPARED} pictures in a list")
        original = given.pop("reference", None)
        reference = self.file(original) if original else None
        ask = self.set_up.ask(given, known).about([self.file(path) for path in paths], reference)
        with self.turn:
            answer = answered(ask, self.services)
        if failure := failure_of(answer):
            raise UserError(failure)
        return answer


def short(value: Any) -> Any:
    """A row, or an answer with rows, without its `LONG` fields and those that are not set."""
    if isinstance(value, list):
        return [short(one) for one in value]
    if isinstance(value, dict):
        return {
            name: short(one) for name, one in value.items() if name not in LONG and one is not None
        }
    return value


def run(pictures: Pictures) -> None:
    """Serves the tools on stdin and stdout until stdin is closed."""
    known = Request.model_json_schema()["properties"]
    tools = []
    for name, (about, paths, options) in TOOLS.items():
        properties = paths | {"reference": PATH} | {option: known[option] for option in options}
        schema = {"type": "object", "properties": properties, "required": list(paths)}
        tools.append(Tool(name=name, description=about, input_schema=schema))

    async def list_tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(_: Any, asked: Any) -> CallToolResult:
        given = dict(asked.arguments or {})
        try:
            answer = await anyio.to_thread.run_sync(
                pictures.call, asked.name, given, abandon_on_cancel=True
            )
        except (UserError, ValueError) as error:
            text = TextContent(text=f"error: {one_line(str(error))}")
            return CallToolResult(content=[text], is_error=True)
        found = {"summary": headline_of(answer)} | short(answer.to_dict())
        return CallToolResult(content=[TextContent(text=explain(answer))], structured_content=found)

    server = Server(
        "agentic-iqa", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )

    async def talk() -> None:
        async with stdio_server() as streams:
            await server.run(*streams, server.create_initialization_options())

    anyio.run(talk)
