#!/usr/bin/env python
"""Trains, evaluates and saves the small embedded VLM of models/embedded.

    python scripts/train_embedded_vlm.py train --photos PHOTOS --work runs/embedded
    python scripts/train_embedded_vlm.py evaluate --photos PHOTOS --model models/embedded

Training has three phases, each resumed from its checkpoint in --work when it is interrupted: the vision tower alone, then
the whole model on the pipeline's own prompts, then the language model alone with more planning and more pairs. --photos is
a folder of clean photographs; 40 of them, chosen by a fixed seed, are held out and never trained on. About 25 + 50 + 30
minutes on two CPU cores; a GPU is used with --device cuda.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train all phases and save the model folder")
    train.add_argument("--photos", type=Path, required=True, help="folder of clean photographs (png, webp, jpg)")
    train.add_argument("--work", type=Path, required=True, help="folder for checkpoints and the training curve")
    train.add_argument("--out", type=Path, default=Path("models/embedded"), help="model folder to write (default: %(default)s)")
    train.add_argument("--vision-steps", type=int, default=1000, help="steps of the first phase (default: %(default)s)")
    train.add_argument("--language-steps", type=int, default=1100, help="steps of the second phase (default: %(default)s)")
    train.add_argument("--planning-steps", type=int, default=860, help="steps of the third phase (default: %(default)s)")
    train.add_argument("--tokens", type=int, default=1200, help="image tokens a step in the first phase (default: %(default)s)")
    train.add_argument("--language-tokens", type=int, default=1200, help="the same in the second phase (default: %(default)s)")
    train.add_argument("--seed", type=int, default=1, help="seed of initialisation and data (default: %(default)s)")
    train.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    train.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    test = commands.add_parser("evaluate", help="measure a model folder on the fixed test set")
    test.add_argument("--photos", type=Path, required=True, help="the folder that training used")
    test.add_argument("--model", type=Path, default=Path("models/embedded"), help="model folder (default: %(default)s)")
    test.add_argument(
        "--queries",
        type=Path,
        default=Path("tests/data/planner_queries.jsonl"),
        help="queries with their plans (default: %(default)s)",
    )
    test.add_argument("--device", default="cpu")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    import torch
    from torch import nn
    from transformers import AutoTokenizer

    from agentic_iqa_local.levels import LETTERS
    from agentic_iqa_local.training.data import load_photos, split_photos
    from agentic_iqa_local.training.embedded import build_model, build_processor, build_tokenizer, save_model
    from agentic_iqa_local.training.language import PLANNING, SEEING, language_batches, language_losses
    from agentic_iqa_local.training.roles import corpus
    from agentic_iqa_local.training.vision import VisionHeads, run_phase, vision_batches, vision_losses

    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    training, held_out = split_photos(args.photos)
    logging.info("%d photographs to train on, %d held out", len(training), len(held_out))
    photos = load_photos(training)
    saved = args.work / "tokenizer"  # a resumed run keeps its token ids, whatever has changed in the prompts since
    if not saved.exists():
        build_tokenizer(corpus(args.seed), vocab_size=2048).save_pretrained(saved)
    tokenizer = AutoTokenizer.from_pretrained(saved, local_files_only=True)
    processor = build_processor(tokenizer)
    model = build_model(tokenizer, args.seed).to(args.device)
    heads = VisionHeads(model.config.text_config.hidden_size).to(args.device)
    letter_ids = torch.tensor([tokenizer.convert_tokens_to_ids(letter) for letter in "ABCDEFGHIJ"], device=args.device)
    assert tokenizer.unk_token_id not in letter_ids[: len(LETTERS)]
    curve = args.work / "curve.jsonl"

    def log(figures: dict) -> None:
        print(json.dumps(figures), flush=True)
        with curve.open("a") as file:
            file.write(json.dumps(figures) + "\n")

    visual = model.model.visual
    run_phase(
        name="vision",
        groups=[(nn.ModuleDict({"visual": visual, "heads": heads}), 8e-4)],
        batches=vision_batches(photos, processor, args.tokens, args.seed),
        losses=vision_losses(visual, heads),
        steps=args.vision_steps,
        checkpoint=args.work / "vision.pt",
        log=log,
    )
    run_phase(
        name="language",
        groups=[
            (nn.ModuleDict({"visual": visual, "heads": heads}), 3e-4),
            (nn.ModuleDict({"language": model.model.language_model}), 1e-3),
        ],
        batches=language_batches(photos, processor, args.language_tokens, args.seed, 1, SEEING),
        losses=language_losses(model, heads, letter_ids),
        steps=args.language_steps,
        checkpoint=args.work / "language.pt",
        log=log,
    )
    run_phase(
        name="planning",
        groups=[(nn.ModuleDict({"language": model.model.language_model}), 1e-3)],
        batches=language_batches(photos, processor, args.language_tokens, args.seed, 2, PLANNING),
        losses=language_losses(model, heads, letter_ids, frozen_vision=True),
        steps=args.planning_steps,
        checkpoint=args.work / "planning.pt",
        log=log,
    )
    save_model(model.cpu(), processor, args.out)
    print(f"saved {args.out}")


def evaluate(args: argparse.Namespace) -> None:
    from agentic_iqa_local.config import ModelSettings
    from agentic_iqa_local.training.data import load_photos, split_photos
    from agentic_iqa_local.training.evaluate import evaluate as measure
    from agentic_iqa_local.training.evaluate import planned
    from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

    client = TransformersClient(args.model.name, ModelSettings(path=str(args.model)), args.device)
    _, held_out = split_photos(args.photos)

    def progress(done: int, total: int) -> None:
        if done % 20 == 0 or done == total:
            print(f"{done}/{total}", end="\r" if done < total else "\n", file=sys.stderr, flush=True)

    figures = measure(client, held_out, progress)
    queries = [json.loads(line) for line in args.queries.read_text().splitlines()]
    figures["hand_written_plans"] = planned(client, load_photos(held_out[:1])[0][:256, :256], queries)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    arguments = parse()
    {"train": train, "evaluate": evaluate}[arguments.command](arguments)
