"""Modules that a script writes and then imports, as notebooks do with `%%writefile`.

A module of its own: Python's finders read folders by functions of the interpreter, which the overlay does not replace.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from cotenant.tracing.sandbox.overlay import Overlay


class _WrittenModuleFinder(importlib.abc.MetaPathFinder):
    """Looks for modules in the scratch folder, below the places where the script has written them."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        folders = (self._overlay.path_of(entry or os.curdir) for entry in (sys.path if path is None else path))
        written = [self._overlay.above(folder) for folder in folders if folder is not None]
        existing = [folder for folder in written if Path(folder).is_dir()]
        return importlib.machinery.PathFinder.find_spec(fullname, existing, target) if existing else None


def find_written(overlay: Overlay) -> Callable[[], None]:
    """Let the script import what it has written, where nothing else has that name; gives what ends it."""
    finder = _WrittenModuleFinder(overlay)
    sys.meta_path.append(finder)
    return lambda: sys.meta_path.remove(finder)
