from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from builders import a_spec, an_estimate
from cotenant.core.errors import DaemonRunning, JournalError
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobSubmitted,
    JobUpdated,
)
from cotenant.core.job import ArrayTask, AttemptExit, OomEvidence, ProcessId, Spell, Usage
from cotenant.core.placement import Placement
from cotenant.store.memory import MemoryJournal
from cotenant.store.sqlite import MIGRATIONS, SqliteJournal, migrate

GOLDEN = Path(__file__).parents[2] / "golden" / "journal"

PLACEMENT = Placement(job_id=1, gpu_uuids=("GPU-0", "GPU-1"), sharing="time-sliced", promised_bytes=2**34)
ONE_OF_EACH = (
    JobSubmitted(at_s=1.5, cause="api", job_id=1, spec=a_spec(env={"A": "ä\udc80"}, time_limit_s=60.0, after=(7, 8))),
    EstimateReady(at_s=2.0, cause="traced", job_id=1, estimate=an_estimate(8, breakdown_bytes={"weights": 5})),
    EstimateReady(at_s=2.5, cause="traced", job_id=1, estimate=None, error="no such script"),
    AttemptPlaced(at_s=3.0, cause="policy", job_id=1, attempt=1, placement=PLACEMENT),
    AttemptStarted(
        at_s=4.0, cause="engine", job_id=1, attempt=1, process=ProcessId(pid=9, start_ticks=2**40, boot_id="b")
    ),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=1,
        attempt=1,
        exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True, tried_bytes=2**33)),
        peak_observed_bytes={"GPU-0": 123},
    ),
    JobHeld(at_s=6.0, cause="api", job_id=1),
    JobReleased(at_s=7.0, cause="api", job_id=1),
    JobCancelled(at_s=8.0, cause="api", job_id=1),
)

NEW_IN_SCHEMA_2 = (
    JobSubmitted(
        at_s=1.0,
        cause="submit",
        job_id=2,
        spec=a_spec(
            after_any=(1,),
            after_failed=(1,),
            singleton=True,
            begin_at_s=5.0,
            hold=True,
            array=ArrayTask(array_id=2, index=7, limit=3),
            requeue=True,
            notify="mail ann",
        ),
    ),
    JobUpdated(at_s=2.0, cause="update by ann", job_id=2, spec=a_spec(priority=3)),
    JobRequeued(at_s=3.0, cause="requeue by root", job_id=2),
)


NEW_IN_SCHEMA_4 = (
    JobSubmitted(at_s=1.0, cause="submit", job_id=3, spec=a_spec(progress="tqdm")),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=3,
        attempt=1,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
        peak_observed_bytes={"GPU-0": 5},
        spells=(Spell(mates=(2,), seconds=60.0, smact=0.5, steps_hz=4.0, slowdown=1.5),),
        usage=Usage(gpu_s=60.0, part_s=30.0, byte_s=6e10, sm_s=15.0, sm_known_s=60.0, energy_j=9e3, metered_s=60.0),
    ),
)


def hold(number, padding=0):
    return JobHeld(at_s=float(number), cause="x" * padding, job_id=number)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "journal.db"


def reopened(path):
    journal = SqliteJournal(path)
    try:
        return list(journal.replay())
    finally:
        journal.close()


def edit(path, *statements):
    """Damage the file as no cotenant would."""
    db = sqlite3.connect(path)
    for each in ("DROP TRIGGER no_update", "DROP TRIGGER no_delete", *statements):
        db.execute(each)
    db.commit()
    db.close()


def written(path, *events):
    journal = SqliteJournal(path)
    journal.append(events)
    journal.close()


@pytest.mark.parametrize("make", [SqliteJournal, lambda _: MemoryJournal()], ids=["sqlite", "memory"])
def test_gives_back_what_was_appended_in_order(make, path):
    journal = make(path)
    assert list(journal.replay()) == []
    journal.append(ONE_OF_EACH[:4])
    journal.append(())
    journal.append(ONE_OF_EACH[4:])
    assert tuple(journal.replay()) == ONE_OF_EACH
    journal.close()


def test_keeps_everything_over_a_close(path):
    written(path, *ONE_OF_EACH)
    written(path, hold(2))
    assert reopened(path) == [*ONE_OF_EACH, hold(2)]


def test_replays_more_events_than_it_reads_at_once(path):
    events = [hold(each) for each in range(2500)]
    written(path, *events)
    assert reopened(path) == events


