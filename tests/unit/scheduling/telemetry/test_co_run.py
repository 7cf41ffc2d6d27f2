from __future__ import annotations

import json

import pytest

from cotenant.core.gpu import GpuSample
from cotenant.scheduling.telemetry.co_run import MAX_CO_RUNS, MIN_CO_RUN_S, CoRunAccumulator, CoRunSampler

ME = 5


def group(*neighbor_ids):
    return tuple(sorted([ME, *neighbor_ids]))


ALONE = group()


def sample(smact=0.5, at_s=0.0, **measures):
    return GpuSample(at_s=at_s, used_bytes=1, smact=smact, **measures)


def sampled(*intervals):
    """An accumulator of (neighbor ids, seconds, sample, steps a second)."""
    co_runs = CoRunSampler(ME)
    for neighbor_ids, seconds, reading, steps_hz in intervals:
        co_runs.add_sample(group(*neighbor_ids), seconds, reading, steps_hz)
    return co_runs


def test_each_group_of_neighbors_has_its_time_and_means():
    alone, shared = sampled(
        ((), 10.0, sample(0.2, drama=0.1), None),
        ((), 30.0, sample(0.6, drama=0.1), 4.0),
        ((7,), 20.0, sample(0.9), 2.0),
    ).co_runs()
    assert (alone.neighbor_ids, alone.seconds, alone.steps_hz) == ((), 40.0, 4.0)
    assert (alone.smact, alone.drama) == pytest.approx((0.5, 0.1))
    assert (shared.neighbor_ids, shared.smact, shared.steps_hz) == ((7,), pytest.approx(0.9), 2.0)


def test_neighbor_ids_exclude_the_job_itself():
    (co_run,) = sampled(((3, 7), 20.0, sample(), None)).co_runs()
    assert co_run.neighbor_ids == (3, 7)


def test_solo_activity_requires_a_minimum_time_alone():
    co_runs = sampled(((), 6.0, sample(0.2), None))
    assert co_runs.solo_smact() is None
    co_runs.add_sample(ALONE, 6.0, sample(0.4), None)
    co_runs.add_sample(group(7), 20.0, sample(0.9), None)
    assert co_runs.solo_smact() == pytest.approx(0.3)


def test_solo_activity_without_samples_is_unknown():
    assert sampled(((), 20.0, sample(None), None)).solo_smact() is None


def test_a_measure_sampled_half_of_the_time_has_no_mean():
    (co_run,) = sampled(((), 10.0, sample(0.2), None), ((), 10.0, sample(None), float("nan"))).co_runs()
    assert (co_run.smact, co_run.smocc, co_run.steps_hz) == (None, None, None)


def test_a_measure_sampled_most_of_the_time_is_averaged_over_that_time():
    readings = (0.2, None, 0.2, float("nan"), *[0.4] * 6)
    (co_run,) = sampled(*(((), 10.0, sample(smact), None) for smact in readings)).co_runs()
    assert co_run.smact == pytest.approx((0.2 * 2 + 0.4 * 6) / 8)


