"""What a policy is shown of a world, and when it is asked."""

from __future__ import annotations

import math

import pytest

from cotenant.core.units import GiB
from cotenant.scheduling.policies import create
from cotenant.sim import cluster
from cotenant.sim.engine import observations as world_shown
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.sim_gpu import SimGpu
from cotenant.sim.power import power_model
from cotenant.sim.simulate import simulate
from worlds import NO_DELAY, Eager, Halves, a_profile, a_trace


def test_readings_are_means_of_what_was_and_promises_count():
    eager = Eager()
    trace = a_trace((0.0, 100.0, 1, a_profile("a", 8, smact=0.6)), (20.5, 100.0, 1, a_profile("b", 4, smact=0.2)))
    simulate(trace, cluster.parse("1xA100-40GB"), eager, interference=Halves(), config=NO_DELAY)
    second = eager.seen[1]
    assert second.at_s == 20.5
    resident = second.gpus[0].residents[0]
    assert (resident.promised_bytes, resident.observed_bytes, resident.first_active_at_s) == (8 * GiB, 8 * GiB, 0.0)
    readings = {each.at_s: each.smact for each in second.gpus[0].samples}
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
    at_12 = next(each for each in eager.seen if each.at_s == 12.0)
    readings = {each.at_s: each.smact for each in at_12.gpus[0].samples}
    assert readings[11.0] == pytest.approx(0.25 * 0.6 + 0.75 * (0.6 + 0.2) / 2)
    assert readings[12.0] == pytest.approx(0.4)


def shown_on_a_cluster(config: SimulationConfig = NO_DELAY) -> tuple[Observations, list[SimGpu], list[float]]:
    """On 100 GPUs, of which there are two; and the times at which it wants to be woken."""
    wakes: list[float] = []
    slots = cluster.parse("2xA100-40GB").slots
    cards = [SimGpu(each, power_model(each.gpu_type), record=False) for each in slots]
    return Observations(create("most-memory").placer(), wakes.append, config, gpus=100), cards, wakes


def test_a_policy_that_should_have_been_woken_is_asked_at_the_next_event():
    shown, _, wakes = shown_on_a_cluster()
    assert not shown.moving
    shown.wake(5.0, at_s=6.0)
    assert shown.moving
    shown.wake(7.0, at_s=6.0)
    assert not shown.moving
    shown.wake(7.0, at_s=6.5)
    assert wakes == [7.0]


def test_a_gpu_that_changed_is_worth_a_look_at_its_next_reading_and_twice_later():
    shown, (card, _), _ = shown_on_a_cluster()
    shown.moves(card, 0.5)
    looks = []
    while shown.next_look_s < math.inf:
        looks.append(shown.next_look_s)
        assert shown.look(shown.next_look_s)
    assert looks == [1.0, 16.0, 31.0]


def test_a_gpu_that_changed_again_is_not_worth_the_looks_of_before():
    shown, (card, _), _ = shown_on_a_cluster()
    shown.moves(card, 0.5)
    shown.moves(card, 0.7)
    shown.look(1.0)
    shown.moves(card, 10.0)
    assert shown.next_look_s == 16.0
    assert not shown.look(16.0)
    assert shown.next_look_s == 25.0


def test_looks_that_come_late_are_taken_once_and_stay_in_the_order_of_time():
    shown, (first, second), _ = shown_on_a_cluster()
    shown.moves(first, 0.5)
    shown.moves(second, 17.5)
    assert shown.look(20.0), "nobody looked at 1, 16 and 18"
    assert shown.next_look_s == 31.0
    assert shown.look(31.0)
    assert shown.next_look_s == 33.0
    assert shown.look(33.0)
    assert shown.next_look_s == 48.0


def test_a_gpu_that_changed_earlier_is_looked_at_earlier_however_late_others_are():
    shown, (first, second), _ = shown_on_a_cluster()
    shown.moves(first, 0.5)
    shown.look(1.0)
    shown.moves(second, 10.5)
    shown.look(28.0)
    assert shown.next_look_s == 31.0
    shown.look(31.0)
    assert shown.next_look_s == 41.0


def test_on_a_cluster_a_job_that_comes_finds_what_was_seen_while_nobody_waited(monkeypatch):
    monkeypatch.setattr(world_shown, "MAX_GPUS_WITH_READINGS", 0)
    trace = a_trace((0, 100, 1, a_profile(smact=0.9)), (60, 100, 1, a_profile(smact=0.9)))
    found = simulate(trace, cluster.parse("1xA100-40GB"), "most-memory", config=NO_DELAY, interference=Halves())
    assert list(found.start_s) == [0.0, 100.0]