def test_only_the_owner_can_read_it(path):
    journal = SqliteJournal(path)
    journal.append([hold(1)])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    journal.close()
    assert len(modes) == 4, "database, log, index of the log, lock"
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(("option", "level"), [({}, 2), ({"synchronous": "NORMAL"}, 1)])
def test_is_durable_by_default(path, option, level):
    journal = SqliteJournal(path, **option)
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (level,)
    journal.close()


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET at_s = 0"])
def test_is_append_only(path, statement):
    written(path, hold(1))
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(statement)
    db.close()


def test_a_second_writer_is_told_who_holds_it(path):
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


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open"):
        SqliteJournal(tmp_path / "file" / "journal.db")


# Files that are not ours, newer, or damaged.


def test_refuses_a_newer_schema(path):
    written(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    newest = len(MIGRATIONS)
    with pytest.raises(JournalError, match=rf"{path} has schema 99, this version knows up to {newest}") as caught:
        SqliteJournal(path)
    assert caught.value.hint == "upgrade cotenant"


def test_refuses_a_database_of_somebody_else(path):
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
def test_names_file_and_event_that_are_damaged(path, damage, message):
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
        ('{"type":"JobHeld"', "cannot be understood"),
    ],
)
def test_names_an_event_it_cannot_understand(path, body, message):
    written(path)
    db = sqlite3.connect(path)
    row = (1.0, "JobHeld", 1, body, zlib.crc32(body.encode()))
    db.execute("INSERT INTO events (at_s, type, job_id, body, crc32) VALUES (?, ?, ?, ?, ?)", row)
    db.commit()
    db.close()
    with pytest.raises(JournalError, match=f"event 1 cannot be understood: .*{message}|{message}"):
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


# Migrations.


def test_migrations_run_once_each_and_all_or_none(tmp_path):
    def second(db):
        db.execute("ALTER TABLE events ADD COLUMN note TEXT")

    def broken(db):
        db.execute("CREATE TABLE half_done (a)")
        raise RuntimeError("broken")

    db = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    migrate(db, MIGRATIONS)
    with pytest.raises(RuntimeError):
        migrate(db, (*MIGRATIONS, second, broken))
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    columns = [each[1] for each in db.execute("PRAGMA table_info(events)")]
    assert "note" not in columns
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half_done'").fetchone() == (0,)
    migrate(db, (*MIGRATIONS, second))
    migrate(db, (*MIGRATIONS, second))
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    db.close()


def test_a_journal_of_schema_1_can_be_read(tmp_path):
    assert read_golden(tmp_path, 1) == ONE_OF_EACH


def test_a_journal_of_schema_2_can_be_read(tmp_path):
    assert read_golden(tmp_path, 2) == (*ONE_OF_EACH, *NEW_IN_SCHEMA_2)


def test_a_journal_of_schema_3_can_be_read_and_its_snapshot_is_left_to_those_who_made_it(tmp_path):
    events = read_golden(tmp_path, 3)
    assert events == (*ONE_OF_EACH, *NEW_IN_SCHEMA_2)
    journal = SqliteJournal(tmp_path / "journal.db")
    since, later = journal.resume()
    assert since is None
    assert tuple(later) == events
    journal.close()


def test_a_journal_of_schema_4_can_be_read(tmp_path):
    assert read_golden(tmp_path, 4) == (*ONE_OF_EACH, *NEW_IN_SCHEMA_2, *NEW_IN_SCHEMA_4)


def read_golden(folder, schema):
    path = folder / "journal.db"
    db = sqlite3.connect(path)
    db.executescript((GOLDEN / f"schema_{schema}.sql").read_text())
    db.close()
    expected = json.loads((GOLDEN / f"schema_{schema}.json").read_text())
    events = reopened(path)
    assert [[each.at_s, type(each).__name__, each.job_id] for each in events] == expected
    return tuple(events)


def test_events_of_one_job(path):
    written(path, *ONE_OF_EACH, *NEW_IN_SCHEMA_2)
    journal = SqliteJournal(path)
    assert tuple(journal.of_job(2)) == NEW_IN_SCHEMA_2
    assert journal.of_job(99) == []
    journal.close()
    edit(path, "UPDATE events SET body = replace(body, 'ann', 'eve') WHERE type = 'JobUpdated'")
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="is damaged"):
        journal.of_job(2)
    journal.close()


# Full disks.


def test_a_full_database_keeps_nothing_of_the_batch_and_goes_on_when_there_is_room(path):
    journal = SqliteJournal(path)
    journal.append([hold(1)])
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(JournalError, match=rf"cannot append to {path}: database or disk is full") as caught:
        journal.append([hold(each, padding=1000) for each in range(2, 100)])
    assert caught.value.hint == "free some disk space and try again"
    assert list(journal.replay()) == [hold(1)]
    journal._db.execute("PRAGMA max_page_count = 100000")
    journal.append([hold(2)])
    journal.close()
    assert reopened(path) == [hold(1), hold(2)]


