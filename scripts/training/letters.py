"""Teaches the embedded model's letters what people said of photographs, from the LIVE In the Wild Image Quality
Challenge Database (Ghadiyaram and Bovik, 2015).

    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --fold 0
    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --write

LIVE_CHALLENGE holds manifest.csv (image, mos of 0 to 100, mos_std) and its pictures. The target of a photograph is the
mass of a Gaussian of its mean and deviation in each fifth of the scale (You et al., DeQA-Score, CVPR 2025). Only the
layers of the language model above FIRST learn: what lies below, the vision tower too, is computed once. What the model
says in its other roles of pictures of PHOTOS is kept by the Kullback-Leibler divergence to what it said before.
--fold leaves a fifth of the photographs out and prints the rank correlation with it; --write writes the weights of all
of them. The states, the words and each epoch are kept in --work once they are complete: the same command goes on with
the next.
"""

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.progress import track
from safetensors.torch import load_file, save_file
from scipy.stats import norm
from sklearn.model_selection import KFold
from synthetic import photo_files

from agentic_iqa_local import assess
from agentic_iqa_local.config import ModelSettings, Settings
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.studies.statistics import srcc
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient, TransformersSession

EMBEDDED = ROOT / "models" / "embedded"
FIRST = 2  # of six layers
SIDE = 512  # pixels of a photograph, as the model takes it
SMALL = 128  # pixels of a picture whose words are kept: they depend little on it
EPOCHS, RATE, BATCH, KEEP = 3, 1e-4, 16, 4  # KEEP: sequences beside each batch whose words are kept
FOLDS = 5  # those of scripts/training/refit.py
QUERIES = (
    DEFAULT_QUERY,
    "Is the sky noisy?",
    "How blurry is the face on the left?",
    "Use NIQE to rate the picture.",
    "Which distortion is the strongest?",
    "What is wrong with the colours of the leaves?",
    "Are there compression artefacts in the background?",
    "Describe the quality of the dog and of the wall.",
)


@dataclass(frozen=True)
class Pass:
    """A prompt with its answer: the states before layer FIRST, tokens×width, the rotary embeddings of
    its positions, and the log-probabilities of the model as it was after the last `len(told)` tokens."""

    states: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    told: torch.Tensor


class Collector(TransformersClient):
    """The embedded model, which keeps what it was asked."""

    def __init__(self) -> None:
        settings = ModelSettings(path=str(EMBEDDED), dtype="float32")
        super().__init__("embedded", settings, "cpu")
        self.language = self.model.model.language_model
        self.asked: list[Pass] = []
        self.language.layers[FIRST].register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, _: object, inputs: tuple[torch.Tensor, ...], options: dict) -> None:
        self.states, self.rotary = inputs[0], options["position_embeddings"]

    def open(self, images: Sequence[Image.Image]) -> "Keeping":
        return Keeping(self, images)

    def sequence(self, rendered, expanded, answer: list[int]) -> Pass:
        """A prompt and its answer as one pass; its distributions from the answer's first token on."""
        whole = replace(rendered, answer_ids=answer)
        inputs = self.prompt_inputs(whole, [expanded])
        with torch.inference_mode():
            hidden = self.model.model(**inputs).last_hidden_state[0, -len(answer) - 1 :]
            told = self.model.lm_head(hidden).log_softmax(-1)
        rotary = tuple(part[0].half().clone() for part in self.rotary)
        return Pass(self.states[0].half().clone(), rotary, told.half().clone())


class Keeping(TransformersSession):
    """Keeps each prompt with its answer, but for ratings, which are to change."""

    client: "Collector"

    def _write(self, rendered, schema, temperature, max_tokens) -> str:
        text = super()._write(rendered, schema, temperature, max_tokens)
        answer = self.client.renderer.encode(text)
        self.client.asked.append(self.client.sequence(rendered, self._expand(rendered), answer))
        return text

    def _logprobs(self, rendered, tokens):
        if len(tokens) != len(LETTERS):
            kept = self.client.sequence(rendered, self._expand(rendered), rendered.answer_ids)
            self.client.asked.append(kept)
        return super()._logprobs(rendered, tokens)


