"""Time limits of jobs against the ends of a pilot's allocations, and gangs on one node, on a real Slurm."""

from __future__ import annotations

import contextlib
import re
import time

from cotenant.simserver.server import SimulatedServer
from places import until
from slurm_sites import end_site, pilot_on_slurm

GATE = "until [ -e {0}.open ]; do sleep 0.05; done"
SMALL = 2**30


@contextlib.contextmanager
def pilot_site(cluster, length="30", **settings):
    """A daemon whose pilot requests allocations of so many minutes."""
    site = pilot_on_slurm(cluster, cluster.work, sbatch=f"--exclusive --gres=gpu:1 -t {length}", **settings)
    try:
        site.start(simulate=None)
        yield site
    finally:
        end_site(site)
        cluster.clear()


def allocations(cluster):
    """Numbers of all jobs that Slurm knows, also of those that have ended."""
    return set(cluster.slurm("squeue", "-h", "-t", "all", "-o", "%A").split())


def held_allocation(site):
    """The number of the allocation whose GPU can be used, once the pilot has seen it; it may have requested another."""
    until(lambda: len(site.client.gpus()) == 1, "it has a GPU")
    until(lambda: len(ready_allocations(site)) == 1, f"one is ready: {site.client.status()['pilot']}")
    return ready_allocations(site)[0]


def ready_allocations(site):
    return [item["job_id"] for item in site.client.status()["pilot"]["allocations"] if item["state"] == "ready"]


def change_limit(cluster, site, allocation, minutes):
    """Change the time limit of an allocation, and wait until its daemon knows."""

    def ends_at():
        return [
            item["ends_at"] for item in site.client.status()["pilot"]["allocations"] if item["job_id"] == allocation
        ]

    before = ends_at()
    cluster.slurm("scontrol", "update", f"JobId={allocation}", f"TimeLimit={minutes}")
    until(lambda: ends_at() != before, "the pilot has seen it")
    seen_s = time.monotonic()
    until(lambda: is_sampled_since(site, seen_s), "the GPUs are listed with it")


def is_sampled_since(site, at_s):
    """Whether the newest sample is younger than that time of our clock."""
    age_s = time.monotonic() - at_s
    return all(gpu["sample_age_s"] < age_s for gpu in site.client.gpus())


def host_of(site, job_id):
    (host,) = [
        gpu["server"] for gpu in site.client.gpus() if job_id in [resident["job_id"] for resident in gpu["residents"]]
    ]
    return host


def test_a_job_that_would_outlast_its_allocation_gets_another_one(cluster):
    with pilot_site(cluster) as site:
        gate = site.root / "gate"
        stays = site.submit(GATE.format(gate), declared_bytes=SMALL)
        site.started(stays)
        first = held_allocation(site)
        change_limit(cluster, site, first, minutes=5)
        long = site.submit(GATE.format(gate), declared_bytes=SMALL, time_limit_s=600)
        assert site.started(long)["state"] == "RUNNING"
        assert host_of(site, stays).endswith(f".{first}")
        assert not host_of(site, long).endswith(f".{first}")
        beside = site.submit(GATE.format(gate), declared_bytes=30 * 2**30)  # it has no limit
        last = site.submit(GATE.format(gate), declared_bytes=30 * 2**30, time_limit_s=60)
        assert {site.started(job_id)["state"] for job_id in (beside, last)} == {"RUNNING"}
        (gate.parent / "gate.open").touch()
        assert {site.wait(job_id)["state"] for job_id in (stays, long, beside, last)} == {"COMPLETED"}


