"""Agents in allocations of a real Slurm, started by srun: GPUs of two nodes under one daemon."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gated_jobs import GATE, lines
from host_sites import agents, kill_agents
from places import until
from running import is_running
from slurm_sites import all_heard_of, allocate, end_site, hosts_on_slurm


@contextlib.contextmanager
def daemon_on_two_nodes(cluster):
    """A site whose hosts are the nodes of two allocations."""
    site = hosts_on_slurm(cluster, cluster.work)
    site.start(simulate=None)
    try:
        all_heard_of(site, 2)
        yield site
    finally:
        end_site(site)


def test_jobs_on_nodes_survive_agents_our_daemon_and_a_controller(cluster):
    with daemon_on_two_nodes(cluster) as site:
        assert sorted(gpu["server"] for gpu in site.client.gpus()) == ["n1", "n2"]
        paths = [site.root / f"runs{number}" for number in range(2)]
        ids = [site.submit(GATE.format(path), declared_bytes=30 * 2**30) for path in paths]
        until(lambda: all(lines(path) for path in paths), "a job runs on each node")
        before = agents(site)
        kill_agents(site)
        site.kill()
        site.start(simulate=None)
        until(lambda: len(set(agents(site)) - set(before)) == 2, "new agents")
        until(lambda: len(site.client.gpus()) == 2, "both nodes are heard of again")
        cluster.end_controller()
        cluster.slurm("slurmctld")
        cluster.until(lambda: "mix" in cluster.slurm("sinfo", "-h", "-o", "%t"), "the controller knows its nodes")
        for path in paths:
            Path(f"{path}.open").touch()
        assert [site.wait(job_id)["state"] for job_id in ids] == ["COMPLETED", "COMPLETED"]
        assert [(len(lines(path)), len(lines(Path(f"{path}.ends")))) for path in paths] == [(1, 1), (1, 1)]


def test_jobs_of_an_allocation_that_slurm_ends_are_lost_and_requeued_not_failed(cluster):
    with daemon_on_two_nodes(cluster) as site:
        paths = {requeue: site.root / f"runs{requeue}" for requeue in (True, False)}
        ids = {
            requeue: site.submit(GATE.format(path), requeue=requeue, declared_bytes=30 * 2**30)
            for requeue, path in paths.items()
        }
        until(lambda: all(lines(path) for path in paths.values()), "a job runs on each node")
        cluster.slurm("scancel", *cluster.slurm("squeue", "-h", "-o", "%A").split())
        for node in cluster.nodes:  # a host that is silent says nothing of its jobs
            allocate(cluster, node)
        until(lambda: site.client.job(ids[False])["state"] == "LOST", "it is lost")
        until(lambda: len(lines(paths[True])) == 2, "it runs again")
        assert not is_running(lines(paths[True])[0])
        Path(f"{paths[True]}.open").touch()
        assert site.wait(ids[True])["state"] == "COMPLETED"
        assert lines(Path(f"{paths[True]}.ends")) == ["end"]
