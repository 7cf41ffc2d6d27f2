from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_gpu, a_spec, an_estimate
from cotenant.core.errors import NoSuchJob
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Launch,
    ObservedBytes,
    RequestEstimate,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.gpu import GpuSample
from cotenant.core.job import AttemptExit, Done, Held, OomEvidence, ProcessId, Queued, Running, Starting
from cotenant.core.placement import Placement, Wait
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create

OK = AttemptExit(exit_code=0, signal=None, reason="exited")
OOM = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True))


class Life:
    """A manager over 40 GiB GPUs, and the events of its life in few words."""

    def __init__(self, gpus=1, policy="first-fit", options=None, **config):
        self.gpus = tuple(a_gpu(each) for each in range(gpus))
        self.manager = Manager(create(policy, {"settle_s": 0, **(options or {})}), ManagerConfig(**config))
        self.at_s = 0.0
        self.sample()

    def job(self, job_id=1):
        return self.manager.jobs[job_id]

    def state(self, job_id=1):
        return type(self.job(job_id).state)

    def send(self, kind, job_id=1, **fields):
        return self.manager.handle(kind(at_s=self.at_s, cause="test", job_id=job_id, **fields))

    def submit(self, job_id=1, gib=8, **spec):
        declared = None if gib is None else int(gib * GiB)
        return self.send(JobSubmitted, job_id, spec=a_spec(declared_bytes=declared, **spec))

    def estimate(self, job_id=1, gib=8):
        estimate = None if gib is None else an_estimate(gib)
        return self.send(EstimateReady, job_id, estimate=estimate, error=None if gib else "no such script")

    def start(self, job_id=1, attempt=1):
        return self.send(AttemptStarted, job_id, attempt=attempt, process=ProcessId(pid=7, start_ticks=1, boot_id="b"))

    def exit(self, job_id=1, attempt=1, end=OK, **peaks):
        return self.send(AttemptExited, job_id, attempt=attempt, exit=end, peak_observed_bytes=peaks)

    def sample(self, used=(0, 0, 0), observed=(), at_s=None):
        """`observed` as (job, attempt, GPU index, GiB)."""
        self.at_s = self.at_s if at_s is None else at_s
        return self.manager.handle(
            ServerSampled(
                at_s=self.at_s,
                cause="test",
                gpus=self.gpus,
                samples={
                    gpu.uuid: GpuSample(at_s=self.at_s, used_bytes=None if each is None else int(each * GiB), smact=0.1)
                    for gpu, each in zip(self.gpus, used, strict=False)
                },
                observed=tuple(
                    ObservedBytes(job_id=job, attempt=attempt, gpu_uuid=f"GPU-{gpu}", used_bytes=int(gib * GiB))
                    for job, attempt, gpu, gib in observed
                ),
            )
        )

    def tick(self, at_s):
        self.at_s = at_s
        return self.manager.handle(Tick(at_s=at_s, cause="test"))


def launches(commands):
    return [each.placed.job_id for each in commands if isinstance(each, Launch)]


def test_a_declared_job_starts_at_once_and_its_estimate_is_still_asked_for():
    commands = Life().submit()
    assert [type(each) for each in commands] == [RequestEstimate, Launch]
    placed = commands[1].placed
    assert placed == AttemptPlaced(
        at_s=0.0,
        cause="policy first-fit",
        job_id=1,
        attempt=1,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=8 * GiB),
    )


def test_the_launch_is_already_applied():
    life = Life()
    life.submit()
    assert life.job().state == Starting(attempt=1)
    assert life.sample() == []


def test_a_job_without_a_declared_need_waits_for_its_estimate():
    life = Life()
    assert [type(each) for each in life.submit(gib=None)] == [RequestEstimate]
    assert life.manager.explain(1) == Wait(job_id=1, reason="waits for its memory estimate")
    assert launches(life.sample()) == []
    assert launches(life.estimate()) == [1]


def test_a_job_that_cannot_be_estimated_runs_alone():
    life = Life()
    life.submit(gib=None)
    (launch,) = life.estimate(gib=None)
    assert launch.placed.placement.sharing == "exclusive"
    assert life.job().estimate_error == "no such script"


def test_without_estimates_nothing_is_asked_for():
    life = Life(estimate=False)
    (launch,) = life.submit(gib=None)
    assert launch.placed.placement.sharing == "exclusive"


def test_a_later_failure_to_estimate_does_not_undo_an_estimate():
    life = Life()
    life.submit(gib=None)
    life.estimate()
    life.estimate(gib=None)
    assert life.job().estimate == an_estimate(8)


