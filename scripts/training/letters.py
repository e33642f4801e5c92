"""Teaches the embedded model's letters what people said of photographs, from the LIVE In the Wild Image Quality
Challenge Database (Ghadiyaram and Bovik, 2015).

    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --fold 0
    python scripts/training/letters.py LIVE_CHALLENGE PHOTOS --work runs/letters --write

LIVE_CHALLENGE holds manifest.csv (image, mos of 0 to 100, mos_std) and its pictures. The target of a photograph is the
mass of a Gaussian of its mean and deviation in each fifth of the scale (You et al., DeQA-Score, CVPR 2025). Distorted
pictures of PHOTOS are learned beside them, so that plain damage stays known; their target is the pseudo-MOS. Prompts
that tell of other pictures' distortions and scores teach it to judge by the picture.

Only the layers of the language model from FIRST on learn: what lies below, the vision tower too, is computed once.
Their linear maps change only along directions that the text of plans hardly uses (Saha et al., Gradient Projection
Memory, ICLR 2021). Without this, equally good letters cost one plan in twenty. A penalty, the Kullback-Leibler
divergence from what the model said before, protects plans and its other answers.

--fold leaves a third of the rated photographs out and prints the rank correlation with it; --write writes the weights
of all of them. The states and each epoch are stored in --work once they are complete: the same command goes on with the
next. After a change of this script or of its queries, use another --work.
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
from safetensors.torch import load, save
from scipy.stats import norm
from sklearn.model_selection import KFold
from synthetic import PseudoMos, load_tiles, photo_files, split_photos
from torch.nn.utils.parametrize import cached, register_parametrization

from agentic_iqa_local import assess
from agentic_iqa_local.config import ModelSettings, Settings
from agentic_iqa_local.files import ROOT, replacing, write_whole
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

EMBEDDED, WEIGHTS = ROOT / "models" / "embedded", "model.safetensors"
BASE = "16dc7d7c"  # the commit of weights that never saw a human score: training starts from them
FIRST = 2  # of six layers
CROP, SIDE = 480, 512  # pixels of a photograph's two views
SMALL = 128  # pixels of a picture in the other roles: answers there depend little on it
EPOCHS, RATE, WARM = 2, 6e-4, 20  # WARM: steps until the rate is reached
# Passes of a step: of rated photographs; of them after evidence; of distorted pictures; of words and of plans each
BATCH, AFTER_EVIDENCE, DISTORTED, OTHERS = 12, 4, 2, 2
EVIDENCE_WEIGHT, DISTORTED_WEIGHT, OTHERS_WEIGHTS = 0.35, 0.25, (0.03, 0.1)
FREE = 0.01  # share of the energy of a map's inputs in all directions together along which it may change
PROMPTS = 32  # with evidence
FOLDS = 3
SPREAD = 0.7  # levels by which a pseudo-MOS is wrong, as in the model's first training
SEED = 54
STATE = "fold_{}.pt"  # in --work; "all" where no fold is left out
QUERIES = Path(__file__).with_name("planner_queries.jsonl")
"""Queries of the grammar that the model's first training drew from (agentic_iqa_local/training at
commit 58e52b5, written without sight of the tests' queries), with what each one calls for. Some names
of tools and regions are invented, so that names are copied from the query."""


@dataclass(frozen=True)
class Pass:
    """A prompt with its answer: the states before layer FIRST, tokens×width, and the rotary embeddings
    of its positions. What the model says after the last `ends` tokens is learned, or held to what it said
    before."""

    states: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    ends: int


class Collector(TransformersClient):
    """A model of the embedded one's form, which stores what it was asked."""

    def __init__(self, folder: Path) -> None:
        settings = ModelSettings(path=str(folder), dtype="float32")
        super().__init__("embedded", settings, "cpu")
        self.language = self.model.model.language_model
        self.asked: list[Pass] = []
        self.ratings: list = []  # prompts
        self.language.layers[FIRST].register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, _: object, inputs: tuple[torch.Tensor, ...], options: dict) -> None:
        self.states, self.rotary = inputs[0], options["position_embeddings"]

    def open(self, images: Sequence[Image.Image]) -> "Storing":
        return Storing(self, images)

    def sequence(self, rendered, expanded, answer: list[int]) -> Pass:
        """A prompt and its answer as one pass: each token of the answer counts, and what follows it."""
        inputs = self.prompt_inputs(replace(rendered, answer_ids=answer), [expanded])
        with torch.inference_mode():
            self.model.model(**inputs)
        rotary = tuple(part[0].half().clone() for part in self.rotary)
        return Pass(self.states[0].half().clone(), rotary, len(answer) + 1)


