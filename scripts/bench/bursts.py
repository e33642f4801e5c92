"""Measures which frame of a burst `best` keeps: 40 made bursts of five of photographs that nothing was trained on,
each plain, with a shallow focus, and as five re-encodings of one frame.

    python scripts/bench/bursts.py PHOTOS_MORE --work runs/bursts [--groups 40]

Rows are kept in --work. The bars: the sharp frame first in 90 % (shallow focus 85 %), undecided in at most 5 %;
re-encodings undecided.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from bursts import EXPOSED, KINDS, SEED, measured
from synthetic import load_tiles, photo_files

from agentic_iqa_local.judgement import burst
from agentic_iqa_local.judgement.keeper import SURE
from agentic_iqa_local.judgement.preference import sigmoid


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, metavar="PHOTOS_MORE")
    parser.add_argument("--groups", type=int, default=40, help="of each kind")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is measured")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    files = photo_files(args.photos)
    order = np.random.default_rng(SEED).permutation(len(files))[: args.groups]
    tiles = [load_tiles([files[i]])[0] for i in order]
    weights = burst.load_fit().weights
    counts = {kind: Counter() for kind in (*KINDS, *EXPOSED)}
    taken = Counter()
    bursts = [*measured(tiles, KINDS, args.work / "held_out.jsonl")]
    bursts += measured(tiles, EXPOSED, args.work / "held_out_exposed.jsonl")
    for kind, names, measures in bursts:
        strength = burst.strengths(measures, weights)
        first, second = np.argsort(-strength)[:2]
        sure = sigmoid(float(strength[first] - strength[second])) >= SURE
        counts[kind]["undecided" if not sure else "kept"] += 1
        counts[kind]["sharp frame first"] += first == 0
        if sure and first and kind != "same":
            taken[names[first]] += 1
    for kind, found in counts.items():
        print(f"{kind}: {dict(found)}")
    print(f"kept in place of the sharp frame: {dict(taken)}")


if __name__ == "__main__":
    main()
