#!/usr/bin/env python
"""Assesses the quality of images with a local vision-language model and IQA tools. Nothing leaves this machine.

examples:
  python scripts/assess.py --image photo.jpg --explain
  python scripts/assess.py --image photo.jpg --reference original.png --gpu 0
  python scripts/assess.py --image 'scans/*.png' --pipeline letters --json results.jsonl
  python scripts/assess.py --image photo.jpg --query "Which distortion dominates?" --choices Blur Noise Compression None
  python scripts/assess.py --config qwen2_5_vl_7b --gpu 0 --image photo.jpg
  python scripts/assess.py --list-tools

On a terminal the answer is text; piped, or with --json -, it is one JSON object a line on stdout and nothing else there.
Exit status: 0 all assessed, 1 some image failed (its row has "error"), 2 wrong usage or a model that cannot run,
130 interrupted (the rows so far are written).
"""

import argparse
import functools
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what to assess")
    what.add_argument("--image", nargs="+", metavar="PATH", help="images, folders or globs")
    what.add_argument("--reference", metavar="PATH", help="pristine original of the same size: full-reference assessment")
    what.add_argument("--query", help="a question or instruction (default: rate the perceptual quality)")
    what.add_argument("--choices", nargs="+", metavar="ANSWER", help="2 to 10 answers: a multiple-choice question")
    where = parser.add_argument_group("where and with what")
    device = where.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu",
        metavar="N",
        help="GPU by index, UUID or MIG name, among those CUDA_VISIBLE_DEVICES allows (default: GPU 0 if there is one)",
    )
    device.add_argument("--cpu", action="store_true", help="run on the CPU")
    where.add_argument("--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)")
    where.add_argument(
        "--engine", choices=("transformers", "vllm", "server"), help="what serves the model (default: the configuration's)"
    )
    where.add_argument("--model", metavar="NAME", help="a model below models/, or a folder; overrides the configuration's")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--pipeline",
        choices=("agent", "letters"),
        default="agent",
        help="agent: plan, evidence, reasoning, replanning; letters: one read and the configured tools, for volume (default: agent)",
    )
    how.add_argument(
        "--mode",
        choices=("logits", "classification", "uniform"),
        help="where p_c comes from (default: the configuration's, logits)",
    )
    how.add_argument(
        "--fit", type=Path, metavar="FILE", help="temperature and η from a fit of study.py, for the model it was made with"
    )
    how.add_argument(
        "--max-replan-iterations", type=int, metavar="N", help="N allows N - 1 replans: 0 and 1 none, the default 2 one"
    )
    how.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="images assessed at once, with --engine vllm or server in one batch; rows keep their order (default: 1)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write JSON lines to FILE; - is stdout")
    output.add_argument(
        "--explain",
        action="store_true",
        help="a readable account: plan, evidence, probabilities, tools, q and why (on stderr when stdout carries JSON)",
    )
    output.add_argument(
        "--list-tools",
        action="store_true",
        help="list every IQA tool, whether it is available here and what its map can reach, then exit",
    )
    output.add_argument("-v", "--verbose", action="count", default=0, help="log what happens (-vv: prompts and model output too)")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error("--jobs: expected at least 1")
    if not args.image and not args.list_tools:
        parser.error("--image is needed: give one or several images, folders or globs")
    from agentic_iqa_local.state import check_choices, check_limit, check_query

    for option, check, value in (
        ("--query", check_query, args.query),
        ("--choices", check_choices, args.choices),
        ("--max-replan-iterations", check_limit, args.max_replan_iterations),
    ):
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            parser.error(f"{option}: {str(error).partition(': ')[2]}")
    return args


