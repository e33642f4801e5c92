"""Every check in its order. One that fails, or whose process dies, never stops the next."""

import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_dtype
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.offline.certify import tools as tools_of
from agentic_iqa_local.offline.certify.apart import in_fresh_process
from agentic_iqa_local.offline.certify.arms import formats_on, judge_engines, judge_formats
from agentic_iqa_local.offline.certify.certificate import Certificate, Readings, Tools, shipped_record
from agentic_iqa_local.offline.certify.check import Check, judged, not_run
from agentic_iqa_local.offline.certify.compare import judge_against, judge_record
from agentic_iqa_local.offline.certify.identity import identity_of
from agentic_iqa_local.offline.certify.letters import (
    judge_batches,
    judge_inputs,
    judge_plain,
    judge_repeats,
    judge_shared,
    judge_speed,
    label_of,
)
from agentic_iqa_local.offline.certify.plain import plain_forward
from agentic_iqa_local.offline.certify.probes import make_probes, write_probes
from agentic_iqa_local.offline.certify.reading import read_alone, read_formats, read_set_up, with_format
from agentic_iqa_local.offline.certify.served import served
from agentic_iqa_local.offline.certify.study import judge_study, run_study
from agentic_iqa_local.offline.doctor import examine
from agentic_iqa_local.offline.store import environment, models_root
from agentic_iqa_local.provenance import commit
from agentic_iqa_local.text import one_line

CHECKS = ("doctor", "record", "inputs", "plain forward", "batches", "shared prefix", "engines",
          "number formats", "repeatability", "tools", "study", "speed", "against")  # fmt: skip
ENGINES = ("transformers", "vllm", "server")
NO_WEIGHTS = "the model's weights do not lie here, they are the server's"


@dataclass(frozen=True)
class Wanted:
    """What is certified and how. `gpu` and `cpu` as `choose_device` takes them, which made `device`; `other`
    is another machine's certificate with its file's name; `restarts` how many fresh processes read again;
    `only` the names of the checks to run, none for all."""

    settings: Settings
    device: str
    gpu: str | None = None
    cpu: bool = False
    quick: bool = False
    study: Path | None = None
    other: tuple[Certificate, str] | None = None
    restarts: int = 2
    only: tuple[str, ...] = ()
    timeout: float = 1800.0


