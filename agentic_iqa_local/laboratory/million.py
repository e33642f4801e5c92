"""Do a million rows go through the driver? A stand-in of the model's cost shape (it waits, and computes
nothing) answers in the real process and window of a batch; its rows, as long as a real one, go into real
files of rows; shards are merged and compared row by row.

examples:
  python -m agentic_iqa_local.laboratory.million --row rows.jsonl --folder new/ --out rows.json
  python -m agentic_iqa_local.laboratory.million --row rows.jsonl --folder new/ --shards 64

The first line of --row, which assess wrote, is the pattern of every row. The folder needs 5 kB for each row,
twice that with shards.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.batch_worker import BatchWorker
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.merging import merge
from agentic_iqa_local.batch.rows import write_whole
from agentic_iqa_local.batch.runs import Results
from agentic_iqa_local.batch.shards import Shard, Share, digest_of
from agentic_iqa_local.batch.stored_row import as_line
from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.config import Settings
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.provenance import machine
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services

LEAST_RATE = 2000.0  # rows a second, the bar
MOST_GROWTH = 64.0  # MiB from a tenth of the rows on, the bar for "flat": 10^6 keys take 16 of them
LOOKS = 50  # at the memory
FAILS = 1000  # one picture of so many is a failure


@dataclass(frozen=True)
class StandIn(Assessing):
    """Rows like `pattern` after waits like a model server's: their median is `wait` seconds, one in a hundred
    is three times as long. What a row says follows from the picture's name alone."""

    pattern: str = ""
    wait: float = 0.03

    def row(self, item: Item, services: Services | None, observer: Observer | None) -> Assessment:
        seed = int.from_bytes(hashlib.sha256(item.key.encode()).digest()[:8], "big")
        if services is not None:
            time.sleep(self.wait * random.Random(seed).lognormvariate(0.0, 0.47))  # e^(2.33 · 0.47) = 3
        if seed % FAILS == 0:
            return self.failure(item, "RuntimeError: the stand-in fails here")
        row = _read(self.pattern).model_copy()
        row.image, row.q = str(item.image), 1 + seed % 4001 / 1000
        row.sha256 = f"{seed:064x}"
        return row


def _read(pattern: str, kept: dict[str, Assessment] = {}) -> Assessment:  # noqa: B006 # each process reads it once
    if pattern not in kept:
        kept[pattern] = Assessment.model_validate_json(pattern)
    return kept[pattern]


def items(places: range) -> Iterator[Item]:
    for place in places:
        yield Item(Path(f"/data/pictures/{place // 10_000:05}/{place:09}.jpg"))


def resident(process: int | str) -> float:
    """MiB of memory that a process has resident."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def processor_seconds(process: int | str) -> float:
    """Seconds of a processor that a process has used, in all its threads."""
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


class Driver:
    """Runs shards one after the other in one process of a batch, and looks at the memory."""

    def __init__(self, work: StandIn, folder: Path, rows: int, jobs: int):
        self.work, self.folder, self.rows = work, folder, rows
        self.batch: BatchWorker[Item, Assessment] = BatchWorker(work, "cpu", jobs=jobs, stays=True)
        self.memory: list[dict[str, float]] = []
        self.written, self.seconds = 0, 0.0

    def run(self, shard: Shard, digest: str) -> Path:
        """The file of a shard's rows."""
        places = shard.places(self.rows)
        share = Share(shard, list(items(places)) if shard.of > 1 else [], self.rows, digest)
        path = shard.file(self.folder / "rows.jsonl")
        began = time.perf_counter()
        results = Results(path, {"model": "stand-in", "shard": share.identity()})
        if shard.of > 1:
            share.write_list(path)
        for row in self.batch.rows(results.begun(share.items or items(places)), results.suspects):
            results.append(row, self.batch.line)
            self.written += 1
            if self.written % max(1, self.rows // LOOKS) == 0:
                self._look(began)
        results.close()
        self.seconds += time.perf_counter() - began
        return path

    def _look(self, began: float) -> None:
        worker = self.batch._worker
        assert worker is not None
        look = {
            "rows": self.written,
            "seconds": round(self.seconds + time.perf_counter() - began, 1),
            "driver_mib": round(resident("self"), 1),
            "process_mib": round(resident(worker._process.pid or 0), 1),
            "driver_cpu_seconds": round(processor_seconds("self"), 1),
            "process_cpu_seconds": round(processor_seconds(worker._process.pid or 0), 1),
        }
        self.memory.append(look)
        print(json.dumps(look), file=sys.stderr, flush=True)


def check(merged: Path, work: StandIn, rows: int) -> int:
    """Rows of a merged file that are not, byte for byte, what the stand-in says of the picture in their
    place, and those that lack or are too many."""
    wrong = 0
    with merged.open() as file:
        for item, line in zip(items(range(rows)), file, strict=False):
            wrong += line != as_line(work.row(item, None, None)) + "\n"
    with merged.open("rb") as file:
        count = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(2**20), b""))
    return wrong + abs(count - rows)


