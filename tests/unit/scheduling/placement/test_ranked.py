from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_server, a_snapshot
from cotenant.core.job import Attempt, AttemptExit, OomEvidence, Queued
from cotenant.core.placement import Deferral, Placement
from cotenant.core.units import GiB
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.policies import create

MEMORY_ONLY = Ranked(name="memory-only", order=orders.fifo, score=scores.first)
BUSY = (a_resident(30, 30),)


def placed(answers):
    return {answer.job_id: answer.gpu_uuids for answer in answers if isinstance(answer, Placement)}


def waits(answers):
    return {answer.job_id: answer for answer in answers if isinstance(answer, Deferral)}


@pytest.mark.parametrize(
    ("policy", "uuid"),
    [("best-fit", "GPU-1"), ("first-fit", "GPU-0"), ("most-memory", "GPU-2")],
)
def test_which_gpu_each_policy_prefers(policy, uuid):
    server = a_server(a_snapshot(0, foreign=10), a_snapshot(1, foreign=20), a_snapshot(2))
    assert placed(create(policy).decide([a_job(1, 8)], server)) == {1: (uuid,)}


def test_equal_scores_go_by_display_order():
    server = a_server(a_snapshot(0), a_snapshot(1), a_snapshot(2))
    assert placed(create("most-memory").decide([a_job(1, 8, gpus=2)], server)) == {1: ("GPU-0", "GPU-1")}


def test_larger_priority_goes_first_then_age():
    queue = [a_job(1, 30, at_s=5), a_job(2, 30, at_s=1), a_job(3, 30, at_s=9, priority=1)]
    answers = MEMORY_ONLY.decide(queue, a_server(a_snapshot()))
    assert [answer.job_id for answer in answers] == [3, 2, 1]
    assert placed(answers) == {3: ("GPU-0",)}


def test_a_shared_job_is_promised_its_bound_and_an_exclusive_one_the_whole_gpu():
    server = a_server(a_snapshot(0, foreign=1), a_snapshot(1))
    answers = MEMORY_ONLY.decide([a_job(1, 8, exclusive=True), a_job(2, 8)], server)
    assert [(answer.sharing, answer.promised_bytes) for answer in answers] == [
        ("exclusive", 39 * GiB),
        ("time-sliced", 8 * GiB),
    ]


def test_a_placement_reduces_the_memory_available_to_later_jobs_of_the_decision():
    answers = MEMORY_ONLY.decide([a_job(number, 15) for number in (1, 2, 3)], a_server(a_snapshot()))
    assert placed(answers) == {1: ("GPU-0",), 2: ("GPU-0",)}
    assert waits(answers)[3].rejections[0].reason == "needs 15.0 GiB, 10.0 GiB available"


def test_later_jobs_pass_a_pending_one_only_with_backfill():
    queue = [a_job(1, 20), a_job(2, 4)]
    server = a_server(a_snapshot(residents=BUSY))
    assert placed(MEMORY_ONLY.decide(queue, server)) == {2: ("GPU-0",)}
    strict = replace(MEMORY_ONLY, backfill=False).decide(queue, server)
    assert placed(strict) == {}
    assert waits(strict)[2].reason == "job 1 is ahead, and this policy starts jobs in order"
    assert [rejection.rule for rejection in waits(strict)[2].rejections] == ["head_of_line"]


def test_a_retry_blocks_the_queue_only_with_retries_block():
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=20 * GiB)
    retry = replace(a_job(1, 20), attempts=(Attempt(number=1, placement=place, placed_at_s=0.0),))
    strict = replace(MEMORY_ONLY, backfill=False)
    queue, server = [retry, a_job(2, 4)], a_server(a_snapshot(residents=BUSY))
    assert placed(strict.decide(queue, server)) == {2: ("GPU-0",)}
    blocked = replace(strict, retries_block=True).decide(queue, server)
    assert placed(blocked) == {}
    assert waits(blocked)[2].reason == "job 1 is ahead, and this policy starts jobs in order"


def long_wait(job, since_s=0.0):
    return replace(job, state=Queued(since_s=since_s))


