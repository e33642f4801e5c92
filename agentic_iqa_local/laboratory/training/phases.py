"""The training of the embedded model, in the order of cheapness: each phase starts from what the one before
has left in the work folder, and goes on where it was interrupted.

vision   the tower alone: quality, family, severity and place of what was done to a picture, in words of the
         language model, and the features of a pretrained encoder
plans    the language model alone: the Planner's answers
look     the language model on what the tower sees, and the tower with it: letters alone, under instructions
         of a few words
light    both: letters and the shortest answers about pictures, and plans
full     both: every role and whole answers
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from agentic_iqa_local.laboratory.training.adapters import SCALING, adapters, add_adapters, load_adapters
from agentic_iqa_local.laboratory.training.data import Pool
from agentic_iqa_local.laboratory.training.embedded import NOTICE, build_processor, grow_vision
from agentic_iqa_local.laboratory.training.graft import graft_tokenizer, grafted_model, save_parts
from agentic_iqa_local.laboratory.training.language import (
    plan_losses,
    planning_batches,
    read_fast_on_cpu,
    role_batches,
    role_losses,
)
from agentic_iqa_local.laboratory.training.teacher import COMPONENTS, Cells
from agentic_iqa_local.laboratory.training.vision import (
    VisionTeaching,
    run_phase,
    train_fast_on_cpu,
    vision_batches,
)
from agentic_iqa_local.offline.assembly import VISION

RANK = 32
# The tower starts as the small model's: what it knows is not to be shaken off by what is new in it.
TOWER_RATE, NEW_RATE, KNOWN_SHARE = 8e-4, ("merger.mlp.2", "blocks.6", "blocks.7"), 0.2
# For plans alone; and with pictures: at 5e-4 most plans are forgotten until the rate has come down.
LANGUAGE_RATE, READING_RATE = 1e-3, 2e-4
SEEING_RATE = 5e-5  # of the tower, while the language model learns to read what it sees


@dataclass
class Course:
    """What all phases share. `smollm2` is the folder with SmolLM2's GGUF, `start` the small model's folder,
    `parts` a folder of parts to go on from in place of a start from nothing."""

    work: Path
    smollm2: Path
    start: Path
    seed: int
    device: str
    parts: Path | None = None

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.tokenizer = graft_tokenizer(self.smollm2)
        self.processor = build_processor(self.tokenizer)
        self.model = grafted_model(self.smollm2)
        self.model.config.agentic_iqa_notice = NOTICE
        visual, language = self.model.model.visual, self.model.model.language_model
        embeddings: Any = self.model.get_input_embeddings().weight
        donor = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            self.start, dtype=torch.float32, local_files_only=True
        )  # nosec B615 # a local folder
        add_adapters(language, RANK)
        self.teaching = VisionTeaching(visual, embeddings, self.tokenizer, COMPONENTS)
        grow_vision(visual, donor.model.visual, self.teaching.words.rms)
        if self.parts:
            load_adapters(language, self.parts)
            load_tower(visual, self.parts)
        nn.Module.to(self.model, self.device)  # the class declares its own `to` without a device
        self.teaching.to(self.device)
        if self.device == "cpu":
            train_fast_on_cpu(visual)
            read_fast_on_cpu(self.model)

    def log(self, figures: dict) -> None:
        """Prints figures and adds them to the curve."""
        print(json.dumps(figures), flush=True)
        with (self.work / "curve.jsonl").open("a") as file:
            file.write(json.dumps(figures) + "\n")

    def run(
        self,
        name: str,
        groups: list,
        batches: Callable,
        losses: Callable,
        steps: int,
        minutes: float,
        **options,
    ) -> None:
        run_phase(
            name=name, groups=groups, batches=batches, losses=losses, steps=steps, minutes=minutes,
            checkpoint=self.work / f"{name}.pt", log=self.log, **options,
        )  # fmt: skip

    def vision(self, pool: Pool, cells: Cells, steps: int, minutes: float, tokens: int) -> None:
        """The tower alone, `tokens` picture tokens a step."""

        def slower(name: str) -> float:
            new = not self.parts and name.removeprefix("visual.").startswith(NEW_RATE)
            return KNOWN_SHARE if name.startswith("visual.") and not new else 1.0

        batches = vision_batches(pool, cells, self.processor, tokens, self.seed)
        self.run(
            "vision",
            [(self.teaching, TOWER_RATE)],
            batches,
            self.teaching.losses,
            steps,
            minutes,
            slower=slower,
        )

    def plans(self, steps: int, minutes: float) -> None:
        """The language model alone."""
        language = self.model.model.language_model
        batches = planning_batches(self.processor, self.seed)
        self.run(
            "plans",
            [(language, LANGUAGE_RATE)],
            batches,
            plan_losses(self.model),
            steps,
            minutes,
            decay=0.0,
            floor=0.1,
            every=10,
        )

    def roles(self, name: str, pool: Pool, steps: int, minutes: float, pictures: int) -> None:
        """Phase "look", "light" or "full": the language model on what the tower sees, and the tower with it,
        `pictures` a step."""
        language, visual = self.model.model.language_model, self.model.model.visual
        letters = torch.tensor(
            [self.tokenizer.convert_tokens_to_ids(letter) for letter in "ABCDEFGHIJ"], device=self.device
        )
        losses = role_losses(self.model, letters)
        batches = role_batches(pool, self.processor, pictures, self.seed, name)
        groups = [(language, READING_RATE), (visual, SEEING_RATE)]
        self.run(name, groups, batches, losses, steps, minutes, decay=0.0, floor=0.1, every=10)

    def resume(self, *names: str) -> None:
        """Takes over what those of the phases `names` that were run have learned, in their order."""
        language, visual = self.model.model.language_model, self.model.model.visual
        for name in names:
            file = self.work / f"{name}.pt"
            if file.exists():
                modules = nn.ModuleList([self.teaching] if name == "vision" else [language, visual])
                modules.load_state_dict(torch.load(file, weights_only=True)["modules"], strict=False)

    def save(self, folder: Path) -> None:
        """Writes the parts of the model as it now is, without assembly.json (`graft.seal`)."""
        save_parts(folder, self.model, adapters(self.model.model.language_model), SCALING)
        self.model.config.save_pretrained(folder)
        self.model.generation_config.save_pretrained(folder)
        self.processor.save_pretrained(folder)


def load_tower(visual: nn.Module, parts: Path) -> None:
    """Puts the tower that git carries in the folder `parts` in place of `visual`'s."""
    visual.load_state_dict(
        {name.removeprefix("visual."): w.float() for name, w in load_file(parts / VISION).items()}
    )
