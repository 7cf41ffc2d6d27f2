"""The presets of the thesis: their conditions, their GPUs, and jobs of unknown memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_gpu, a_job, a_resident
from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.scheduling.demand import GpuSizes
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.simulate import simulate
from placers import AT_S, busy, decided, gpu, placer, verdict

ALL = ("lug", "magm", "mug", "obf", "off", "olug", "owf", "rr")


def server():
    """GPU 0: half full, little active; 1: fuller, less active; 2: nearly empty, busy but below the limit."""
    return (
        gpu(0, busy(20), smact=0.40),
        gpu(1, busy(24), smact=0.30),
        gpu(2, busy(8), smact=0.70),
        gpu(3, busy(2), smact=0.81),
    )


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("off", 0), ("obf", 1), ("owf", 2), ("olug", 1), ("magm", 2), ("lug", 1), ("mug", 2)],
)
def test_each_preset_takes_its_gpu_among_those_at_80_percent_or_less(name, chosen):
    assert decided(placer(f"thesis-{name}", *server()), a_job(1, 6)) == {1: (f"GPU-{chosen}",)}


def test_round_robin_has_no_condition():
    work = placer("thesis-rr", *server())
    jobs = [a_job(number, None) for number in range(1, 5)]
    assert list(decided(work, *jobs).values()) == [("GPU-0",), ("GPU-1",), ("GPU-2",), ("GPU-3",)]


def test_smact_of_exactly_the_limit_passes():
    assert decided(placer("thesis-magm", gpu(0, busy(2), smact=0.80)), a_job(1, 6)) == {1: ("GPU-0",)}
    closed = placer("thesis-magm", gpu(0, busy(2), smact=0.801))
    assert decided(closed, a_job(1, 6)) == {}
    assert verdict(closed).startswith("smact_too_high: SMACT 0.80, limit 0.80")


@pytest.mark.parametrize("name", ["magm", "lug", "mug"])
def test_a_job_of_unknown_memory_needs_5_gib_free_and_is_promised_them(name):
    work = placer(f"thesis-{name}", gpu(0, busy(34.9), smact=0.1))
    work.add(a_job(1, None))
    (found,) = work.decide(AT_S)
    assert (found.promised_bytes, found.sharing) == (5 * GiB, "mps")
    assert decided(placer(f"thesis-{name}", gpu(0, busy(35.1), smact=0.1)), a_job(1, None)) == {}
    alone = placer(f"thesis-{name}", gpu(0, busy(2), smact=0.1), floor_gib=None)
    assert decided(alone, a_job(1, None)) == {}, "without a floor it waits for an empty GPU"


@pytest.mark.parametrize("name", ["off", "obf", "owf", "olug"])
def test_an_oracle_leaves_2_gib_and_shares_no_gpu_with_the_unknown(name):
    fits = placer(f"thesis-{name}", gpu(0, busy(31.9), smact=0.1))
    assert decided(fits, a_job(1, 6)) == {1: ("GPU-0",)}
    full = placer(f"thesis-{name}", gpu(0, busy(32.1), smact=0.1))
    assert decided(full, a_job(1, 6)) == {}
    assert "2.0 GiB of headroom" in verdict(full)
    assert decided(placer(f"thesis-{name}", gpu(0, busy(2), smact=0.1)), a_job(1, None)) == {}


@pytest.mark.parametrize("name", ALL)
def test_a_gpu_is_looked_at_once_its_newest_task_was_active_for_the_window(name):
    fresh = a_resident(2, 2, sharing="mps", placed_at_s=AT_S - 60, first_active_at_s=AT_S - 50)
    work = placer(f"thesis-{name}", gpu(0, fresh, smact=0.1))
    assert decided(work, a_job(1, 6)) == {}
    assert decided(work, at_s=AT_S + 39) == {}
    assert decided(work, at_s=AT_S + 40) == {1: ("GPU-0",)}


@pytest.mark.parametrize("name", ALL)
def test_tasks_start_in_order(name):
    work = placer(f"thesis-{name}", gpu(0, busy(20), smact=0.1))
    assert decided(work, a_job(1, 30), a_job(2, 4)) == {}


def test_a_wrong_option_is_refused():
    with pytest.raises(UsageError, match="SMACT"):
        create("thesis-magm", {"smact_limit": 80})
    with pytest.raises(UsageError, match="an unknown need"):
        create("thesis-magm", {"floor_gib": -1.0})


def test_the_window_of_the_preset_is_that_of_the_daemon_and_of_the_simulator():
    assert Manager(create("thesis-magm"))._telemetry._window_s == 90.0
    assert Manager(create("most-memory"))._telemetry._window_s == 30.0
    assert SimulationConfig().with_window(90.0).window_s == 90.0
    assert SimulationConfig(window_s=120.0).with_window(90.0).window_s == 120.0


def test_nothing_is_learned_from_earlier_runs():
    policy = create("thesis-owf")
    sizes = GpuSizes([a_gpu()])
    assert policy.demand(a_job(1, 6), sizes, learned_bytes=20 * GiB).bytes == 6 * GiB
    assert replace(policy, uses_history=True).demand(a_job(1, 6), sizes, 20 * GiB).bytes == 20 * GiB


def test_a_replay_of_the_thesis_trace_ends_with_every_preset():
    trace = traces.load("mix-90")
    for name in ALL:
        run = simulate(trace, cluster.parse("4xA100-40GB"), f"thesis-{name}", estimator="oracle")
        assert run.completed == 90, name
