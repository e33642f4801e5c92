"""Teaches the embedded model's letters what people said of photographs, from the LIVE In the Wild Image Quality
Challenge Database (Ghadiyaram and Bovik, 2015).

    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --fold 0
    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --write

LIVE_CHALLENGE holds manifest.csv (image, mos of 0 to 100, mos_std) and its pictures. The target of a photograph is the
mass of a Gaussian of its mean and deviation in each fifth of the scale (You et al., DeQA-Score, CVPR 2025). Distorted
pictures of PHOTOS are learned beside them, so that plain damage stays known; their target is the pseudo-MOS. Only the
layers of the language model above FIRST learn: what lies below, the vision tower too, is computed once. What the model
says in its other roles is kept by the Kullback-Leibler divergence to what it said before. Prompts that tell of other
pictures' distortions and scores teach it to judge by the picture. --fold leaves a third of the
rated photographs out and prints the rank correlation with it; --write writes the weights of all of them. The states,
the words and each epoch are kept in --work once they are complete: the same command goes on with the next.
"""

import argparse
import math
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import people
import torch
from distortions import distort, draw_parts
from PIL import Image, ImageOps
from rich.progress import track
from safetensors.torch import load_file, save_file
from scipy.stats import norm
from sklearn.model_selection import KFold
from synthetic import PseudoMos, load_tiles, photo_files, split_photos

from agentic_iqa_local import assess
from agentic_iqa_local.config import ModelSettings, RoleSettings, Settings
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import PlannerReply
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.studies.statistics import srcc
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient, TransformersSession

EMBEDDED = ROOT / "models" / "embedded"
BASE = (
    "16dc7d7c"  # the commit of the weights that training starts from: they never saw a human score
)
FIRST = 2  # of six layers
CROP, SIDE = 480, 512  # pixels of a photograph's two views
SMALL = 128  # pixels of a picture whose words are kept: they depend little on it
EPOCHS, RATE, WARM = 2, 6e-4, 20  # WARM: steps until the rate is reached
# Passes of a step: of people's photographs, after evidence, distorted; of words, and of plans
BATCH, TELL, DISTORT, KEEP = 12, 4, 2, 2
TOLD, DISTORTED, KEPT = 0.35, 0.25, 0.3  # their weights beside people's photographs
PROMPTS = 32  # with evidence
FOLDS = 3
SPREAD = 0.7  # levels by which a pseudo-MOS is wrong, as in the model's first training
SEED = 54
STATE = "fold_{}.pt"  # in --work; "all" where no fold is left out
PLANS = 400  # queries whose plans are kept: keeping those for eight alone cost all others
PLACES = {  # in QUERIES
    "picture": ("image", "photo", "picture", "shot"),
    "part": (
        "sky",
        "face",
        "dog",
        "wall",
        "leaves",
        "background",
        "sign",
        "water",
        "car on the left",
    ),
    "fault": (
        "blur",
        "noise",
        "grain",
        "banding",
        "compression",
        "a cast",
        "overexposure",
        "halos",
    ),
    "tool": ("NIQE", "LocalNR", "BRISQUE", "PIQE", "MUSIQ", "VSI", "LPIPS", "SSIM"),
}
QUERIES = (
    DEFAULT_QUERY,
    "How good is this {picture}?",
    "Rate the {part}.",
    "Is there {fault} in the {part}?",
    "How strong is the {fault}?",
    "Use {tool} to rate the {picture}.",
    "What does {tool} say of the {part}?",
    "Which distortion is the strongest?",
    "Describe the quality of the {part} and of the {part}.",
    "Is the {part} sharper than the {part}?",
    "What is wrong with this {picture}?",
    "Why does the {part} look so bad?",
    "Does the {picture} suffer from {fault} or from {fault}?",
    "Apart from the {fault}, how good is it?",
    "Where is the {fault} worst?",
    "How far is the {picture} from its reference by {tool}?",
    "What is in the {picture}?",
    "Who took this {picture}, and where?",
)


@dataclass(frozen=True)
class Pass:
    """A prompt with its answer: the states before layer FIRST, tokens×width, the rotary embeddings of
    its positions, and the log-probabilities of the model as it was after the last `len(told)` tokens."""

    states: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    told: torch.Tensor


