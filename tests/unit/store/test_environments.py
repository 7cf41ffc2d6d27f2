"""Environments: once in the file for all jobs that share one, and gone when only pruned jobs had it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from builders import a_spec
from cotenant.core.errors import JournalError
from cotenant.core.events import JobSubmitted, JobUpdated
from cotenant.core.job import ArrayTask
from cotenant.store.sqlite import SqliteJournal
from journals import edit

LARGE = {"DATA": "x" * 100_000}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "journal.db"


def submitted(job_id, env):
    return JobSubmitted(at_s=1.0, cause="submit", job_id=job_id, spec=a_spec(env=env))


def keys(path):
    db = sqlite3.connect(path)
    found = [key for (key,) in db.execute("SELECT key FROM environments ORDER BY key")]
    db.close()
    return found


def test_an_array_has_one_environment_in_the_file_and_in_memory(path):
    spec = a_spec(env=LARGE)
    tasks = [
        JobSubmitted(
            at_s=1.0, cause="submit", job_id=i, spec=replace(spec, array=ArrayTask(array_id=1, index=i, limit=None))
        )
        for i in range(1, 301)
    ]
    journal = SqliteJournal(path)
    journal.append(tasks)
    assert journal.size_bytes() < 5 * len(LARGE["DATA"]), "300 copies would be 30 MB"
    journal.close()
    journal = SqliteJournal(path)
    found = list(journal.replay())
    assert found == tasks
    assert len({id(event.spec.env) for event in found}) == 1
    journal.close()


def test_equal_environments_of_different_requests_are_stored_once(path):
    journal = SqliteJournal(path)
    for job_id in range(1, 4):
        journal.append([submitted(job_id, {"HOME": "/ä\udc80", "N": str(job_id % 2)})])
    update = JobUpdated(at_s=2.0, cause="update", job_id=1, spec=a_spec(env={"HOME": "/ä\udc80", "N": "0"}))
    journal.append([update])
    assert journal.of_job(1)[-1] == update
    journal.close()
    assert len(keys(path)) == 2


def test_a_refused_append_leaves_no_environment_that_a_later_one_would_miss(path):
    journal = SqliteJournal(path)
    journal.append([submitted(1, {"A": "1"})])
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError, match="full"):
        journal.append([submitted(2, LARGE)])
    journal._db.execute("PRAGMA max_page_count = 100000")
    journal.append([submitted(2, LARGE)])
    journal.close()
    journal = SqliteJournal(path)
    assert [event.spec.env for event in journal.replay()] == [{"A": "1"}, LARGE]
    journal.close()


def test_pruned_jobs_lose_the_environments_that_no_other_job_has(path):
    journal = SqliteJournal(path)
    journal.append([submitted(1, LARGE), submitted(2, {"SHARED": "1"}), submitted(3, {"SHARED": "1"})])
    before = journal.size_bytes()
    journal.prune([1, 2])
    assert before - journal.size_bytes() > 0.9 * len(LARGE["DATA"])
    assert journal.pruned_jobs() == {1, 2}
    assert [event.spec.env for event in journal.replay()] == [{}, {"SHARED": "1"}, {"SHARED": "1"}]
    journal.append([submitted(4, LARGE)])
    journal.close()
    journal = SqliteJournal(path)
    assert journal.pruned_jobs() == {1, 2}
    assert [event.spec.env for event in journal.replay()] == [LARGE, {"SHARED": "1"}, {"SHARED": "1"}, LARGE]
    journal.close()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("DELETE FROM environments", "is missing"),
        ("UPDATE environments SET body = replace(body, 'HOME', 'AWAY')", "checksum"),
    ],
)
def test_a_lost_or_damaged_environment_is_named_and_never_replaced_by_an_empty_one(path, damage, says):
    journal = SqliteJournal(path)
    journal.append([submitted(1, {"HOME": "/x"})])
    journal.close()
    edit(path, damage)
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match=f"event 1 is damaged: environment .*{says}"):
        list(journal.replay())
    journal.close()
