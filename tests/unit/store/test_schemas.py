"""Journals that earlier versions wrote, and how they become ones of today."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from cotenant.core.codec import CodecError, encode
from cotenant.core.events import Journaled
from cotenant.store import event_format
from cotenant.store.schema import MIGRATIONS, migrate
from cotenant.store.sqlite import SqliteJournal
from journals import (
    NEW_IN_SCHEMA_2,
    NEW_IN_SCHEMA_4,
    NEW_IN_SCHEMA_6,
    NEW_IN_SCHEMA_8,
    NEW_IN_SCHEMA_9,
    NEW_IN_SCHEMA_11,
    NEW_IN_SCHEMA_12,
    ONE_OF_EVERY_EVENT,
    RENAMED_IN_SCHEMA_5,
    reopened,
    written,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "journal"
SCHEMA_6 = (*ONE_OF_EVERY_EVENT, *NEW_IN_SCHEMA_2, *NEW_IN_SCHEMA_4, *RENAMED_IN_SCHEMA_5, *NEW_IN_SCHEMA_6)
SCHEMA_8 = (*SCHEMA_6, *NEW_IN_SCHEMA_8)
SCHEMA_9 = (*SCHEMA_8, *NEW_IN_SCHEMA_9)
SCHEMA_11 = (*SCHEMA_9, *NEW_IN_SCHEMA_11)
NEWEST = (*SCHEMA_11, *NEW_IN_SCHEMA_12)


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
    columns = [column[1] for column in db.execute("PRAGMA table_info(events)")]
    assert "note" not in columns
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half_done'").fetchone() == (0,)
    migrate(db, (*MIGRATIONS, second))
    migrate(db, (*MIGRATIONS, second))
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    db.close()


@pytest.mark.parametrize(
    ("golden", "events"),
    [
        ("schema_1", ONE_OF_EVERY_EVENT),
        ("schema_2", (*ONE_OF_EVERY_EVENT, *NEW_IN_SCHEMA_2)),
        ("schema_3", (*ONE_OF_EVERY_EVENT, *NEW_IN_SCHEMA_2)),
        ("schema_4", (*ONE_OF_EVERY_EVENT, *NEW_IN_SCHEMA_2, *NEW_IN_SCHEMA_4)),
        ("schema_4_renamed", RENAMED_IN_SCHEMA_5),
        ("schema_5", (*ONE_OF_EVERY_EVENT, *NEW_IN_SCHEMA_2, *NEW_IN_SCHEMA_4, *RENAMED_IN_SCHEMA_5)),
        ("schema_6", SCHEMA_6),
        ("schema_7", SCHEMA_6),
        ("schema_8", SCHEMA_8),
        ("schema_9", SCHEMA_9),
        ("schema_10", SCHEMA_9),
        ("schema_11", SCHEMA_11),
        ("schema_12", NEWEST),
    ],
)
def test_a_journal_of_an_earlier_schema_gives_its_events_in_the_names_of_today(tmp_path, golden, events):
    path = restored(tmp_path, golden)
    assert tuple(reopened(path)) == events
    expected = json.loads((GOLDEN / f"{golden}.json").read_text())
    assert [[event.at_s, type(event).__name__, event.job_id] for event in events] == expected
    assert tuple(reopened(path)) == events, "once more, now that the file has the newest schema"


def test_the_newest_schema_has_an_event_of_every_type():
    """A new type needs a new schema: a release that does not know it must refuse the file, and not half of it."""
    assert {type(event) for event in NEWEST} == set(get_args(Journaled))


def test_the_newest_golden_journal_is_what_is_written_today(tmp_path):
    written(tmp_path / "journal.db", *NEWEST)
    golden = tmp_path / "golden"
    golden.mkdir()
    assert content(tmp_path / "journal.db") == content(restored(golden, f"schema_{len(MIGRATIONS)}"))


def test_defaults_that_bodies_leave_out_are_those_of_the_newest_format():
    """A default that changes would change what old events say: it needs a format whose upgrade adds the old one."""
    golden = GOLDEN / f"defaults_{event_format.NEWEST_FORMAT}.json"
    recorded = json.loads(golden.read_text())
    # A class that is newer than the format may have no default: no upgrade would add it.
    assert {name: found for name, found in defaults_of(Journaled).items() if found or name in recorded} == recorded


def test_events_appended_to_an_old_journal_are_in_the_new_format_beside_the_old_ones(tmp_path):
    path = restored(tmp_path, "schema_4_renamed")
    before = bodies(path)
    written(path, *RENAMED_IN_SCHEMA_5)
    assert tuple(reopened(path)) == (*RENAMED_IN_SCHEMA_5, *RENAMED_IN_SCHEMA_5)
    after = bodies(path)
    assert after[: len(before)] == before, "an append-only journal is never rewritten"
    assert '"slot_s":3600.0' in before[0]
    assert '"time_slice_s":3600.0' in after[len(before)]
    journal = SqliteJournal(path)
    assert journal.of_job(4) == [*RENAMED_IN_SCHEMA_5, *RENAMED_IN_SCHEMA_5]
    journal.close()


@pytest.mark.parametrize("golden", ["schema_3", "schema_4_renamed"])
def test_a_snapshot_of_an_earlier_release_is_ignored(tmp_path, golden):
    path = restored(tmp_path, golden)
    journal = SqliteJournal(path)
    state, events = journal.load_snapshot()
    assert state is None
    assert list(events) == list(journal.replay())
    journal.close()


def test_a_trace_of_jobs_is_read_from_a_journal_of_an_earlier_schema_without_migrating_it(tmp_path):
    path = restored(tmp_path, "schema_4_renamed")
    db = sqlite3.connect(path)
    stretches = event_format.formats(db)
    rows = db.execute("SELECT seq, body FROM events ORDER BY seq").fetchall()
    events = [event_format.decode_event(seq, body, stretches) for seq, body in rows]
    assert tuple(events) == RENAMED_IN_SCHEMA_5
    assert db.execute("PRAGMA user_version").fetchone() == (4,)
    db.close()


@pytest.mark.parametrize(
    "body",
    ['{"type":"JobSubmitted","spec":3}', '{"type":"AttemptExited","spells":[1,{}],"usage":[]}', "[]", '{"a":1}'],
)
def test_a_damaged_event_of_an_earlier_schema_is_refused_and_not_crashed_on(body):
    with pytest.raises(CodecError):
        event_format.decode_event(1, body, ())


def restored(folder, golden):
    path = folder / "journal.db"
    db = sqlite3.connect(path)
    db.executescript((GOLDEN / f"{golden}.sql").read_text())
    db.close()
    return path


def defaults_of(annotation):
    """The defaults of every dataclass in an annotation, and below it: {class: {field: plain JSON}}."""
    found, left = {}, [annotation]
    while left:
        kind = left.pop()
        left += get_args(kind)
        if dataclasses.is_dataclass(kind) and kind.__name__ not in found:
            left += get_type_hints(kind).values()
            found[kind.__name__] = {
                field.name: encode(default_of(field)) for field in dataclasses.fields(kind) if has_default(field)
            }
    return found


def has_default(field):
    return (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)


def default_of(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def bodies(path):
    db = sqlite3.connect(path)
    found = [body for (body,) in db.execute("SELECT body FROM events ORDER BY seq")]
    db.close()
    return found


def content(path):
    """All that a journal file holds, whatever the order on its pages."""
    db = sqlite3.connect(path)
    pragmas = [db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")]
    master = sorted(db.execute("SELECT type, name, sql FROM sqlite_master"), key=str)
    tables = [name for kind, name, _ in master if kind == "table"]
    rows = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    db.close()
    return pragmas, master, rows