class Collector(TransformersClient):
    """A model of the embedded one's form, which keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        settings = ModelSettings(path=str(folder), dtype="float32")
        super().__init__("embedded", settings, "cpu")
        self.language = self.model.model.language_model
        self.asked: list[Pass] = []
        self.ratings: list = []  # prompts
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
    """Keeps each prompt with its answer, and the prompts alone of ratings, which are to change."""

    client: "Collector"

    def _write(self, rendered, schema, temperature, max_tokens) -> str:
        text = super()._write(rendered, schema, temperature, max_tokens)
        answer = self.client.renderer.encode(text)
        self.client.asked.append(self.client.sequence(rendered, self._expand(rendered), answer))
        return text

    def _logprobs(self, rendered, tokens):
        if len(tokens) == len(LETTERS):
            self.client.ratings.append(rendered)
        else:
            kept = self.client.sequence(rendered, self._expand(rendered), rendered.answer_ids)
            self.client.asked.append(kept)
        return super()._logprobs(rendered, tokens)


def base(work: Path) -> Path:
    """The folder of the model that training starts from."""
    folder = work / "base"
    if not folder.exists():
        shutil.copytree(EMBEDDED, folder)
        name = f"{BASE}:models/embedded/model.safetensors"
        shown = subprocess.run(["git", "show", name], cwd=ROOT, check=True, capture_output=True)
        (folder / "model.safetensors").write_bytes(shown.stdout)
    return folder


def crop(image: Image.Image) -> Image.Image:
    """The middle of a photograph in its own pixels."""
    left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
    return image.crop((left, top, left + CROP, top + CROP))


def whole(image: Image.Image) -> Image.Image:
    return image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def other_view(image: Image.Image, number: int) -> Image.Image:
    return whole(ImageOps.mirror(image)) if number % 2 else crop(image)


def plain(model: Collector, turned: bool):
    """The prompt of a rating without evidence."""
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=turned)
    return model.renderer.letters(prompt, 1, ANSWER_PREFIX, LETTERS)[0]


def up_to_letter(model: Collector, rendered, view: Image.Image) -> Pass:
    """The pass of a rating."""
    expanded = model.renderer.expand(rendered, [view])
    one = model.sequence(rendered, expanded, rendered.answer_ids)
    return replace(one, told=one.told[-1:].clone())


def photographs_of(folder: Path) -> Iterator[Image.Image]:
    for row in track(people.manifest(folder), "photographs"):
        with Image.open(folder / row["image"]) as image:
            yield image.convert("RGB")


def rated(model: Collector, folder: Path) -> list[Pass]:
    """Three passes of each photograph of the manifest: as it is, mirrored, and with the letters turned."""
    found = []
    for picture in photographs_of(folder):
        for view, turned in (
            (picture, False),
            (ImageOps.mirror(picture), False),
            (ImageOps.mirror(picture), True),
        ):
            found.append(up_to_letter(model, plain(model, turned), whole(view)))
    return found


def distorted_tiles(folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(distorted, clean) versions of every other tile of the photographs that training may see."""
    rng = np.random.default_rng(SEED)
    for clean in track(load_tiles(split_photos(folder)[0])[::2], "distorted"):
        yield distort(clean, draw_parts(rng), rng).image, clean


def distorted(model: Collector, folder: Path) -> tuple[list[Pass], torch.Tensor]:
    """A pass of each distorted tile, every other one with the letters turned, and its level."""
    measure = PseudoMos()
    found, levels = [], []
    for number, (image, clean) in enumerate(distorted_tiles(folder)):
        view = other_view(Image.fromarray(image), number)
        found.append(up_to_letter(model, plain(model, turned=bool(number % 2)), view))
        levels.append(measure(image, clean))
    return found, torch.tensor(levels)


def told(model: Collector, live: Path, photos: Path, work: Path) -> list[Pass]:
    """A pass of each rated photograph after a prompt with the evidence of some distorted picture."""
    services = Services(Settings(), "cpu", {"transformers.embedded": model})
    file = work / "told.png"
    for image, _ in islice(distorted_tiles(photos), PROMPTS):
        Image.fromarray(image).save(file)
        assess(file, services=services)
    found = []
    for number, picture in enumerate(photographs_of(live)):
        prompt = model.ratings[number % len(model.ratings)]
        found.append(up_to_letter(model, prompt, other_view(picture, number)))
    return found


