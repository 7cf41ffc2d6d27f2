"""LBFGS, which reads the values of gradients and keeps as many pairs of vectors as its history allows.

Its step ends early when the loss no longer changes, as it seems to where losses are not computed, and it keeps a pair
only where the curvature is positive, which is not known. In a trace, and on the null GPU, no step ends early and every
pair stays: an upper bound. Source: torch/optim/lbfgs.py, `LBFGS.step`.

A module of its own: the rules of one optimizer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

CURVATURE = 1e-10
"""The bound that LBFGS compares the product of a pair with; `assumptions.booleans` looks for it."""


def patches(context: PatchContext) -> list[Patch]:
    """Those of `step_patches`."""
    return step_patches()


def step_patches() -> list[Patch]:
    """The step, without its tests of convergence."""
    return [
        Patch(
            target="torch.optim:LBFGS.step",
            phase=Phase.TRAINING,
            replacement=_never_converging,
            wraps=True,
            reason="Its tests of convergence compare losses and gradients, which a trace does not compute.",
            source="torch/optim/lbfgs.py, `LBFGS.step`",
        )
    ]


def _never_converging(original: Any) -> Any:
    @functools.wraps(original)
    def step(optimizer: torch.optim.LBFGS, *args: Any, **kwargs: Any) -> Any:
        group = optimizer.param_groups[0]
        if not any(parameter.is_cuda for parameter in group["params"]):
            return original(optimizer, *args, **kwargs)
        # `step` compares sizes of gradients and changes with these, and a size is never below -1.
        tolerances = {name: group[name] for name in ("tolerance_grad", "tolerance_change")}
        group.update(dict.fromkeys(tolerances, -1.0))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            group.update(tolerances)

    return step


def steps_to_fill(optimizer: torch.optim.LBFGS) -> int:
    """Steps after which the history is full, and one more."""
    group = optimizer.param_groups[0]
    return int(group["history_size"]) // max(1, int(group["max_iter"]) - 1) + 2
