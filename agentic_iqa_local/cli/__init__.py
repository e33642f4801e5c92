"""The commands that an installation has; scripts/ runs the same ones from a checkout."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings

SETTINGS = (
    *("config", "model", "models", "engine", "mode", "fit", "background"),
    *("target_width", "most_reads", "most_seconds", "abstain_wider_than", "at_least", "error_rate"),
)


def add_set_up(options: argparse._ActionsContainer) -> None:
    """The options that say where a command runs and with what: a device, and what `chosen_settings` reads."""
    device = options.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu",
        metavar="N",
        help=(
            "GPU by index, UUID or MIG name, among those CUDA_VISIBLE_DEVICES allows (default: GPU 0 if there"
            " is one); where no --config and no --model is given, with the largest complete vision-language"
            " model below the models folder"
        ),
    )
    device.add_argument("--cpu", action="store_true", help="run on the CPU")
    options.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    options.add_argument(
        "--engine",
        choices=("transformers", "vllm", "server"),
        help="what serves the model (default: the configuration's)",
    )
    options.add_argument(
        "--model",
        metavar="NAME",
        help="a model below the models folder, or a folder; overrides the configuration's",
    )
    options.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="the models folder (default: $AGENTIC_IQA_MODELS, else models/)",
    )


def chosen_settings(args: argparse.Namespace, say: Callable[[str], None] | None = None) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. With --gpu and
    neither of those two the largest model that is there is taken, and `say` is told which (default: stderr
    is). Raises ConfigError."""
    from agentic_iqa_local.api import choose_settings

    options = {name: value for name in SETTINGS if (value := getattr(args, name, None)) is not None}
    chosen = options.keys() & {"config", "model"} or options.get("engine") == "server"
    if getattr(args, "gpu", None) is not None and not chosen:
        from agentic_iqa_local.offline.store import models_root
        from agentic_iqa_local.vlm_client.model_choice import choose

        choice = choose(models_root(options.get("models")))
        (say or _to_stderr)(choice.said)
        if choice.folder:
            options |= {"model": choice.folder} | ({"config": choice.config} if choice.config else {})
    settings = choose_settings(**options)
    if settings.models_dir:  # the command's other parts and its processes look there too
        os.environ["AGENTIC_IQA_MODELS"] = settings.models_dir
    return settings


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
