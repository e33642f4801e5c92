"""Builds pyiqa's metrics, offline: the only module that imports pyiqa, and that only when a metric is built.

Nothing is ever fetched. While a metric is built every downloader in its reach raises, and so does loading any
file but the weights of the models folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentic_iqa_local.iqa_tools.qalign import llama_kept
from agentic_iqa_local.iqa_tools.specs import DATA, ToolError, ToolSpec
from agentic_iqa_local.iqa_tools.weights import Weights
from agentic_iqa_local.offline.store import environment

# torch, pyiqa and huggingface_hub are imported inside functions: they take seconds, and most commands do
# without them.


def create_metric(spec: ToolSpec, weights: Weights, device: str) -> Any:
    """pyiqa's metric, built on `device` from files of `weights` alone. Raises nearly anything."""
    options = {"pretrained_model_path": str(DATA / spec.bundled)} if spec.bundled else {}
    pyiqa = import_pyiqa(weights.root)
    with _offline(weights), llama_kept(spec):
        return pyiqa.create_metric(spec.metric, device=device, **options)


def import_pyiqa(root: Path) -> Any:
    """pyiqa with all its metrics' modules; `root` is the models folder. For a moment this changes the Llama
    that models run on, see `qalign`."""
    keep_offline(root)
    # NIQE warns so of a picture with less than two blocks that have texture; its score is refused later, with
    # a reason.
    warnings.filterwarnings("ignore", message=r"cov\(\): degrees of freedom is <= 0")
    with contextlib.redirect_stdout(sys.stderr), llama_kept():
        import pyiqa
        from pyiqa import archs

        # now rather than with some metric: Q-Align is among them, see llama_kept
        archs._lazy_import_arch("all of them")
    return pyiqa


def keep_offline(root: Path) -> None:
    """Points torch and huggingface_hub to the models folder `root`, without a network, in the whole
    process."""
    # Set before anything imports huggingface_hub: without them every missing file costs half a minute of
    # retries.
    os.environ.update(environment(root))
    if "huggingface_hub" in sys.modules:  # too late for the environment: the flag was read at its import
        sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE = True


_BUILDING = threading.Lock()  # what is replaced while a metric is built belongs to the whole process


@contextlib.contextmanager
def _offline(weights: Weights) -> Iterator[None]:
    """While a metric is built: it loads `weights` alone, downloads raise, and what pyiqa prints goes to
    stderr.

    Only the building thread is restricted: another may be loading a model or talking to a local model server
    meanwhile.
    """
    with _BUILDING:
        replaced = _replacements(weights, threading.get_ident())
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        try:
            for owner, name, value in replaced:
                setattr(owner, name, value)
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            for owner, name, value in originals:
                setattr(owner, name, value)


def _replacements(weights: Weights, builder: int) -> list[tuple[Any, str, Any]]:
    """(module, attribute, value) of what holds while the thread `builder` builds a metric."""
    import urllib.request

    import huggingface_hub
    import torch.hub
    from pyiqa.utils import download_util

    def refuse(url: Any, *args: Any, **kwargs: Any) -> None:
        raise ToolError(
            f"Refused to download {getattr(url, 'full_url', url)}: expected the file below {weights.hub}."
        )

    def for_builder(original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (instead if threading.get_ident() == builder else original)(
            *args, **kwargs
        )

    functions = [
        (torch, "load", functools.partial(weights.load, torch.load)),
        (torch.jit, "load", functools.partial(weights.load_script, torch.jit.load)),
        (torch, "save", lambda *_, **__: None),  # LIQE would leave a pickle beside the weights
        (download_util, "download_url_to_file", refuse),  # pyiqa's
        (torch.hub, "download_url_to_file", refuse),  # torchvision's too
        (urllib.request, "urlopen", refuse),  # CLIP's
    ]
    return [
        *((owner, name, for_builder(getattr(owner, name), instead)) for owner, name, instead in functions),
        (download_util, "DEFAULT_CACHE_DIR", str(weights.hub / "pyiqa")),
        (torch.hub, "_hub_dir", str(weights.hub)),
        # read at import, maybe of another folder
        (huggingface_hub.constants, "HF_HUB_CACHE", str(weights.huggingface)),
    ]
