"""Workspaces of weight gradients of depthwise convolutions with large kernels, in channels-last layout.

From compute capability 8.0 on, kernels for float32 read vectors of four channels. A depthwise convolution has one
channel in a group, so the copies of input and output are four times as large, and those of the weight sixteen times:
1.2 GB for the first stage of ConvNeXt-Large at 320 pixels and batch 32, where no other convolution of it takes a
quarter of that.

Which calls run such a kernel: for cuDNN 9.20, by trees fitted to its answers on null GPUs
(`scripts/fit_depthwise_trees.py`). For older ones on 8.0, by a rule that was read off these answers and checked
against measured networks whose cuDNN is 9.1 (decision 0008); on other GPUs nothing is known of them.
"""

from __future__ import annotations

import math
from typing import Any

from cotenant.core.trace import LibraryCall
from cotenant.estimators.cudnn.query import query_of
from cotenant.estimators.cudnn.trees import VERSION, trees_for
from cotenant.tracing.convolution_backend import is_depthwise

FORM = "tf32_depthwise"
"""Of the trees' files."""
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


def wgrad_bytes(call: LibraryCall, capability: tuple[int, int], version: int | None) -> int | None:
    """Workspace of `call`, by trees where cuDNN is of their `version`; None if it is no such gradient."""
    p: dict[str, Any] = dict(call.params)
    if call.kind != "conv_wgrad" or p["dtype"] != "float32" or not p["channels_last"] or not p.get("allow_tf32", True):
        return None
    if len(p["w"]) != 4 or not is_depthwise(p):
        return None
    found = trees_for(capability, FORM) if version == VERSION else None
    query = None if found is None else query_of(call, capability)
    if found is not None and query is not None:
        return found(query)
    return _by_rule(p) if capability == _CAPABILITY else None


def _by_rule(p: dict[str, Any]) -> int | None:
    kernel = p["w"][2:]
    if min(kernel) < _LARGE_KERNEL:
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
