"""Jobs that hold simulated GPUs and compute nothing, of real users, in front of a daemon that parks them."""

from __future__ import annotations

import json
import time

from people import Person, made_users, needs_users, open_to_users, start_for_all
from sites import TIMEOUT_S

# Seconds of the simulated server, 60 times as fast as the clock.
SETTINGS = {"AFTER_S": "90", "WARMUP_S": "30", "GRACE_S": "120"}


def until(condition, what):
    """Wait until `condition()` is true; it returns what it found."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < give_up_s, what
        time.sleep(0.1)
    return found


@needs_users
def test_an_idle_job_is_reported_to_its_user_alone_and_parked_until_they_release_it(site):
    site.env |= {f"COTENANT_IDLE__{name}": value for name, value in SETTINGS.items()} | {"COTENANT_IDLE__ACTION": "off"}
    site.env["COTENANT_NOTIFICATIONS__ENABLED"] = "true"
    with made_users(2) as accounts:
        start_for_all(open_to_users(site))
        ann, bob = (Person(site, account) for account in accounts)
        news = ann.home / "news"
        notify = f'echo "$COTENANT_JOB_EVENT $COTENANT_JOB_ID $COTENANT_JOB_STATE $COTENANT_JOB_REASON" >> {news}'
        works = (site.command[0], "-m", "cotenant.simserver.fake_job", "--delay", "5", "--duration", "1e6")
        busy = bob.submit("--exclusive", "--", *works)
        until(lambda: any(gpu["smact"] for gpu in site.client.gpus()), "it computes, after a start of any length")
        site.stop()
        site.env["COTENANT_IDLE__ACTION"] = "park"
        start_for_all(site)
        idle = ann.submit("--exclusive", "--notify", notify, "--", "sleep", "1000")
        line = until(lambda: news.exists() and news.read_text(), "ann is notified")
        assert line.startswith(f"idle {idle} RUNNING idle: activity below 1 % for ")
        assert "parked in" in line

        held = until(lambda: [job for job in site.client.jobs(active=True) if job["state"] == "HELD"], "it is parked")
        assert [str(job["id"]) for job in held] == [idle]
        assert held[0]["reason"].startswith("held: parked: idle for ")
        assert site.client.job(int(busy))["state"] == "RUNNING"
        assert all(gpu["used_bytes"] == 0 for gpu in site.client.gpus() if not gpu["residents"])
        event_names = [event["event"] for event in json.loads(ann.cli("events", idle, "--json").stdout)["events"]]
        assert event_names[-3:] == ["AttemptStarted", "AttemptIdle", "AttemptExited"]
        assert "it held its GPUs and computed nothing" in ann.cli("show", idle).stdout
        assert bob.cli("release", idle).returncode != 0
        rows = until(lambda: json.loads(bob.cli("history", "--by", "user", "--json").stdout)["user"], "it was sampled")
        assert [(row["user"], row["idle_gpu_s"]) for row in rows] == [(bob.name, 0.0)]

        assert ann.cli("release", idle).returncode == 0
        until(lambda: site.client.job(int(idle))["attempts"] == 2, "it runs again")
        for job in (idle, busy):
            site.cli("cancel", job)
            site.wait(int(job))
