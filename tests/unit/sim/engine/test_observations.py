"""What a policy observes of the GPUs of a simulation, and when it decides."""

from __future__ import annotations

import math

import pytest

from cotenant.core.units import GiB
from cotenant.gpus.power_model import power_model
from cotenant.scheduling.policies import create
from cotenant.sim import cluster
from cotenant.sim.engine import observations as observations_module
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.sim_gpu import SimGpu
from cotenant.sim.simulate import simulate
from worlds import NO_DELAY, Eager, Halves, a_profile, a_trace


def test_readings_show_the_past_and_residents_their_promises():
    eager = Eager()
    trace = a_trace((0.0, 100.0, 1, a_profile("a", 8, smact=0.6)), (20.5, 100.0, 1, a_profile("b", 4, smact=0.2)))
    simulate(trace, cluster.parse("1xA100-40GB"), eager, interference=Halves(), config=NO_DELAY)
    second = eager.seen[1]
    assert second.at_s == 20.5
    resident = second.gpus[0].residents[0]
    assert (resident.promised_bytes, resident.observed_bytes, resident.first_active_at_s) == (8 * GiB, 8 * GiB, 0.0)
    readings = {sample.at_s: sample.smact for sample in second.gpus[0].samples}
    assert max(readings) == 20.0
    assert readings[20.0] == pytest.approx(0.6)


def test_a_reading_that_spans_a_change_is_a_mean_of_both_sides():
    eager = Eager()
    trace = a_trace(
        (0.0, 100.0, 1, a_profile("a", 8, smact=0.6)),
        (10.25, 100.0, 1, a_profile("b", 4, smact=0.2)),
        (12.0, 1.0, 1, a_profile("c", 4, smact=0.2)),
    )
    simulate(trace, cluster.parse("1xA100-40GB"), eager, interference=Halves(), config=NO_DELAY)
    at_12 = next(snapshot for snapshot in eager.seen if snapshot.at_s == 12.0)
    readings = {sample.at_s: sample.smact for sample in at_12.gpus[0].samples}
    assert readings[11.0] == pytest.approx(0.25 * 0.6 + 0.75 * (0.6 + 0.2) / 2)
    assert readings[12.0] == pytest.approx(0.4)


def on_a_cluster(config: SimulationConfig = NO_DELAY) -> tuple[Observations, list[SimGpu], list[float]]:
    """Observations of a cluster of 100 GPUs, two of them, and the times of scheduled wakes."""
    wakes: list[float] = []
    slots = cluster.parse("2xA100-40GB").slots
    gpus = [SimGpu(slot, power_model(slot.gpu_type), record=False) for slot in slots]
    return Observations(create("most-memory").placer(), wakes.append, config, gpus=100), gpus, wakes


def test_an_overdue_wake_lets_the_policy_decide_at_the_next_event():
    observations, _, wakes = on_a_cluster()
    assert not observations.is_changing
    observations.wake(5.0, at_s=6.0)
    assert observations.is_changing
    observations.wake(7.0, at_s=6.0)
    assert not observations.is_changing
    observations.wake(7.0, at_s=6.5)
    assert wakes == [7.0]


def test_a_gpu_that_changed_is_rechecked_at_its_next_reading_and_twice_later():
    observations, (gpu, _), _ = on_a_cluster()
    observations.activity_changed(gpu, 0.5)
    rechecks = []
    while observations.next_recheck_s < math.inf:
        rechecks.append(observations.next_recheck_s)
        assert observations.recheck(observations.next_recheck_s)
    assert rechecks == [1.0, 16.0, 31.0]


def test_a_gpu_that_changed_again_drops_its_earlier_rechecks():
    observations, (gpu, _), _ = on_a_cluster()
    observations.activity_changed(gpu, 0.5)
    observations.activity_changed(gpu, 0.7)
    observations.recheck(1.0)
    observations.activity_changed(gpu, 10.0)
    assert observations.next_recheck_s == 16.0
    assert not observations.recheck(16.0)
    assert observations.next_recheck_s == 25.0


def test_overdue_rechecks_happen_once_and_stay_in_time_order():
    observations, (first, second), _ = on_a_cluster()
    observations.activity_changed(first, 0.5)
    observations.activity_changed(second, 17.5)
    assert observations.recheck(20.0), "1, 16 and 18 are overdue"
    assert observations.next_recheck_s == 31.0
    assert observations.recheck(31.0)
    assert observations.next_recheck_s == 33.0
    assert observations.recheck(33.0)
    assert observations.next_recheck_s == 48.0


def test_a_gpu_that_changed_earlier_is_rechecked_earlier_however_late_others_are():
    observations, (first, second), _ = on_a_cluster()
    observations.activity_changed(first, 0.5)
    observations.recheck(1.0)
    observations.activity_changed(second, 10.5)
    observations.recheck(28.0)
    assert observations.next_recheck_s == 31.0
    observations.recheck(31.0)
    assert observations.next_recheck_s == 41.0


def test_on_a_cluster_an_arriving_job_finds_activity_observed_while_no_job_was_pending(monkeypatch):
    monkeypatch.setattr(observations_module, "MAX_GPUS_WITH_READINGS", 0)
    trace = a_trace((0, 100, 1, a_profile(smact=0.9)), (60, 100, 1, a_profile(smact=0.9)))
    found = simulate(trace, cluster.parse("1xA100-40GB"), "most-memory", config=NO_DELAY, interference=Halves())
    assert list(found.columns.start_s) == [0.0, 100.0]