def test_from_submit_to_completed():
    life = Life()
    life.submit()
    life.at_s = 3.0
    life.start()
    assert life.job().state == Running(attempt=1)
    assert life.job().last_attempt.started_at_s == 3.0
    life.at_s = 9.0
    life.exit(**{"GPU-0": 5})
    assert life.job().state == Done(outcome="completed", at_s=9.0, code=0)
    assert life.job().last_attempt.peak_observed_bytes == {"GPU-0": 5}


def test_an_exit_makes_room_at_once():
    life = Life()
    life.submit(1, 30)
    life.submit(2, 30)
    assert life.state(2) is Queued
    assert launches(life.exit(1)) == [2]


def test_a_promise_counts_before_it_is_seen_and_what_is_seen_when_it_is_more():
    life = Life(policy="first-fit")
    life.submit(1, 30)
    assert launches(life.submit(2, 11)) == [], "only 10 GiB are not promised"
    life.sample(used=[35], observed=[(1, 1, 0, 35)])
    assert launches(life.submit(3, 6)) == [], "job 1 outgrew its promise"
    assert launches(life.submit(4, 5)) == [4]


def test_a_peak_counts_after_it_has_passed():
    life = Life()
    life.submit(1, 10)
    life.sample(used=[35], observed=[(1, 1, 0, 35)])
    life.sample(used=[2], observed=[(1, 1, 0, 2)], at_s=1.0)
    assert life.manager.snapshot(1.0).gpus[0].available_bytes == 5 * GiB


@pytest.mark.parametrize(
    ("observed", "strangers"),
    [
        pytest.param([(1, 1, 0, 8)], 4, id="ours is not a stranger's"),
        pytest.param([(1, 1, 0, 14)], 0, id="read a moment later: ours exceeds the total"),
        pytest.param([(9, 1, 0, 8)], 12, id="no such job"),
        pytest.param([(1, 2, 0, 8)], 12, id="no such attempt"),
        pytest.param([(1, 1, 0, -8)], 12, id="nonsense"),
    ],
)
def test_strangers(observed, strangers):
    life = Life()
    life.submit()
    life.sample(used=[12], observed=observed, at_s=1.0)
    assert life.manager.snapshot(1.0).gpus[0].strangers_bytes == strangers * GiB


def test_a_job_that_strayed_to_another_gpu_is_a_stranger_there():
    life = Life(gpus=2)
    life.submit()
    life.sample(used=[0, 8], observed=[(1, 1, 1, 8)], at_s=1.0)
    assert [each.strangers_bytes for each in life.manager.snapshot(1.0).gpus] == [0, 8 * GiB]


def test_memory_of_an_attempt_that_ended_is_free_until_a_later_reading_still_shows_it():
    life = Life()
    life.submit()
    life.sample(used=[8], observed=[(1, 1, 0, 8)], at_s=1.0)
    life.exit()
    assert life.manager.snapshot(1.0).gpus[0].available_bytes == 40 * GiB
    life.sample(used=[8], observed=[(1, 1, 0, 8)], at_s=2.0)
    assert life.manager.snapshot(2.0).gpus[0].strangers_bytes == 8 * GiB


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
def test_what_cannot_be_trusted_admits_nothing(used, at_s):
    life = Life()
    life.sample(used=used, at_s=at_s)
    life.at_s = 0.0 if abs(at_s) > 5 else at_s
    if at_s < 0:
        life.at_s = 6.0
    assert launches(life.submit()) == []
    assert [each.rule for each in life.manager.explain(1).verdicts] == ["fresh_telemetry"]


def test_a_gpu_missing_from_readings_ages_out():
    life = Life(gpus=2)
    life.sample(used=[0], at_s=6.0)
    assert [each.strangers_bytes for each in life.manager.snapshot(6.0).gpus] == [0, None]


def test_readings_out_of_order_are_ignored_and_a_clock_set_back_is_followed():
    life = Life()
    life.sample(used=[30], at_s=100.0)
    life.sample(used=[1], at_s=99.0)
    assert [each.at_s for each in life.manager.snapshot(100.0).gpus[0].samples] == [100.0]
    life.sample(used=[2], at_s=50.0)
    assert life.manager.snapshot(50.0).gpus[0].strangers_bytes == 2 * GiB


