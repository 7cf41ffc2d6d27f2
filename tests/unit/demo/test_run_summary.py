"""Summary of a server's run."""

from __future__ import annotations

import dataclasses

import pytest

from builders import a_job
from cotenant.core.job import Attempt, AttemptExit, Done, Job, OomEvidence
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.demo.run_summary import compare_rows, summarize_run


def an_attempt(number=1, *, placed=0.0, ended=10.0, oom=False, gib=8.0, sharing="time-sliced") -> Attempt:
    evidence = OomEvidence(exception=oom)
    return Attempt(
        number=number,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing=sharing, promised_bytes=int(gib * GiB)),
        placed_at_s=placed,
        ended_at_s=ended,
        exit=AttemptExit(exit_code=1 if oom else 0, signal=None, reason="exited", oom=evidence),
    )


def a_done_job(job_id=1, *, at=0.0, done=10.0, outcome="completed", attempts=None, name="job") -> Job:
    return dataclasses.replace(
        a_job(job_id, at_s=at, name=name),
        state=Done(outcome=outcome, at_s=done),
        attempts=tuple(attempts) if attempts else (an_attempt(placed=at, ended=done),),
    )


def test_a_summary_has_makespan_jct_and_queueing_delay():
    jobs = [
        a_done_job(1, at=100, done=200, attempts=[an_attempt(placed=110)]),
        a_done_job(2, at=120, done=180, attempts=[an_attempt(placed=150)]),
    ]
    summary = summarize_run(jobs)
    assert summary.makespan_s == 100  # first submission to last end, not last submission
    assert summary.mean_jct_s == 80
    assert summary.mean_delay_s == 20
    assert (summary.jobs, summary.ooms, summary.recoveries, summary.unfinished) == (2, 0, (), ())


def test_time_scale_stretches_every_time():
    jobs = [a_done_job(1, at=0, done=10, attempts=[an_attempt(placed=1)])]
    summary = summarize_run(jobs, time_scale=60)
    assert (summary.makespan_s, summary.mean_jct_s, summary.mean_delay_s) == (600, 600, 60)


def test_mean_jct_is_of_completed_jobs():
    jobs = [a_done_job(1, done=10), a_done_job(2, done=1000, outcome="failed", name="bad")]
    summary = summarize_run(jobs)
    assert summary.mean_jct_s == 10
    assert summary.unfinished == ("bad: failed",)


def test_a_recovered_failure_is_reported():
    attempts = [
        an_attempt(1, placed=0, ended=5, oom=True, gib=4),
        an_attempt(2, placed=8, ended=50, gib=12, sharing="exclusive"),
    ]
    summary = summarize_run([a_done_job(7, done=50, attempts=attempts, name="vgg")], time_scale=2)
    assert summary.ooms == 1
    line = "vgg (job 7): promised 4.0 GiB, 1 x out of memory; attempt 2 with 12.0 GiB 6.0s later, "
    assert summary.recoveries == (line + "alone on its GPU: completed",)


def test_an_unrecovered_failure_is_reported():
    attempts = [an_attempt(1, oom=True), an_attempt(2, placed=12, ended=20, oom=True)]
    summary = summarize_run([a_done_job(3, done=20, outcome="oom", attempts=attempts, name="vgg")])
    assert summary.ooms == 2
    assert summary.recoveries == ("vgg (job 3): promised 8.0 GiB, 2 x out of memory, not recovered",)
    assert summary.unfinished == ("vgg: oom",)


@pytest.mark.parametrize("jobs", [pytest.param([], id="none"), pytest.param([a_job()], id="one still waits")])
def test_only_jobs_that_are_done_are_summed(jobs):
    with pytest.raises(ValueError, match="wanted all of at least one"):
        summarize_run(jobs)


def test_a_comparison_shows_changes_in_percent():
    before = summarize_run([a_done_job(1, done=1000)])
    after = summarize_run([a_done_job(1, done=500), a_done_job(2, at=0, done=400, outcome="failed")])
    rows = {row[0]: row[1:] for row in compare_rows(before, after)}
    assert rows["makespan"] == ("16m40s", "8m20s", "-50%")
    assert rows["jobs completed"] == ("1 of 1", "1 of 2", "")
    assert rows["mean queueing delay"][2] == ""  # no change can be told against zero
