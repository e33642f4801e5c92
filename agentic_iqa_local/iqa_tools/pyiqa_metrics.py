"""Builds pyiqa's metrics, offline: the only module that imports pyiqa, and that only when a metric
is built.

torch, pyiqa and huggingface_hub are imported inside functions: they take seconds, and most commands
do without them.
"""

import contextlib
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from agentic_iqa_local.iqa_tools.specs import DATA, ToolError, ToolSpec
from agentic_iqa_local.iqa_tools.weights import ListedFiles

# what is replaced while a metric is built belongs to the whole process
_BUILDING = threading.Lock()


def create_metric(spec: ToolSpec, files: ListedFiles, device: str) -> Any:
    """pyiqa's metric, built on `device` from files of the models folder alone. Raises nearly
    anything."""
    options: dict[str, Any] = {}
    if spec.bundled:
        options["pretrained_model_path"] = str(DATA / spec.bundled)
    # NIQE warns so of a picture with less than two blocks that have texture; its score is refused
    # later
    warnings.filterwarnings("ignore", message=r"cov\(\): degrees of freedom is <= 0")
    with _BUILDING, contextlib.redirect_stdout(sys.stderr), llama_kept(spec.metric):
        import pyiqa

        with _offline(files), without_q_align(spec.metric):
            return pyiqa.create_metric(spec.metric, device=device, **options)


@contextlib.contextmanager
def without_q_align(metric: str) -> Iterator[None]:
    """pyiqa imports all of its modules for a metric whose module has another name. Among them is
    Q-Align, which takes seconds and changes the Llama that models may be running on."""
    name = "pyiqa.archs.q_align"
    if metric == "qalign" or name in sys.modules:
        yield
        return
    sys.modules[name] = None  # pyright: ignore[reportArgumentType]  # its import raises
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def llama_kept(metric: str = "") -> Iterator[None]:
    """Restores transformers' Llama afterwards. pyiqa's Q-Align replaces parts of it when it is
    imported, which would break every other Llama in the process; while `metric` "qalign" is built
    or runs they are put in."""
    from transformers.models.llama import configuration_llama, modeling_llama

    model, causal = modeling_llama.LlamaModel, modeling_llama.LlamaForCausalLM
    owners = (configuration_llama, modeling_llama, model, causal)
    before = [dict(vars(owner)) for owner in owners]
    if metric == "qalign":
        from pyiqa.archs.q_align.modeling_llama2 import replace_llama_modality_adaptive

        replace_llama_modality_adaptive()
    try:
        yield
    finally:
        for owner, parts in zip(owners, before, strict=True):
            for name, value in list(vars(owner).items()):
                if name not in parts:
                    delattr(owner, name)
                elif parts[name] is not value:
                    setattr(owner, name, parts[name])


@contextlib.contextmanager
def _offline(files: ListedFiles) -> Iterator[None]:
    """While a metric is built: it finds its files in the models folder, loads tensors alone of
    pickles, downloads raise, and what pyiqa prints goes to stderr."""
    import torch

    def refuse(url: Any, *_: Any, **__: Any) -> None:
        address = getattr(url, "full_url", url)
        raise ToolError(f"Refused to download {address}: expected the file below {files.hub}.")

    original = torch.load

    def load(file: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(file, *args, **(options | {"weights_only": True}))
        except pickle.UnpicklingError as error:
            mistake = f"{file}: expected weights alone, got code, which was not run"
            raise ToolError(mistake) from error

    replaced = {
        "torch.load": load,
        "torch.save": lambda *_, **__: None,  # LIQE would leave a pickle beside the weights
        "pyiqa.utils.download_util.download_url_to_file": refuse,
        "torch.hub.download_url_to_file": refuse,  # torchvision's too
        "urllib.request.urlopen": refuse,  # CLIP's
        "pyiqa.utils.download_util.DEFAULT_CACHE_DIR": str(files.hub / "pyiqa"),
        "torch.hub._hub_dir": str(files.hub),
        # a missing file would cost half a minute of retries
        "huggingface_hub.constants.HF_HUB_OFFLINE": True,
        "huggingface_hub.constants.HF_HUB_CACHE": str(files.huggingface),  # read at import
    }
    from unittest.mock import patch  # which imports asyncio

    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield
