"""The commands that an installation has; scripts/ runs the same ones from a checkout."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings

SETTINGS = ("config", "model", "models", "engine", "mode", "fit", "background")


def chosen_settings(args: argparse.Namespace) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. Raises
    ConfigError."""
    from agentic_iqa_local.api import choose_settings

    return choose_settings(
        **{name: value for name in SETTINGS if (value := getattr(args, name, None)) is not None}
    )
