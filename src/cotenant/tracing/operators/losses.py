"""Losses and grouped products whose meta kernels are absent, or need values, or differ from the CUDA kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides
from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

operators = OperatorTable()

_aten = torch.ops.aten
_ROW_ALIGNMENT_BYTES = 16
_MEAN = 1
_INDEX_BYTES = 8
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
_binary_loss_op = _aten.binary_cross_entropy_with_logits.default


def patches(context: PatchContext) -> list[KernelPatch]:
    """CTC's loss, with the lengths of its sequences read on the CPU, as CUDA does."""

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:  # fmt: skip
        lengths = [tensor.to("cpu", torch.long).reshape(-1).tolist() for tensor in (input_lengths, target_lengths)]
        return _aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)

    return [
        KernelPatch(
            target="aten::binary_cross_entropy_with_logits", phase=Phase.OPERATORS, key="AutogradCUDA",
            kernel=_binary_loss, divides=True,
            reason="For a tensor subclass PyTorch computes the gradient out of place, with other temporaries.",
            source="torch/csrc/autograd/FunctionsManual.cpp, `binary_cross_entropy_with_logits_backward`",
        ),
        KernelPatch(
            target="aten::ctc_loss.Tensor", phase=Phase.OPERATORS, key="AutogradCUDA", kernel=ctc_loss, divides=True,
            reason="PyTorch leaves the lengths tensors where any tensor is a subclass.",
            source="aten/src/ATen/native/LossCTC.cpp, `ctc_loss`",
        )
    ]  # fmt: skip


class _BinaryLoss(torch.autograd.Function):
    """Binary cross entropy of logits, whose gradient is computed in place, as it is without a dispatch mode."""

    @staticmethod
    def forward(ctx: Any, x: Any, target: Any, weight: Any, pos_weight: Any, reduction: int) -> Any:
        ctx.save_for_backward(x, target, weight, pos_weight)
        ctx.reduction = reduction
        with torch._C._AutoDispatchBelowAutograd():
            return _binary_loss_op(x, target, weight, pos_weight, reduction)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, target, weight, pos_weight = ctx.saved_tensors
        out = of_target = None
        if ctx.needs_input_grad[0]:
            if pos_weight is None:
                out = _then(x.sigmoid(), "sub", target)
            else:
                scaled = pos_weight.mul(target)
                out = _then(_then(_then(scaled.add(1), "sub", target), "mul", x.sigmoid()), "sub", scaled)
                del scaled
            out = _scaled(_then(out, "mul", grad), weight, ctx.reduction)
        if ctx.needs_input_grad[1]:
            if pos_weight is None:
                of_target = x.neg() * grad
            else:
                of_target = torch.nn.functional.logsigmoid(-x)
                of_target = _then(of_target, "sub", _then(torch.nn.functional.logsigmoid(x), "mul", pos_weight))
                of_target = _then(of_target, "mul", grad)
            of_target = _scaled(of_target, weight, ctx.reduction)
        return out, of_target, None, None, None


def _then(made: Any, operator: str, *operands: Any) -> Any:
    """The next operator of a gradient: in place, except where a graph of the gradient keeps the operands."""
    return getattr(made, operator if torch.is_grad_enabled() else operator + "_")(*operands)


def _scaled(grad: Any, weight: Any, reduction: int) -> Any:
    if weight is not None:
        grad = _then(grad, "mul", weight)
    return grad.div_(grad.numel()) if reduction == _MEAN else grad


def _binary_loss(x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = _MEAN) -> Any:
    """The loss, with PyTorch's own gradient under transforms of functions."""
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return _binary_loss_op._op_dk(_EXPLICIT, x, target, weight, pos_weight, reduction)
    return _BinaryLoss.apply(x, target, weight, pos_weight, reduction)


