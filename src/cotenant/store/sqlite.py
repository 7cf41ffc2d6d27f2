"""The journal in one SQLite file: append-only, durable when `append` returns, one writer."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from cotenant.core.codec import CodecError, decode, to_json
from cotenant.core.errors import CotenantError, DaemonRunning, JournalError
from cotenant.core.events import Journaled
from cotenant.core.job import Job
from cotenant.core.snapshot import ManagerSnapshot
from cotenant.store import snapshot

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x636F7465
"""`cote`: marks the file as ours, so that no other database is taken for a journal."""

Migration = Callable[[sqlite3.Connection], None]


def _create(db: sqlite3.Connection) -> None:
    """Version 1. Times, types and job ids are copied out of `body` for people with a `sqlite3` shell."""
    db.execute(
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, type TEXT NOT NULL,"
        " job_id INTEGER NOT NULL, body TEXT NOT NULL, crc32 INTEGER NOT NULL)"
    )
    db.execute("CREATE INDEX events_by_job ON events (job_id, seq)")
    for action in ("UPDATE", "DELETE"):
        db.execute(
            f"CREATE TRIGGER no_{action.lower()} BEFORE {action} ON events"
            " BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
        )


def _add_update_events(_: sqlite3.Connection) -> None:
    """Version 2. The tables stay; there are new events (JobUpdated, JobRequeued) and new fields of specs.

    A version that knows up to 1 would fail at the first of them, after it had read half of the journal: now it says at
    once that it is too old.
    """


def _add_snapshot_tables(db: sqlite3.Connection) -> None:
    """Version 3. Beside the events, which stay as they are, what they amount to up to one of them."""
    snapshot.create(db)


def _add_usage_fields(_: sqlite3.Connection) -> None:
    """Version 4. The tables stay; ends of attempts tell what was used, and specs how progress is told."""


MIGRATIONS: tuple[Migration, ...] = (_create, _add_update_events, _add_snapshot_tables, _add_usage_fields)
"""Step N brings a file from schema N to N + 1. Steps are never edited, only added."""


class SqliteJournal:
    """A `core.ports.Journal` in the SQLite file `path`, created with mode 0600: specs hold environments.

    Use it from one thread at a time. The lock is the file `path.lock`, held until `close` or the end of the
    process, and naming the holder's pid. `synchronous` FULL survives a power cut; NORMAL survives a crash of the
    process but may lose the newest events in a power cut.

    Raises:
        DaemonRunning: another process holds this journal.
        JournalError: the file cannot be opened, is of a newer version, or is no journal.
    """

    def __init__(self, path: str | os.PathLike[str], *, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> None:
        self.path = Path(path)
        self._mutex = threading.Lock()
        self._synchronous = synchronous
        self._lock_fd = _lock(self.path)
        try:
            self._db = _open(self.path, synchronous)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._kept: dict[int, Job] = {}  # what the tables of the snapshot hold
        self._folded_seq = 0

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:
        """Keep all of `events`, in order, or none. Without `durable` a crash of the process loses none of them.

        Raises:
            JournalError: none was kept (a full disk, say); a later call may succeed.
        """
        if not events:
            return
        try:
            rows = [_row(event) for event in events]
        except (ValueError, CodecError) as error:
            raise JournalError(f"cannot write an event down: {error}") from error
        with self._writing("append to", synchronous=self._synchronous if durable else "NORMAL"):
            self._db.executemany(_INSERT, rows)

    def sync(self) -> None:
        """Bring to the disk what was appended without; with `synchronous` NORMAL that is never promised.

        Raises:
            JournalError: the disk failed.
        """
        if self._synchronous == "NORMAL":
            return
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
        """A transaction: all of it is kept at the end, or nothing; on disk then if `synchronous` is FULL.

        Raises:
            JournalError: nothing is; it could not `what` the file.
        """
        with self._mutex:
            try:
                self._db.execute(f"PRAGMA synchronous = {synchronous or self._synchronous}")
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except (sqlite3.Error, OverflowError) as error:
                self._undo()
                raise JournalError(f"cannot {what} {self.path}: {error}", hint=_hint(error)) from error
            except BaseException:
                self._undo()
                raise

    def _undo(self) -> None:
        """Roll back; then overwrite what a failed commit may have left in the log, lest a crash bring it back."""
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def replay(self) -> Iterator[Journaled]:
        """All events ever kept, oldest first.

        Raises:
            JournalError: a row is missing or damaged; names the file and the row's `seq`.
        """
        return self._after(0)

    def _after(self, seq: int) -> Iterator[Journaled]:
        expected = seq + 1
        while True:
            with self._mutex:
                rows = self._fetch(expected)
            if not rows:
                return
            for row in rows:
                yield self._decoded(row, expected)
                expected += 1

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, Iterator[Journaled]]:
        """The state up to some event, if it is known, and the events after it: all, if it is not.

        A snapshot that cannot be used costs time, nothing else: it is as if there were none.
        """
        with self._mutex:
            try:
                found = snapshot.load(self._db)
            except (snapshot.SnapshotError, sqlite3.Error) as error:
                logger.warning("the journal's snapshot is not used", extra={"fields": {"why": str(error)}})
                found = None
        if found is None:
            self._kept, self._folded_seq = {}, 0
            return None, self.replay()
        self._folded_seq, folded = found
        self._kept = {job.id: job for job in folded.jobs}
        return folded, self._after(self._folded_seq)

    def events_since_snapshot(self) -> int:
        """How many events the next start would have to read."""
        with self._mutex:
            try:
                (newest,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
            except sqlite3.Error as error:
                raise JournalError(f"cannot read {self.path}: {error}", hint=_RESTORE) from error
        return int(newest) - self._folded_seq

    def save_snapshot(self, folded: ManagerSnapshot) -> None:
        """Keep what all events so far amount to. They stay, for `replay` and `of_job`.

        Jobs that were given before are not written again; the same job is known by being the same object.

        Raises:
            JournalError: it was not kept; the one before it still is.
        """
        with self._writing("keep a snapshot in"):
            (newest,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
            try:
                snapshot.save(self._db, newest, folded, self._kept)
            except (ValueError, CodecError) as error:
                raise JournalError(f"cannot write the state down: {error}") from error
        self._kept = {job.id: job for job in folded.jobs}
        self._folded_seq = newest

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job, oldest first.

        Raises:
            JournalError: a row cannot be read, or is damaged.
        """
        query = "SELECT seq, at_s, type, job_id, body, crc32 FROM events WHERE job_id = ? ORDER BY seq"
        with self._mutex:
            try:
                rows = self._db.execute(query, (job_id,)).fetchall()
            except sqlite3.Error as error:
                raise JournalError(f"cannot read job {job_id} from {self.path}: {error}", hint=_RESTORE) from error
        return [self._decoded(row, row[0]) for row in rows]

    def _fetch(self, first_seq: int) -> list[tuple[int, float, str, int, str, int]]:
        query = "SELECT seq, at_s, type, job_id, body, crc32 FROM events WHERE seq >= ? ORDER BY seq LIMIT 1000"
        try:
            return self._db.execute(query, (first_seq,)).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"cannot read {self.path} from seq {first_seq}: {error}", hint=_RESTORE) from error

    def _decoded(self, row: tuple[int, float, str, int, str, int], expected: int) -> Journaled:
        seq, at_s, kind, job_id, body, crc32 = row
        if seq != expected:
            raise JournalError(f"{self.path}: event {expected} is missing, the next is {seq}", hint=_RESTORE)
        if zlib.crc32(str(body).encode()) != crc32:
            raise JournalError(f"{self.path}: event {seq} is damaged: its checksum does not match", hint=_RESTORE)
        try:
            event: Journaled = decode(Journaled, json.loads(body))
        except (CodecError, ValueError) as error:
            raise JournalError(f"{self.path}: event {seq} cannot be understood: {error}", hint=_RESTORE) from error
        if (event.at_s, type(event).__name__, event.job_id) != (at_s, kind, job_id):
            raise JournalError(f"{self.path}: event {seq} is damaged: its columns contradict its body", hint=_RESTORE)
        return event

    def close(self) -> None:
        """Let go of the file and the lock. Further calls do nothing."""
        with self._mutex:
            if self._lock_fd >= 0:
                self._db.close()
                os.close(self._lock_fd)
                self._lock_fd = -1


