"""Looks at the events of a journal one by one, and leaves out or replaces one, while no daemon runs."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import time
from collections.abc import Container, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.codec import CodecError, decode, to_json
from cotenant.core.errors import JournalError, UnreadableEvent, UsageError
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    EstimateReady,
    JobCancelled,
    JobSubmitted,
    JobUpdated,
    Journaled,
)
from cotenant.core.ports import QuarantinedEvent
from cotenant.daemon.config.schema import Config
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager
from cotenant.store import compaction
from cotenant.store.sqlite import SqliteJournal

_LOST: dict[type, str] = {
    JobSubmitted: "the job itself: it is in no list any more, and its later events have no effect",
    EstimateReady: "its estimate, which the next daemon makes again",
    AttemptPlaced: "an attempt: if it ran, its end is not recorded either",
    AttemptExited: "the end of an attempt: the next daemon gets it from its engine",
    JobUpdated: "a change of its request: the one before holds",
    JobCancelled: "its cancellation: the job runs on, or runs again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """One event of the journal.

    Attributes:
        body: its JSON as it was written; None where its row is gone.
        problem: why it cannot be read or applied, or None.
        repaired: what replays do with it instead, or None.
        impact: what is lost where it is left out.
    """

    seq: int
    type: str
    job_id: int
    body: str | None
    problem: str | None
    repaired: QuarantinedEvent | None
    impact: str


class JournalRepair:
    """A journal that no daemon holds; `close` releases it.

    Raises:
        DaemonRunning: a daemon holds it.
        JournalError: it cannot be opened.
    """

    def __init__(self, path: Path, config: Config) -> None:
        if not path.exists():
            raise UsageError(f"no journal at `{path}`", hint="name the daemon's folder with --state-dir")
        self.path = path
        self._config = config
        self._journal = SqliteJournal(path)

    def close(self) -> None:
        """Release the journal."""
        self._journal.close()

    def problems(self) -> Iterator[EventReport]:
        """The events that cannot be read or applied, then those that were repaired."""
        found: dict[int, str] = {}
        while (problem := self._first_problem(found)) is not None:
            seq, why = problem
            if seq in found or not seq:
                raise JournalError(why)
            found[seq] = why
        for seq, why in found.items():
            yield self.event(seq, problem=why)
        for repaired in self._journal.quarantined():
            yield self.event(repaired.seq)

    def check_file(self) -> None:
        """Check the pages of the file: one may be damaged where no event is, such as in the snapshot.

        Raises:
            JournalError: SQLite finds one damaged.
        """
        try:
            with self._reading() as db:
                (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            found = str(error)
        if found != "ok":
            why = " ".join(found.split())
            raise JournalError(
                f"the file {self.path} is damaged ({why}), though all of its events can be read",
                hint="check the disk, and put a backup of the journal in its place; until then perhaps no snapshot is"
                " saved, and each start replays all events",
            )

    def _first_problem(self, known: Container[int]) -> tuple[int, str] | None:
        """(Number, why) of the first event besides `known` that cannot be read or applied."""
        manager = Manager(policies.create(self._config.policy.name, {}))
        events = self._journal.replay(without=known)
        try:
            manager.restore(events)
        except UnreadableEvent as error:
            return error.seq, error.message
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever the event makes the code raise)
            return events.seq, f"{type(error).__name__}: {error}"
        return None

    def of_job(self, job_id: int) -> list[EventReport]:
        """The events of one job, oldest first."""
        with self._reading() as db:
            rows = db.execute("SELECT seq FROM events WHERE job_id = ? ORDER BY seq", (job_id,)).fetchall()
        return [self.event(seq) for (seq,) in rows]

    def event(self, seq: int, *, problem: str | None = None) -> EventReport:
        """One event.

        Raises:
            UsageError: the journal has no event of that number.
        """
        row = self._row(seq)
        repaired = next((event for event in self._journal.quarantined() if event.seq == seq), None)
        kind, job_id, body = ("gone", 0, None) if row is None else row
        impact = next((text for known, text in _LOST.items() if known.__name__ == kind), "this event alone")
        return EventReport(
            seq=seq, type=kind, job_id=job_id, body=body, problem=problem, repaired=repaired, impact=impact
        )

    def _row(self, seq: int) -> tuple[str, int, str] | None:
        row: tuple[str, int, str | bytes] | None
        with self._reading() as db:
            row = db.execute("SELECT type, job_id, body FROM events WHERE seq = ?", (seq,)).fetchone()
            dictionary = compaction.load_dictionary(db)
            (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
        if row is None and not 0 < seq < newest:
            raise UsageError(f"`{self.path}` has events 1 to {newest}, no event {seq}")
        return None if row is None else (row[0], row[1], _readable(row[2], dictionary))

    def _reading(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True))

    def skip(self, seq: int, why: str) -> Path:
        """Leave an event out of all replays; returns the copy of the journal that was made first.

        Raises:
            UsageError, JournalError: there is no such event, or it cannot be written.
        """
        self.event(seq)
        backup = self._back_up()
        self._journal.repair(seq, at_s=time.time(), cause=_who(), error=why)
        return backup

    def replace(self, seq: int, text: str, why: str) -> Path:
        """Replace an event by the one that JSON `text` encodes; returns the copy of the journal that was made first.

        Raises:
            UsageError: there is no such event, or `text` is none of the same type for the same job.
            JournalError: it cannot be written.
        """
        row = self._row(seq)
        try:
            value: Any = json.loads(text)
            event: Journaled = decode(Journaled, value)
        except (CodecError, ValueError) as error:
            raise UsageError(f"the replacement is no event: {error}") from error
        if row is not None and (type(event).__name__, event.job_id) != (row[0], row[1]):
            raise UsageError(
                f"the replacement is {type(event).__name__} of job {event.job_id}, wanted {row[0]} of job {row[1]}"
            )
        if isinstance(event, (JobSubmitted, JobUpdated)) and isinstance(value["spec"].get("env"), str):
            raise UsageError("the replacement has no environment", hint="write it out: `env` is an object")
        backup = self._back_up()
        self._journal.repair(seq, at_s=time.time(), cause=_who(), error=why, body=to_json(event))
        return backup

    def restore(self, seq: int) -> Path:
        """Let replays read an event again; returns the copy of the journal that was made first.

        Raises:
            UsageError: it was not repaired.
        """
        if self.event(seq).repaired is None:
            raise UsageError(f"event {seq} was neither left out nor replaced")
        backup = self._back_up()
        self._journal.undo_repair(seq)
        return backup

    def _back_up(self) -> Path:
        """Copy the journal beside it, with SQLite's own means: the write-ahead log is part of it."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        target = self.path.with_name(f"{self.path.name}.backup-{stamp}")
        try:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(target)) as copy:
                source.backup(copy)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"cannot copy {self.path} to {target}: {error}", hint="free some disk space") from error
        return target


def _readable(body: str | bytes, dictionary: bytes) -> str:
    """A body as text; one that is damaged as Python writes it."""
    try:
        return compaction.body_text(body, dictionary)
    except ValueError:
        return repr(body)


def _who() -> str:
    try:
        return f"repair by {pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"repair by uid {os.getuid()}"
