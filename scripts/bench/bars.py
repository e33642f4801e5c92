"""The ratios within one run of the benchmark, each with its bar."""

from collections.abc import Iterator

from bench.runs import BOUNDS

Rows = dict[tuple[str, str], dict]  # by program and arm
# program agent_nr, shared against naive: what is compared, its key, and the largest ratio that passes
SAVINGS = (
    ("prefilled tokens", "prefilled", 0.40),
    ("prefill seconds", "prefill_seconds", 0.45),
    ("decoded tokens", "decoded", 0.60),
)


def bars(found: dict) -> Iterator[str]:
    """A line for each ratio of a result of `run`; void arms are left out."""
    rows: Rows = {(r["program"], r["arm"]): r for r in found["rows"] if not r["void"]}
    yield from _agent(rows)
    yield from _reads(rows, found["bare_forward"])
    gap = max(row["letter_gap"] for row in found["rows"])
    yield _line("largest difference of the arms' letters", gap, BOUNDS[found["dtype"]])


def _line(what: str, ratio: float, most: float) -> str:
    return f"{what}: {ratio:.3g} (at most {most:g}: {'holds' if ratio <= most else 'misses'})"


def _agent(rows: Rows) -> Iterator[str]:
    """What sharing the image prefix saves the whole agent."""
    naive, shared = (rows.get(("agent_nr", arm)) for arm in ("naive", "shared"))
    if naive and shared:
        for what, key, most in SAVINGS:
            yield _line(f"agent_nr, shared / naive: {what}", shared[key] / naive[key], most)
        yield _line(
            "agent_nr, naive / shared: images a second",
            naive["images_per_second"] / shared["images_per_second"],
            0.5,
        )


def _reads(rows: Rows, bare: dict | None) -> Iterator[str]:
    """What reading letters costs."""
    for program in ("letters_twice", "questions"):
        for arm in ("shared", "vllm"):
            if row := rows.get((program, arm)):
                ratio = row["later_reads"] / row["first_read"]
                yield _line(
                    f"{program}, {arm}: seconds of an added read / of the first", ratio, 0.25
                )
    if bare:
        yield _line(
            "a letter read / the bare forward pass: seconds",
            bare["read_seconds"] / bare["bare_seconds"],
            1.1,
        )
