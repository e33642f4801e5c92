"""Teaches the embedded model's letters what people said of photographs, from the LIVE In the Wild Image Quality
Challenge Database (Ghadiyaram and Bovik, 2015).

    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --fold 0
    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --write

LIVE_CHALLENGE holds manifest.csv (image, mos of 0 to 100, mos_std) and its pictures. The target of a photograph is the
mass of a Gaussian of its mean and deviation in each fifth of the scale (You et al., DeQA-Score, CVPR 2025). Distorted
pictures of PHOTOS are learned beside them, so that plain damage stays known; their target is the pseudo-MOS. Prompts
that tell of other pictures' distortions and scores teach it to judge by the picture.

Only the layers of the language model above FIRST learn: what lies below, the vision tower too, is computed once. Their
linear maps change along directions that the text of plans hardly uses and a picture's tokens do (Saha et al., Gradient
Projection Memory, ICLR 2021): without this, letters as good cost one plan in twenty. The Kullback-Leibler divergence to
what the model said before keeps the rest.

--fold leaves a third of the rated photographs out and prints the rank correlation with it; --write writes the weights
of all of them. The states and each epoch are kept in --work once they are complete: the same command goes on with the
next.
"""

import argparse
import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

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
from torch.nn.utils.parametrize import cached, register_parametrization

from agentic_iqa_local import assess
from agentic_iqa_local.config import ModelSettings, Settings
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import PlannerReply
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS, PlannerOutput
from agentic_iqa_local.studies.statistics import srcc
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient, TransformersSession

EMBEDDED = ROOT / "models" / "embedded"
BASE = "16dc7d7c"  # the commit of weights that never saw a human score: training starts from them
FIRST = 2  # of six layers
CROP, SIDE = 480, 512  # pixels of a photograph's two views
SMALL = 128  # pixels of a picture whose words are kept: they depend little on it
EPOCHS, RATE, WARM = 2, 6e-4, 20  # WARM: steps until the rate is reached
# Passes of a step: of people's photographs, after evidence, distorted; of words, and of plans
BATCH, TELL, DISTORT, KEEP = 12, 4, 2, 2
TOLD, DISTORTED, KEPT = 0.35, 0.25, (0.03, 0.1)  # their weights beside people's photographs
FREE = 0.01  # of the energy of a linear map's inputs: in directions that hold so little it learns
PROMPTS = 32  # with evidence
FOLDS = 3
SPREAD = 0.7  # levels by which a pseudo-MOS is wrong, as in the model's first training
SEED = 54
STATE = "fold_{}.pt"  # in --work; "all" where no fold is left out
QUERIES = Path(__file__).with_name("planner_queries.jsonl")
"""Queries of the grammar that the model's first training drew from (agentic_iqa_local/training at
commit 58e52b5, written without sight of the tests' queries), with what each one calls for."""


@dataclass(frozen=True)
class Pass:
    """A prompt with its answer: the states before layer FIRST, tokens×width, and the rotary embeddings
    of its positions. What the model says after the last `ends` tokens is learned or kept."""

    states: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    ends: int


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
        """A prompt and its answer as one pass, of which all from the answer's first token on counts."""
        inputs = self.prompt_inputs(replace(rendered, answer_ids=answer), [expanded])
        with torch.inference_mode():
            self.model.model(**inputs)
        rotary = tuple(part[0].half().clone() for part in self.rotary)
        return Pass(self.states[0].half().clone(), rotary, len(answer) + 1)


class Keeping(TransformersSession):
    """Keeps each prompt with its answer but a plan, and the prompts alone of ratings, which are to
    change."""

    client: "Collector"

    def _write(self, rendered, schema, temperature, max_tokens) -> str:
        text = super()._write(rendered, schema, temperature, max_tokens)
        if schema is PlannerReply:
            return text
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
    return replace(one, ends=1)


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


def kept(model: Collector, folder: Path, work: Path) -> list[Pass]:
    """What the model says in its other roles, of small pictures."""
    services = Services(Settings(), "cpu", {"transformers.embedded": model})
    small = work / "small.png"
    for file, query in track(list(zip(photo_files(folder), queries(), strict=False)), "words"):
        with Image.open(file) as image:
            image.convert("RGB").resize((SMALL, SMALL)).save(small)
        assess(small, query=query["query"], choices=query.get("choices"), services=services)
    return model.asked


def queries() -> list[dict]:
    """The lines of QUERIES."""
    return [json.loads(line) for line in QUERIES.read_text(encoding="utf-8").splitlines()]


def plan_of(query: dict) -> PlannerOutput:
    """The plan that a line of QUERIES calls for, by the paper's rules."""
    other, tool = query.get("other", False), query.get("tool")
    kind = "Other" if other else "IQA"
    scope = query.get("regions", "Global")
    source = "Explicit" if "types" in query else "Inferred"
    objects = ["Global"] if scope == "Global" else scope
    return PlannerOutput(
        query_type=kind,
        query_scope=scope,
        distortion_source=source,
        distortions=dict.fromkeys(objects, query["types"]) if "types" in query else None,
        reference_mode="Full-Reference" if query.get("reference") else "No-Reference",
        required_tool=tool,
        plan=derive_flags(kind, scope, source, tool),
    )


