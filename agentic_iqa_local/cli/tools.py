"""Lists every IQA tool: its name, FR where it compares with a reference and NR where it needs none, the scores from
1 to 5 that it can reach, whether it can run here, what it costs and how reliable it is.

examples:
  {tools}
  {tools} --config qwen2_5_vl_7b --gpu 0
"""

import argparse

from agentic_iqa_local.cli.command import Command
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.cli.options import SET_UP, add_options, chosen_settings


def show(args: argparse.Namespace) -> int:
    """Prints the table. Raises UserError."""
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.output.tool_table import tool_table
    from agentic_iqa_local.services import Services

    with Console() as console:
        services = Services(chosen_settings(args), choose_device(args.gpu, args.cpu))
        console.show(tool_table(services.tools.info()))
    return 0


main = Command("tools", __doc__, lambda parser: add_options(parser, *SET_UP), show)
