"""Events that replays leave out or replace. Rows of events are never changed: a repair stands beside them.

The daemon sets an event aside that it cannot apply, with the traceback; `cotenant daemon repair` does so by hand,
replaces one, or takes a repair back.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from cotenant.core.ports import QuarantinedEvent

_COLUMNS = "r.seq, r.at_s, r.cause, r.error, r.trace, r.body, r.crc32, e.type, e.job_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What replays do with one event: leave it out, or read `body` in its place."""

    event: QuarantinedEvent
    body: str | None = None


def create(db: sqlite3.Connection) -> None:
    """The table."""
    db.execute(
        "CREATE TABLE repairs (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, cause TEXT NOT NULL, error TEXT NOT NULL,"
        " trace TEXT NOT NULL, body TEXT, crc32 INTEGER)"
    )


def load(db: sqlite3.Connection) -> dict[int, Repair]:
    """All repairs, by the number of the event.

    Raises:
        sqlite3.Error: the table cannot be read.
        ValueError: a replacement is damaged.
    """
    found = {}
    for seq, at_s, cause, error, trace, body, crc32, kind, job_id in db.execute(
        f"SELECT {_COLUMNS} FROM repairs r LEFT JOIN events e ON e.seq = r.seq ORDER BY r.seq"  # noqa: S608
    ):
        if body is not None and zlib.crc32(str(body).encode()) != crc32:
            raise ValueError(f"the replacement of event {seq} is damaged: its checksum does not match")
        event = QuarantinedEvent(
            seq=seq,
            at_s=at_s,
            cause=cause,
            error=error,
            trace=trace,
            type=kind or "",
            job_id=job_id or 0,
            is_replaced=body is not None,
        )
        found[seq] = Repair(event=event, body=body)
    return found


def insert(
    db: sqlite3.Connection, seq: int, *, at_s: float, cause: str, error: str, trace: str, body: str | None
) -> None:
    """Leave event `seq` out of replays, or replace it by `body`. A snapshot that includes it is no longer valid.

    Call it in a transaction.

    Raises:
        sqlite3.Error: the table cannot be written.
    """
    crc32 = None if body is None else zlib.crc32(body.encode())
    row = (seq, at_s, cause, error, trace, body, crc32)
    db.execute("INSERT OR REPLACE INTO repairs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    _drop_snapshot(db, seq)


def delete(db: sqlite3.Connection, seq: int) -> bool:
    """Take the repair of event `seq` back; False if there is none. Call it in a transaction."""
    _drop_snapshot(db, seq)
    return db.execute("DELETE FROM repairs WHERE seq = ?", (seq,)).rowcount > 0


def of_job(repairs: Mapping[int, Repair], job_id: int) -> list[QuarantinedEvent]:
    """The events of one job that were set aside or replaced."""
    return [repair.event for repair in repairs.values() if repair.event.job_id == job_id]


def _drop_snapshot(db: sqlite3.Connection, seq: int) -> None:
    db.execute("DELETE FROM snapshot WHERE seq >= ?", (seq,))
