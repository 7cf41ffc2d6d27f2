"""Simulated jobs: real processes on a simulated server, in fast virtual time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cotenant.core.units import GiB
from cotenant.runner.oom_evidence import evidence
from cotenant.simserver import fake_job as job_module
from cotenant.simserver.backend import SimulatedBackend, SimulatedServer
from cotenant.simserver.gpu import read_gpu
from cotenant.simserver.oom_message import _size

TIMEOUT_S = 60


@pytest.fixture
def server(tmp_path):
    return SimulatedServer.create(tmp_path / "server", "2xA100-40GB", time_scale=500)


@pytest.fixture
def start(server):
    jobs = []

    def start(*argv, gpus=None):
        env = {**os.environ, "COTENANT_SIM_SERVER": str(server.folder)}
        env["CUDA_VISIBLE_DEVICES"] = server.uuids[0] if gpus is None else gpus
        jobs.append(
            subprocess.Popen(
                [sys.executable, "-m", "cotenant.simserver.fake_job", *argv],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return jobs[-1]

    yield start
    for job in jobs:
        if job.poll() is None:
            job.kill()
            job.communicate()


def wait_until(holds):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s
        time.sleep(0.005)
    return found


def done_s(job):
    out, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0, err
    return float(re.search(r"done in ([\d.]+) s", out)[1])


def test_a_job_alone_takes_its_duration(start):
    job = start("--workload", "mnist_bs32")
    # Starting Python takes a part of the launch delay; were it longer, the job would end that much later.
    assert done_s(job) >= 140.44


def test_progress_lines_show_share_and_speed(start):
    out, _ = start("--duration", "50", "--delay", "1").communicate(timeout=TIMEOUT_S)
    assert "100 %, speed 1.00" in out


def test_a_job_grows_to_its_peak_and_frees_all_at_sigterm(server, start):
    job = start("--peak-gib", "12.5", "--duration", "1e6", "--delay", "50")
    seen = []

    def at_peak():
        seen.append(server.gpu(0).used_bytes)
        return seen[-1] == int(12.5 * GiB)

    wait_until(at_peak)
    assert seen == sorted(seen)
    found = SimulatedBackend(server.folder).sample(0.0)[server.uuids[0]]
    assert [(process.pid, process.used_bytes) for process in found.processes] == [(job.pid, int(12.5 * GiB))]
    wait_until(lambda: server.gpu(0).smact > 0)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 143
    assert server.gpu(0).processes == ()


def test_a_workload_may_grow_again_later(server, monkeypatch):
    """U-Net shows 5.5 GiB in its first 200 s and 9.7 GiB later; here in a time that passes while it sleeps."""
    now_s, seen = [0.0], []
    plan = job_module._plan(job_module._parse(["--workload", "unet_voc", "--delay", "5"]), server.seed)
    monkeypatch.setattr(server, "now_s", lambda: now_s[0])
    job = job_module.SimulatedJob(server, [server.uuids[0]], plan)

    def sleep(real_s, _):
        seen.append((now_s[0], server.gpu(0).used_bytes))
        now_s[0] += real_s * server.time_scale

    monkeypatch.setattr(job, "_sleep", sleep)
    monkeypatch.setattr(job, "_sleep_until", lambda virtual_s: now_s.__setitem__(0, virtual_s))
    assert job.run() == 0
    assert {size for at_s, size in seen if at_s < 205} == {5636 * 2**20}
    assert {size for at_s, size in seen if at_s > 206} == {9910 * 2**20}


def test_a_full_gpu_ends_the_job_with_an_oom_message(server, start):
    foreign = server.attach("0", context_bytes=GiB)
    foreign.allocate(34 * GiB)
    job = start("--peak-gib", "8", "--duration", "1e6", "--delay", "50")
    out, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1
    assert "GPU 0 has a total capacity of 40.00 GiB" in err
    assert f"Process {os.getpid()} has 35.00 GiB memory in use." in err
    found = evidence([out, err], failed=True)
    assert found["exception"]
    assert 0 < found["tried_bytes"] < 8 * GiB
    assert found["in_use_bytes"] <= 5.01 * GiB
    assert server.gpu(0).used_bytes == 35 * GiB


def test_the_oom_message_numbers_gpus_as_the_process_sees_them(server, start):
    server.attach("0", context_bytes=40 * GiB)
    job = start("--peak-gib", "8", "--duration", "1e6", "--delay", "50", gpus=f"{server.uuids[1]},{server.uuids[0]}")
    _, err = job.communicate(timeout=TIMEOUT_S)
    assert "GPU 1 has a total capacity" in err  # as the process counts them
    assert server.gpu(1).used_bytes == 0


def test_a_job_of_two_gpus_allocates_on_both(server, start):
    job = start("--peak-gib", "8", "--duration", "1e6", "--delay", "50", gpus=",".join(server.uuids))
    wait_until(lambda: [server.gpu(i).used_bytes for i in range(2)] == [8 * GiB] * 2)
    assert {process.pid for i in range(2) for process in server.gpu(i).processes} == {job.pid}


def test_a_neighbor_slows_a_job_down_as_measured(server, start):
    """EfficientNet beside VGG16 was measured at 0.5245 of its speed alone, VGG16 at 0.8798."""
    partner = start("--workload", "vgg16_imagenet_bs64", "--duration", "1e6", "--delay", "5")
    wait_until(lambda: server.gpu(0).smact > 0)
    first = start("--workload", "efficientnet_imagenet_bs64", "--duration", "1e6", "--delay", "5")
    wait_until(lambda: [p.speed for p in server.gpu(0).processes if p.pid == partner.pid] == [pytest.approx(0.8798)])
    first.kill()
    first.wait()
    job = start("--workload", "efficientnet_imagenet_bs64", "--duration", "500", "--delay", "5")
    out, _ = job.communicate(timeout=TIMEOUT_S)
    assert set(re.findall(r"speed ([\d.]+)", out)) == {"0.52"}
    assert float(re.search(r"done in ([\d.]+) s", out)[1]) >= 5 + 495 / 0.5245 - 0.1


def test_a_job_speeds_up_when_its_neighbor_is_killed(server, start):
    first = start("--workload", "efficientnet_imagenet_bs64", "--duration", "1e6", "--delay", "5")
    second = start("--workload", "vgg16_imagenet_bs64", "--duration", "1e6", "--delay", "5")

    def speed_of(pid):
        # Read the file directly: `server.gpu` would remove killed processes itself.
        gpu = read_gpu(server.folder / "card-0.json")
        return [process.speed for process in gpu.processes if process.pid == pid and process.smact > 0]

    wait_until(lambda: speed_of(first.pid) == [pytest.approx(0.5245)])
    second.kill()
    second.communicate()
    wait_until(lambda: speed_of(first.pid) == [1.0])


def test_fail_after_ends_the_job_with_the_code(start):
    job = start("--duration", "1000", "--fail-after", "100", "--fail-code", "9")
    out, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 9
    assert "RuntimeError" in err
    assert evidence([out, err], failed=True) == {}


@pytest.mark.parametrize(
    ("argv", "gpus", "code", "message"),
    [
        pytest.param(["--duration", "0"], None, 2, "must be > 0, got", id="no duration"),
        pytest.param(["--smact", "1.5"], None, 2, "must be from 0 to 1, got", id="SM activity above 1"),
        pytest.param([], "", 2, "CUDA_VISIBLE_DEVICES is empty", id="no GPU"),
        pytest.param(["--workload", "resnet"], None, 2, "no workload named `resnet`", id="unknown workload"),
        pytest.param([], "GPU-x", 2, "no GPU named `GPU-x`", id="unknown GPU"),
    ],
)
def test_a_wrong_argument_is_refused_without_a_traceback(start, argv, gpus, code, message):
    job = start(*argv, gpus=gpus)
    _, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == code
    assert message in err
    assert "Traceback" not in err


def test_drawn_delays_follow_the_seed():
    def delay_s(seed, server_seed=0):
        return job_module._plan(job_module._parse(["--seed", str(seed)]), server_seed).delay_s

    drawn = sorted(delay_s(seed) for seed in range(400))
    assert delay_s(3) == delay_s(3) != delay_s(4)
    assert delay_s(3) != delay_s(3, server_seed=1)
    assert 7 < drawn[200] < 9.5
    assert 16 < drawn[380] < 26


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (2**20, "1024.00 KiB"),
        (2**30, "1024.00 MiB"),
        (20 * 2**20, "20.00 MiB"),
        (2 * GiB, "2.00 GiB"),
        (1536, "1.50 KiB"),
    ],
)
def test_sizes_are_written_as_torch_writes_them(size, text):
    assert _size(size) == text
