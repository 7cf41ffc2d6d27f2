"""Events of pruned jobs are compressed in place, and the file gets smaller; nothing that is read changes."""

from __future__ import annotations

import json
import sqlite3

import pytest

from builders import a_spec
from cotenant.core.errors import JournalError
from cotenant.core.events import AttemptExited, JobSubmitted
from cotenant.core.job import AttemptExit
from cotenant.daemon.config.schema import Config
from cotenant.daemon.repair import JournalRepair
from cotenant.store import compaction
from cotenant.store.sqlite import SqliteJournal

JOBS = 300


@pytest.fixture
def path(tmp_path):
    """A journal of `JOBS` jobs, two events each."""
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    for job_id in range(1, JOBS + 1):
        spec = a_spec(env={"JOB": str(job_id)}, command=("python", "train.py", "--seed", str(job_id) * 100))
        end = AttemptExit(exit_code=1, signal=None, reason="exited", detail=f"ValueError in job {job_id}: " + "x" * 500)
        journal.append(
            [
                JobSubmitted(at_s=float(job_id), cause="api", job_id=job_id, spec=spec),
                AttemptExited(
                    at_s=job_id + 0.5, cause="engine", job_id=job_id, attempt=1, exit=end, peak_observed_bytes={}
                ),
            ],
            durable=False,
        )
    journal.close()
    return path


def lean(events):
    """The events without environments, which pruning drops."""
    return [
        (type(event), event.at_s, event.job_id, getattr(event, "exit", None) or event.spec.command) for event in events
    ]


def test_pruning_shrinks_the_file_and_every_event_can_be_read(path):
    journal = SqliteJournal(path)
    before, of_job = lean(journal.replay()), lean(journal.of_job(7))
    journal.close()
    size_bytes = path.stat().st_size
    journal = SqliteJournal(path)
    journal.prune(range(1, JOBS))
    assert path.stat().st_size < 0.5 * size_bytes, "while it is open"
    assert lean(journal.replay()) == before
    assert lean(journal.of_job(7)) == of_job
    journal.close()
    assert path.stat().st_size < 0.5 * size_bytes
    journal = SqliteJournal(path)
    assert lean(journal.replay()) == before
    assert journal.of_job(JOBS)[0].spec.env == {"JOB": str(JOBS)}
    journal.prune([JOBS])
    assert lean(journal.replay()) == before
    journal.close()


def test_a_crash_while_pruning_loses_nothing_and_the_next_call_does_the_rest(path, monkeypatch):
    journal = SqliteJournal(path)
    before = lean(journal.replay())
    monkeypatch.setattr(compaction, "PRUNED_AT_ONCE", 50)
    compress, calls = compaction.compress, []

    def third_fails(*args):
        calls.append(args)
        if len(calls) == 3:
            compress(*args)
            raise sqlite3.OperationalError("database or disk is full")
        return compress(*args)

    monkeypatch.setattr(compaction, "compress", third_fails)
    with pytest.raises(JournalError, match="full"):
        journal.prune(range(1, JOBS + 1))
    assert len(journal.pruned_jobs()) == 100
    assert lean(journal.replay()) == before
    journal.close()
    monkeypatch.setattr(compaction, "compress", compress)
    journal = SqliteJournal(path)
    assert lean(journal.replay()) == before
    journal.prune(range(1, JOBS + 1))
    assert len(journal.pruned_jobs()) == JOBS
    assert lean(journal.replay()) == before
    assert journal._db.execute("SELECT count(*) FROM environments").fetchone() == (0,)
    journal.close()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("UPDATE events SET at_s = 0 WHERE seq = 1", id="an update of a pruned job"),
        pytest.param("UPDATE events SET at_s = 0 WHERE seq = 3", id="an update"),
        pytest.param("DELETE FROM events WHERE seq = 1", id="deletion of a compressed event"),
        pytest.param("DELETE FROM events WHERE seq = 3", id="deletion"),
    ],
)
def test_the_journal_is_append_only_but_for_compression(path, change):
    journal = SqliteJournal(path)
    journal.prune([1])
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        journal._db.execute(change)
    journal.close()


def test_a_damaged_compressed_event_is_named(path):
    journal = SqliteJournal(path)
    journal.prune([1])
    journal._db.execute("DROP TRIGGER no_update")
    journal._db.execute("UPDATE events SET body = substr(body, 5) WHERE seq = 2")
    with pytest.raises(JournalError, match="event 2 is damaged: its body cannot be decompressed"):
        list(journal.replay())
    journal.close()


def test_a_file_that_cannot_shrink_is_written_anew_once(path, tmp_path):
    old = tmp_path / "old.db"
    with sqlite3.connect(path) as source, sqlite3.connect(old) as target:
        for line in source.iterdump():
            target.execute(line)
        target.execute(f"PRAGMA application_id = {source.execute('PRAGMA application_id').fetchone()[0]}")
        target.execute(f"PRAGMA user_version = {source.execute('PRAGMA user_version').fetchone()[0]}")
    source.close()
    target.close()
    journal = SqliteJournal(old)
    assert compaction.can_shrink(journal._db)
    events = list(journal.replay())
    assert len(events) == 2 * JOBS
    journal.close()


def test_repair_shows_a_compressed_event_as_text(path):
    journal = SqliteJournal(path)
    journal.prune([1])
    journal.close()
    repair = JournalRepair(path, Config())
    assert [json.loads(event.body)["type"] for event in repair.of_job(1)] == ["JobSubmitted", "AttemptExited"]
    repair.close()
