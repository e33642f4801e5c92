"""Quicker ways through two float64 operations for which torch has only a slow kernel on a CPU; the numbers
stay but for rounding in the last bits.

- conv2d copies each pixel's neighbourhood out before it multiplies (im2col): SSIM's window of 11×11 pixels
  makes 11.6 GB of a picture of 12 megapixels. Shifted pictures, times their weights, are added up instead, a
  few rows at a time.
- pow with exponent 4 was half of MAD's time; squaring twice is several times faster.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

# Of output at a time. They stay in the cache, and torch shares out among threads only what has 32768
# elements: where other work has the cores, thousands of small operations that wait for all their threads take
# ten times as long.
MOST_PIXELS = 2**15 - 1


class CPUKernels(TorchFunctionMode):
    """While it is active in a thread, calls of torch.conv2d and torch.pow go through the quicker ways where
    these apply."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if (
            args
            and isinstance(args[0], torch.Tensor)
            and args[0].dtype == torch.float64
            and args[0].device.type == "cpu"
        ):
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
    """torch.conv2d, by few rows of each channel of its output."""
    if bias is not None or isinstance(padding, str) or _pair(dilation) != (1, 1) or x.ndim != 4:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (down, across), (above, beside) = _pair(stride), _pair(padding)
    x = pad(x, (beside, beside, above, above)).contiguous()
    filters, depth, tall, wide = weight.shape
    height, width = (x.shape[2] - tall) // down + 1, (x.shape[3] - wide) // across + 1
    result = x.new_zeros(x.shape[0], filters, height, width)
    rows = max(1, MOST_PIXELS // width)
    for n, channel in enumerate(weight.tolist()):
        first = n // (filters // groups) * depth
        for picture, output in zip(x[:, first : first + depth], result[:, n], strict=True):
            for top in range(0, height, rows):
                sums = output[top : top + rows]
                for source, taps in zip(picture, channel, strict=True):
                    for i, line in enumerate(taps):
                        for j, tap in enumerate(line):
                            begin, end = i + top * down, i + (top + len(sums) - 1) * down + 1
                            sums.add_(
                                source[begin:end:down, j : j + (width - 1) * across + 1 : across], alpha=tap
                            )
    return result


def _pair(size: Any) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)
