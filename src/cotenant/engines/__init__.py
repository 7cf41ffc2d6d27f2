"""Engines launch, watch and stop attempts. A new one is one file here and one line in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.core.registry import Registry

if TYPE_CHECKING:
    from cotenant.core.ports import Engine

EngineFactory = Callable[[Path], "Engine"]
"""Makes an engine that stores its files in the given folder, which it creates if need be."""

ENGINES: Registry[EngineFactory] = Registry(
    "engine",
    "cotenant.engines",
    {
        "local": "cotenant.engines.local:LocalEngine",
    },
)


def create(name: str, state_dir: Path) -> Engine:
    """The engine of that name, with its files in `state_dir`.

    Raises:
        UnknownName: there is no such engine.
        BackendError: it cannot work on this machine.
    """
    return ENGINES.get(name)(state_dir)
