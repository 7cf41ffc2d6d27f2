"""Distributions, which check values that neither a trace nor the null GPU computes: those are assumed valid.

Checks of ranges over many values pass by themselves (see `assumptions.booleans`); a check of a single value, such as
the sum of an only row, runs as on a GPU, and its outcome is assumed. Source: torch/distributions/constraints.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.assumptions import booleans
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_SCALAR_CONSTRAINTS = ("_Boolean", "_IntegerInterval", "_IntegerLessThan", "_IntegerGreaterThan")
_MATRIX_CONSTRAINTS = ("_Symmetric", "_PositiveSemidefinite", "_PositiveDefinite", "_LowerCholesky", "_CorrCholesky")


def patches(context: PatchContext) -> list[Patch]:
    """Checks of constraints and of samples, and rejection sampling."""
    constraints: Any = torch.distributions.constraints
    checked = [
        name
        for name, kind in vars(constraints).items()
        if isinstance(kind, type) and issubclass(kind, constraints.Constraint) and "check" in vars(kind)
    ]
    return [
        *(
            Patch(
                target=f"torch.distributions.constraints:{name}.check", phase=Phase.LIBRARIES,
                replacement=_check_of(name), wraps=True,
                reason="It reads values of a parameter or sample from the GPU.",
                source=f"torch/distributions/constraints.py, `{name}`",
            )
            for name in checked
        ),
        Patch(
            target="torch.distributions.von_mises:_rejection_sample", phase=Phase.LIBRARIES,
            replacement=_single_round_rejection_sample, wraps=True,
            reason="It draws until every sample is accepted, which a trace never sees.",
            source="torch/distributions/von_mises.py, `_rejection_sample`",
        ),
        Patch(
            target="torch.distributions:Distribution._validate_sample", phase=Phase.LIBRARIES,
            replacement=_ignoring_support, wraps=True,
            reason="A fake sample cannot show that it is within the support.",
            source="torch/distributions/distribution.py, `Distribution._validate_sample`",
        ),
    ]  # fmt: skip


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _check_of(constraint: str) -> Callable[[Any], Any]:
    if constraint in _SCALAR_CONSTRAINTS:
        return functools.partial(_always_true, dims=0)
    return functools.partial(_always_true, dims=2) if constraint in _MATRIX_CONSTRAINTS else _assumed_true


def _ignoring_support(original: Callable[..., Any]) -> Callable[..., Any]:
    def validate(self: Any, value: Any) -> None:
        try:
            original(self, value)
        except ValueError as error:
            if not _is_on_gpu(value) or "within the support" not in str(error):
                raise

    return validate


def _always_true(original: Callable[..., Any], dims: int) -> Callable[..., Any]:
    """`dims`: dimensions of one checked value: 2 for a matrix."""

    @functools.wraps(original)
    def check(constraint: Any, value: torch.Tensor) -> torch.Tensor:
        if not value.is_cuda:
            checked: torch.Tensor = original(constraint, value)
            return checked
        return torch.ones(value.shape[: value.dim() - dims], dtype=torch.bool, device=value.device)

    return check


def _assumed_true(original: Callable[..., Any]) -> Callable[..., Any]:
    """The check itself, with all that it allocates; its outcome is assumed true."""

    @functools.wraps(original)
    def check(constraint: Any, value: torch.Tensor) -> torch.Tensor:
        checked: torch.Tensor = original(constraint, value)
        if _is_on_gpu(checked):
            booleans.assume(checked, True)
        return checked

    return check


def _single_round_rejection_sample(original: Callable[..., Any]) -> Callable[..., Any]:
    """One round, which draws three numbers per sample; the loop would never see the last sample accepted."""

    def sample(loc: torch.Tensor, concentration: Any, proposal: Any, x: torch.Tensor) -> torch.Tensor:
        if not loc.is_cuda:
            drawn: torch.Tensor = original(loc, concentration, proposal, x)
            return drawn
        first, second, third = torch.rand((3, *x.shape), dtype=loc.dtype, device=loc.device).unbind()
        return torch.where(first > second, third + loc.detach(), x)

    return sample
