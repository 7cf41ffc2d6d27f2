"""Compressed events of pruned jobs, and a file that gets smaller.

A row stays: its number, columns and checksum, and all that `history`, `events` and a replay read. Only its body becomes
a BLOB, deflated with a dictionary of such bodies (zlib.h, `deflateSetDictionary`), since a body alone is too short to
compress. The dictionary is in the file, so that each file can be read without another.

Free pages go back to the disk by `PRAGMA incremental_vacuum`, a few at a time while the daemon serves. `VACUUM` would
hold the writer for the whole file and need its size again; it runs once, when a file of an earlier release is opened,
because a file without pointer maps cannot shrink otherwise (sqlite.org/pragma.html#pragma_auto_vacuum).
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

MAX_DICTIONARY_BYTES = 16 * 1024
"""Deflate sees 32 KiB back; half of that is bodies of other jobs."""
PRUNED_AT_ONCE = 100
"""Jobs in one transaction, so that events of others can be written between."""
VACUUM_PAGES = 500
"""Freed in one transaction: 2 MiB, some 10 ms."""

_BUSY_PAGES = "SELECT (SELECT * FROM pragma_page_count) - (SELECT * FROM pragma_freelist_count)"
_TEXTS_OF_JOB = "SELECT seq, at_s, type, job_id, body, crc32 FROM events WHERE job_id = ? AND typeof(body) = 'text'"


def create(db: sqlite3.Connection) -> None:
    """The table of the dictionary, and leave to put a compressed event of a pruned job in the place of the event."""
    db.execute("CREATE TABLE dictionary (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL)")
    db.execute("DROP TRIGGER no_delete")
    db.execute(
        "CREATE TRIGGER no_delete BEFORE DELETE ON events"
        " WHEN typeof(OLD.body) != 'text' OR OLD.job_id NOT IN (SELECT job_id FROM pruned_jobs)"
        " BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
    )


def load_dictionary(db: sqlite3.Connection) -> bytes:
    """The dictionary of the file; b"" where nothing is compressed.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'dictionary'").fetchone() is None:
        return b""  # an earlier schema, opened to read only
    row = db.execute("SELECT body FROM dictionary").fetchone()
    return b"" if row is None else bytes(row[0])


def body_text(body: str | bytes, dictionary: bytes) -> str:
    """The JSON text of a row's body.

    Raises:
        ValueError: it is damaged.
    """
    if isinstance(body, str):
        return body
    try:
        return zlib.decompressobj(zdict=dictionary).decompress(body).decode()
    except (zlib.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"its body cannot be decompressed: {error}") from error


def compress(db: sqlite3.Connection, job_ids: Sequence[int], dictionary: bytes) -> bytes:
    """Compress the events of these pruned jobs; returns the dictionary, made of them if the file has none.

    Call it in a transaction.
    """
    rows = [row for job_id in job_ids for row in db.execute(_TEXTS_OF_JOB, (job_id,))]
    if not dictionary and rows:
        # The end of a dictionary is the cheapest to refer to; its beginning may be cut.
        dictionary = "".join(row[4] for row in rows).encode()[-MAX_DICTIONARY_BYTES:]
        db.execute("INSERT INTO dictionary VALUES (1, ?)", (dictionary,))
    smaller = []
    for *columns, body, crc32 in rows:
        deflate = zlib.compressobj(zdict=dictionary)
        compressed = deflate.compress(body.encode()) + deflate.flush()
        if len(compressed) < len(body):
            smaller.append((*columns, compressed, crc32))
    # An UPDATE would leave each page as empty as it gets: of SQLite's statements only DELETE merges pages
    # (SQLite 3.34 to 3.50, src/btree.c: `sqlite3BtreeInsert` balances overfull pages only, `sqlite3BtreeDelete` all).
    db.executemany("DELETE FROM events WHERE seq = ?", [row[:1] for row in smaller])
    db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", sorted(smaller))
    return dictionary


def _free_pages(db: sqlite3.Connection, mutex: AbstractContextManager[object]) -> bool:
    """Give some free pages at the end of the file back to the disk, under `mutex`; False if there are none."""
    with mutex:
        (before,) = db.execute("PRAGMA freelist_count").fetchone()
        db.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
        (after,) = db.execute("PRAGMA freelist_count").fetchone()
        if after < before:
            return True
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the file itself gets smaller only now
        return False


def shrink(db: sqlite3.Connection, mutex: AbstractContextManager[object]) -> None:
    """Give all free pages back, if the disk has the room for the log; they are reused otherwise."""
    with suppress(sqlite3.Error):
        while _free_pages(db, mutex):
            pass


def can_shrink(db: sqlite3.Connection) -> bool:
    """Whether the file has the pointer maps that `shrink` needs."""
    return bool(db.execute("PRAGMA auto_vacuum").fetchone()[0])


def size_bytes(db: sqlite3.Connection) -> int:
    """The file without its free pages, and with what the write-ahead log adds."""
    (pages,) = db.execute(_BUSY_PAGES).fetchone()
    (page_size,) = db.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(page_size)
