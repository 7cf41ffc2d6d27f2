"""A daemon with GPUs of two other hosts; each agent is a process of this machine."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from gated_jobs import GATE, lines
from host_sites import agents, hosts_site, kill_agents
from places import signaled_until_ended, until

STALE_S = 2.0
HOLDS = (sys.executable, "-m", "cotenant.simserver.fake_job", "--delay", "0.1", "--duration", "100000", "--peak-gib")


@pytest.fixture
def site(site_root):
    site = hosts_site(site_root, {"n1": "", "n2": ""})
    site.env["COTENANT_SCHEDULING__STALE_AFTER_S"] = str(STALE_S)
    site.start(simulate=None)
    until(lambda: len(site.client.gpus()) == 2, "both hosts are heard of")
    yield site
    site.stop()
    site.kill_left_behind()


@pytest.fixture
def site_root(tmp_path_factory):
    return tmp_path_factory.mktemp("h")  # a socket's path has 108 bytes


def host_of(site, job_id):
    gpus = site.client.gpus()
    (host,) = [gpu["server"] for gpu in gpus if job_id in [job["job_id"] for job in gpu["residents"]]]
    return host


def test_jobs_run_on_both_hosts_with_their_output_signals_and_memory(site):
    assert sorted(gpu["server"] for gpu in site.client.gpus()) == ["n1", "n2"]
    holders = [site.submit(*HOLDS, "2", declared_bytes=30 * 2**30) for _ in range(2)]
    for job_id in holders:
        until(lambda job_id=job_id: site.client.job(job_id)["observed_bytes"] == 2 * 2**30, "its memory is seen")
    assert {host_of(site, job_id) for job_id in holders} == {"n1", "n2"}
    ended = site.submit("echo out; echo err >&2; exit 3")
    assert site.wait(ended)["exit_code"] == 3
    assert b"".join(site.client.logs(ended, stream="stdout")) == b"out\n"
    signaled = site.submit(f"trap 'exit 7' USR1; touch {site.root}/listens; while :; do sleep 0.05; done")
    until((site.root / "listens").exists, "it runs")
    signaled_until_ended(site.client, signaled)
    assert site.wait(signaled)["exit_code"] == 7
    for job_id in holders:
        site.client.cancel(job_id)
        assert site.wait(job_id)["state"] == "CANCELLED"


def test_a_killed_agent_loses_no_job_and_runs_none_twice(site):
    here = site.root / "runs"
    ended_meanwhile, goes_on = site.submit(GATE.format(here)), site.submit(GATE.format(f"{here}2"))
    until(lambda: lines(here) and lines(site.root / "runs2"), "both run")
    before = agents(site)
    assert len(before) == 2
    kill_agents(site)
    (site.root / "runs.open").touch()
    assert site.wait(ended_meanwhile)["state"] == "COMPLETED"
    until(lambda: len(agents(site)) == 2 and not set(agents(site)) & set(before), "new agents")
    (site.root / "runs2.open").touch()
    assert site.wait(goes_on)["state"] == "COMPLETED"
    assert [len(lines(site.root / name)) for name in ("runs", "runs.ends", "runs2", "runs2.ends")] == [1, 1, 1, 1]


def runner_of(site, job_id):
    claim = site.root / "state" / "cotenant" / "attempts" / str(job_id) / "1" / "claim"
    return json.loads(claim.read_text())["process"]["pid"]


@pytest.mark.parametrize("daemon", ["runs", "is started later"])
def test_a_host_that_ends_its_processes_loses_its_attempts_and_cancels_no_job(site, daemon):
    """Slurm without cgroups ends an allocation so: a signal to the job, to its runner, and to the agent."""
    paths = {requeue: site.root / f"runs{requeue}" for requeue in (True, False)}
    ids = {
        requeue: site.submit(GATE.format(path), declared_bytes=2**30, requeue=requeue)
        for requeue, path in paths.items()
    }
    until(lambda: all(lines(path) for path in paths.values()), "both run")
    if daemon == "is started later":
        site.kill()
        until(lambda: not agents(site), "no agent is left")
    runners = [runner_of(site, job_id) for job_id in ids.values()]
    jobs = [int(lines(path)[0]) for path in paths.values()]
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
        for pid in (*runners, *(jobs if number == signal.SIGTERM else ())):
            os.kill(pid, number)
    if daemon == "is started later":
        site.start(simulate=None)
    until(lambda: len(lines(paths[True])) == 2, "the job that asks for it runs again")
    view = site.wait(ids[False])
    assert (view["state"], view["reason"]) == (
        "LOST",
        "lost: its host or allocation ended: SIGTERM to its runner",
    )
    (site.root / "runsTrue.open").touch()
    assert site.wait(ids[True])["state"] == "COMPLETED"
    assert lines(site.root / "runsTrue.ends") == ["end"]


def test_a_killed_daemon_adopts_its_jobs_on_hosts(site):
    path = site.root / "runs"
    job_id = site.submit(GATE.format(path))
    until(lambda: lines(path), "it runs")
    site.kill()
    site.start(simulate=None)
    assert site.client.job(job_id)["state"] == "RUNNING"
    (site.root / "runs.open").touch()
    assert site.wait(job_id)["state"] == "COMPLETED"
    assert (len(lines(path)), len(lines(site.root / "runs.ends"))) == (1, 1)


def test_a_silent_host_admits_nothing_until_it_speaks_again(site):
    def are_silent():
        kill_agents(site, signal.SIGSTOP)  # also those that were started in the place of silent ones
        return all(gpu["sample_age_s"] > STALE_S for gpu in site.client.gpus())

    try:
        until(are_silent, "both are silent")
        waits = site.submit("true")
        until(lambda: "sample" in str(site.client.job(waits)["reason"]), "it is explained")
        assert len(site.client.gpus()) == 2
    finally:
        kill_agents(site, signal.SIGCONT)
    assert site.wait(waits)["state"] == "COMPLETED"


def test_an_agent_that_starts_on_another_node_is_refused_while_jobs_run(site):
    path = site.root / "runs"
    job_id = site.submit(GATE.format(path))
    until(lambda: lines(path), "it runs")
    host = host_of(site, job_id)
    note = site.root / "state" / "cotenant" / "hosts" / f"{host}.node"
    assert note.read_text() == host
    note.write_text("elsewhere")
    kill_agents(site)
    until(lambda: "jobs of this host run on `elsewhere`" in site.log.read_text(), "it is refused")
    assert site.client.job(job_id)["state"] == "RUNNING"
    note.write_text(host)
    (site.root / "runs.open").touch()
    assert site.wait(job_id)["state"] == "COMPLETED"
    assert len(lines(path)) == 1
