"""Data loaders under the probe. A file of its own, standard library only: the probe loads it by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

AFTER = 2  # batches that a loader still gives once the probe has seen enough training


class Draining(Protocol):
    """Has seen enough training if `draining`."""

    draining: bool


class Batches:
    """Iterates over a loader's own iterator, and stops soon once the probe is draining."""

    def __init__(self, inner: Iterator[Any], probe: Draining) -> None:
        self._inner = inner
        self._probe = probe
        self._given = 0

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._probe.draining and self._given >= AFTER:
            raise StopIteration
        batch = next(self._inner)
        self._given += 1
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
