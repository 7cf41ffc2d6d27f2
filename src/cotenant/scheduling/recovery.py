"""What an attempt's end means, and with how much memory the next one starts.

Out of memory is told by evidence, in this order:

- the traceback the process ended with is an out-of-memory error, and it did not exit with 0: out of memory;
- such words are only somewhere in its output: a hint, believed if a sample near the end shows the GPU full;
- anything else that fails is a failure of the job and is not tried again: it would fail again and, if it had
  precedence, keep others waiting (as happens where every failure counts as out of memory, in CARMA).

The next attempt may start at once, wherever there is room for the new floor: in the published systems the wait
for an empty GPU after such an exit, 1800-4100 s on average, is a hundred times the work lost.

- It needed `in_use + tried` at that moment, which is a lower bound of its peak: the floor is that and a tenth.
  Without these figures, half as much again as it was promised. At least a quarter above the promise in any case,
  so that few attempts reach any size; at most the whole GPU.
- If `in_use + tried` was within its promise, a neighbor took the memory: the promise was right, the floor stays.
- After two such exits, before the last attempt, and when the floor reaches the whole GPU, it gets its GPUs alone.
- Alone and still out of memory, with no stranger to blame, is the end; so is the third time alone, stranger or not, and
  `max_attempts`. A limit that a script sets itself looks like a stranger, and its retries come before whoever waits.

Who asks for it (`retries`) gets further attempts after other failures; but two in a row that fail within a minute of
their start do so for a reason that no attempt will change: such a job is poison and stops. An attempt that used up its
time slot and was asked to make room goes back to the queue and is held against nobody.

A client of MPS that faults takes all clients of its server with it, and nobody can tell which it was. All are tried
again, at nobody's expense, but not by MPS any more: whoever is to blame then falls alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.job import Attempt, AttemptExit, Job, OomEvidence, Outcome, SharingRequest
from cotenant.core.units import format_bytes

FULL_BELOW = 0.03
"""A GPU with less than this share of its memory free counts as full: caching allocators work in 2-20 MiB steps,
but samples are a second apart."""

HEADROOM = 1.1
MIN_STEP = 1.25
BLIND_STEP = 1.5
MAX_SHARED_OOMS = 2
MAX_EXCLUSIVE_OOMS = 3
CRASH_LOOP_S = 60.0

TERMINATED = (15, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The job goes back to the queue with these; `forgiven`: attempts until now do not count."""

    min_memory_bytes: int
    exclusive: bool
    reason: str
    forgiven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job is over; fields as in `Done`."""

    outcome: Outcome
    code: int | None = None
    reason: str = ""


def after_exit(job: Job) -> Retry | Finish:
    """What follows from the end of the last attempt of `job`, which has its `exit` and `ended_at_s`.

    Depends on the job alone, so that a replayed journal comes to the same end.
    """
    attempt = job.attempts[-1]
    end = attempt.exit or AttemptExit(exit_code=None, signal=None, reason="lost")
    if attempt.stop_reason is not None and end.reason != "lost":
        return Finish(outcome="cancelled", reason="on request")
    if _overran(job, attempt, end):
        return Finish(outcome="timeout", code=end.exit_code, reason=end.detail)
    if end.reason == "lost" and job.spec.requeue and _counted_attempts(job) < job.spec.max_attempts:
        why = f"retry: {end.detail or 'the last attempt was lost'}"
        return Retry(min_memory_bytes=job.min_memory_bytes, exclusive=job.exclusive_retry, reason=why)
    if end.reason == "lost":
        return Finish(outcome="lost", reason=end.detail or "nobody knows how it ended")
    if end.reason == "never-ran":
        return Retry(
            min_memory_bytes=job.min_memory_bytes, exclusive=job.exclusive_retry, reason=f"retry: {end.detail}"
        )
    if end.reason == "stopped" and is_time_slice_over(job, attempt):
        return Retry(
            min_memory_bytes=job.min_memory_bytes,
            exclusive=job.exclusive_retry,
            reason="its time slot was over",
            forgiven=True,
        )
    if end.reason == "stopped":
        return Finish(outcome="cancelled", reason=end.detail or "stopped from outside")
    if end.reason == "not-started":
        return Finish(outcome="failed", code=end.exit_code, reason=end.detail or "could not be started")
    if end.exit_code == 0:
        return Finish(outcome="completed", code=0)
    if ran_out_of_memory(end):
        return _after_oom(job, attempt, end.oom)
    return _after_failure(job, end)


def _after_failure(job: Job, end: AttemptExit) -> Retry | Finish:
    if end.mps_fault:
        return Retry(
            min_memory_bytes=job.min_memory_bytes,
            exclusive=job.exclusive_retry,
            reason="retry, without MPS: its MPS server failed under it, by a fault of any of its clients",
        )
    code = 128 + end.signal if end.signal is not None else end.exit_code
    reason = end.detail or (f"ended by signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}")
    if failures(job) > job.spec.retries:
        return Finish(outcome="failed", code=code, reason=reason)
    if is_crash_looping(job):
        return Finish(outcome="failed", code=code, reason=f"{reason}, twice within a minute of the start: not retried")
    return Retry(
        min_memory_bytes=job.min_memory_bytes, exclusive=job.exclusive_retry, reason=f"retry as asked: {reason}"
    )


def has_oomed(job: Job) -> bool:
    """Whether it ran out of memory since it was last requeued: where there is room, it starts again at once."""
    return any(
        each.exit is not None and ran_out_of_memory(each.exit) for each in job.attempts[job.uncounted_attempts :]
    )


def failures(job: Job) -> int:
    """Attempts that failed for a reason of their own, since the job was last requeued."""
    return sum(1 for each in job.attempts[job.uncounted_attempts :] if _failed(each))


def effective_sharing(job: Job) -> SharingRequest:
    """How the next attempt shares: as was asked, but no longer by MPS once that has failed under it."""
    if not job.attempts:
        return job.spec.share
    faulted = any(each.exit is not None and each.exit.mps_fault for each in job.attempts[job.uncounted_attempts :])
    return "time" if faulted and job.spec.share != "mig" else job.spec.share


def is_crash_looping(job: Job) -> bool:
    """Whether the last two attempts failed right after their start."""
    last = job.attempts[job.uncounted_attempts :][-2:]
    return len(last) == 2 and all(
        _failed(each)
        and each.started_at_s is not None
        and each.ended_at_s is not None
        and each.ended_at_s - each.started_at_s < CRASH_LOOP_S
        for each in last
    )


def is_time_slice_over(job: Job, attempt: Attempt, at_s: float | None = None) -> bool:
    """Whether it has had, at its end or at `at_s`, the time after which it makes room for others."""
    until_s = attempt.ended_at_s if at_s is None else at_s
    time_slice_s, since_s = job.spec.time_slice_s, attempt.started_at_s
    return (
        time_slice_s is not None and since_s is not None and until_s is not None and until_s - since_s >= time_slice_s
    )


def _failed(attempt: Attempt) -> bool:
    end = attempt.exit
    own = end is not None and end.reason == "exited" and end.exit_code != 0 and not end.mps_fault
    return own and end is not None and not ran_out_of_memory(end)


def _counted_attempts(job: Job) -> int:
    """Attempts that count against those a job may have."""
    return sum(1 for each in job.attempts[job.uncounted_attempts :] if each.exit is None or not each.exit.mps_fault)


def ran_out_of_memory(end: AttemptExit) -> bool:
    """Whether the evidence says that an attempt ended for want of GPU memory."""
    if end.reason != "exited" or end.exit_code == 0:
        return False
    oom = end.oom
    return oom.exception or (oom.message and _was_full(oom))


def _was_full(oom: OomEvidence) -> bool:
    if oom.free_bytes is None:
        return False
    if oom.tried_bytes is not None and oom.free_bytes < oom.tried_bytes:
        return True
    return oom.total_bytes is not None and oom.free_bytes < FULL_BELOW * oom.total_bytes


def _overran(job: Job, attempt: Attempt, end: AttemptExit) -> bool:
    if end.reason == "timeout":
        return True
    limit_s, since_s = job.spec.time_limit_s, attempt.started_at_s
    if limit_s is None or since_s is None or attempt.ended_at_s is None:
        return False
    stopped = end.reason == "stopped" or (end.reason == "exited" and end.signal in TERMINATED)
    return stopped and attempt.ended_at_s - since_s >= limit_s


def _after_oom(job: Job, attempt: Attempt, oom: OomEvidence) -> Retry | Finish:
    promised = attempt.placement.promised_bytes
    alone = attempt.placement.sharing == "exclusive"
    wanted = None if oom.tried_bytes is None or oom.in_use_bytes is None else oom.tried_bytes + oom.in_use_bytes
    victim = wanted is not None and wanted <= promised
    counted = _counted_attempts(job)
    if counted >= job.spec.max_attempts:
        return Finish(outcome="oom", code=_code(attempt), reason=f"out of memory in {_attempts(counted)}")
    if alone and (not victim or _ooms_alone(job) >= MAX_EXCLUSIVE_OOMS):
        return Finish(
            outcome="oom", code=_code(attempt), reason=f"out of memory alone on its GPU, {_memory_text(oom, attempt)}"
        )
    floor = job.min_memory_bytes if victim else next_floor_bytes(job, attempt, wanted)
    if not victim and oom.total_bytes is not None:
        floor = max(job.min_memory_bytes, min(floor, oom.total_bytes))
    whole = oom.total_bytes is not None and floor >= oom.total_bytes
    shared_ooms = 1 + sum(1 for each in job.attempts[:-1] if each.exit is not None and ran_out_of_memory(each.exit))
    last = counted + 1 >= job.spec.max_attempts
    exclusive = alone or whole or last or shared_ooms >= MAX_SHARED_OOMS
    cause = "neighbors took its memory" if victim else _memory_text(oom, attempt)
    return Retry(min_memory_bytes=floor, exclusive=exclusive, reason=f"retry after out of memory: {cause}")


def _ooms_alone(job: Job) -> int:
    """How often it ran out of memory with its GPUs to itself, since it was last requeued."""
    return sum(
        1
        for each in job.attempts[job.uncounted_attempts :]
        if each.placement.sharing == "exclusive" and each.exit is not None and ran_out_of_memory(each.exit)
    )


def next_floor_bytes(job: Job, attempt: Attempt, wanted_bytes: int | None) -> int:
    """Floor after an attempt that needed more than its promise; `wanted_bytes` where the framework told."""
    promised = attempt.placement.promised_bytes
    peak = max(attempt.peak_observed_bytes.values(), default=0)
    learned = int(max(wanted_bytes or 0, peak) * HEADROOM)
    step = int(promised * (MIN_STEP if wanted_bytes is not None else BLIND_STEP))
    return max(learned, step, job.min_memory_bytes)


def _memory_text(oom: OomEvidence, attempt: Attempt) -> str:
    promised = format_bytes(attempt.placement.promised_bytes)
    if oom.in_use_bytes is None or oom.tried_bytes is None:
        return f"more than the {promised} promised"
    return f"held {format_bytes(oom.in_use_bytes)}, tried {format_bytes(oom.tried_bytes)} more, {promised} promised"


def _code(attempt: Attempt) -> int | None:
    end = attempt.exit
    if end is None:
        return None
    return 128 + end.signal if end.signal is not None else end.exit_code


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"
