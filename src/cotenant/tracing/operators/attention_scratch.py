"""Scratch memory of the fused attention kernels: accumulators that no dispatch mode sees.

Sizes of the efficient kernels' workspaces were read from a CUDA build of torch 2.13 on a null GPU (decision 0053), for
head sizes from 16 to 256, float32 and half precision, on compute capabilities 7.5, 8.0, 8.6, 8.9 and 9.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators.kernel_scratch import contiguous_copies
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

SEEDS_ON_GPU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
_FLOAT_BYTES = 4
_CUDNN_FLAGS_BYTES = 256
_TILE_HEADER_BYTES = 16
"""Lock and counter before each tile of the gradient of queries (`GradQTempStorage`)."""
_KEY_TILE = 64
_ROW_TILE = 128
"""Rows of queries that flash attention's backward kernel takes at a time."""
_MAX_SPLIT_BLOCKS = 200
"""Thread blocks up to which keys are split over more of them, where that needs memory."""
_LARGE_SHARED_MEMORY = {(8, 0), (8, 7), (9, 0), (10, 0), (10, 3)}
"""Compute capabilities with 163 KiB or more of shared memory for a block; others take smaller tiles."""


@operators.recorder_of("aten::_scaled_dot_product_efficient_attention")
def _efficient_forward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Output and row sums; half precision accumulates wide heads in float32. Seed and offset of dropout are on the CPU.

    Source: ATen/native/transformers/cuda/attention.cu, `_efficient_attention_forward`; mem_eff_attention/
    kernel_forward.h, `kNeedsOutputAccumulatorBuffer`. Not modeled: CUDA graphs, which have the seed on the GPU.
    """
    query, value = args[0], args[2]
    dropout = args[5] if len(args) > 5 else kwargs.get("dropout_p", 0.0)
    _record_efficient(ctx, out, dropout=bool(dropout))
    _accumulate_wide_heads(ctx, query, value)


@operators.recorder_of("aten::_efficient_attention_forward")
def _efficient_forward_of_libraries(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The same, as xFormers calls it: operands are (batch, length, heads, head size)."""
    query, value = (args[at] if len(args) > at else kwargs[name] for at, name in ((0, "query"), (2, "value")))
    dropout = args[8] if len(args) > 8 else kwargs.get("dropout_p", 0.0)
    _record_efficient(ctx, out, dropout=bool(dropout))
    _accumulate_wide_heads(ctx, query, value)


def _record_efficient(ctx: OpContext, out: Any, *, dropout: bool) -> None:
    """Output and row sums, and from torch 2.14 on a seed and an offset before them, which nothing reads.

    Without dropout these are empty tensors on the GPU; 2.13 makes them on the CPU, and so does dropout. Read from
    2.13.0, 2.14.1 and 2.15.0 on a null A100.
    """
    if not dropout and SEEDS_ON_GPU:
        ctx.record(out[2:4])
    ctx.record(out[:2])


def _accumulate_wide_heads(ctx: OpContext, query: Any, value: Any) -> None:
    if query.element_size() < _FLOAT_BYTES and value.shape[-1] > 128:
        numel = math.prod(query.shape[:3]) * value.shape[-1]
        ctx.keep_until_done([ctx.scratch(numel * _FLOAT_BYTES, query.device)])