class Storing(TransformersSession):
    """Stores each prompt with its answer, except plans; of ratings (questions with five letters), whose
    answers are to change, the prompt alone."""

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
            one = self.client.sequence(rendered, self._expand(rendered), rendered.answer_ids)
            self.client.asked.append(one)
        return super()._logprobs(rendered, tokens)


def base(work: Path) -> Path:
    """The folder of the model that training starts from."""
    folder, partial = work / "base", work / "base.part"
    if not folder.exists():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(EMBEDDED, partial)
        name = f"{BASE}:models/embedded/{WEIGHTS}"
        shown = subprocess.run(["git", "show", name], cwd=ROOT, check=True, capture_output=True)
        (partial / WEIGHTS).write_bytes(shown.stdout)
        partial.rename(folder)
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
    passes = []
    for picture in photographs_of(folder):
        for view, turned in (
            (picture, False),
            (ImageOps.mirror(picture), False),
            (ImageOps.mirror(picture), True),
        ):
            passes.append(up_to_letter(model, plain(model, turned), whole(view)))
    return passes


def distorted_tiles(folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(distorted, clean) versions of every other tile of the photographs that training may see."""
    rng = np.random.default_rng(SEED)
    for clean in track(load_tiles(split_photos(folder)[0])[::2], "distorted"):
        yield distort(clean, draw_parts(rng), rng).image, clean


def distorted(model: Collector, folder: Path) -> tuple[list[Pass], torch.Tensor]:
    """A pass of each distorted tile, every other one with the letters turned, and its level."""
    measure = PseudoMos()
    passes, levels = [], []
    for number, (image, clean) in enumerate(distorted_tiles(folder)):
        view = other_view(Image.fromarray(image), number)
        passes.append(up_to_letter(model, plain(model, turned=bool(number % 2)), view))
        levels.append(measure(image, clean))
    return passes, torch.tensor(levels)


def told(model: Collector, live: Path, photos: Path, work: Path) -> list[Pass]:
    """A pass of each rated photograph after a prompt with the evidence of some distorted picture."""
    services = Services(Settings(), "cpu", {"transformers.embedded": model})
    file = work / "told.png"
    for image, _ in islice(distorted_tiles(photos), PROMPTS):
        Image.fromarray(image).save(file)
        assess(file, services=services)
    passes = []
    for number, picture in enumerate(photographs_of(live)):
        prompt = model.ratings[number % len(model.ratings)]
        passes.append(up_to_letter(model, prompt, other_view(picture, number)))
    return passes


def words(model: Collector, folder: Path, work: Path) -> list[Pass]:
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
    types: list[str] = query.get("types", [])
    source = "Explicit" if types else "Inferred"
    objects = ["Global"] if scope == "Global" else scope
    return PlannerOutput(
        query_type=kind,
        query_scope=scope,
        distortion_source=source,
        distortions=dict.fromkeys(objects, types) if types else None,
        reference_mode="Full-Reference" if query.get("reference") else "No-Reference",
        required_tool=tool,
        plan=derive_flags(kind, scope, source, tool),
    )


def plans(model: Collector, folder: Path) -> list[tuple[Pass, torch.Tensor]]:
    """A pass of each of QUERIES with the plan that it calls for, and which of its tokens are text."""
    files, pairs = photo_files(folder), []
    for number, query in enumerate(track(queries(), "plans")):
        with Image.open(files[number % len(files)]) as image:
            picture = image.convert("RGB").resize((SMALL, SMALL))
        pictures = [picture] * (2 if query.get("reference") else 1)
        prompt = planner_prompt(query["query"], len(pictures) > 1, query.get("choices"))
        rendered = model.renderer.render(prompt, len(pictures))
        expanded = model.renderer.expand(rendered, pictures)
        plan = json.dumps(plan_of(query).model_dump(), ensure_ascii=False)
        answer = model.renderer.encode(plan)[:-1]  # nothing follows the last token
        tokens = torch.tensor([*rendered.prompt_with(expanded), *answer])
        text = tokens != model.renderer.placeholder
        pairs.append((model.sequence(rendered, expanded, answer), text))
    return pairs


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
    """What is learned: three passes of each rated photograph, one after evidence, one of each distorted
    tile; and the answers and plans that are to stay."""

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
        "words": lambda model: words(model, photos, work),
        "plans": lambda model: plans(model, photos),
    }
    files = [work / f"{name}.pt" for name in makers]
    for file, make in zip(files, makers.values(), strict=True):
        if not file.exists():
            store(make(Collector(base(work))), file)
    return files


def store(value: object, file: Path) -> None:
    """Writes a file for torch.load, whole or not at all."""
    with replacing(file) as out:
        torch.save(value, out)


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


class Restricted(torch.nn.Module):
    """A weight, out×in, that changes only along `directions`, in×k."""

    before: torch.Tensor
    directions: torch.Tensor

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
            f"model.layers.{number}.{name}": module
            for number, layer in enumerate(self.layers, FIRST)
            for name, module in layer.named_modules()
            if isinstance(module, torch.nn.Linear)
        }

    def forward(self, passes: Sequence[Pass]) -> torch.Tensor:
        """Log-probabilities after the last tokens of passes of equal length, as many as are `ends`."""
        hidden = torch.stack([one.states for one in passes]).float()
        rotary = tuple(
            torch.stack(parts).float()
            for parts in zip(*(one.rotary for one in passes), strict=True)
        )
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
        self, plans: Sequence[tuple[Pass, torch.Tensor]]
    ) -> list[tuple[torch.nn.Linear, torch.Tensor]]:
        """Each linear map with the second moments of its inputs, in×in, over the text of plans: of each
        a pass, and which of its tokens are text."""
        seen: dict[torch.nn.Module, torch.Tensor] = {}
        moments = {
            part: torch.zeros(part.in_features, part.in_features) for part in self.linear().values()
        }
        hooks = [
            part.register_forward_pre_hook(lambda part, given: seen.update({part: given[0][0]}))
            for part in moments
        ]
        with torch.inference_mode():
            for one, text in plans:
                self([one])
                for part, moment in moments.items():
                    given = seen[part][text]
                    moment += given.T @ given
        for hook in hooks:
            hook.remove()
        return list(moments.items())

    def free(self, plans: Sequence[tuple[Pass, torch.Tensor]]) -> None:
        """Lets each linear map change along its least used directions: those that together hold at most
        FREE of the energy of its inputs at the text of plans."""
        for part, inputs in self.inputs(plans):
            energy, directions = torch.linalg.eigh(inputs.double())
            few = int((energy.cumsum(0) <= FREE * energy.sum()).sum())
            restricted = Restricted(part.weight, directions[:, :few].float())
            register_parametrization(part, "weight", restricted)
            part.get_parameter("parametrizations.weight.original").requires_grad_(True)


def levels_of(upper: Upper, passes: Sequence[Pass]) -> np.ndarray:
    """The mean level of the letters of each pass."""
    with torch.inference_mode():
        reads = [upper([one])[0, -1, upper.letters].softmax(-1) for one in passes]
    return torch.stack(reads).numpy() @ np.arange(5.0, 0, -1)


def divergence(upper: Upper, before: Upper, one: Pass) -> torch.Tensor:
    """The Kullback-Leibler divergence of an answer from what the model said before: the sum over its
    tokens, in nats."""
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
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--fold", type=int, choices=range(FOLDS), help="the third to leave out")
    either.add_argument("--write", action="store_true", help="write the weights of the model")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    state = args.work / STATE.format("all" if args.fold is None else args.fold)
    if not (state.exists() and torch.load(state)["done"] == EPOCHS):
        learn(state, collected(args.live, args.photos, args.work), args.fold)
    if args.write:
        write(state, EMBEDDED)


def learn(state: Path, known: Collected, fold: int | None) -> None:
    """Learns for EPOCHS, stores each in `state`, and prints how far answers moved and how well the
    photographs that were left out are ranked."""
    held_out = np.arange(0)
    if fold is not None:
        folds = KFold(FOLDS, shuffle=True, random_state=0).split(known.levels)
        held_out = list(folds)[fold][1]
    photographs = np.setdiff1d(np.arange(len(known.levels)), held_out)
    unseen = known.words[::20], [one for one, _ in known.plans[::20]]
    plans = [pair for i, pair in enumerate(known.plans) if i % 20]
    others = [one for i, one in enumerate(known.words) if i % 20], [one for one, _ in plans]
    upper, before = Upper(base(state.parent)), Upper(base(state.parent))
    upper.free(plans[::4])
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
                loss = of_people(
                    upper, known, chosen, rng.choice(photographs, AFTER_EVIDENCE, False)
                )
                loss = loss + of_the_rest(upper, before, known.distorted, others, rng)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning, 1.0)
            optimiser.step()
        reached = {
            "upper": upper.state_dict(),
            "optimiser": optimiser.state_dict(),
            "done": epoch + 1,
            "tensors": upper.tensors(),
        }
        store(reached, state)
        with torch.inference_mode(), cached():
            words_moved, plans_moved = (
                np.mean([divergence(upper, before, one).item() for one in part]) for part in unseen
            )
            said = (
                f"epoch {epoch}: words moved by {words_moved:.2f} nats, plans by {plans_moved:.2f}"
            )
            if len(held_out):
                said += ranks(upper, known, held_out)
        print(said, flush=True)


def of_people(
    upper: Upper, known: Collected, passes: np.ndarray, after_evidence: np.ndarray
) -> torch.Tensor:
    """The loss of these passes of rated photographs, and of those photographs after evidence."""
    loss = known.people.loss(upper, passes)
    return loss + EVIDENCE_WEIGHT * known.told.loss(upper, after_evidence)


def of_the_rest(
    upper: Upper,
    before: Upper,
    distorted: Rated,
    others: tuple[list[Pass], list[Pass]],
    rng: np.random.Generator,
) -> torch.Tensor:
    """The loss of some distorted pictures, words and plans."""
    chosen = rng.choice(len(distorted.passes), DISTORTED, replace=False)
    loss = DISTORTED_WEIGHT * distorted.loss(upper, chosen)
    for part, weight in zip(others, OTHERS_WEIGHTS, strict=True):
        beside = rng.choice(len(part), OTHERS, replace=False)
        moves = [divergence(upper, before, part[i]) for i in beside]
        loss = loss + weight * torch.stack(moves).mean()
    return loss


def ranks(upper: Upper, known: Collected, held_out: np.ndarray) -> str:
    """The rank correlations with people's scores of the photographs that were left out."""
    alone = levels_of(upper, [known.people.passes[3 * i] for i in held_out])
    turned = 6 - levels_of(upper, [known.people.passes[3 * i + 2] for i in held_out])
    after_evidence = levels_of(upper, [known.told.passes[i] for i in held_out])
    levels = known.levels[held_out]
    return (
        f", SRCC alone {srcc(alone, levels):.3f}, with A for Bad {srcc(turned, levels):.3f},"
        f" after evidence {srcc(after_evidence, levels):.3f}"
    )


def rate(step: int, steps: int) -> float:
    """The learning rate: it rises for WARM steps, and falls as a cosine to a twentieth of RATE."""
    fallen = 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2
    return RATE * fallen * min(1, (step + 1) / WARM)


def write(state: Path, model: Path) -> None:
    """Writes a model's weights: those that training started from, with what was learned."""
    weights = load((base(state.parent) / WEIGHTS).read_bytes())
    for name, value in torch.load(state)["tensors"].items():
        weights[name] = value.to(weights[name].dtype)
    write_whole(model / WEIGHTS, save(weights, metadata={"format": "pt"}))


if __name__ == "__main__":
    main()
