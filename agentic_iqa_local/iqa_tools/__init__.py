"""Image-quality tools: pyiqa metrics with maps from their raw scores to 1..5.

Importing this package pulls in neither torch nor pyiqa.
"""

from agentic_iqa_local.iqa_tools.runner import ToolInfo, ToolReading, ToolRunner
from agentic_iqa_local.iqa_tools.specs import TOOLS, ToolError, ToolSpec, find_tool, is_tool

__all__ = [
    "TOOLS",
    "ToolError",
    "ToolInfo",
    "ToolReading",
    "ToolRunner",
    "ToolSpec",
    "find_tool",
    "is_tool",
]
