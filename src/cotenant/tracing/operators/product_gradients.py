"""Gradients of products, which PyTorch computes by a division unless an element is zero.

Whether one is zero it reads from the GPU. For a tensor subclass it does not look, and takes formulas that allow for
zeros and need several times the memory. Here no element is zero, as in nearly every step of a training.

A module of its own: what these operators share is an assumption about values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_aten = torch.ops.aten


def patches(context: PatchContext) -> list[KernelPatch]:
    """Products over all elements and over one dimension, and cumulative ones."""
    kernels: tuple[tuple[str, Callable[..., Any], str], ...] = (
        ("aten::prod", _prod, "prod_backward"),
        ("aten::prod.dim_int", _prod_dim, "prod_backward"),
        ("aten::cumprod", _cumprod, "cumprod_backward"),
    )
    return [
        KernelPatch(
            target=target, phase=Phase.OPERATORS, key="AutogradCUDA", kernel=kernel,
            reason="For a tensor subclass PyTorch computes the gradient by formulas that allow for zeros.",
            source=f"torch/csrc/autograd/FunctionsManual.cpp, `{formula}`",
        )
        for target, kernel, formula in kernels
    ]  # fmt: skip


class _Product(torch.autograd.Function):
    """The product over all elements, or over dimension `dim`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> torch.Tensor:
        out: torch.Tensor = (
            _below_autograd(_aten.prod.default, x, dtype=dtype)
            if dim is None
            else _below_autograd(_aten.prod.dim_int, x, dim, keepdim, dtype=dtype)
        )
        ctx.save_for_backward(x, out)
        ctx.dim, ctx.keepdim = dim, keepdim
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, out = ctx.saved_tensors
        x = x.to(grad.dtype)
        if not x.dim():
            return grad.clone(), None, None, None
        is_zero = x == 0
        if ctx.dim is None:
            del is_zero  # PyTorch looks for the positions of zeros, and finds none
        else:
            zeros = is_zero.sum(ctx.dim, keepdim=True)
            zeros.sum()
            if not ctx.keepdim:
                grad, out = grad.unsqueeze(ctx.dim), out.unsqueeze(ctx.dim)
        return grad * (out / x).conj(), None, None, None


class _CumulativeProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        out: torch.Tensor = _below_autograd(_aten.cumprod.default, x, dim, dtype=dtype)
        ctx.save_for_backward(x, out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, out = ctx.saved_tensors
        dim, grad = ctx.dim, grad.to(x.dtype)
        if x.numel() <= 1 or x.shape[dim] == 1:
            return grad, None, None
        weighted = out.conj() * grad
        is_zero = x == 0
        is_zero.any()
        flipped = weighted.flip(dim)
        summed = flipped.cumsum(dim)
        total = summed.flip(dim)
        del summed, flipped
        return total.div(x.conj()), None, None


def _prod(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    if not x.requires_grad:
        return _below_autograd(_aten.prod.default, x, dtype=dtype)
    return x.to(dtype).log().sum().exp() if _is_transformed() else _Product.apply(x, None, False, dtype)


def _prod_dim(x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if not x.requires_grad:
        return _below_autograd(_aten.prod.dim_int, x, dim, keepdim, dtype=dtype)
    return x.to(dtype).log().sum(dim, keepdim).exp() if _is_transformed() else _Product.apply(x, dim, keepdim, dtype)


def _cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if not x.requires_grad:
        return _below_autograd(_aten.cumprod.default, x, dim, dtype=dtype)
    return x.to(dtype).log().cumsum(dim).exp() if _is_transformed() else _CumulativeProduct.apply(x, dim, dtype)


def _below_autograd(operator: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args, **kwargs)


def _is_transformed() -> bool:
    """Whether `torch.func` is at work, which no custom function serves below its own dispatch key.

    The sums of logarithms that stand in have a gradient, and one result more.
    """
    return torch._C._are_functorch_transforms_active()