def views(image: Image.Image) -> Iterator[tuple[Image.Image, bool]]:
    """A photograph as the program sees it, in its own pixels, and mirrored and enlarged with the
    letters turned round."""
    side = min(image.size) // 32 * 32
    left, top = (image.width - side) // 2, (image.height - side) // 2
    yield image.crop((left, top, left + side, top + side)), False
    yield ImageOps.mirror(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC), True


def rated(model: Collector, folder: Path) -> list[Pass]:
    """Two passes of each photograph of the manifest, up to the letter."""
    found = []
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in track(rows, "photographs"):
        with Image.open(folder / row["image"]) as image:
            picture = image.convert("RGB")
        for view, turned in views(picture):
            prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=turned)
            rendered, _ = model.renderer.letters(prompt, 1, ANSWER_PREFIX, LETTERS)
            expanded = model.renderer.expand(rendered, [view])
            one = model.sequence(rendered, expanded, rendered.answer_ids)
            found.append(replace(one, told=one.told[-1:].clone()))
    return found


def kept(model: Collector, folder: Path, work: Path) -> list[Pass]:
    """What the model says in its other roles, of small pictures."""
    services = Services(Settings(), "cpu", {"transformers.embedded": model})
    small = work / "small.png"
    for number, file in enumerate(track(photo_files(folder), "words")):
        with Image.open(file) as image:
            image.convert("RGB").resize((SMALL, SMALL)).save(small)
        query = QUERIES[number % len(QUERIES)]
        choices = ["Blur", "Noise", "None"] if query.startswith("Which") else None
        assess(small, query=query, choices=choices, services=services)
    return model.asked


def collected(live: Path, photos: Path, work: Path) -> tuple[list[Pass], list[Pass]]:
    """The passes that are learned from, and those that are kept."""
    learned, words = work / "rated.pt", work / "words.pt"
    if not learned.exists():
        torch.save(rated(Collector(), live), learned)
    if not words.exists():
        torch.save(kept(Collector(), photos, work), words)
    return torch.load(learned, weights_only=False), torch.load(words, weights_only=False)


def targets(folder: Path) -> tuple[np.ndarray, torch.Tensor]:
    """Of each photograph its level, 1 to 5, and the probabilities of A to E, (photographs, 5)."""
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    level = np.array([1 + 4 * float(row["mos"]) / 100 for row in rows])
    spread = np.array([4 * float(row["mos_std"]) / 100 for row in rows])
    edges = 1 + 0.8 * np.arange(6)
    below = norm.cdf((edges - level[:, None]) / spread[:, None])
    mass = np.diff(below)[:, ::-1]
    return level, torch.tensor(mass / mass.sum(1, keepdims=True), dtype=torch.float32)


