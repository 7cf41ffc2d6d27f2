"""Operators that have a CUDA kernel and no meta kernel: those of synchronized batch norm, of training for quantization.

Source: aten/src/ATen/native/native_functions.yaml, entries with CUDA and nothing that gives a shape; the kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.operators.strides import contiguous_strides

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def _like_argument(place: int) -> Any:
    """A new tensor of the shape and layout of the argument at `place`."""

    def handler(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return mode.empty_like(args[place])

    return handler


def _empty_vector(mode: Any, count: int, dtype: torch.dtype, device: torch.device) -> Any:
    return mode.empty_strided((count,), (1,), dtype, device)


def _batch_norm_stats(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Two numbers for each channel, in the type that is accumulated in. Source: native/cuda/Normalization.cu."""
    x = args[0]
    dtype = torch.float32 if x.dtype in _HALF else x.dtype
    return tuple(_empty_vector(mode, x.shape[1], dtype, x.fake_device) for _ in range(2))


def _batch_norm_backward_reduce(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Two sums, and gradients of weight and bias. Source: the same, `batch_norm_backward_reduce_cuda`."""
    _grad, x, mean, _deviation, weight, for_input, for_weight, for_bias = args
    wanted = (for_input, for_input, for_weight and weight is not None, for_bias and weight is not None)
    kinds = (mean.dtype, mean.dtype, *2 * [None if weight is None else weight.dtype])
    return tuple(
        _empty_vector(mode, x.shape[1], kind, x.fake_device) if each else None
        for each, kind in zip(wanted, kinds, strict=True)
    )


def _fake_quantize_cachemask(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """(rounded values, which of them were in range). Source: native/quantized/cuda/FakeQuantizeCore.cu."""
    return mode.empty_like(args[0]), mode.empty_like(args[0], torch.bool)


def _fake_quantize_learnable_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of input, scale and zero point, the latter two of as many elements before they are summed.

    Source: native/quantized/FakeQuantPer{Tensor,Channel}Affine.cpp.
    """
    x, scale = args[1], args[2]
    mode.keep_until_done(before := [mode.empty_like(x), mode.empty_like(x)])
    mode.note(before)
    return (mode.empty_like(x), *(_empty_vector(mode, scale.numel(), scale.dtype, x.fake_device) for _ in range(2)))


def _geqrf(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """(columns one after the other, a factor for each). Source: ATen/native/BatchLinearAlgebra.cpp, `geqrf`."""
    matrix = args[0]
    *lead, rows, columns = matrix.shape
    turned = contiguous_strides((*lead, columns, rows))
    strides = (*turned[:-2], turned[-1], turned[-2])
    factors = (*lead, min(rows, columns))
    return tuple(
        mode.empty_strided(shape, each, matrix.dtype, matrix.fake_device)
        for shape, each in ((matrix.shape, strides), (factors, contiguous_strides(factors)))
    )


SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten.batch_norm_stats.default: _batch_norm_stats,
    _aten.batch_norm_gather_stats.default: _batch_norm_stats,
    _aten.batch_norm_gather_stats_with_counts.default: _batch_norm_stats,
    _aten.batch_norm_update_stats.default: _batch_norm_stats,
    _aten.batch_norm_elemt.default: _like_argument(0),
    _aten.batch_norm_backward_reduce.default: _batch_norm_backward_reduce,
    _aten.batch_norm_backward_elemt.default: _like_argument(0),
    _aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize_cachemask,
    _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantize_cachemask,
    _aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_cachemask,
    _aten._fake_quantize_learnable_per_tensor_affine.default: _like_argument(0),
    _aten._fake_quantize_learnable_per_channel_affine.default: _like_argument(0),
    _aten._fake_quantize_learnable_per_tensor_affine_backward.default: _fake_quantize_learnable_backward,
    _aten._fake_quantize_learnable_per_channel_affine_backward.default: _fake_quantize_learnable_backward,
    _aten.fractional_max_pool3d_backward.default: _like_argument(1),
    _aten._masked_softmax.default: _like_argument(0),
    _aten._masked_softmax_backward.default: _like_argument(0),
    _aten.glu_jvp.default: _like_argument(0),
    _aten.glu_backward_jvp.default: _like_argument(0),
    _aten.geqrf.default: _geqrf,
}
