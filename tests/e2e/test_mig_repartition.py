"""An empty GPU in MIG mode gets other instances on a live server, also when the daemon is killed meanwhile."""

from __future__ import annotations

import time

import pytest

from benchmarks.daemon import kills_in_repartitions
from cotenant.simserver.server import SimulatedServer

GPUS = "1xA100-40GB/" + "+".join(["1g.5gb"] * 7)
JOB = ("--duration", "20", "--delay", "1")


def wait_until(condition, site):
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s, site.log.read_text()
        time.sleep(0.05)


@pytest.fixture
def repartitioning(site):
    site.env["COTENANT_MIG__REPARTITION"] = "true"
    return site


def test_a_job_gets_an_instance_that_holds_it(repartitioning):
    site = repartitioning.start(simulate=GPUS)
    job = site.simulated(*JOB, "--peak-gib", "12", gib=14)
    assert site.wait(job)["state"] == "COMPLETED"
    assert sorted(gpu["mig_profile"] for gpu in site.client.gpus()) == ["3g.20gb", "4g.20gb"]
    events = site.cli("events", str(job)).stdout
    assert "GPU 0 is repartitioned from 1g.5gb:0, 1g.5gb:1," in events
    assert "into 4g.20gb:0, 3g.20gb:4: +1.00 jobs' worth of speed for 1 waiting job" in events
    assert "GPU 0 has 4g.20gb:0, 3g.20gb:4" in events


def test_layouts_stay_as_they_are_unless_the_administrator_allows_more(site):
    site.start(simulate=GPUS)
    wait_until(lambda: len(site.client.gpus()) == 7, site)
    job = site.simulated(*JOB, "--peak-gib", "12", gib=14)
    assert "needs 14.0 GiB on each GPU, the largest has 4.8 GiB" in site.cli("explain", str(job)).stdout
    assert {gpu["mig_profile"] for gpu in site.client.gpus()} == {"1g.5gb"}


def test_a_gpu_in_use_by_another_process_is_left_alone(repartitioning):
    site = repartitioning.start(simulate=GPUS)
    (server_file,) = site.root.rglob("server.json")
    wait_until(lambda: len(site.client.gpus()) == 7, site)  # listed from the first sample on
    stranger = SimulatedServer.open(server_file.parent).attach(site.client.gpus()[3]["uuid"], context_bytes=2**30)
    wait_until(lambda: site.client.gpus()[3]["foreign_bytes"], site)
    job = site.simulated(*JOB, "--peak-gib", "12", gib=14)
    wait_until(lambda: "14.0 GiB" in site.cli("explain", str(job)).stdout, site)
    assert [gpu["mig_profile"] for gpu in site.client.gpus()] == ["1g.5gb"] * 7
    stranger.detach()
    assert site.wait(job)["state"] == "COMPLETED"
    assert site.client.job(job)["attempts"] == 1


def test_the_configuration_is_checked(repartitioning):
    repartitioning.env["COTENANT_MIG__COST_S"] = "-1"
    found = repartitioning.cli("config", "check")
    assert found.returncode != 0
    assert "`cost_s` of MIG repartitioning must be >= 0" in found.stderr


def test_a_daemon_killed_in_repartitions_loses_nothing_and_places_nothing_on_what_is_gone():
    with kills_in_repartitions.repartitioning_server() as found:
        rounds = kills_in_repartitions.Repartitions(found, seed=3)
        kills_in_repartitions.run(rounds, 2)
        assert sum(rounds.at.values()) == 2
        assert rounds.faults() == []
