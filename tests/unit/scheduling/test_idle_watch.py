"""Attempts that hold GPUs and compute nothing: when they count as idle, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.events import (
    AttemptBusy,
    AttemptIdle,
    AttemptPlaced,
    AttemptSample,
    AttemptStarted,
    JobReleased,
    JobSubmitted,
    ReportIdleness,
    ServerSampled,
    Stop,
)
from cotenant.core.gpu import GpuProcess, GpuSample
from cotenant.core.job import AttemptExit, Done, Held, Queued, Running
from cotenant.core.units import GiB
from cotenant.scheduling.idle_watch import IdlePolicy
from managers import Life

POLICY = IdlePolicy(after_s=100.0, warmup_s=50.0, grace_s=60.0)


class Watched(Life):
    """A life whose running jobs are sampled once a second; times are seconds since their start."""

    def __init__(self, policy=POLICY, *, jobs=1, gpus=1, **config):
        super().__init__(gpus=gpus, idle=policy, **config)
        self.found = []
        for job_id in range(1, jobs + 1):
            self.submit(job_id, gib=2, gpus=gpus)
            self.start(job_id)

    def read(self, seconds, activity=0.0, *, step_s=1.0, steps_hz=None, shares=None, unread=()):
        """Samples of `seconds`. `shares`: SM time by job; `unread`: indices of GPUs without a reading."""
        fields = {"smact": activity} if not isinstance(activity, dict) else activity
        live = sorted(job.id for job in self.manager.jobs.values() if isinstance(job.state, Running))
        processes = tuple(GpuProcess(pid=job_id, used_bytes=GiB, sm=sm) for job_id, sm in (shares or {}).items())
        for _ in range(int(seconds / step_s)):
            self.at_s += step_s
            samples = {
                gpu.uuid: GpuSample(at_s=self.at_s, used_bytes=GiB * len(live), processes=processes, **fields)
                for gpu in self.gpus
                if gpu.index not in unread
            }
            observed = tuple(
                AttemptSample(
                    job_id=job_id,
                    attempt=len(self.job(job_id).attempts),
                    gpu_uuid=gpu.uuid,
                    used_bytes=GiB,
                    sm=(shares or {}).get(job_id),
                    steps_hz=steps_hz,
                )
                for job_id in live
                for gpu in self.gpus
            )
            event = ServerSampled(at_s=self.at_s, cause="t", gpus=self.gpus, samples=samples, observed=observed)
            self.found += [(self.at_s, command) for command in self.manager.handle(event)]
        return self

    def reports(self):
        """(time, kind, job) of the reports so far."""
        return [
            (at_s, type(command.event), command.event.job_id)
            for at_s, command in self.found
            if isinstance(command, ReportIdleness)
        ]

    def stops(self):
        return [(at_s, command.job_id, command.cause) for at_s, command in self.found if isinstance(command, Stop)]


def is_idle(life, job_id=1):
    return life.job(job_id).attempts[-1].idle_since_s is not None


@pytest.mark.parametrize(
    ("readings", "idle"),
    [
        pytest.param([(160, {})], True, id="no activity"),
        pytest.param([(140, {})], False, id="not for long enough after its warmup"),
        pytest.param([(160, {"activity": {"utilization": 0.0}})], True, id="no SM activity is read, no utilization"),
        pytest.param([(160, {"activity": {"utilization": 0.4}})], False, id="no SM activity is read, but utilization"),
        pytest.param([(160, {"activity": {"smact": 0.0, "utilization": 1.0}})], True, id="SM activity comes first"),
        pytest.param([(500, {"activity": {}})], False, id="neither is read"),
        pytest.param([(500, {"activity": {"smact": float("nan")}})], False, id="no number is read"),
        pytest.param([(500, {"unread": (0,)})], False, id="not read"),
        pytest.param([(500, {"activity": 0.01})], False, id="at the limit"),
        pytest.param([(500, {"steps_hz": 0.1})], False, id="it reports steps"),
        pytest.param([(2000, {"step_s": 10.0})], False, id="readings are too far apart"),
        pytest.param([(100, {}), (1, {"activity": 0.5}), (99, {})], False, id="activity in between"),
        pytest.param([(100, {}), (1, {"activity": 0.5}), (101, {})], True, id="for long enough after activity"),
        pytest.param([(100, {}), (50, {"unread": (0,)}), (52, {})], True, id="a short gap is not counted"),
        pytest.param([(100, {}), (50, {"unread": (0,)}), (48, {})], False, id="and not counted as idle"),
        pytest.param([(100, {}), (70, {"unread": (0,)}), (90, {})], False, id="a long gap begins it anew"),
    ],
)
def test_idle_after_a_row_of_readings_without_activity(readings, idle):
    life = Watched()
    for seconds, how in readings:
        life.read(seconds, **how)
    assert is_idle(life) == idle
    assert [kind for _, kind, _ in life.reports()] == [AttemptIdle] * idle


def test_a_job_on_two_gpus_is_idle_where_both_are_read_and_idle():
    assert is_idle(Watched(gpus=2).read(160))
    assert not is_idle(Watched(gpus=2).read(500, unread=(1,)))
    life = Watched(gpus=2)
    for _ in range(150):
        life.read(6, unread=(1,)).read(1)  # two readings of GPU 1 are never close enough to each other
    assert not is_idle(life)


@pytest.mark.parametrize(
    ("shares", "idle"),
    [
        pytest.param({1: 0.8, 2: 0.0}, [2], id="the driver says who computes"),
        pytest.param({1: 0.0, 2: 0.0}, [], id="the driver says zero of all: it does not know"),
        pytest.param({1: 0.8}, [], id="it does not say it of one"),
        pytest.param(None, [], id="it does not say it"),
    ],
)
def test_beside_a_busy_neighbor_only_a_share_of_nothing_counts(shares, idle):
    life = Watched(jobs=2).read(300, 0.8, shares=shares)
    assert [job_id for job_id in (1, 2) if is_idle(life, job_id)] == idle


def test_what_starts_or_is_being_stopped_is_not_judged():
    life = Life(idle=POLICY)
    life.submit(1)
    for at_s in range(1, 400):
        life.sample(at_s=float(at_s))
    assert not is_idle(life)  # it was placed, and its runner has not reported
    sliced = Watched(time_slice_s=100.0, time_slice_notice_s=20.0)
    sliced.submit(2, gib=39)  # waits, so the slice of job 1 ends, and it writes a checkpoint
    sliced.read(400)
    assert not is_idle(sliced)


def test_one_reading_of_activity_ends_nothing_and_ten_seconds_do():
    life = Watched().read(160).read(5, 0.5)
    assert is_idle(life)
    life.read(5, 0.5)
    assert life.reports() == [(150.0, AttemptIdle, 1), (170.0, AttemptBusy, 1)]
    assert life.job().attempts[-1].idle_s == pytest.approx(170.0 - 50.0, abs=1.5)
    life.read(99)
    assert not is_idle(life)
    life.read(1)
    assert is_idle(life)


def test_notify_stops_nothing_and_explain_says_it():
    life = Watched().read(1000)
    assert life.stops() == []
    assert life.manager.explain(1).reason.endswith("2.0 GiB promised, idle for 15m50s")


@pytest.mark.parametrize(("action", "verb"), [("cancel", "cancelled"), ("park", "parked")])
def test_an_action_follows_the_notice_after_its_grace(action, verb):
    life = Watched(replace(POLICY, action=action)).read(160)
    ((_, command),) = life.found
    assert command.event.cause == f"activity below 1 % for 1m40s, {verb} in 1m00s unless it computes"
    assert life.manager.explain(1).reason.endswith(f"idle for 1m50s, {verb} in 50s unless it computes")
    life.read(30).read(1, 0.5).read(159)
    assert life.stops() == []  # one reading of activity puts it off
    life.read(1)
    ((at_s, job_id, cause),) = life.stops()
    assert (at_s, job_id) == (351.0, 1)
    assert cause.endswith("idle for 2m40s, activity below 1 %")
    life.read(100)
    assert len(life.stops()) == 2  # it goes on in spite of it
    life.exit(end=AttemptExit(exit_code=None, signal=15, reason="stopped", detail=cause))
    state = life.job().state
    assert isinstance(state, Held if action == "park" else Done)
    assert state.reason == cause
    if action == "park":
        life.send(JobReleased)
        assert isinstance(life.job().state, (Queued, Running)) or life.job().state.attempt == 2
        assert life.job().uncounted_attempts == 1


def test_durations_count_the_time_of_a_simulated_server():
    life = Watched(pace=10.0).read(14)
    assert not is_idle(life)
    assert is_idle(life.read(2))


def test_counts_outlast_a_restart_and_the_notice_is_in_the_journal():
    life = Watched().read(120)
    state = life.manager.telemetry_state()
    again = Watched()
    again.at_s = life.at_s + 20.0
    again.manager.restore_telemetry(state)
    again.read(32)
    assert is_idle(again)
    (_, command), *_ = again.found
    replayed = Life(idle=POLICY)
    replayed.manager.reset()
    replayed.manager.restore(
        [
            JobSubmitted(at_s=0.0, cause="t", job_id=1, spec=life.job().spec),
            *journaled(again.job()),
            command.event,
        ]
    )
    assert replayed.job().attempts[-1].idle_since_s == again.job().attempts[-1].idle_since_s


def journaled(job):
    """The events that led to a running attempt."""
    attempt = job.attempts[-1]
    placed = AttemptPlaced(at_s=0.0, cause="t", job_id=job.id, attempt=1, placement=attempt.placement)
    return placed, AttemptStarted(at_s=0.0, cause="t", job_id=job.id, attempt=1, process=attempt.process)


def test_without_a_policy_nobody_looks():
    assert Watched(None).read(500).found == []
