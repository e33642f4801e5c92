"""The commands that an installation has; scripts/ runs the same ones from a checkout."""

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings


def chosen_settings(args: argparse.Namespace) -> "Settings":
    """The settings that --models, --config, --engine and --model name, and where a command has them --mode and --background. Raises ConfigError."""
    from agentic_iqa_local.config import load_settings

    if args.models:
        os.environ["AGENTIC_IQA_MODELS"] = str(args.models.absolute())
    settings = load_settings(args.config)
    if args.engine:
        settings = settings.with_engine(args.engine)
    settings = settings.with_model(args.model) if args.model else settings
    if getattr(args, "mode", None):
        settings = settings.with_values("fusion", mode=args.mode)
    if getattr(args, "background", None):
        settings = settings.with_values("images", background=args.background)
    return settings
