"""Workspaces of weight gradients of depthwise convolutions with large kernels, in channels-last layout.

On compute capability 8.0, kernels for float32 read vectors of four channels. A depthwise convolution has one channel in
a group, so the copies of input and output are four times as large, and those of the weight sixteen times: 1.2 GB for
the first stage of ConvNeXt-Large at 320 pixels and batch 32, where no other convolution of it takes a quarter of that.

Read off cuDNN 9.20's answers on a null A100 and checked against measured networks whose cuDNN is 9.1 (decision 0008).
On 8.9 and 9.0 cuDNN chooses such a kernel for half of the same calls, on 7.5 and 8.6 for a few.

A module of its own: its constants were read off answers for this kind of call alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cotenant.tracing.convolution_backend import is_depthwise

_CAPABILITY = (8, 0)
_ITEM_BYTES = 4
_VECTOR = 4
"""Channels of float32 in 16 bytes."""
_LARGE_KERNEL = 7
_CHANNELS = 64
_FEW_PIXELS = 3_000
"""Up to so many channels, or pixels of all images times the stride, another kernel runs, without a workspace."""
_FEW_IMAGES = 8
_MANY_PIXELS = 60_000
_SMALL_IMAGE = 16
_MEDIUM_PIXELS = 12_544


def wgrad_bytes(kind: str, p: Mapping[str, Any], capability: tuple[int, int]) -> int | None:
    """Workspace of the call `kind` with parameters `p`; None if it is none of these gradients."""
    if kind != "conv_wgrad" or p["dtype"] != "float32" or not p["channels_last"] or not p.get("allow_tf32", True):
        return None
    kernel = p["w"][2:]
    if capability != _CAPABILITY or not is_depthwise(p) or len(kernel) != 2 or min(kernel) < _LARGE_KERNEL:
        return None
    channels, pixels = p["x"][1], p["y"][0] * math.prod(p["y"][2:])
    if channels <= _CHANNELS or pixels <= _FEW_PIXELS * max(p["stride"]):
        return 0
    outputs = math.ceil(p["w"][0] // channels / _VECTOR) * _VECTOR * channels
    elements: int = _VECTOR * math.prod(p["x"]) + pixels * outputs
    elements += _parts(p["y"], pixels) * _VECTOR * outputs * math.prod(kernel)
    return _ITEM_BYTES * elements


def _parts(y: tuple[int, ...], pixels: int) -> int:
    """Copies of the weight: parts that are summed, and their sum where there are several."""
    if y[0] <= _FEW_IMAGES or pixels > _MANY_PIXELS:
        return 1
    return 17 if max(y[2:]) <= _SMALL_IMAGE and pixels <= _MEDIUM_PIXELS else 33
