"""The tables of a journal file, and the steps that bring the file of an earlier version to those of today."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.core.errors import JournalError
from cotenant.store import compaction, environments, event_format, repairs, snapshot

APPLICATION_ID = 0x636F7465
"""`cote`: marks the file as ours, so that no other SQLite database is taken for a journal."""

Migration = Callable[[sqlite3.Connection], None]


def _create(db: sqlite3.Connection) -> None:
    """Version 1. `at_s`, `type` and `job_id` repeat fields of `body`, for people with a `sqlite3` shell."""
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
    """Version 2. New events (JobUpdated, JobRequeued) and new fields of specs; the tables are unchanged.

    The number still rises: a release that knows schema 1 would read half of the journal before it met an event that it
    does not know; with the number it refuses the file at once.
    """


def _add_snapshot_tables(db: sqlite3.Connection) -> None:
    """Version 3. Snapshots of the manager's state, in tables of their own; the events are unchanged."""
    snapshot.create(db)


def _add_usage_fields(_: sqlite3.Connection) -> None:
    """Version 4. Exits of attempts hold resource usage, specs a progress pattern; the tables are unchanged."""


def _rename_fields(db: sqlite3.Connection) -> None:
    """Version 5. New names of classes and fields in events; events from before keep theirs, see `event_format`."""
    event_format.create(db)
    event_format.begin(db, 5)


def _share_environments(db: sqlite3.Connection) -> None:
    """Version 6. Environments in a table of their own, for events and snapshots; repairs of events; pruned jobs."""
    environments.create(db)
    repairs.create(db)
    snapshot.drop_environments(db)
    event_format.begin(db, 6)


def _compress_bodies(db: sqlite3.Connection) -> None:
    """Version 7. Bodies of events of pruned jobs may be compressed."""
    compaction.create(db)


def _add_idle_events(_: sqlite3.Connection) -> None:
    """Version 8. New events (AttemptIdle, AttemptBusy), and estimates of compiled code; the tables are unchanged."""


def _add_checkpoint_fields(_: sqlite3.Connection) -> None:
    """Version 9. Specs say how a job saves its state, exits how long it took; the tables are unchanged."""


def _leave_defaults_out(db: sqlite3.Connection) -> None:
    """Version 10. Bodies of events without the fields that have their defaults."""
    event_format.begin(db, 7)


def _add_repartition_events(_: sqlite3.Connection) -> None:
    """Version 11. New events (RepartitionStarted, RepartitionEnded); the tables are unchanged."""


def _add_activity_intervals(_: sqlite3.Connection) -> None:
    """Version 12. Estimates have an interval of the SM activity; the tables are unchanged."""


MIGRATIONS: tuple[Migration, ...] = (
    _create,
    _add_update_events,
    _add_snapshot_tables,
    _add_usage_fields,
    _rename_fields,
    _share_environments,
    _compress_bodies,
    _add_idle_events,
    _add_checkpoint_fields,
    _leave_defaults_out,
    _add_repartition_events,
    _add_activity_intervals,
)
"""Step N, counted from 0, brings a file from schema N to N + 1. Steps are never edited, only added."""


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
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


def check_file(db: sqlite3.Connection, path: Path) -> int:
    """The schema of a file that this release can read or migrate; 0 for an empty file.

    Raises:
        JournalError: it is another program's database, or of a newer schema.
    """
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or version or application):
        raise JournalError(f"{path} is an SQLite file, but no journal", hint="choose another state folder")
    if version > len(MIGRATIONS):
        raise JournalError(
            f"{path} has schema {version}, this version of cotenant knows schemas up to {len(MIGRATIONS)}",
            hint="upgrade cotenant",
        )
    return int(version)
