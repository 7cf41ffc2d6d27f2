"""`cotenant simulate` about a daemon: its queue, and its journal."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def queue(site):
    """One GPU; job 1 has it alone, job 2 waits."""
    site.start(simulate="1xA100-40GB")
    gate = site.gate()
    first = site.submit(f"{gate}; sleep 0", exclusive=True)
    site.started(first)
    second = site.submit("true", name="next")
    yield site
    site.open_gate(gate)
    site.wait(second)


def test_what_if_says_when_the_waiting_job_starts(queue):
    args = ("simulate", "--forecast", "--policies", "exclusive,most-memory", "--default-runtime", "00:10:00")
    done = queue.cli(*args, "--json")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["running"] == 1
    (job,) = output["jobs"]
    assert (job["name"], job["duration_source"], job["duration_s"]) == ("next", "assumed", 600.0)
    assert 0 < job["starts_in_s"]["exclusive"] <= 600.0
    assert job["starts_in_with_one_more_gpu_s"] == {"exclusive": 0.0, "most-memory": 0.0}
    shown = queue.cli("simulate", "--forecast")
    assert shown.returncode == 0, shown.stderr
    titles, line = shown.stdout.splitlines()
    policy = queue.client.status()["policy"]
    assert titles.split() == ["JOB", "NAME", "RUNS", "FOR", policy.upper(), "+1", "GPU"]
    assert line.split()[-1] == "now"
