"""What is loaded once and then kept: settings, models and tools; and who may watch their calls.
What one assessment does with them is in `nodes/workbench.py`."""

import functools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from agentic_iqa_local.config import (
    ConfigError,
    RoleSettings,
    Settings,
    fitted,
    load_settings,
)
from agentic_iqa_local.devices import choose_device
from agentic_iqa_local.files import models_root
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
from agentic_iqa_local.iqa_tools.specs import find_tool
from agentic_iqa_local.iqa_tools.weights import BundleError, ListedFiles, environment
from agentic_iqa_local.vlm_client import VLMClient, VLMError, create_vlm_client

MODEL = "the model"


class Services:
    """Settings, one client for each distinct model, and the tools; all loaded on first use and then
    kept."""

    def __init__(
        self,
        settings: Settings,
        device: str = "cpu",
        clients: Mapping[str, VLMClient] | None = None,
        tools: ToolRunner | None = None,
    ):
        os.environ.update(environment(models_root(settings.models_dir)))
        self.clients = dict(clients or {})  # by backend
        self.settings = fitted(settings, self.clients.get(settings.summarizer.backend))
        self.device = device
        self._tools = tools
        self._loading = threading.Lock()
        self.seconds_loading = 0.0  # that models took to load

    @property
    def tools(self) -> ToolRunner:
        self._tools = self._tools or tools_of(self.settings, self.device)
        return self._tools

    def leading(self, tools: Sequence[str], beside: Iterable[str] = ()) -> list[str]:
        """Those of `tools` that have a vote: not one that another of them, or a tool `beside` them,
        clearly leads, unless the configuration lets all vote."""
        if self.settings.fusion.trailing_tools == "vote":
            return [*tools]
        return self.tools.reliability.leading(tools, beside)

    def prepare_tools(self) -> None:
        """Imports and builds what the configured tools need. Raises ConfigError for one that cannot
        be built."""
        try:
            self.tools.prepare(self.settings.tools.all_configured)
        except ToolError as error:
            raise ConfigError(f"tools: {error.message}", error.remedy) from error

    def section(self, role: str) -> RoleSettings:
        return self.settings.role(role)

    def model_trust(self, role: str) -> float:
        """How far the role's model's own word of distortions counts, 0..1: by the configuration,
        else by its folder."""
        configured = self.settings.fusion.model_trust
        return self.client(role).trust if configured is None else configured

    def client(self, role: str) -> VLMClient:
        """The role's model. Raises VLMError when it cannot be loaded."""
        return self.client_of(self.section(role).backend)

    def client_of(self, backend: str) -> VLMClient:
        """The model that a backend names. Raises VLMError when it cannot be loaded."""
        with self._loading:
            if backend not in self.clients:
                settings = self.settings
                try:
                    listed = ListedFiles(models_root(settings.models_dir))
                    listed.check_model(settings.folder(backend))
                except BundleError as error:
                    raise VLMError(error.message, error.remedy) from error
                model, began = settings.model(backend), time.perf_counter()
                self.clients[backend] = create_vlm_client(backend, model, self.device)
                self.seconds_loading += time.perf_counter() - began
            return self.clients[backend]

    def close(self) -> None:
        """Frees the models and the tools; they would be loaded anew on the next use."""
        from accelerate.utils.memory import clear_device_cache

        with self._loading:
            while self.clients:
                self.clients.popitem()[1].close()
        self._tools = None
        clear_device_cache(garbage_collection=True)


def tools_of(settings: Settings, device: str = "cpu", *others: str) -> ToolRunner:
    """The tools. Nothing is loaded yet.

    Args:
        settings: A configuration.
        device: Where they will compute.
        others: Tools that have to run here too, beside those that the configuration names.

    Raises:
        ConfigError: The configuration names a tool that there is not or is of the other kind, or one of these
            tools cannot run here.
    """
    for key in ("full_reference", "no_reference", "not_offered"):
        for name in getattr(settings.tools, key):
            try:
                tool = find_tool(name)
            except ToolError as error:
                raise ConfigError(f"tools.{key}: {error.message}", error.remedy) from None
            if tool.name != name:
                raise ConfigError(f"tools.{key}: expected {tool.name}, got {name!r}")
            if key == "no_reference" and tool.reference == "FR":
                mistake = f"tools.{key}: expected tools without a reference, got {name}"
                raise ConfigError(mistake, "list it under full_reference")
    tools = ToolRunner(device, settings.tools.maps, settings.models_dir, settings.tools.eye)
    unavailable = tools.unavailable([*settings.tools.all_configured, *others])
    if unavailable:
        reasons = "; ".join(f"{name} cannot run here: {why}" for name, why in unavailable.items())
        raise ConfigError(f"tools: {reasons}", "bring what is missing, or name other tools")
    return tools


class Observer:
    """Sees every call of the model and of a tool that an assessment makes, and lets all of them
    pass."""

    def step(self, role: str, state: str, round: int = 1, what: str | None = None) -> None:
        """A role, or what it does, has "started" or "finished", in the agent's first pass or a
        later one."""

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """A call of MODEL, or of a tool by its name, or the opening of "the picture"."""
        yield

    @contextmanager
    def measuring(self, tool: str, services: Services) -> Iterator[ToolRunner]:
        """A measurement, with the tools that are to make it."""
        self.step("tool", "started", what=tool)
        with self.calling(tool):
            yield services.tools
        self.step("tool", "finished", what=tool)


@functools.lru_cache(maxsize=4)
def load_services(config: str | None = None, device: str | None = None) -> Services:
    """Services of a configuration, kept for the next call. `config` as in `config.find_config`; the
    device defaults to a GPU if there is one."""
    return Services(load_settings(config), device or choose_device())
