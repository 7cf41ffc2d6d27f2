"""What operators give on fake CUDA tensors, where the general way is unfaithful or too slow.

A handler gets the mode and the call, and answers with the result or with NotImplemented for the general way.
"""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import booleans
from cotenant.tracing.assumptions.known_values import GENERATED_TEXT, assumption_of
from cotenant.tracing.operators import sparse
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides, copy_strides

operators = OperatorTable()

_aten = torch.ops.aten
_MAX_ZEROED_NUMEL = 1 << 20


def _is_cuda(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


@operators.shape_of("aten::_local_scalar_dense")
def _local_scalar(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A value read from the GPU, if it is known; else one, or False, but see `loops`. Scripts divide by losses."""
    value = ctx.known_values.of(args[0])
    dtype = args[0].dtype
    _note_read(ctx, args[0], value, number=dtype.is_floating_point)
    if value is not None:
        return value.item()
    if dtype is torch.bool:
        known = booleans.assumed(args[0])
        return known if isinstance(known, bool) else ctx.loops.truth(likely=known == "likely")
    if dtype.is_complex:
        return complex(1.0)
    return ctx.loops.number() if dtype.is_floating_point else 1


@operators.shape_of("aten::_to_copy")
def _to_copy(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`.to(...)`: between CPU and GPU nothing is copied but the shape."""
    source = args[0]
    device = kwargs.get("device")
    target = torch.device(device) if device is not None else source.device
    if source.layout is not torch.strided:
        return sparse.to_copy(ctx, func, args, kwargs)
    dtype = kwargs.get("dtype") or source.dtype
    layout = copy_strides(source, kwargs.get("memory_format"))
    if target.type == "cuda":
        if target.index is None:
            target = source.device if _is_cuda(source) else torch.device("cuda", torch.cuda.current_device())
        made = ctx.empty_strided(source.shape, layout, dtype, target)
        if not _is_cuda(source):
            ctx.record(made)
            ctx.recorder.classify(made, "input")  # a parameter or buffer is told apart later
        return made
    if target.type == "cpu" and _is_cuda(source):
        return _read_back(ctx, source, _empty_on_cpu(source.shape, layout, dtype))
    return NotImplemented


def _read_back(ctx: OpContext, source: Any, target: torch.Tensor) -> torch.Tensor:
    """`target`, on the CPU, with what is known of `source`: its values, or one as a scalar, or zeros.

    A large one stays as it is: a new one is zero, and into one that the script made nothing is written.
    """
    value = ctx.known_values.of(source)
    _note_read(ctx, source, value, number=target.numel() == 1 and target.dtype.is_floating_point)
    if value is not None:
        return target.copy_(value)
    if target.dtype is torch.bool and booleans.assumed(source) in (True, "likely"):
        return target.fill_(1)
    if target.numel() > _MAX_ZEROED_NUMEL:
        return target
    return target.fill_(0 if target.dim() or target.dtype is torch.bool else 1)


def _empty_on_cpu(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A new tensor on the CPU. A large one is zero: fresh pages of the system are, and cost nothing until it is read.

    What malloc gives instead may be memory that was used before.
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
    if why == GENERATED_TEXT:  # what a router chose is told where a size depends on it
        ctx.warn_assumed(why)


@operators.shape_of("aten::copy_")
def _copy_(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`dst.copy_(src)`: the destination, whatever side it is on."""
    target, source = args[:2]
    if not _is_cuda(target):
        return _read_back(ctx, source, target)
    return target if _broadcasts_to(source, target) else NotImplemented


@operators.shape_of("aten::clone")
def _clone(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    source = args[0]
    if source.layout is not torch.strided:
        return NotImplemented
    return ctx.empty_strided(
        source.shape, copy_strides(source, kwargs.get("memory_format")), source.dtype, source.fake_device
    )


@operators.shape_of(
    "aten::uniform_",
    "aten::normal_",
    "aten::exponential_",
    "aten::bernoulli_.float",
    "aten::random_",
    "aten::zero_",
    "aten::fill_.Scalar",
    "aten::add_.Tensor",
    "aten::mul_.Tensor",
    "aten::div_.Tensor",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::lerp_.Scalar",
    "aten::relu_",
)
def _in_place(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The first tensor, if the others fit into it; of those that do not, the general way tells the error."""
    target = args[0]
    fit = all(_broadcasts_to(each, target) for each in args[1:] if isinstance(each, torch.Tensor))
    return target if fit else NotImplemented


@operators.shape_of("aten::_amp_update_scale_")
def _update_scale(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The scale of gradients, whose shape is its own: it and the others have one element."""
    return args[0]


def _broadcasts_to(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether `source` has the shape of `target`, or can be spread to it."""
    shape, wanted = source.shape, target.shape
    if shape == wanted:
        return True
    lead = len(wanted) - len(shape)
    return lead >= 0 and all(a in (1, b) for a, b in zip(shape, wanted[lead:], strict=True))


@operators.shape_of("aten::is_pinned")
def _is_pinned(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return False


@operators.shape_of("aten::record_stream", "aten::_amp_foreach_non_finite_check_and_unscale_")
def _returns_none(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return None


@operators.shape_of("aten::equal", "aten::allclose")
def _equal(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    first, second = ctx.known_values.of(args[0]), ctx.known_values.of(args[1])
    return first is not None and second is not None and bool(func(first, second, *args[2:], **kwargs))


@operators.shape_of(
    "aten::silu_backward",
    "aten::mish_backward",
    "aten::_sample_dirichlet",
    "aten::_dirichlet_grad",
    "aten::_standard_gamma",
    "aten::_standard_gamma_grad",
    "aten::binomial",
    "aten::poisson",
    "aten::_logcumsumexp",
)
def _like(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return ctx.empty_like(args[0]) if _is_cuda(args[0]) else NotImplemented


@operators.shape_of("aten::native_batch_norm")
def _batch_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, saved mean, saved inverse deviation); the statistics are of the accumulation type."""
    x, training = args[0], args[5]
    if training:  # its schema does not say that the running mean and variance are written to
        ctx.known_values.forget(args[3])
        ctx.known_values.forget(args[4])
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    channels = (x.shape[1],) if training else (0,)
    save = [ctx.empty_strided(channels, (1,), dtype, x.fake_device) for _ in range(2)]
    return (ctx.empty_like(x), *save)


@operators.shape_of("aten::native_batch_norm_backward")
def _batch_norm_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    grad, x, weight, mask = args[0], args[1], args[2], args[9]
    stats = weight.dtype if weight is not None else x.dtype
    channels = (x.shape[1],)
    grad_x = ctx.empty_like(x) if mask[0] else None
    pair = [ctx.empty_strided(channels, (1,), stats, grad.fake_device) if wanted else None for wanted in mask[1:3]]
    return (grad_x, *pair)


@operators.shape_of("aten::native_layer_norm")
def _layer_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    x, shape = args[0], args[1]
    lead = tuple(x.shape[: x.dim() - len(shape)]) + (1,) * len(shape)
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    out = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device)
    stats = [ctx.empty_strided(lead, contiguous_strides(lead), dtype, x.fake_device) for _ in range(2)]
    return (out, *stats)


@operators.shape_of("aten::native_layer_norm_backward")
def _layer_norm_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    _grad, x, _shape, _mean, _rstd, weight, bias, mask = args
    grad_x = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device) if mask[0] else None
    grad_w = ctx.empty_like(weight) if mask[1] and weight is not None else None
    grad_b = ctx.empty_like(bias) if mask[2] and bias is not None else None
    return (grad_x, grad_w, grad_b)


@operators.shape_of("aten::_log_softmax_backward_data")
def _log_softmax_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """In rows, however the gradient lies. Source: ATen/native/SoftMax.cpp, TORCH_META_FUNC(log_softmax_backward_data);
    the decomposition that stands in for it follows the gradient.
    """
    grad = args[0]
    return ctx.empty_strided(grad.shape, contiguous_strides(grad.shape), args[3], grad.fake_device)


@operators.shape_of("aten::native_dropout")
def _dropout(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, mask); CUDA allocates the mask first. Source: ATen/native/cuda/Dropout.cu, `dropout_cuda`."""
    x, _p, train = args
    if train is False or x.numel() == 0:
        return NotImplemented
    mask = ctx.empty_like(x, torch.bool)
    ctx.record(mask)
    return (ctx.empty_like(x), mask)


@operators.shape_of("aten::_foreach_*", "aten::_fused_*")
def _foreach(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`torch._foreach_*` and `torch._fused_*`: nothing in place, else one new tensor for each of the first list."""
    first = next((each for each in args if isinstance(each, (list, tuple))), ())
    name = func._opname
    if name.endswith("_"):
        return None
    if name in {"_foreach_norm", "_foreach_max", "_foreach_sum"}:
        return [ctx.empty_strided((), (), each.dtype, each.fake_device) for each in first]
    if all(_is_cuda(each) for each in first) and name.startswith("_foreach_"):
        return [ctx.empty_like(each) for each in first]
    return NotImplemented
