"""Quicker ways through two float64 operations for which torch has only a slow kernel on a CPU; the numbers stay but for rounding
in the last bits.

- conv2d copies each pixel's neighbourhood out before it multiplies (im2col): SSIM's window of 11×11 pixels makes 11.6 GB of a
  picture of 12 megapixels. A few rows at a time stay in the cache, and take a tenth of the time or less.
- pow with exponent 4 was half of MAD's time; squaring twice is several times faster.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

MOST_BYTES = 2**20  # of copied neighbourhoods at a time: about what a core's cache holds


class CPUKernels(TorchFunctionMode):
    """While it is active in a thread, calls of torch.conv2d and torch.pow go through the quicker ways where these apply."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64 and args[0].device.type == "cpu":
            if func is torch.pow and args[1:] == (4.0,) and not kwargs:
                return args[0].square().square()
            if func is torch.conv2d:
                return _conv2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """torch.conv2d, by groups of channels and by rows of its output."""
    if bias is not None or isinstance(padding, str) or _pair(dilation) != (1, 1) or x.ndim != 4:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (down, across), (above, beside) = _pair(stride), _pair(padding)
    x = pad(x, (beside, beside, above, above))
    tall, wide = weight.shape[2:]
    height, width = (x.shape[2] - tall) // down + 1, (x.shape[3] - wide) // across + 1
    result = x.new_empty(x.shape[0], weight.shape[0], height, width)
    rows = max(1, MOST_BYTES // (weight[0].numel() * width * x.element_size()))
    for inputs, kernels, outputs in zip(x.chunk(groups, 1), weight.chunk(groups), result.chunk(groups, 1), strict=True):
        for top in range(0, height, rows):
            bottom = min(height, top + rows)
            source = inputs[:, :, top * down : (bottom - 1) * down + tall].contiguous()
            outputs[:, :, top:bottom] = torch.conv2d(source, kernels, None, stride)
    return result


def _pair(size: Any) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)
