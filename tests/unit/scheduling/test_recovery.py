from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from cotenant.core.job import Attempt, AttemptExit, OomEvidence
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.recovery import Finish, Retry, next_step, ran_out_of_memory

TOTAL = 40 * GiB


def gib(**sizes):
    return OomEvidence(**{key: value if isinstance(value, bool) else int(value * GiB) for key, value in sizes.items()})


def an_exit(code=1, reason="exited", signal=None, oom=None, detail=""):
    return AttemptExit(exit_code=code, signal=signal, reason=reason, detail=detail, oom=oom or OomEvidence())


def ended(
    end, *, promised=8, sharing="time-sliced", earlier=(), peak=None, floor=0, ran_s=10.0, stop_reason=None, **spec
):
    """A job whose last attempt came to `end`; `earlier` are the exits before it."""
    attempts = tuple(
        Attempt(
            number=number,
            placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing=sharing, promised_bytes=int(promised * GiB)),
            placed_at_s=0.0,
            started_at_s=100.0,
            ended_at_s=100.0 + ran_s,
            exit=attempt_exit,
            stop_reason=stop_reason,
            peak_observed_bytes={} if peak is None else {"GPU-0": int(peak * GiB)},
        )
        for number, attempt_exit in enumerate([*earlier, end], start=1)
    )
    return replace(a_job(**spec), attempts=attempts, min_memory_bytes=int(floor * GiB))


PROOF = gib(exception=True)


@pytest.mark.parametrize(
    ("end", "outcome", "code"),
    [
        pytest.param(an_exit(0), "completed", 0, id="completed"),
        pytest.param(an_exit(0, oom=PROOF), "completed", 0, id="recovered from running out by itself"),
        pytest.param(an_exit(3), "failed", 3, id="failed"),
        pytest.param(an_exit(None, signal=9), "failed", 137, id="killed"),
        pytest.param(an_exit(None, "lost"), "lost", None, id="lost"),
        pytest.param(an_exit(None, "timeout", 15), "timeout", None, id="timeout"),
        pytest.param(an_exit(1, "timeout", oom=PROOF), "timeout", 1, id="timeout beats memory"),
        pytest.param(an_exit(None, "stopped", 15), "cancelled", None, id="stopped by somebody else"),
        pytest.param(an_exit(None, "not-started", detail="no such command"), "failed", None, id="not started"),
        pytest.param(an_exit(None, "not-started", oom=PROOF), "failed", None, id="not started is never memory"),
        pytest.param(an_exit(1, oom=gib(message=True)), "failed", 1, id="a word without a reading"),
        pytest.param(
            an_exit(1, oom=gib(message=True, free_bytes=5, total_bytes=40)), "failed", 1, id="a word on a free GPU"
        ),
        pytest.param(
            an_exit(1, oom=gib(message=True, free_bytes=1.3, total_bytes=40)), "failed", 1, id="a word, 3 % free"
        ),
        pytest.param(an_exit(1, oom=gib(free_bytes=0, total_bytes=40)), "failed", 1, id="a full GPU without a word"),
    ],
)
def test_an_exit_that_is_not_retried_finishes_the_job(end, outcome, code):
    found = next_step(ended(end))
    assert isinstance(found, Finish)
    assert (found.outcome, found.code) == (outcome, code)


@pytest.mark.parametrize(
    "oom",
    [
        pytest.param(PROOF, id="the exception it ended with"),
        pytest.param(gib(message=True, free_bytes=1.1, total_bytes=40), id="a word and a full GPU"),
        pytest.param(gib(message=True, free_bytes=3, tried_bytes=4), id="a word and too little free for what it tried"),
    ],
)
def test_oom_evidence_is_retried(oom):
    assert isinstance(next_step(ended(an_exit(1, oom=oom))), Retry)


def test_a_cancelled_job_whose_attempt_is_lost_does_not_run_again():
    job = ended(an_exit(None, "lost"), stop_reason="cancelled", requeue=True, max_attempts=3)
    assert next_step(job) == Finish(outcome="cancelled", reason="on request")


@pytest.mark.parametrize("reason", ["timeout", "stopped", "lost", "not-started"])
def test_only_an_exit_of_the_process_itself_counts_as_oom(reason):
    assert not ran_out_of_memory(an_exit(1, reason, oom=PROOF))
    assert ran_out_of_memory(an_exit(1, oom=PROOF))


