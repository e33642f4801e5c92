"""Programs on every engine, in turns: seconds, counted work and letters, and cold starts."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from agentic_iqa_local.files import ROOT
from bench.setup import build, environment, pictures, progress, services_of

PROGRAMS = ("letters", "letters_twice", "agent_nr", "agent_fr", "questions")
# of the letters' log-probabilities between engines
BOUNDS = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
QUESTIONS = [
    ("Is the picture sharp?", ["Yes", "No"]),
    ("Is there noise?", ["Yes", "No"]),
    ("Which distortion is the strongest?", ["Blurs", "Noise", "Compression", "None"]),
    ("How bright is the picture?", ["Too dark", "Right", "Too bright"]),
    ("Are there blocks or rings?", ["Yes", "No"]),
]


def run_program(program: str, pair: tuple[Path, Path], services) -> dict:
    """One picture through one program: counted work, seconds and the letters read."""
    from agentic_iqa_local.judgement.assessment import assess
    from agentic_iqa_local.nodes.prompts import (
        ANSWER_PREFIX,
        DEFAULT_QUERY,
        choice_letters,
        summarizer_prompt,
    )
    from agentic_iqa_local.nodes.workbench import Workbench
    from agentic_iqa_local.state import LETTERS

    began = time.perf_counter()
    if program.startswith("agent"):
        row = assess(pair[0], pair[1] if program == "agent_fr" else None, services=services)
        if row.error:
            raise RuntimeError(row.error)
        tools = sum(t.execution_time for t in row.tools)
        reads, usage = [row.fusion and row.fusion.p_c], asdict(row.tokens) if row.tokens else {}
    else:
        bench = Workbench(services, str(pair[0]))
        session, tools, reads = bench.models.session("summarizer"), 0.0, []
        asked = [(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), LETTERS)]
        if program == "letters_twice":
            asked.append(
                (
                    summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True),
                    LETTERS,
                )
            )
        elif program == "questions":
            asked = [
                (summarizer_prompt(q, None, scoring=False, choices=c), choice_letters(c))
                for q, c in QUESTIONS
            ]
        each = []
        for prompt, letters in asked:
            start = time.perf_counter()
            reads.append(session.read_letters(prompt, ANSWER_PREFIX, letters).logprobs)
            each.append(time.perf_counter() - start)
        usage = asdict(bench.models.usage) | {
            "first_read": each[0],
            "later_reads": statistics.mean(each[1:]) if each[1:] else None,
        }
        bench.close()
    return {
        "seconds": time.perf_counter() - began,
        "tool_seconds": tools,
        "letters": reads,
        **usage,
    }


def run(args: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        folder = (
            build(args.build, Path(scratch) / args.build) if args.build else args.model.resolve()
        )
        result = {
            "model": args.build or folder.name,
            "side": args.side,
            "images": args.images,
            "date": time.strftime("%Y-%m-%d"),
            "environment": environment(args),
            "cold": {engine: cold_start(engine, args, folder) for engine in args.engines},
            "rows": [],
        }
        engines, tools = {}, None
        for engine in args.engines:
            engines[engine] = services_of(engine, args, folder, tools)
            tools = engines[engine].tools
        result["dtype"] = engines[args.engines[0]].client("summarizer").describe()["dtype"]
        bound = BOUNDS[result["dtype"]]
        for program in args.programs:
            result["rows"] += _measured(program, engines, args, Path(scratch), bound)
        result["bare_forward"] = bare_forward(
            engines, pictures(args.images, args.side, Path(scratch), "bare"), args
        )
        for services in engines.values():
            services.client("summarizer").close()
    return result


def _measured(
    program: str, engines: dict, args: argparse.Namespace, scratch: Path, bound: float
) -> list[dict]:
    """A row of one program for each engine; the engines take turns, picture by picture, once each has run it on a small
    one."""
    (warm,) = pictures(1, args.side // 2, scratch, f"{program}/warm")
    for services in engines.values():
        run_program(program, warm, services)
    found: dict[str, list[dict]] = {engine: [] for engine in engines}
    for pair in pictures(args.images, args.side, scratch, f"{program}/measured"):
        for engine, services in engines.items():
            progress(f"{program}, {engine}")
            found[engine].append(run_program(program, pair, services))
    first, out = next(iter(found.values())), []
    for engine, rows in found.items():
        gap = max(_gap(one, other) for one, other in zip(rows, first, strict=True))
        seconds = [row["seconds"] for row in rows]
        means = [
            key for key in rows[0] if key not in ("seconds", "letters") and rows[0][key] is not None
        ]
        row = {
            "program": program,
            "engine": engine,
            "images": len(rows),
            "median_seconds": statistics.median(seconds),
        }
        row |= {"images_per_second": len(rows) / sum(seconds)}
        row |= {key: statistics.mean(row[key] for row in rows) for key in means}
        out.append(row | {"letter_gap": gap, "void": gap > bound})
    return out


def _gap(one: dict, other: dict) -> float:
    """Largest difference of the letters' log-probabilities (the agent: of the probabilities) of the same picture."""
    return max(
        abs(a[letter] - b[letter])
        for a, b in zip(one["letters"], other["letters"], strict=True)
        for letter in a
    )


def bare_forward(engines: dict, pairs: list, args: argparse.Namespace) -> dict | None:
    """A letter read on a fresh session against the bare pass of processor's inputs through the model, taking turns."""
    import torch

    from agentic_iqa_local.images.reading import load_image
    from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.state import LETTERS

    if "transformers" not in engines:
        return None
    client = engines["transformers"].client("summarizer")
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    bare, read = [], []
    for pair in pairs:
        picture = load_image(str(pair[0])).pixels.crop(
            (0, 0, min(args.side, 512), min(args.side, 512))
        )
        rendered = client.renderer.render(prompt, 1, ANSWER_PREFIX)
        began = time.perf_counter()
        batch = client.renderer.processor(
            text=[rendered.text], images=[picture], return_tensors="pt"
        ).to(client.device)
        with torch.inference_mode(), client.lock:
            if hasattr(client.model.model, "rope_deltas"):
                client.model.model.rope_deltas = None
            client.model(**batch, logits_to_keep=1).logits.cpu()
        bare.append(time.perf_counter() - began)
        began = time.perf_counter()
        session = client.open([picture])
        session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
        session.close()
        read.append(time.perf_counter() - began)
    return {"bare_seconds": statistics.median(bare), "read_seconds": statistics.median(read)}


def cold_start(engine: str, args: argparse.Namespace, folder: Path) -> dict:
    """Seconds from the start of a process to its first letters, and its peak memory."""
    progress(f"cold start, {engine}")
    command = [
        sys.executable,
        str(ROOT / "scripts" / "bench.py"),
        "cold",
        "--engine",
        engine,
        "--model",
        str(folder),
    ]
    command += [
        "--side",
        str(args.side),
        "--dtype",
        args.dtype,
        *(["--gpu", args.gpu] if args.gpu else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cold start of {engine} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cold(args: argparse.Namespace) -> dict:
    import resource

    began = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        services = services_of(args.engine, args, args.model)
        run_program("letters", pictures(1, args.side, Path(scratch), "cold")[0], services)
    import torch

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {"seconds": time.time() - began, "peak_memory_gib": peak}
    if args.gpu:
        found["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated(services.device) / 2**30
    services.client("summarizer").close()
    return found
