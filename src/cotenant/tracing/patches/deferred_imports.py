"""Modules of PyTorch's compiler that eager code imports for a trivial function: imported when more of them is wanted.

`torch._dynamo` takes 0.6 s of CPU time, `torch.fx.experimental.symbolic_shapes` with sympy 0.3 s (torch 2.13): more
than the trace of a small model. Optimizers, checkpointing and torchvision import the first to say that nothing is
compiled; meta kernels the second, for functions of symbolic sizes that return plain sizes as they are. Stand-ins have
these functions, and import the real module on access to anything else.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import types
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import torch

from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

COMPILER, SYMBOLIC_SIZES = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
_SYMPY, _SYMPY_FUNCTIONS = "sympy", "torch.utils._sympy.functions"
_STAND_INS = {_SYMPY: "_cotenant_sympy", _SYMPY_FUNCTIONS: "_cotenant_sympy_functions"}
_IS_DENSE = "_is_non_overlapping_and_dense_or_false"
_COMPILER_UTILITIES = f"{COMPILER}.utils"


def patches(context: PatchContext) -> list[HookPatch]:
    """Stand-ins of modules that are not loaded."""
    return [
        HookPatch(
            target=COMPILER, phase=Phase.LIBRARIES, register=lambda: _defer(COMPILER, _compiler_functions),
            reason="Eager code imports the compiler only to switch it off, which takes 0.6 s.",
            source="torch/optim/optimizer.py, `_use_grad_for_differentiable`",
        ),
        HookPatch(
            target=_COMPILER_UTILITIES, phase=Phase.LIBRARIES,
            register=lambda: _defer(_COMPILER_UTILITIES, _compiler_utilities),
            reason="torchvision imports one function of it, which says whether a GPU's code can be compiled.",
            source="torchvision/ops/roi_align.py, `is_compile_supported`",
        ),
        HookPatch(
            target=SYMBOLIC_SIZES, phase=Phase.LIBRARIES, register=lambda: _defer(SYMBOLIC_SIZES, _size_functions),
            reason="Meta kernels ask it of sizes that are plain numbers, and it imports sympy, which takes 0.3 s.",
            source="torch/_prims_common/__init__.py, `compute_elementwise_output_logical_to_physical_perm`",
        ),
        HookPatch(
            target="torch._prims_common:elementwise_dtypes", phase=Phase.LIBRARIES,
            register=lambda: _without_sympy(sys.modules["torch._prims_common"].elementwise_dtypes),
            reason="It imports sympy, which takes 0.4 s, to test that an argument is no symbolic size.",
            source="torch/_prims_common/__init__.py, `elementwise_dtypes`", missing="before torch 2.4",
        ),
        HookPatch(
            target=f"torch._prims_common:{_IS_DENSE}", phase=Phase.LIBRARIES,
            register=lambda: _without_sympy(getattr(sys.modules["torch._prims_common"], _IS_DENSE, None)),
            reason="It imports a function of symbolic sizes that it does not use; `sum` and `mean` call it.",
            source="torch/_prims_common/__init__.py", missing="before torch 2.8",
        ),
        HookPatch(
            target="torch:sym_not", phase=Phase.LIBRARIES,
            register=lambda: _without_sympy(sys.modules["torch"].sym_not),
            reason="So does it, and meta kernels such as that of `baddbmm` call it.",
            source="torch/__init__.py, `sym_not`",
        ),
        HookPatch(
            target="torch._subclasses.fake_tensor:FakeTensorMode._dispatch_impl", phase=Phase.LIBRARIES,
            register=lambda: _without_sympy(sys.modules["torch._subclasses.fake_tensor"].FakeTensorMode._dispatch_impl),
            reason="A function in it imports sympy for each operator, and uses it for symbolic sizes only.",
            source="torch/_subclasses/fake_tensor.py, `_dispatch_impl`", missing="before torch 2.6",
        ),
    ]  # fmt: skip


class _NoExpression:
    """In place of `sympy.Basic` while sympy is not loaded: nothing is one, and a maximum of sizes is none."""


class _LoadedSympy(types.ModuleType):
    """`sympy`, or PyTorch's functions for it, where it is loaded; without it, a class in place of `names`."""

    def __init__(self, real: str, *names: str) -> None:
        super().__init__(_STAND_INS[real])
        vars(self).update(_real=real, _names=names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` looks such names up in all modules
            raise AttributeError(name)
        path = vars(self)["_real"]
        real = sys.modules.get(path)
        if real is None and name in vars(self)["_names"]:
            return _NoExpression
        return getattr(real or importlib.import_module(path), name)


def _without_sympy(function: Any) -> Callable[[], None] | None:
    """Let a function import the module above in place of sympy, whoever holds the function."""
    if function is None:
        return None
    code = function.__code__
    renamed = _rename_sympy(code)
    if renamed == code:
        return None
    for stand_in in (_LoadedSympy(_SYMPY, "Basic"), _LoadedSympy(_SYMPY_FUNCTIONS, "Max")):
        sys.modules.setdefault(stand_in.__name__, stand_in)
    function.__code__ = renamed
    return lambda: setattr(function, "__code__", code)


def _rename_sympy(code: types.CodeType) -> types.CodeType:
    """The code of a function, with that of its inner functions, which imports the stand-in."""
    return code.replace(
        co_names=tuple(_STAND_INS.get(name, name) for name in code.co_names),
        co_consts=tuple(_rename_sympy(part) if isinstance(part, types.CodeType) else part for part in code.co_consts),
    )


class DeferredModule(types.ModuleType):
    """Stands in `sys.modules` for a module until one of its other attributes is used."""

    def __init__(self, name: str, functions: Callable[[DeferredModule], Mapping[str, Any]], spec: ModuleSpec) -> None:
        super().__init__(name)
        made = functions(self)
        vars(self).update(made, _real=None, _functions=tuple(made), __spec__=spec, __file__=spec.origin)

    def load(self) -> types.ModuleType:
        """The real module; its stand-in passes everything on from then on."""
        state = vars(self)
        if state["_real"] is None:
            name = state["__name__"]
            for other in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
                if isinstance(sys.modules[other], DeferredModule):
                    del sys.modules[other]
            state["_real"] = importlib.import_module(name)
            if _UnknownSize.__name__ in state:
                # Modules that have imported this class expect it from the real functions, too.
                setattr(state["_real"], _UnknownSize.__name__, _UnknownSize)
            for function in state["_functions"]:
                state.pop(function, None)
        real: types.ModuleType = state["_real"]
        return real

    def __getattr__(self, name: str) -> Any:
        # `inspect` and others look such names up in all modules; the import system reads a package's `__path__`.
        is_package = vars(self)["__spec__"].submodule_search_locations is not None
        if name.startswith("__") and vars(self)["_real"] is None and not (name == "__path__" and is_package):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.load(), name, value)


class _CompilerConfig:
    """In place of `torch._dynamo.config`: no operator has profiles; any other setting is the real module's.

    `FakeTensorMode` reads the profiles at each operator. Source: torch/_subclasses/fake_tensor.py, `_dispatch_impl`.
    """

    def __init__(self, compiler: DeferredModule) -> None:
        vars(self)["_compiler"] = compiler

    def __getattr__(self, name: str) -> Any:
        if name == "_custom_ops_profile" and not is_loaded(COMPILER):
            return None
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["_compiler"].load().config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_compiler"].load().config, name, value)


class GuardOnDataDependentSymNode(RuntimeError):
    """A size that is needed is not known. Raised by the real module; here because others import it to catch it."""

    def __init__(self, cond: object, *args: object) -> None:
        super().__init__(*args)
        self.cond = cond


_UnknownSize = GuardOnDataDependentSymNode


def is_loaded(name: str) -> bool:
    """Whether a module, and no stand-in of it, is loaded."""
    module = sys.modules.get(name)
    return module is not None and not isinstance(module, DeferredModule)


def _defer(name: str, functions: Callable[[DeferredModule], Mapping[str, Any]]) -> Callable[[], None] | None:
    package, _, last = name.rpartition(".")
    owner = importlib.import_module(package)
    spec = None if name in sys.modules else _spec_of(name, owner)
    if spec is None:
        return None
    stand_in = sys.modules[name] = DeferredModule(name, functions, spec)
    vars(owner)[last] = stand_in

    def undo() -> None:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        if vars(owner).get(last) is stand_in:
            del vars(owner)[last]

    return undo


def _spec_of(name: str, package: types.ModuleType) -> ModuleSpec | None:
    """Where a module is; `importlib.util.find_spec` would import its package."""
    spec = vars(package)["__spec__"]
    return PathFinder.find_spec(name, spec.submodule_search_locations) if spec is not None else None


def _compiler_functions(module: DeferredModule) -> Mapping[str, Any]:
    def graph_break(*args: Any, **kwargs: Any) -> None:
        """Nothing, outside of compiled code."""

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

    # `init_process_group` clears this cache of a loaded compiler.
    rules = types.SimpleNamespace(clear_lru_cache=graph_break)
    return {"graph_break": graph_break, "disable": disable, "trace_rules": rules, "config": _CompilerConfig(module)}


def _compiler_utilities(module: DeferredModule) -> Mapping[str, Any]:
    return {"is_compile_supported": lambda device_type: module.load().is_compile_supported(device_type)}


def _size_functions(module: DeferredModule) -> Mapping[str, Any]:
    plain: dict[str, Callable[..., Any]] = {
        "guard_or_false": bool,
        "guard_or_true": bool,
        "statically_known_true": bool,
        "expect_true": bool,
        "guard_size_oblivious": bool,
        "has_guarding_hint": lambda size: True,
        "guarding_hint_or_throw": lambda size: size,
        "free_unbacked_symbols": lambda sizes: frozenset(),  # of a number, or of a tensor
        "guard_int": int,
        "is_nested_int": lambda size: False,
        "sym_and": lambda *values: functools.reduce(operator.and_, values),
        "sym_or": lambda *values: functools.reduce(operator.or_, values),
        "sym_eq": _are_equal,
    }
    made = {name: functools.partial(_of_numbers, module, name, function) for name, function in plain.items()}

    def bindings(*args: Any, **kwargs: Any) -> Any:
        return module.load().compute_unbacked_bindings(*args, **kwargs)

    # `FakeTensorMode` imports it for each operator, and calls it for symbolic sizes only.
    return {**made, "compute_unbacked_bindings": bindings, _UnknownSize.__name__: _UnknownSize}


def _of_numbers(module: DeferredModule, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """The function of plain numbers; with a symbolic one, that of the real module."""
    if all(map(_is_plain, args)):
        return function(*args)
    return getattr(module.load(), name)(*args)


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    return bool(first == second)


def _is_plain(value: Any) -> bool:
    """Whether a value has no symbolic size; meta kernels ask it of tensors, too, such as that of `select_backward`."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, torch.Tensor):
        return not value._has_symbolic_sizes_strides
    return type(value) in (bool, int)