@pytest.mark.parametrize(
    ("oom", "peak", "floor"),  # GiB; promised 8
    [
        pytest.param(gib(exception=True, in_use_bytes=10, tried_bytes=10), None, 22, id="held and tried, and a tenth"),
        pytest.param(gib(exception=True, in_use_bytes=8, tried_bytes=0.5), None, 10, id="at least a quarter more"),
        pytest.param(PROOF, None, 12, id="blind: half as much again"),
        pytest.param(PROOF, 20, 22, id="was seen to hold 20"),
        pytest.param(
            replace(gib(exception=True, in_use_bytes=30, tried_bytes=30), total_bytes=TOTAL),
            None,
            40,
            id="at most the GPU",
        ),
    ],
)
def test_the_memory_floor_grows_after_an_oom(oom, peak, floor):
    found = next_step(ended(an_exit(1, oom=oom), peak=peak))
    assert isinstance(found, Retry)
    assert found.min_memory_bytes == pytest.approx(floor * GiB, rel=1e-9)
    assert found.exclusive == (floor == 40)


def test_the_memory_floor_never_decreases():
    found = next_step(ended(an_exit(1, oom=PROOF), floor=30))
    assert isinstance(found, Retry)
    assert found.min_memory_bytes == 30 * GiB


def test_an_oom_caused_by_neighbors_leaves_the_floor_unchanged():
    oom = gib(exception=True, in_use_bytes=3, tried_bytes=1)
    found = next_step(ended(an_exit(1, oom=oom), floor=2))
    assert found == Retry(
        min_memory_bytes=2 * GiB, exclusive=False, reason="retry after out of memory: neighbors took its memory"
    )


def test_an_oom_before_any_allocation_is_blamed_on_neighbors():
    oom = gib(exception=True, in_use_bytes=0, tried_bytes=0.4, free_bytes=0)
    found = next_step(ended(an_exit(1, oom=oom)))
    assert (found.min_memory_bytes, found.exclusive) == (0, False)


def test_the_second_oom_makes_the_retry_exclusive():
    earlier = an_exit(1, oom=PROOF)
    found = next_step(ended(an_exit(1, oom=PROOF), earlier=[earlier]))
    assert isinstance(found, Retry)
    assert found.exclusive


def test_attempts_that_never_ran_do_not_count():
    never = an_exit(None, "never-ran", detail="no room")
    found = next_step(ended(an_exit(1, oom=PROOF), earlier=[never, never], max_attempts=3))
    assert isinstance(found, Retry)
    assert not found.exclusive
    assert isinstance(next_step(ended(never, earlier=[never, never], max_attempts=1)), Retry)


def test_the_last_attempt_is_exclusive():
    found = next_step(ended(an_exit(1, oom=PROOF), max_attempts=2))
    assert isinstance(found, Retry)
    assert found.exclusive


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        pytest.param(ended(an_exit(1, oom=PROOF), max_attempts=1), "out of memory in 1 attempt", id="no more attempts"),
        pytest.param(
            ended(an_exit(1, oom=PROOF), sharing="exclusive", promised=40),
            "out of memory on an exclusive GPU, more than the 40.0 GiB promised",
            id="alone",
        ),
    ],
)
def test_a_job_that_cannot_get_more_memory_ends_with_outcome_oom(job, reason):
    assert next_step(job) == Finish(outcome="oom", code=1, reason=reason)


def test_an_exclusive_oom_with_foreign_memory_is_retried():
    oom = gib(exception=True, in_use_bytes=3, tried_bytes=1)
    found = next_step(ended(an_exit(1, oom=oom), sharing="exclusive", promised=40))
    assert isinstance(found, Retry)
    assert found.exclusive


def test_the_third_exclusive_oom_is_final():
    """Whose memory is limited by its own script would else run out of it a hundred times, before whoever waits."""
    own_limit = an_exit(1, oom=gib(exception=True, in_use_bytes=3, tried_bytes=1))

    def after(earlier, **spec):
        return next_step(ended(own_limit, earlier=earlier, sharing="exclusive", promised=40, max_attempts=100, **spec))

    assert isinstance(after([own_limit]), Retry)
    assert isinstance(after([own_limit, an_exit(None, "lost")]), Retry)
    reason = "out of memory on an exclusive GPU, held 3.0 GiB, tried 1.0 GiB more, 40.0 GiB promised"
    assert after([own_limit, own_limit]) == Finish(outcome="oom", code=1, reason=reason)
    job = ended(own_limit, earlier=[own_limit, own_limit], sharing="exclusive", promised=40, max_attempts=100)
    assert isinstance(next_step(replace(job, uncounted_attempts=1)), Retry), "requeued since"