def test_gpus_are_reserved_for_a_gang_that_waited_long():
    policy = replace(MEMORY_ONLY, reserve_after_s=600)
    server = a_server(
        a_snapshot(0, residents=(a_resident(8), a_resident(8, job_id=101))),
        a_snapshot(1, residents=(a_resident(8, job_id=102),)),
        a_snapshot(2, residents=(a_resident(8, job_id=103),)),
        at_s=600.0,
    )
    queue = [long_wait(a_job(1, 36, gpus=2)), long_wait(a_job(2, 8))]
    answers = policy.decide(queue, server)
    assert placed(answers) == {2: ("GPU-0",)}, "the two with fewest residents are kept for the gang"
    early = policy.decide(queue, replace(server, at_s=599.0))
    assert placed(early) == {2: ("GPU-0",)}
    crowd = [queue[0], *(a_job(number, 20, at_s=1) for number in (2, 3, 4))]
    assert len(placed(policy.decide(crowd, server))) == 1
    assert len(placed(policy.decide(crowd, replace(server, at_s=599.0)))) == 3


def test_only_one_job_at_a_time_has_a_reservation():
    policy = replace(MEMORY_ONLY, reserve_after_s=0)
    server = a_server(a_snapshot(0, residents=BUSY), a_snapshot(1, residents=BUSY))
    answers = policy.decide([a_job(1, 20), a_job(2, 20, gpus=2), a_job(3, 4)], server)
    assert placed(answers) == {3: ("GPU-1",)}
    assert [rejection.rule for rejection in waits(answers)[2].rejections] == ["reserved", "insufficient_memory"]


def test_a_gpu_filled_by_a_job_of_another_size_is_full_for_all():
    server = a_server(a_snapshot(0), a_snapshot(1))
    queue = [a_job(1, 20), a_job(2, 39), a_job(3, 20), a_job(4, 20)]
    assert placed(MEMORY_ONLY.decide(queue, server)) == {1: ("GPU-0",), 2: ("GPU-1",), 3: ("GPU-0",)}


def test_a_gpu_is_re_ranked_after_a_job_of_another_size_took_it():
    policy = replace(MEMORY_ONLY, score=scores.most_available_memory)
    server = a_server(*(a_snapshot(number) for number in range(3)))
    answers = policy.decide([a_job(1, 4), a_job(2, 20), a_job(3, 4)], server)
    assert placed(answers) == {1: ("GPU-0",), 2: ("GPU-1",), 3: ("GPU-2",)}


def test_a_gang_never_gets_a_gpu_twice():
    server = a_server(a_snapshot(0, foreign=20), a_snapshot(1, foreign=20), a_snapshot(2))
    answers = MEMORY_ONLY.decide([a_job(1, 15, gpus=2), a_job(2, 12), a_job(3, 15, gpus=2)], server)
    assert placed(answers) == {1: ("GPU-0", "GPU-1"), 2: ("GPU-2",)}


def test_a_reservation_excludes_later_jobs_of_an_already_searched_size():
    policy = replace(MEMORY_ONLY, reserve_after_s=0)
    server = a_server(a_snapshot(0, residents=BUSY), a_snapshot(1, residents=BUSY))
    queue = [a_job(1, 5), a_job(2, 20), a_job(3, 5), a_job(4, 5)]
    assert placed(policy.decide(queue, server)) == {1: ("GPU-0",), 3: ("GPU-0",)}


def test_two_hundred_distinct_sizes_are_all_placed():
    server = a_server(*(a_snapshot(number) for number in range(4)))
    queue = [a_job(1 + number, 0.1 + number % 100 / 100) for number in range(200)]
    assert len(placed(MEMORY_ONLY.decide(queue, server))) == 200


def test_rejections_report_the_memory_available_after_the_whole_decision():
    server = a_server(a_snapshot(residents=BUSY))
    answers = waits(MEMORY_ONLY.decide([a_job(1, 20), a_job(2, 4), a_job(3, 20)], server))
    assert answers[1].rejections[0].reason == "needs 20.0 GiB, 6.0 GiB available"
    assert answers[3].rejections[0].reason == "needs 20.0 GiB, 6.0 GiB available"


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        pytest.param(a_job(1, 13.1), "GPU 1, best of 2: needs 13.1 GiB, 9.5 GiB available", id="one"),
        pytest.param(
            a_job(1, 13.1, exclusive=True),
            "GPU 1, best of 2: must be empty (it was submitted as exclusive), job 100 on it",
            id="alone",
        ),
        pytest.param(
            a_job(1, None),
            "GPU 1, best of 2: must be empty (its memory need is not known), job 100 on it",
            id="unknown",
        ),
        pytest.param(
            a_job(1, 9.2, gpus=2),
            "2 GPUs with 9.2 GiB available each, 1 of 2 qualifies; GPU 0: needs 9.2 GiB, 9.0 GiB available",
            id="too_few_gpus",
        ),
        pytest.param(a_job(1, 1, gpus=3), "3 GPUs with 1.0 GiB available each, 2 of 2 qualify", id="too wide"),
    ],
)
def test_a_deferral_names_the_gpus_and_memory_that_are_missing(job, reason):
    server = a_server(a_snapshot(0, residents=(a_resident(31),)), a_snapshot(1, residents=(a_resident(30.5),)))
    assert MEMORY_ONLY.decide([job], server)[0].reason == reason


