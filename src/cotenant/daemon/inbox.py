"""The control loop's queue of messages, filled by every other thread of the daemon.

A module of its own: who fills it needs nothing of the loop.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from cotenant.core.events import ServerSampled
from cotenant.daemon.messages import Message, Report

MAX_BATCH = 512


class Inbox:
    """A thread-safe queue. Of the samples that are still queued, only the newest stays."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._sample_lock = threading.Lock()
        self._newest_sample: ServerSampled | None = None

    def put(self, message: Message | Report | None) -> None:
        """Append a message; None makes the control loop end after the messages before it."""
        self._queue.put(message)

    def put_sample(self, event: ServerSampled) -> None:
        """Append a sample, or replace the one that is still waiting."""
        with self._sample_lock:
            is_waiting = self._newest_sample is not None
            self._newest_sample = event
        if not is_waiting:
            self._queue.put(event)

    def take_sample(self) -> ServerSampled | None:
        """Return the newest sample, once."""
        with self._sample_lock:
            newest, self._newest_sample = self._newest_sample, None
        return newest

    def get_batch(self, timeout_s: float) -> list[Message | None]:
        """Return up to `MAX_BATCH` messages; waits up to `timeout_s` for the first."""
        found: list[Message | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._queue.get(timeout=timeout_s))
            while len(found) < MAX_BATCH:
                found.append(self._queue.get_nowait())
        return found
