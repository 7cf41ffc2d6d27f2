"""The simulated server: memory accounting, energy, and processes killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from cotenant.core.errors import BackendError, UnknownName, UsageError
from cotenant.gpu_specs import gpu_spec
from cotenant.gpus.power_model import power_model
from cotenant.osutil import procfs
from cotenant.sim.engine.speeds import busy_share
from cotenant.sim.interference import TrueActivity
from cotenant.simserver import server as server_module
from cotenant.simserver.backend import SimulatedBackend, SimulatedOutOfMemory, SimulatedServer

GIB = 2**30


class Clock:
    """The machine's clock, moved by hand."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(server_module, "_clock_s", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def server(tmp_path, clock):
    return SimulatedServer.create(tmp_path / "server", "2xA100-40GB", time_scale=10)


@pytest.mark.parametrize(
    ("description", "models"),
    [
        pytest.param("1xL4-24GB", ["L4-24GB"], id="one"),
        pytest.param("2xA100-40GB, 1xT4-16GB", ["A100-40GB", "A100-40GB", "T4-16GB"], id="two kinds"),
    ],
)
def test_create_makes_the_described_gpus(tmp_path, description, models):
    SimulatedServer.create(tmp_path, description)
    gpus = SimulatedBackend(tmp_path).inventory()
    assert [gpu.name for gpu in gpus] == models
    assert [gpu.memory_total_bytes for gpu in gpus] == [gpu_spec(model).memory_total_bytes for model in models]


@pytest.mark.parametrize(
    ("description", "options", "error", "message"),
    [
        pytest.param("A100-40GB", {}, UsageError, "is not a number of GPUs", id="no number"),
        pytest.param("0xA100-40GB", {}, UsageError, "is not a number of GPUs", id="zero GPUs"),
        pytest.param("2xA100-41GB", {}, UnknownName, "no simulated GPU named `A100-41GB`", id="no such GPU"),
        pytest.param(
            "1xL4-24GB", {"time_scale": 0}, UsageError, "`time_scale` must be > 0, got 0", id="time does not pass"
        ),
    ],
)
def test_create_refuses_a_wrong_description(tmp_path, description, options, error, message):
    with pytest.raises(error, match=message):
        SimulatedServer.create(tmp_path, description, **options)


def test_create_in_an_existing_server_is_refused(server):
    with pytest.raises(UsageError, match="holds a simulated server already"):
        SimulatedServer.create(server.folder, "1xL4-24GB")


def test_files_of_a_newer_schema_are_refused(server):
    description = json.loads((server.folder / "server.json").read_text())
    (server.folder / "server.json").write_text(json.dumps({**description, "schema": 99}))
    with pytest.raises(BackendError, match="schema 99, wanted 2"):
        SimulatedServer.open(server.folder)


