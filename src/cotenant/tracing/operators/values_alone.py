"""Eigenvalues and singular values alone, for which PyTorch computes vectors only if a gradient needs them.

Under a dispatch mode every tensor counts as one that may need a gradient (`_may_require_fw_or_bw_grad`).

A module of its own: these are patches, and `factorizations` are what operators allocate.
"""

from __future__ import annotations

import torch

from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_aten = torch.ops.aten


def patches(context: PatchContext) -> list[KernelPatch]:
    """Of symmetric matrices, and of any."""
    kernels = (("aten::linalg_eigvalsh", _eigenvalues), ("aten::linalg_svdvals", _singular_values))
    return [
        KernelPatch(
            target=target, phase=Phase.OPERATORS, key="AutogradCUDA", kernel=kernel,
            reason="For a tensor subclass PyTorch computes vectors that no gradient needs.",
            source="ATen/native/BatchLinearAlgebra.cpp, `linalg_eigvalsh`, `linalg_svdvals`",
        )
        for target, kernel in kernels
    ]  # fmt: skip


def _eigenvalues(x: torch.Tensor, UPLO: str = "L") -> torch.Tensor:  # noqa: N803 - the operator's own name
    found: torch.Tensor = _aten._linalg_eigh.default(x, UPLO, _needs_gradient(x))[0]
    return found


def _singular_values(x: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:
    found: torch.Tensor = _aten._linalg_svd.default(x, False, _needs_gradient(x), driver=driver)[1]
    return found


def _needs_gradient(x: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad
