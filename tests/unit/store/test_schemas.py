"""Journals that earlier versions wrote, and how they become ones of today."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from cotenant.store.sqlite import MIGRATIONS, SqliteJournal, migrate
from journals import NEW_IN_SCHEMA_2, NEW_IN_SCHEMA_4, ONE_OF_EACH, reopened

GOLDEN = Path(__file__).parents[2] / "golden" / "journal"


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
    since, later = journal.load_snapshot()
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
