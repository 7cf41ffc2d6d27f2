"""Scratch memory: what CUDA kernels allocate beside their results, and free before they return.

A kernel makes such tensors below the dispatcher, where no dispatch mode sees them. Each recorder here records the
result and the scratch memory, in the order in which the kernel allocates them. An operator that PyTorch implements by
other operators on every device is decomposed instead, at the end of this module.

The buffers of reductions depend on the GPU: see `reductions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides, suggested_format

operators = OperatorTable()

_FLOAT_BYTES = 4
_INDEX_BYTES = 8


# -- operands that a kernel needs in another layout ------------------------------------------------------------------


def contiguous_copies(ctx: OpContext, *tensors: Any) -> None:
    """Record copies of the tensors that are not contiguous, which live until the call is over."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            ctx.keep_until_done([_copy_of(ctx, tensor)])


def blas_copies(ctx: OpContext, *matrices: Any) -> None:
    """Record copies of matrices, or batches of them, that are neither row-major nor transposed.

    Source: ATen/native/cuda/Blas.cpp, `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`.
    """
    for matrix in matrices:
        if matrix.layout is not torch.strided or matrix.is_contiguous() or matrix.dim() < 2:
            continue
        (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
        if not ((across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))):
            ctx.keep_until_done([_copy_of(ctx, matrix)])


def _copy_of(ctx: OpContext, tensor: Any) -> Any:
    return ctx.scratch(tensor.numel() * tensor.element_size(), tensor.device)


# -- indices, masks -------------------------------------------------------------------------------------------------


