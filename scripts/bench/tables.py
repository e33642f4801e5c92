"""The tables of docs/performance.md."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.runs import BOUNDS, PROGRAMS
from bench.setup import ARMS, PACKAGES

MAP_BAR = 4  # times the seconds of a plain assessment by the pipeline letters
PLANNED = {  # result files that the table lists as not run while they are missing
    "gpu_embedded.json": "run --gpu 0",
    "gpu_3b.json": "run --gpu 0 --build 3B --arms naive shared",
    "gpu_7b.json": "run --gpu 0 --build 7B --arms naive shared",
    "gpu_quantization.json": "quantization --gpu 0 --model models/Qwen2.5-VL-7B-Instruct",
    "gpu_tools.json": "tools --gpu 0 --side 1024 2048 4096",
}


def tables(folder: Path) -> str:
    """Markdown of every committed result file, and of those that are missing."""
    kinds = {
        "rows": _run_table,
        "quantization": _quantization_table,
        "tools": _tool_table,
        "maps": _map_table,
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


Bar = tuple[str, float, str, bool | None]  # what, ratio, the bar, and whether it holds; None: cannot be shown
Rows = dict[tuple[str, str, int], dict]  # by program, arm and number in flight


def _bars(found: dict) -> list[Bar]:
    rows = {(r["program"], r["arm"], r["in_flight"]): r for r in found["rows"] if not r["void"]}
    return [
        *_agent_bars(rows, found["cold"]),
        *_read_bars(rows, found["bare_forward"]),
        *_tool_bars(rows, found),
    ]


def _agent_bars(rows: Rows, arms: Iterable[str]) -> Iterator[Bar]:
    """What the whole agent saves."""
    naive, shared = (rows.get(("agent_nr", arm, 1)) for arm in ("naive", "shared"))
    if not (naive and shared):
        return
    for what, key, bar in (
        ("prefilled tokens", "prefilled", 0.40),
        ("prefill seconds", "prefill_seconds", 0.45),
        ("decoded tokens", "decoded", 0.60),
    ):
        ratio = shared[key] / naive[key]
        yield f"agent_nr, shared / naive: {what}", ratio, f"≤ {bar:.2f}", ratio <= bar
    speed = {
        arm: max(
            r["images_per_second"]
            for (program, of, _), r in rows.items()
            if (program, of) == ("agent_nr", arm)
        )
        for arm in arms
        if ("agent_nr", arm, 1) in rows
    }
    best = max(speed, key=lambda arm: speed[arm])
    ratio = speed[best] / speed["naive"]
    what = f"agent_nr, {best} / naive: images a second, each at its best number in flight"
    yield what, ratio, "≥ 2", ratio >= 2


def _read_bars(rows: Rows, bare: dict | None) -> Iterator[Bar]:
    """What reading letters costs."""
    for program in ("letters_twice", "questions"):
        for arm in ("shared", "vllm"):
            if row := rows.get((program, arm, 1)):
                ratio = row["later_reads"] / row["first_read"]
                what = f"{program}, {arm}: seconds of an added read / of the first"
                yield what, ratio, "≤ 0.25", ratio <= 0.25
    if bare:
        ratio = bare["read_seconds"] / bare["bare_seconds"]
        yield "a letter read / the bare forward pass: seconds", ratio, "≤ 1.1", ratio <= 1.1


def _tool_bars(rows: Rows, found: dict) -> Iterator[Bar]:
    """What the tools add; only a GPU can show that it is little."""
    on_gpu = found["environment"]["device"]["device"].startswith("cuda")
    for arm in found["cold"]:
        whole, scored = (rows.get((program, arm, 1)) for program in ("agent_nr", "agent_scored"))
        if whole and scored:
            ratio = whole["median_seconds"] / scored["median_seconds"]
            holds = ratio <= 1.1 if on_gpu else None
            yield f"agent_nr / agent_scored, {arm}: median seconds", ratio, "≤ 1.1", holds


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


def _map_table(found: dict) -> str:
    lines = [
        "| pixels a side | tiles | plain assessment, s | map, s | ratio | tokens, plain | tokens, map |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["maps"]:
        tiles = f"{row['tiles']} of {row['tile']}×{row['tile']}"
        lines.append(
            f"| {found['side']} | {tiles} | {row['plain_seconds']:.2f} | {row['map_seconds']:.2f} |"
            f" {row['ratio']:.2f} | {row['plain_tokens']} | {row['map_tokens']} |"
        )
    verdict = _verdict(found["median_ratio"] <= MAP_BAR)
    lines += ["", f"Median of map / plain: {found['median_ratio']:.2f}, bar ≤ {MAP_BAR}: {verdict}."]
    if found["environment"]["device"].get("device") == "cpu":
        lines[-1] += f" Of the processor's own seconds: {found['median_processor_ratio']:.2f}."
    return "\n".join([*lines, ""])


def _verdict(holds: bool) -> str:
    return "holds" if holds else "misses"
