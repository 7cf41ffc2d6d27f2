"""Names of the modules whose forward runs now. A module of its own: `recorder` would pass 400 lines."""

from __future__ import annotations

import weakref

import torch


class ModuleStack:
    """The modules that were entered and not left, outermost first.

    A module's name is its qualified name in the outermost module that it was first seen below, else its class.
    """

    def __init__(self) -> None:
        self._entered: list[str] = []
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()

    def enter(self, module: torch.nn.Module) -> None:
        """A module's forward begins."""
        name = self._names.get(module)
        if name is None:
            if not self._entered:
                for submodule_name, submodule in module.named_modules():
                    self._names.setdefault(submodule, submodule_name)
            name = self._names.setdefault(module, type(module).__name__)
        self._entered.append(name)

    def leave(self) -> None:
        """The innermost module's forward ended."""
        if self._entered:
            self._entered.pop()

    @property
    def is_empty(self) -> bool:
        """Whether no module's forward runs."""
        return not self._entered

    @property
    def innermost(self) -> str:
        """The name of the innermost module; empty outside of all."""
        return self._entered[-1] if self._entered else ""