_INSERT = "INSERT INTO events (at_s, type, job_id, body, crc32) VALUES (?, ?, ?, ?, ?)"
_RESTORE = "restore the file from a backup, or move it away to start with an empty journal"


def _row(event: Journaled) -> tuple[float, str, int, str, int]:
    body = to_json(event)
    return event.at_s, type(event).__name__, event.job_id, body, zlib.crc32(body.encode())


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of `path`; the kernel lets go of it when the process ends."""
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"cannot open {lock}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise DaemonRunning(
            f"another daemon (pid {holder}) holds {path}", hint="stop it, or choose another state folder"
        ) from error
    except OSError as error:
        os.close(fd)
        raise JournalError(f"cannot lock {lock}: {error.strerror}") from error
    # The pid is for people only: on a full disk the lock still holds.
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _open(path: Path, synchronous: str) -> sqlite3.Connection:
    db: sqlite3.Connection | None = None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        _refuse_others(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        migrate(db, MIGRATIONS)
    except (OSError, sqlite3.Error) as error:
        if db is not None:
            db.close()
        raise JournalError(f"cannot open {path}: {error}", hint=_hint(error)) from error
    except CotenantError:
        if db is not None:
            db.close()
        raise
    return db


def _refuse_others(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or version or application):
        raise JournalError(f"{path} is an SQLite file, but no journal", hint="choose another state folder")
    if version > len(MIGRATIONS):
        raise JournalError(
            f"{path} has schema {version}, this version knows up to {len(MIGRATIONS)}", hint="upgrade cotenant"
        )


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Bring the file to the newest schema: all steps, or none."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version >= len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in migrations[version:]:
            step(db)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _hint(error: Exception) -> str | None:
    text = str(error)
    if "full" in text or "disk I/O" in text:
        return "free some disk space and try again"
    return _RESTORE if "malformed" in text or "not a database" in text else None
