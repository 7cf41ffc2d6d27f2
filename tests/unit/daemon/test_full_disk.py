"""A disk without room for the folders of attempts, or for the space that is set aside: jobs wait, none fails."""

from __future__ import annotations

import pytest

from builders import a_spec
from cotenant.core.errors import JournalError
from cotenant.core.job import Done, Queued
from cotenant.daemon import journal_writer
from cotenant.daemon.messages import JobChange
from loops import TIMEOUT_S, Bench


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(journal_writer, "RESERVE_RETRY_S", 0.0)
    bench = Bench()
    yield bench
    bench.loop.close()


def attempts(bench, job_id):
    return bench.loop.query(lambda manager: manager.jobs[job_id].attempts).result(TIMEOUT_S)


def test_a_launch_without_room_launches_no_other_job_until_there_is_room(bench):
    bench.start()
    bench.submit(*(a_spec(declared_bytes=2**30, exclusive=True, name=f"{i}") for i in range(5)))
    bench.disk.has_room = False
    bench.sample()
    bench.until(lambda: bench.loop.journal_error is not None)
    for _ in range(5):
        bench.sample()
        bench.turn()
    assert [isinstance(bench.state(job_id), Queued) for job_id in range(1, 6)] == [True] * 5
    (only,) = attempts(bench, 1)
    assert (only.exit.reason, only.exit.detail) == ("never-ran", "no room for a folder")
    assert [attempts(bench, job_id) for job_id in range(2, 6)] == [()] * 4
    assert bench.loop.journal_error.message == "the disk of the journal is full: no room for a folder"
    bench.disk.has_room = True
    bench.until(lambda: bench.sample() or bench.engine.launched)
    assert bench.engine.launched[0] == (1, 2, {"SIM": "1"})
    assert bench.loop.journal_error is None


def test_a_start_without_room_takes_cancellations_only(bench):
    bench.disk.has_room = False
    other = Bench(bench.disk).start()
    with pytest.raises(JournalError, match="the disk of the journal is full") as caught:
        other.submit()
    assert caught.value.hint == "free some disk space and try again"
    bench.disk.has_room = True
    assert other.submit(a_spec(declared_bytes=2**30, hold=True)) == [1]
    bench.disk.has_room = False
    other.loop.close()
    third = Bench(bench.disk)
    third.manager.restore(bench.disk.replay())
    third.start()
    third.loop.change(JobChange("cancel", 1, "t")).result(TIMEOUT_S)
    assert isinstance(third.state(1), Done)
    third.loop.close()


@pytest.mark.parametrize("is_over", [True, False])
def test_the_error_of_a_refused_submission_ends_with_its_cause(bench, is_over):
    """Nothing else is written on an idle server, and its status said for ever that no job can be submitted."""
    bench.start()
    bench.disk.full = True
    with pytest.raises(JournalError):
        bench.submit()
    assert bench.loop.journal_error is not None
    bench.disk.full = not is_over
    bench.turn()
    assert (bench.loop.journal_error is None) == is_over


def test_an_error_is_looked_after_only_now_and_then(bench, monkeypatch):
    """Each time is a write that waits for the disk."""
    bench.start()
    bench.disk.full = True
    monkeypatch.setattr(journal_writer, "RESERVE_RETRY_S", 1000.0)
    with pytest.raises(JournalError):
        bench.submit()
    bench.disk.full = False
    bench.turn()
    assert bench.loop.journal_error is not None
