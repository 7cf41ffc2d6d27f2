"""The state beside the events: it gives the same as all of them, or is not used."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import zlib

import pytest

from builders import a_gpu, a_spec
from cotenant.core.errors import JournalError
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobUpdated,
    ServerSampled,
)
from cotenant.core.gpu import GpuSample
from cotenant.core.job import AttemptExit, CoRun, ProcessId
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.daemon import startup
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create
from cotenant.store import snapshot
from cotenant.store.memory import MemoryJournal
from cotenant.store.sqlite import SqliteJournal

OK = AttemptExit(exit_code=0, signal=None, reason="exited")


def life(job_id, at_s, *, end=OK, **spec):
    """A job from its submission to the end of its attempt."""
    place = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    process = ProcessId(pid=7, start_ticks=9, boot_id="b")
    co_runs = (CoRun(neighbor_ids=(), seconds=80.0, smact=0.5), CoRun(neighbor_ids=(1,), seconds=80.0, smact=0.75))
    return [
        JobSubmitted(
            at_s=at_s, cause="x", job_id=job_id, spec=a_spec(env={"HOME": "/ä", "N": str(job_id % 2)}, **spec)
        ),
        AttemptPlaced(at_s=at_s + 1, cause="x", job_id=job_id, attempt=1, placement=place),
        AttemptStarted(at_s=at_s + 2, cause="x", job_id=job_id, attempt=1, process=process),
        AttemptExited(
            at_s=at_s + 200.1,
            cause="x",
            job_id=job_id,
            attempt=1,
            exit=end,
            peak_observed_bytes={"GPU-0": GiB + job_id},
            co_runs=co_runs,
        ),
    ]


EVENTS = [
    *life(1, 10.0),
    *life(2, 20.0, command=("python", "a.py")),
    JobSubmitted(at_s=30.0, cause="x", job_id=3, spec=a_spec(after=(2,), hold=True)),
    JobSubmitted(at_s=31.0, cause="x", job_id=4, spec=a_spec(after=(3,), singleton=True)),
    JobHeld(at_s=32.0, cause="by ann", job_id=4),
    JobSubmitted(at_s=33.0, cause="x", job_id=5, spec=a_spec()),
    JobUpdated(at_s=34.0, cause="x", job_id=3, spec=a_spec(after=(5,), priority=2)),
    JobReleased(at_s=35.0, cause="x", job_id=4),
    JobCancelled(at_s=36.0, cause="x", job_id=5),  # and 3, 4 with it
    *life(6, 40.0, end=AttemptExit(exit_code=None, signal=None, reason="lost"), requeue=True),
]


def manager():
    return Manager(create("most-memory", {}), ManagerConfig())


def snapshot_of(events):
    found = manager()
    found.restore(events)
    return found.snapshot()


def resumed(path):
    """What a start makes of the file, and how many events it had to read."""
    journal = SqliteJournal(path)
    since, later = journal.load_snapshot()
    found, events = manager(), list(later)
    found.restore(events, since)
    journal.close()
    return found.snapshot(), len(events)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


@pytest.mark.parametrize("make", [SqliteJournal, lambda _: MemoryJournal()], ids=["sqlite", "memory"])
def test_a_snapshot_at_any_place_and_later_events_give_what_all_events_give(make, tmp_path):
    for place in range(len(EVENTS) + 1):
        journal = make(tmp_path / f"{place}.db")
        journal.append(EVENTS[:place])
        journal.save_snapshot(snapshot_of(EVENTS[:place]))
        assert journal.events_since_snapshot() == 0
        journal.append(EVENTS[place:])
        since, later = journal.load_snapshot()
        later = list(later)
        again = manager()
        again.restore(later, since)
        assert later == EVENTS[place:]
        assert again.snapshot() == snapshot_of(EVENTS), place
        assert list(journal.replay()) == EVENTS
        assert journal.of_job(1) == EVENTS[:4]
        journal.close()


def test_only_jobs_that_changed_are_written_again(path):
    journal = SqliteJournal(path)
    writes = []
    journal._db.set_trace_callback(lambda sql: writes.append(sql) if "INTO snapshot_jobs" in sql else None)
    living = manager()
    journal.append(EVENTS[:12])
    living.restore(EVENTS[:12])
    journal.save_snapshot(living.snapshot())
    assert len(writes) == 5
    journal.append(EVENTS[12:])
    for event in EVENTS[12:]:
        living.handle(event)
    journal.save_snapshot(living.snapshot())
    assert len(writes) == 5 + 4  # jobs 3, 4 and 5 changed, job 6 is new
    journal.close()
    assert resumed(path) == (snapshot_of(EVENTS), 0)


def test_the_order_of_the_queue_is_not_part_of_the_state():
    events = [
        JobSubmitted(at_s=1.0, cause="x", job_id=1, spec=a_spec()),
        JobSubmitted(at_s=2.0, cause="x", job_id=2, spec=a_spec(after=(1,))),
        JobSubmitted(at_s=3.0, cause="x", job_id=3, spec=a_spec(after=(1,))),
        JobSubmitted(at_s=4.0, cause="x", job_id=4, spec=a_spec(after=(2, 3))),
        JobUpdated(at_s=5.0, cause="x", job_id=2, spec=a_spec(after=(1,), priority=1)),  # waits for 1 after job 3 does
    ]
    end = JobCancelled(at_s=6.0, cause="x", job_id=1)
    again = manager()
    again.restore([end], snapshot_of(events))
    assert again.snapshot() == snapshot_of([*events, end])
    assert again.jobs[4].is_done


def test_a_policy_continues_with_the_learned_history():
    known = life(1, 10.0)
    found = Manager(create("most-memory", {}), ManagerConfig(estimate=False))
    found.restore([], snapshot_of(known))
    gpu = a_gpu(0, 40)
    samples = {gpu.uuid: GpuSample(at_s=500.0, used_bytes=0, smact=0.0)}
    found.handle(JobSubmitted(at_s=499.0, cause="x", job_id=2, spec=known[0].spec))
    commands = found.handle(ServerSampled(at_s=500.0, cause="x", gpus=(gpu,), samples=samples, observed=()))
    assert [type(command).__name__ for command in commands] == ["Launch"]
    assert GiB < commands[0].placed.placement.promised_bytes < 1.2 * GiB


def test_an_environment_shared_by_jobs_is_stored_once(path):
    journal = SqliteJournal(path)
    events = [event for job_id in range(1, 21) for event in life(job_id, 10.0)]
    journal.append(events)
    journal.save_snapshot(snapshot_of(events))
    assert journal._db.execute("SELECT count(*) FROM environments").fetchone() == (2,)
    journal.close()
    assert resumed(path) == (snapshot_of(events), 0)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE snapshot SET made_by = 'an older version'", "written by another version"),
        ("UPDATE snapshot SET body = replace(body, '240', '241')", "checksum"),
        ("UPDATE snapshot SET seq = 1000", "event 1000, the newest is"),
        ("UPDATE snapshot_jobs SET body = replace(body, 'ann', 'eve') WHERE job_id = 2", "checksum"),
        (f"UPDATE snapshot_jobs SET body = '[', crc32 = {zlib.crc32(b'[')} WHERE job_id = 2", "Expecting value"),
        ("DELETE FROM snapshot_jobs WHERE job_id = 2", "5 jobs, wanted 6"),
        ("DROP TABLE snapshot_jobs", "no such table"),
    ],
)
def test_a_damaged_or_foreign_snapshot_is_ignored(path, damage, says, caplog):
    journal = SqliteJournal(path)
    journal.append(EVENTS)
    journal.save_snapshot(snapshot_of(EVENTS))
    journal.close()
    db = sqlite3.connect(path)
    db.execute(damage)
    db.commit()
    db.close()
    with caplog.at_level(logging.WARNING):
        assert resumed(path) == (snapshot_of(EVENTS), len(EVENTS))
    assert says in caplog.records[-1].fields["why"]


def test_a_snapshot_of_another_version_is_replaced(path, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(snapshot, "made_by", lambda: "older")
        journal = SqliteJournal(path)
        journal.append(EVENTS[:8])
        journal.save_snapshot(snapshot_of(EVENTS[:8]))
        journal.close()
    journal = SqliteJournal(path)
    since, later = journal.load_snapshot()
    assert since is None
    found = manager()
    found.restore(later)
    journal.save_snapshot(found.snapshot())
    journal.close()
    assert resumed(path) == (snapshot_of(EVENTS[:8]), 0)


def test_a_new_snapshot_removes_an_ignored_one(path):
    journal = SqliteJournal(path)
    journal.append(EVENTS)
    journal.save_snapshot(snapshot_of(EVENTS))
    journal._db.execute("INSERT INTO snapshot_jobs VALUES (99, '{}', 0)")
    assert journal.load_snapshot()[0] is None
    journal.save_snapshot(snapshot_of(EVENTS))
    journal.close()
    assert resumed(path) == (snapshot_of(EVENTS), 0)


def test_a_crash_at_any_statement_leaves_the_old_snapshot_or_the_new_one(path, tmp_path):
    """The file and its log are copied before each statement: what a machine that stopped there would find."""
    journal = SqliteJournal(path)
    journal.append(EVENTS[:8])
    journal.save_snapshot(snapshot_of(EVENTS[:8]))
    journal.append(EVENTS[8:])
    found, later = manager(), []
    since, later = journal.load_snapshot()
    found.restore(later, since)
    copies = []

    def copy(_):
        here = tmp_path / f"crash-{len(copies)}"
        here.mkdir()
        for file in path.parent.glob("journal.db*"):
            if file.suffix != ".lock":
                shutil.copy(file, here / file.name)
        copies.append(here / "journal.db")

    journal._db.set_trace_callback(copy)
    journal.save_snapshot(found.snapshot())
    journal._db.set_trace_callback(None)
    copy(None)
    journal.close()
    read = []
    for copy_ in copies:
        state, count = resumed(copy_)
        assert state == snapshot_of(EVENTS)
        read.append(count)
    assert len(copies) > 6
    assert set(read) == {0, len(EVENTS) - 8}
    assert read == sorted(read, reverse=True)


def test_a_snapshot_that_fails_half_way_is_rolled_back(path, monkeypatch):
    journal = SqliteJournal(path)
    journal.append(EVENTS[:8])
    journal.save_snapshot(snapshot_of(EVENTS[:8]))
    journal.append(EVENTS[8:])
    found = manager()
    since, later = journal.load_snapshot()
    found.restore(later, since)
    state = found.snapshot()
    broken = type(state)(last_at_s=float("nan"), jobs=state.jobs, history=state.history)
    with pytest.raises(JournalError, match="cannot encode a snapshot"):
        journal.save_snapshot(broken)
    assert journal.events_since_snapshot() == len(EVENTS) - 8
    journal.append([JobCancelled(at_s=300.0, cause="x", job_id=6)])
    journal.close()
    assert resumed(path)[1] == len(EVENTS) - 8 + 1
    assert resumed(path)[0] == snapshot_of([*EVENTS, JobCancelled(at_s=300.0, cause="x", job_id=6)])


def test_startup_saves_a_snapshot_after_many_events(path, monkeypatch):
    journal = SqliteJournal(path)
    journal.append(EVENTS)
    startup.restore_manager(manager(), journal)
    assert journal.events_since_snapshot() == len(EVENTS)
    monkeypatch.setattr(startup, "MIN_EVENTS", len(EVENTS))
    startup.restore_manager(manager(), journal)
    assert journal.events_since_snapshot() == 0
    journal.close()


def test_startup_continues_if_no_snapshot_can_be_saved(monkeypatch, caplog):
    class Full(MemoryJournal):
        def save_snapshot(self, snapshot):
            raise JournalError("cannot keep a snapshot: disk full")

    monkeypatch.setattr(startup, "MIN_EVENTS", 1)
    journal, found = Full(), manager()
    journal.append(EVENTS)
    startup.restore_manager(found, journal)
    assert found.snapshot() == snapshot_of(EVENTS)
    assert "disk full" in caplog.records[-1].fields["why"]


def test_a_snapshot_is_identified_by_the_source_code(tmp_path):
    (tmp_path / "core").mkdir()
    found = []
    for text in ("1", "2", "1"):
        (tmp_path / "core" / "a.py").write_text(text)
        found.append(snapshot.made_by.__wrapped__(tmp_path))
    assert found[0] == found[2] != found[1]
    assert snapshot.made_by() != found[0]
    nowhere = tmp_path / "archive.zip"
    assert snapshot.made_by.__wrapped__(nowhere) != snapshot.made_by.__wrapped__(nowhere)
