#!/usr/bin/env python
"""Trains, evaluates and saves the small VLM of models/tiny, on which the tests run.

    python scripts/train_embedded_vlm.py train --photos PHOTOS --work runs/tiny
    python scripts/train_embedded_vlm.py evaluate --photos PHOTOS --model models/tiny

Training first makes a pool of distorted photographs with their pseudo-MOS, then has three phases, each resumed from its
checkpoint in --work when it is interrupted: the vision tower alone; the language model on the pipeline's own prompts; and all
together. --photos is a folder of clean photographs; 40 of them, chosen by a fixed seed, are held out and never trained on. About
20 + 45 + 65 + 15 minutes on two CPU cores; a GPU is used with --device cuda. The model card is written by evaluate --write.
"""

import argparse
import json
import logging
import sys
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.commands.console import Parser, safe_streams
from agentic_iqa_local.text import one_line


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train all phases and save the model folder")
    train.add_argument("--photos", type=Path, required=True, help="folder of clean photographs (png, webp, jpg)")
    train.add_argument("--more-photos", type=Path, nargs="+", default=[], help="further folders, none of them held out")
    train.add_argument("--sources", default="not named", help="what the photographs are and their licences, for the model card")
    train.add_argument("--notes", default="", help="what else the model card should say of this training")
    train.add_argument("--work", type=Path, required=True, help="folder for the pool, checkpoints and the training curve")
    train.add_argument("--out", type=Path, default=Path("models/tiny"), help="model folder to write (default: %(default)s)")
    train.add_argument("--vision-from", type=Path, help="model folder whose vision tower to start from (default: afresh)")
    train.add_argument("--pool", type=int, default=5600, help="distorted photographs to make (default: %(default)s)")
    train.add_argument("--varied-pool", type=int, default=8000, help="as many of varied photographs (default: %(default)s)")
    train.add_argument("--vision-steps", type=int, default=7200, help="steps of the first phase (default: %(default)s)")
    train.add_argument("--language-steps", type=int, default=2200, help="steps of the second phase (default: %(default)s)")
    train.add_argument("--joint-steps", type=int, default=400, help="steps of the third phase (default: %(default)s)")
    train.add_argument("--tokens", type=int, default=1200, help="image tokens a step in the first phase (default: %(default)s)")
    train.add_argument("--language-tokens", type=int, default=900, help="the same in the later phases (default: %(default)s)")
    train.add_argument("--planning-share", type=float, default=0.5, help="of the later phases' steps (default: %(default)s)")
    train.add_argument("--seed", type=int, default=1, help="seed of initialisation and data (default: %(default)s)")
    train.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    train.add_argument("--compile", action="store_true", help="compile the layers: a minute at the start, then a sixth faster")
    train.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    test = commands.add_parser("evaluate", help="measure a model folder on the fixed test set")
    test.add_argument("--photos", type=Path, required=True, help="the folder that training used")
    test.add_argument("--model", type=Path, default=Path("models/tiny"), help="model folder (default: %(default)s)")
    test.add_argument(
        "--queries",
        type=Path,
        default=Path("tests/data/planner_queries.jsonl"),
        help="queries with their plans (default: %(default)s)",
    )
    test.add_argument(
        "--parts",
        nargs="+",
        choices=["synthetic", "plans", "free"],
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
        help="also check against MOS: folders with a manifest.csv (image, mos, distortion); each look is logged in the record",
    )
    test.add_argument("--write", action="store_true", help="write evaluation.json and the model card into the model folder")
    test.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    return parser.parse_args(argv)