def plans(model: Collector, folder: Path) -> list[tuple[Pass, torch.Tensor]]:
    """A pass of each of QUERIES with the plan that it calls for, and which of its tokens are text."""
    files, found = photo_files(folder), []
    for number, query in enumerate(track(queries(), "plans")):
        with Image.open(files[number % len(files)]) as image:
            picture = image.convert("RGB").resize((SMALL, SMALL))
        pictures = [picture] * (2 if query.get("reference") else 1)
        prompt = planner_prompt(query["query"], len(pictures) > 1, query.get("choices"))
        rendered = model.renderer.render(prompt, len(pictures))
        expanded = model.renderer.expand(rendered, pictures)
        plan = json.dumps(plan_of(query).model_dump(), ensure_ascii=False)
        answer = model.renderer.encode(plan)[:-1]
        tokens = torch.tensor([*rendered.prompt_with(expanded), *answer])
        text = tokens != model.renderer.placeholder
        found.append((model.sequence(rendered, expanded, answer), text))
    return found


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
    plans: list[tuple[Pass, torch.Tensor]]


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


class Free(torch.nn.Module):
    """A weight, out×in, that changes only along `directions`, in×some."""

    def __init__(self, weight: torch.Tensor, directions: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("before", weight.detach().clone())
        self.register_buffer("directions", directions)

    def forward(self, change: torch.Tensor) -> torch.Tensor:
        return self.before + change @ self.directions.T

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.new_zeros(len(weight), self.directions.shape[1])


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
        self.requires_grad_(False)

    def linear(self) -> dict[str, torch.nn.Linear]:
        """Its linear maps by their names in the model's file."""
        return {
            f"{self.prefix}layers.{number}.{name}": module
            for number, layer in enumerate(self.layers, FIRST)
            for name, module in layer.named_modules()
            if isinstance(module, torch.nn.Linear)
        }

    def forward(self, passes: Sequence[Pass]) -> torch.Tensor:
        """Log-probabilities after the last tokens of passes of equal length, as many as are `ends`."""
        hidden = torch.stack([one.states for one in passes]).float()
        rotary = tuple(part.float()[None] for part in passes[0].rotary)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
        last = self.norm(hidden[:, -passes[0].ends :])
        return (last @ self.words.T).log_softmax(-1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """By their names in the model's file."""
        return {
            f"{name}.weight": part.weight.detach().clone() for name, part in self.linear().items()
        }

    def inputs(
        self, kept: Sequence[tuple[Pass, torch.Tensor]]
    ) -> list[tuple[torch.nn.Linear, torch.Tensor]]:
        """Each linear map with the second moments of its inputs at tokens of text, in×in, over the
        passes (the tokens that are text are True)."""
        seen: dict[torch.nn.Module, torch.Tensor] = {}
        moments = {
            part: torch.zeros(part.in_features, part.in_features) for part in self.linear().values()
        }
        hooks = [
            part.register_forward_pre_hook(lambda part, given: seen.update({part: given[0][0]}))
            for part in moments
        ]
        with torch.inference_mode():
            for one, text in kept:
                self([one])
                for part, moment in moments.items():
                    given = seen[part][text]
                    moment += given.T @ given
        for hook in hooks:
            hook.remove()
        return list(moments.items())

    def free(self, kept: Sequence[tuple[Pass, torch.Tensor]]) -> None:
        """Lets each linear map change along the directions that hold FREE of the energy of its inputs
        at these tokens of text."""
        for part, inputs in self.inputs(kept):
            energy, directions = torch.linalg.eigh(inputs.double())
            few = int((energy.cumsum(0) <= FREE * energy.sum()).sum())
            free = Free(part.weight, directions[:, :few].float())
            register_parametrization(part, "weight", free)
            part.parametrizations.weight.original.requires_grad_(True)


def levels_of(upper: Upper, passes: Sequence[Pass]) -> np.ndarray:
    """The mean level of the letters of each pass."""
    with torch.inference_mode():
        reads = [upper([one])[0, -1, upper.letters].softmax(-1) for one in passes]
    return torch.stack(reads).numpy() @ np.arange(5.0, 0, -1)


def divergence(upper: Upper, before: Upper, one: Pass) -> torch.Tensor:
    """How far an answer, as a whole, is from what the model said before, in nats."""
    with torch.no_grad():
        said = before([one])[0]
    return (said.exp() * (said - upper([one])[0])).sum()


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
    parts = known.words, [one for one, _ in known.plans]
    upper, before = Upper(base(state.parent)), Upper(base(state.parent))
    upper.free(known.plans[::4])
    learning = [part for part in upper.parameters() if part.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=RATE, weight_decay=0)
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
            with cached():
                loss = known.people.loss(upper, chosen)
                told = rng.choice(photographs, TELL, replace=False)
                loss = loss + TOLD * known.told.loss(upper, told)
                distorted = rng.choice(len(known.distorted.passes), DISTORT, replace=False)
                loss = loss + DISTORTED * known.distorted.loss(upper, distorted)
                for part, weight in zip(parts, KEPT, strict=True):
                    beside = rng.choice(len(part), KEEP, replace=False)
                    moves = [divergence(upper, before, part[i]) for i in beside]
                    loss = loss + weight * torch.stack(moves).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning, 1.0)
            optimiser.step()
        kept_state = {
            "upper": upper.state_dict(),
            "optimiser": optimiser.state_dict(),
            "done": epoch + 1,
        }
        torch.save(kept_state | {"tensors": upper.tensors()}, state)
        moves = [[divergence(upper, before, one).item() for one in part[::20]] for part in parts]
        words, plans = map(np.mean, moves)
        said = f"epoch {epoch}: words moved by {words:.2f} nats, plans by {plans:.2f}"
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