def claim_stdout() -> TextIO:
    """The real stdout for results alone; whatever else prints there, from any library, goes to stderr."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return results


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    results = claim_stdout()
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("agentic_iqa_local").setLevel(level)
    from agentic_iqa_local.config import ConfigError, load_settings
    from agentic_iqa_local.devices import DeviceError, choose_device
    from agentic_iqa_local.images import ImageError, expand_inputs
    from agentic_iqa_local.iqa_tools import ToolError
    from agentic_iqa_local.iqa_tools.calibration import CalibrationError
    from agentic_iqa_local.vlm_client import VLMError

    try:
        settings = load_settings(args.config)
        if args.engine:
            settings = settings.with_engine(args.engine)
        if args.model:
            settings = settings.with_model(args.model)
        if args.fit:
            settings = with_fit(settings, args.fit)
        if args.mode:
            settings = settings.model_copy(update={"fusion": settings.fusion.model_copy(update={"mode": args.mode})})
        paths = expand_inputs(args.image or [])
        device = choose_device(args.gpu, args.cpu)
        return run(args, settings, paths, device, results)
    except (ConfigError, DeviceError, ImageError, VLMError, ToolError, CalibrationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the rows so far are written", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our stdout has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), results.fileno())
        return 0


def with_fit(settings, file: Path):
    """The temperature and η of a fit. Raises ConfigError where it is none, or of another model."""
    from agentic_iqa_local.config import ConfigError
    from agentic_iqa_local.studies.fitting import FitError, read_fit
    from agentic_iqa_local.studies.run import folder_hash

    try:
        fit = read_fit(file)
    except FitError as error:
        raise ConfigError(f"--fit {error}") from error
    folder = Path(settings.model(settings.summarizer.backend).path)
    if folder.is_dir() and folder_hash(folder) != fit.model:
        raise ConfigError(f"--fit {file}: expected a fit of the model in {folder}, it was made with another; fit it anew")
    changes = {"temperature": fit.temperature, "eta": fit.eta, "fitted": fit.letters.source}
    return settings.model_copy(update={"fusion": settings.fusion.model_copy(update=changes)})


def open_rows(path: str | None) -> TextIO | None:
    """The file for JSON lines, opened before anything is loaded. Ends the program when it cannot be written."""
    if path in (None, "-"):
        return None
    try:
        return open(path, "w", encoding="utf-8")
    except OSError as error:
        print(f"error: --json {path}: expected a file that can be written, got {error.strerror}; choose another", file=sys.stderr)
        raise SystemExit(2) from error


def run(args: argparse.Namespace, settings, paths: list[Path], device: str, results: TextIO) -> int:
    from tqdm import tqdm

    from agentic_iqa_local.report import account, summary, tool_table
    from agentic_iqa_local.services import Services

    services = Services(settings, device)
    if args.list_tools:
        print(tool_table(services.tools.info()), file=results)
        return 0
    file = open_rows(args.json)
    from transformers.utils import logging as transformers_logging

    from agentic_iqa_local.assessment import assess

    transformers_logging.disable_progress_bar()
    for role in ("planner", "executor", "summarizer"):
        services.client(role)
    services.tools.prepare()  # before any thread runs a model
    json_on_stdout = args.json == "-" or not results.isatty()
    text_to = sys.stderr if json_on_stdout else results
    failures = 0
    one = functools.partial(
        assess,
        reference=args.reference,
        query=args.query,
        choices=args.choices,
        pipeline=args.pipeline,
        max_replan_iterations=args.max_replan_iterations,
        services=services,
    )
    pool = ThreadPoolExecutor(args.jobs)
    try:
        rows = map(one, paths) if args.jobs == 1 else pool.map(one, paths)
        for row in tqdm(rows, total=len(paths), unit="image", file=sys.stderr, disable=len(paths) < 2):
            failures += row.error is not None
            line = row.model_dump_json(exclude={"evidence": {"tool_logs"}})
            if file:
                print(line, file=file, flush=True)
            if json_on_stdout:
                print(line, file=results, flush=True)
            if args.explain or not json_on_stdout:
                tqdm.write(account(row) if args.explain else summary(row), file=text_to)
            elif row.error:
                print(f"error: {row.error}", file=sys.stderr)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if file:
            file.close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
