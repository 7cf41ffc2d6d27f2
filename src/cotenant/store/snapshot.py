"""The state that the events amount to, kept beside them in the journal's file, so that a start reads the rest only.

It is a cache: the events stay, all of them, and give the state again where this is absent, damaged, or made by other
code than ours. So its form may change with every version, and no old one has to be understood. Environments are kept
once for all jobs that share one, for they are nine tenths of it. A job is written again only when it has changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotenant.core.codec import CodecError, decode, encode
from cotenant.core.job import Job
from cotenant.core.snapshot import ManagerSnapshot


class SnapshotError(Exception):
    """A snapshot that cannot be used; says why."""


def create(db: sqlite3.Connection) -> None:
    """The tables. `snapshot` has one row: up to which event, and how many jobs there must be."""
    db.execute(
        "CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, made_by TEXT NOT NULL,"
        " jobs INTEGER NOT NULL, body TEXT NOT NULL, crc32 INTEGER NOT NULL)"
    )
    db.execute("CREATE TABLE snapshot_jobs (job_id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc32 INTEGER NOT NULL)")
    db.execute("CREATE TABLE snapshot_environments (key TEXT PRIMARY KEY, body TEXT NOT NULL, crc32 INTEGER NOT NULL)")


def save(db: sqlite3.Connection, seq: int, folded: ManagerSnapshot, kept: Mapping[int, Job]) -> None:
    """Write down that events up to `seq` amount to `folded`; `kept` are the jobs that the tables already hold.

    To be called within a transaction.

    Raises:
        ValueError, CodecError: something cannot be written down.
        sqlite3.Error: nor kept.
    """
    if not kept:
        db.execute("DELETE FROM snapshot_jobs")
        db.execute("DELETE FROM snapshot_environments")
    environments: dict[str, str] = {}
    rows = []
    for job in folded.jobs:
        if kept.get(job.id) is not job:
            body = encode(job, lean=True)
            text = _text(body["spec"]["env"])
            key = hashlib.sha256(text.encode()).hexdigest()
            environments[key] = text
            body["spec"]["env"] = key
            rows.append((job.id, *_checked(_text(body))))
    db.executemany(
        "INSERT OR IGNORE INTO snapshot_environments VALUES (?, ?, ?)",
        [(key, *_checked(text)) for key, text in environments.items()],
    )
    db.executemany("INSERT OR REPLACE INTO snapshot_jobs VALUES (?, ?, ?)", rows)
    state = _text({"last_at_s": folded.last_at_s, "history": folded.history})
    db.execute(
        "INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?, ?)",
        (seq, made_by(), len(folded.jobs), *_checked(state)),
    )


def load(db: sqlite3.Connection) -> tuple[int, ManagerSnapshot] | None:
    """Up to which event there is a snapshot, and the state; None where there is none.

    Raises:
        SnapshotError: there is one that cannot be used.
        sqlite3.Error: it cannot be read.
    """
    row = db.execute("SELECT seq, made_by, jobs, body, crc32 FROM snapshot").fetchone()
    if row is None:
        return None
    seq, maker, count, body, crc32 = row
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    if maker != made_by():
        raise SnapshotError("it was made by another version")
    if seq > newest:
        raise SnapshotError(f"it tells of event {seq}, the newest is {newest}")
    try:
        state = _read(body, crc32)
        environments = {
            key: _read(text, crc) for key, text, crc in db.execute("SELECT key, body, crc32 FROM snapshot_environments")
        }
        jobs = [
            _job(_read(text, crc), environments)
            for text, crc in db.execute("SELECT body, crc32 FROM snapshot_jobs ORDER BY job_id")
        ]
        folded = ManagerSnapshot(last_at_s=state["last_at_s"], jobs=jobs, history=state["history"])
    except (CodecError, ValueError, TypeError, KeyError) as error:
        raise SnapshotError(f"it is damaged: {error}") from error
    if len(jobs) != count:
        raise SnapshotError(f"it has {len(jobs)} jobs, wanted {count}")
    return seq, folded


@functools.cache
def made_by(package: Path = Path(__file__).parents[1]) -> str:
    """Names the code that decides what events amount to, by what is in its files.

    A version would do for releases, but not for those who work on the code: nobody remembers to raise a number. Where
    there are no files to read (the package is in an archive), no snapshot is like another.
    """
    files = [file for room in ("core", "scheduling", "store") for file in sorted((package / room).rglob("*.py"))]
    if not files:
        return os.urandom(16).hex()
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _job(body: Any, environments: Mapping[str, Any]) -> Job:
    body["spec"]["env"] = environments[body["spec"]["env"]]
    return decode(Job, body)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _checked(text: str) -> tuple[str, int]:
    return text, zlib.crc32(text.encode())


def _read(text: Any, crc32: Any) -> Any:
    if zlib.crc32(str(text).encode()) != crc32:
        raise ValueError("a checksum does not match")
    return json.loads(text)
