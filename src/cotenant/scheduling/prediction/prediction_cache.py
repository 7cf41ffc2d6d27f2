"""What was concluded from predicted slowdowns, as long as these predictions are the same.

A module of its own: a policy and the planner of moves each hold a cache, and neither imports the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from cotenant.scheduling.prediction.interference import InterferencePredictor

MAX_CACHED = 100_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PredictionCache(Generic[K, V]):
    """Values by key, each with the workloads on whose slowdowns it depends.

    A predictor learns about the few workloads that shared a GPU: conclusions about all others hold.
    """

    __slots__ = ("_entries", "_predictor")

    def __init__(self, predictor: InterferencePredictor) -> None:
        self._predictor = predictor
        self._entries: dict[K, tuple[int, V, tuple[str, ...]]] = {}  # the first: the version as of which it holds

    def get(self, key: K) -> V | None:
        """The value of `key`; None if there is none, or if one of its workloads was learned about since."""
        found = self._entries.get(key)
        if found is None:
            return None
        as_of, value, workloads = found
        version = self._predictor.version
        if as_of != version:
            if self._predictor.learned_at(workloads) > as_of:
                return None
            self._entries[key] = (version, value, workloads)
        return value

    def put(self, key: K, value: V, workloads: Iterable[str]) -> None:
        """Set the value of `key`, which depends on predictions for these workloads and on no others."""
        if len(self._entries) >= MAX_CACHED:
            self._entries.clear()
        self._entries[key] = (self._predictor.version, value, tuple(workloads))
