"""A job that outgrows its promise leaves its GPU by a stand-in for `cuda-checkpoint`, and comes back, once."""

from __future__ import annotations

import sys
import time

import pytest

from fake_cuda_checkpoint import FakeCudaCheckpoint
from sites import TIMEOUT_S

GIB = 2**30
GPU_JOB = """
import os, pathlib, sys, time
from cotenant.simserver.server import SimulatedServer

folder, name, *sizes = sys.argv[1:]
folder = pathlib.Path(folder)
gpu = SimulatedServer.open(pathlib.Path(os.environ["COTENANT_SIM_SERVER"])).attach(
    os.environ["CUDA_VISIBLE_DEVICES"], context_bytes=2**28
)
state = folder / str(os.getpid())
state.write_text("running")
step = 0
while not (folder / f"finish-{name}").exists():
    if state.read_text().strip() == "running":
        if sizes and (folder / f"grow-{name}").exists() or len(sizes) == 2:
            gpu.allocate(int(sizes.pop(0)) * 2**30)
        with open(folder / f"steps-{name}", "a") as steps:
            steps.write(f"{step}\\n")
        step += 1
    time.sleep(0.01)
"""
"""Allocates the first size at once and the second when it may, both in GiB; counts its steps in memory only."""

MEMORY = """
import json, pathlib, sys
from cotenant.simserver.server import SimulatedServer

action, pid = sys.argv[1], int(sys.argv[2])
environ = pathlib.Path(f"/proc/{{pid}}/environ").read_bytes().split(b"\\0")
folder = next(word.partition(b"=")[2].decode() for word in environ if word.startswith(b"COTENANT_SIM_SERVER="))
server, host = SimulatedServer.open(pathlib.Path(folder)), pathlib.Path({folder!r}, f"host-memory-{{pid}}")
found = next((process for process in server.gpu(0).processes if process.pid == pid), None)
if found is None or action not in ("checkpoint", "restore"):
    sys.exit(0)
sizes = (0, 0)
if action == "checkpoint":
    host.write_text(json.dumps([found.context_bytes, found.allocated_bytes]))
else:
    sizes = json.loads(host.read_text())
    if sum(sizes) > server.gpu(0).free_bytes:
        sys.exit(1)
changed = found._replace(context_bytes=sizes[0], allocated_bytes=sizes[1])
server._change(0, lambda gpu: gpu._replace(processes=tuple(changed if p.pid == pid else p for p in gpu.processes)))
"""


@pytest.fixture
def cuda(site):
    fake = FakeCudaCheckpoint(site.root)
    (fake.folder / "memory").write_text(f"#!{sys.executable}\n{MEMORY.format(folder=str(fake.folder))}")
    (fake.folder / "memory").chmod(0o755)
    (fake.folder / "gpu_job.py").write_text(GPU_JOB)
    site.env["COTENANT_SCHEDULING__OVERRUN"] = "pause"
    site.env["COTENANT_ENGINE__CUDA_CHECKPOINT"] = fake.program
    return fake


def wait_until(site, holds):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s, site.log.read_text()
        time.sleep(0.05)
    return found


def submit(site, cuda, name, gib, *sizes):
    """Id of a job that is promised `gib`."""
    command = (sys.executable, str(cuda.folder / "gpu_job.py"), str(cuda.folder), name, *map(str, sizes))
    return site.submit(*command, declared_bytes=gib * GIB)


def steps(cuda, name):
    file = cuda.folder / f"steps-{name}"
    return [int(step) for step in file.read_text().split()] if file.exists() else []


def honest_beside_a_liar(site, cuda):
    """Jobs that are promised 16 and 8 GiB; the second has just taken 36."""
    honest, liar = submit(site, cuda, "honest", 16, 1, 14), submit(site, cuda, "liar", 8, 1, 35)
    wait_until(site, lambda: steps(cuda, "honest") and steps(cuda, "liar"))
    wait_until(site, lambda: (site.client.job(honest)["observed_bytes"] or 0) > GIB)
    cuda.let("grow-liar")
    return honest, liar


def has_come_back(site, cuda, liar):
    """End the job; it has made all of its steps once, in one attempt."""
    count = len(steps(cuda, "liar"))
    wait_until(site, lambda: len(steps(cuda, "liar")) > count + 5)
    cuda.let("finish-liar")
    view = site.wait(liar)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 1), site.log.read_text()
    made = steps(cuda, "liar")
    assert made == list(range(len(made)))


def test_a_neighbor_gets_its_promise_while_a_job_is_off_its_gpu(site, cuda):
    site.start(simulate="1xA100-40GB")
    honest, liar = honest_beside_a_liar(site, cuda)
    wait_until(site, lambda: "checkpointed" in cuda.states.values())
    cuda.let("grow-honest")
    wait_until(site, lambda: (site.client.job(honest)["observed_bytes"] or 0) > 15 * GIB)
    assert "paused until all promises fit" in site.client.explain(liar)["reason"]
    count = len(steps(cuda, "liar"))
    cuda.let("finish-honest")
    assert site.wait(honest)["state"] == "COMPLETED"
    assert len(steps(cuda, "liar")) >= count
    has_come_back(site, cuda, liar)


@pytest.mark.parametrize("is_mended_first", [True, False])
@pytest.mark.parametrize("action", ["lock", "checkpoint", "restore", "unlock"])
def test_the_daemon_is_killed_in_the_middle_of_a_step(site, cuda, action, is_mended_first):
    site.start(simulate="1xA100-40GB")
    cuda.let(f"hang-{action}")
    honest, liar = honest_beside_a_liar(site, cuda)
    if action in ("restore", "unlock"):
        wait_until(site, lambda: "checkpointed" in cuda.states.values())
        cuda.let("finish-honest")
        assert site.wait(honest)["state"] == "COMPLETED"
    wait_until(site, lambda: cuda.has(f"at-{action}"))
    site.kill()
    if is_mended_first:
        cuda.mend(f"hang-{action}")
    site.start(simulate="1xA100-40GB")
    if not is_mended_first:
        cuda.mend(f"hang-{action}")
    if not cuda.has("finish-honest"):
        cuda.let("finish-honest")
        assert site.wait(honest)["state"] == "COMPLETED"
    has_come_back(site, cuda, liar)
    assert not [line for line in cuda.log if line.startswith("illegal")]


def test_a_job_that_cannot_come_back_is_retried_with_what_it_held(site, cuda):
    site.start(simulate="1xA100-40GB")
    honest, liar = honest_beside_a_liar(site, cuda)
    wait_until(site, lambda: "checkpointed" in cuda.states.values())
    cuda.let("break-restore", "finish-honest")
    site.wait(honest)
    wait_until(site, lambda: site.client.job(liar)["attempts"] == 2)
    first = site.client.job(liar)["attempt_list"][0]
    assert "suspended, and not restored to its GPU: process" in first["exit"]["detail"]
    assert site.client.job(liar)["min_memory_bytes"] > 36 * GIB
    cuda.let("finish-liar")
    assert site.wait(liar)["state"] == "COMPLETED"


def test_a_program_that_is_too_old_stops_the_daemon(site, cuda):
    (cuda.folder / "cuda-checkpoint").write_text("#!/bin/sh\necho --toggle --pid\n")
    answer = site.cli("daemon", "--simulate", "1xA100-40GB")
    assert answer.returncode != 0
    assert "has no --get-state and no --action" in answer.stderr
    assert "install that of driver 570 or newer" in answer.stderr
