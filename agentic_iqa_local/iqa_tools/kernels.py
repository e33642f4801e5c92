"""Pictures as tensors, an encoder's blocks in bands of rows, and a quicker float64 convolution on a
CPU.

The convolution's numbers stay but for rounding in the last bits. torch copies each pixel's
neighbourhood out before it multiplies (im2col): SSIM's window of 11×11 pixels makes 11.6 GB of a
picture of 12 megapixels. Shifted pictures, times their weights, are added up instead.
"""

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.layers.norm_act import BatchNormAct2d
from timm.layers.padding import pad_same_arg
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

# Of output at a time: they stay in the cache, and torch shares out among threads only what has
# 32768 elements
MOST_PIXELS = 2**15 - 1
MOST_NUMBERS = 2**19  # of a block's widest features at a time: 2 MiB, which a cache holds


def as_tensor(picture: Image.Image | np.ndarray, device: Any) -> Tensor:
    """An RGB picture, as an image or H×W×3 uint8 → 1×3×H×W float32 in 0..1 on the device."""
    pixels = torch.from_numpy(np.array(picture)).to(device)
    return pixels.permute(2, 0, 1)[None].float().div_(255)


def fold_norms(encoder: nn.Module) -> None:
    """Gives the convolutions of timm's encoder the numbers of the batch norms after them, of which
    only the activations are left: the same numbers but for rounding."""
    for conv, norm in pairwise([*encoder.modules()]):
        if isinstance(norm, BatchNormAct2d):
            _fold(conv, norm)


def _fold(conv: Any, norm: Any) -> None:
    seen = norm.running_mean, norm.running_var, norm.eps
    scale = norm.weight, norm.bias
    conv.weight, conv.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *seen, *scale)
    norm.forward = norm.act.forward


def work_in_bands(encoder: Any) -> None:
    """Has the blocks of EfficientNet's first stages, whose features are the largest, worked a band
    of rows at a time."""
    for stage in encoder.blocks[:4]:
        for block in stage:
            layers = [*block.children()]
            middle = layers.index(block.conv_dw)
            before, after = nn.Sequential(*layers[:middle]), nn.Sequential(*layers[middle + 1 :])
            block.forward = functools.partial(_in_bands, block, before, after)


def _in_bands(block: Any, before: nn.Module, after: nn.Module, features: Tensor) -> Tensor:
    """What a block of timm's EfficientNet makes of 1×C×H×W features. Its layers `before` the
    depthwise convolution make six times as many features: a band of them stays in the cache, where
    all would go through the memory."""
    conv = block.conv_dw
    size, stride = conv.kernel_size[0], conv.stride[0]
    height, width = features.shape[2:]
    left, right, above, below = pad_same_arg([height, width], conv.kernel_size, conv.stride)
    rows = (height + above + below - size) // stride + 1
    band = max(1, MOST_NUMBERS // (conv.in_channels * width * stride))
    bands = []
    for top in range(0, rows, band):
        bottom = min(top + band, rows)
        first, end = top * stride - above, (bottom - 1) * stride + size - above
        part = before(features[:, :, max(first, 0) : min(end, height)])
        part = pad(part, (left, right, max(-first, 0), max(end - height, 0)))
        part = after(torch.conv2d(part, conv.weight, conv.bias, stride, groups=conv.groups))
        if block.has_skip:
            part += features[:, :, top:bottom]
        bands.append(part)
    return torch.cat(bands, 2)


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
