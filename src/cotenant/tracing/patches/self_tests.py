"""PyTorch's own checks of gradients, `torch.autograd.gradcheck` and `gradgradcheck`, which compare values.

They run as they are, with what they allocate, except for comparisons of values that a trace does not compute. Their
backward passes are no training.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase


def patches(context: PatchContext) -> list[Patch]:
    """The function that both checks call, one of its tests, and its comparison."""
    return [
        Patch(
            target="torch.autograd.gradcheck:_test_backward_mul_by_grad_output", phase=Phase.LIBRARIES,
            replacement=lambda *_: True,
            reason="It reads that gradients of zeros are zeros.",
            source="torch/autograd/gradcheck.py, `_test_backward_mul_by_grad_output`",
        ),
        Patch(
            target="torch.autograd.gradcheck:_gradcheck_helper", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_check, context),
            reason="It compares gradients with differences of results, and two backward passes with each other.",
            source="torch/autograd/gradcheck.py, `_check_analytical_jacobian_attributes`",
        ),
        Patch(
            target="torch.autograd.gradcheck:_allclose_with_type_promotion", phase=Phase.LIBRARIES, wraps=True,
            replacement=_close,
            reason="Gradients are known where they are zeros, and differences of results are not.",
            source="torch/autograd/gradcheck.py, `_stack_and_check_tensors`",
        )
    ]  # fmt: skip


def _close(original: Any) -> Any:
    @functools.wraps(original)
    def close(*args: Any) -> bool:
        original(*args)  # for what it allocates
        return True

    return close


def _check(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def check(*args: Any, **options: Any) -> Any:
        with context.observer.not_training():
            # Undefined gradients must give zeros, which are compared one by one.
            return original(*args, **{**options, "nondet_tol": math.inf, "check_undefined_grad": False})

    return check