def simulate(pattern: str, folder: Path, *, rows: int, shards: int, jobs: int, wait: float) -> dict[str, Any]:
    """What the run found; the folder is empty again afterwards."""
    folder.mkdir(parents=True)
    pattern = Assessment.model_validate_json(pattern).model_dump_json()
    work = StandIn(Settings(), "agent", pattern=pattern, wait=wait)
    digest = digest_of(item.key for item in items(range(rows))).hexdigest()
    driver = Driver(work, folder, rows, jobs)
    try:
        files = [driver.run(Shard(part, shards), digest) for part in range(1, shards + 1)]
        driver.batch.end()
        size = sum(path.stat().st_size for path in files)
        early = next(look for look in driver.memory if look["rows"] >= rows / 10)
        growth = max(look["driver_mib"] for look in driver.memory) - early["driver_mib"]
        rate = driver.written / driver.seconds
        found = {
            "rows": rows,
            "shards": shards,
            "in_flight": jobs,
            "wait_seconds": wait,
            "bytes_a_row": round(size / rows),
            "rows_written": driver.written,
            "seconds": round(driver.seconds, 1),
            "rows_a_second": round(rate),
            "driver_growth_mib": round(growth, 1),
            "holds": {"rate": rate >= LEAST_RATE, "memory": growth <= MOST_GROWTH},
            "memory": driver.memory,
        }
        if shards > 1:
            began, before = time.perf_counter(), resident("self")
            merged = merge(files, folder / "merged.jsonl")
            seconds = time.perf_counter() - began
            found["merge"] = {
                "rows": merged.rows,
                "failed": merged.failed,
                "seconds": round(seconds, 1),
                "rows_a_second": round(merged.rows / seconds),
                "growth_mib": round(resident("self") - before, 1),
                "rows_that_differ": check(folder / "merged.jsonl", work, rows),
            }
            found["holds"]["merge"] = merged.rows == rows and found["merge"]["rows_that_differ"] == 0
        return found
    finally:
        driver.batch.end()
        shutil.rmtree(folder)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", type=Path, required=True, metavar="FILE", help="rows that assess wrote")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="a new folder for the rows")
    parser.add_argument("--rows", type=int, default=10**6, metavar="N", help="default: 1000000")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 64], metavar="N", help="default: 1 64")
    parser.add_argument(
        "--jobs", type=int, default=128, metavar="N", help="pictures in flight (default: 128)"
    )
    parser.add_argument(
        "--wait", type=float, default=0.03, metavar="S", help="of the stand-in (default: 0.03)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the result as JSON")
    args = parser.parse_args(argv)
    pattern = args.row.read_text(encoding="utf-8").splitlines()[0]
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "environment": machine(("pydantic",)),
        "runs": [],
    }
    for shards in args.shards:
        options = {"rows": args.rows, "shards": shards, "jobs": args.jobs, "wait": args.wait}
        result["runs"].append(simulate(pattern, args.folder, **options))
        if args.out:
            write_whole(args.out, json.dumps(result, indent=1))
        print(json.dumps({k: v for k, v in result["runs"][-1].items() if k != "memory"}))
    return int(not all(all(run["holds"].values()) for run in result["runs"]))


if __name__ == "__main__":
    sys.exit(main())
