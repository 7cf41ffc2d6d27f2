"""Losses and mixtures whose meta kernels ask more, or know less, than the CUDA ones."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.fast_paths import view_of
from cotenant.tracing.operators.strides import contiguous_strides

_aten = torch.ops.aten
_ROW_ALIGNMENT_BYTES = 16
_libraries: list[Any] = []


def install() -> dict[Any, Any]:
    """Read the lengths of CTC's sequences on the CPU, as CUDA does; gives operator and answer.

    PyTorch leaves them tensors where any tensor is a subclass. Source: ATen/native/LossCTC.cpp, `ctc_loss`.
    """

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:  # fmt: skip
        lengths = [each.to("cpu", torch.long).reshape(-1).tolist() for each in (input_lengths, target_lengths)]
        return _aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)

    library: Any = torch.library.Library("aten", "IMPL")
    library.impl("ctc_loss.Tensor", ctc_loss, "AutogradCUDA")
    _libraries.append(library)
    return {_aten.ctc_loss.Tensor: ctc_loss}


def _no_cudnn_ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """CuDNN's own loss needs int32 targets on the CPU, which nobody passes by chance; MIOpen's is for other GPUs."""
    return False


def _ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """(loss of each sample, forward variables). Source: ATen/native/cuda/LossCTC.cu, `ctc_loss_gpu_template`."""
    log_probs, targets, _, target_lengths = args[:4]
    known = mode.values.of(target_lengths) if isinstance(target_lengths, torch.Tensor) else torch.tensor(target_lengths)
    # Lengths that came out of the model are not known, and read as 0.
    longest = (int(known.max()) if known is not None and known.numel() else 0) or targets.shape[-1]
    steps, batch = (log_probs.shape[0], log_probs.shape[1]) if log_probs.dim() == 3 else (log_probs.shape[0], 1)
    loss = mode.empty_strided((batch,), (1,), log_probs.dtype, log_probs.device)
    alpha = (batch, steps, 2 * longest + 1)
    return loss, mode.empty_strided(alpha, contiguous_strides(alpha), log_probs.dtype, log_probs.device)


def _ctc_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient, beside backward variables as big as the forward ones."""
    log_probs, log_alpha = args[1], args[6]
    beta = mode.empty_like(log_alpha)
    mode.note(beta)
    shape = tuple(log_probs.shape)
    return mode.empty_strided(shape, contiguous_strides(shape), log_probs.dtype, log_probs.device)


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> FakeTensor:
    """A product for each group of rows. Rows of the result are padded to 16 bytes.

    Source: ATen/native/GroupedMMUtils.h, `create_grouped_gemm_output_tensor`.
    """
    bound = dict(zip([each.name for each in func._schema.arguments], args, strict=False)) | kwargs
    first, second, offsets = bound["self"], bound["mat2"], bound.get("offs")
    dtype = bound.get("out_dtype") or first.dtype
    if first.dim() == 2:
        lead = (offsets.shape[0], first.shape[0]) if second.dim() == 2 else (first.shape[0],)
    else:
        lead = (first.shape[1],) if second.dim() == 2 else (first.shape[0], first.shape[1])
    shape = (*lead, second.shape[-1])
    step = _ROW_ALIGNMENT_BYTES // dtype.itemsize
    width = -(-shape[-1] // step) * step
    strides = (shape[1] * width, width, 1) if len(shape) == 3 else (width, 1)
    return mode.empty_strided(shape, strides, dtype, first.device)


def _margin_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Of the input's shape. Source: ATen/native/cuda/Multi{Margin,LabelMargin}Loss.cu."""
    return mode.empty_like(args[1])


def _log_sigmoid(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The result, and an empty buffer: only the CPU keeps one. Source: ATen/native/cuda/Activation.cpp."""
    return mode.empty_like(args[0]), mode.empty_strided((0,), (1,), args[0].dtype, args[0].device)


def _binary_cross_entropy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A reduced loss stays in the storage of the loss of each element.

    Source: ATen/native/cuda/Loss.cu, `binary_cross_entropy_out_cuda`.
    """
    each = mode.empty_like(args[0])
    reduction = args[3] if len(args) > 3 else kwargs.get("reduction", 1)
    return each if reduction == 0 else view_of(mode, each, (), (), 0)


SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten.log_sigmoid_forward.default: _log_sigmoid,
    _aten.binary_cross_entropy.default: _binary_cross_entropy,
    _aten.multi_margin_loss_backward.default: _margin_backward,
    _aten.multilabel_margin_loss_backward.default: _margin_backward,
    _aten._ctc_loss.default: _ctc,
    _aten._ctc_loss.Tensor: _ctc,
    _aten._ctc_loss_backward.default: _ctc_backward,
    _aten._ctc_loss_backward.Tensor: _ctc_backward,
}
for _name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
    if hasattr(_aten, _name):
        SHAPE_FUNCTIONS.update(
            dict.fromkeys(map(getattr(_aten, _name).__getattr__, ("default", "Tensor")), _no_cudnn_ctc)
        )
if hasattr(_aten, "_grouped_mm"):
    SHAPE_FUNCTIONS[_aten._grouped_mm.default] = _grouped_mm