@dataclass
class Certification:
    """The checks of one set-up. `checks` has those that are done, in their order."""

    wanted: Wanted
    scratch: Path
    checks: list[Check] = field(default_factory=list)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    measured_tools: dict[str, Any] | None = None
    interrupted: bool = False

    @property
    def plan(self) -> list[tuple[str, Callable[[], Check], float]]:
        """(name, check, seconds that it takes on a CPU with the embedded model, for the time left)."""
        quick, only = self.wanted.quick, self.wanted.only
        steps = [("doctor", self._doctor, 3.0 if quick else 18.0), ("record", self._record, 22.0)]
        steps += [("inputs", self._inputs, 10.0)]
        steps += [("plain forward", self._plain_forward, 0.1)]
        steps += [("batches", lambda: judge_batches(self.base), 0.1)]
        steps += [("shared prefix", lambda: judge_shared(self.base), 0.1)]
        if not quick:
            steps += [("engines", self._engines, 5.0), ("number formats", self._formats, 22.0)]
        steps += [("repeatability", self._repeats, 8.0 * self._restarts), ("tools", self._tools, 12.0)]
        if not quick or self.wanted.study:
            steps += [("study", self._study, 25.0)]
        if not quick:
            steps += [("speed", lambda: judge_speed(self.base), 0.1)]
        if self.wanted.other:
            steps += [("against", self._against, 0.1)]
        return [step for step in steps if not only or step[0] in only]

    @property
    def _restarts(self) -> int:
        return 1 if self.wanted.quick else self.wanted.restarts

    def run(self, begin: Callable[[int, int, str, float], None]) -> Generator[Check, None, None]:
        """Yields each check as it is done. `begin` is told before each: its number, how many there are, its
        name, and about how many seconds are left."""
        os.environ.update(environment(models_root()))  # which the processes inherit: no network
        plan, began = self.plan, time.monotonic()
        costs = [cost for _, _, cost in plan]
        for number, (name, find, _) in enumerate(plan):
            done = sum(costs[:number])
            pace = (time.monotonic() - began) / done if done > 10 else 1.0
            begin(number + 1, len(plan), name, pace * sum(costs[number:]))
            start = time.monotonic()
            check = replace(self._tried(name, find), seconds=round(time.monotonic() - start, 2))
            self.checks.append(check)
            yield check

    def _tried(self, name: str, find: Callable[[], Check]) -> Check:
        try:
            return find()
        except UserError as error:
            return judged(name, [f"{name} could not be run: {error}"], "")
        except Exception as error:  # a fault that is planted anywhere may show as any exception
            said = " ".join(str(error).split())[:300] or "no message"
            return judged(name, [f"{name} could not be run: {type(error).__name__}: {said}"], "")

    def leave_out(self) -> None:
        """After Ctrl-C: marks the checks that were not reached."""
        self.interrupted = True
        done = {check.name for check in self.checks}
        self.checks += [not_run(name, "interrupted") for name, _, _ in self.plan if name not in done]

    def apart(self, task: Callable[..., Any], *args: Any) -> Any:
        return in_fresh_process(task, *args, timeout=self.wanted.timeout)

    @cached_property
    def probes(self) -> dict[str, str]:
        """The probes' hashes by name; the pictures are written."""
        made = make_probes()
        write_probes(made, self.scratch)
        return {probe.name: probe.sha256 for probe in made}

    @cached_property
    def identity(self) -> dict[str, Any]:
        return identity_of(self.wanted.settings)

    @cached_property
    def _base(self) -> dict[str, Any] | UserError:
        try:
            return self.apart(read_set_up, *self.set_up, not self.wanted.quick)
        except UserError as error:  # kept, so that each check that needs it says so without trying again
            return error

    @property
    def base(self) -> dict[str, Any]:
        """What the set-up's own engine reads. Raises UserError."""
        if isinstance(self._base, UserError):
            raise self._base
        return self._base

    @cached_property
    def plain(self) -> dict[str, Any]:
        options = self.wanted.settings.model(self.wanted.settings.summarizer.backend)
        boxes = {name: seen["box"] for name, seen in self.base["seen"].items()}
        return self.apart(plain_forward, options, self.wanted.device, self.scratch, boxes)

    @property
    def set_up(self) -> tuple[Settings, str, Path, list[str]]:
        return self.wanted.settings, self.wanted.device, self.scratch, list(self.probes)

    @property
    def engine(self) -> str:
        return self.wanted.settings.summarizer.backend.partition(".")[0]

    @property
    def folder(self) -> Path:
        return self.wanted.settings.folder(self.wanted.settings.summarizer.backend)

    @property
    def has_weights(self) -> bool:
        """Whether the model's weights lie here; for a server the processor's files alone will do."""
        return any(self.folder.glob("*.safetensors"))

    @property
    def certificate(self) -> Certificate:
        """What was read and measured so far."""
        base = self.__dict__.get("_base")
        model = None
        if isinstance(base, dict):
            model = Readings(
                about=base["about"],
                letters=base["letters"],
                seen=base["seen"],
                prompt=base["model"].get("prompt"),
                tokens=base["model"]["letters"],
            )
        measured = self.measured_tools or {"scores": {}, "about": {}}
        return Certificate(
            made={
                "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
                "commit": commit(),
                "model": self.folder.resolve().name,
            },
            identity=self.identity,
            probes=self.probes,
            model=model,
            others={name: arm["letters"] for name, arm in self.arms.items()},
            tools=Tools(scores=measured["scores"], about=measured["about"]),
        )

    def _doctor(self) -> Check:
        wanted = self.wanted
        found = list(
            examine(
                wanted.settings, gpu=wanted.gpu, cpu=wanted.cpu or wanted.device == "cpu", quick=wanted.quick
            )
        )
        problems = [f"{one.name}: {one.found} ({one.remedy})" for one in found if one.status == "fail"]
        warnings = [f"{one.name}: {one.found}" for one in found if one.status == "warn"]
        rows = [{"comparison": one.name, "found": one.found, "within": one.status != "fail"} for one in found]
        return judged("doctor", problems, f"{len(found)} checks of the set-up, none failed", rows, warnings)

    def _record(self) -> Check:
        record, is_ours = shipped_record(self.folder)
        if not is_ours:
            return not_run(
                "record", f"no record of {self.folder.name} ships; compare machines with --against"
            )
        _ = self.base
        return judge_record(self.certificate, record)

    def _inputs(self) -> Check:
        if not self.has_weights:
            return not_run("inputs", NO_WEIGHTS)
        options = self.wanted.settings.model(self.wanted.settings.summarizer.backend)
        holds = bool(self.base["model"].get("holds_in_bfloat16"))
        dtype = choose_dtype(options.dtype, self.wanted.device, holds)
        return judge_inputs(self.base, self.plain, dtype if self.engine == "transformers" else None)

    def _plain_forward(self) -> Check:
        return (
            judge_plain(self.base, self.plain) if self.has_weights else not_run("plain forward", NO_WEIGHTS)
        )

    def _engines(self) -> Check:
        others = {name: self._other(name) for name in ENGINES if name != self.engine}
        ran = {label_of(arm["about"]): arm for arm in others.values() if "missing" not in arm}
        self.arms |= ran
        return judge_engines(self.base, others)

    def _other(self, engine: str) -> dict[str, Any]:
        """The letters by another engine, or why there are none."""
        settings, device, *rest = self.set_up
        if engine != "transformers" and find_spec("vllm") is None:
            return {"missing": "vLLM is not installed here"}
        if not self.has_weights:
            return {"missing": NO_WEIGHTS}
        try:
            if engine != "server":
                return self.apart(read_alone, settings.with_options(engine=engine), device, *rest)
            options = settings.model(settings.summarizer.backend)
            dtype = str(self.base["about"]["dtype"])
            with served(options, dtype, device, min(900.0, self.wanted.timeout)) as address:
                to_server = with_format(
                    settings.with_options(engine="server"), server=address, served_name=None, exact=False
                )
                return self.apart(read_alone, to_server, device, *rest)
        except UserError as error:
            return {"missing": one_line(str(error))}

    def _formats(self) -> Check:
        settings, device, *rest = self.set_up
        if not self.has_weights:
            return not_run("number formats", NO_WEIGHTS)
        formats = formats_on(device, self.base["about"])
        arms = self.apart(read_formats, settings.with_options(engine="transformers"), device, *rest, formats)
        return judge_formats(self.base, arms)

    def _repeats(self) -> Check:
        _ = self.base
        names = [f"fresh process {number + 1}" for number in range(self._restarts)]
        return judge_repeats(self.base, {name: self.apart(read_alone, *self.set_up) for name in names})

    def _tools(self) -> Check:
        settings, device, *rest = self.set_up
        self.measured_tools = self.apart(tools_of.measure_tools, settings, device, *rest)
        on_cpu = None if device == "cpu" else self.apart(tools_of.measure_tools, settings, "cpu", *rest)
        record, _ = shipped_record(self.folder)
        alike = {name for name, digest in record.probes.items() if self.probes.get(name) == digest}
        recorded = {
            "scores": {
                tool: {name: value for name, value in scores.items() if name in alike}
                for tool, scores in record.tools.scores.items()
            },
            "about": record.tools.about,
        }
        assert self.measured_tools
        check = tools_of.judge_tools(self.measured_tools, recorded, device, on_cpu)
        return check

    def _study(self) -> Check:
        settings, device, *_ = self.set_up
        return judge_study(self.apart(run_study, settings, device, self.wanted.study))

    def _against(self) -> Check:
        assert self.wanted.other
        _ = self.base
        return judge_against(self.certificate, *self.wanted.other)