def test_a_server_without_gpus_defers_the_job():
    assert MEMORY_ONLY.decide([a_job(1)], a_server())[0].reason == "1 GPU with 8.0 GiB available, no GPU is known"


def test_rejections_of_a_gang_are_in_display_order():
    server = a_server(a_snapshot(0), a_snapshot(1, residents=BUSY), a_snapshot(2))
    (wait,) = MEMORY_ONLY.decide([a_job(1, 20, gpus=3)], server)
    assert [(rejection.gpu_uuid, rejection.rule) for rejection in wait.rejections] == [
        ("GPU-0", "too_few_gpus"),
        ("GPU-1", "insufficient_memory"),
        ("GPU-2", "too_few_gpus"),
    ]


def test_identical_requests_get_identical_rejections_under_their_own_id():
    server = a_server(a_snapshot(residents=BUSY))
    first, second = MEMORY_ONLY.decide([a_job(1, 20), a_job(2, 20)], server)
    assert (first.job_id, second.job_id) == (1, 2)
    assert first.rejections == second.rejections


def test_a_second_job_waits_until_the_first_has_warmed_up():
    answers = create("first-fit").decide([a_job(1, 4), a_job(2, 4)], a_server(a_snapshot()))
    assert placed(answers) == {1: ("GPU-0",)}
    assert waits(answers)[2].rejections[0].rule == "warming_up"
    both = create("first-fit", {"warmup_s": 0}).decide([a_job(1, 4), a_job(2, 4)], a_server(a_snapshot()))
    assert len(placed(both)) == 2


def test_the_sharing_option_sets_the_mode_of_the_placement():
    (answer,) = create("best-fit", {"sharing": "mps"}).decide([a_job(1)], a_server(a_snapshot()))
    assert answer.sharing == "mps"


def test_a_later_job_of_the_same_demand_inherits_the_reservation():
    placer = replace(MEMORY_ONLY, reserve_after_s=600).placer()
    placer.update(a_snapshot(0, residents=(a_resident(30, job_id=100),)))
    placer.update(a_snapshot(1, residents=(a_resident(30, job_id=101),)))
    placer.add(long_wait(a_job(1, 36)))
    assert placer.decide(600.0) == []
    placer.add(a_job(2, 36, at_s=600.0, priority=1))
    assert placer.decide(601.0) == []
    reserved = next(
        rejection.gpu_uuid for rejection in placer.explain(2, 601.0).rejections if rejection.rule == "reserved"
    )
    placer.update(a_snapshot(int(reserved[-1])))
    assert [placement.job_id for placement in placer.decide(602.0)] == [1], "its GPU is not for the job ahead of it"


def after_oom(job, seen_gib=20, **learned):
    place = Placement(job_id=job.id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=20 * GiB)
    oom = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=bool(learned)))
    peaks = {"GPU-0": int(seen_gib * GiB)}
    attempt = Attempt(number=1, placement=place, placed_at_s=0.0, exit=oom, peak_observed_bytes=peaks)
    return replace(job, attempts=(attempt,), state=Queued(since_s=100.0), **learned)


@pytest.mark.parametrize(
    ("learned", "reserved"),
    [
        pytest.param({"min_memory_bytes": 30 * GiB}, True, id="needs more than its promise"),
        pytest.param({"exclusive_retry": True}, True, id="is to be alone"),
        pytest.param({}, False, id="failed for another reason"),
        pytest.param({"min_memory_bytes": 30 * GiB, "seen_gib": 0}, False, id="says so, and held nothing"),
    ],
)
def test_a_retry_after_oom_reserves_memory_before_smaller_jobs_take_it(learned, reserved):
    """Otherwise what others leave goes to jobs that need less, as long as there are any."""
    placer = replace(MEMORY_ONLY, reserve_after_s=600).placer()
    placer.update(a_snapshot(0, residents=BUSY))
    placer.update(a_snapshot(1, residents=BUSY))
    placer.add(after_oom(a_job(1, 20), **learned))
    placer.add(a_job(2, 5, at_s=90.0))
    assert placed(placer.decide(100.0)) == {2: ("GPU-1" if reserved else "GPU-0",)}
    placer.update(a_snapshot(0))
    assert placed(placer.decide(101.0)) == {1: ("GPU-0",)}


