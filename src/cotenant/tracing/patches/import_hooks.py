"""Calls a function with a module right after a script imports it, or now if it has been."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class PostImportFinder(importlib.abc.MetaPathFinder):
    """Waits for one module; goes when it came. Being asked whether the module could be imported changes nothing."""

    def __init__(self, name: str, call: Callable[[Any], None]) -> None:
        self._name = name
        self._call = call
        self._is_asking = False

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call(module)

        loader.exec_module = exec_module
        return spec


def when_imported(name: str, call: Callable[[Any], None]) -> None:
    """Call `call` with the module `name` once it is there."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        sys.meta_path.insert(0, PostImportFinder(name, call))
