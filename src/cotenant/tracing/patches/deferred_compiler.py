"""The compiler, `torch._dynamo`, is imported by scripts that compile, and not by libraries that could.

It takes 0.6 to 1 s of CPU time (torch 2.13), about as much as the rest of torch. Optimizers, checkpointing and
torchvision import it to say that nothing is compiled; transformers, diffusers, Lightning and accelerate for a mode that
it contains, to name functions that graphs may contain, and for the class of compiled modules; timm to set it. Stand-ins
have these, and the module of its settings needs nothing else of it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cotenant.tracing.patches.deferred_module import DeferredModule, ModuleWithoutPackage, defer, is_loaded
from cotenant.tracing.patches.import_hooks import when_imported
from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

COMPILER = "torch._dynamo"
_UTILITIES, _EVAL_FRAME = f"{COMPILER}.utils", f"{COMPILER}.eval_frame"
_TRACE_WRAPPED = f"{COMPILER}._trace_wrapped_higher_order_op"
_CONFIG, _SOURCES = f"{COMPILER}.config", f"{COMPILER}.source"
_INDUCTOR_CONFIG = "torch._inductor.config"


def patches(context: PatchContext) -> list[HookPatch]:
    """Stand-ins of the compiler and of parts of it, where it is not loaded."""
    return [
        HookPatch(
            target=COMPILER, phase=Phase.LIBRARIES, register=lambda: defer(COMPILER, _functions),
            reason="Eager code imports the compiler only to switch it off, which takes 0.6 s.",
            source="torch/optim/optimizer.py, `_use_grad_for_differentiable`",
        ),
        HookPatch(
            target=_UTILITIES, phase=Phase.LIBRARIES, register=lambda: defer(_UTILITIES, _utilities),
            reason="torchvision imports one function of it, which says whether a GPU's code can be compiled.",
            source="torchvision/ops/roi_align.py, `is_compile_supported`",
        ),
        HookPatch(
            target=_EVAL_FRAME, phase=Phase.LIBRARIES, register=lambda: defer(_EVAL_FRAME, _compiled_modules),
            reason="accelerate asks whether a model is a compiled one.",
            source="accelerate/utils/other.py, `is_compiled_module`",
        ),
        HookPatch(
            target=_TRACE_WRAPPED, phase=Phase.LIBRARIES,
            register=lambda: defer(_TRACE_WRAPPED, lambda module: {}, ModuleWithoutPackage),
            reason="transformers imports a mode of it for masks, which does not use the compiler.",
            source="transformers/masking_utils.py, `TransformGetItemToIndex`", missing="before torch 2.5",
        ),
        HookPatch(
            target=_CONFIG, phase=Phase.LIBRARIES,
            register=lambda: defer(_CONFIG, _settings, ModuleWithoutPackage),
            reason="Libraries set the compiler where they are imported, such as timm's optimizers.",
            source="timm/optim/kron.py, `has_dynamo`",
        ),
        HookPatch(
            target=_SOURCES, phase=Phase.LIBRARIES, register=lambda: defer(_SOURCES, _sources),
            reason="`FakeTensorMode` imports it to name the CPU tensors that it meets, which the compiler reads.",
            source="torch/_subclasses/meta_utils.py, `meta_tensor`",
        ),
        HookPatch(
            target="torch:use_deterministic_algorithms", phase=Phase.LIBRARIES, register=_defer_deterministic_mode,
            reason="It imports the compiler to set its mode, too; Lightning and functions that set seeds call it.",
            source="torch/__init__.py, `use_deterministic_algorithms`",
        ),
    ]  # fmt: skip


def _defer_deterministic_mode() -> Callable[[], None]:
    """Let the compiler learn of the mode when it is loaded; how to undo that."""
    original = torch.use_deterministic_algorithms
    undo_hooks: list[Callable[[], None]] = []

    def set_again(config: object) -> None:
        original(
            torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    @functools.wraps(original)
    def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        if _INDUCTOR_CONFIG in sys.modules:
            original(mode, warn_only=warn_only)
            return
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
        if not undo_hooks:
            undo_hooks.append(when_imported(_INDUCTOR_CONFIG, set_again))

    def undo() -> None:
        torch.use_deterministic_algorithms = original
        for undo_hook in undo_hooks:
            undo_hook()

    torch.use_deterministic_algorithms = use_deterministic_algorithms
    return undo


class _CompiledModuleType(type):
    """The type of the class below: what has been compiled is an instance of the real one."""

    def __instancecheck__(cls, value: object) -> bool:
        real = getattr(sys.modules.get(COMPILER), "OptimizedModule", None) if is_loaded(COMPILER) else None
        return real is not None and isinstance(value, real)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        package = sys.modules[COMPILER]
        real: Any = package.load() if isinstance(package, DeferredModule) else package
        return real.OptimizedModule(*args, **kwargs)


class OptimizedModule(metaclass=_CompiledModuleType):
    """The class of compiled modules. Source: torch/_dynamo/eval_frame.py."""


def _functions(module: DeferredModule) -> Mapping[str, Any]:
    allowed: list[Any] = []

    def graph_break(*args: Any, **kwargs: Any) -> None:
        """Nothing, outside of compiled code."""

    def allow_in_graph(fn: Any) -> Any:
        if is_loaded(COMPILER) or not callable(fn):
            return module.load().allow_in_graph(fn)
        allowed.append(fn)
        return fn

    def when_loaded(real: Any) -> None:
        trace_wrapped = sys.modules.get(_TRACE_WRAPPED)
        if trace_wrapped is not None:  # imported without its package
            vars(real).setdefault(_TRACE_WRAPPED.rpartition(".")[2], trace_wrapped)
        for fn in allowed:
            real.allow_in_graph(fn)

    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        if fn is None:
            return functools.partial(disable, recursive=recursive, **options)
        if not isinstance(fn, types.FunctionType) or is_loaded(COMPILER):
            return module.load().disable(fn, recursive, **options)
        compiled: list[Any] = []

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not compiled:
                if not is_loaded(COMPILER):
                    return fn(*args, **kwargs)
                compiled.append(module.load().disable(fn, recursive, **options))
            return compiled[0](*args, **kwargs)

        call._torchdynamo_disable = True  # type: ignore[attr-defined] # so that Dynamo does not look inside
        call._torchdynamo_orig_callable = fn  # type: ignore[attr-defined]
        return call

    vars(module)["_when_loaded"] = when_loaded
    return {
        "graph_break": graph_break,
        "allow_in_graph": allow_in_graph,
        "disable": disable,
        # `init_process_group` clears this cache of a loaded compiler.
        "trace_rules": types.SimpleNamespace(clear_lru_cache=graph_break),
        "OptimizedModule": OptimizedModule,
    }


def _utilities(module: DeferredModule) -> Mapping[str, Any]:
    return {"is_compile_supported": lambda device_type: module.load().is_compile_supported(device_type)}


def _settings(module: DeferredModule) -> Mapping[str, Any]:
    """No operator has profiles, for which `FakeTensorMode` asks at each; any other setting is the real module's.

    Source: torch/_subclasses/fake_tensor.py, `_dispatch_impl`.
    """
    return {"_custom_ops_profile": None}


class _SourceType(type):
    """The type of names of tensors that no compiler reads; of the real ones, where the compiler is loaded."""

    def __instancecheck__(cls, value: object) -> bool:
        return is_loaded(_SOURCES) and isinstance(value, getattr(sys.modules[_SOURCES], cls.__name__))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if is_loaded(_SOURCES):
            return getattr(sys.modules[_SOURCES], cls.__name__)(*args, **kwargs)
        return super().__call__()


def _sources(module: DeferredModule) -> Mapping[str, Any]:
    return {name: _SourceType(name, (), {}) for name in ("ConstantSource", "AttrSource", "RandomValueSource")}


def _compiled_modules(module: DeferredModule) -> Mapping[str, Any]:
    return {"OptimizedModule": OptimizedModule}
