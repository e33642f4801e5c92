"""The ratios within one run of the benchmark, each with its bar."""

from collections.abc import Iterator

from bench.runs import BOUNDS
from bench.setup import ENGINES

Rows = dict[tuple[str, str], dict]  # by program and engine


def bars(found: dict) -> Iterator[str]:
    """A line for each ratio of a result of `run`; void rows are left out."""
    rows: Rows = {(r["program"], r["engine"]): r for r in found["rows"] if not r["void"]}
    yield from _reads(rows, found["bare_forward"])
    gap = max(row["letter_gap"] for row in found["rows"])
    yield _line("largest difference of the engines' letters", gap, BOUNDS[found["dtype"]])


def _line(what: str, ratio: float, most: float) -> str:
    return f"{what}: {ratio:.3g} (at most {most:g}: {'holds' if ratio <= most else 'misses'})"


def _reads(rows: Rows, bare: dict | None) -> Iterator[str]:
    """What reading letters costs."""
    for program in ("letters_twice", "questions"):
        for engine in ENGINES:
            if row := rows.get((program, engine)):
                ratio = row["later_reads"] / row["first_read"]
                yield _line(
                    f"{program}, {engine}: seconds of an added read / of the first", ratio, 0.25
                )
    if bare:
        yield _line(
            "a letter read / the bare forward pass: seconds",
            bare["read_seconds"] / bare["bare_seconds"],
            1.1,
        )
