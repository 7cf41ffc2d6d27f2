"""Calls functions right before or right after a script imports a module."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

_Call = Callable[[Any], None]


class ImportHooks(importlib.abc.MetaPathFinder):
    """One finder for all awaited modules. Looking for a module without importing it changes nothing."""

    def __init__(self) -> None:
        self._before: dict[str, list[Callable[[], None]]] = {}
        self._after: dict[str, list[_Call]] = {}
        self._searching: set[str] = set()

    def add(self, name: str, call: _Call) -> Callable[[], None]:
        """Call `call` with the module `name` after it was executed; gives a function that takes this back."""
        self._after.setdefault(name, []).append(call)
        self._stand_first()
        return lambda: _discard(self._after, name, call)

    def add_before(self, name: str, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` when `name` is first looked for; gives a function that takes this back."""
        self._before.setdefault(name, []).append(call)
        self._stand_first()
        return lambda: _discard(self._before, name, call)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        for begin in self._before.pop(fullname, ()):
            begin()
        if fullname not in self._after or fullname in self._searching:
            return None
        # `find_spec` below queries all finders of `sys.meta_path`, this one included.
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for call in self._after.pop(fullname, ()):
                call(module)

        loader.exec_module = exec_module
        return spec

    def _stand_first(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)


_hooks = ImportHooks()


def when_imported(name: str, call: _Call) -> Callable[[], None]:
    """Call `call` with the module `name` once it is there; gives a function that takes this back."""
    if name in sys.modules:
        call(sys.modules[name])
        return lambda: None
    return _hooks.add(name, call)


def before_import(name: str, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` when the module `name` is about to be imported; gives a function that takes this back."""
    return _hooks.add_before(name, call)


def _discard(calls: dict[str, list[Any]], name: str, call: object) -> None:
    with contextlib.suppress(KeyError, ValueError):
        calls[name].remove(call)
