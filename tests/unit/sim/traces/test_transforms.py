"""Transforms of traces: repeat, resample, cut, scale."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.sim import traces
from cotenant.sim.trace import Trace, TraceJob
from cotenant.sim.traces import transforms


def bare(*jobs):
    """Jobs as (submit, duration, GPUs, user)."""
    return Trace("bare", [TraceJob(submit_s=at, duration_s=run, gpus=n, user=user) for at, run, n, user in jobs])


def test_assigned_workloads_resemble_the_jobs_and_keep_their_times():
    trace = bare((0, 150, 1, ""), (10, 14000, 1, ""), (20, 4000, 8, ""))
    found = transforms.assign(trace, seed=4)
    assert [(job.submit_s, job.duration_s, job.gpus) for job in found] == [
        (0, 150, 1),
        (10, 14000, 1),
        (20, 4000, 8),
    ]
    known = transforms.measured_a100()
    solo = [known[job.workload].solo_s for job in found]
    assert solo[0] < 500
    assert solo[1] > 2500
    assert known[found[2].workload].gpus == 2
    assert found.has_profiles
    assert not trace.has_profiles


def test_recurring_jobs_share_a_workload():
    again = [(60 * i, 1000 + 10 * i, 1, "ann") for i in range(12)]
    assert len(transforms.assign(bare(*again), seed=1).profiles) == 1
    foreign = [(60 * i, 1000 + 10 * i, 1, "") for i in range(12)]
    assert len(transforms.assign(bare(*foreign), seed=1).profiles) > 1
    apart = [(4000 * i, 1000, 1, "ann") for i in range(12)]
    assert len(transforms.assign(bare(*apart), seed=1).profiles) > 1


def test_the_window_is_the_part_that_resembles_the_whole():
    odd = [(1.0 * i, 9000.0, 8, "") for i in range(40)]
    usual = [(1000.0 + 60.0 * i, 100.0 + i % 7, 1, "") for i in range(400)]
    found = transforms.window(bare(*odd, *usual), 80)
    assert len(found) == 80
    assert found[0].submit_s == 0.0
    assert {job.gpus for job in found} == {1}
    with pytest.raises(UsageError, match="no window of 500"):
        transforms.window(bare(*usual), 500)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0.0),
        ([1, 2], [3, 4], 1.0),
        ([1, 2, 3, 4], [1, 2], 0.5),
        ([1, 1, 2], [1, 2, 2], 1 / 3),
    ],
)
def test_distance_of_distributions(first, second, distance):
    assert transforms.ks_distance(first, second) == pytest.approx(distance)


def test_a_repeated_trace_is_the_same_load_on_a_larger_cluster():
    trace = bare((0, 10, 1, "a"), (100, 20, 2, "b"))
    found = transforms.repeated(trace, 5, spread_s=30.0)
    assert len(found) == 10
    assert found.work_gpu_s == pytest.approx(5 * trace.work_gpu_s)
    assert [job.submit_s for job in found] == sorted(job.submit_s for job in found)
    assert {job.gpus for job in found if job.submit_s < 30} == {1}


def test_resampling_keeps_arrivals_and_draws_jobs():
    t1 = traces.load("t1")
    found, same, other = (transforms.resampled(t1, seed=seed) for seed in (7, 7, 8))
    assert list(found.submit_s) == list(t1.submit_s)
    assert found.digest() == same.digest() != other.digest()
    assert 15 < len(set(found.duration_s)) < len(set(t1.duration_s)) + 1
    assert list(found.duration_s) != list(t1.duration_s)


def test_one_group_is_cut_out():
    found = transforms.of_user(bare((0, 10, 1, "a"), (100, 20, 2, "b"), (130, 30, 1, "b")), "b")
    assert [(job.submit_s, job.duration_s) for job in found] == [(0, 20), (30, 30)]
    with pytest.raises(UsageError, match="no jobs of `c`") as caught:
        transforms.of_user(bare((0, 10, 1, "a")), "c")
    assert caught.value.hint == "it has a"


def test_jobs_are_laid_on_other_arrivals():
    found = transforms.onto_arrivals(bare((0, 10, 1, ""), (5, 20, 1, "")), [0.0, 1.0, 2.0], seed=1)
    assert list(found.submit_s) == [0.0, 1.0, 2.0]
    assert list(found.duration_s) in ([10, 20, 10], [20, 10, 20])


def test_inter_arrival_times_are_scaled():
    assert list(transforms.in_time(bare((0, 1, 1, ""), (10, 1, 1, "")), 0.5).submit_s) == [0.0, 5.0]
    with pytest.raises(UsageError, match="the arrival scale must be > 0, got 0"):
        transforms.in_time(bare((0, 1, 1, "")), 0.0)


def test_the_manifest_lists_the_transforms():
    found = transforms.manifest(transforms.resampled(transforms.first_jobs(traces.load("t1"), 10), seed=3))
    assert (found["trace"], found["jobs"]) == ("t1", 10)
    assert found["steps"] == ["the first 10 jobs", "jobs drawn with replacement (seed 3)"]
    assert len(found["digest"]) == 16