@pytest.mark.parametrize(
    ("end", "ran_s", "outcome"),
    [
        pytest.param(an_exit(None, "stopped", 15), 60.0, "timeout", id="stopped at the limit"),
        pytest.param(an_exit(None, "exited", 15), 60.0, "timeout", id="ended by the signal at the limit"),
        pytest.param(an_exit(None, "exited", 11), 60.0, "failed", id="crashed at the limit"),
        pytest.param(an_exit(0, "exited"), 60.0, "completed", id="completed at the limit"),
        pytest.param(an_exit(None, "stopped", 15), 59.0, "cancelled", id="before the limit"),
    ],
)
def test_an_exit_after_the_time_limit_is_a_timeout(end, ran_s, outcome):
    found = next_step(ended(end, ran_s=ran_s, time_limit_s=60.0))
    assert isinstance(found, Finish)
    assert found.outcome == outcome


@pytest.mark.parametrize("detail", ["", "timeout"])
def test_a_timeout_names_the_limit(detail):
    end = replace(an_exit(None, "stopped", 15), detail=detail)
    assert next_step(ended(end, ran_s=61.0, time_limit_s=60.0)).reason == "longer than its limit of 60 s"


@pytest.mark.parametrize("end", [an_exit(0), an_exit(1, oom=PROOF), an_exit(None, "timeout", 15)])
def test_a_cancelled_job_stays_cancelled_whatever_the_exit(end):
    found = next_step(ended(end, stop_reason="cancelled"))
    assert isinstance(found, Finish)
    assert found.outcome == "cancelled"


# Requested retries, crash loops, time slices.


@pytest.mark.parametrize(
    ("retries", "earlier", "ran_s", "expected"),
    [
        pytest.param(0, [], 600.0, ("failed", "exit code 3"), id="not requested"),
        pytest.param(1, [], 600.0, (None, "retry as requested: exit code 3"), id="the first"),
        pytest.param(1, [], 5.0, (None, "retry as requested: exit code 3"), id="one quick failure is no poison"),
        pytest.param(1, [an_exit(3)], 600.0, ("failed", "exit code 3"), id="used up"),
        pytest.param(2, [an_exit(4)], 600.0, (None, "retry as requested: exit code 3"), id="the second"),
        pytest.param(
            5,
            [an_exit(4)],
            5.0,
            ("failed", "exit code 3, twice within a minute of the start: not retried"),
            id="poison",
        ),
        pytest.param(
            1, [an_exit(1, oom=PROOF)], 600.0, (None, "retry as requested: exit code 3"), id="memory does not count"
        ),
    ],
)
def test_failures_are_retried_up_to_retries_unless_crash_looping(retries, earlier, ran_s, expected):
    what = next_step(ended(an_exit(3), earlier=earlier, ran_s=ran_s, retries=retries))
    assert (getattr(what, "outcome", None), what.reason) == expected


def test_a_requested_retry_preserves_the_floor_and_exclusivity():
    job = replace(ended(an_exit(3), ran_s=600.0, retries=1, floor=9), exclusive_retry=True)
    assert next_step(job) == Retry(min_memory_bytes=9 * GiB, exclusive=True, reason="retry as requested: exit code 3")


def test_attempts_before_a_requeue_do_not_count_as_failures():
    job = ended(an_exit(3), earlier=[an_exit(3), an_exit(3)], ran_s=5.0, retries=1)
    assert isinstance(next_step(job), Finish)
    assert isinstance(next_step(replace(job, uncounted_attempts=2)), Retry)


@pytest.mark.parametrize(
    ("end", "ran_s", "time_slice_s", "back"),
    [
        pytest.param(an_exit(None, "stopped", 15), 3600.0, 3600.0, True, id="stopped to make room"),
        pytest.param(an_exit(0, "stopped"), 3700.0, 3600.0, True, id="saved its state and ended well"),
        pytest.param(an_exit(None, "stopped", 15), 3599.0, 3600.0, False, id="stopped before"),
        pytest.param(an_exit(None, "stopped", 15), 3600.0, None, False, id="it has no slot"),
        pytest.param(an_exit(0), 3700.0, 3600.0, False, id="completed by itself"),
    ],
)
def test_the_end_of_a_time_slice_requeues_the_job(end, ran_s, time_slice_s, back):
    what = next_step(ended(end, ran_s=ran_s, time_slice_s=time_slice_s))
    assert isinstance(what, Retry) == back
    assert not back or what.uncount_attempts


def test_a_job_cancelled_at_the_end_of_its_time_slice_is_not_requeued():
    what = next_step(ended(an_exit(None, "stopped", 15), ran_s=3700.0, time_slice_s=3600.0, stop_reason="cancelled"))
    assert isinstance(what, Finish)
    assert what.outcome == "cancelled"
