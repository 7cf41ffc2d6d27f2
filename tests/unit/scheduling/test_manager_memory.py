"""What is full: promises, samples, foreign memory, and the effects of running out of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.events import AttemptExited
from cotenant.core.job import OomEvidence, Queued
from cotenant.core.units import GiB
from managers import OOM, Life, launches


def test_an_exit_frees_the_promised_memory_at_once():
    life = Life()
    life.submit(1, 30)
    life.submit(2, 30)
    assert life.state(2) is Queued
    assert launches(life.exit(1)) == [2]


def test_the_larger_of_promised_and_observed_memory_counts():
    life = Life(policy="first-fit")
    life.submit(1, 30)
    assert launches(life.submit(2, 11)) == [], "only 10 GiB are not promised"
    life.sample(used=[35], observed=[(1, 1, 0, 35)])
    assert launches(life.submit(3, 6)) == [], "job 1 outgrew its promise"
    assert launches(life.submit(4, 5)) == [4]


def test_an_observed_peak_counts_after_use_has_dropped():
    life = Life()
    life.submit(1, 10)
    life.sample(used=[35], observed=[(1, 1, 0, 35)])
    life.sample(used=[2], observed=[(1, 1, 0, 2)], at_s=1.0)
    assert life.manager.server_snapshot(1.0).gpus[0].available_bytes == 5 * GiB


@pytest.mark.parametrize(
    ("observed", "foreign_gib"),
    [
        pytest.param([(1, 1, 0, 8)], 4, id="ours is not a stranger's"),
        pytest.param([(1, 1, 0, 14)], 0, id="read a moment later: ours exceeds the total"),
        pytest.param([(9, 1, 0, 8)], 12, id="no such job"),
        pytest.param([(1, 2, 0, 8)], 12, id="no such attempt"),
        pytest.param([(1, 1, 0, -8)], 12, id="nonsense"),
    ],
)
def test_foreign_memory_is_used_memory_that_no_job_accounts_for(observed, foreign_gib):
    life = Life()
    life.submit()
    life.sample(used=[12], observed=observed, at_s=1.0)
    assert life.manager.server_snapshot(1.0).gpus[0].foreign_bytes == foreign_gib * GiB


def test_memory_of_a_job_on_a_gpu_it_was_not_given_is_foreign():
    life = Life(gpus=2)
    life.submit()
    life.sample(used=[0, 8], observed=[(1, 1, 1, 8)], at_s=1.0)
    assert [gpu.foreign_bytes for gpu in life.manager.server_snapshot(1.0).gpus] == [0, 8 * GiB]


def test_memory_of_an_ended_attempt_is_free_until_a_later_sample_still_shows_it():
    life = Life()
    life.submit()
    life.sample(used=[8], observed=[(1, 1, 0, 8)], at_s=1.0)
    life.exit()
    assert life.manager.server_snapshot(1.0).gpus[0].available_bytes == 40 * GiB
    life.sample(used=[8], observed=[(1, 1, 0, 8)], at_s=2.0)
    assert life.manager.server_snapshot(2.0).gpus[0].foreign_bytes == 8 * GiB


@pytest.mark.parametrize(
    ("used", "at_s"),
    [
        pytest.param([None], 1.0, id="unreadable"),
        pytest.param([-1], 1.0, id="negative"),
        pytest.param([41], 1.0, id="more than the GPU has"),
        pytest.param([0], -6.0, id="stale"),
        pytest.param([0], 6.0, id="from the future"),
    ],
)
def test_implausible_or_stale_samples_admit_no_job(used, at_s):
    life = Life()
    life.sample(used=used, at_s=at_s)
    life.at_s = 0.0 if abs(at_s) > 5 else at_s
    if at_s < 0:
        life.at_s = 6.0
    assert launches(life.submit()) == []
    assert [rejection.rule for rejection in life.manager.explain(1).rejections] == ["stale_telemetry"]


def test_a_gpu_missing_from_samples_becomes_stale():
    life = Life(gpus=2)
    life.sample(used=[0], at_s=6.0)
    assert [gpu.foreign_bytes for gpu in life.manager.server_snapshot(6.0).gpus] == [0, None]


def test_late_samples_are_ignored_and_a_clock_set_back_is_followed():
    life = Life()
    life.sample(used=[30], at_s=100.0)
    life.sample(used=[1], at_s=99.0)
    assert [sample.at_s for sample in life.manager.server_snapshot(100.0).gpus[0].samples] == [100.0]
    life.sample(used=[2], at_s=50.0)
    assert life.manager.server_snapshot(50.0).gpus[0].foreign_bytes == 2 * GiB


def test_samples_cover_a_window_of_30_s_and_are_bounded_in_number():
    life = Life(window_s=30.0)
    for second in range(1, 100):
        life.sample(at_s=float(second))
    times = [sample.at_s for sample in life.manager.server_snapshot(99.0).gpus[0].samples]
    assert times == [float(second) for second in range(69, 100)]
    for tenth in range(1000):
        life.sample(at_s=99 + tenth / 100)
    assert len(life.manager.server_snapshot(109.0).gpus[0].samples) == 256


# Out of memory.


def test_an_oom_is_retried_at_once_with_a_larger_promise():
    life = Life()
    life.submit(gib=8)
    (launch,) = life.exit(end=OOM)
    assert launch.placed.attempt == 2
    assert launch.placed.placement.promised_bytes == 12 * GiB


def test_the_third_attempt_waits_for_an_empty_gpu_while_others_pass():
    life = Life()
    life.submit(1)
    life.submit(2)
    life.exit(1, end=OOM)
    life.exit(1, attempt=2, end=OOM)
    assert life.job().exclusive_retry
    assert life.job().state.reason.startswith("retry after out of memory")
    assert launches(life.submit(3, 1)) == [3]
    life.exit(2)
    (launch,) = life.exit(3)
    assert (launch.placed.attempt, launch.placed.placement.sharing) == (3, "exclusive")
    life.exit(1, attempt=3, end=OOM)
    assert life.job().state.outcome == "oom"


def test_an_exit_is_completed_with_the_peaks_from_samples():
    life = Life()
    life.submit()
    life.sample(used=[39], observed=[(1, 1, 0, 9)], at_s=1.0)
    life.sample(used=[20], observed=[(1, 1, 0, 7)], at_s=2.0)
    bare = AttemptExited(at_s=3.0, cause="test", job_id=1, attempt=1, exit=OOM, peak_observed_bytes={})
    full = life.manager.with_telemetry(bare)
    assert full.peak_observed_bytes == {"GPU-0": 9 * GiB}
    assert full.exit.oom == OomEvidence(exception=True, free_bytes=GiB, total_bytes=40 * GiB)
    complete = replace(full, peak_observed_bytes={"GPU-0": 1}, exit=replace(OOM, oom=OomEvidence(free_bytes=5)))
    assert life.manager.with_telemetry(complete) == complete
    assert life.manager.with_telemetry(replace(bare, attempt=2)).exit == OOM
    late = life.manager.with_telemetry(replace(bare, at_s=60.0))
    assert late.exit.oom.free_bytes is None
    life.manager.handle(full)
    assert life.manager.with_telemetry(bare).peak_observed_bytes == {}, "what was seen of an ended attempt is forgotten"
