"""DeepSpeed: no toolkit is needed, no gradient overflows, an engine's steps count as one, the tracer's tensors stay.

An engine steps its optimizer once for each group of parameters, with ZeRO-3 for each 1e9 elements of a group
(`sub_group_size`), and also while it starts, on gradients of zeros, to create the states. Counted one by one, a trace
of a model of several sub groups would end before its first forward pass.

Source: deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and partition_parameters.py; deepspeed/runtime/utils.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from cotenant.tracing.patches.registry import Entry, ImportPatch, Patch, PatchContext, Phase

if TYPE_CHECKING:
    import torch

_OVERFLOW_CHECKS = (
    ("zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("zero.stage3", "DeepSpeedZeroOptimizer_Stage3"),
    ("utils", "CheckOverflow"),
)
"""Modules below `deepspeed.runtime`, and their classes that skip a step where a gradient overflowed."""
_WITH_STATES_AT_START = (
    ("zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("zero.stage3", "DeepSpeedZeroOptimizer_Stage3"),
    ("fp16.fused_optimizer", "FP16_Optimizer"),
    ("fp16.unfused_optimizer", "FP16_UnfusedOptimizer"),
    ("bf16_optimizer", "BF16_Optimizer"),
)
"""Modules below `deepspeed.runtime`, and their classes that create states before the first step."""
_METHODS_IN_PARTS = {"initialize_optimizer_states": _WITH_STATES_AT_START, "step": _WITH_STATES_AT_START[:2]}
"""Methods that step the optimizer for one part of the parameters after another, and whose they are."""
_TRACER_MODULES = ("cotenant.tracing.", "torch._")
"""Beginnings of the names of modules that do what CUDA kernels would."""


class StepObserver(Protocol):
    """Whoever counts steps."""

    def step_in_parts(self, optimizer: torch.optim.Optimizer, *, counts: bool) -> AbstractContextManager[None]:
        """Steps of `optimizer` within count as one; without `counts` as none."""


def patches(context: PatchContext) -> list[Entry]:
    """Checks for a toolkit and for overflows, steps, and the constructors that ZeRO-3 replaces."""
    return [
        ImportPatch(
            target="deepspeed.ops.op_builder.all_ops", phase=Phase.LIBRARIES, expand=_compatible_extensions,
            reason="The import queries nvcc and `torch.version.cuda`, which a CPU build lacks.",
            source="deepspeed/git_version_info.py; deepspeed/ops/op_builder/fp_quantizer.py, `is_compatible`",
        ),
        *(
            Patch(
                target=f"deepspeed.runtime.{module}:{name}.has_overflow", phase=Phase.LIBRARIES,
                replacement=_never_overflowing, wraps=True, missing="versions without this class",
                reason="It reads from the GPU whether a gradient overflowed, and skips the step if so.",
                source=f"deepspeed/runtime/{module.replace('.', '/')}.py, `{name}.has_overflow`",
            )
            for module, name in _OVERFLOW_CHECKS
        ),
        *step_patches(context.observer),
        Patch(
            target="deepspeed.runtime.zero.partition_parameters:zero_wrapper_for_fp_tensor_constructor",
            phase=Phase.LIBRARIES, replacement=_for_scripts_only, wraps=True,
            reason="While ZeRO-3 builds a model it moves what `torch.empty` gives to the GPU, the tracer's too.",
            source="deepspeed/runtime/zero/partition_parameters.py, `zero_wrapper_for_fp_tensor_constructor`",
        ),
    ]  # fmt: skip


def step_patches(observer: StepObserver) -> list[Entry]:
    """An engine's steps count as one, for whoever counts steps."""
    return [
        Patch(
            target=f"deepspeed.runtime.{module}:{name}.{method}", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_in_parts, observer, method == "step"),
            missing="versions without this method",
            reason="It steps the optimizer for one part of the parameters after another.",
            source=f"deepspeed/runtime/{module.replace('.', '/')}.py, `{name}.{method}`",
        )
        for method, classes in _METHODS_IN_PARTS.items()
        for module, name in classes
    ]  # fmt: skip


def _compatible_extensions(module: Any) -> list[Entry]:
    """An extension whose check of the toolkit fails is not compatible."""
    classes = {type(builder) for builder in module.ALL_OPS.values()}
    return [
        Patch(
            target=f"{of.__module__}:{of.__qualname__}.is_compatible", phase=Phase.LIBRARIES, wraps=True,
            replacement=_false_if_it_raises, reason="It raises where nvcc or a CUDA build is missing.",
        )
        for of in sorted(classes, key=lambda of: str(of.__qualname__))
        if "is_compatible" in vars(of)
    ]  # fmt: skip


def _false_if_it_raises(original: Any) -> Any:
    @functools.wraps(original)
    def is_compatible(self: Any, *args: Any, **kwargs: Any) -> bool:
        try:
            return bool(original(self, *args, **kwargs))
        except Exception as error:
            if isinstance(error, AttributeError) or type(error).__name__ == "MissingCUDAException":
                return False
            raise

    return is_compatible


def _never_overflowing(original: Any) -> Any:
    """The check with all its temporaries, and the answer that nothing overflowed."""

    def has_overflow(self: Any, *args: Any, **kwargs: Any) -> bool:
        original(self, *args, **kwargs)
        return False

    return has_overflow


def _in_parts(observer: StepObserver, counts: bool, original: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with observer.step_in_parts(self.optimizer, counts=counts):
            return original(self, *args, **kwargs)

    return method


def _for_scripts_only(original: Any) -> Any:
    @functools.wraps(original)
    def wrapper(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        for_scripts = original(function, *args, **kwargs)

        def construct(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            return (function if caller.startswith(_TRACER_MODULES) else for_scripts)(*args, **kwargs)

        return construct

    return wrapper