def test_a_job_that_would_outlast_all_allocations_that_may_be_had_says_so(cluster):
    with pilot_site(cluster, max_allocations=1) as site:
        gate = site.root / "gate"
        stays = site.submit(GATE.format(gate), declared_bytes=SMALL)
        site.started(stays)
        first = held_allocation(site)
        change_limit(cluster, site, first, minutes=5)
        site.kill()
        site.start(simulate=None)  # the next daemon knows the end of its allocation by the note
        assert held_allocation(site) == first
        long = site.submit("true", declared_bytes=SMALL, time_limit_s=600)
        reason = f".{first} has left; the pilot has all 1 allocations that it may have"
        until(lambda: reason in site.client.job(long)["reason"], "the pilot says why it asks for no allocation")
        said = site.cli("explain", str(long)).stdout
        assert re.search("its time limit of 10m00s is longer than the [0-4]m", said), said
        assert reason in said
        assert "insufficient_time" in said
        change_limit(cluster, site, first, minutes=25)
        assert site.wait(long)["state"] == "COMPLETED"
        (gate.parent / "gate.open").touch()
        site.wait(stays)


def test_an_empty_allocation_that_is_too_short_makes_room_for_a_new_one(cluster):
    with pilot_site(cluster, max_allocations=1) as site:
        assert site.wait(site.submit("true", declared_bytes=SMALL))["state"] == "COMPLETED"
        first = held_allocation(site)
        change_limit(cluster, site, first, minutes=5)
        assert site.wait(site.submit("true", declared_bytes=SMALL, time_limit_s=600))["state"] == "COMPLETED"
        assert held_allocation(site) != first
        assert site.log.read_text().count("the pilot got no GPUs") == 0


def test_nothing_is_requested_for_a_job_that_is_longer_than_any_allocation(cluster):
    before = allocations(cluster)
    # An allocation that is given back before its job has started is requested again.
    with pilot_site(cluster, idle_s=5) as site:
        too_long = site.submit("true", declared_bytes=SMALL, time_limit_s=3600)
        until(lambda: site.client.job(too_long)["state"] == "HELD", "it is held")
        reason = site.client.job(too_long)["reason"]
        assert "its time limit of 1h00m is longer than the" in reason
        assert reason.endswith("of an allocation")
        until(lambda: not site.client.status()["pilot"]["allocations"], "what was requested is given back")
        requested = allocations(cluster)
        assert len(requested - before) == 1
        ends = site.submit("true", declared_bytes=SMALL, time_limit_s=60)  # turns of the pilot pass meanwhile
        assert site.wait(ends)["state"] == "COMPLETED"
        assert site.client.job(too_long)["state"] == "HELD"
        assert len(allocations(cluster) - requested) == 1
        assert site.cli("update", str(too_long), "--time", "10:00").returncode == 0
        assert site.wait(too_long)["state"] == "COMPLETED"


def test_a_gang_gets_the_gpus_of_one_allocation(cluster):
    with contextlib.ExitStack() as stack:
        site = pilot_on_slurm(cluster, cluster.work, sbatch="--exclusive --gres=gpu:2")
        stack.callback(cluster.clear)
        stack.callback(end_site, site)
        for node in cluster.nodes:
            folder = site.root / f"gpus-{node}"
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            SimulatedServer.create(folder, "2xA100-40GB", time_scale=60, seed=ord(node[1]))
        site.start(simulate=None)
        gate = site.root / "gate"
        gangs = [site.submit(GATE.format(gate), gpus=2, declared_bytes=30 * 2**30) for _ in range(2)]
        for job_id in gangs:
            assert site.started(job_id)["state"] == "RUNNING"
        hosts = [
            [gpu["server"] for gpu in site.client.gpus() if job_id in [found["job_id"] for found in gpu["residents"]]]
            for job_id in gangs
        ]
        assert [len(found) for found in hosts] == [2, 2]
        assert [len(set(found)) for found in hosts] == [1, 1]
        assert hosts[0] != hosts[1]
        too_many = site.submit("true", gpus=3, declared_bytes=SMALL)
        until(lambda: site.client.job(too_many)["state"] == "HELD", "it is held")
        assert "needs 3 GPUs of one host, no host has more than 2" in site.client.job(too_many)["reason"]
        (gate.parent / "gate.open").touch()
        assert [site.wait(job_id)["state"] for job_id in gangs] == ["COMPLETED", "COMPLETED"]
