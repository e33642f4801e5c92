"""What quantization does to the letters, and what each tool costs."""

import argparse
import ctypes
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.setup import environment, pictures, progress


def quantization(args: argparse.Namespace) -> dict:
    """Letters under 8-bit and 4-bit weights against the unquantised ones: log-probability differences and
    rank changes."""
    import numpy as np

    from agentic_iqa_local.config import ModelSettings
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.images.reading import load_image
    from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
    from agentic_iqa_local.state import LETTERS
    from agentic_iqa_local.studies.statistics import srcc
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    device = choose_device(args.gpu, args.gpu is None)
    reads: dict[str, list] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model.resolve()
        pairs = pictures(args.images, args.side, Path(scratch), "pictures")
        for kind in ("none", "8bit", "4bit"):
            progress(kind)
            settings = ModelSettings(
                path=str(folder), dtype="bfloat16", quantization=kind, max_pixels=args.side**2
            )
            client = TransformersClient(folder.name, settings, device)
            for pair in pairs:
                picture = load_image(str(pair[0])).pixels.crop(
                    (0, 0, min(args.side, 512), min(args.side, 512))
                )
                read = client.open([picture]).read_letters(prompt, ANSWER_PREFIX, LETTERS)
                reads.setdefault(kind, []).append(read.logprobs)
    rows = {}
    levels = {
        kind: [expected_level(letter_probabilities(read)) for read in found]
        for kind, found in reads.items()
    }
    for kind in ("8bit", "4bit"):
        both = list(zip(reads[kind], reads["none"], strict=True))
        gaps = [abs(a[x] - b[x]) for a, b in both for x in LETTERS]
        changed = sum(sorted(LETTERS, key=a.get) != sorted(LETTERS, key=b.get) for a, b in both)
        rows[kind] = {
            "max_logprob_difference": max(gaps),
            "mean_logprob_difference": statistics.mean(gaps),
            "pictures_whose_letters_change_order": changed,
            "srcc_of_expected_level": srcc(np.array(levels[kind]), np.array(levels["none"])),
        }
    return {
        "quantization": rows,
        "model": folder.name,
        "images": args.images,
        "environment": environment(args),
        "date": time.strftime("%Y-%m-%d"),
    }


def tools(args: argparse.Namespace) -> dict:
    """What each available tool takes: seconds (on a CPU: of its cores together, which other work on the
    machine does not stretch), and the rise of the process's (on a GPU: the card's) peak memory."""
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.iqa_tools import ToolRunner

    device = choose_device(args.gpu, args.gpu is None)
    rows: dict[str, dict[int, dict]] = {}
    # A process of its own for each: nothing that another tool left behind is counted, or hides what this one
    # takes.
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as processes:
        for info in ToolRunner(device=device).available(full_reference=True):
            progress(info.name)
            task = processes.submit(
                measure_tool, info.name, sorted(args.side), device, args.threads
            )
            rows[info.name] = task.result()
    return {
        "tools": rows,
        "threads": args.threads,
        "environment": environment(args),
        "date": time.strftime("%Y-%m-%d"),
    }


def measure_tool(name: str, sides: list[int], device: str, threads: int | None) -> dict[int, dict]:
    import numpy as np
    import torch
    from PIL import Image

    from agentic_iqa_local.iqa_tools import ToolError, ToolRunner

    if threads:
        torch.set_num_threads(threads)
    runner, rows = ToolRunner(device=device), {}
    with tempfile.TemporaryDirectory() as scratch:
        tiles = [
            Image.open(path).convert("RGB") for path in pictures(1, 384, Path(scratch), "tools")[0]
        ]
    runner.score(name, *tiles)  # builds it
    for side in sides:
        times = -(-side // 384)
        # Repeated rather than enlarged, which would leave nothing at the scale of pixels: VIF is then 0 / 0.
        test, reference = (
            Image.fromarray(np.tile(np.asarray(tile), (times, times, 1))[:side, :side])
            for tile in tiles
        )
        before, began = _memory(device, reset=True), time.process_time()
        try:
            reading = runner.score(name, test, reference)
        except ToolError as error:
            rows[side] = {"error": str(error)}
            continue
        seconds = time.process_time() - began if device == "cpu" else reading.seconds
        rows[side] = {
            "gib": (_memory(device) - before) / 2**30,
            "seconds": seconds,
            "crops": len(reading.crops),
        }
    return rows


def _memory(device: str, reset: bool = False) -> int:
    """Bytes in use at the peak since the last reset; with `reset`, the bytes in use now."""
    import torch

    if device.startswith("cuda"):
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    if reset:
        # glibc: memory that one picture freed would hide what the next takes
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # Linux: the high-water mark becomes what is in use
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
