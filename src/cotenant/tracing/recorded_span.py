"""Spans of a trace: events that are recorded once more, and storages that come and go while none are recorded.

They serve work that repeats: see `training.repeated_batches` and `training.repeated_evaluation`. A module of its own:
the recorder has near 400 lines.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from typing import NamedTuple

import torch

from cotenant.core.trace import Action

LiveStorage = tuple[torch.UntypedStorage, int]
"""A storage and its GPU."""
CarriedStorage = tuple[weakref.ref[torch.UntypedStorage], int]
"""The same, while it lives."""
RecordedAction = tuple[Action, int, int, str, str, int, int]
"""(action, storage or library call, bytes, phase, module, stream, GPU)."""


class RecordedSpan(NamedTuple):
    """Events that can be recorded once more: of storages from `first` up to `end`, of which `left` live on.

    `sizes`: of these storages; None: those that they had.
    """

    actions: list[RecordedAction]
    first: int
    end: int
    left: list[int]
    sizes: list[int] | None = None

    def storages(self, numbers: Collection[int]) -> dict[int, tuple[int, torch.device]]:
        """Bytes and GPU of those of these storages that it allocates."""
        return {
            number: (nbytes, torch.device("cuda", gpu))
            for action, number, nbytes, *_, gpu in self.actions
            if action == "alloc" and number in numbers
        }


class PausedSpan:
    """What happened to storages while no events were recorded.

    Attributes:
        phase: at its beginning.
        freed: recorded storages that were freed.
    """

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.freed: list[int] = []
        self._new: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by address, oldest first

    def add(self, storage: torch.UntypedStorage, device: int) -> None:
        """A storage is used; it is new unless it was added before."""
        address = storage._cdata
        if address not in self._new:
            self._new[address] = weakref.ref(storage, functools.partial(self._forget, address)), device

    def live(self) -> list[tuple[torch.UntypedStorage, int]]:
        """(new storage that still lives, its GPU), oldest first."""
        return [(storage, device) for ref, device in list(self._new.values()) if (storage := ref()) is not None]

    def _forget(self, address: int, _: object) -> None:
        self._new.pop(address, None)


class ReplacedCall(NamedTuple):
    """A call that left its results alone in the trace: the events `at` to `end`, one for each.

    `span`: of an alike call, with `results` as the storages of its results, in this order.
    """

    at: int
    end: int
    span: RecordedSpan
    results: list[int]
