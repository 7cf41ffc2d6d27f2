"""State snapshot in the journal's file, so that startup replays only newer events.

A snapshot is a cache: all events stay, and replaying them gives the state again where the snapshot is absent, damaged,
or was written by other code. So its format may change with every release, and none has to be migrated. Environments
are in the table that events use, see `environments`. A job is rewritten only when it has changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from cotenant.core.codec import CodecError, decode, encode
from cotenant.core.events import RepartitionStarted
from cotenant.core.job import Job
from cotenant.core.snapshot import ManagerSnapshot
from cotenant.store.environments import EnvironmentTable, MissingEnvironment


class SnapshotError(Exception):
    """A snapshot that cannot be used; the message says why."""


def create(db: sqlite3.Connection) -> None:
    """The tables. `snapshot` has one row: the last event that it includes, and how many jobs there must be."""
    db.execute(
        "CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, made_by TEXT NOT NULL,"
        " jobs INTEGER NOT NULL, body TEXT NOT NULL, crc32 INTEGER NOT NULL)"
    )
    db.execute("CREATE TABLE snapshot_jobs (job_id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc32 INTEGER NOT NULL)")
    db.execute("CREATE TABLE snapshot_environments (key TEXT PRIMARY KEY, body TEXT NOT NULL, crc32 INTEGER NOT NULL)")


def drop_environments(db: sqlite3.Connection) -> None:
    """Version 6: snapshots share the environments of the events; one of an earlier release is unusable anyway."""
    db.execute("DROP TABLE snapshot_environments")
    db.execute("DELETE FROM snapshot")
    db.execute("DELETE FROM snapshot_jobs")


def save(
    db: sqlite3.Connection,
    seq: int,
    state: ManagerSnapshot,
    saved: Mapping[int, Job],
    environments: EnvironmentTable,
) -> dict[str, str]:
    """Write `state`, which includes the events up to `seq`; `saved` are the jobs that the tables already hold.

    Call it within a transaction; returns the environments that it inserted.

    Raises:
        ValueError, CodecError: something cannot be encoded.
        sqlite3.Error: the tables cannot be written.
    """
    if not saved:
        db.execute("DELETE FROM snapshot_jobs")
    texts: dict[str, str] = {}
    keys: dict[int, str] = {}  # by identity of the environment: jobs hold it, so no other object gets that identity
    rows = []
    for job in state.jobs:
        if saved.get(job.id) is not job:
            job_body = encode(job, lean=True)
            key = keys.get(id(job.spec.env))
            if key is None:
                key, text = environments.digest(job.spec.env)
                keys[id(job.spec.env)] = key
                texts[key] = text
            job_body["spec"]["env"] = key
            rows.append((job.id, *_with_checksum(_text(job_body))))
    environments.insert(texts)
    db.executemany("INSERT OR REPLACE INTO snapshot_jobs VALUES (?, ?, ?)", rows)
    repartitions = [encode(started) for started in state.repartitions]
    body = _text({"last_at_s": state.last_at_s, "history": state.history, "repartitions": repartitions})
    db.execute(
        "INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?, ?)",
        (seq, made_by(), len(state.jobs), *_with_checksum(body)),
    )
    return texts


def load(db: sqlite3.Connection, environments: EnvironmentTable) -> tuple[int, ManagerSnapshot] | None:
    """(Last event that the snapshot includes, state); None where there is no snapshot.

    Raises:
        SnapshotError: there is one, but it cannot be used.
        sqlite3.Error: the tables cannot be read.
    """
    row = db.execute("SELECT seq, made_by, jobs, body, crc32 FROM snapshot").fetchone()
    if row is None:
        return None
    seq, maker, count, body, crc32 = row
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    if maker != made_by():
        raise SnapshotError("it was written by another version of the code")
    if seq > newest:
        raise SnapshotError(f"it includes event {seq}, the newest is {newest}")
    try:
        state = _read(body, crc32)
        pruned = {job_id for (job_id,) in db.execute("SELECT job_id FROM pruned_jobs")}
        rows = db.execute("SELECT body, crc32 FROM snapshot_jobs ORDER BY job_id").fetchall()
        jobs = [_job(_read(text, crc), environments, pruned) for text, crc in rows]
        repartitions: list[RepartitionStarted] = [decode(RepartitionStarted, value) for value in state["repartitions"]]
        found = ManagerSnapshot(
            last_at_s=state["last_at_s"], jobs=jobs, history=state["history"], repartitions=repartitions
        )
    except (CodecError, ValueError, TypeError, KeyError) as error:
        raise SnapshotError(f"it is damaged: {error}") from error
    if len(jobs) != count:
        raise SnapshotError(f"it has {len(jobs)} jobs, wanted {count}")
    return seq, found


@functools.cache
def made_by(package: Path = Path(__file__).parents[1]) -> str:
    """Identifies the code that turns events into state: a digest of its source files.

    A version number would do for releases, but developers would have to remember to raise it. Where there are no source
    files (the package is in an archive), a random name makes every snapshot unusable for the next process.
    """
    files = [file for room in ("core", "scheduling", "store") for file in sorted((package / room).rglob("*.py"))]
    if not files:
        return os.urandom(16).hex()
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _job(body: Any, environments: EnvironmentTable, pruned: AbstractSet[int]) -> Job:
    key, body["spec"]["env"] = body["spec"]["env"], {}
    job: Job = decode(Job, body)
    environment: Mapping[str, str] = {}
    try:
        environment = environments.read(key)
    except MissingEnvironment:
        if job.id not in pruned:
            raise
    object.__setattr__(job.spec, "env", environment)  # decoding would copy it, see `event_format.decode_event`
    return job


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _with_checksum(text: str) -> tuple[str, int]:
    return text, zlib.crc32(text.encode())


def _read(text: Any, crc32: Any) -> Any:
    if zlib.crc32(str(text).encode()) != crc32:
        raise ValueError("a checksum does not match")
    return json.loads(text)
