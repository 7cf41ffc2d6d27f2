"""Modules that others import for little, or for nothing: they are imported when more of them is wanted.

`torch.fx.experimental.symbolic_shapes` with sympy takes 0.3 s of CPU time (torch 2.13), more than the trace of a small
model. Meta kernels import it for functions of symbolic sizes that return plain sizes as they are. A stand-in has these
functions. transformers imports scikit-learn and SciPy for one method of generation and for metrics of GLUE.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cotenant.tracing.patches.deferred_module import DeferredModule, defer
from cotenant.tracing.patches.registry import HookPatch, Patch, PatchContext, Phase

_SYMBOLIC_SIZES = "torch.fx.experimental.symbolic_shapes"
_SYMPY, _SYMPY_FUNCTIONS = "sympy", "torch.utils._sympy.functions"
_STAND_INS = {_SYMPY: "_cotenant_sympy", _SYMPY_FUNCTIONS: "_cotenant_sympy_functions"}
_IS_DENSE = "_is_non_overlapping_and_dense_or_false"


_FUNCTIONS_LATER: Mapping[str, Mapping[str, str]] = {
    "transformers.generation.candidate_generator": {"roc_curve": "sklearn.metrics"},
    "transformers.data.metrics": {
        "pearsonr": "scipy.stats",
        "spearmanr": "scipy.stats",
        "f1_score": "sklearn.metrics",
        "matthews_corrcoef": "sklearn.metrics",
    },
}
"""By module of transformers that asks for scikit-learn at its import: functions, and where they are."""


def patches(context: PatchContext) -> list[HookPatch | Patch]:
    """A stand-in of the module, where it is not loaded, and functions that import less."""
    return [
        Patch(
            target="transformers.utils.import_utils:is_sklearn_available", phase=Phase.LIBRARIES, wraps=True,
            replacement=_without_sklearn, also_in="transformers",
            reason="Scripts with `Trainer` import scikit-learn and SciPy for metrics of GLUE and assisted generation.",
            source="transformers/generation/candidate_generator.py; transformers/data/metrics/__init__.py",
        ),
        HookPatch(
            target=_SYMBOLIC_SIZES, phase=Phase.LIBRARIES, register=lambda: defer(_SYMBOLIC_SIZES, _size_functions),
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


def _without_sklearn(original: Any) -> Any:
    """Whether scikit-learn is there: of the module that would import it now, no."""

    @functools.wraps(original)
    def is_sklearn_available() -> Any:
        frame = sys._getframe(1)
        available = original()
        later = _FUNCTIONS_LATER.get(frame.f_globals.get("__name__", ""))
        if not available or later is None or frame.f_code.co_name != "<module>":
            return available
        frame.f_globals.update({name: _imported_when_called(module, name) for name, module in later.items()})
        return False

    return is_sklearn_available


def _imported_when_called(module: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


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


class GuardOnDataDependentSymNode(RuntimeError):
    """A size that is needed is not known. Raised by the real module; here because others import it to catch it."""

    def __init__(self, cond: object, *args: object) -> None:
        super().__init__(*args)
        self.cond = cond


_UnknownSize = GuardOnDataDependentSymNode


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
        "is_symbolic": lambda size: False,
        "sym_and": lambda *values: functools.reduce(operator.and_, values),
        "sym_or": lambda *values: functools.reduce(operator.or_, values),
        "sym_eq": _are_equal,
    }
    made = {name: functools.partial(_of_numbers, module, name, function) for name, function in plain.items()}

    def bindings(*args: Any, **kwargs: Any) -> Any:
        return module.load().compute_unbacked_bindings(*args, **kwargs)

    def when_loaded(real: Any) -> None:
        # Modules that have imported this class expect it from the real functions, too.
        setattr(real, _UnknownSize.__name__, _UnknownSize)

    vars(module)["_when_loaded"] = when_loaded
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
