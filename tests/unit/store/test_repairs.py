"""Events that replays leave out or replace, while their rows stay."""

from __future__ import annotations

import sqlite3
import zlib

import pytest

from builders import a_spec
from cotenant.core.codec import to_json
from cotenant.core.errors import JournalError, UnreadableEvent
from cotenant.core.events import JobHeld, JobSubmitted
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create
from cotenant.store.memory import MemoryJournal
from cotenant.store.sqlite import SqliteJournal
from journals import edit, hold, written


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "journal.db"


@pytest.mark.parametrize("make", [SqliteJournal, lambda _: MemoryJournal()], ids=["sqlite", "memory"])
def test_a_quarantined_event_is_left_out_and_listed(make, path):
    journal = make(path)
    journal.append([hold(1), hold(2), hold(3)])
    journal.quarantine(hold(2), at_s=5.0, error="OverflowError: too large", trace="Traceback ...")
    reader = journal.replay()
    assert [(event.job_id, reader.seq) for event in reader] == [(1, 1), (3, 3)]
    assert journal.of_job(2) == []
    (found,) = journal.quarantined(2)
    assert (found.seq, found.type, found.job_id) == (2, "JobHeld", 2)
    assert (found.error, found.trace) == ("OverflowError: too large", "Traceback ...")
    assert journal.quarantined(1) == []
    assert journal.quarantined() == [found]
    with pytest.raises(JournalError, match="no such event"):
        journal.quarantine(hold(9), at_s=5.0, error="", trace="")
    journal.close()


def test_a_repair_survives_a_close_changes_no_row_and_can_be_taken_back(path):
    written(path, hold(1), hold(2))
    journal = SqliteJournal(path)
    before = journal._db.execute("SELECT * FROM events").fetchall()
    journal.repair(1, at_s=5.0, cause="root", error="poisoned")
    mended = JobHeld(at_s=0.0, cause="mended", job_id=2)
    journal.repair(2, at_s=5.0, cause="root", error="poisoned", body=to_json(mended))
    journal.close()
    journal = SqliteJournal(path)
    assert list(journal.replay()) == [mended]
    assert [event.is_replaced for event in journal.quarantined()] == [False, True]
    assert journal._db.execute("SELECT * FROM events").fetchall() == before
    assert journal.undo_repair(1)
    assert not journal.undo_repair(1)
    assert list(journal.replay()) == [hold(1), mended]
    journal.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET body = replace(body, '\"job_id\":2', '\"job_id\":7') WHERE seq = 2",
        "DELETE FROM events WHERE seq = 2",
    ],
    ids=["changed bytes", "row gone"],
)
def test_a_damaged_event_is_named_and_can_be_left_out(path, damage):
    written(path, hold(1), hold(2), hold(3))
    edit(path, damage)
    journal = SqliteJournal(path)
    with pytest.raises(UnreadableEvent) as caught:
        list(journal.replay())
    assert (caught.value.seq, caught.value.is_intact) == (2, False)
    assert "cotenant daemon repair" in caught.value.hint
    journal.repair(2, at_s=5.0, cause="root", error="damaged")
    assert list(journal.replay()) == [hold(1), hold(3)]
    journal.close()


def test_an_event_that_no_release_knows_is_distinguished_from_a_damaged_one(path):
    written(path, hold(1))
    db = sqlite3.connect(path)
    body = '{"type":"JobBlessed","at_s":0.0,"cause":"","job_id":2}'
    db.execute("INSERT INTO events VALUES (2, 0.0, 'JobBlessed', 2, ?, ?)", (body, zlib.crc32(body.encode())))
    db.commit()
    db.close()
    journal = SqliteJournal(path)
    with pytest.raises(UnreadableEvent) as caught:
        list(journal.replay())
    assert (caught.value.seq, caught.value.is_intact) == (2, True)
    journal.close()


def test_a_repair_of_an_event_in_the_snapshot_drops_the_snapshot(path):
    events = [JobSubmitted(at_s=1.0, cause="x", job_id=i, spec=a_spec()) for i in (1, 2)]
    manager = Manager(create("most-memory", {}), ManagerConfig())
    manager.restore(events)
    journal = SqliteJournal(path)
    journal.append(events)
    journal.save_snapshot(manager.snapshot())
    journal.append([hold(1)])
    journal.repair(3, at_s=5.0, cause="root", error="")
    assert journal.load_snapshot()[0] is not None, "the snapshot does not include event 3"
    journal.repair(2, at_s=5.0, cause="root", error="")
    state, rest = journal.load_snapshot()
    assert state is None
    assert list(rest) == events[:1]
    journal.close()