@operators.recorder_of("aten::index.Tensor")
def _index(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Indices of 32 bits become some of 64; several are copied if they differ in strides once they have one shape.

    Source: ATen/native/TensorAdvancedIndexing.cpp, `make_info`, `AdvancedIndex`, `all_strides_match`.
    """
    indices = [index for index in args[1] if index is not None]
    if indices and all(index.dtype in (torch.int64, torch.int32) for index in indices):
        same = torch.broadcast_shapes(*(index.shape for index in indices))
        nbytes = math.prod(same) * _INDEX_BYTES
        short = [index.dtype is torch.int32 for index in indices]
        ctx.keep_until_done([ctx.scratch(nbytes, out.device) for is_short in short if is_short])
        if len({index.expand(same).stride() for index in indices}) > 1:
            ctx.keep_until_done([ctx.scratch(nbytes, out.device) for is_short in short if not is_short])
    ctx.record(out)


@operators.recorder_of("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
def _index_put(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """With `accumulate`, or in a fixed order: linear indices, a range, the same sorted, and the storage of the sort.

    Source: ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`. Not modeled: sums that several indices take.
    """
    ctx.record(out)
    indices, values = args[1], args[2]
    is_ordered = torch.are_deterministic_algorithms_enabled() and values.numel() > 1
    if not (is_ordered or (args[3] if len(args) > 3 else kwargs.get("accumulate", False))):
        return
    shapes = [index.shape for index in indices if index is not None and index.dtype is not torch.bool]
    if not shapes or values.device.type != "cuda":
        return
    count = math.prod(torch.broadcast_shapes(*shapes))

    def scratch(nbytes: int) -> Any:
        return ctx.scratch(nbytes, values.device)

    linear = []
    for _ in shapes:  # the index, wrapped, and times its stride; the sum is in the first
        offsets = scratch(count * _INDEX_BYTES)
        linear.append(scratch(count * _INDEX_BYTES))
        del offsets, linear[1:]
    ctx.keep_until_done(linear)
    contiguous_copies(ctx, values)
    if not _are_together(indices):
        ctx.keep_until_done([_copy_of(ctx, args[0])])  # with the indexed dimensions first
    ctx.keep_until_done([scratch(count * _INDEX_BYTES) for _ in ("range", "sorted", "original")])
    key_bits = _index_bits(args[0], indices)
    ctx.keep_until_done(
        [
            scratch(
                cub_buffers.radix_sort_bytes(
                    count, _INDEX_BYTES, key_bits=key_bits, capability=torch.cuda.get_device_capability()
                )
            )
        ]
    )


def _index_bits(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Bits of the largest linear index: of a slice behind the indexed dimensions, which come first if they are apart.

    Source: Indexing.cu, `largestIndex`, `makeLinearIndex`.
    """
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    before = indexed[0] if _are_together(indices) else 0
    slice_size = math.prod(x.shape[dim] for dim in range(before, x.dim()) if dim not in indexed)
    return max(1, ((x.numel() - 1) // max(1, slice_size)).bit_length())


def _are_together(indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether no dimension between two indexed ones is not indexed."""
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    return indexed[-1] - indexed[0] == len(indexed) - 1


@operators.recorder_of("aten::cumsum", "aten::cumprod", "aten::_logcumsumexp")
def _scan(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input in the result's dtype; for one row, the storage of CUB's scan.

    Source: ATen/native/ReduceOps.cpp, `impl_func_cum_ops`; cuda/ScanUtils.cuh, `scan_dim`.
    """
    ctx.record(out)
    if args[0].dtype is not out.dtype:
        ctx.keep_until_done([ctx.scratch(out.numel() * out.element_size(), out.device)])
    is_one_row = out.dim() > 0 and out.numel() == out.shape[args[1]] > 0
    if is_one_row and out.device.type == "cuda" and out.element_size() in (2, 4, 8):
        ctx.keep_until_done([ctx.scratch(cub_buffers.row_scan_bytes(out.numel(), out.element_size()), out.device)])


@operators.recorder_of("aten::masked_scatter", "aten::masked_scatter_")
def _masked_scatter(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The prefix sum of the mask, in int64, and the storage of its scan. Source: ATen/native/cuda/IndexKernel.cpp."""
    ctx.record(out)
    ctx.keep_until_done([ctx.scratch(out.numel() * _INDEX_BYTES, out.device)])
    if out.numel():
        ctx.keep_until_done([ctx.scratch(cub_buffers.row_scan_bytes(out.numel(), _INDEX_BYTES), out.device)])


_NORM_CHUNK = 65_536
NORMS_WITH_OFFSETS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)


@operators.shape_of("aten::_foreach_norm.Scalar")
def _foreach_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """One number for each chunk of each tensor in one block, then one for each tensor in blocks of their own.

    To torch 2.14 each tensor has as many chunks as the largest one: so 2.8.0, 2.11.0, 2.12.0, 2.13.0 and 2.14.1 on a
    null A100. In 2.15 it has its own, and a block before them says where they begin, and where the last ends: so nine
    networks with 2.15.0.

    Source: ATen/native/cuda/ForeachReduceOp.cu, `foreach_tensor_norm_cuda`; other orders, dtypes and layouts take the
    norms one by one.
    """
    tensors = args[0]
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    first = tensors[0]
    dtype = kwargs.get("dtype") or (args[2] if len(args) > 2 else None) or first.dtype
    one_kind = all(
        tensor.dtype is first.dtype and tensor.fake_device == first.fake_device and tensor.numel() and _is_dense(tensor)
        for tensor in tensors
    )
    if order in (1, 2, math.inf) and first.dtype.is_floating_point and dtype is first.dtype and one_kind:
        chunks = [-(-tensor.numel() // _NORM_CHUNK) for tensor in tensors]
        number = sum(chunks) if NORMS_WITH_OFFSETS else len(tensors) * max(chunks)
        if NORMS_WITH_OFFSETS:
            ctx.keep_until_done([ctx.scratch((len(tensors) + 1) * _INDEX_BYTES, first.fake_device)])
        ctx.keep_until_done([ctx.scratch(number * max(_FLOAT_BYTES, first.element_size()), first.fake_device)])
    return [ctx.empty_strided((), (), dtype, first.fake_device) for _ in tensors]


def _is_dense(tensor: Any) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor)) and tensor.layout is torch.strided


# -- losses, normalization ------------------------------------------------------------------------------------------


@operators.recorder_of("aten::_softmax", "aten::_log_softmax")
def _softmax(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input, contiguous. Source: ATen/native/cuda/SoftMax.cu, `host_softmax`."""
    ctx.record(out)
    contiguous_copies(ctx, args[0])


@operators.recorder_of("aten::_log_softmax_backward_data")
def _log_softmax_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The gradient and the result, contiguous. Source: SoftMax.cu, `host_softmax_backward`."""
    ctx.record(out)
    contiguous_copies(ctx, args[0], args[1])


@operators.recorder_of("aten::_softmax_backward_data")
def _softmax_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Gradient times result; then as of log-softmax. Source: SoftMax.cu, TORCH_IMPL_FUNC(softmax_backward_cuda_out)."""
    grad, result = args[:2]
    ctx.record(out)
    ctx.keep_until_done([ctx.scratch(grad.numel() * max(grad.element_size(), result.element_size()), grad.device)])
    contiguous_copies(ctx, grad, result)


@operators.recorder_of("aten::native_layer_norm", "aten::_fused_rms_norm")
def _layer_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input, contiguous. Source: ATen/native/cuda/layer_norm_kernel.cu, `layer_norm_cuda`."""
    contiguous_copies(ctx, args[0])
    ctx.record(out)


@operators.recorder_of("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def _layer_norm_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input, contiguous, before the results, and the gradient after them.

    Source: layer_norm_kernel.cu, `layer_norm_backward_cuda`, `LayerNormBackwardKernelImpl`.
    """
    contiguous_copies(ctx, args[1])
    ctx.record(out)
    contiguous_copies(ctx, args[0])


# -- images ----------------------------------------------------------------------------------------------------------


@operators.recorder_of(
    "aten::adaptive_max_pool2d",
    "aten::avg_pool2d",
    "aten::avg_pool3d",
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
    "aten::upsample_nearest2d",
)
def _image(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input in its own memory format, such as a slice of channels made dense, after the results.

    Source: ATen/native/cuda, e.g. AveragePool2d.cu, `avg_pool2d_out_cuda`.
    """
    ctx.record(out)
    _copy_unless_dense(ctx, args[0], suggested_format(args[0]))


@operators.recorder_of("aten::_adaptive_avg_pool2d")
def _adaptive_average(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """As `_image`, but before the result, which is resized then.

    Source: ATen/native/cuda/AdaptiveAveragePooling.cu, `adaptive_avg_pool2d_out_cuda_template`.
    """
    _copy_unless_dense(ctx, args[0], suggested_format(args[0]))
    ctx.record(out)


def _copy_unless_dense(ctx: OpContext, images: Any, layout: torch.memory_format) -> None:
    if not images.is_contiguous(memory_format=layout):
        ctx.keep_until_done([_copy_of(ctx, images)])


@operators.recorder_of("aten::_adaptive_avg_pool2d_backward")
def _adaptive_average_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The gradient, contiguous; the kernel for channels-last takes any strides.

    Source: ATen/native/cuda/AdaptiveAveragePooling.cu, `adaptive_avg_pool2d_backward_out_cuda_template`.
    """
    ctx.record(out)
    if suggested_format(args[1]) is torch.contiguous_format:
        contiguous_copies(ctx, args[0])


@operators.recorder_of(
    "aten::adaptive_max_pool2d_backward",
    "aten::avg_pool2d_backward",
    "aten::max_pool2d_with_indices_backward",
    "aten::upsample_bicubic2d_backward",
    "aten::upsample_bilinear2d_backward",
    "aten::upsample_nearest2d_backward",
)
def _image_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The gradient in the memory format of the result.

    Source: ATen/native/cuda, e.g. UpSampleBilinear2d.cu, `upsample_bilinear2d_backward_out_cuda_template`.
    """
    ctx.record(out)
    _copy_unless_dense(ctx, args[0], suggested_format(out))


@operators.shape_of("aten::roll")
def _roll(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Contiguous. Several dimensions are shifted one after the other.

    Source: ATen/native/TensorTransformations.h, `roll_common`; cuda/TensorTransformations.cu, `roll_cuda`.
    """
    x, shifts = args[0], args[1]
    if not isinstance(x, FakeTensor) or kwargs or not x.numel():
        return NotImplemented
    copies = [] if x.is_contiguous() else [_copy_of(ctx, x)]
    for _ in range(len(shifts) - 1):
        copies = [_copy_of(ctx, x)]
    out = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device)
    ctx.record(out)
    del copies
    return out


@operators.recorder_of("aten::scatter_reduce.two", "aten::scatter_reduce_.two")
def _scatter_mean(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Means divide by counts: ones to add, their sums, and a mask of the empty.

    Source: ATen/native/TensorAdvancedIndexing.cpp, `TORCH_IMPL_FUNC(scatter_reduce_two)`.
    """
    ctx.record(out)
    if args[4] == "mean":
        copies = [_copy_of(ctx, args[3]), _copy_of(ctx, out)]
        ctx.keep_until_done([*copies, ctx.scratch(out.numel(), out.device)])


@operators.recorder_of("aten::index_reduce", "aten::index_reduce_")
def _index_mean(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """As of `scatter_reduce`; the ones are gone before the mask is made.

    Source: ATen/native/cuda/Indexing.cu, `index_reduce_func_cuda_impl`.
    """
    ctx.record(out)
    if args[4] == "mean":
        counts, ones = _copy_of(ctx, out), _copy_of(ctx, args[3])
        del ones
        ctx.keep_until_done([counts, ctx.scratch(out.numel(), out.device)])


@operators.recorder_of("aten::normal.Tensor_float")
def _normal_around(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """A second tensor, made for its shape only. Source: ATen/native/DistributionTemplates.h, `normal_out_impl`."""
    ctx.record(out)
    ctx.keep_until_done([_copy_of(ctx, out)])


@operators.recorder_of("aten::bernoulli", "aten::bernoulli_.Tensor")
def _bernoulli(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Probabilities of less than 32 bits are converted.

    Source: ATen/native/cuda/DistributionTemplates.h, `bernoulli_kernel`.
    """
    ctx.record(out)
    probabilities = args[-1]
    if probabilities.device.type == "cuda" and probabilities.element_size() < _FLOAT_BYTES:
        ctx.keep_until_done([ctx.scratch(probabilities.numel() * _FLOAT_BYTES, out.device)])


@operators.recorder_of("aten::max_unpool2d")
def _max_unpool(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Contiguous operands. Source: ATen/native/cuda/MaxUnpooling.cu, `max_unpooling2d_forward_out_cuda`."""
    contiguous_copies(ctx, args[0], args[1])
    ctx.record(out)


# Their results are as large as their operands, and so are those of the operators that they call.
# Source: ATen/native/native_functions.yaml.
operators.decompose(
    "aten::dist",
    "aten::isinf",
    "aten::ldexp.Tensor",
    "aten::_euclidean_dist",
    "aten::_safe_softmax",
    "aten::_trilinear",
    "aten::affine_grid_generator",
    "aten::binary_cross_entropy_with_logits",
    "aten::logsumexp",
    "aten::logsumexp.out",
    "aten::mvlgamma",
)
