"""A journal in memory, for the simulator and tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cotenant.core.errors import JournalError
from cotenant.core.events import Journaled
from cotenant.core.ports import QuarantinedEvent
from cotenant.core.snapshot import ManagerSnapshot
from cotenant.store.replay import Replay


class MemoryJournal:
    """A `core.ports.Journal` in a list."""

    def __init__(self) -> None:
        self._events: list[Journaled] = []
        self._snapshot: ManagerSnapshot | None = None
        self._snapshot_count = 0
        self._quarantined: dict[int, QuarantinedEvent] = {}
        self._pruned: frozenset[int] = frozenset()

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:  # noqa: ARG002
        """Append `events`."""
        self._events.extend(events)

    def sync(self) -> None:
        """Does nothing: there is no disk."""

    def replay(self) -> Replay:
        """All events so far; later ones are not included."""
        return Replay(self._after(0, len(self._events)))

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, Replay]:
        """The newest snapshot, and the events after it."""
        return self._snapshot, Replay(self._after(self._snapshot_count, len(self._events)))

    def _after(self, first: int, end: int) -> Iterator[tuple[int, Journaled]]:
        for seq, event in enumerate(self._events[first:end], start=first + 1):
            if seq not in self._quarantined:
                yield seq, event

    def events_since_snapshot(self) -> int:
        """How many events there are after the newest snapshot."""
        return len(self._events) - self._snapshot_count

    def save_snapshot(self, state: ManagerSnapshot) -> None:
        """Save the state after all events so far."""
        self._snapshot, self._snapshot_count = state, len(self._events)

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job."""
        return [event for _, event in self._after(0, len(self._events)) if event.job_id == job_id]

    def quarantine(self, event: Journaled | int, *, at_s: float, error: str, trace: str) -> None:
        """Leave an event out of all later replays.

        Raises:
            JournalError: there is no such event.
        """
        found = event if isinstance(event, int) else self._seq_of(event)
        culprit = self._events[found - 1]
        self._quarantined[found] = QuarantinedEvent(
            seq=found,
            at_s=at_s,
            type=type(culprit).__name__,
            job_id=culprit.job_id,
            cause="daemon",
            error=error,
            trace=trace,
        )

    def _seq_of(self, event: Journaled) -> int:
        for seq in range(len(self._events), 0, -1):
            if self._events[seq - 1] is event or self._events[seq - 1] == event:
                return seq
        raise JournalError("no such event")

    def quarantined(self, job_id: int | None = None) -> list[QuarantinedEvent]:
        """The events that were set aside, of one job or of all."""
        return [event for event in self._quarantined.values() if job_id in (None, event.job_id)]

    def release_reserve(self) -> bool:
        """There is no disk, and no space set aside on it."""
        return False

    def restore_reserve(self) -> bool:
        """There is no disk to be full."""
        return True

    def is_writable(self) -> bool:
        """Memory is."""
        return True

    def prune(self, job_ids: Iterable[int]) -> None:
        """Note the jobs; their environments stay in memory."""
        self._pruned |= frozenset(job_ids)

    def pruned_jobs(self) -> frozenset[int]:
        """The jobs that were pruned."""
        return self._pruned

    def size_bytes(self) -> int:
        """It takes no room on a disk."""
        return 0

    def close(self) -> None:
        """Does nothing: no file is open."""
