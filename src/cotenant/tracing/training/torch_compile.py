"""`torch.compile`: the model runs as Inductor compiles it, or eagerly where the options say so or that fails.

A warning says what runs eagerly, and in which direction the estimate errs. Compiled code saves less for backward where
it recomputes elementwise results, and it holds fewer intermediate results. A compiled optimizer step holds none. CUDA
graphs keep a memory pool of their own, which is more; it is left out where the model runs eagerly.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from cotenant.tracing.operators import custom_operators
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes

if TYPE_CHECKING:
    from cotenant.tracing.inductor.compiled_frames import CompiledFrames

TRIED_VERSIONS = ((2, 10), (2, 11), (2, 13))
"""Versions of torch whose compiler was tried here. That of 2.8 compiles nothing."""

_WARNING = "`torch.compile` was ignored{reason}: the estimate is for the eager model; compiled code often needs less"
_STEP_WARNING = (
    "a compiled optimizer step was traced eagerly, with intermediate results that compiled code does not hold: "
    "where the peak is in the step, it is an upper bound"
)
_PARTLY_EAGER_WARNING = (
    "`torch.compile` was ignored for `{name}`, since {reason}: that part is estimated eagerly, and compiled code often "
    "needs less"
)
_INDUCTOR_WARNING = (
    "code of `torch.compile` was traced as Inductor compiles it for this GPU: for the torch of this environment, and "
    "without kernels that are chosen by their speed"
)
_CUDA_GRAPHS_WARNING = "`torch.compile` with CUDA graphs keeps their memory in a pool of its own, which is not counted"


class UncompiledModule(torch.nn.Module):
    """Wraps a module as `torch.compile` does: names in its state begin with `_orig_mod.`. `run` is its forward pass."""

    def __init__(self, module: torch.nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self._orig_mod = module
        self.__dict__["_run"] = run

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._orig_mod, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own result."""
        return self._run(*args, **kwargs)


def patches(context: PatchContext) -> list[Patch]:
    """Entry points of the compiler. A function that is compiled and never called, as in libraries, gives no warning."""
    compiler = _Compiler(context)
    custom_operators.run_what_compiles(compiles=not compiler.runs_eagerly({}) and not _is_disabled({}))

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **options)
        return compiler.compile(model, options)

    def compile_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        # As `Module.compile` does; `Module.__call__` runs it (torch/nn/modules/module.py, `_wrapped_call_impl`).
        if not _is_disabled(kwargs):
            self._compiled_call_impl = compiler.function(self._call_impl, kwargs)

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


class _Compiler:
    """What `torch.compile` is under a trace."""

    def __init__(self, context: PatchContext) -> None:
        self._context, self._recorder = context, context.recorder

    def runs_eagerly(self, options: dict[str, Any]) -> bool:
        """Whether code with these options of `torch.compile` runs as it is."""
        return self._context.options.compiled_code == "eager" or bool(_why_eager(self._context, options))

    def compile(self, model: Any, options: dict[str, Any]) -> Any:
        """As `torch.compile(model, **options)`."""
        if _is_disabled(options):
            return model
        if isinstance(model, torch.nn.Module):
            return UncompiledModule(model, self.function(model, options))
        return self.function(model, options)

    def function(self, function: Any, options: dict[str, Any]) -> Callable[..., Any]:
        """`function` as Inductor compiles it, or as it is with a warning where that is not possible or not wanted."""
        if self.runs_eagerly(options):
            return self._eagerly(function, options)
        return self._with_inductor(function, options)

    def _eagerly(self, function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            steps_before, is_step = recorder.steps, recorder.phase == "step" or _is_optimizer_method(function)
            try:
                return function(*args, **kwargs)
            finally:
                self._warn_of_eager(options, has_step=is_step or recorder.steps > steps_before, is_step=is_step)

        return call

    def _warn_of_eager(self, options: dict[str, Any], *, has_step: bool, is_step: bool) -> None:
        self._recorder.note_runs_otherwise("compiled")
        if has_step:
            self._recorder.warn(_STEP_WARNING)
        if not is_step:
            self._recorder.warn(_WARNING.format(reason=_why_eager(self._context, options)))
        if _uses_cuda_graphs(options):
            self._recorder.warn(_CUDA_GRAPHS_WARNING)

    def _with_inductor(self, function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        # Imported where it is used: with it comes the compiler, which takes seconds.
        from cotenant.tracing.inductor.compiled_frames import CompiledFrames

        compiled = CompiledFrames(function, options, self._context)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = compiled(*args, **kwargs)
            _warn_of_inductor(self._recorder, compiled, function)
            return result

        # Dynamo compiles a compiled function that another one calls as a part of it.
        call._torchdynamo_inline = function  # type: ignore[attr-defined]
        return call


def _warn_of_inductor(recorder: Any, compiled: CompiledFrames, function: Any) -> None:
    reason = compiled.reason or ("" if recorder.header.compiled else "the compiler made no graph of it")
    if reason:
        recorder.note_runs_otherwise("compiled")
        name = getattr(function, "__qualname__", None) or type(function).__name__
        recorder.warn(_PARTLY_EAGER_WARNING.format(name=name, reason=reason))
        return
    recorder.warn(_INDUCTOR_WARNING)


def _why_eager(context: PatchContext, options: dict[str, Any]) -> str:
    """Why code is not compiled, to follow `was ignored`; empty if it is, or if the options of the trace say so."""
    backend = options.get("backend", "inductor")
    if backend != "inductor":
        return (
            f", since its backend is `{backend}`" if isinstance(backend, str) else ", since its backend is a function"
        )
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if context.options.compiled_code != "auto" or version in TRIED_VERSIONS:
        return ""
    tried = ", ".join(".".join(map(str, one)) for one in TRIED_VERSIONS)
    return f", since the compiler of torch {torch.__version__} was not tried, only {tried} (`--compiled-code inductor`)"


def _is_disabled(options: dict[str, Any]) -> bool:
    """Whether nothing is compiled on a GPU either. Source: torch/_dynamo/eval_frame.py, `_optimize`."""
    names = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
    return bool(options.get("disable")) or any(os.environ.get(name) == "1" for name in names)


def _do_nothing() -> None:
    """Nothing is compiled."""


def _is_optimizer_method(function: Any) -> bool:
    return isinstance(getattr(function, "__self__", None), torch.optim.Optimizer)


def _uses_cuda_graphs(options: dict[str, Any]) -> bool:
    """Whether calls are captured. Source: torch/_inductor/__init__.py, `list_mode_options`."""
    more = options.get("options") or {}
    return options.get("mode") in ("reduce-overhead", "max-autotune") or bool(more.get("triton.cudagraphs"))
