"""Output of jobs in the daemon's folder: limited, counted, removed by age."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing

from cotenant.core.errors import NotPermitted
from places import until


def test_finished_jobs_lose_output_and_environment_and_keep_their_records(server):
    secret = {**server.env, "SECRET": "only here"}
    done = server.submit("echo hello; head -c 100000 /dev/zero", env=secret)
    server.wait(done)
    waiting = server.submit("true", hold=True, env={**server.env, "OTHER": "stays"})
    counted = json.loads(server.cli("prune", "--older-than", "0", "--dry-run", "--json").stdout)
    assert counted["jobs"] == 1
    assert counted["bytes"] >= 100_000
    assert b"hello" in b"".join(server.client.logs(done)), "a dry run removes nothing"
    assert json.loads(server.cli("prune", "--older-than", "1-0", "--json").stdout)["jobs"] == 0
    pruned = json.loads(server.cli("prune", "--older-than", "0", "--json").stdout)
    assert pruned == counted
    state = server.root / "state" / "cotenant"
    assert not (state / "attempts" / str(done)).exists()
    with closing(sqlite3.connect(f"file:{state / 'journal.db'}?mode=ro", uri=True)) as db:
        bodies = [body for (body,) in db.execute("SELECT body FROM environments")]
    assert not any("only here" in body for body in bodies)
    assert any("stays" in body for body in bodies)
    assert server.client.job(done)["state"] == "COMPLETED"
    assert server.client.events(done)[0]["event"] == "JobSubmitted"
    refused = server.cli("requeue", str(done))
    assert refused.returncode == 2
    assert "was pruned" in refused.stderr
    server.stop()
    server.start()
    assert server.client.job(done)["state"] == "COMPLETED"
    server.client.release(waiting)
    assert server.wait(waiting)["state"] == "COMPLETED"


def test_output_is_limited_and_counted(site):
    site.env["COTENANT_OUTPUT__MAX_MIB"] = "1"
    site.env["COTENANT_OUTPUT__MAX_USER_MIB"] = "0.25"
    server = site.start()
    log = server.root / "state" / "cotenant" / "attempts" / "1" / "1" / "stdout.log"
    rotated = f"until [ $(stat -c %s {log}) -lt 500000 ]; do sleep 0.05; done"
    job_id = server.submit(f"head -c 3000000 /dev/zero; {rotated}; echo end")
    server.wait(job_id)
    folder = server.root / "state" / "cotenant" / "attempts" / str(job_id) / "1"
    assert sum((folder / name).stat().st_size for name in ("stdout.log", "stdout.log.1")) <= 2**20
    assert (folder / "stdout.log").read_bytes().endswith(b"end\n")
    refused = []

    def is_refused():
        """The daemon looks at the folders from time to time."""
        try:
            server.submit("true")
        except NotPermitted as error:
            refused.append(error)
        return bool(refused)

    until(is_refused, "it is over its quota")
    assert re.match(r"quota: the output of your jobs takes .*, 256.0 KiB are allowed", refused[0].message)
    assert "cotenant prune" in refused[0].hint