@operators.recorder_of("aten::_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """A contiguous gradient; `delta`, the row sums of output times gradient; and the workspace.

    The float32 kernel computes `delta` outside, from a product of the gradient's size; those of half precision, inside.

    Source: ATen/native/transformers/cuda/attention_backward.cu, `_efficient_attention_backward`;
    mem_eff_attention/kernel_backward.h, `kKernelComputesDelta`.
    """
    grad, query, key, value = args[:4]
    contiguous_copies(ctx, grad.transpose(1, 2))
    ctx.record(out)
    _efficient_gradients(ctx, grad, query.dtype, query.shape, key.shape[2], value.shape[3], dropout=bool(args[9]))


@operators.shape_of("aten::_efficient_attention_backward")
def _efficient_gradient_shapes(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients, of which only one option changes the shape.

    PyTorch's meta kernel lacks the argument `out`: it takes each after that for the next one, and raises where `scale`
    is given by its name, as by diffusers through xFormers (2.13).
    Source: torch/_meta_registrations.py, `meta__efficient_attention_backward`.
    """
    shared = {name: value for name, value in kwargs.items() if name == "shared_storage_dqdkdv"}
    return ctx.run_fake(func, args, shared, args[1].fake_device)


@operators.recorder_of("aten::_efficient_attention_backward")
def _efficient_backward_of_libraries(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The same, as xFormers calls it; with offsets, one sequence after another, and `max_seqlen_q` is the longest."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    grad, query, key, value = (given[name] for name in ("grad_out_", "query", "key", "value"))
    contiguous_copies(ctx, grad)
    # PyTorch's meta kernel makes a gradient of the mask wherever there is a mask: torch/_meta_registrations.py.
    ctx.record(out if given["bias_requires_grad"] else out[:3])
    batch, length, heads, head = query.shape
    keys, offsets = key.shape[1], given.get("cu_seqlens_q")
    if offsets is not None:
        batch, length, keys = offsets.numel() - 1, given["max_seqlen_q"], given["max_seqlen_k"]
    _efficient_gradients(
        ctx, grad, query.dtype, (batch, heads, length, head), keys, value.shape[3], dropout=bool(given["dropout_p"])
    )


def _efficient_gradients(
    ctx: OpContext, grad: Any, dtype: torch.dtype, query_shape: Any, keys: int, value_head: int, *, dropout: bool
) -> None:
    delta_bytes = math.prod(query_shape[:3]) * _FLOAT_BYTES
    full_precision = dtype is torch.float32
    if full_precision:
        product = ctx.scratch(grad.numel() * _FLOAT_BYTES, grad.device)
        summed = ctx.scratch(delta_bytes, grad.device)
    delta = ctx.scratch(delta_bytes, grad.device)
    if full_precision:
        del summed
        del product
    capability = ctx.recorder.header.capability or (8, 0)
    nbytes = efficient_workspace_bytes(
        query_shape, keys, value_head, half=not full_precision, capability=capability, dropout=dropout
    )
    workspace = ctx.scratch(nbytes, grad.device)
    del delta
    del workspace


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Extents of the tiles of one backward kernel.

    Attributes:
        queries: rows of queries in a block.
        columns: of the head, in a tile of the gradient of queries.
        stages_keys: the gradients of keys and values are summed in float32 outside of registers.
    """

    queries: int
    columns: int
    stages_keys: bool


def _tiles(head: int, *, half: bool, capability: tuple[int, int], dropout: bool) -> _Tiles:
    """The kernel that is taken: the first one whose shared memory fits the GPU. Source: kernels/cutlassB.h."""
    large = capability in _LARGE_SHARED_MEMORY
    if head <= 64:
        return _Tiles(64, 64, False)
    if head <= 128 and half:
        if large:
            return _Tiles(128, 128, False)
        if capability < (8, 0) or (head <= 96 and not dropout):
            return _Tiles(128, 64, False)
        return _Tiles(64, 64, True)
    if head <= 128:
        return _Tiles(128 if large else 64, 64, False)
    return _Tiles(128 if half or large else 64, 64, half)


def efficient_workspace_bytes(
    query_shape: Any, keys: int, value_head: int, *, half: bool, capability: tuple[int, int], dropout: bool = False
) -> int:
    """Workspace of the efficient backward kernel: tiles of the gradient of queries, and staged keys and values.

    `query_shape`: (batch, heads, queries, head size).

    Source: kernel_backward.h, `workspace_elements_gq`, `workspace_elements_gk`, `workspace_elements_gv`;
    attention_backward.cu for the number of splits.
    """
    batch, heads, queries, head = query_shape
    tiles = _tiles(max(head, value_head), half=half, capability=capability, dropout=dropout)
    blocks, columns = -(-queries // tiles.queries), -(-head // tiles.columns)
    head_bytes = blocks * columns * (tiles.queries * tiles.columns * _FLOAT_BYTES + _TILE_HEADER_BYTES)
    if tiles.stages_keys:
        splits = max(1, min(-(-keys // _KEY_TILE), _MAX_SPLIT_BLOCKS // max(1, batch * heads)))
        widths = (-(-width // tiles.queries) * tiles.queries for width in (head, value_head))
        head_bytes += sum(splits * _KEY_TILE * width * _FLOAT_BYTES for width in widths)
    return int(batch * heads * head_bytes)


@operators.recorder_of("aten::_scaled_dot_product_cudnn_attention")
def _cudnn_forward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Seed and offset, output and row sums, which only gradients need; then a workspace.

    Source: ATen/native/cudnn/MHA.cpp, `run_cudnn_SDP_fprop`; the workspaces are those of cuDNN 9.20 on a null H100.
    """
    ctx.record((out[6], out[7], out[0]))
    ctx.record(out if args[4] else (out[0], *out[2:]))
    ctx.keep_until_done([ctx.scratch(_CUDNN_FLAGS_BYTES, args[0].device)])


@operators.recorder_of("aten::_scaled_dot_product_cudnn_attention_backward")
def _cudnn_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """A workspace: the gradient of queries in float32, a sum per row, and key and value gradients of each query head.

    Source: MHA.cpp, `run_cudnn_SDP_bprop`; nine shapes on a null H100 with cuDNN 9.20, head sizes from 32 to 256.
    """
    query, key, value = args[1:4]
    ctx.record(out)
    batch, heads, rows, head = query.shape
    nbytes = batch * heads * rows * (head + 1) * _FLOAT_BYTES + _CUDNN_FLAGS_BYTES
    if key.shape[1] != heads:
        nbytes += batch * heads * key.shape[2] * (head + value.shape[3]) * key.element_size()
    ctx.keep_until_done([ctx.scratch(nbytes, query.device)])


@operators.recorder_of("aten::_scaled_dot_product_flash_attention")
def _flash_forward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Output and row sums; without dropout those of splits, see `estimators.attention_splits`; then the rest.

    Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_fwd`.
    """
    query, key = args[:2]
    ctx.record(out[:2])
    dropout = args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
    if not dropout and query.device.type == "cuda":
        ctx.record_call("flash_attention", query.fake_device, query=tuple(query.shape), keys=int(key.shape[2]))
    ctx.record(out)


@operators.recorder_of("aten::_scaled_dot_product_flash_attention_backward")
def _flash_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Float32 accumulators for the gradient of queries, and with grouped queries one key and value gradient per head.

    Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`. Not modeled: deterministic algorithms.
    """
    grad, query, key, _, result = args[:5]
    contiguous_copies(ctx, grad.transpose(1, 2), result.transpose(1, 2))
    ctx.record(out)
    batch, heads, length, head = query.shape
    _flash_accumulators(ctx, grad, batch * heads * _in_tiles(length), head)
    if key.shape[1] != heads:
        _gradients_per_head(ctx, key, heads, key.shape[1])


@operators.recorder_of("aten::_flash_attention_backward")
def _flash_backward_of_libraries(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The same for operands (batch, length, heads, head size), or (tokens, heads, head size) with offsets.

    Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_varlen_bwd`.
    """
    grad, query, key, _, result, _, offsets = args[:7]
    contiguous_copies(ctx, grad, result)
    ctx.record(out)
    heads, head = query.shape[-2:]
    if offsets is None:
        rows = query.shape[0] * _in_tiles(query.shape[1])
    else:
        rows = query.shape[0] + _ROW_TILE * (offsets.numel() - 1)
    _flash_accumulators(ctx, grad, rows * heads, head)
    if key.shape[-2] != heads:
        _gradients_per_head(ctx, key, heads, key.shape[-2])


def _flash_accumulators(ctx: OpContext, grad: Any, rows: int, head: int) -> None:
    """`mha_bwd` rounds heads up to 32, or to 256 above 192: the tiles of its kernels."""
    head_up = -(-head // 32) * 32 if head <= 192 else 256
    rows_bytes = rows * _FLOAT_BYTES
    ctx.keep_until_done([ctx.scratch(rows_bytes, grad.device), ctx.scratch(rows_bytes * head_up, grad.device)])


def _gradients_per_head(ctx: OpContext, key: Any, heads: int, groups: int) -> None:
    per_head_bytes = key.numel() // groups * heads * key.element_size()
    ctx.keep_until_done([ctx.scratch(per_head_bytes, key.device) for _ in "kv"])


def _in_tiles(length: int) -> int:
    return -(-length // _ROW_TILE) * _ROW_TILE
