"""A queue whose owners take turns, so that no owner waits for all items of another."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue of items per owner, served round-robin. Thread-safe.

    `max_in_flight`: items of one owner that are out at once, between `get` and `task_done`. `max_queued`: waiting items
    of one owner, or None.
    """

    def __init__(self, *, max_in_flight: int = 1, max_queued: int | None = None) -> None:
        self._max_in_flight = max_in_flight
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[T]] = {}  # in round-robin order
        self._in_flight: Counter[int] = Counter()
        self._closed = False

    def put(self, uid: int, item: T) -> bool:
        """Append an item; returns False if `max_queued` of this owner wait already."""
        with self._changed:
            waiting = self._waiting.setdefault(uid, deque())
            if self._max_queued is not None and len(waiting) >= self._max_queued:
                return False
            waiting.append(item)
            self._changed.notify()
            return True

    def get(self, timeout_s: float | None = None) -> tuple[int, T] | None:
        """Wait for the next item of an owner who may have one more in flight; returns None once closed.

        Raises:
            TimeoutError: there was none within `timeout_s`.
        """
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._closed:
                uid = next((owner for owner in self._waiting if self._in_flight[owner] < self._max_in_flight), None)
                if uid is None:
                    left_s = None if give_up_s is None else give_up_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        raise TimeoutError
                    self._changed.wait(left_s)
                    continue
                waiting = self._waiting.pop(uid)
                item = waiting.popleft()
                if waiting:
                    self._waiting[uid] = waiting  # behind the other owners
                self._in_flight[uid] += 1
                return uid, item
            return None

    def task_done(self, uid: int) -> None:
        """An item of this owner is no longer in flight."""
        with self._changed:
            self._in_flight[uid] -= 1
            if not self._in_flight[uid]:
                del self._in_flight[uid]
            self._changed.notify()

    def close(self) -> None:
        """Make `get` return None; waiting items are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