def test_the_window_is_bounded():
    life = Life(window_s=30.0)
    for second in range(1, 100):
        life.sample(at_s=float(second))
    times = [each.at_s for each in life.manager.snapshot(99.0).gpus[0].samples]
    assert times == [float(each) for each in range(69, 100)]
    for tenth in range(1000):
        life.sample(at_s=99 + tenth / 100)
    assert len(life.manager.snapshot(109.0).gpus[0].samples) == 256


# What must not happen twice, or at all.


def test_a_second_submission_of_the_same_job_changes_nothing():
    life = Life()
    life.submit()
    before = life.job()
    assert life.submit(gib=20) == []
    assert life.job() == before


def test_events_of_an_old_attempt_do_not_touch_the_new_one():
    life = Life()
    life.submit()
    life.start()
    assert launches(life.exit(end=OOM)) == [1]
    assert life.job().state == Starting(attempt=2)
    before = life.job()
    life.exit(attempt=1)
    life.start(attempt=1)
    assert life.job() == before
    life.start(attempt=2)
    assert life.job().state == Running(attempt=2)
    life.exit(attempt=1)
    assert life.job().state == Running(attempt=2)


def test_an_exit_may_overtake_the_start():
    life = Life()
    life.submit()
    life.exit()
    life.start()
    assert life.job().is_done
    assert life.job().last_attempt.started_at_s is None


def test_a_started_attempt_starts_once():
    life = Life()
    life.submit()
    life.start()
    life.at_s = 50.0
    life.start()
    assert life.job().last_attempt.started_at_s == 0.0


@pytest.mark.parametrize(("attempt", "count"), [(0, 1), (1, 1), (3, 1), (2, 2)])
def test_only_the_next_attempt_can_be_placed(attempt, count):
    life = Life()
    life.submit()
    life.sample(used=[39])
    life.exit(end=OOM)
    assert life.state() is Queued
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    life.send(AttemptPlaced, attempt=attempt, placement=place)
    assert len(life.job().attempts) == count


def test_unknown_jobs_are_ignored():
    life = Life()
    for commands in (
        life.estimate(5),
        life.start(5),
        life.exit(5),
        life.send(JobCancelled, 5),
        life.send(JobHeld, 5),
        life.send(JobReleased, 5),
    ):
        assert commands == []
    assert life.manager.jobs == {}
    with pytest.raises(NoSuchJob, match="no job 5"):
        life.manager.explain(5)


# Out of memory.


def test_a_job_out_of_memory_starts_again_at_once_with_more():
    life = Life()
    life.submit(gib=8)
    (launch,) = life.exit(end=OOM)
    assert launch.placed.attempt == 2
    assert launch.placed.placement.promised_bytes == 12 * GiB


def test_the_third_attempt_waits_for_an_empty_gpu_and_lets_others_pass():
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


def test_witnessed_adds_what_samples_showed():
    life = Life()
    life.submit()
    life.sample(used=[39], observed=[(1, 1, 0, 9)], at_s=1.0)
    life.sample(used=[20], observed=[(1, 1, 0, 7)], at_s=2.0)
    bare = AttemptExited(at_s=3.0, cause="test", job_id=1, attempt=1, exit=OOM, peak_observed_bytes={})
    full = life.manager.witnessed(bare)
    assert full.peak_observed_bytes == {"GPU-0": 9 * GiB}
    assert full.exit.oom == OomEvidence(exception=True, free_bytes=GiB, total_bytes=40 * GiB)
    told = replace(full, peak_observed_bytes={"GPU-0": 1}, exit=replace(OOM, oom=OomEvidence(free_bytes=5)))
    assert life.manager.witnessed(told) == told
    assert life.manager.witnessed(replace(bare, attempt=2)).exit == OOM
    late = life.manager.witnessed(replace(bare, at_s=60.0))
    assert late.exit.oom.free_bytes is None
    life.manager.handle(full)
    assert life.manager.witnessed(bare).peak_observed_bytes == {}, "what was seen of an ended attempt is forgotten"


# Cancel, hold, release, time limits, dependencies.


def test_cancel():
    life = Life()
    life.submit(1, 30)
    life.submit(2, 30)
    life.send(JobCancelled, 2)
    assert life.job(2).state == Done(outcome="cancelled", at_s=0.0, reason="on request")
    assert life.send(JobCancelled, 1) == [Stop(at_s=0.0, cause="cancelled", job_id=1, attempt=1, grace_s=10.0)]
    assert life.state(1) is Starting
    life.start(1)
    assert life.job(1).last_attempt.stop_asked == "cancelled"
    life.exit(1, end=AttemptExit(exit_code=None, signal=15, reason="stopped"))
    assert life.job(1).state.outcome == "cancelled"
    assert life.send(JobCancelled, 1) == []


