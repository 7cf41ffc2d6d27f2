"""The file of the journal: its lock, its opening, and what to do about its errors."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from cotenant.core.errors import CotenantError, DaemonRunning, JournalError
from cotenant.osutil.locks import LockHeldError, hold_lock
from cotenant.store import compaction, event_format, schema

logger = logging.getLogger(__name__)

RESTORE_HINT = "restore the file from a backup, or move it away to start with an empty journal"


def lock_file(path: Path) -> int:
    """A descriptor that holds the lock of `path`.

    Raises:
        DaemonRunning: another process holds it.
        JournalError: the lock file cannot be opened.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return hold_lock(lock)
    except LockHeldError as error:
        raise DaemonRunning(
            f"another daemon (pid {error.holder}) holds {path}", hint="stop it, or choose another state folder"
        ) from error
    except OSError as error:
        raise JournalError(f"cannot open or lock {lock}: {error.strerror}") from error


def open_database(path: Path) -> tuple[sqlite3.Connection, Sequence[tuple[int, int]]]:
    """The database, migrated to the newest schema, and the formats of its events.

    Raises:
        JournalError: it cannot be opened, or is no journal.
    """
    db: sqlite3.Connection | None = None
    try:
        # SQLite would create the file with mode 0644 less the umask; `-wal` and `-shm` get the mode of the file itself
        # (SQLite 3.40, src/os_unix.c, `findCreateFileMode`).
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        if schema.check_file(db, path) == 0:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect before the first table only
        db.execute("PRAGMA journal_mode = WAL")
        schema.migrate(db)
        if not compaction.can_shrink(db):
            _enable_shrinking(db, path)
        return db, event_format.formats(db)
    except (OSError, sqlite3.Error) as error:
        if db is not None:
            db.close()
        raise JournalError(f"cannot open {path}: {error}", hint=hint_for(error)) from error
    except CotenantError:
        if db is not None:
            db.close()
        raise


def _enable_shrinking(db: sqlite3.Connection, path: Path) -> None:
    """Write the file anew with pointer maps. Without the room for that, its pages are reused and it never shrinks."""
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        logger.warning("the journal cannot be made to shrink", extra={"fields": {"file": path, "why": str(error)}})


def hint_for(error: Exception) -> str | None:
    """What to do about an error of SQLite or the disk; None where there is nothing to say."""
    text = str(error)
    if "full" in text or "disk I/O" in text:
        return "free some disk space and try again"
    return RESTORE_HINT if "malformed" in text or "not a database" in text else None
