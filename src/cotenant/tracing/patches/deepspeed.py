"""DeepSpeed: no gradient overflows, and ZeRO-3 leaves tensors alone that the tracer makes.

Source: deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and partition_parameters.py; deepspeed/runtime/utils.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_OVERFLOW_CHECKS = (
    ("zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("zero.stage3", "DeepSpeedZeroOptimizer_Stage3"),
    ("utils", "CheckOverflow"),
)
"""Modules below `deepspeed.runtime`, and their classes that skip a step where a gradient overflowed."""
_TRACER_MODULES = ("cotenant.tracing.", "torch._")
"""Beginnings of the names of modules that do what CUDA kernels would."""


def patches(context: PatchContext) -> list[Patch]:
    """Overflow checks, and the constructors that ZeRO-3 replaces."""
    return [
        *(
            Patch(
                target=f"deepspeed.runtime.{module}:{name}.has_overflow", phase=Phase.LIBRARIES,
                replacement=_never_overflowing, wraps=True, missing="versions without this class",
                reason="It reads from the GPU whether a gradient overflowed, and skips the step if so.",
                source=f"deepspeed/runtime/{module.replace('.', '/')}.py, `{name}.has_overflow`",
            )
            for module, name in _OVERFLOW_CHECKS
        ),
        Patch(
            target="deepspeed.runtime.zero.partition_parameters:zero_wrapper_for_fp_tensor_constructor",
            phase=Phase.LIBRARIES, replacement=_for_scripts_only, wraps=True,
            reason="While ZeRO-3 builds a model it moves what `torch.empty` gives to the GPU, the tracer's too.",
            source="deepspeed/runtime/zero/partition_parameters.py, `zero_wrapper_for_fp_tensor_constructor`",
        ),
    ]  # fmt: skip


def _never_overflowing(original: Any) -> Any:
    """The check with all its temporaries, and the answer that nothing overflowed."""

    def has_overflow(self: Any, *args: Any, **kwargs: Any) -> bool:
        original(self, *args, **kwargs)
        return False

    return has_overflow


def _for_scripts_only(original: Any) -> Any:
    @functools.wraps(original)
    def wrapper(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        for_scripts = original(function, *args, **kwargs)

        def construct(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            return (function if caller.startswith(_TRACER_MODULES) else for_scripts)(*args, **kwargs)

        return construct

    return wrapper