@pytest.mark.parametrize(
    ("readings", "rates"),  # readings as (time, neighbors, steps a second, over so many seconds); 10 s apart
    [
        pytest.param([(10, (), 4.0, 10.0)], {(): 4.0}, id="over the interval"),
        pytest.param([(10, (), None, None), (20, (), 4.0, 20.0)], {(): 4.0}, id="over two"),
        pytest.param([(10, (), 4.0, 10.0), (20, (), 1.0, 5.0)], {(): 3.0}, id="weighted by its time"),
        pytest.param([(10, (), 9.0, 10.0), (20, (7,), 4.0, 20.0)], {(): 9.0, (7,): None}, id="into another group"),
        pytest.param([(10, (), None, None), (40, (), 4.0, 30.0)], {(): None}, id="into a gap"),
        pytest.param(
            [(10, (7,), 9.0, 10.0), (20, (), 9.0, 10.0), (30, (7,), 4.0, 30.0)], {(7,): 9.0, (): 9.0}, id="across one"
        ),
        pytest.param([(10, (), 4.0, 0.0)], {(): None}, id="over no time"),
        pytest.param([(10, (), 4.0, float("nan"))], {(): None}, id="over an unknown time"),
        pytest.param([(10, (), float("inf"), 10.0)], {(): None}, id="infinite"),
    ],
)
def test_a_step_rate_counts_only_if_its_whole_interval_is_in_one_group(readings, rates):
    co_runs = CoRunSampler(ME)
    for at_s, neighbor_ids, steps_hz, steps_s in readings:
        co_runs.add_sample(group(*neighbor_ids), 10.0, sample(at_s=at_s), steps_hz, steps_s)
    assert {co_run.neighbor_ids: co_run.steps_hz for co_run in co_runs.co_runs()} == rates


def test_the_current_co_run_is_that_of_the_newest_sample():
    co_runs = CoRunSampler(ME)
    assert co_runs.current() is None
    co_runs.add_sample(ALONE, 20.0, sample(0.3), None)
    co_runs.add_sample(group(7), 9.0, sample(0.9), None)
    assert co_runs.current() is None, "too short"
    co_runs.add_sample(group(7), 2.0, sample(0.9), 5.0)
    current = co_runs.current()
    assert (current.neighbor_ids, current.seconds, current.steps_hz) == ((7,), 11.0, 5.0)


def test_state_survives_json():
    co_runs = sampled(((), 20.0, sample(0.3), 4.0), ((7, 8), 30.0, sample(0.9, drama=0.2), None))
    restored = CoRunSampler(ME)
    restored.restore(json.loads(json.dumps(co_runs.state())))
    assert restored.co_runs() == co_runs.co_runs() != ()


@pytest.mark.parametrize("state", [[[[5], [1.0]]], [[[5]]], [[["x"], [0.0] * 9]]])
def test_a_malformed_state_is_refused_and_changes_nothing(state):
    co_runs = CoRunAccumulator(ME)
    with pytest.raises((ValueError, TypeError)):
        co_runs.restore([[ALONE, [100.0] * 9], *state])
    assert co_runs.co_runs() == ()


def test_the_longest_co_runs_are_reported_and_short_ones_dropped():
    co_runs = CoRunAccumulator(ME)
    for neighbor in range(10, 50):
        co_runs.add_interval(group(neighbor), float(neighbor))
    longest = co_runs.co_runs()
    assert len(longest) == MAX_CO_RUNS
    assert [co_run.neighbor_ids for co_run in longest[:2]] == [(49,), (48,)]
    brief = CoRunAccumulator(ME)
    brief.add_interval(ALONE, MIN_CO_RUN_S - 0.1)
    assert brief.co_runs() == ()


def test_an_interval_adds_activity_and_steps():
    co_runs = CoRunAccumulator(ME, gpu_memory_bytes=7)
    co_runs.add_interval(ALONE, 10.0, 0.2, 0.1, 0.4, steps=20.0, steps_s=10.0)
    co_runs.add_interval(ALONE, 30.0, 0.6, 0.1, 0.0, steps=20.0, steps_s=30.0)
    (co_run,) = co_runs.co_runs()
    assert (co_run.smact, co_run.smocc, co_run.drama, co_run.steps_hz) == pytest.approx((0.5, 0.1, 0.1, 1.0))
    assert co_run.gpu_memory_bytes == 7


def test_the_number_of_groups_is_bounded():
    co_runs = CoRunAccumulator(ME)
    co_runs.add_interval(group(1), 500.0)
    for neighbor in range(1000):
        co_runs.add_interval(group(2, neighbor), 1.0)
    assert len(co_runs.state()) <= 4 * MAX_CO_RUNS
    assert co_runs.co_runs()[0].neighbor_ids == (1,)