def test_the_only_gpu_is_not_reserved_before_reserve_after_s():
    placer = replace(MEMORY_ONLY, reserve_after_s=600).placer()
    placer.update(a_snapshot(0, residents=BUSY))
    placer.add(after_oom(a_job(1, 20), min_memory_bytes=30 * GiB))
    placer.add(a_job(2, 5, at_s=90.0))
    assert placed(placer.decide(100.0)) == {2: ("GPU-0",)}
    placer.add(a_job(3, 1, at_s=90.0))
    assert placed(placer.decide(700.0)) == {}


def test_a_reserved_gpu_is_taken_when_its_gate_opens():
    policy = replace(MEMORY_ONLY, reserve_after_s=600, gates=(gates.warming_up(15),))
    placer = policy.placer()
    young = a_resident(8, placed_at_s=590.0, first_active_at_s=590.0)
    placer.update(a_snapshot(0, residents=(young,), at_s=600.0))
    placer.add(long_wait(a_job(1, 20)))
    assert placer.decide(601.0) == [], "settles, and is kept"
    assert placer.decide(602.0) == []
    assert placer.explain(1, 601.0).rejections[0].rule == "warming_up"
    assert placer.wakes_at_s == 605.0
    assert [placement.job_id for placement in placer.decide(605.0)] == [1]


def test_removing_the_job_releases_its_reservation():
    placer = replace(MEMORY_ONLY, reserve_after_s=600).placer()
    placer.update(a_snapshot(0, residents=BUSY))
    placer.add(long_wait(a_job(1, 36)))
    placer.add(a_job(2, 5, at_s=600.0))
    assert placer.decide(600.0) == [], "the only GPU is kept for the first"
    placer.remove(1)
    assert [placement.job_id for placement in placer.decide(601.0)] == [2]


def test_placer_wakes_when_a_reservation_becomes_due():
    placer = replace(MEMORY_ONLY, reserve_after_s=600).placer()
    placer.update(a_snapshot(0, residents=(a_resident(30, job_id=100),)))
    placer.add(long_wait(a_job(1, 36)))
    assert placer.wakes_at_s is None
    placer.decide(10.0)
    assert placer.wakes_at_s == 600.0
    placer.add(a_job(2, 5, at_s=20.0))
    assert [placement.job_id for placement in placer.decide(20.0)] == [2]
    placer.decide(600.0)
    placer.add(a_job(3, 5, at_s=601.0))
    assert placer.decide(601.0) == []


def test_removed_jobs_do_not_accumulate_in_the_queue():
    placer = MEMORY_ONLY.placer()
    placer.update(a_snapshot(0, residents=BUSY))
    placer.decide(0.0)
    placer.add(a_job(0, 36))
    for number in range(1, 2000):
        placer.add(a_job(number, 36))
        placer.remove(number)
    (kind,) = placer._queue.blocked or placer._queue.ready
    assert len(kind.heap) < 200
    assert placer.waiting == 1


def test_memory_freed_by_an_exit_goes_to_a_pending_job():
    placer = MEMORY_ONLY.placer()
    placer.update(a_snapshot(0))
    for number in (1, 2, 3):
        placer.add(a_job(number, 15))
    assert [placement.job_id for placement in placer.decide(0.0)] == [1, 2]
    assert placer.decide(1.0) == []
    placer.release(1)
    assert [placement.job_id for placement in placer.decide(2.0)] == [3]


def test_a_job_with_a_reservation_starts_when_its_demand_shrinks():
    placer = replace(MEMORY_ONLY, reserve_after_s=600).placer()
    placer.update(a_snapshot(0, residents=(a_resident(15, job_id=100),)))
    placer.add(long_wait(a_job(1, 36)))
    placer.decide(600.0)
    placer.add(a_job(2, 20, at_s=600.0, priority=1))
    assert placer.decide(601.0) == []
    placer.add(long_wait(a_job(1, 20)))
    assert [placement.job_id for placement in placer.decide(602.0)] == [1]
