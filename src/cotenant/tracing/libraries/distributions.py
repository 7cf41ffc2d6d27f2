"""Distributions that check their arguments: a matrix on the GPU is what it should be, since nobody computes its values.

Checks of single numbers pass by themselves (see `operators.truth`). Source: torch/distributions/constraints.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_OF_MATRICES = ("_Symmetric", "_PositiveSemidefinite", "_PositiveDefinite", "_LowerCholesky", "_CorrCholesky")


def install(_: Any) -> None:
    """Let matrices pass."""
    for name in _OF_MATRICES:
        kind = getattr(torch.distributions.constraints, name, None)
        if kind is not None:
            kind.check = _passing(kind.check)


def _passing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check(constraint: Any, value: torch.Tensor) -> torch.Tensor:
        if not value.is_cuda:
            checked: torch.Tensor = original(constraint, value)
            return checked
        return torch.ones(value.shape[:-2], dtype=torch.bool, device=value.device)

    return check
