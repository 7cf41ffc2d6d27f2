"""Resource usage, summed by job, by user and by workload."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from builders import a_gpu, a_job
from cotenant.core.job import Attempt, AttemptExit, Charge, CoRun, OomEvidence, Overrun, ResourceUsage
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.daemon.api.views.usage_json import (
    by_day,
    by_user,
    by_workload,
    ended_by_user,
    history_view,
    usage_of,
    usage_view,
)
from cotenant.gpus.timeseries import TimeSeriesPoint
from cotenant.scheduling.prediction.history import WorkloadHistory

OK = AttemptExit(exit_code=0, signal=None, reason="exited")
HOUR = ResourceUsage(
    gpu_s=3600.0, gpu_share_s=1800.0, byte_s=3600.0 * GiB, energy_j=3.6e5, idle_energy_j=1e5, metered_s=3600.0
)
UNMETERED = ResourceUsage(gpu_s=60.0, gpu_share_s=60.0, byte_s=60.0 * GiB)


def ran(job_id, *usages, user="ann", co_runs=()):
    place = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    attempts = tuple(
        Attempt(
            number=number,
            placement=place,
            placed_at_s=0.0,
            started_at_s=0.0,
            ended_at_s=600.0,
            exit=OK,
            usage=usage,
            co_runs=tuple(co_runs),
        )
        for number, usage in enumerate(usages, start=1)
    )
    return replace(a_job(job_id, user=user, command=("python", f"{job_id}.py")), attempts=attempts)


OOM = AttemptExit(
    exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True, free_bytes=0, total_bytes=40 * GiB)
)
BLAMED = Overrun(job_id=2, attempt=1, uid=2000, gpu_uuid="GPU-0", promised_bytes=GiB, observed_bytes=30 * GiB)


def test_the_usage_of_a_victim_is_billed_to_who_exceeded_the_promise():
    victim, liar = ran(1, HOUR, user="ann"), ran(2, UNMETERED, user="bob")
    lost = replace(victim.attempts[0], exit=OOM, overruns=(BLAMED,))
    charge = Charge(at_s=1.0, victim_id=1, victim_uid=1000, gpu_uuid="GPU-0", observed_bytes=30 * GiB, usage=HOUR)
    charged = replace(liar.attempts[0], charges=(charge,))
    jobs = [replace(victim, attempts=(lost,)), replace(liar, attempts=(charged,))]
    assert ended_by_user(jobs) == {"bob": UNMETERED + HOUR}
    assert [(user["user"], user["gpu_s"]) for user in by_user(jobs, FakeManager(), 0.0)] == [("bob", 3660.0)]
    assert usage_of(jobs[0], FakeManager()) == HOUR, "what it used is still shown"


class FakeManager:
    """A manager that knows `live` of attempts that are not over."""

    def __init__(self, live=None, history=None):
        self.live = live or {}
        self.history = history or WorkloadHistory()

    def usage(self, job, number):
        return job.attempts[number - 1].usage or self.live.get((job.id, number))


def test_usage_of_a_job_is_the_sum_of_its_attempts():
    job = ran(1, HOUR, None, UNMETERED)
    assert usage_of(job, FakeManager()).gpu_s == 3660.0
    assert usage_of(job, FakeManager({(1, 2): HOUR})).gpu_s == 7260.0, "the one that runs among them"
    assert usage_of(ran(2, None), FakeManager()) is None


def test_unmeasured_usage_is_null():
    assert usage_view(None) is None
    view = usage_view(UNMETERED)
    assert (view["energy_j"], view["power_w"], view["smact"], view["mean_bytes"]) == (None, None, None, GiB)
    assert usage_view(HOUR)["power_w"] == pytest.approx(100.0)


def test_usage_is_summed_by_user():
    jobs = [ran(1, HOUR), ran(2, HOUR, HOUR, user="bob"), ran(3, UNMETERED), ran(4, None, user="cat")]
    found = {row["user"]: row for row in by_user(jobs, FakeManager(), 0.0)}
    assert list(found) == ["ann", "bob"]
    assert (found["ann"]["jobs"], found["ann"]["gpu_s"], found["ann"]["energy_j"]) == (2, 3660.0, 3.6e5)
    assert (found["bob"]["jobs"], found["bob"]["gpu_share_s"]) == (1, 3600.0)
    assert found["ann"]["power_w"] == pytest.approx(100.0), "over the time for which energy is known"


def test_usage_is_summed_by_day_with_promises_and_ooms():
    yesterday, today = ran(1, HOUR, HOUR), ran(2, None)
    attempts = (replace(yesterday.attempts[0], exit=OOM), replace(yesterday.attempts[1], ended_at_s=86400.0 + 5))
    live = replace(today.attempts[0], ended_at_s=None, exit=None)
    live = replace(live, idle_s=5.0, idle_since_s=86400.0 + 50)
    manager = FakeManager({(2, 1): UNMETERED})
    found = by_day([replace(yesterday, attempts=attempts), replace(today, attempts=(live,))], manager, 86400.0 + 60)
    assert [(row["day"], row["jobs"], row["gpu_s"], row["ooms"]) for row in found] == [
        ("1970-01-01", 1, 3600.0, 1),
        ("1970-01-02", 2, 3660.0, 0),
    ]
    assert [row["promised_bytes"] for row in found] == [GiB, GiB]
    assert [row["idle_gpu_s"] for row in found] == [0.0, 15.0]


def test_sums_of_ended_jobs_leave_out_running_ones():
    jobs = [ran(1, HOUR, None), ran(2, HOUR, user="bob")]
    assert {name: usage.gpu_s for name, usage in ended_by_user(jobs).items()} == {"ann": 3600.0, "bob": 3600.0}


def test_usage_and_slowdowns_by_workload():
    history = WorkloadHistory()
    first = ran(1, HOUR, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5, steps_hz=10.0)])
    second = ran(2, HOUR, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.4)])
    third = replace(
        ran(3, HOUR, co_runs=[CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.8, steps_hz=5.0)]), spec=first.spec
    )
    jobs = {1: first, 2: second, 3: third}
    for job in jobs.values():
        history.learn(job, jobs)
    found = {row["workload"]: row for row in by_workload([*jobs.values(), ran(9)], FakeManager(history=history), 0.0)}
    assert list(found) == ["python /tmp/2.py", "python /tmp/1.py"], "newest last; none that nobody knows"
    victim = found["python /tmp/1.py"]
    assert (victim["runs"], victim["steps_hz"]) == (2, 10.0)
    assert victim["co_runs"] == [{"workloads": ["python /tmp/2.py"], "seconds": 60.0, "steps_hz": 5.0, "slowdown": 2.0}]
    assert victim["sensitivity"] > 1
    assert victim["aggressiveness"] is None
    assert found["python /tmp/2.py"]["aggressiveness"] > 1


def test_history_covers_the_present_gpus():
    point = TimeSeriesPoint(10.0, 1.0, 5.0, 0.5, None, None, None, 60.0, 5.0, None)
    gone = SimpleNamespace()
    found = history_view({"GPU-0": [point], "GPU-9": [gone]}, [a_gpu(0), a_gpu(1)])
    assert [(gpu["index"], len(gpu["points"])) for gpu in found] == [(0, 1), (1, 0)]
    assert found[0]["points"][0]["smact"] == 0.5
