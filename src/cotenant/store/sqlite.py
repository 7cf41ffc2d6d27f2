"""The journal in one SQLite file: append-only, durable when `append` returns, one writer."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from cotenant.core.codec import CodecError
from cotenant.core.errors import JournalError, UnreadableEvent
from cotenant.core.events import Journaled
from cotenant.core.job import Job
from cotenant.core.ports import QuarantinedEvent
from cotenant.core.snapshot import ManagerSnapshot
from cotenant.store import compaction, event_format, repairs, schema, snapshot
from cotenant.store.database_file import RESTORE_HINT, hint_for, lock_file, open_database
from cotenant.store.environments import EnvironmentTable, MissingEnvironment
from cotenant.store.replay import Replay
from cotenant.store.reserve import DiskReserve

logger = logging.getLogger(__name__)

_Row = tuple[int, float, str, int, str | bytes, int]
_INSERT = "INSERT INTO events (at_s, type, job_id, body, crc32) VALUES (?, ?, ?, ?, ?)"
_OF_JOB = "SELECT seq, at_s, type, job_id, body, crc32 FROM events WHERE job_id = ? ORDER BY seq"
_FROM_SEQ = "SELECT seq, at_s, type, job_id, body, crc32 FROM events WHERE seq >= ? ORDER BY seq LIMIT 1000"
_NEWEST = "SELECT coalesce(max(seq), 0) FROM events"
_REPAIR = "`cotenant daemon repair` shows the event, and leaves it out if you say so; or restore the file from a backup"


class SqliteJournal:
    """A `core.ports.Journal` in the SQLite file `path`, created with mode 0600 because specs hold environments.

    Calls may come from any thread; each waits for the one before it. The process holds the lock file `path.lock`, which
    contains its pid, until `close` or its end. With `synchronous` FULL a committed event survives a power cut; with
    NORMAL it survives a crash of the process, but a power cut may lose the newest ones
    (https://sqlite.org/pragma.html#pragma_synchronous, for WAL mode).

    Raises:
        DaemonRunning: another process holds this journal.
        JournalError: the file cannot be opened, has a newer schema, or is no journal.
    """

    def __init__(self, path: str | os.PathLike[str], *, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> None:
        self.path = Path(path)
        self._mutex = threading.Lock()
        self._synchronous = synchronous
        self._lock_fd = lock_file(self.path)
        try:
            self._db, self._formats = open_database(self.path)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._snapshot_jobs: dict[int, Job] = {}  # those in the snapshot's tables
        self._snapshot_seq = 0
        self._environments, self._repairs, self._pruned = self._load_tables()
        self._reserve = DiskReserve(self.path.with_name(f"{self.path.name}.reserve"))
        self._reserve.allocate()

    def _load_tables(self) -> tuple[EnvironmentTable, dict[int, repairs.Repair], set[int]]:
        try:
            pruned = {job_id for (job_id,) in self._db.execute("SELECT job_id FROM pruned_jobs")}
            self._dictionary = compaction.load_dictionary(self._db)
            return EnvironmentTable(self._db), repairs.load(self._db), pruned
        except (sqlite3.Error, ValueError) as error:
            self.close()
            raise JournalError(f"cannot read {self.path}: {error}", hint=RESTORE_HINT) from error

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:
        """Append all of `events`, in order, or none.

        Those appended with `durable=False` survive a crash of the process, but a power cut only after the next durable
        append or `sync`.

        Raises:
            JournalError: none was appended, e.g. because the disk is full; a later call may succeed.
        """
        if not events:
            return
        environments: dict[str, str] = {}

        def key_of(environment: Mapping[str, str]) -> str:
            key, environments[key] = self._environments.digest(environment)
            return key

        try:
            rows = [event_format.row_of(event, event_format.encode_event(event, key_of)) for event in events]
        except (ValueError, CodecError) as error:
            raise JournalError(f"cannot encode an event: {error}") from error
        with self._writing("append to", synchronous=self._synchronous if durable else "NORMAL"):
            self._environments.insert(environments)
            self._db.executemany(_INSERT, rows)
        self._environments.committed(environments)

    def sync(self) -> None:
        """Bring to the disk what was appended with `durable=False`; does nothing where `synchronous` is NORMAL.

        Raises:
            JournalError: the disk failed.
        """
        if self._synchronous == "NORMAL":
            return
        # SQLite has no call that syncs its write-ahead log without a commit. In WAL mode that one file, whose name is
        # part of the documented format, holds all that was committed since the last checkpoint (sqlite.org/wal.html).
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)
        except OSError as error:
            raise JournalError(f"cannot write {self.path} to the disk: {error.strerror}") from error

    @contextmanager
    def _writing(self, what: str, *, synchronous: str | None = None) -> Iterator[None]:
        """A transaction, committed when the block ends; the commit is on disk then if `synchronous` is FULL.

        Raises:
            JournalError: nothing was committed; it could not `what` the file.
        """
        with self._mutex:
            try:
                # Before BEGIN: the level cannot change within a transaction (sqlite.org/pragma.html).
                self._db.execute(f"PRAGMA synchronous = {synchronous or self._synchronous}")
                # IMMEDIATE takes the write lock now, so that no statement in the block can fail for want of it
                # (sqlite.org/lang_transaction.html).
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except (sqlite3.Error, OverflowError) as error:
                self._undo()
                raise JournalError(f"cannot {what} {self.path}: {error}", hint=hint_for(error)) from error
            except BaseException:
                self._undo()
                raise

    def _undo(self) -> None:
        """Roll back, and empty the write-ahead log.

        A commit that fails in its fsync may have written its commit record to the log, and recovery after a crash would
        then take the transaction for committed. The checkpoint copies what was committed before, and truncates the log.
        """
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def replay(self, *, without: Container[int] = ()) -> Replay:
        """All events, oldest first, without those that were set aside, and those of the numbers `without`.

        Raises:
            UnreadableEvent: a row is missing or damaged; the message names the file and the row's `seq`.
        """
        return Replay(self._after(0, without))

    def _after(self, seq: int, without: Container[int] = ()) -> Iterator[tuple[int, Journaled]]:
        expected = seq + 1
        while True:
            with self._mutex:
                rows = self._fetch(expected)
            if not rows:
                return
            for row in rows:
                # Where a row is gone, a repair may have accepted that.
                while row[0] > expected and (expected in self._repairs or expected in without):
                    expected += 1
                event = None if expected in without else self._repaired(row, expected)
                if event is not None:
                    yield expected, event
                expected += 1

    def _repaired(self, row: _Row, expected: int) -> Journaled | None:
        """The event of `row`, or what a repair put in its place: another event, or None."""
        repair = self._repairs.get(row[0])
        if repair is None or row[0] != expected:
            return self._decoded(row, expected)
        return None if repair.body is None else self._parsed(row[0], repair.body)

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, Replay]:
        """The newest snapshot and the events after it; None and all events where no snapshot can be used.

        A snapshot that is damaged or of another release is ignored, and costs the time to replay all events.
        """
        with self._mutex:
            try:
                found = snapshot.load(self._db, self._environments)
            except (snapshot.SnapshotError, sqlite3.Error) as error:
                logger.warning(
                    "the journal's snapshot cannot be used, all events are replayed",
                    extra={"fields": {"why": str(error)}},
                )
                found = None
        if found is None:
            self._snapshot_jobs, self._snapshot_seq = {}, 0
            return None, self.replay()
        self._snapshot_seq, state = found
        self._snapshot_jobs = {job.id: job for job in state.jobs}
        return state, Replay(self._after(self._snapshot_seq))

    def events_since_snapshot(self) -> int:
        """How many events the next start would have to replay.

        Raises:
            JournalError: the file cannot be read.
        """
        with self._mutex:
            try:
                (newest,) = self._db.execute(_NEWEST).fetchone()
            except sqlite3.Error as error:
                raise JournalError(f"cannot read {self.path}: {error}", hint=RESTORE_HINT) from error
        return int(newest) - self._snapshot_seq

    def save_snapshot(self, state: ManagerSnapshot) -> None:
        """Save the state after all events so far; the events stay, for `replay` and `of_job`.

        A job is written only if its object is another one than in the snapshot before: jobs are immutable.

        Raises:
            JournalError: it was not saved; the snapshot before is still there.
        """
        with self._writing("save a snapshot in"):
            (newest,) = self._db.execute(_NEWEST).fetchone()
            try:
                inserted = snapshot.save(self._db, newest, state, self._snapshot_jobs, self._environments)
            except (ValueError, CodecError) as error:
                raise JournalError(f"cannot encode a snapshot: {error}") from error
        self._environments.committed(inserted)
        self._snapshot_jobs = {job.id: job for job in state.jobs}
        self._snapshot_seq = newest

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job, oldest first, without those that were set aside.

        Raises:
            JournalError: a row cannot be read, or is damaged.
        """
        with self._mutex:
            try:
                rows = self._db.execute(_OF_JOB, (job_id,)).fetchall()
            except sqlite3.Error as error:
                raise JournalError(f"cannot read job {job_id} from {self.path}: {error}", hint=RESTORE_HINT) from error
        events = (self._repaired(row, row[0]) for row in rows)
        return [event for event in events if event is not None]

    def quarantine(self, event: Journaled | int, *, at_s: float, error: str, trace: str) -> None:
        """Leave an event, or the one of that number, out of all later replays. Its row stays.

        Raises:
            JournalError: there is no such event, or this cannot be written.
        """
        seq = event if isinstance(event, int) else self._seq_of(event)
        if seq is None:
            raise JournalError(f"{self.path} has no such event")
        self.repair(seq, at_s=at_s, cause="daemon", error=error, trace=trace)

    def repair(
        self, seq: int, *, at_s: float, cause: str, error: str, trace: str = "", body: str | None = None
    ) -> None:
        """Leave event `seq` out of all later replays, or replace it by the event in `body`; see `store.repairs`.

        Raises:
            JournalError: this cannot be written.
        """
        with self._writing("repair an event in"):
            repairs.insert(self._db, seq, at_s=at_s, cause=cause, error=error, trace=trace, body=body)
        self._repairs = repairs.load(self._db)

    def undo_repair(self, seq: int) -> bool:
        """Let replays read event `seq` again; False if they do.

        Raises:
            JournalError: this cannot be written.
        """
        with self._writing("repair an event in"):
            was_repaired = repairs.delete(self._db, seq)
        self._repairs = repairs.load(self._db)
        return was_repaired

    def quarantined(self, job_id: int | None = None) -> list[QuarantinedEvent]:
        """The events that were set aside or replaced, of one job or of all."""
        found = self._repairs
        return repairs.of_job(found, job_id) if job_id is not None else [repair.event for repair in found.values()]

    def _seq_of(self, event: Journaled) -> int | None:
        """The number of an event that was appended lately."""
        with self._mutex:
            rows = self._db.execute(f"{_OF_JOB} DESC LIMIT 50", (event.job_id,)).fetchall()
        for row in rows:
            with suppress(JournalError):
                if self._decoded(row, row[0]) == event:
                    return int(row[0])
        return None

    def release_reserve(self) -> bool:
        """Give up the disk space that is set aside for cancellations and ends; False if there is none."""
        return self._reserve.release()

    def restore_reserve(self) -> bool:
        """Set the space aside again; False if the disk has not enough."""
        return self._reserve.allocate()

    def is_writable(self) -> bool:
        """Whether a page, written as it is, reaches the file, and the disk has room for more."""
        with suppress(JournalError), self._writing("write to"):
            self._db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            return self._reserve.has_headroom()
        return False

    def prune(self, job_ids: Iterable[int]) -> None:
        """Drop the environments of done jobs, except those that other jobs share, and compress their events.

        Raises:
            JournalError: it cannot be written; a part may be done, and the next call does the rest.
        """
        new = sorted(set(job_ids) - self._pruned)
        for first in range(0, len(new), compaction.PRUNED_AT_ONCE):
            batch = new[first : first + compaction.PRUNED_AT_ONCE]
            with self._writing("prune"):
                self._db.executemany("INSERT OR IGNORE INTO pruned_jobs VALUES (?)", [(job_id,) for job_id in batch])
                dictionary = compaction.compress(self._db, batch, self._dictionary)
            self._dictionary = dictionary
            self._pruned |= set(batch)
        with self._writing("prune"):
            self._environments.drop_unused()
        with self._mutex:
            self._environments.reload()
        compaction.shrink(self._db, self._mutex)

    def pruned_jobs(self) -> frozenset[int]:
        """The jobs whose environments were dropped."""
        return frozenset(self._pruned)

    def size_bytes(self) -> int:
        """How much of the disk the events take: the file without its free pages, and the write-ahead log.

        Raises:
            JournalError: the file cannot be read.
        """
        with self._mutex:
            try:
                return compaction.size_bytes(self._db)
            except sqlite3.Error as error:
                raise JournalError(f"cannot read {self.path}: {error}", hint=RESTORE_HINT) from error

    def _fetch(self, first_seq: int) -> list[_Row]:
        try:
            return self._db.execute(_FROM_SEQ, (first_seq,)).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"cannot read {self.path} from seq {first_seq}: {error}", hint=RESTORE_HINT) from error

    def _decoded(self, row: _Row, expected: int) -> Journaled:
        seq, at_s, kind, job_id, stored, crc32 = row
        if seq != expected:
            raise self._unreadable(expected, f"is missing, the next is {seq}")
        try:
            body = compaction.body_text(stored, self._dictionary)
        except ValueError as error:
            raise self._unreadable(seq, f"is damaged: {error}") from error
        if zlib.crc32(body.encode()) != crc32:
            raise self._unreadable(seq, "is damaged: its checksum does not match")
        event = self._parsed(seq, body)
        if (event.at_s, type(event).__name__, event.job_id) != (at_s, kind, job_id):
            raise self._unreadable(seq, "is damaged: its columns contradict its body")
        return event

    def _parsed(self, seq: int, body: str) -> Journaled:
        try:
            return event_format.decode_event(seq, body, self._formats, lambda key: self._environment(body, key))
        except MissingEnvironment as error:
            raise self._unreadable(seq, f"is damaged: {error}") from error
        except (CodecError, ValueError) as error:
            raise self._unreadable(seq, f"cannot be decoded: {error}", is_intact=True) from error

    def _environment(self, body: str, key: str) -> Mapping[str, str]:
        with self._mutex:
            try:
                return self._environments.read(key)
            except MissingEnvironment:
                if json.loads(body).get("job_id") in self._pruned:
                    return {}
                raise

    def _unreadable(self, seq: int, why: str, *, is_intact: bool = False) -> UnreadableEvent:
        return UnreadableEvent(f"{self.path}: event {seq} {why}", seq=seq, is_intact=is_intact, hint=_REPAIR)

    def close(self) -> None:
        """Close the file and release the lock. Further calls do nothing."""
        with self._mutex:
            if self._lock_fd >= 0:
                self._db.close()
                os.close(self._lock_fd)
                self._lock_fd = -1
