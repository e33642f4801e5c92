"""An image quality assessment agent that runs wholly on this machine.

    from agentic_iqa_local import IQA, assess, compare
    result = assess("photo.jpg")  # the embedded set-up
    print(result.level, result.q, result.p)
    print(compare("before.jpg", "after.jpg").probability)  # that the first is better
    with IQA(config="qwen2_5_vl_7b", gpu=0) as iqa:
        results = iqa(["photo.jpg", array, pillow_image])
        conversation = iqa.open("photo.jpg")
        conversation.ask("Rate it")
        conversation.ask("Is the sky noisy?")

Importing the package loads neither torch nor pyiqa nor a model; the first call does.
"""

import importlib
import os
from typing import Any

# torch's threads sleep while they wait for each other. By default they spin, and on a machine that does
# other work too a picture then takes three to eight times as long. Read once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"

_PUBLIC = {
    "IQA": "api",
    "Conversation": "api",
    "assess": "judgement.assessment",
    "Assessment": "result",
    "Comparison": "judgement.comparison",
    "Ranking": "judgement.comparison",
    "compare": "judgement.comparison",
    "rank": "judgement.comparison",
    "explain": "output.comparison_report",
    "run_pipeline": "graph",
    "visualize_graph": "graph",
    "ScoreFusion": "score_fusion",
}

__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