def train(args: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from torch import nn
    from transformers import AutoTokenizer

    from agentic_iqa_local.levels import LETTERS
    from agentic_iqa_local.training.card import weights_hash, write_training
    from agentic_iqa_local.training.data import build_pool, photo_files, split_photos
    from agentic_iqa_local.training.embedded import (
        build_model,
        build_processor,
        build_tokenizer,
        load_vision,
        look_back_circuit,
        quiet_outputs,
        save_model,
    )
    from agentic_iqa_local.training.language import language_batches, language_losses, read_fast_on_cpu
    from agentic_iqa_local.training.roles import corpus
    from agentic_iqa_local.training.vision import VisionHeads, run_phase, train_fast_on_cpu, vision_batches, vision_losses

    args.work.mkdir(parents=True, exist_ok=True)
    training, held_out = split_photos(args.photos)
    training += [file for folder in args.more_photos for file in photo_files(folder)]
    logging.info("%d photographs to train on, %d held out", len(training), len(held_out))
    pool = build_pool(training, args.work / "pool", args.pool, args.varied_pool, args.seed, args.threads)
    saved = args.work / "tokenizer"  # a resumed run keeps its token ids, whatever has changed in the prompts since
    if not saved.exists():
        build_tokenizer(corpus(args.seed), vocab_size=4096).save_pretrained(saved)
    tokenizer = AutoTokenizer.from_pretrained(saved, local_files_only=True)  # nosec B615 # a local folder
    processor = build_processor(tokenizer)
    torch.set_num_threads(args.threads)
    model = build_model(tokenizer, args.seed)
    if args.vision_from:
        load_vision(model, args.vision_from)
    model.to(args.device)
    if args.device == "cpu":
        train_fast_on_cpu(model.model.visual)
        read_fast_on_cpu(model)
    if args.compile:
        torch._dynamo.config.recompile_limit = 64  # every layer with and without a cache
        for layer in (*model.model.visual.blocks, *model.model.language_model.layers):
            layer.compile(dynamic=True)
    heads = VisionHeads(model.config.text_config.hidden_size).to(args.device)
    letter_ids = torch.tensor([tokenizer.convert_tokens_to_ids(letter) for letter in "ABCDEFGHIJ"], device=args.device)
    assert tokenizer.unk_token_id not in letter_ids[: len(LETTERS)]
    curve = args.work / "curve.jsonl"

    def log(figures: dict) -> None:
        print(json.dumps(figures), flush=True)
        with curve.open("a") as file:
            file.write(json.dumps(figures) + "\n")

    visual = nn.ModuleDict({"visual": model.model.visual, "heads": heads})
    run_phase(
        name="vision",
        groups=[(visual, 8e-4)],
        batches=vision_batches(pool, processor, args.tokens, args.seed),
        losses=vision_losses(model.model.visual, heads),
        steps=args.vision_steps,
        checkpoint=args.work / "vision.pt",
        log=log,
    )
    # An untrained language model's gradients would undo what the vision tower has learned: it waits.
    language = nn.ModuleDict({"language": model.model.language_model})
    look_back_circuit(model).requires_grad_(False)
    run_phase(
        name="language",
        groups=[(language, 2e-3)],
        batches=language_batches(pool, processor, args.language_tokens, args.seed, 1, args.planning_share),
        losses=language_losses(model, heads, letter_ids, frozen_vision=True),
        steps=args.language_steps,
        checkpoint=args.work / "language.pt",
        log=log,
        floor=0.2,
        slower=quiet_outputs,
    )
    look_back_circuit(model).requires_grad_(True)
    run_phase(
        name="joint",
        groups=[(visual, 1e-4), (language, 4e-4)],
        batches=language_batches(pool, processor, args.language_tokens, args.seed, 2, args.planning_share),
        losses=language_losses(model, heads, letter_ids, frozen_vision=False),
        steps=args.joint_steps,
        checkpoint=args.work / "joint.pt",
        log=log,
        slower=quiet_outputs,
    )
    save_model(model.cpu(), processor, args.out)
    photographs = {
        "training": len(training),
        "tiles": len(np.load(args.work / "pool" / "tiles.npy", mmap_mode="r")),
        "held_out": len(held_out),
        "sources": args.sources,
    }
    start = "The vision tower started afresh."
    if args.vision_from:
        start = f"The vision tower started from that of a model with weights SHA-256 {weights_hash(args.vision_from)[:12]}."
    notes = " ".join([start, *([args.notes] if args.notes else [])])
    kept = (
        "pool",
        "varied_pool",
        "vision_steps",
        "language_steps",
        "joint_steps",
        "tokens",
        "language_tokens",
        "planning_share",
        "seed",
    )
    rows = [json.loads(line) for line in curve.read_text(encoding="utf-8").splitlines()]
    write_training(args.out, {name: getattr(args, name) for name in kept}, photographs, rows, args.threads, notes)
    print(one_line(f"saved {args.out}"))


def evaluate(args: argparse.Namespace) -> None:
    from agentic_iqa_local.api import IQA
    from agentic_iqa_local.config import ModelSettings
    from agentic_iqa_local.training import evaluate as measure
    from agentic_iqa_local.training.card import weights_hash, write_card
    from agentic_iqa_local.training.data import load_tiles, split_photos
    from agentic_iqa_local.training.free_questions import asked, load_questions
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

    def progress(what: str, done: int, total: int) -> None:
        if done % 20 == 0 or done == total:
            print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)

    digest = weights_hash(args.model)
    found, looks = {}, []
    parts = args.parts or ["synthetic", "plans", "free"]
    _, held_out = split_photos(args.photos)
    if "free" in parts:  # as a user asks: the whole set-up, which frees its model before the other parts load theirs
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
    for folder in args.human_scores:
        figure = measure.human_scores(client, folder, progress)
        found.setdefault("human_scores", {})[folder.name] = {"figure": figure}
        looks.append({"date": str(date.today()), "set": folder.name, "srcc": figure["srcc"]["value"], "weights_sha256": digest})
    print(json.dumps(found, indent=1))
    if not args.write:
        return
    record = args.model / "evaluation.json"
    old = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    looks = old.get("looks", []) + looks
    kept = old if old.get("weights_sha256") == digest else {}
    human = kept.get("human_scores", {}) | found.get("human_scores", {})
    figures = kept | found | {"weights_sha256": digest, "human_scores": human, "looks": looks}
    record.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if {"synthetic", "plans"} <= figures.keys() and (args.model / "training.json").exists():
        write_card(args.model)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    {"train": train, "evaluate": evaluate}[args.command](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