class Upper(torch.nn.Module):
    """The layers that learn, on stored states."""

    def __init__(self) -> None:
        super().__init__()
        model = Collector()
        self.prefix = "model."  # of their names in the file
        self.layers = model.language.layers[FIRST:]
        self.norm = model.language.norm
        self.words = model.model.lm_head.weight.detach()
        _, ids = model.renderer.letters(
            summarizer_prompt(DEFAULT_QUERY, None, scoring=True), 1, ANSWER_PREFIX, LETTERS
        )
        self.letters = list(ids.values())
        for layer in self.layers:
            layer._forward_pre_hooks.clear()

    def forward(self, passes: Sequence[Pass]) -> torch.Tensor:
        """Log-probabilities after the last tokens of passes of equal length, as many as are `told`."""
        hidden = torch.stack([one.states for one in passes]).float()
        rotary = tuple(part.float()[None] for part in passes[0].rotary)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
        last = self.norm(hidden[:, -len(passes[0].told) :])
        return (last @ self.words.T).log_softmax(-1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """By their names in the model's file."""
        named = {}
        for number, layer in enumerate(self.layers, FIRST):
            for name, value in layer.state_dict().items():
                named[f"{self.prefix}layers.{number}.{name}"] = value
        return named | {f"{self.prefix}norm.weight": self.norm.weight.detach()}


def levels_of(upper: Upper, passes: Sequence[Pass]) -> np.ndarray:
    """The mean level of the letters of each pass."""
    with torch.inference_mode():
        reads = [upper([one])[0, -1, upper.letters].softmax(-1) for one in passes]
    return torch.stack(reads).numpy() @ np.arange(5.0, 0, -1)


def moved(upper: Upper, passes: Sequence[Pass]) -> float:
    """How far the words have moved: the mean divergence of a token, in nats."""
    with torch.inference_mode():
        return float(np.mean([divergence(upper, one).item() for one in passes]))


def divergence(upper: Upper, one: Pass) -> torch.Tensor:
    before = one.told.float()
    return (before.exp() * (before - upper([one])[0])).sum(-1).mean()


def batches(count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Numbers of passes, of one view each: the others are of another length."""
    drawn = [rng.permutation(np.arange(view, count, 2)) for view in range(2)]
    split = [part for one in drawn for part in np.array_split(one, math.ceil(len(one) / BATCH))]
    yield from (split[i] for i in rng.permutation(len(split)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("live", type=Path, help="folder of LIVE Challenge with manifest.csv")
    parser.add_argument("photos", type=Path, help="folder of photographs for the other roles")
    parser.add_argument("--work", type=Path, required=True, help="folder for what was computed")
    parser.add_argument("--fold", type=int, help="the fifth to leave out")
    parser.add_argument("--write", action="store_true", help="write the weights of the model")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    passes, words = collected(args.live, args.photos, args.work)
    level, wanted = targets(args.live)
    train, held_out = np.arange(len(level)), np.arange(0)
    if args.fold is not None:
        folds = KFold(FOLDS, shuffle=True, random_state=0).split(level)
        train, held_out = list(folds)[args.fold]
    unseen, words = words[::10], [one for i, one in enumerate(words) if i % 10]
    learn(
        args.work / f"fold_{args.fold}.pt",
        passes,
        words,
        (train, held_out),
        (level, wanted),
        unseen,
    )
    if args.write:
        write(torch.load(args.work / f"fold_{args.fold}.pt")["tensors"])


def learn(
    state: Path,
    passes: Sequence[Pass],
    words: Sequence[Pass],
    parts: tuple[np.ndarray, np.ndarray],
    truth: tuple[np.ndarray, torch.Tensor],
    unseen: Sequence[Pass],
) -> None:
    """Learns for EPOCHS, keeps each in `state`, and prints what it is worth."""
    upper, (train, held_out), (level, wanted) = Upper(), parts, truth
    optimiser = torch.optim.AdamW(upper.parameters(), lr=RATE, weight_decay=0.05)
    done = 0
    if state.exists():
        stored = torch.load(state)
        upper.load_state_dict(stored["upper"])
        optimiser.load_state_dict(stored["optimiser"])
        done = stored["done"]
    both = np.stack([2 * train, 2 * train + 1], 1).ravel()
    steps = EPOCHS * len(list(batches(len(both), np.random.default_rng(0))))
    for epoch in range(done, EPOCHS):
        rng = np.random.default_rng(epoch)
        for number, drawn in enumerate(track(list(batches(len(both), rng)), f"epoch {epoch}")):
            step = (epoch + number * EPOCHS / steps) / EPOCHS
            optimiser.param_groups[0]["lr"] = RATE * (
                0.05 + 0.95 * (1 + math.cos(math.pi * step)) / 2
            )
            chosen = both[drawn]
            read = upper([passes[i] for i in chosen])[:, -1, upper.letters]
            aim = wanted[chosen // 2]
            aim = aim.flip(1) if chosen[0] % 2 else aim
            loss = -(aim * read).sum(1).mean()
            beside = rng.choice(len(words), KEEP, replace=False)
            loss = loss + torch.stack([divergence(upper, words[i]) for i in beside]).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(upper.parameters(), 1.0)
            optimiser.step()
        kept_state = {
            "upper": upper.state_dict(),
            "optimiser": optimiser.state_dict(),
            "done": epoch + 1,
        }
        torch.save(kept_state | {"tensors": upper.tensors()}, state)
        said = f"epoch {epoch}: words moved by {moved(upper, unseen):.4f} nats a token"
        if len(held_out):
            srcc_unseen = srcc(levels_of(upper, [passes[2 * i] for i in held_out]), level[held_out])
            said += f", SRCC with the photographs left out {srcc_unseen:.3f}"
        print(said, flush=True)


def write(tensors: dict[str, torch.Tensor]) -> None:
    """Replaces the tensors of the model's file."""
    file = EMBEDDED / "model.safetensors"
    weights = load_file(file)
    for name, value in tensors.items():
        weights[name] = value.to(weights[name].dtype)
    save_file(weights, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
