"""Launch, watch and stop attempts."""

from __future__ import annotations

from pathlib import Path

from cotenant.core.errors import UnknownName
from cotenant.core.ports import Engine

NAMES = ("local",)


def create(name: str, state_dir: Path) -> Engine:
    """The engine of that name, keeping its files under `state_dir`.

    Raises:
        UnknownName: there is no such engine.
        BackendError: it cannot work on this machine.
    """
    if name == "local":
        from cotenant.engines.local import LocalEngine

        return LocalEngine(state_dir)
    raise UnknownName("engine", name, NAMES)
