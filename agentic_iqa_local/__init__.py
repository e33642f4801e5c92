"""An image quality assessment agent that runs wholly on this machine.

    from agentic_iqa_local import assess
    result = assess("photo.jpg")
    print(result.final_answer, result.q, result.p_c)

Importing the package loads neither torch nor pyiqa nor a model; the first call does.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "assess": "assessment",
    "Assessment": "assessment",
    "run_pipeline": "graph",
    "visualize_graph": "graph",
    "ScoreFusion": "score_fusion",
}

__all__ = ["Assessment", "ScoreFusion", "assess", "run_pipeline", "visualize_graph"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
