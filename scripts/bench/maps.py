"""What a map costs beside one plain assessment of the same picture."""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from bench.setup import environment, pictures, progress


def maps(args: argparse.Namespace) -> dict:
    """Seconds of the pipeline letters with and without a map, picture by picture in turns, and their ratio."""
    from agentic_iqa_local.api import choose_settings
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.judgement.assessment import assess
    from agentic_iqa_local.services import Services

    settings = choose_settings(model=str(args.model.resolve()))
    services = Services(settings, choose_device(args.gpu, args.gpu is None))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        files = [
            str(pair[0]) for pair in pictures(args.images, args.side, Path(scratch), "pictures")
        ]
        assess(files[0], pipeline="letters", services=services)  # loads model and tools
        for number, file in enumerate(files, 1):
            progress(f"maps: {number} of {len(files)}")
            clock = [time.process_time()]
            plain = assess(file, pipeline="letters", services=services)
            clock.append(time.process_time())
            mapped = assess(file, pipeline="letters", map=True, services=services)
            clock.append(time.process_time())
            if plain.error or mapped.map is None or plain.tokens is None:
                raise RuntimeError(f"{file}: {plain.error or mapped.error or mapped.no_map}")
            cost = mapped.map.cost
            row = {
                "plain_seconds": plain.seconds,
                "map_seconds": cost.seconds,
                "ratio": cost.seconds / plain.seconds,
            }
            # of the processor, which other work on the machine does not stretch
            row |= {
                "processor_ratio": (clock[2] - clock[1]) / (clock[1] - clock[0]) - 1,
                "tiles": cost.tiles,
            }
            row |= {
                "tile": mapped.map.tile,
                "plain_tokens": plain.tokens.prefilled,
                "map_tokens": cost.tokens,
            }
            rows.append(row)
    return {
        "maps": rows,
        "median_ratio": statistics.median(row["ratio"] for row in rows),
        "median_processor_ratio": statistics.median(row["processor_ratio"] for row in rows),
        "model": f"maps, {args.model.name}",
        "side": args.side,
        "environment": environment(args),
        "date": time.strftime("%Y-%m-%d"),
    }
