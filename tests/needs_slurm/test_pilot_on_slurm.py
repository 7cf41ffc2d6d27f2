"""The pilot on a real Slurm: allocations come while jobs wait, and go when nobody needs them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

from gated_jobs import GATE, lines
from places import until
from running import is_running
from slurm_sites import end_site, pilot_on_slurm

BIG = 30 * 2**30  # no two fit on a GPU of 40 GiB


@contextlib.contextmanager
def pilot_site(cluster, **settings):
    """A site of `pilot_on_slurm`, not started."""
    site = pilot_on_slurm(cluster, cluster.work, **settings)
    try:
        yield site
    finally:
        end_site(site)
        cluster.clear()


def queued(cluster):
    return cluster.slurm("squeue", "-h", "-o", "%A").split()


def all_of(cluster):
    """Numbers of all jobs that Slurm has seen since."""
    return set(cluster.slurm("squeue", "-h", "-t", "all", "-o", "%A").split())


def notes(site):
    return list((site.root / "state" / "cotenant" / "hosts" / "pilot").glob("*.json"))


def test_allocations_come_while_jobs_wait_and_go_when_nobody_needs_them(cluster):
    with pilot_site(cluster, idle_s=0.5) as site:
        site.start(simulate=None)
        before = all_of(cluster)
        ids = [site.submit(GATE.format(site.root / f"runs{number}"), declared_bytes=BIG) for number in range(2)]
        until(lambda: all(lines(site.root / f"runs{number}") for number in range(2)), "both run")
        assert len(queued(cluster)) == 2
        assert {gpu["server"].partition(".")[0] for gpu in site.client.gpus()} == {"n1", "n2"}
        for number in range(2):
            (site.root / f"runs{number}.open").touch()
        assert [site.wait(job_id)["state"] for job_id in ids] == ["COMPLETED", "COMPLETED"]
        until(lambda: not queued(cluster), "they are given back")
        until(lambda: not site.client.gpus() and not notes(site), "their GPUs are gone")
        assert len(all_of(cluster) - before) == 2
        assert site.wait(site.submit("true"))["state"] == "COMPLETED"  # in a new one


def test_attempts_of_a_cancelled_allocation_are_requeued_and_run_once_at_a_time(cluster):
    with pilot_site(cluster, max_allocations=1) as site:
        site.start(simulate=None)
        path = site.root / "runs"
        requeues, does_not = (
            site.submit(GATE.format(path), declared_bytes=2**30, requeue=True),
            site.submit(GATE.format(f"{path}2"), declared_bytes=2**30, requeue=False),
        )
        until(lambda: lines(path) and lines(Path(f"{path}2")), "both run")
        (first,) = queued(cluster)
        cluster.slurm("scancel", first)
        until(lambda: len(lines(path)) == 2, "it runs again")
        assert site.wait(does_not)["state"] == "LOST"
        assert "allocation ended" in site.client.job(does_not)["reason"]
        assert not is_running(lines(path)[0])
        until(lambda: first not in queued(cluster), "the first has ended")
        assert len(queued(cluster)) == 1
        Path(f"{path}.open").touch()
        assert site.wait(requeues)["state"] == "COMPLETED"
        assert lines(Path(f"{path}.ends")) == ["end"]


def test_a_killed_daemon_finds_its_allocations_again_and_requests_no_second_one(cluster):
    with pilot_site(cluster, max_allocations=1) as site:
        site.start(simulate=None)
        path = site.root / "runs"
        job_id = site.submit(GATE.format(path), declared_bytes=BIG)
        waits = site.submit("true", declared_bytes=BIG)
        until(lambda: lines(path), "it runs")
        allocation = queued(cluster)
        site.kill()
        site.start(simulate=None)
        assert site.client.job(job_id)["state"] == "RUNNING"
        until(lambda: len(site.client.gpus()) == 1, "its host is heard of")
        Path(f"{path}.open").touch()
        assert [site.wait(item)["state"] for item in (job_id, waits)] == ["COMPLETED", "COMPLETED"]
        assert (queued(cluster), len(lines(path))) == (allocation, 1)


def test_a_request_whose_answer_was_lost_is_found_by_its_name(cluster):
    with pilot_site(cluster, sbatch="--exclusive --gres=gpu:1 --hold", max_allocations=1) as site:
        site.start(simulate=None)
        waits = site.submit("true")
        until(lambda: "JobHeldUser" in str(site.client.job(waits)["reason"]), "it is explained")
        (allocation,) = queued(cluster)
        assert f"job {allocation} is pending (JobHeldUser)" in site.client.job(waits)["reason"]
        assert f"job {allocation} is pending" in site.cli("gpus").stderr
        site.kill()
        (note,) = notes(site)
        note.write_text(note.read_text().replace(f'"{allocation}"', '""'))  # killed before sbatch had answered
        site.start(simulate=None)
        until(lambda: f'"{allocation}"' in note.read_text(), "it is found")
        cluster.slurm("scontrol", "release", allocation)
        assert site.wait(waits)["state"] == "COMPLETED"
        assert queued(cluster) == [allocation]


def test_an_allocation_without_a_note_ends_itself(cluster):
    with pilot_site(cluster, max_allocations=1) as site:
        site.start(simulate=None)
        path = site.root / "runs"
        site.submit(GATE.format(path), declared_bytes=BIG)
        until(lambda: lines(path), "it runs")
        site.kill()
        (note,) = notes(site)
        note.unlink()
        cluster.until(lambda: not queued(cluster), "it has ended")
        assert not is_running(lines(path)[0])


def test_refusals_pause_the_pilot_which_says_why(cluster):
    with pilot_site(cluster, sbatch="-p nowhere --gres=gpu:1") as site:
        site.start(simulate=None)
        waits = site.submit("true")
        until(lambda: "paused after 3 failures" in str(site.client.job(waits)["reason"]), "it is paused")
        reason = site.client.job(waits)["reason"]
        assert "Invalid partition" in reason
        assert reason.partition("; ")[2] in site.cli("gpus").stderr
        assert reason in site.cli("explain", str(waits)).stdout
        assert "paused after 3 failures" in site.cli("doctor").stdout
        assert site.client.status()["pilot"]["state"] == "paused"
        assert (site.log.read_text().count("the pilot got no GPUs"), notes(site)) == (3, [])


def impatient(cluster):
    """A configuration whose commands give up a controller that is gone after 3 s, otherwise 10 s (MessageTimeout)."""
    folder = cluster.work / "etc"
    folder.mkdir()
    text = (cluster.folder / "slurm.conf").read_text()
    (folder / "slurm.conf").write_text(f"{text}MessageTimeout=3\n")
    shutil.copy(cluster.folder / "gres.conf", folder)
    return str(folder / "slurm.conf")


def test_nothing_is_decided_while_slurm_does_not_answer(cluster):
    with pilot_site(cluster, max_allocations=1, idle_s=0.5) as site:
        site.env["SLURM_CONF"] = impatient(cluster)
        site.start(simulate=None)
        path = site.root / "runs"
        job_id = site.submit(GATE.format(path), declared_bytes=BIG)
        until(lambda: lines(path), "it runs")
        cluster.end_controller()
        try:
            until(lambda: site.client.status()["pilot"]["state"] == "unreachable", "it is seen")
            assert site.client.job(job_id)["state"] == "RUNNING"
            fails = site.submit("exit 3", declared_bytes=2**30)
            until(lambda: site.client.job(fails)["started_at"] is not None, "it runs beside")
            assert len(notes(site)) == 1
        finally:
            cluster.slurm("slurmctld")
        assert site.wait(fails)["exit_code"] == 3  # its end was doubted until Slurm answered
        Path(f"{path}.open").touch()
        view = site.wait(job_id)
        assert view["state"] == "COMPLETED", view
        until(lambda: not queued(cluster), "it is given back")


ALONE = "exec 9>>{0}.lock; flock -n 9 || echo twice >>{0}.twice; " + GATE


@contextlib.contextmanager
def forgetful_controller(cluster):
    """Gives a function that brings slurmctld back as it was at the start of the block, without `node`'s slurmd."""
    cluster.end_controller()
    shutil.copytree(cluster.folder / "state", cluster.folder / "older-state")
    cluster.slurm("slurmctld")
    cluster.until(lambda: "idle" in cluster.slurm("sinfo", "-h", "-o", "%t"), "the controller knows its nodes")

    def forget(node):
        for name in (f"slurmd.{node}.pid", "slurmctld.pid"):
            pid = int((cluster.folder / name).read_text())
            os.kill(pid, signal.SIGKILL)
            cluster.until(lambda pid=pid: not is_running(pid), f"{name} has ended")
        shutil.rmtree(cluster.folder / "state")
        shutil.copytree(cluster.folder / "older-state", cluster.folder / "state")
        cluster.slurm("slurmctld")

    try:
        yield forget
    finally:
        shutil.rmtree(cluster.folder / "older-state")


def test_an_allocation_that_slurm_forgets_is_over_when_its_attempts_have_been_stopped(cluster):
    with forgetful_controller(cluster) as forget, pilot_site(cluster, max_allocations=2) as site:
        site.start(simulate=None)
        path = site.root / "runs"
        job_id = site.submit(ALONE.format(path), declared_bytes=BIG, requeue=True)
        until(lambda: lines(path), "it runs")
        (host,) = [gpu["server"] for gpu in site.client.gpus()]
        forget(host.partition(".")[0])  # so nobody ends its processes
        until(lambda: len(lines(path)) == 2, "it runs again")
        assert not is_running(lines(path)[0])
        Path(f"{path}.open").touch()
        assert site.wait(job_id)["state"] == "COMPLETED"
        assert not Path(f"{path}.twice").exists()
