"""A poisoned event in a real journal: the daemon starts, sets it aside and tells; `daemon repair` does it by hand."""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing

import pytest

from builders import an_estimate
from cotenant.core.codec import to_json
from cotenant.core.errors import CotenantError
from cotenant.core.events import EstimateReady

HUGE = 10**4000
"""No float holds it: deciding about a job that needs as many bytes raises OverflowError."""


@pytest.fixture
def journal(site):
    return site.root / "state" / "cotenant" / "journal.db"


def inserted(path, kind, job_id, body):
    """Number of a new event in the journal of a stopped daemon."""
    with closing(sqlite3.connect(path)) as db:
        cursor = db.execute(
            "INSERT INTO events (at_s, type, job_id, body, crc32) VALUES (1.0, ?, ?, ?, ?)",
            (kind, job_id, body, zlib.crc32(body.encode())),
        )
        db.commit()
        return cursor.lastrowid


def poisoned_estimate(job_id):
    estimate = an_estimate(1, margin_bytes=HUGE)
    return to_json(EstimateReady(at_s=1.0, cause="estimator", job_id=job_id, estimate=estimate))


def held_job(site, **fields):
    """Id of a job that waits on hold in a journal that no daemon holds any more."""
    site.start()
    job_id = site.submit("true", hold=True, **fields)
    site.stop()
    return job_id


def test_a_start_leaves_an_event_out_that_no_release_knows_and_notifies_its_owner(site, journal):
    job_id = held_job(site)
    seq = inserted(journal, "JobBlessed", job_id, json.dumps({"type": "JobBlessed", "at_s": 1.0, "job_id": job_id}))
    site.start()
    shown = site.cli("show", str(job_id))
    assert f"event {seq} (JobBlessed)" in shown.stdout, shown.stdout
    assert site.client.job(job_id)["quarantined"][0]["seq"] == seq
    assert f"event {seq} (JobBlessed)" in site.cli("explain", str(job_id)).stderr
    assert site.wait(site.submit("true"))["state"] == "COMPLETED", "everything else goes on"
    site.stop()
    listed = json.loads(site.cli("daemon", "repair", "--json").stdout)["events"]
    assert [(event["seq"], event["repair"]["cause"]) for event in listed] == [(seq, "daemon")]
    assert "CodecError" in listed[0]["repair"]["trace"]


def test_a_job_on_which_decisions_fail_is_held_and_the_others_run(site, journal):
    site.env["COTENANT_ESTIMATES__ENABLED"] = "false"  # no other estimate takes the place of the poisoned one
    job_id = held_job(site, declared_bytes=None)
    inserted(journal, "EstimateReady", job_id, poisoned_estimate(job_id))
    site.start()
    with pytest.raises(CotenantError, match="the scheduler failed on this request: OverflowError"):
        site.client.release(job_id)
    other = site.submit("true")
    assert site.wait(other)["state"] == "COMPLETED"
    reason = site.client.explain(job_id)["reason"]
    assert reason.startswith("held: the scheduler failed on this job: OverflowError"), reason


def test_an_event_is_shown_left_out_and_read_again_by_hand(site, journal):
    job_id = held_job(site)
    seq = inserted(journal, "EstimateReady", job_id, poisoned_estimate(job_id))
    before = journal.read_bytes()
    shown = site.cli("daemon", "repair", "--event", str(seq))
    assert f"event {seq}: EstimateReady of job {job_id}" in shown.stdout
    assert "lost without it: its estimate, which the next daemon makes again" in shown.stdout
    assert "1" + "0" * 100 in shown.stdout
    assert journal.read_bytes() == before, "looking changes nothing"
    done = site.cli("daemon", "repair", "--event", str(seq), "--skip")
    assert done.returncode == 0, done.stderr
    (backup,) = journal.parent.glob("journal.db.backup-*")
    assert str(backup) in done.stdout
    with closing(sqlite3.connect(backup)) as db:
        assert db.execute("SELECT count(*) FROM repairs").fetchone() == (0,)
        assert db.execute("SELECT max(seq) FROM events").fetchone() == (seq,)
    site.start()
    assert site.client.job(job_id)["estimate"]["margin_bytes"] < HUGE
    site.stop()
    assert site.cli("daemon", "repair", "--event", str(seq), "--restore").returncode == 0
    again = site.cli("daemon", "repair", "--event", str(seq), "--restore")
    assert (again.returncode, again.stderr.splitlines()[0]) == (
        2,
        f"error: event {seq} was neither left out nor replaced",
    )


def test_an_event_is_replaced_by_one_of_the_same_type_and_job(site, journal):
    job_id = held_job(site)
    seq = inserted(journal, "EstimateReady", job_id, poisoned_estimate(job_id))
    mended = json.loads(poisoned_estimate(job_id))
    mended["estimate"]["margin_bytes"] = 12345
    file = site.root / "mended.json"
    file.write_text(json.dumps({**mended, "job_id": job_id + 1}))
    refused = site.cli("daemon", "repair", "--event", str(seq), "--replace", str(file))
    assert refused.returncode == 2
    assert f"wanted EstimateReady of job {job_id}" in refused.stderr
    file.write_text(json.dumps(mended))
    done = site.cli("daemon", "repair", "--event", str(seq), "--replace", str(file))
    assert done.returncode == 0, done.stderr
    site.start()
    assert site.client.job(job_id)["estimate"]["margin_bytes"] == 12345


def test_a_journal_in_use_is_not_repaired(server, journal):
    refused = server.cli("daemon", "repair")
    assert refused.returncode == 1
    assert f"another daemon (pid {server.daemon.pid}) holds {journal}" in refused.stderr


def test_a_damaged_page_outside_of_the_events_is_found(site, journal):
    """It said of a file in which no snapshot could be saved any more that all could be read."""
    held_job(site)
    assert site.cli("daemon", "repair").returncode == 0
    with closing(sqlite3.connect(journal)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'snapshot_jobs'").fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    with journal.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)
    found = site.cli("daemon", "repair")
    assert (found.returncode, found.stdout) == (1, "")
    assert "is damaged (" in found.stderr
    assert "hint: check the disk" in found.stderr
    site.start()
    assert site.wait(site.submit("true"))["state"] == "COMPLETED"
