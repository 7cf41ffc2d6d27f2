"""Brings answers of the control loop's thread to the event loop, many with one wake-up.

A module of its own: the one place where a thread and asyncio meet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class FutureBridge:
    """Lets coroutines of one event loop await futures that another thread resolves.

    Unlike `asyncio.wrap_future`, it wakes the event loop once for all futures that are ready, not once for each, and
    cancelling the awaiting coroutine does not cancel the future.
    """

    def __init__(self) -> None:
        self._here: asyncio.AbstractEventLoop | None = None
        self._ready: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._is_called = False

    def of(self, answer: Future[T]) -> asyncio.Future[T]:
        """An awaitable for the result of `answer`."""
        here = self._here = self._here or asyncio.get_running_loop()
        waiting: asyncio.Future[T] = here.create_future()

        def ready(done: Future[T]) -> None:
            self._ready.append((waiting, done))
            if not self._is_called:
                self._is_called = True
                here.call_soon_threadsafe(self._deliver)

        answer.add_done_callback(ready)
        return waiting

    def _deliver(self) -> None:
        self._is_called = False  # first: a future that is ready after the loop below has ended schedules another call
        while self._ready:
            waiting, done = self._ready.popleft()
            if waiting.done():
                continue
            if done.cancelled():
                waiting.cancel()
            elif (error := done.exception()) is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(done.result())
