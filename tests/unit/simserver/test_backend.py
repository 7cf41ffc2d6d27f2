"""The simulated server: memory, energy and the death of anybody at any moment."""

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
    ("cards", "models"),
    [
        pytest.param("1xL4-24GB", ["L4-24GB"], id="one"),
        pytest.param("2xA100-40GB, 1xT4-16GB", ["A100-40GB", "A100-40GB", "T4-16GB"], id="two kinds"),
    ],
)
def test_create(tmp_path, cards, models):
    SimulatedServer.create(tmp_path, cards)
    gpus = SimulatedBackend(tmp_path).inventory()
    assert [each.name for each in gpus] == models
    assert [each.memory_total_bytes for each in gpus] == [gpu_spec(model).memory_total_bytes for model in models]


@pytest.mark.parametrize(
    ("cards", "options", "error", "message"),
    [
        pytest.param("A100-40GB", {}, UsageError, "is not a number of cards", id="no number"),
        pytest.param("0xA100-40GB", {}, UsageError, "is not a number of cards", id="none"),
        pytest.param("2xA100-41GB", {}, UnknownName, "no simulated card named `A100-41GB`", id="no such card"),
        pytest.param("1xL4-24GB", {"time_scale": 0}, UsageError, "`time_scale` must be > 0, got 0", id="time stands"),
    ],
)
def test_create_refuses(tmp_path, cards, options, error, message):
    with pytest.raises(error, match=message):
        SimulatedServer.create(tmp_path, cards, **options)


def test_create_twice_is_refused(server):
    with pytest.raises(UsageError, match="holds a simulated server already"):
        SimulatedServer.create(server.folder, "1xL4-24GB")


def test_newer_files_are_refused(server):
    told = json.loads((server.folder / "server.json").read_text())
    (server.folder / "server.json").write_text(json.dumps({**told, "schema": 99}))
    with pytest.raises(BackendError, match="schema 99, wanted 2"):
        SimulatedServer.open(server.folder)


