"""A daemon on a driver that does not exist shares its GPU by MPS: who becomes a client, of what, and for how long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fake_mps

TESTS = Path(__file__).parents[1]
PYNVML = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from fake_pynvml import FakeDriver, FakeGpu
sys.modules[__name__] = FakeDriver(FakeGpu(uuid="GPU-0a8f0f2e-1111", gpm=(10.0, 10.0, 10.0)))
"""


@pytest.fixture
def notes(site):
    """What the control daemon was asked; the site's daemon finds it and the driver."""
    programs = site.root / "programs"
    programs.mkdir()
    (programs / "pynvml.py").write_text(PYNVML)
    site.env["PYTHONPATH"] = str(programs)
    site.env["PATH"] = f"{programs}:{site.env['PATH']}"
    site.env["COTENANT_POLICY__OPTIONS__SHARING"] = "mps"
    site.env["COTENANT_POLICY__OPTIONS__WARMUP_S"] = "0"
    site.env["COTENANT_MPS__THREAD_PERCENT"] = "60"
    return fake_mps.put(programs)


def test_jobs_share_by_mps(site, notes):
    site.start(simulate=None)
    gate = site.gate()
    show = f"echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; {gate}"
    jobs = [site.submit(show, declared_bytes=(1 + number) * 2**30) for number in range(2)]
    alone = site.submit(show, exclusive=True)
    for job in jobs:
        assert site.started(job)["sharing"] == "mps"
    site.open_gate(gate)
    outputs = []
    for job in (*jobs, alone):
        assert site.wait(job)["state"] == "COMPLETED"
        outputs.append(site.cli("logs", str(job)).stdout.split())
    pipe = f"{site.root}/mps/0a8f0f2e-1111-{os.geteuid()}/pipe"
    assert outputs == [[pipe, "0=1024M", "60"], [pipe, "0=2048M", "60"], []]
    calls = notes.read_text().splitlines()
    assert len([line for line in calls if line.startswith("start")]) == 1
    assert not (site.root / "mps" / f"0a8f0f2e-1111-{os.geteuid()}").exists()


def test_a_job_fails_with_the_reason_if_mps_does_not_start(site, notes):
    (notes.parent / "broken").touch()
    site.start(simulate=None)
    view = site.wait(site.submit("true"))
    assert view["state"] == "FAILED"
    assert "MPS does not start on GPU-0a8f0f2e-1111" in view["reason"]


def test_neighbors_of_a_client_that_faults_run_again_and_it_alone_fails(site, notes):
    site.start(simulate=None)
    gate, fault = site.gate(), site.gate()
    # Under MPS the one takes the server down, as a fatal exception does, and the others end with an error at their next
    # call; alone, the same job fails just so, and they are fine.
    server = '"$CUDA_MPS_PIPE_DIRECTORY/servers"'
    culprit = site.submit(f'{fault}; [ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && echo "77 FAULT" > {server}; exit 7')
    victims = [site.submit(f'[ ! -d "$CUDA_MPS_PIPE_DIRECTORY" ] || {{ {gate}; exit 1; }}') for _ in range(2)]
    for job in (culprit, *victims):
        assert site.started(job)["sharing"] == "mps"
    site.open_gate(fault)
    view = site.wait(culprit)
    assert (view["state"], view["exit_code"], view["attempts"]) == ("FAILED", 7, 2)
    site.open_gate(gate)
    for victim in victims:
        view = site.wait(victim)
        assert (view["state"], [attempt["sharing"] for attempt in view["attempt_list"]]) == (
            "COMPLETED",
            ["mps", "time-sliced"],
        )
        story = site.cli("events", str(victim)).stdout
        assert "exit code 1, after its MPS server had failed" in story
    assert "a client took down the MPS server" in site.log.read_text()


def test_a_failure_of_its_own_under_mps_is_final(site, notes):
    site.start(simulate=None)
    gate = site.gate()
    neighbor, job = site.submit(gate), site.submit("exit 3")
    view = site.wait(job)
    assert (view["state"], view["exit_code"], view["attempts"]) == ("FAILED", 3, 1)
    site.open_gate(gate)
    assert site.wait(neighbor)["attempts"] == 1


def test_jobs_share_as_requested(site, notes):
    del site.env["COTENANT_POLICY__OPTIONS__SHARING"]  # in turns, unless asked otherwise
    site.start(simulate=None)
    show = ("--", "sh", "-c", "echo ${CUDA_MPS_PIPE_DIRECTORY-unset}")
    jobs = {}
    for share in ("auto", "time", "mps"):
        done = site.cli("submit", "--gpu-mem", "1G", "--sharing", share, "--parsable", *show)
        assert done.returncode == 0, done.stderr
        jobs[share] = int(done.stdout)
    outputs = {
        share: (site.wait(job)["attempt_list"][0]["sharing"], site.cli("logs", str(job)).stdout.strip())
        for share, job in jobs.items()
    }
    assert outputs == {
        "auto": ("time-sliced", "unset"),
        "time": ("time-sliced", f"{site.root}/mps/nobody"),
        "mps": ("mps", f"{site.root}/mps/0a8f0f2e-1111-{os.geteuid()}/pipe"),
    }
    assert "sharing mps" in site.cli("show", str(jobs["mps"])).stdout
    assert "sharing    auto, none, time, mps\n" in site.cli("daemon", "status").stdout
    for words, says in (
        (("--sharing", "mig"), "does not offer `--sharing mig`: none of its GPUs has MIG instances"),
        (("--sharing", "mps", "--gpus", "2"), "a job of 2 GPUs cannot share them by mps"),
        (("--sharing", "time", "--exclusive"), "requests exclusive GPUs and sharing by time"),
    ):
        done = site.cli("submit", "--gpu-mem", "1G", *words, "--", "true")
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_server_without_mps_explains_why(server):
    done = server.cli("submit", "--gpu-mem", "1G", "--sharing", "mps", "--", "true")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: this server does not offer `--sharing mps`: its GPUs are simulated",
        "hint: it offers auto, none, time",
    ]
