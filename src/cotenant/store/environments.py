"""Environments of jobs, stored once each under a digest of their content.

An environment is nine tenths of a submission. The tasks of an array share one, and so do most jobs of a user, so events
and snapshots hold the digest, and the table `environments` the content.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Mapping

DIGEST_BYTES = 20
"""With 160 bits it is infeasible to find a second environment for the digest of another user's job."""
MAX_CACHED = 1024
"""Environments that were read last, so that jobs with the same one share the object in memory, too."""


class MissingEnvironment(ValueError):
    """An environment that is absent or damaged; the message says which."""


def create(db: sqlite3.Connection) -> None:
    """The tables of environments, and of jobs that were pruned: theirs may be absent."""
    db.execute("CREATE TABLE environments (key TEXT PRIMARY KEY, body TEXT NOT NULL, crc32 INTEGER NOT NULL)")
    db.execute("CREATE TABLE pruned_jobs (job_id INTEGER PRIMARY KEY)")


class EnvironmentTable:
    """The environments in `db`. Calls need the lock of the journal, except `digest`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._stored = {key for (key,) in db.execute("SELECT key FROM environments")}
        self._last: tuple[Mapping[str, str], str, str] | None = None
        self.read = functools.lru_cache(maxsize=MAX_CACHED)(self._read)

    def digest(self, environment: Mapping[str, str]) -> tuple[str, str]:
        """(Key, JSON text) of an environment. Jobs with the same one that come together share the work."""
        last = self._last
        if last is not None and last[0] == environment:  # at once if it is the same object, as in an array
            return last[1], last[2]
        text = json.dumps(dict(environment), separators=(",", ":"))
        key = hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()
        self._last = (environment, key, text)
        return key, text

    def insert(self, texts: Mapping[str, str]) -> None:
        """Store environments by key, except those that are there. Call it in a transaction, and `committed` after it.

        Raises:
            sqlite3.Error: they cannot be written.
        """
        new = [(key, text, zlib.crc32(text.encode())) for key, text in texts.items() if key not in self._stored]
        if new:
            self._db.executemany("INSERT OR IGNORE INTO environments VALUES (?, ?, ?)", new)

    def committed(self, keys: Mapping[str, str]) -> None:
        """The transaction that inserted `keys` is on disk."""
        self._stored.update(keys)

    def _read(self, key: str) -> Mapping[str, str]:
        """The environment under `key`.

        Raises:
            MissingEnvironment: it is absent or damaged.
        """
        row = self._db.execute("SELECT body, crc32 FROM environments WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise MissingEnvironment(f"environment {key} is missing")
        if zlib.crc32(str(row[0]).encode()) != row[1]:
            raise MissingEnvironment(f"environment {key} is damaged: its checksum does not match")
        found: Mapping[str, str] = json.loads(row[0])
        return found

    def drop_unused(self) -> int:
        """Delete the environments that only pruned jobs have; returns how many. Call it in a transaction."""
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS used (key TEXT PRIMARY KEY)")
        self._db.execute("DELETE FROM temp.used")
        for table, path, condition in (
            ("events", "$.spec.env", "type IN ('JobSubmitted', 'JobUpdated') AND"),
            ("snapshot_jobs", "$.spec.env", ""),
        ):
            # A row of an earlier format holds the environment itself, which is no key and does no harm here.
            self._db.execute(
                f"INSERT OR IGNORE INTO temp.used SELECT json_extract(body, '{path}') FROM {table}"  # noqa: S608
                f" WHERE {condition} job_id NOT IN (SELECT job_id FROM pruned_jobs)"
                f" AND CASE WHEN typeof(body) = 'text' THEN json_type(body, '{path}') END = 'text'"
            )
        dropped = self._db.execute("DELETE FROM environments WHERE key NOT IN (SELECT key FROM temp.used)").rowcount
        self._db.execute("DELETE FROM temp.used")
        return int(dropped)

    def reload(self) -> None:
        """Forget what was stored and read: `drop_unused` was committed, or a transaction was rolled back."""
        self._stored = {key for (key,) in self._db.execute("SELECT key FROM environments")}
        self.read.cache_clear()
