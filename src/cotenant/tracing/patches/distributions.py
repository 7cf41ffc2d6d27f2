"""Distributions that check values, which nobody computes on the GPU: matrices and whole numbers are as they should be.

Checks of ranges pass by themselves where many values are asked for (see `operators.truth`); what is asked of one value,
such as the sum of the only row, is computed as on a GPU and believed. Source: torch/distributions/constraints.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import booleans

_SCALAR_CONSTRAINTS = ("_Boolean", "_IntegerInterval", "_IntegerLessThan", "_IntegerGreaterThan")
_MATRIX_CONSTRAINTS = ("_Symmetric", "_PositiveSemidefinite", "_PositiveDefinite", "_LowerCholesky", "_CorrCholesky")


def install(_: Any) -> None:
    """Let them pass, and samples that are drawn until they are accepted be so at once."""
    constraints: Any = torch.distributions.constraints
    kinds: dict[str, Any] = {name: kind for name, kind in vars(constraints).items() if isinstance(kind, type)}
    for name, kind in kinds.items():
        if not issubclass(kind, constraints.Constraint) or "check" not in vars(kind):
            continue
        if name in (*_SCALAR_CONSTRAINTS, *_MATRIX_CONSTRAINTS):
            kind.check = _always_true(kind.check, 2 if name in _MATRIX_CONSTRAINTS else 0)
        else:
            kind.check = _assumed_true(kind.check)
    circular: Any = torch.distributions.von_mises
    circular._rejection_sample = _single_round_rejection_sample(circular._rejection_sample)


def _always_true(original: Callable[..., Any], dims: int) -> Callable[..., Any]:
    """`dims`: of what is checked as one."""

    @functools.wraps(original)
    def check(constraint: Any, value: torch.Tensor) -> torch.Tensor:
        if not value.is_cuda:
            checked: torch.Tensor = original(constraint, value)
            return checked
        return torch.ones(value.shape[: value.dim() - dims], dtype=torch.bool, device=value.device)

    return check


def _assumed_true(original: Callable[..., Any]) -> Callable[..., Any]:
    """Checks as they are, with all that they allocate, and an outcome that is believed."""

    @functools.wraps(original)
    def check(constraint: Any, value: torch.Tensor) -> torch.Tensor:
        checked: torch.Tensor = original(constraint, value)
        if isinstance(checked, FakeTensor):
            booleans.assume_true(checked)
        return checked

    return check


def _single_round_rejection_sample(original: Callable[..., Any]) -> Callable[..., Any]:
    """One round of three numbers for each sample; the loop would never see the last one accepted."""

    def sample(loc: torch.Tensor, concentration: Any, proposal: Any, x: torch.Tensor) -> torch.Tensor:
        if not loc.is_cuda:
            drawn: torch.Tensor = original(loc, concentration, proposal, x)
            return drawn
        first, second, third = torch.rand((3, *x.shape), dtype=loc.dtype, device=loc.device).unbind()
        return torch.where(first > second, third + loc.detach(), x)

    return sample
