"""What torch before 1.11 saved for the backward pass and later versions do not, for rows measured with it.

`softmax` and `log_softmax` saved their input beside their result, since the formulas of their gradients took it for its
dtype. Source: tools/autograd/derivatives.yaml of v1.10.0, `_softmax_backward_data(grad, result, dim, self)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere in PyTorch's own code


class _SavesInput(torch.autograd.Function):
    """A function of one tensor whose input lives until its backward pass."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], dim: int, logits: torch.Tensor) -> torch.Tensor:
        result = function(logits, dim)
        ctx.save_for_backward(logits, result)
        ctx.function, ctx.dim = function, dim
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, torch.Tensor]:
        logits, result = ctx.saved_tensors
        backward = (
            torch.ops.aten._log_softmax_backward_data
            if ctx.function is torch.log_softmax
            else torch.ops.aten._softmax_backward_data
        )
        return None, None, backward(grad, result, ctx.dim, logits.dtype)


def _softmax(logits: torch.Tensor, dim: int = -1, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    if dtype is None and torch.is_autocast_enabled("cuda"):
        dtype = torch.float32
    return _SavesInput.apply(torch.softmax, dim, logits if dtype is None else logits.to(dtype))


def _cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    **_: Any,
) -> torch.Tensor:
    logits = logits.float() if torch.is_autocast_enabled("cuda") else logits
    scores = _SavesInput.apply(torch.log_softmax, 1, logits)
    return F.nll_loss(scores, labels, weight, ignore_index=ignore_index, reduction=reduction)


def use_old_softmax() -> None:
    """Let `softmax` and `cross_entropy` of `torch.nn.functional` save their inputs, too."""
    F.softmax = _softmax  # type: ignore[assignment]
    F.cross_entropy = _cross_entropy  # type: ignore[assignment]
