"""What a journal keeps on a disk that is full, fails, or is left in the middle of a write."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cotenant.core.errors import JournalError
from cotenant.store.reserve import HEADROOM_BYTES, RESERVED_BYTES, DiskReserve
from cotenant.store.sqlite import SqliteJournal
from journals import hold, reopened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "journal.db"


# Full disks.


def test_a_full_disk_refuses_the_batch_and_later_ones_succeed(path):
    journal = SqliteJournal(path)
    journal.append([hold(1)])
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(JournalError, match=rf"cannot append to {path}: database or disk is full") as caught:
        journal.append([hold(number, padding=1000) for number in range(2, 100)])
    assert caught.value.hint == "free some disk space and try again"
    assert list(journal.replay()) == [hold(1)]
    journal._db.execute("PRAGMA max_page_count = 100000")
    journal.append([hold(2)])
    journal.close()
    assert reopened(path) == [hold(1), hold(2)]


@pytest.mark.parametrize(("free_bytes", "is_set_aside"), [(9, False), (10, True)])
def test_space_is_set_aside_only_if_some_is_left(tmp_path, monkeypatch, free_bytes, is_set_aside):
    def allocate(descriptor, offset, size_bytes):
        if size_bytes > free_bytes * 2**20:
            raise OSError(errno.ENOSPC, "no room")
        os.truncate(descriptor, offset + size_bytes)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    file = tmp_path / "reserve"
    assert DiskReserve(file).allocate() == is_set_aside
    assert (file.stat().st_size if file.exists() else 0) == (RESERVED_BYTES if is_set_aside else 0)


def test_whether_it_is_writable_is_found_by_writing(path, monkeypatch):
    journal = SqliteJournal(path)
    log = path.with_name(f"{path.name}-wal")
    before = log.stat().st_size
    assert journal.is_writable()
    assert log.stat().st_size > before
    journal._db.execute("PRAGMA query_only = ON")
    assert not journal.is_writable()
    journal._db.execute("PRAGMA query_only = OFF")
    reserve = path.with_name(f"{path.name}.reserve")
    full = SimpleNamespace(f_bavail=HEADROOM_BYTES // 4096 - 1, f_frsize=4096)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: full)
        assert not journal.is_writable()
        full.f_bavail += 1
        assert journal.is_writable()
    assert reserve.stat().st_size == RESERVED_BYTES, "a question must not give it up"
    journal.append([hold(1)])
    journal.close()
    assert reopened(path) == [hold(1)]


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
    batch = [JobHeld(at_s=0.0, cause="x" * 3000, job_id=number + offset) for offset in range(3)]
    number += 3
    try:
        journal.append(batch)
        kept += [event.job_id for event in batch]
    except JournalError:
        refused += 1
assert [event.job_id for event in journal.replay()] == kept
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if sys.argv[2] == "goes on":
    journal.append([JobHeld(at_s=0.0, cause="", job_id=10**6)])
    kept.append(10**6)
print(json.dumps(kept), flush=True)
import os
from types import SimpleNamespace
os._exit(0)
"""


@pytest.mark.parametrize("then", ["goes on", "crashes"])
def test_a_file_size_limit_leaves_whole_batches_only(path, then):
    run = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(path), then], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    journaled = json.loads(run.stdout)
    assert len(journaled) > 3
    assert [event.job_id for event in reopened(path)] == journaled


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
        journaled = json.loads(run.stdout)
        refusals += len(journaled) < 4
        assert [event.job_id for event in reopened(path)] == journaled
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
    journal.append([JobHeld(at_s=0.0, cause="x" * 500, job_id=number + offset) for offset in range(size)])
    number += size
    print(number, flush=True)
"""


def test_sigkill_leaves_the_acknowledged_batches_or_one_more(path):
    rng = random.Random(7)
    for _ in range(12):
        appender = subprocess.Popen([sys.executable, "-c", APPENDER, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(rng.randrange(1, 60)):
            appender.stdout.readline()
        appender.send_signal(signal.SIGKILL)
        acknowledgments = [int(part) for part in appender.communicate()[0].split()]
        journaled = [event.job_id for event in reopened(path)]
        assert journaled == list(range(len(journaled))), "a prefix, nothing twice, nothing out of order"
        if acknowledgments:
            acknowledged = acknowledgments[-1]
            assert len(journaled) in (acknowledged, acknowledged + 1 + acknowledged % 7)


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