@operators.shape_of(
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_cudnn_ctc_loss.Tensor",
    "aten::_use_miopen_ctc_loss",
    "aten::_use_miopen_ctc_loss.Tensor",
)
def _no_cudnn_ctc(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """False: cuDNN's loss needs int32 targets on the CPU, which scripts rarely have; MIOpen's is for AMD GPUs.

    Source: ATen/native/cudnn/LossCTC.cpp, `_use_cudnn_ctc_loss`.
    """
    return False


@operators.shape_of("aten::_ctc_loss", "aten::_ctc_loss.Tensor")
def _ctc(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(loss per sample, forward variables). Source: ATen/native/cuda/LossCTC.cu, `ctc_loss_gpu_template`."""
    log_probs, targets, _, target_lengths = args[:4]
    known = (
        ctx.known_values.of(target_lengths)
        if isinstance(target_lengths, torch.Tensor)
        else torch.tensor(target_lengths)
    )
    # Lengths that the model computed are not known, and were read as 0 above: then the padded length counts.
    max_length = (int(known.max()) if known is not None and known.numel() else 0) or targets.shape[-1]
    steps, batch = (log_probs.shape[0], log_probs.shape[1]) if log_probs.dim() == 3 else (log_probs.shape[0], 1)
    _lengths_on_gpu(ctx, batch, log_probs.device)
    shape = (batch, steps, 2 * max_length + 1)
    alpha = ctx.empty_strided(shape, contiguous_strides(shape), log_probs.dtype, log_probs.device)
    ctx.record(alpha)
    return ctx.empty_strided((batch,), (1,), log_probs.dtype, log_probs.device), alpha


def _lengths_on_gpu(ctx: OpContext, batch: int, device: torch.device) -> None:
    """Offsets of targets, and the lengths of targets and inputs, as int64."""
    ctx.keep_until_done([ctx.scratch(batch * _INDEX_BYTES, device) for _ in ("offsets", "targets", "inputs")])


@operators.shape_of("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor")
def _ctc_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The gradient, beside backward variables of the size of the forward ones.

    Source: ATen/native/cuda/LossCTC.cu, `ctc_loss_backward_gpu_template`.
    """
    log_probs, log_alpha = args[1], args[6]
    _lengths_on_gpu(ctx, log_alpha.shape[0], log_probs.device)
    beta = ctx.empty_like(log_alpha)
    ctx.record(beta)
    ctx.keep_until_done([beta])
    shape = tuple(log_probs.shape)
    return ctx.empty_strided(shape, contiguous_strides(shape), log_probs.dtype, log_probs.device)


@operators.shape_of("aten::_grouped_mm")
def _grouped_mm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> FakeTensor:
    """A matrix product per group; rows of the result are padded to 16 bytes.

    Source: ATen/native/GroupedMMUtils.h, `create_grouped_gemm_output_tensor`.
    """
    names = [argument.name for argument in func._schema.arguments]
    bound: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
    first, second = bound["self"], bound["mat2"]
    dtype = bound.get("out_dtype") or first.dtype
    if first.dim() == 2:
        lead = (bound["offs"].shape[0], first.shape[0]) if second.dim() == 2 else (first.shape[0],)
    else:
        lead = (first.shape[1],) if second.dim() == 2 else (first.shape[0], first.shape[1])
    shape = (*lead, second.shape[-1])
    # The tensor memory accelerator of Hopper writes rows whose stride is a multiple of 16 bytes only.
    step = _ROW_ALIGNMENT_BYTES // dtype.itemsize
    width = -(-shape[-1] // step) * step
    strides = (shape[1] * width, width, 1) if len(shape) == 3 else (width, 1)
    return ctx.empty_strided(shape, strides, dtype, first.device)


@operators.shape_of("aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward")
def _margin_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The gradient has the input's shape. Source: ATen/native/cuda/Multi{Margin,LabelMargin}Loss.cu."""
    return ctx.empty_like(args[1])


@operators.shape_of("aten::log_sigmoid_forward")
def _log_sigmoid(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(result, empty buffer): only the CPU kernel fills the buffer. Source: ATen/native/cuda/Activation.cpp."""
    return ctx.empty_like(args[0]), ctx.empty_strided((0,), (1,), args[0].dtype, args[0].device)
