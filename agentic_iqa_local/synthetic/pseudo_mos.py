"""The target quality of a distorted photograph: a pseudo-MOS from full-reference metrics against the clean
original.

The mean of four weight-free metrics, each on the 1..5 scale through its map. FSIM and GMSD go through the
human-fitted maps of AgenticIQA's Table 5; VSI and NLPD through maps fitted to the mean of Table 5's FSIM,
SSIM, VIF and GMSD (configs/tool_maps.yaml names the fit), so that the scale is theirs and not a rank. A clean
photograph comes out below 5, as those maps do.
"""

import numpy as np
from PIL import Image

from agentic_iqa_local.iqa_tools import ToolRunner

METRICS = ("FSIM", "VSI", "GMSD", "NLPD")


class PseudoMos:
    """Metrics built once; `__call__(image, clean)` takes uint8 H×W×3 and returns the pseudo-MOS, 1..5."""

    def __init__(self, device: str = "cpu"):
        self.runner = ToolRunner(device=device)

    def __call__(self, image: np.ndarray, clean: np.ndarray) -> float:
        test, reference = Image.fromarray(image), Image.fromarray(clean)
        return float(np.mean([self.runner.score(metric, test, reference).normalized for metric in METRICS]))
