"""Pictures as tensors, and a quicker float64 convolution on a CPU.

The convolution's numbers stay but for rounding in the last bits. torch copies each pixel's
neighbourhood out before it multiplies (im2col): SSIM's window of 11×11 pixels makes 11.6 GB of a
picture of 12 megapixels. Shifted pictures, times their weights, are added up instead.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Of output at a time: they stay in the cache, and torch shares out among threads only what has
# 32768 elements
MOST_PIXELS = 2**15 - 1


def as_tensor(picture: Image.Image | np.ndarray, device: Any) -> Tensor:
    """An RGB picture, as an image or H×W×3 uint8 → 1×3×H×W float32 in 0..1 on the device."""
    pixels = torch.from_numpy(np.array(picture)).to(device)
    return pixels.permute(2, 0, 1)[None].float() / 255


class CPUKernels(TorchFunctionMode):
    """While it is active in a thread, torch.conv2d with one filter a channel, stride 1 and no
    padding is computed here."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict | None = None
    ) -> Any:
        if func is torch.conv2d:
            func = _conv2d
        return func(*args, **(kwargs or {}))


def _conv2d(
    x: Tensor, weight: Tensor, bias=None, stride=1, padding=0, dilation=1, groups=1
) -> Tensor:
    on_cpu = (x.dtype, x.device.type, x.ndim) == (torch.float64, "cpu", 4)
    one_filter_each = tuple(weight.shape[:2]) == (groups, 1)
    plain = (bias, stride, padding, dilation) == (None, 1, 0, 1)
    if not (on_cpu and one_filter_each and plain):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    x = x.contiguous()
    tall, wide = weight.shape[2:]
    height, width = x.shape[2] - tall + 1, x.shape[3] - wide + 1
    result = x.new_zeros(len(x), groups, height, width)
    rows = max(1, MOST_PIXELS // width)
    for channel, taps in enumerate(weight[:, 0].tolist()):
        for top in range(0, height, rows):
            sums = result[:, channel, top : top + rows]
            for i, line in enumerate(taps):
                part = x[:, channel, top + i : top + i + sums.shape[1]]
                for j, tap in enumerate(line):
                    sums.add_(part[..., j : j + width], alpha=tap)
    return result