def test_cancelling_the_head_of_a_strict_queue_lets_the_next_start():
    life = Life(options={"backfill": False})
    life.submit(1, 30)
    life.submit(2, 30)
    life.submit(3, 4)
    assert life.state(3) is Queued
    assert launches(life.send(JobCancelled, 2)) == [3]


def test_hold_and_release():
    life = Life()
    life.submit(1, 30)
    life.submit(2, 30)
    life.send(JobHeld, 2)
    life.send(JobHeld, 1)
    assert life.state(1) is Starting
    assert life.manager.explain(2).reason == "held: test"
    assert launches(life.exit(1)) == []
    life.at_s = 5.0
    assert launches(life.send(JobReleased, 2)) == [2]
    life.send(JobReleased, 2)
    assert life.state(2) is Starting


def test_a_job_larger_than_any_gpu_is_held_until_there_is_one():
    life = Life()
    life.submit(1, 60)
    assert life.job().state == Held(since_s=0.0, reason="needs 60.0 GiB on each GPU, the largest has 40.0 GiB")
    life.at_s = 1.0
    before = life.job()
    life.send(JobReleased)
    assert life.job() == before
    life.gpus = (a_gpu(0, 80),)
    assert launches(life.sample()) == [1]


def test_a_job_too_large_can_be_held_by_hand_and_then_stays_so():
    life = Life()
    life.submit(1, 60)
    life.send(JobHeld)
    life.gpus = (a_gpu(0, 80),)
    assert launches(life.sample()) == []
    assert launches(life.send(JobReleased)) == [1]


def test_a_job_too_large_waits_for_a_place_since_its_dependencies_were_met():
    life = Life()
    life.submit(1)
    life.submit(2, 60, after=(1,))
    assert life.state(2) is Held
    life.at_s = 4.0
    life.exit(1)
    life.gpus = (a_gpu(0, 80),)
    life.sample(used=[75], at_s=9.0)
    assert life.job(2).state == Queued(since_s=4.0)


def test_a_job_slightly_larger_than_any_gpu_may_try_it_alone():
    life = Life()
    (_, launch) = life.submit(1, 44)
    assert (launch.placed.placement.sharing, launch.placed.placement.promised_bytes) == ("exclusive", 40 * GiB)


def test_a_time_limit_stops_an_attempt_and_asks_again_should_it_live_on():
    life = Life()
    life.submit(time_limit_s=60.0)
    life.at_s = 100.0
    life.start()
    assert life.tick(159.9) == []
    assert life.tick(160.0) == [Stop(at_s=160.0, cause="timeout", job_id=1, attempt=1, grace_s=10.0)]
    assert life.tick(161.0) == []
    assert [type(each) for each in life.tick(220.0)] == [Stop]
    life.exit(end=AttemptExit(exit_code=None, signal=9, reason="timeout"))
    assert life.job().state.outcome == "timeout"
    assert life.tick(300.0) == []


def test_the_time_limit_of_a_retry_begins_anew():
    life = Life()
    life.submit(time_limit_s=30.0)
    life.start()
    assert [type(each) for each in life.tick(30.0)] == [Stop]
    life.sample()
    assert launches(life.exit(end=OOM)) == [1]
    life.start(attempt=2)
    assert [type(each) for each in life.tick(59.0)] == []
    assert [type(each) for each in life.tick(60.0)] == [Stop]


def test_dependencies_are_waited_for():
    life = Life()
    life.submit(1)
    life.submit(2)
    assert launches(life.submit(3, after=(1, 2))) == []
    assert life.manager.explain(3).reason == "waits for jobs 1, 2 to complete"
    life.exit(1)
    assert life.manager.explain(3).reason == "waits for job 2 to complete"
    life.at_s = 4.0
    (launch,) = life.exit(2)
    assert launch.placed.job_id == 3


def test_the_wait_for_a_place_begins_when_dependencies_are_met():
    life = Life()
    life.submit(1)
    life.submit(2, 39, after=(1,))
    life.submit(3, 30)
    life.at_s = 4.0
    life.exit(1)
    assert life.job(2).state == Queued(since_s=4.0)


