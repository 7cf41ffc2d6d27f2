"""Whether PyTorch runs a convolution on cuDNN or on a kernel of its own.

Depthwise convolutions have kernels of PyTorch's own. cuDNN gets those in channels-last layout, and in float16 those
that it was found faster at; both kinds of kernel take the same shapes.
Source: aten/src/ATen/native/Convolution.cpp, `ConvParams::use_cudnn`, `use_cudnn_depthwise`, `is_depthwise`,
`check_cudnn_depthwise_workload_with_filter`; compared call by call with PyTorch's CUDA build (decision 0013).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_AMPERE = (8, 0)
_VOLTA = (7, 0)


def runs_on_cudnn(params: Mapping[str, Any], capability: tuple[int, int]) -> bool:
    """Whether a convolution reaches cuDNN on a GPU of this compute capability; `params`: as of its `LibraryCall`."""
    if not params.get("enabled", True) or (params["dtype"] == "bfloat16" and capability < _AMPERE):
        return False
    return not is_depthwise(params) or bool(params["channels_last"]) or _is_fast_in_half(params, capability)


def is_image_by_image(params: Mapping[str, Any], capability: tuple[int, int]) -> bool:
    """Whether PyTorch multiplies matrices for one image after the other, without cuDNN (`slow_conv2d`).

    Not modeled: groups, dilation, transposed and 3D convolutions without cuDNN.
    """
    if runs_on_cudnn(params, capability) or is_depthwise(params) or params["transposed"] or params["groups"] != 1:
        return False
    return len(params["x"]) <= 4 and all(extent == 1 for extent in params["dilation"])


def needs_columns(params: Mapping[str, Any]) -> bool:
    """Whether `slow_conv2d` copies the pixels under the kernel; the gradient of the input always takes them.

    Source: ATen/native/cuda/ConvolutionMM2d.cu, `slow_conv2d_forward`, `slow_conv2d_grad_weight`.
    """
    extents = (*params["w"][2:], *params["stride"])
    return any(extent != 1 for extent in extents) or any(params["padding"])


def is_depthwise(params: Mapping[str, Any]) -> bool:
    """Whether every group has one input channel, as PyTorch's own kernels want it."""
    channels = params["x"][1]
    if params.get("transposed") or params["groups"] != channels or channels == 1:
        return False
    return bool(params["w"][0] % channels == 0)


def _is_fast_in_half(p: Mapping[str, Any], capability: tuple[int, int]) -> bool:
    """PyTorch's table of shapes for float16, in two dimensions; one-dimensional ones have a height of 1."""
    if p["dtype"] != "float16" or capability < _VOLTA or len(p["x"]) > 4:
        return False
    batch, channels, *pixels = p["x"]
    height, width = pixels if len(pixels) == 2 else (1, *pixels)
    kernel_height, kernel = p["w"][2:] if len(pixels) == 2 else (1, *p["w"][2:])
    stride = p["stride"][-1]
    if channels < 32 or any(extent != 1 for extent in p["dilation"]):
        return False
    if p["stride"][0] != stride and height != 1:
        return False
    if height == 1 and stride == 1:
        return True
    if kernel_height != kernel or kernel not in (1, 3, 5) or width < 7 or stride not in (1, 2):
        return False
    if stride == 1:
        return True
    if batch == 1:
        return kernel > 1 or width <= 28
    if kernel == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)