def test_uuids_follow_from_the_seed(tmp_path):
    first, same, other = (
        SimulatedServer.create(tmp_path / name, "2xL4-24GB", seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.uuids == same.uuids
    assert not set(first.uuids) & set(other.uuids)


def test_memory(server):
    card = server.attach(server.uuids[0], context_bytes=GIB)
    card.allocate(30 * GIB)
    card.free(10 * GIB)
    assert server.card(0).used_bytes == 21 * GIB
    assert server.card(1).used_bytes == 0
    card.allocate(19 * GIB)  # to the last byte
    assert server.card(0).free_bytes == 0
    card.detach()
    assert server.card(0).used_bytes == 0


def test_full_card(server):
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
    assert server.card(0).used_bytes == 37 * GIB


def test_context_that_does_not_fit(server):
    server.attach("0", context_bytes=40 * GIB)
    with pytest.raises(SimulatedOutOfMemory):
        server.attach("0", context_bytes=1)
    assert len(server.card(0).processes) == 1


def test_unknown_card(server):
    with pytest.raises(UnknownName, match="no GPU named `GPU-x`"):
        server.attach("GPU-x", context_bytes=0)
    with pytest.raises(UnknownName):
        server.attach("2", context_bytes=0)


def test_energy_is_that_of_the_time_between_changes(server, clock):
    backend = SimulatedBackend(server.folder)

    def energy_j():
        return backend.sample(0.0)[server.uuids[0]].energy_j

    clock.now_s += 1  # 10 virtual seconds of idle
    assert energy_j() == pytest.approx(495)
    card = server.attach("0", context_bytes=GIB)
    clock.now_s += 1
    assert energy_j() == pytest.approx(990), "a context alone costs nothing more"
    card.set_activity(smact=0.8, utilization=0.5, speed=0.5)
    clock.now_s += 1
    worked_j = 990 + 495 + 10 * 225.6 * 0.5
    assert energy_j() == pytest.approx(worked_j)
    card.detach()
    assert energy_j() == pytest.approx(worked_j)


def test_a_card_draws_what_the_simulator_says_it_does(server):
    first = server.attach("0", context_bytes=GIB)
    first.set_activity(smact=0.64)
    second = server.attach("0", context_bytes=GIB)
    second.set_activity(smact=0.25, utilization=0.5)
    members = [TrueActivity(None, 0.64), TrueActivity(None, 0.25, utilization=0.5)]
    expected_w = power_model(server.card(0).model).watts(2, busy_share(members))
    assert SimulatedBackend(server.folder).sample(0.0)[server.uuids[0]].power_w == pytest.approx(expected_w)


def test_sm_times_tell_processes_apart(server):
    for smact, speed in ((0.8, 0.5), (0.6, 1.0)):
        server.attach("0", context_bytes=GIB).set_activity(smact=smact, speed=speed)
    processes = SimulatedBackend(server.folder).sample(0.0)[server.uuids[0]].processes
    assert sorted(process.sm for process in processes) == pytest.approx([0.4, 0.6])


def test_activity(server):
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
    assert server.card(0).smact == 1.0


def test_changes_tell_who_was_active_when(server, clock):
    first = server.attach("0", context_bytes=GIB, label="a")
    clock.now_s += 1
    first.set_activity(smact=0.8)
    clock.now_s += 1
    first.set_activity(smact=0.8, speed=0.5)  # its speed follows from others: no change of what it would do
    second = server.attach("0", context_bytes=GIB, label="b")
    second.set_activity(smact=0.3)
    clock.now_s += 1
    first.detach()
    told = [(change.at_s, [label for _, label, _ in change.active]) for change in second.changes()]
    assert told == [(0.0, []), (10.0, ["a"]), (20.0, ["a", "b"]), (30.0, ["b"])]
    assert [partner.label for partner in second.partners()] == []


def test_failed_card(server):
    server.set_failed("1", failed=True)
    assert list(SimulatedBackend(server.folder).sample(0.0)) == [server.uuids[0]]
    server.set_failed("1", failed=False)
    assert len(SimulatedBackend(server.folder).sample(0.0)) == 2


def test_unreadable_card_is_left_out(server):
    (server.folder / "card-0.json").write_text("{")
    assert list(SimulatedBackend(server.folder).sample(0.0)) == [server.uuids[1]]


def test_reboot_empties_the_cards_and_time_goes_on(server, clock, monkeypatch):
    clock.now_s += 5
    server.attach("0", context_bytes=GIB)
    for module in (procfs, server_module):
        monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    clock.now_s = 3.0
    again = SimulatedServer.open(server.folder)
    assert again.now_s() == pytest.approx(50)
    assert again.card(0).processes == ()
    clock.now_s += 1
    assert SimulatedServer.open(server.folder).now_s() == pytest.approx(60)


def test_pid_that_was_used_again_is_another_process(server):
    server.attach("0", context_bytes=GIB)
    path = server.folder / "card-0.json"
    told = json.loads(path.read_text())
    told["processes"][0]["start_ticks"] += 1
    path.write_text(json.dumps(told))
    assert server.card(0).used_bytes == 0


HOLDER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from cotenant.simserver.backend import SimulatedServer
    card = SimulatedServer.open(Path(sys.argv[1])).attach("0", context_bytes=2**30)
    print("attached", flush=True)
    while True:
        card.allocate(2**20)
        card.free(2**20)
""")


def test_killed_processes_leave_a_sound_card(server):
    """Killed again and again while they write, holding the lock or between two files."""
    for _ in range(8):
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(server.folder)], stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "attached\n"
        assert server.card(0).used_bytes >= GIB
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        assert server.card(0).used_bytes == 0
    server.attach("0", context_bytes=40 * GIB)


def test_zombie_holds_no_memory(server):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(server.folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "attached\n"
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has asked how
    assert server.card(0).used_bytes == 0
    holder.communicate()


ADDER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from cotenant.simserver.backend import SimulatedServer
    card = SimulatedServer.open(Path(sys.argv[1])).attach("0", context_bytes=0)
    for _ in range(100):
        card.allocate(2**20)
    print("done", flush=True)
    sys.stdin.read()
""")


def test_changes_of_several_processes_are_not_lost(server):
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, str(server.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        assert [adder.stdout.readline() for adder in adders] == ["done\n"] * 3
        assert server.card(0).used_bytes == 300 * 2**20
    finally:
        for adder in adders:
            adder.communicate()
