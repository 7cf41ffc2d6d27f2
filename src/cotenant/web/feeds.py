"""Feeds: what pages show, polled once for everybody who watches it, and never for more than a share of the daemon.

The daemon's decisions come first. Answers are made in the thread that decides, so all feeds together may use
`DAEMON_SHARE` of its time: after an answer that took 50 ms the next request waits a second. Pages that list and sum
have `READ_SHARE`. More clients, GPUs or jobs make pages slower, not the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.errors import CotenantError, DaemonUnreachable

DAEMON_SHARE = 0.05
"""Share of the daemon's time that all feeds together may use."""
READ_SHARE = 0.25
"""The same for the lists, sums and histories of pages that are not live."""
INTERVAL_S = 1.0
"""Shortest time between two polls of one feed."""
RETRY_S = 2.0
"""The same while the daemon does not answer."""
LINGER_S = 5.0
"""How long a feed without viewers still polls, so that a reload gets its value at once."""
MAX_FEEDS = 1000

Fetch = Callable[[], Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class Reading:
    """The newest values of a feed.

    Attributes:
        number: counts the polls.
        value: what the last successful poll returned; None before it.
        at_s: when that was, in seconds since 1970.
        error: why the newest poll failed, or None.
        rendered: what pages made of this reading, by their own keys: one rendering serves all clients.
    """

    number: int
    value: Any
    at_s: float
    error: CotenantError | None = None
    rendered: dict[Hashable, Any] = field(default_factory=dict)


class PollBudget:
    """Serializes the polls of all feeds and spaces them.

    Args:
        share: the part of the daemon's time that they may use.
        spent_s: returns the daemon's time for all answers so far; by default the time that passes counts.
    """

    def __init__(self, share: float = DAEMON_SHARE, spent_s: Callable[[], float] = time.monotonic) -> None:
        self._pause = 1.0 / share - 1.0
        self._spent_s = spent_s
        self._lock = asyncio.Lock()
        self._free_at_s = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; what the daemon spends until the end of the block counts."""
        async with self._lock:
            await asyncio.sleep(max(0.0, self._free_at_s - time.monotonic()))
            before_s = self._spent_s()
            try:
                yield
            finally:
                self._free_at_s = time.monotonic() + (self._spent_s() - before_s) * self._pause


class Feed:
    """One polled value."""

    def __init__(self, fetch: Fetch, budget: PollBudget) -> None:
        self._fetch = fetch
        self._budget = budget
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._unwatched_since_s = 0.0
        self.newest = Reading(number=0, value=None, at_s=0.0)

    @contextlib.contextmanager
    def _watched(self) -> Any:
        self._watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            yield
        finally:
            self._watchers -= 1
            self._unwatched_since_s = time.monotonic()

    async def first(self) -> Reading:
        """The newest reading; waits for the first one.

        Raises:
            CotenantError: there is no value yet, and the daemon refuses, or does not answer.
        """
        with self._watched():
            reading = self.newest if self._is_fresh() else await self._after(self.newest.number)
        if reading.value is None and reading.error is not None:
            raise reading.error
        return reading

    async def readings(self) -> AsyncIterator[Reading]:
        """Every reading from now on, the newest at first; slow readers skip some.

        Raises:
            CotenantError: the daemon refuses. That it does not answer is a reading with an error.
        """
        with self._watched():
            number = self.newest.number if self._is_fresh() else self.newest.number + 1
            while True:
                reading = await self._after(number - 1)
                if reading.error is not None and not isinstance(reading.error, DaemonUnreachable):
                    raise reading.error
                yield reading
                number = reading.number + 1

    @property
    def is_idle(self) -> bool:
        """Whether it polls no more."""
        return self._task is None or self._task.done()

    def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()

    def _is_fresh(self) -> bool:
        return self.newest.value is not None or self.newest.error is not None

    async def _after(self, number: int) -> Reading:
        async with self._changed:
            await self._changed.wait_for(lambda: self.newest.number > number)
            return self.newest

    async def _poll(self) -> None:
        while self._watchers or time.monotonic() - self._unwatched_since_s < LINGER_S:
            began_s = time.monotonic()
            before = self.newest
            try:
                async with self._budget.turn():
                    value = await self._fetch()
                reading = Reading(number=before.number + 1, value=value, at_s=time.time())
            except DaemonUnreachable as error:
                reading = Reading(number=before.number + 1, value=before.value, at_s=before.at_s, error=error)
            except CotenantError as error:  # what one may not see any more is not shown any longer
                reading = Reading(number=before.number + 1, value=None, at_s=before.at_s, error=error)
            async with self._changed:
                self.newest = reading
                self._changed.notify_all()
            interval_s = RETRY_S if isinstance(reading.error, DaemonUnreachable) else INTERVAL_S
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))
        # A value from before a pause is not shown again: the next watcher waits for a new poll.
        self.newest = Reading(number=self.newest.number, value=None, at_s=0.0)


class Feeds:
    """The feeds of one server, by key; those that rest are dropped first."""

    def __init__(self, budget: PollBudget | None = None) -> None:
        self._budget = budget or PollBudget()
        self._feeds: OrderedDict[Hashable, Feed] = OrderedDict()

    def get(self, key: Hashable, fetch: Fetch) -> Feed:
        """The feed of `key`; `fetch` polls it if it is new."""
        feed = self._feeds.get(key)
        if feed is None:
            self._make_room()
            feed = self._feeds[key] = Feed(fetch, self._budget)
        self._feeds.move_to_end(key)
        return feed

    def close(self) -> None:
        """Stop all of them."""
        for feed in self._feeds.values():
            feed.close()

    def _make_room(self) -> None:
        if len(self._feeds) < MAX_FEEDS:
            return
        for key in [key for key, feed in self._feeds.items() if feed.is_idle]:
            del self._feeds[key]
