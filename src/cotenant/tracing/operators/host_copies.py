"""Copies between CPU and GPU, and values that a script reads from the GPU.

A copy to the GPU takes the shape along and nothing else. A read returns the value where it is known, and otherwise an
assumed one: see `tracing.assumptions`.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import booleans, equal_contents, mask_counts
from cotenant.tracing.assumptions.assumed_sizes import size_read_now
from cotenant.tracing.assumptions.known_values import GENERATED_TEXT, assumption_of
from cotenant.tracing.assumptions.ranked_choices import RANKED, assumed_indices
from cotenant.tracing.assumptions.shifted_positions import assumed_position
from cotenant.tracing.operators import sparse
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import copy_strides, is_non_overlapping_and_dense

operators = OperatorTable()

_is_close = torch.ops.aten.isclose.default
_MAX_ZEROED_NUMEL = 1 << 20
_MIN_SELECTION = 1 << 10
"""Elements from which on a comparison that is read back selects something: rays, points, pixels. Fewer are flags of a
batch, such as of sequences that have ended, for which True would end a loop."""


def is_cuda(tensor: Any) -> bool:
    """Whether it is a fake tensor on a GPU."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


@operators.shape_of("aten::_local_scalar_dense")
def _local_scalar(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.item()`: the value if it is known. An unknown number is 1, since scripts divide by losses, and an unknown
    boolean is False; conditions of loops are another matter: see `data_dependent_loops`.
    """
    value = ctx.known_values.of(args[0])
    dtype = args[0].dtype
    _note_read(ctx, args[0], value, number=dtype.is_floating_point)
    if value is not None:
        return value.item()
    if dtype is torch.bool:
        assumed = booleans.assumed(args[0])
        if isinstance(assumed, bool):
            return assumed
        return ctx.loops.truth(likely=assumed == "likely" or (assumed == "selection" and ctx.loops.selects()))
    if dtype.is_complex:
        return complex(1.0)
    ranked = assumed_indices(args[0])
    if ranked is not None:
        ctx.warn_assumed(RANKED)
        return ranked.item()
    if dtype.is_floating_point:
        return ctx.loops.number()
    first = 1 - booleans.is_zero_count(args[0])
    if first and (size := size_read_now()) is not None:
        counted = None if size.repeats else mask_counts.counted(args[0])
        ctx.recorder.warn(size.warning(counted=counted is not None))
        first = first if counted is None else counted
    position = assumed_position(args[0], first)
    return first if position is None else position


@operators.shape_of("aten::_to_copy")
def _to_copy(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    source = args[0]
    device = kwargs.get("device")
    target = torch.device(device) if device is not None else source.device
    if source.layout is not torch.strided:
        return sparse.to_copy(ctx, func, args, kwargs)
    dtype = kwargs.get("dtype") or source.dtype
    layout = copy_strides(source, kwargs.get("memory_format"))
    if target.type == "cuda":
        if target.index is None:
            target = source.device if is_cuda(source) else torch.device("cuda", torch.cuda.current_device())
        made = ctx.empty_strided(source.shape, layout, dtype, target)
        if not is_cuda(source):
            ctx.record(made)
            ctx.recorder.classify(made, "input")  # `module_to_device` classifies parameters and buffers again
            _stage(ctx, made, source, non_blocking=bool(kwargs.get("non_blocking")))
        return made
    if target.type == "meta":
        return torch.empty_strided(source.shape, layout, dtype=dtype, device=target)
    if target.type == "cpu" and is_cuda(source):
        return _read_back(ctx, source, _empty_on_cpu(source.shape, layout, dtype))
    return NotImplemented


@operators.shape_of("aten::copy_")
def _copy_(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    target, source = args[:2]
    if not isinstance(source, torch.Tensor):  # PyTorch's parser of arguments makes a tensor of a number
        source = torch.tensor(source)
    if not is_cuda(target):
        return _read_back(ctx, source, target)
    if not broadcasts_to(source, target):
        return NotImplemented
    if not is_cuda(source) and target.layout is torch.strided:
        _stage(ctx, target, source, non_blocking=bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
    return target


def _stage(ctx: OpContext, target: FakeTensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """Record the contiguous copy on the GPU through which numbers from the CPU reach a tensor of other strides.

    They are converted to another dtype on the CPU, or, with `non_blocking`, on the GPU.
    Source: ATen/native/cuda/Copy.cu, `copy_requires_temporaries`, `copy_kernel_cuda`.
    """
    same_dtype = target.dtype is source.dtype
    if same_dtype and _is_one_run(target, source):
        return
    if not target.is_contiguous() or (non_blocking and not same_dtype):
        item = source.element_size() if non_blocking else target.element_size()
        ctx.keep_until_done([ctx.scratch(target.numel() * item, target.fake_device)])


def _is_one_run(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether both have their elements in one order without gaps: `TensorIteratorBase::is_contiguous`."""
    if target.shape != source.shape:
        return target.numel() == 1
    strides = [
        (first, second)
        for size, first, second in zip(target.shape, target.stride(), source.stride(), strict=True)
        if size != 1
    ]
    return all(first == second for first, second in strides) and is_non_overlapping_and_dense(target)


@operators.shape_of("aten::clone")
def _clone(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    source = args[0]
    if source.layout is not torch.strided:
        return NotImplemented
    return ctx.empty_strided(
        source.shape, copy_strides(source, kwargs.get("memory_format")), source.dtype, source.fake_device
    )


@operators.shape_of("aten::allclose")
def _all_close(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """As `_equal`; which values are close is computed on the GPU, in several tensors of the size of the operands.

    Source: ATen/native/TensorCompare.cpp, `allclose`.
    """
    with ctx:
        _is_close(*args, **kwargs).all()
    return _equal(ctx, func, args, kwargs)


@operators.shape_of("aten::equal")
def _equal(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """What the values say; of two computed results that a sound program compares, that they are equal.

    Self-tests compare the results of two ways to compute the same, such as with and without AMP, and choose by that.
    What a script asserts is true: that a step has changed the weights, for one.
    """
    first, second = ctx.known_values.of(args[0]), ctx.known_values.of(args[1])
    if first is not None and second is not None:
        return bool(func(first, second, *args[2:], **kwargs))
    if equal_contents.are_equal(args[0], args[1]):
        return True
    asserted = ctx.loops.asserted()
    if asserted is not None:
        return asserted
    are_computed = first is None and second is None and is_computed(args[0]) and is_computed(args[1])
    return are_computed and args[0].shape == args[1].shape


def is_computed(value: Any) -> bool:
    """Whether it is on a GPU, and of numbers that are not whole."""
    return is_cuda(value) and (value.dtype.is_floating_point or value.dtype.is_complex)


@operators.shape_of("aten::is_pinned")
def _is_pinned(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    return False


def broadcasts_to(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether `source` has the shape of `target`, or broadcasts to it."""
    shape, wanted = source.shape, target.shape
    if shape == wanted:
        return True
    lead = len(wanted) - len(shape)
    return lead >= 0 and all(a in (1, b) for a, b in zip(shape, wanted[lead:], strict=True))


def _read_back(ctx: OpContext, source: Any, target: torch.Tensor) -> torch.Tensor:
    """Fill `target`, on the CPU, with the known values of `source`; without them, with 1 for a scalar, else zeros.

    Indices of `topk` and `sort` are assumed to be distinct. A mask of many elements is all true, as the largest
    selection; see `_is_all_true`.

    A source with gaps is copied on the GPU first.

    A large target is not filled: a new one is zero already (see `_empty_on_cpu`), and the script's own stays as it is.
    """
    if is_cuda(source) and not source.is_contiguous() and not _is_one_run(target, source):
        ctx.keep_until_done([ctx.scratch(source.numel() * source.element_size(), source.fake_device)])
    value = ctx.known_values.of(source)
    _note_read(ctx, source, value, number=target.numel() == 1 and target.dtype.is_floating_point)
    if value is not None:
        return target.copy_(value)
    if target.dtype is torch.bool and _is_all_true(source):
        return target.fill_(1)
    ranked = assumed_indices(source)
    if ranked is not None:
        ctx.warn_assumed(RANKED)
        return target.copy_(ranked)
    if target.numel() > _MAX_ZEROED_NUMEL:
        return target
    first = 0 if target.dim() or target.dtype is torch.bool else 1
    position = assumed_position(source, first) if is_cuda(source) else None
    return target.fill_(first if position is None else position)


def _is_all_true(mask: Any) -> bool:
    """Whether unknown booleans are read as True: those of sound programs, and those that select, as `x[mask]` does."""
    truth = booleans.assumed(mask)
    return truth in (True, "likely") or (truth == "in range" and mask.numel() >= _MIN_SELECTION)


def _empty_on_cpu(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A new CPU tensor; a large one is zero.

    A large one is mapped anonymously: the kernel zeroes its pages when they are first touched (mmap(2)), while malloc
    may reuse dirty memory, and filling that would take longer than the rest of the trace.
    """
    made = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    if made.numel() <= _MAX_ZEROED_NUMEL:
        return torch.empty_strided(shape, strides, dtype=dtype)
    pages = mmap.mmap(-1, made.untyped_storage().nbytes(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).as_strided(made.shape, made.stride())


def _note_read(ctx: OpContext, source: Any, value: torch.Tensor | None, *, number: bool) -> None:
    why = assumption_of(source)
    if value is None or why:
        ctx.host_reads.note(number=number)
    if why == GENERATED_TEXT:  # other assumptions are reported where a size depends on them
        ctx.warn_assumed(why)
