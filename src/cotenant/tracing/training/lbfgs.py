"""LBFGS, which reads the values of gradients and keeps as many pairs of vectors as its history allows.

Its step ends early when the loss no longer changes, as it seems to where losses are not computed, and it keeps a pair
only where the curvature is positive, which is not known. In a trace, and on the null GPU, no step ends early and every
pair stays: an upper bound. A step ends when the history is full, since all later iterations are alike, and a line
search that compares losses, too, after an evaluation in each of its two loops. Source: torch/optim/lbfgs.py,
`LBFGS.step`, `_strong_wolfe`.

A module of its own: the rules of one optimizer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_EVALUATIONS = 2  # of a line search: it may have 25
CURVATURE = 1e-10
"""The bound that LBFGS compares the product of a pair with; `assumptions.booleans` looks for it."""


def patches(context: PatchContext) -> list[Patch]:
    """Those of `step_patches`."""
    return step_patches()


def step_patches() -> list[Patch]:
    """The step, without its tests of convergence, and its line search."""
    return [
        Patch(
            target="torch.optim:LBFGS.step",
            phase=Phase.TRAINING,
            replacement=_never_converging,
            wraps=True,
            reason="Its tests of convergence compare losses and gradients, which a trace does not compute.",
            source="torch/optim/lbfgs.py, `LBFGS.step`",
        ),
        Patch(
            target="torch.optim.lbfgs:_strong_wolfe",
            phase=Phase.TRAINING,
            replacement=_short_search,
            wraps=True,
            reason="It goes on to its limit where the losses that it compares are not computed.",
            source="torch/optim/lbfgs.py, `_strong_wolfe`",
        ),
    ]


def _never_converging(original: Any) -> Any:
    @functools.wraps(original)
    def step(optimizer: torch.optim.LBFGS, *args: Any, **kwargs: Any) -> Any:
        group = optimizer.param_groups[0]
        if not any(parameter.is_cuda for parameter in group["params"]):
            return original(optimizer, *args, **kwargs)
        # `step` compares sizes of gradients and changes with these, and a size is never below -1.
        before = {name: group[name] for name in ("tolerance_grad", "tolerance_change", "max_iter")}
        known = len(optimizer.state[optimizer._params[0]].get("old_dirs") or ())
        iterations = min(int(group["max_iter"]), max(int(group["history_size"]) - known, 0) + 2)
        group.update(tolerance_grad=-1.0, tolerance_change=-1.0, max_iter=iterations)
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            group.update(before)

    return step


def _short_search(original: Any) -> Any:
    @functools.wraps(original)
    def search(closure: Any, x: Any, t: Any, direction: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if direction.is_cuda:
            kwargs["max_ls"] = min(kwargs.get("max_ls", _EVALUATIONS), _EVALUATIONS)
        return original(closure, x, t, direction, *args, **kwargs)

    return search


def steps_to_fill(optimizer: torch.optim.LBFGS) -> int:
    """Steps after which the history is full, and one more."""
    group = optimizer.param_groups[0]
    return int(group["history_size"]) // max(1, int(group["max_iter"]) - 1) + 2
