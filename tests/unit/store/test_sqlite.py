"""The journal: gives back what it was given, to one writer at a time, and says what is wrong with a file."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from cotenant.core.errors import DaemonRunning, JournalError
from cotenant.core.events import JobHeld
from cotenant.store.memory import MemoryJournal
from cotenant.store.schema import MIGRATIONS
from cotenant.store.sqlite import SqliteJournal
from journals import NEW_IN_SCHEMA_2, ONE_OF_EVERY_EVENT, edit, hold, reopened, written


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "journal.db"


@pytest.mark.parametrize("make", [SqliteJournal, lambda _: MemoryJournal()], ids=["sqlite", "memory"])
def test_replay_gives_the_appended_events_in_order(make, path):
    journal = make(path)
    assert list(journal.replay()) == []
    journal.append(ONE_OF_EVERY_EVENT[:4])
    journal.append(())
    journal.append(ONE_OF_EVERY_EVENT[4:])
    assert tuple(journal.replay()) == ONE_OF_EVERY_EVENT
    journal.close()


def test_events_survive_a_close(path):
    written(path, *ONE_OF_EVERY_EVENT)
    written(path, hold(2))
    assert reopened(path) == [*ONE_OF_EVERY_EVENT, hold(2)]


def test_replays_more_events_than_it_reads_at_once(path):
    events = [hold(number) for number in range(2500)]
    written(path, *events)
    assert reopened(path) == events


def test_only_the_owner_can_read_it(path):
    journal = SqliteJournal(path)
    journal.append([hold(1)])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    journal.close()
    assert len(modes) == 5, "database, log, index of the log, lock, reserve"
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(("option", "level"), [({}, 2), ({"synchronous": "NORMAL"}, 1)])
def test_a_journal_is_durable_by_default(path, option, level):
    journal = SqliteJournal(path, **option)
    journal.append([hold(1)])
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (level,)
    journal.close()


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET at_s = 0"])
def test_a_journal_is_append_only(path, statement):
    written(path, hold(1))
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(statement)
    db.close()


def test_a_second_writer_gets_the_pid_of_the_first(path):
    first = SqliteJournal(path)
    with pytest.raises(DaemonRunning, match=rf"another daemon \(pid {os.getpid()}\) holds {path}") as caught:
        SqliteJournal(path)
    assert caught.value.hint == "stop it, or choose another state folder"
    first.append([hold(1)])
    first.close()
    first.close()
    assert reopened(path) == [hold(1)]


def test_the_lock_of_a_killed_process_is_free(path):
    code = "import sys, time; from cotenant.store.sqlite import SqliteJournal\n"
    code += "journal = SqliteJournal(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DaemonRunning, match=f"pid {holder.pid}"):
        SqliteJournal(path)
    holder.kill()
    holder.communicate()
    assert reopened(path) == []


def test_a_failed_open_leaves_no_lock(path):
    path.parent.mkdir()
    path.write_bytes(b"no database" * 100)
    for _ in range(2):
        with pytest.raises(JournalError, match="file is not a database"):
            SqliteJournal(path)
    path.unlink()
    assert reopened(path) == []


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open"):
        SqliteJournal(tmp_path / "file" / "journal.db")


# Files that are not ours, newer, or damaged.


def test_a_newer_schema_is_refused(path):
    written(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    wanted = f"{path} has schema 99, this version of cotenant knows schemas up to {len(MIGRATIONS)}"
    with pytest.raises(JournalError, match=re.escape(wanted)) as caught:
        SqliteJournal(path)
    assert caught.value.hint == "upgrade cotenant"


def test_a_database_of_another_program_is_refused(path):
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.commit()
    db.close()
    with pytest.raises(JournalError, match="is an SQLite file, but no journal"):
        SqliteJournal(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param("DELETE FROM events WHERE seq = 2", "event 2 is missing, the next is 3", id="missing row"),
        pytest.param(
            "UPDATE events SET body = replace(body, '2.0', '9.0') WHERE seq = 2",
            "event 2 is damaged: its checksum",
            id="changed body",
        ),
        pytest.param(
            "UPDATE events SET at_s = 9 WHERE seq = 2", "event 2 is damaged: its columns", id="changed column"
        ),
        pytest.param("UPDATE events SET job_id = 9 WHERE seq = 2", "event 2 is damaged: its columns", id="other job"),
        pytest.param("UPDATE events SET body = x'ff00' WHERE seq = 2", "event 2 is damaged", id="no text"),
    ],
)
def test_a_damaged_event_is_named_with_its_file(path, damage, message):
    written(path, hold(1), hold(2), hold(3))
    edit(path, damage)
    with pytest.raises(JournalError) as caught:
        reopened(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "backup" in caught.value.hint


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"type":"JobFlew","at_s":1.0,"cause":"","job_id":1}', "wanted one of: JobSubmitted"),
        ('{"type":"JobHeld","at_s":1.0,"cause":"","job_id":"one"}', "wanted int"),
        ('{"type":"JobHeld"', "cannot be decoded"),
    ],
)
def test_an_undecodable_event_is_named(path, body, message):
    written(path)
    db = sqlite3.connect(path)
    row = (1.0, "JobHeld", 1, body, zlib.crc32(body.encode()))
    db.execute("INSERT INTO events (at_s, type, job_id, body, crc32) VALUES (?, ?, ?, ?, ?)", row)
    db.commit()
    db.close()
    with pytest.raises(JournalError, match=f"event 1 cannot be decoded: .*{message}|{message}"):
        reopened(path)


@pytest.mark.parametrize(
    "event", [JobHeld(at_s=float("nan"), cause="", job_id=1), JobHeld(at_s=1.0, cause="", job_id=2**70)]
)
def test_an_event_that_cannot_be_written_leaves_nothing_behind(path, event):
    journal = SqliteJournal(path)
    with pytest.raises(JournalError):
        journal.append([hold(1), event])
    journal.append([hold(2)])
    assert list(journal.replay()) == [hold(2)]
    journal.close()


def test_events_of_one_job(path):
    written(path, *ONE_OF_EVERY_EVENT, *NEW_IN_SCHEMA_2)
    journal = SqliteJournal(path)
    assert tuple(journal.of_job(2)) == NEW_IN_SCHEMA_2
    assert journal.of_job(99) == []
    journal.close()
    edit(path, "UPDATE events SET body = replace(body, 'ann', 'eve') WHERE type = 'JobUpdated'")
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="is damaged"):
        journal.of_job(2)
    journal.close()


def test_a_durable_append_syncs_the_earlier_ones(path, monkeypatch):
    """SQLite's own syncs do not go through `os`: the level that it commits at is what can be seen."""
    levels = []
    with closing(SqliteJournal(path)) as journal:
        for durable in (False, True, False):
            journal.append([hold(1)], durable=durable)
            levels.append(journal._db.execute("PRAGMA synchronous").fetchone()[0])
        synced = []
        monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
        journal.sync()
    assert levels == [1, 2, 1]
    assert synced == [f"{path.name}-wal"]


def test_synchronous_normal_never_syncs(path, monkeypatch):
    with closing(SqliteJournal(path, synchronous="NORMAL")) as journal:
        journal.append([hold(1)])
        assert journal._db.execute("PRAGMA synchronous").fetchone() == (1,)
        monkeypatch.setattr(os, "fdatasync", lambda _: pytest.fail("no sync was wanted"))
        journal.sync()
