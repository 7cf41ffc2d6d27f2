"""A stand-in for a module that takes long to import: it has a few functions, and imports it for anything else."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class DeferredModule(types.ModuleType):
    """Stands in `sys.modules` for a module until one of its other attributes is used.

    `functions`: makes the attributes that it has. They may set `_when_loaded`, which gets the real module once.
    """

    def __init__(self, name: str, functions: Callable[[DeferredModule], Mapping[str, Any]], spec: ModuleSpec) -> None:
        super().__init__(name)
        vars(self)["_when_loaded"] = lambda real: None
        made = functions(self)
        vars(self).update(made, _real=None, _loading=False, _functions=tuple(made), __spec__=spec, __file__=spec.origin)

    def load(self) -> types.ModuleType:
        """The real module; its stand-in passes everything on from then on."""
        state = vars(self)
        if state["_real"] is None:
            if state["_loading"]:  # code of the module itself, which finds its stand-in
                return sys.modules[state["__name__"]]
            state["_loading"] = True
            try:
                state["_real"] = self._import()
            finally:
                state["_loading"] = False
            state["_when_loaded"](state["_real"])
            for function in state["_functions"]:
                state.pop(function, None)
        real: types.ModuleType = state["_real"]
        return real

    def _import(self) -> types.ModuleType:
        name: str = vars(self)["__name__"]
        for other in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
            if isinstance(sys.modules[other], DeferredModule):
                del sys.modules[other]
        return importlib.import_module(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and vars(self)["_real"] is None:
            # `from package import name` reads the path of a package, and so does the import of a module in it, which
            # needs the package. `inspect` and others look other such names up in all modules.
            path = vars(self)["__spec__"].submodule_search_locations
            if name != "__path__" or path is None:
                raise AttributeError(name)
            if sys._getframe(1).f_code.co_name != "_find_and_load_unlocked":  # of Lib/importlib/_bootstrap.py
                return path
        return getattr(self.load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.load(), name, value)


class ModuleWithoutPackage(DeferredModule):
    """Of a module that needs nothing of its package, which it is imported without while that is not loaded."""

    def _import(self) -> types.ModuleType:
        spec: ModuleSpec = vars(self)["__spec__"]
        package, _, last = spec.name.rpartition(".")
        if is_loaded(package) or spec.loader is None:
            return super()._import()
        real = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(real)
        vars(sys.modules[package])[last] = real
        return real


def is_loaded(name: str) -> bool:
    """Whether a module, and no stand-in of it, is loaded."""
    module = sys.modules.get(name)
    return module is not None and not isinstance(module, DeferredModule)


def defer(
    name: str, functions: Callable[[DeferredModule], Mapping[str, Any]], kind: type[DeferredModule] = DeferredModule
) -> Callable[[], None] | None:
    """Let a stand-in of that kind take the place of a module; how to undo that. None where the module is loaded."""
    package, _, last = name.rpartition(".")
    owner = importlib.import_module(package)
    spec = None if name in sys.modules else _spec_of(name, owner)
    if spec is None:
        return None
    stand_in = sys.modules[name] = kind(name, functions, spec)
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
