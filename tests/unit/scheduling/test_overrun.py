"""Attempts beyond their promise: who is blamed, what it is charged, and what its victim is forgiven."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from cotenant.core.events import AttemptExited
from cotenant.core.job import Attempt, AttemptExit, OomEvidence, Overrun, Queued, ResourceUsage, Starting
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling import recovery
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.overrun import OVERRUN_STOP, charges, is_overrun, overruns_text
from cotenant.scheduling.policies import create
from cotenant.scheduling.recovery import Finish, Retry, next_step
from managers import Life, WorkingLife

LIAR_UID, VICTIM_UID = 2000, 1000


def an_overrun(uid=LIAR_UID, job_id=7, promised=4, held=32):
    return Overrun(
        job_id=job_id,
        attempt=1,
        uid=uid,
        gpu_uuid="GPU-0",
        promised_bytes=promised * GiB,
        observed_bytes=held * GiB,
    )


def oomed(seen=4.0, free=0.1, promised=8.0, overruns=(), number=1, sharing="time-sliced", **message):
    """An attempt that printed an out-of-memory message; sizes in GiB, `seen` None: in no sample."""
    sizes = {key: int(gib * GiB) for key, gib in message.items()}
    free_bytes = None if free is None else int(free * GiB)
    oom = OomEvidence(exception=True, free_bytes=free_bytes, total_bytes=40 * GiB, **sizes)
    return Attempt(
        number=number,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing=sharing, promised_bytes=int(promised * GiB)),
        placed_at_s=0.0,
        started_at_s=0.0,
        ended_at_s=60.0,
        exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=oom),
        peak_observed_bytes={} if seen is None else {"GPU-0": int(seen * GiB)},
        overruns=tuple(overruns),
    )


def job_of(*attempts, **spec):
    return replace(a_job(uid=VICTIM_UID, **spec), attempts=attempts)


@pytest.mark.parametrize(
    ("attempt", "confirmed"),
    [
        pytest.param(oomed(seen=9, free=0.1), True, id="exceeded its promise"),
        pytest.param(oomed(seen=4, free=20), True, id="half of its promise in the sample before"),
        pytest.param(oomed(seen=1, free=2), True, id="the GPU had less than was promised"),
        pytest.param(oomed(seen=None, free=0.1), True, id="the GPU was full before it could begin"),
        pytest.param(oomed(seen=None, free=30), False, id="held nothing on a GPU with room"),
        pytest.param(oomed(seen=0.4, free=30), False, id="held a context on a GPU with room"),
        pytest.param(oomed(seen=0.4, free=7.6), False, id="the GPU had what was promised"),
        pytest.param(oomed(seen=None, free=None), False, id="no samples"),
        pytest.param(oomed(seen=0.4, free=30, in_use_bytes=38, tried_bytes=2), False, id="a large claim"),
    ],
)
def test_a_message_is_believed_up_to_what_was_seen(attempt, confirmed):
    job = job_of(attempt)
    assert recovery.is_confirmed(attempt) == recovery.has_precedence(job) == confirmed
    assert isinstance(next_step(job), Retry), "it is retried in any case: a sample may miss a short spike"


def test_only_the_newest_message_counts():
    real, forged = oomed(seen=9), oomed(seen=0, free=30, number=2)
    assert recovery.has_precedence(job_of(real))
    assert not recovery.has_precedence(job_of(real, forged))


BLAMED = [an_overrun()]


@pytest.mark.parametrize(
    ("attempt", "forgiven"),
    [
        pytest.param(oomed(seen=4, in_use_bytes=4, tried_bytes=1, overruns=BLAMED), True, id="within its promise"),
        pytest.param(oomed(seen=4, overruns=BLAMED), True, id="a message without figures"),
        pytest.param(oomed(seen=None, overruns=BLAMED), True, id="could not even begin"),
        pytest.param(oomed(seen=4, in_use_bytes=4, tried_bytes=1), False, id="no neighbor exceeded"),
        pytest.param(
            oomed(seen=9, in_use_bytes=4, tried_bytes=1, overruns=BLAMED), False, id="was seen beyond its own"
        ),
        pytest.param(
            oomed(seen=7, in_use_bytes=7, tried_bytes=3, overruns=BLAMED), False, id="needed more than its own"
        ),
        pytest.param(oomed(seen=0.1, free=30, overruns=BLAMED), False, id="printed the message with room left"),
    ],
)
def test_an_attempt_is_forgiven_that_lost_its_memory_to_an_overrun(attempt, forgiven):
    job = job_of(attempt)
    step = next_step(job)
    assert isinstance(step, Retry)
    assert recovery.is_forgiven(attempt) == recovery.is_first(job) == forgiven
    if forgiven:
        assert (step.min_memory_bytes, step.exclusive) == (0, False)
        assert step.reason == "retry after out of memory: another user's job 7 held 32.0 GiB, 4.0 GiB promised"


def test_forgiven_attempts_count_against_no_limit():
    forgiven = [oomed(seen=4, overruns=BLAMED, number=number) for number in range(1, 6)]
    step = next_step(job_of(*forgiven, max_attempts=2))
    assert isinstance(step, Retry)
    assert not step.exclusive, "nor does it have to run alone"
    assert isinstance(next_step(job_of(*forgiven, oomed(seen=9, number=6), max_attempts=1)), Finish)


def test_forgiveness_ends():
    forgiven = [oomed(seen=4, overruns=BLAMED, number=number) for number in range(1, recovery.MAX_FORGIVEN + 3)]
    assert isinstance(next_step(job_of(*forgiven[:-2], max_attempts=1)), Retry)
    assert isinstance(next_step(job_of(*forgiven, max_attempts=2)), Finish)


def test_jobs_of_one_user_make_no_third_one_first():
    own = oomed(seen=4, overruns=[an_overrun(uid=VICTIM_UID)])
    assert recovery.is_forgiven(own)
    assert not recovery.is_first(job_of(own))
    assert overruns_text(own.overruns, VICTIM_UID) == "job 7 held 32.0 GiB, 4.0 GiB promised"


def test_a_promise_has_a_tolerance():
    assert not is_overrun(40 * GiB, int(40.7 * GiB)), "2 %"
    assert is_overrun(40 * GiB, 41 * GiB)
    assert not is_overrun(2**20, 64 * 2**20), "64 MiB"
    assert not is_overrun(0, 40 * GiB), "nothing was promised"


def test_the_usage_of_the_victim_is_divided_by_excess():
    usage = ResourceUsage(gpu_s=40.0, energy_j=80.0)
    blamed = [an_overrun(promised=4, held=34), an_overrun(job_id=8, promised=4, held=14)]
    found = charges(blamed, usage, victim_id=1, victim_uid=VICTIM_UID, at_s=9.0)
    assert [(overrun.job_id, charge.usage.gpu_s, charge.usage.energy_j) for overrun, charge in found] == [
        (7, 30.0, 60.0),
        (8, 10.0, 20.0),
    ]


# The manager, from samples to the queue.


def victim_and_liar(life, liar_holds=36, victim_holds=3):
    """Job 1 was promised 16 GiB and holds little; job 2, of another user, was promised 8 and takes the rest."""
    life.submit(1, gib=16, uid=VICTIM_UID, user="ann")
    life.submit(2, gib=8, uid=LIAR_UID, user="bob")
    for job_id in (1, 2):
        life.start(job_id)
    for at_s in (1.0, 2.0, 3.0):
        life.sample(
            used=(victim_holds + liar_holds,), observed=((1, 1, 0, victim_holds), (2, 1, 0, liar_holds)), at_s=at_s
        )


def end(life, job_id=1, attempt=1, **message):
    oom = OomEvidence(exception=True, **{key: int(gib * GiB) for key, gib in message.items()})
    event = AttemptExited(
        at_s=life.at_s,
        cause="test",
        job_id=job_id,
        attempt=attempt,
        exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=oom),
        peak_observed_bytes={},
    )
    event = life.manager.with_telemetry(event)
    life.manager.handle(event)
    return event


def test_the_neighbor_beyond_its_promise_is_found_charged_and_named():
    life = Life()
    victim_and_liar(life)
    event = end(life, in_use_bytes=3, tried_bytes=2)
    (blamed,) = event.overruns
    assert (blamed.job_id, blamed.promised_bytes, blamed.observed_bytes) == (2, 8 * GiB, 36 * GiB)
    assert life.job(1).min_memory_bytes == 0
    (charge,) = life.job(2).attempts[0].charges
    assert (charge.victim_id, charge.victim_uid) == (1, VICTIM_UID)
    assert charge.usage == life.job(1).attempts[0].usage
    assert charge.usage.gpu_s > 0
    assert "another user's job 2 held 36.0 GiB, 8.0 GiB promised" in life.manager.explain(1).reason
    assert "another user's job 1 ran out of memory" in life.manager.explain(2).reason


def test_a_liar_that_has_just_ended_is_still_found():
    life = Life()
    victim_and_liar(life)
    end(life, job_id=2, in_use_bytes=36, tried_bytes=2)
    life.sample(used=(3,), observed=((1, 1, 0, 3),), at_s=4.0)
    assert [overrun.job_id for overrun in end(life, in_use_bytes=3, tried_bytes=2).overruns] == [2]


def test_a_neighbor_that_kept_its_promise_is_not_blamed():
    life = Life()
    victim_and_liar(life, liar_holds=8)
    event = end(life, in_use_bytes=3, tried_bytes=38)
    assert event.overruns == ()
    assert life.job(2).attempts[0].charges == ()


def test_a_neighbor_that_took_what_nobody_was_promised_is_not_blamed():
    """16 and 20 GiB fit on 40; a foreign process takes the rest just before the end."""
    life = Life()
    victim_and_liar(life, liar_holds=20)
    life.sample(used=(40,), observed=((1, 1, 0, 3), (2, 1, 0, 20)), at_s=4.0)
    assert end(life, in_use_bytes=3, tried_bytes=2).overruns == ()


def test_a_foreign_process_that_was_there_before_is_part_of_the_room():
    life = Life()
    for second in range(90):
        life.sample(used=(10,), at_s=float(second))
    life.submit(1, gib=16, uid=VICTIM_UID)
    life.submit(2, gib=8, uid=LIAR_UID)
    for job_id in (1, 2):
        life.start(job_id)
    life.sample(used=(33,), observed=((1, 1, 0, 3), (2, 1, 0, 20)), at_s=91.0)
    assert [overrun.job_id for overrun in end(life, in_use_bytes=3, tried_bytes=8).overruns] == [2]


def test_a_neighbor_that_shrank_long_ago_is_not_blamed():
    life = Life()
    victim_and_liar(life)
    for second in range(4, 40):
        life.sample(used=(11,), observed=((1, 1, 0, 3), (2, 1, 0, 8)), at_s=float(second))
    assert end(life, in_use_bytes=3, tried_bytes=2).overruns == ()


def test_who_lost_memory_to_another_users_overrun_is_next_whatever_the_order():
    life = Life(gpus=1)
    victim_and_liar(life)
    life.submit(3, gib=30, uid=3000, user="cyd", priority=5)
    end(life, in_use_bytes=3, tried_bytes=2)
    end(life, job_id=2, in_use_bytes=36, tried_bytes=9)
    assert [life.state(job_id) for job_id in (1, 2, 3)] == [Starting, Queued, Queued]


def test_an_attempt_stopped_for_its_overrun_is_retried_with_what_it_held():
    stopped = AttemptExit(exit_code=None, signal=15, reason="stopped", detail=f"{OVERRUN_STOP}: held 32.0 GiB")
    attempt = replace(oomed(seen=32, promised=4), exit=stopped)
    step = next_step(job_of(attempt))
    assert isinstance(step, Retry)
    assert step.min_memory_bytes == int(32 * GiB * recovery.HEADROOM)
    assert not recovery.has_precedence(job_of(attempt))
    assert isinstance(next_step(job_of(attempt, max_attempts=1)), Finish)


def test_a_replayed_journal_charges_and_forgives_the_same():
    life = WorkingLife(policy=create("first-fit", {"warmup_s": 0}))
    life.submit(1, gib=16, uid=VICTIM_UID, user="ann")
    life.submit(2, gib=8, uid=LIAR_UID, user="bob")
    life.start(1, holds=3)
    life.start(2, holds=36)
    life.pass_(5)
    life.end(1, AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True)))
    assert life.manager.jobs[2].attempts[0].charges
    replayed = Manager(life.policy, life.config)
    replayed.restore(life.events)
    assert replayed.jobs == life.manager.jobs
    from_snapshot = Manager(life.policy, life.config)
    from_snapshot.restore((), since=life.manager.snapshot())
    assert from_snapshot.jobs == life.manager.jobs