FILE_LIMIT = """
import json, resource, signal, sys
from cotenant.core.errors import JournalError
from cotenant.core.events import JobHeld
from cotenant.store.sqlite import SqliteJournal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = SqliteJournal(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
kept, refused, number = [], 0, 0
while refused < 5:
    batch = [JobHeld(at_s=0.0, cause="x" * 3000, job_id=number + each) for each in range(3)]
    number += 3
    try:
        journal.append(batch)
        kept += [each.job_id for each in batch]
    except JournalError:
        refused += 1
assert [each.job_id for each in journal.replay()] == kept
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if sys.argv[2] == "goes on":
    journal.append([JobHeld(at_s=0.0, cause="", job_id=10**6)])
    kept.append(10**6)
print(json.dumps(kept), flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize("then", ["goes on", "crashes"])
def test_a_file_that_may_not_grow_keeps_whole_batches_only(path, then):
    run = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(path), then], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    kept = json.loads(run.stdout)
    assert len(kept) > 3
    assert [each.job_id for each in reopened(path)] == kept


ONE_BY_ONE = """
import json, os, sys
from cotenant.core.errors import JournalError
from cotenant.core.events import JobHeld
from cotenant.store.sqlite import SqliteJournal

kept = []
try:
    journal = SqliteJournal(sys.argv[1])
    for number in range(4):
        journal.append([JobHeld(at_s=0.0, cause="", job_id=number)])
        kept.append(number)
except JournalError:
    pass
print(json.dumps(kept), flush=True)
os._exit(0)
"""


def test_whichever_sync_fails_a_refused_event_does_not_come_back_after_a_crash(tmp_path):
    """A commit whose sync failed is complete in SQLite's log: unless removed, the next open would bring it back."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed, which makes a sync fail")
    refusals = 0
    for when in range(1, 13):
        path = tmp_path / str(when) / "journal.db"
        inject = [strace, "-f", "-o", os.devnull, "-e", f"inject=fdatasync,fsync:error=EIO:when={when}"]
        run = subprocess.run(
            [*inject, sys.executable, "-c", ONE_BY_ONE, str(path)], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            pytest.skip(f"strace may not trace here: {run.stderr.strip()[:80]}")
        kept = json.loads(run.stdout)
        refusals += len(kept) < 4
        assert [each.job_id for each in reopened(path)] == kept
    assert refusals >= 3, "no sync failed: this proves nothing"


# kill -9.

APPENDER = """
import sys
from cotenant.core.events import JobHeld
from cotenant.store.sqlite import SqliteJournal

journal = SqliteJournal(sys.argv[1])
number = sum(1 for _ in journal.replay())
while True:
    size = 1 + number % 7
    journal.append([JobHeld(at_s=0.0, cause="x" * 500, job_id=number + each) for each in range(size)])
    number += size
    print(number, flush=True)
"""


def test_kill_9_leaves_exactly_what_was_acknowledged_or_one_whole_batch_more(path):
    rng = random.Random(7)
    for _ in range(12):
        appender = subprocess.Popen([sys.executable, "-c", APPENDER, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(rng.randrange(1, 60)):
            appender.stdout.readline()
        appender.send_signal(signal.SIGKILL)
        told = [int(each) for each in appender.communicate()[0].split()]
        kept = [each.job_id for each in reopened(path)]
        assert kept == list(range(len(kept))), "a prefix, nothing twice, nothing out of order"
        if told:
            acknowledged = told[-1]
            assert len(kept) in (acknowledged, acknowledged + 1 + acknowledged % 7)


def test_a_disk_error_is_a_journal_error(path, tmp_path):
    read_only = tmp_path / "locked"
    read_only.mkdir()
    if os.geteuid() == 0:
        (read_only / "journal.db").mkdir()
    else:
        read_only.chmod(0o500)
    with pytest.raises(JournalError) as caught:
        SqliteJournal(read_only / "journal.db")
    assert os.strerror(errno.EISDIR) in str(caught.value) or os.strerror(errno.EACCES) in str(caught.value)


def test_what_need_not_be_on_disk_at_once_is_brought_there_by_the_next_that_must(path, monkeypatch):
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


def test_who_wants_no_syncs_gets_none(path, monkeypatch):
    with closing(SqliteJournal(path, synchronous="NORMAL")) as journal:
        journal.append([hold(1)])
        assert journal._db.execute("PRAGMA synchronous").fetchone() == (1,)
        monkeypatch.setattr(os, "fdatasync", lambda _: pytest.fail("no sync was wanted"))
        journal.sync()
