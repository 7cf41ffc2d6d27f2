"""`torch.optim.LBFGS`, whose memory is the pairs of vectors it keeps, as it behaves while it has not converged.

It ends a step where a loss is that of the iteration before, as all losses are that nobody computed, and keeps a pair
where the curvature is positive, which is not known. Here it goes on, and every pair is kept: an upper bound.
Source: torch/optim/lbfgs.py, `LBFGS.step`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

CURVATURE = 1e-10
"""What the product of a pair must exceed, as LBFGS writes it: see `truth`."""


def install() -> None:
    """Let no step on the GPU end for having converged."""
    original = torch.optim.LBFGS.step

    @functools.wraps(original)
    def step(optimizer: torch.optim.LBFGS, *args: Any, **kwargs: Any) -> Any:
        group = optimizer.param_groups[0]
        if not any(each.is_cuda for each in group["params"]):
            return original(optimizer, *args, **kwargs)
        kept = {each: group[each] for each in ("tolerance_grad", "tolerance_change")}
        group.update(dict.fromkeys(kept, -1.0))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            group.update(kept)

    torch.optim.LBFGS.step = step


def steps_to_fill(optimizer: torch.optim.LBFGS) -> int:
    """Steps after which it keeps as many pairs as it ever will, and one more."""
    group = optimizer.param_groups[0]
    return int(group["history_size"]) // max(1, int(group["max_iter"]) - 1) + 2
