"""Every check in its order; what rests on a failed one is left out."""

from collections.abc import Callable, Generator, Iterator

from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools.specs import TOOLS
from agentic_iqa_local.offline.doctor import folders, machine, memory, models, tools
from agentic_iqa_local.offline.doctor.checks import Check, Examination, Setup
from agentic_iqa_local.offline.doctor.process import Apart

TIMEOUT = 300.0


def examine(
    settings: Settings,
    *,
    gpu: str | None = None,
    cpu: bool = False,
    quick: bool = False,
    timeout: float = TIMEOUT,
) -> Generator[Check, None, None]:
    """Yields every check of a configuration on a device as it is done; what rests on a failed one is left
    out.

    `gpu` and `cpu` as in `choose_device`. `quick` loads no model and no tool and reads no file whole: for a
    health check. A check may take `timeout` seconds.
    """
    setup = Setup(settings, gpu, cpu, quick)
    with Apart(setup, timeout) as apart:
        yield from examinations(setup, apart.ask)


def examinations(setup: Setup, ask: Callable[..., Check | None]) -> Iterator[Check]:
    """The checks of a set-up in their order, each carried out by `ask(examination, *about)`."""
    failed: set[str] = set()

    def results(examination: Examination, *about: str) -> Iterator[Check]:
        if result := ask(examination, *about):
            if result.status == "fail":
                failed.add(result.name)
            yield result

    for examination in (
        machine.python,
        machine.packages,
        machine.torch_build,
        machine.device,
        folders.models_folder,
    ):
        yield from results(examination)
    for name in folders.CACHES:
        yield from results(folders.cache, name)
    yield from results(folders.score_cache)
    for backend in setup.backends:
        yield from results(models.model_folder, backend)
    if machine.device.name() in failed:
        return
    yield from results(machine.vllm)
    usable = [backend for backend in setup.backends if models.model_folder.name(backend) not in failed]
    if usable == setup.backends:
        yield from results(memory.memory)
    for backend in () if setup.quick else usable:
        yield from results(models.model, backend)
        if models.model.name(backend) not in failed:
            yield from results(models.letters, backend)
    yield from results(tools.tools)
    if tools.tools.name() not in failed:
        for name in dict.fromkeys(setup.named_tools if setup.quick else (*setup.named_tools, *TOOLS)):
            yield from results(tools.tool, name)
