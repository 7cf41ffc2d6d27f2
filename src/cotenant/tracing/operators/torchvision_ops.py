"""torchvision's compiled operators, declared with shapes and derivatives where its library cannot be loaded.

A CUDA build of torchvision with a CPU build of torch fails at import, where it registers meta kernels for operators
that its library would have declared. Without the operators its layers run Python code that allocates other memory.
Source: torchvision/csrc/ops/*.cpp (schemas), csrc/ops/autograd/roi_align_kernel.cpp, csrc/ops/cuda/roi_align_kernel.cu.
Not modeled: derivatives of the operators other than `roi_align` and `roi_pool`, before torchvision 0.28.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_BOX = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width"
_BACK = "Tensor grad, Tensor rois, float spatial_scale, int pooled_height, int pooled_width"
_QUANTIZED = "Tensor input, Tensor rois, float input_scale, int input_zero_point"
_MAPPED = "Tensor grad, Tensor rois, Tensor channel_mapping"
_FIVE = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
_SIZE = "int batch_size, int channels, int height, int width"
_DEFORM = "Tensor weight, Tensor offset, Tensor mask, Tensor bias"
_STEPS = (
    "int stride_h, int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups, "
    "bool use_mask"
)
_REST = _BOX.partition("rois, ")[2]
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_BOX}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_BACK}, {_SIZE}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align({_QUANTIZED}, {_REST}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_BOX}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_REST}, {_SIZE}) -> Tensor",
    f"ps_roi_align({_BOX}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_MAPPED}, {_REST}, int sampling_ratio, {_SIZE}) -> Tensor",
    f"ps_roi_pool({_BOX}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_MAPPED}, {_REST}, {_SIZE}) -> Tensor",
    f"deform_conv2d(Tensor input, {_DEFORM}, {_STEPS}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, Tensor input, {_DEFORM}, {_STEPS}) -> {_FIVE}",
    "_cuda_version() -> int",
)
_libraries: list[Any] = []


def load_or_declare(folder: Path | None) -> bool:
    """Load the compiled library in torchvision's `folder`, or else declare its operators; True if it declared them."""
    # An OSError: the library is linked against libcudart or libtorch_cuda, which a CPU build of torch does not bring.
    for file in folder.glob("_C*.so") if folder else ():
        try:
            torch.ops.load_library(str(file))
        except OSError:
            continue
        return False
    # A FRAGMENT may extend a namespace that another library defines later; a second DEF would raise.
    library: Any = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        if not _is_declared(schema.partition("(")[0]):
            library.define(schema)
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    if folder is None or not (folder / "_autograd_registrations.py").is_file():  # torchvision 0.28 brings its own
        for name, backward, save in (
            ("roi_align", _roi_align_backward, _save_roi_align),
            ("roi_pool", _roi_pool_backward, _save_roi_pool),
        ):
            torch.library.register_autograd(f"torchvision::{name}", backward, setup_context=save, lib=library)
    _libraries.append(library)
    return True


def mark_operators_present(extension: Any) -> None:
    """Make `torchvision.extension` report that the operators exist."""
    extension._has_ops = lambda: True


def _is_declared(name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(f"torchvision::{name}"))


def _save_roi_align(ctx: Any, inputs: Any, output: Any) -> None:
    image, rois, *ctx.numbers = inputs
    ctx.shape = image.shape
    ctx.save_for_backward(rois)


def _roi_align_backward(ctx: Any, grad: Any) -> Any:
    (rois,) = ctx.saved_tensors
    scale, height, width, sampling, aligned = ctx.numbers
    made = torch.ops.torchvision._roi_align_backward(grad, rois, scale, height, width, *ctx.shape, sampling, aligned)
    return made, None, None, None, None, None, None


def _save_roi_pool(ctx: Any, inputs: Any, output: Any) -> None:
    image, rois, *ctx.numbers = inputs
    ctx.shape = image.shape
    ctx.save_for_backward(rois, output[1])
    ctx.mark_non_differentiable(output[1])


def _roi_pool_backward(ctx: Any, grad: Any, _: Any) -> Any:
    rois, argmax = ctx.saved_tensors
    made = torch.ops.torchvision._roi_pool_backward(grad, rois, argmax, *ctx.numbers, *ctx.shape)
    return made, None, None, None, None