def test_uuids_follow_from_the_seed(tmp_path):
    first, same, other = (
        SimulatedServer.create(tmp_path / name, "2xL4-24GB", seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.uuids == same.uuids
    assert not set(first.uuids) & set(other.uuids)


def test_allocated_and_freed_bytes_are_counted(server):
    attachment = server.attach(server.uuids[0], context_bytes=GIB)
    attachment.allocate(30 * GIB)
    attachment.free(10 * GIB)
    assert server.gpu(0).used_bytes == 21 * GIB
    assert server.gpu(1).used_bytes == 0
    attachment.allocate(19 * GIB)  # to the last byte
    assert server.gpu(0).free_bytes == 0
    attachment.detach()
    assert server.gpu(0).used_bytes == 0


def test_an_allocation_beyond_the_free_memory_is_refused_with_the_numbers(server):
    other = server.attach("0", context_bytes=GIB, label="other")
    other.allocate(25 * GIB)
    own = server.attach("0", context_bytes=GIB)
    own.allocate(10 * GIB)
    with pytest.raises(SimulatedOutOfMemory) as caught:
        own.allocate(3 * GIB + 1)
    error = caught.value
    assert (error.tried_bytes, error.free_bytes, error.total_bytes) == (3 * GIB + 1, 3 * GIB, 40 * GIB)
    assert (error.own_bytes, error.own_allocated_bytes) == (11 * GIB, 10 * GIB)
    assert error.others == ((os.getpid(), 26 * GIB),)
    assert server.gpu(0).used_bytes == 37 * GIB


def test_a_context_that_does_not_fit_is_refused(server):
    server.attach("0", context_bytes=40 * GIB)
    with pytest.raises(SimulatedOutOfMemory):
        server.attach("0", context_bytes=1)
    assert len(server.gpu(0).processes) == 1


def test_an_unknown_gpu_is_refused(server):
    with pytest.raises(UnknownName, match="no GPU named `GPU-x`"):
        server.attach("GPU-x", context_bytes=0)
    with pytest.raises(UnknownName):
        server.attach("2", context_bytes=0)


def test_energy_is_power_times_virtual_time(server, clock):
    backend = SimulatedBackend(server.folder)

    def energy_j():
        return backend.sample(0.0)[server.uuids[0]].energy_j

    clock.now_s += 1  # 10 virtual seconds of idle
    assert energy_j() == pytest.approx(495)
    attachment = server.attach("0", context_bytes=GIB)
    clock.now_s += 1
    assert energy_j() == pytest.approx(990), "a context alone costs nothing more"
    attachment.set_activity(smact=0.8, utilization=0.5, speed=0.5)
    clock.now_s += 1
    worked_j = 990 + 495 + 10 * 225.6 * 0.5
    assert energy_j() == pytest.approx(worked_j)
    attachment.detach()
    assert energy_j() == pytest.approx(worked_j)


def test_a_gpu_draws_the_power_of_the_simulators_model(server):
    first = server.attach("0", context_bytes=GIB)
    first.set_activity(smact=0.64)
    second = server.attach("0", context_bytes=GIB)
    second.set_activity(smact=0.25, utilization=0.5)
    members = [TrueActivity(None, 0.64), TrueActivity(None, 0.25, utilization=0.5)]
    expected_w = power_model(server.gpu(0).model).watts(2, busy_share(members))
    assert SimulatedBackend(server.folder).sample(0.0)[server.uuids[0]].power_w == pytest.approx(expected_w)


def test_sm_times_are_reported_per_process(server):
    for smact, speed in ((0.8, 0.5), (0.6, 1.0)):
        server.attach("0", context_bytes=GIB).set_activity(smact=smact, speed=speed)
    processes = SimulatedBackend(server.folder).sample(0.0)[server.uuids[0]].processes
    assert sorted(process.sm for process in processes) == pytest.approx([0.4, 0.6])


def test_activity_adds_up_at_the_speeds_of_the_processes(server):
    first = server.attach("0", context_bytes=GIB)
    first.set_activity(smact=0.8, smocc=0.4, drama=0.2, utilization=0.9, speed=0.5)
    second = server.attach("0", context_bytes=GIB)
    second.set_activity(smact=0.5, smocc=0.2, drama=0.1, utilization=0.5)
    found = SimulatedBackend(server.folder).sample(0.0)[server.uuids[0]]
    assert found.smact == pytest.approx(0.9)
    assert found.smocc == pytest.approx(0.4)
    assert found.drama == pytest.approx(0.2)
    assert found.utilization == pytest.approx(0.95)
    second.set_activity(smact=0.9)
    assert server.gpu(0).smact == 1.0


def test_changes_list_the_active_processes_over_time(server, clock):
    first = server.attach("0", context_bytes=GIB, label="a")
    clock.now_s += 1
    first.set_activity(smact=0.8)
    clock.now_s += 1
    first.set_activity(smact=0.8, speed=0.5)  # its speed follows from others: no change of what it would do
    second = server.attach("0", context_bytes=GIB, label="b")
    second.set_activity(smact=0.3)
    clock.now_s += 1
    first.detach()
    active = [(change.at_s, [label for _, label, _ in change.active]) for change in second.changes()]
    assert active == [(0.0, []), (10.0, ["a"]), (20.0, ["a", "b"]), (30.0, ["b"])]
    assert [partner.label for partner in second.partners()] == []


def test_a_failed_gpu_is_in_no_sample(server):
    server.set_failed("1", failed=True)
    assert list(SimulatedBackend(server.folder).sample(0.0)) == [server.uuids[0]]
    server.set_failed("1", failed=False)
    assert len(SimulatedBackend(server.folder).sample(0.0)) == 2


def test_a_gpu_with_an_unreadable_file_is_left_out(server):
    (server.folder / "card-0.json").write_text("{")
    assert list(SimulatedBackend(server.folder).sample(0.0)) == [server.uuids[1]]


def test_a_reboot_empties_the_gpus_and_time_continues(server, clock, monkeypatch):
    clock.now_s += 5
    server.attach("0", context_bytes=GIB)
    for module in (procfs, server_module):
        monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    clock.now_s = 3.0
    again = SimulatedServer.open(server.folder)
    assert again.now_s() == pytest.approx(50)
    assert again.gpu(0).processes == ()
    clock.now_s += 1
    assert SimulatedServer.open(server.folder).now_s() == pytest.approx(60)


def test_a_reused_pid_is_another_process(server):
    server.attach("0", context_bytes=GIB)
    path = server.folder / "card-0.json"
    state = json.loads(path.read_text())
    state["processes"][0]["start_ticks"] += 1
    path.write_text(json.dumps(state))
    assert server.gpu(0).used_bytes == 0


HOLDER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from cotenant.simserver.backend import SimulatedServer
    attachment = SimulatedServer.open(Path(sys.argv[1])).attach("0", context_bytes=2**30)
    print("attached", flush=True)
    while True:
        attachment.allocate(2**20)
        attachment.free(2**20)
""")


def test_killed_processes_leave_a_consistent_gpu(server):
    """Eight processes are killed while they write: holding the lock, or between two files."""
    for _ in range(8):
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(server.folder)], stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "attached\n"
        assert server.gpu(0).used_bytes >= GIB
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        assert server.gpu(0).used_bytes == 0
    server.attach("0", context_bytes=40 * GIB)


def test_a_zombie_holds_no_memory(server):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(server.folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "attached\n"
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # ended, but not yet reaped
    assert server.gpu(0).used_bytes == 0
    holder.communicate()


ADDER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from cotenant.simserver.backend import SimulatedServer
    attachment = SimulatedServer.open(Path(sys.argv[1])).attach("0", context_bytes=0)
    for _ in range(100):
        attachment.allocate(2**20)
    print("done", flush=True)
    sys.stdin.read()
""")


def test_concurrent_allocations_of_processes_are_all_counted(server):
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, str(server.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        assert [adder.stdout.readline() for adder in adders] == ["done\n"] * 3
        assert server.gpu(0).used_bytes == 300 * 2**20
    finally:
        for adder in adders:
            adder.communicate()
