"""Data loaders under the probe. Only the standard library: it runs in the measured process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

AFTER = 2  # batches that a loader still gives once enough training was seen


class Draining(Protocol):
    """Says whether enough training was seen."""

    draining: bool


class Batches:
    """Iterates over a loader's own iterator; runs dry once enough was seen."""

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
