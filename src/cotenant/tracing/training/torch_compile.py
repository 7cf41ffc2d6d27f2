"""`torch.compile` is ignored: the model runs eagerly, and a warning says so and in which direction the estimate errs.

Compiled code saves less for backward where it recomputes elementwise results, and it holds fewer intermediate results.
A compiled optimizer step holds none. CUDA graphs keep a memory pool of their own, which is more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes

_WARNING = "`torch.compile` was ignored: the estimate is for the eager model; compiled code often needs less"
_STEP_WARNING = (
    "a compiled optimizer step was traced eagerly, with intermediate results that compiled code does not hold: "
    "where the peak is in the step, it is an upper bound"
)
_CUDA_GRAPHS_WARNING = "`torch.compile` with CUDA graphs keeps their memory in a pool of its own, which is not counted"


class UncompiledModule(torch.nn.Module):
    """Wraps a module as `torch.compile` does: names in its state begin with `_orig_mod.`."""

    def __init__(self, module: torch.nn.Module, on_call: Callable[[], None]) -> None:
        super().__init__()
        self._orig_mod = module
        self.__dict__["_on_call"] = on_call

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._orig_mod, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own result."""
        self._on_call()
        return self._orig_mod(*args, **kwargs)


def patches(context: PatchContext) -> list[Patch]:
    """Entry points of the compiler. A function that is compiled and never called, as in libraries, gives no warning."""
    recorder = context.recorder

    def warn(options: dict[str, Any], *, has_step: bool = False, is_step: bool = False) -> None:
        recorder.note_runs_otherwise("compiled")
        if has_step:
            recorder.warn(_STEP_WARNING)
        if not is_step:
            recorder.warn(_WARNING)
        if _uses_cuda_graphs(options):
            recorder.warn(_CUDA_GRAPHS_WARNING)

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **options)
        if isinstance(model, torch.nn.Module):
            return UncompiledModule(model, functools.partial(warn, options))

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            steps_before, is_step = recorder.steps, recorder.phase == "step" or _is_optimizer_method(model)
            try:
                return model(*args, **kwargs)
            finally:
                warn(options, has_step=is_step or recorder.steps > steps_before, is_step=is_step)

        return call

    def compile_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        warn(kwargs)

    reason = "Inductor needs a GPU to generate and tune its kernels."
    source = "torch/__init__.py, `compile`"
    return [
        Patch(target="torch:compile", phase=Phase.TRAINING, replacement=compile_, reason=reason, source=source),
        Patch(
            target="torch.nn:Module.compile", phase=Phase.TRAINING, replacement=compile_module,
            reason=reason, source="torch/nn/modules/module.py, `Module.compile`",
        ),
        *patch_attributes(
            "torch.compiler", {"cudagraph_mark_step_begin": _do_nothing, "reset": _do_nothing},
            phase=Phase.TRAINING, reason="It imports the compiler, which takes seconds.",
            source="torch/compiler/__init__.py, `reset`",
        ),
    ]  # fmt: skip


def _do_nothing() -> None:
    """Nothing is compiled."""


def _is_optimizer_method(function: Any) -> bool:
    return isinstance(getattr(function, "__self__", None), torch.optim.Optimizer)


def _uses_cuda_graphs(options: dict[str, Any]) -> bool:
    """Whether calls are captured. Source: torch/_inductor/__init__.py, `list_mode_options`."""
    more = options.get("options") or {}
    return options.get("mode") in ("reduce-overhead", "max-autotune") or bool(more.get("triton.cudagraphs"))