def test_a_failed_dependency_cancels_all_that_follow():
    life = Life()
    life.submit(1)
    life.submit(2, after=(1,))
    life.submit(3, after=(2,))
    life.send(JobHeld, 3)
    life.exit(1, end=AttemptExit(exit_code=1, signal=None, reason="exited"))
    assert life.job(2).state == Done(outcome="cancelled", at_s=0.0, reason="dependency 1 failed")
    assert life.job(3).state == Done(outcome="cancelled", at_s=0.0, reason="dependency 2 cancelled")
    life.submit(4, after=(1,))
    assert life.job(4).state.reason == "dependency 1 failed"


@pytest.mark.parametrize("after", [(9,), (1,)])
def test_a_dependency_that_does_not_exist_cancels(after):
    life = Life()
    assert life.submit(1, after=after) == []
    assert life.job().state == Done(outcome="cancelled", at_s=0.0, reason=f"dependency {after[0]} unknown")


def test_a_dependency_completed_before_is_met():
    life = Life()
    life.submit(1)
    life.exit(1)
    assert launches(life.submit(2, after=(1,))) == [2]


# The policy is not trusted.


class Faulty:
    name = "faulty"

    def __init__(self, *placements):
        self.placements = placements

    def decide(self, queue, server):
        return [replace(each, job_id=queue[0].id) for each in self.placements]


def test_a_policy_that_promises_too_much_places_nothing():
    life = Life()
    wrong = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=41 * GiB)
    life.manager = Manager(Faulty(wrong))
    life.sample()
    assert launches(life.submit()) == []
    assert life.manager.explain(1).reason == "policy `faulty` erred: 41.0 GiB promised on GPU-0, 40.0 GiB available"


def test_a_policy_that_places_a_job_twice_starts_it_once():
    life = Life()
    right = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    life.manager = Manager(Faulty(right, right))
    life.sample()
    assert launches(life.submit()) == [1]
    assert life.manager.explain(1).reason.startswith("starts on GPU 0")


# A long queue, restart, explanations.


def test_in_a_long_queue_a_new_job_is_looked_at_with_the_next_reading():
    life = Life(eager_queue=1)
    life.submit(1, 30)
    life.submit(2, 30)
    life.submit(3, 30)
    assert launches(life.submit(4, 1)) == []
    assert life.manager.explain(4).reason == "number 3 of 3 in the queue, looked at with the next reading of the GPUs"
    assert launches(life.sample()) == [4]


def test_restore_asks_again_for_estimates_and_stops_and_decides_nothing():
    life = Life()
    events = [
        JobSubmitted(at_s=1.0, cause="test", job_id=1, spec=a_spec(declared_bytes=GiB)),
        AttemptPlaced(
            at_s=2.0,
            cause="test",
            job_id=1,
            attempt=1,
            placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB),
        ),
        JobCancelled(at_s=3.0, cause="test", job_id=1),
        EstimateReady(at_s=3.0, cause="test", job_id=1, estimate=None, error="no"),
        JobSubmitted(at_s=4.0, cause="test", job_id=2, spec=a_spec()),
        JobSubmitted(at_s=5.0, cause="test", job_id=3, spec=a_spec()),
        JobCancelled(at_s=5.0, cause="test", job_id=3),
    ]
    commands = life.manager.restore(events)
    assert [(type(each), each.job_id, each.at_s) for each in commands] == [(Stop, 1, 5.0), (RequestEstimate, 2, 5.0)]
    assert life.job(1).state == Starting(attempt=1)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("first-fit", "1 GPU with 30.0 GiB available, none of 1 qualifies"),
        ("exclusive", "1 empty GPU with 30.0 GiB available, none of 1 qualifies"),
    ],
)
def test_explain_gives_the_newest_answer_of_the_policy(policy, reason):
    life = Life()
    life.manager = Manager(create(policy))
    life.sample()
    life.submit(1, 30)
    life.submit(2, 30)
    assert life.manager.explain(2).reason == reason
    assert len(life.manager.explain(2).verdicts) == 1


def test_explain_says_where_a_job_is_and_how_it_ended():
    life = Life(gpus=2)
    life.submit(1, 8, gpus=2)
    assert life.manager.explain(1).reason == "starts on GPUs 0, 1 (time-sliced), 8.0 GiB promised"
    life.start()
    life.send(JobCancelled)
    assert life.manager.explain(1).reason == (
        "runs on GPUs 0, 1 (time-sliced), 8.0 GiB promised, being stopped (cancelled)"
    )
    life.exit()
    assert life.manager.explain(1).reason == "cancelled: on request"
    life.submit(2)
    life.exit(2, end=AttemptExit(exit_code=3, signal=None, reason="exited"))
    assert life.manager.explain(2).reason == "failed: exit code 3"
