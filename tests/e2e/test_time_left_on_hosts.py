"""A daemon with an agent inside an allocation that ends, and one outside: jobs with time limits."""

from __future__ import annotations

import re
import time

import pytest

from host_sites import hosts_site
from places import until

BIG = 30 * 2**30  # no two fit on a GPU of 40 GiB
GATE = "until [ -e {0}.open ]; do sleep 0.05; done"


@pytest.fixture
def site(tmp_path_factory):
    ends_at = int(time.time()) + 1000
    launchers = {"n1": f"env SLURM_JOB_END_TIME={ends_at}", "n2": ""}
    site = hosts_site(tmp_path_factory.mktemp("h"), launchers)
    site.start(simulate=None)
    until(lambda: len(site.client.gpus()) == 2, "both hosts are heard of")
    yield site
    site.stop()
    site.kill_left_behind()


def test_a_job_with_a_time_limit_starts_only_where_it_ends_in_time(site):
    gate = site.root / "gate"
    first = site.submit(GATE.format(gate), declared_bytes=BIG, time_limit_s=7200)
    assert site.started(first)["state"] == "RUNNING"
    (host,) = [gpu["server"] for gpu in site.client.gpus() if gpu["residents"]]
    assert host == "n2"
    waits = site.submit("true", declared_bytes=BIG, time_limit_s=7200)
    short = site.submit("true", declared_bytes=BIG, time_limit_s=300)
    assert site.wait(short)["state"] == "COMPLETED"  # on n1
    said = site.cli("explain", str(waits)).stdout
    assert "insufficient_time" in said
    left_m = int(re.search(r"its time limit of 2h00m is longer than the (\d+)m", said)[1])
    assert 0 < left_m <= 16, "fewer on a machine that is slow"
    assert "that n1 has left" in said
    (site.root / "gate.open").touch()
    assert [site.wait(job_id)["state"] for job_id in (first, waits)] == ["COMPLETED", "COMPLETED"]