def drawn_query(rng: np.random.Generator) -> str:
    """One of QUERIES, with words in its places."""
    query = str(rng.choice(QUERIES))
    for name, words in PLACES.items():
        for word in rng.permutation(words)[: query.count(f"{{{name}}}")]:
            query = query.replace(f"{{{name}}}", str(word), 1)
    return query


def kept(model: Collector, folder: Path, work: Path) -> list[Pass]:
    """What the model says in its other roles, of small pictures."""
    services = Services(Settings(), "cpu", {"transformers.embedded": model})
    rng, small = np.random.default_rng(SEED), work / "small.png"
    for file in track(photo_files(folder), "words"):
        with Image.open(file) as image:
            image.convert("RGB").resize((SMALL, SMALL)).save(small)
        query = drawn_query(rng)
        choices = ["Blur", "Noise", "None"] if query.startswith("Which") else None
        assess(small, query=query, choices=choices, services=services)
    return model.asked


def plans(model: Collector, folder: Path) -> list[Pass]:
    """Its plans for PLANS queries, every other one with a reference."""
    rng, files = np.random.default_rng(SEED), photo_files(folder)
    for number in track(range(PLANS), "plans"):
        with Image.open(files[number % len(files)]) as image:
            picture = image.convert("RGB").resize((SMALL, SMALL))
        has_reference = bool(number % 2)
        session: Any = model.open([picture] * (1 + has_reference))
        ask(session, planner_prompt(drawn_query(rng), has_reference), PlannerReply, RoleSettings())
        session.close()
    return model.asked


@dataclass(frozen=True)
class Rated:
    """Passes with the probabilities of their letters, (passes, 5)."""

    passes: list[Pass]
    aims: torch.Tensor

    def loss(self, upper: "Upper", chosen: np.ndarray) -> torch.Tensor:
        """The cross-entropy of some of them, in nats."""
        by_length: dict[int, list[int]] = {}
        for number in chosen:
            by_length.setdefault(len(self.passes[number].states), []).append(number)
        losses = []
        for numbers in by_length.values():
            read = upper([self.passes[i] for i in numbers])[:, -1, upper.letters]
            losses.append(-(self.aims[numbers] * read).sum())
        return torch.stack(losses).sum() / len(chosen)


@dataclass(frozen=True)
class Collected:
    """What is learned: of people's photographs three passes each, then one after evidence; of
    distorted ones one each. And the words that are kept."""

    levels: np.ndarray  # of the rated photographs, 1 to 5
    people: Rated
    told: Rated
    distorted: Rated
    words: list[Pass]
    plans: list[Pass]


def collect(live: Path, photos: Path, work: Path) -> list[Path]:
    """Makes the files of the passes that are learned from, and of those that are kept, that are not
    there yet."""
    makers = {
        "rated": lambda model: rated(model, live),
        "distorted": lambda model: distorted(model, photos),
        "told": lambda model: told(model, live, photos, work),
        "words": lambda model: kept(model, photos, work),
        "plans": lambda model: plans(model, photos),
    }
    files = [work / f"{name}.pt" for name in makers]
    for file, make in zip(files, makers.values(), strict=True):
        if not file.exists():
            torch.save(make(Collector(base(work))), file)
    return files


def collected(live: Path, photos: Path, work: Path) -> Collected:
    """The passes, which are made first where they are not there."""
    files = collect(live, photos, work)
    stored = {file.stem: torch.load(file, weights_only=False) for file in files}
    levels, spread = people_said(live)
    aims = letters_of(levels, spread)
    three = torch.stack([aims, aims, aims.flip(1)], 1).flatten(0, 1)
    distorted_passes, distorted_levels = stored["distorted"]
    theirs = letters_of(distorted_levels.numpy(), SPREAD)
    theirs[1::2] = theirs[1::2].flip(1)
    return Collected(
        levels,
        Rated(stored["rated"], three),
        Rated(stored["told"], aims),
        Rated(distorted_passes, theirs),
        stored["words"],
        stored["plans"],
    )


