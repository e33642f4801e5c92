"""A client that answers from a script, to force rare branches. It never stands in for the product."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np

from agentic_iqa_local import services
from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.batch.work import AssessWork
from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.iqa_tools import ToolError, ToolInfo, ToolReading, ToolSpec
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import ExecutorOutput, PlanControlFlags, ToolExecutionLog
from agentic_iqa_local.studies.run import Plan, StudyWork, run_study
from agentic_iqa_local.vlm_client import LetterRead, PixelLimits, SeenImage, TokenUsage, VLMError

BACKEND = "transformers.embedded"


class ScriptedClient:
    """`answer(prompt, schema)` gives each generated text, or raises; letters read back `logprobs`. Every
    call is kept in `calls`."""

    name = "scripted"
    trust = 1.0
    limits = PixelLimits(factor=32, min_pixels=32 * 32, max_pixels=1024 * 1024)

    def __init__(
        self, answer: Callable[..., str], logprobs=None, reads_logits: bool = True, yes=None
    ):
        self.yes = yes  # by family, the probability of Yes; None: Yes and No are no single tokens
        self.answer, self.reads_logits = answer, reads_logits
        self.logprobs = logprobs or {letter: float(np.log(0.19)) for letter in "ABCDE"}
        self.calls: list[tuple[str, object]] = []
        self.opened: list[int] = []

    def open(self, images):
        self.opened.append(len(images))
        return ScriptedSession(self, images)

    def describe(self):
        return {"name": self.name, "device": "cpu", "dtype": "none", "notice": None}


class ScriptedSession:
    def __init__(self, client: ScriptedClient, images):
        self.client = client
        self.usage = TokenUsage()
        self.seen = [SeenImage(*image.size, 1) for image in images]

    def generate(self, prompt, schema, *, temperature=0.0, max_tokens=512):
        self.client.calls.append((schema.__name__, prompt))
        return self.client.answer(prompt, schema)

    def read_letters(self, prompt, answer_prefix, letters):
        if tuple(letters) == ("Yes", "No"):
            if self.client.yes is None:
                raise VLMError("scripted: Yes is no single token")
            p = self.client.yes.get(answer_prefix.split('"')[-3], 0.01)
            return LetterRead({"Yes": float(np.log(p)), "No": float(np.log(1 - p))}, 0.0, {})
        self.client.calls.append(("read_letters", prompt))
        return self.read(
            {letter: self.client.logprobs.get(letter, float(np.log(0.1))) for letter in letters}
        )

    @staticmethod
    def read(logprobs: dict[str, float]) -> LetterRead:
        return LetterRead(logprobs, max(0.0, 1 - float(np.exp(list(logprobs.values())).sum())), {})

    def close(self):
        pass


class ScriptedTools:
    """Tools with fixed scores: name → normalised score; a missing one raises ToolError. `runs` has the calls."""

    def __init__(
        self,
        scores: dict[str, float],
        names=None,
        damaged_part: str | None = None,
        examination=None,
    ):
        self.scores, self.runs, self.part, self.examination = scores, [], damaged_part, examination
        self.names, self.maps = names or list(scores), {}
        self.eye, self.reliability = None, load_reliability()

    def prepare(self, names=()) -> None:
        pass

    def available(self, full_reference: bool) -> list[ToolInfo]:
        specs = [
            ToolSpec(
                name=name, metric=name, reference="NR", domain=(1, 5), good_for=("Blurs", "Noise"), description="scripted"
            )
            for name in self.names
        ]  # fmt: skip
        return [ToolInfo(spec, None, (1.0, 5.0)) for spec in specs]

    def score(self, name, image, reference=None) -> ToolReading:
        self.runs.append((name, image.size))
        if name not in self.scores:
            raise ToolError(f"{name}: scripted to fail")
        return ToolReading(name, self.scores[name], self.scores[name], 0.01)

    def examine(self, image, reference=None):
        if self.examination is None:
            raise ToolError("LocalNR: scripted to fail")
        return self.examination

    def places(self, image, reference=None):
        if self.part is None:
            raise ToolError("LocalNR: scripted to fail")
        return SimpleNamespace(damaged_part=lambda: self.part, places={})


def scripted_services(
    client: ScriptedClient, tools: ScriptedTools, settings: Settings | None = None
) -> Services:
    return Services(settings or Settings(), "cpu", {BACKEND: client}, tools)


def scored(**scores: float) -> ExecutorOutput:
    """Evidence of tools that measured the whole picture."""
    logs = [
        ToolExecutionLog(
            tool_name=name, object_name="Global", distortion="overall", normalized_score=score
        )
        for name, score in scores.items()
    ]
    return ExecutorOutput(tool_logs=logs)


def plan_reply(**changes) -> dict:
    """A Planner's answer: a plain rating with every part on, but for `changes`."""
    plain = {
        "query_type": "IQA", "query_scope": "Global", "distortion_source": "Inferred", "distortions": None,
        "reference_mode": "No-Reference", "required_tool": None, "plan": dict.fromkeys(PlanControlFlags.model_fields, True),
    }  # fmt: skip
    return plain | changes


def moderate_blur(name: str = "Global", severity: str = "moderate") -> dict:
    """An analysis answer: one blur of one object."""
    return {name: [{"type": "Blurs", "severity": severity, "explanation": "Edges appear soft."}]}


def scripted_answers(**replies) -> Callable[..., str]:
    """An `answer` for ScriptedClient: schema name → JSON text, data to write as JSON or an exception to raise; of a list
    one a call, the last one repeated. Left out: a plan with every part on, one moderate blur measured by NIQE, and a
    summary with the first answer that it may give."""
    defaults = {
        "PlannerReply": plan_reply(),
        "DetectionReply": {"Global": ["Blurs"]},
        "AnalysisReply": moderate_blur(),
        "SelectionReply": {"Global": {"Blurs": "NIQE"}},
    }
    queues = {
        name: list(r) if isinstance(r, list) else [r] for name, r in (defaults | replies).items()
    }

    def answer(prompt, schema):
        if schema.__name__ not in queues:
            allowed = get_args(schema.model_fields["final_answer"].annotation)
            said = allowed[0] if allowed else "a soft photograph"
            return json.dumps({"final_answer": said, "quality_reasoning": "Edges appear soft."})
        queue = queues[schema.__name__]
        reply = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, str) else json.dumps(reply)

    return answer


def prompts(client: ScriptedClient, schema: str) -> list:
    """The prompts of the calls with this schema's name ("read_letters" for letter reads), in order."""
    return [prompt for name, prompt in client.calls if name == schema]


def loaded_batch(services: Services, pipeline: Pipeline = "agent", **window) -> Runner:
    """A batch of assessments in this process, on services, with what it needs loaded."""
    batch = Runner(AssessWork(services.settings, pipeline), services=services, **window)
    batch.load()
    return batch


def study_here(dataset, services: Services, plan: Plan, folder: Path, **window) -> Iterator[int]:
    """A study in this process, on services."""
    work = StudyWork(services.settings, plan)
    return run_study(dataset, Runner(work, services.device, services=services, **window), folder)


def in_this_process(monkeypatch) -> None:
    """Batches run where the test has put its scripted parts, not in a process of their own."""

    class Here(Runner):
        def __init__(self, work, device="cpu", **window):
            window.setdefault("services", services.Services(work.settings, device))
            super().__init__(work, device, **window)

    monkeypatch.setattr("agentic_iqa_local.batch.runner.Runner", Here)
