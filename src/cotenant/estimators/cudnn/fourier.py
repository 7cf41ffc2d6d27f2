"""Weight gradients that cuDNN 9.20 computes by Fourier transforms on compute capability 8.6.

The workspace holds a transform of the padded image for each pair of channels, up to 160 times the operands: 2 GiB for
128 to 32 channels at 128 x 128 pixels. No tree has it, for one convolution in a thousand takes it. It is taken, almost
always, in one range of channels and pixels (decision 0081).

A module of its own: its range was read off answers for this kind of call alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cotenant.estimators.cudnn.trees import operand_bytes

_CAPABILITIES = {(8, 6), (8, 7)}
_CHANNELS = range(64, 201)
_OUT_CHANNELS = range(18, 51)
_ALL_PIXELS = range(24_600, 37_001)
_IMAGES = range(1, 17)
_COMPLEX_BYTES = 8


def fourier_bytes(query: Mapping[str, Any], capability: tuple[int, int]) -> int | None:
    """The workspace of a `query` (`query.query_of`) in that range; None for all others."""
    images, channels, *inner = query["x"]
    out_channels, group_channels, *kernel = query["w"]
    if capability not in _CAPABILITIES or (query["kind"], query["dtype"]) != ("conv_wgrad", "float32"):
        return None
    if query["channels_last"] or not query["tf32"] or group_channels != channels:
        return None
    if kernel != [3, 3] or [*query["stride"], *query["padding"], *query["dilation"]] != [1] * 6:
        return None
    within = channels in _CHANNELS and out_channels in _OUT_CHANNELS and images in _IMAGES
    if not within or images * math.prod(inner) not in _ALL_PIXELS:
        return None
    side = 1 << (max(inner) + 1).bit_length()  # the next power of two, of the image with its padding
    x, y, _, _ = operand_bytes(query)
    transforms: int = channels * out_channels * side * side * _COMPLEX_BYTES
    return x + y + transforms