def people_said(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(levels from 1 to 5, their deviations) of the rated photographs."""
    rows = people.manifest(folder)
    levels = np.array([1 + 4 * float(row["mos"]) / 100 for row in rows])
    return levels, np.array([4 * float(row["mos_std"]) / 100 for row in rows])


def letters_of(levels: np.ndarray, spread: np.ndarray | float) -> torch.Tensor:
    """The probabilities of A to E, (levels, 5): the mass of a Gaussian in each fifth of 1 to 5."""
    edges = 1 + 0.8 * np.arange(6)
    below = norm.cdf((edges - levels[:, None]) / np.reshape(spread, (-1, 1)))
    mass = np.diff(below)[:, ::-1]
    return torch.tensor(mass / mass.sum(1, keepdims=True), dtype=torch.float32)


class Upper(torch.nn.Module):
    """The layers that learn, on stored states."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        model = Collector(folder)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("live", type=Path, help="folder of LIVE Challenge with manifest.csv")
    parser.add_argument("photos", type=Path, help="folder of photographs for the other roles")
    parser.add_argument("--work", type=Path, required=True, help="folder for what was computed")
    parser.add_argument("--fold", type=int, help="the third to leave out")
    parser.add_argument("--write", action="store_true", help="write the weights of the model")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    state = args.work / STATE.format("all" if args.fold is None else args.fold)
    if not (state.exists() and torch.load(state)["done"] == EPOCHS):
        learn(state, collected(args.live, args.photos, args.work), args.fold)
    if args.write:
        write(state, EMBEDDED)


def learn(state: Path, known: Collected, fold: int | None) -> None:
    """Learns for EPOCHS, keeps each in `state`, and prints what it is worth."""
    held_out = np.arange(0)
    if fold is not None:
        folds = KFold(FOLDS, shuffle=True, random_state=0).split(known.levels)
        held_out = list(folds)[fold][1]
    photographs = np.setdiff1d(np.arange(len(known.levels)), held_out)
    unseen = [*known.words[::20], *known.plans[::20]]
    parts = [[one for i, one in enumerate(part) if i % 20] for part in (known.words, known.plans)]
    upper = Upper(base(state.parent))
    optimiser = torch.optim.AdamW(upper.parameters(), lr=RATE, weight_decay=0.05)
    done = 0
    if state.exists():
        stored = torch.load(state)
        upper.load_state_dict(stored["upper"])
        optimiser.load_state_dict(stored["optimiser"])
        done = stored["done"]
    for epoch in range(done, EPOCHS):
        rng = np.random.default_rng(epoch)
        passes = rng.permutation((3 * photographs[:, None] + np.arange(3)).ravel())
        steps = len(passes) // BATCH
        for number, chosen in enumerate(track(np.array_split(passes, steps), f"epoch {epoch}")):
            optimiser.param_groups[0]["lr"] = rate(epoch * steps + number, EPOCHS * steps)
            loss = known.people.loss(upper, chosen)
            told = rng.choice(photographs, TELL, replace=False)
            loss = loss + TOLD * known.told.loss(upper, told)
            distorted = rng.choice(len(known.distorted.passes), DISTORT, replace=False)
            loss = loss + DISTORTED * known.distorted.loss(upper, distorted)
            for part in parts:
                beside = rng.choice(len(part), KEEP, replace=False)
                moves = torch.stack([divergence(upper, part[i]) for i in beside])
                loss = loss + KEPT * moves.mean()
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
            said += ranks(upper, known, held_out)
        print(said, flush=True)


def ranks(upper: Upper, known: Collected, held_out: np.ndarray) -> str:
    """The rank correlations with people's scores of the photographs that were left out."""
    alone = levels_of(upper, [known.people.passes[3 * i] for i in held_out])
    turned = 6 - levels_of(upper, [known.people.passes[3 * i + 2] for i in held_out])
    told = levels_of(upper, [known.told.passes[i] for i in held_out])
    levels = known.levels[held_out]
    return (
        f", SRCC alone {srcc(alone, levels):.3f}, with A for Bad {srcc(turned, levels):.3f},"
        f" after evidence {srcc(told, levels):.3f}"
    )


def rate(step: int, steps: int) -> float:
    """The learning rate: it rises for WARM steps, and falls as a cosine to a twentieth of RATE."""
    fallen = 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2
    return RATE * fallen * min(1, (step + 1) / WARM)


def write(state: Path, model: Path) -> None:
    """Replaces the tensors of a model's file by those that were learned."""
    file = model / "model.safetensors"
    weights = load_file(file)
    for name, value in torch.load(state)["tensors"].items():
        weights[name] = value.to(weights[name].dtype)
    save_file(weights, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
