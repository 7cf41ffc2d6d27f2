"""Decides whether a job is retried after an attempt, and how much memory the next attempt reserves.

An exit counts as out of memory by evidence, in this order:

- The traceback that ended the process is an out-of-memory error and the exit code is not 0: out of memory.
- Only the output mentions out of memory: a hint, which counts if a sample near the end shows a full GPU.
- Any other failure is the job's own. It is not retried by default: it would fail again and, because retries have
  precedence in the queue, delay other jobs (CARMA counts every failure as out of memory).

The next attempt may start at once, wherever its new minimum fits. The published systems wait for an empty GPU instead:
1800-4100 s on average, a hundred times the work that was lost.

- The process needed `in_use + tried` bytes, a lower bound of its peak: the minimum becomes that and 10 %. Without these
  figures it becomes 1.5 times the promise. It grows by at least a quarter of the promise, so that few attempts reach
  any size, and is at most the whole GPU.
- If `in_use + tried` and what was seen were within the promise, others took the memory: the minimum stays. If samples
  show a neighbor beyond its promise, the attempt is forgiven, too: it counts against no limit.
- After two such exits, before the last attempt, and when the minimum reaches the whole GPU, the job gets its GPUs
  exclusively.
- Out of memory on an exclusive GPU ends the job, unless a foreign process took the memory. The third time on an
  exclusive GPU ends it in any case, and so does `max_attempts`: a memory limit that a script sets for itself looks like
  a foreign process, and retries precede other jobs.

Anybody can print such a message. What it claims is believed up to what was seen (`is_confirmed`): a retry after an exit
that no sample bears out waits like any other job.

`JobSpec.retries` allows further attempts after other failures. Two in a row that fail within a minute of their start
are a crash loop and end the job. An attempt that used up its time slice and was stopped to make room is requeued; its
attempts do not count against any limit. One that was stopped because it was idle may be held for its user.

An attempt that was moved (`checkpoints`) is followed by another in its old place in the queue, and counts against no
limit, whether its state was saved or not.

An MPS client that faults terminates all clients of its server, and nothing shows which client it was. All of them are
retried without MPS, and the attempts do not count; the faulty client then fails alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.fast_constructor import fast_replace
from cotenant.core.job import Attempt, AttemptExit, Done, Held, Job, OomEvidence, Outcome, Queued, SharingRequest
from cotenant.core.units import counted, format_bytes
from cotenant.scheduling.checkpoints import (
    REQUEUE,
    TIME_SLICE_STOP,
    completed_while_saving,
    is_moved,
    is_saved,
)
from cotenant.scheduling.idle_watch import PARKED
from cotenant.scheduling.overrun import OVERRUN_STOP, overruns_text, tolerated_bytes

FULL_BELOW = 0.03
"""A GPU counts as full if a smaller share of its memory is free. Caching allocators request segments of 2-20 MiB, but
samples are one second apart, so the last one may miss the final segments."""

HEADROOM = 1.1
MIN_STEP = 1.25
BLIND_STEP = 1.5
MAX_SHARED_OOMS = 2
MAX_EXCLUSIVE_OOMS = 3
MAX_FORGIVEN = 8

SEEN_SHARE = 0.5
"""An attempt that was seen to hold this share of its promise may have exceeded it before the next sample: a process
that grows steadily is halfway there for as long as samples are apart."""
DEPRIVED_BELOW = 0.9
"""An attempt was deprived of its promise if what it held and what was free came to less than this share of it."""

CRASH_LOOP_S = 60.0

TERMINATED = (15, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The job is queued again; with `uncount_attempts`, its attempts so far no longer count against limits."""

    min_memory_bytes: int
    exclusive: bool
    reason: str
    uncount_attempts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job ends; the fields are those of `Done`."""

    outcome: Outcome
    code: int | None = None
    reason: str = ""


def after_exit(job: Job, attempt: Attempt) -> Job:
    """`job` after the end of `attempt`, its newest: queued again, or done.

    `attempt` has `exit` and `ended_at_s`; it replaces the attempt with the same number, if `job` has one. The result
    depends on the arguments alone, so a replay of the journal and the simulator give the same job.
    """
    job = fast_replace(job, attempts=(*job.attempts[: attempt.number - 1], attempt))
    at_s = attempt.placed_at_s if attempt.ended_at_s is None else attempt.ended_at_s
    if attempt.stop_reason == REQUEUE and not completed_while_saving(job, attempt):
        state = Queued(since_s=at_s, reason="requeued while it ran")
        return fast_replace(job, state=state, uncounted_attempts=len(job.attempts))
    if _is_parked(attempt):
        held = Held(since_s=at_s, reason="" if attempt.exit is None else attempt.exit.detail)
        return fast_replace(job, state=held, uncounted_attempts=len(job.attempts))
    step = next_step(job)
    if isinstance(step, Finish):
        return fast_replace(job, state=Done(outcome=step.outcome, at_s=at_s, code=step.code, reason=step.reason))
    return fast_replace(
        job,
        state=Queued(since_s=at_s, reason=step.reason),
        min_memory_bytes=step.min_memory_bytes,
        exclusive_retry=step.exclusive,
        uncounted_attempts=len(job.attempts) if step.uncount_attempts else job.uncounted_attempts,
    )


def next_step(job: Job) -> Retry | Finish:
    """Whether `job` is retried or ends after its last attempt."""
    attempt = job.attempts[-1]
    end = attempt.exit or AttemptExit(exit_code=None, signal=None, reason="lost")
    if attempt.stop_reason is not None and not completed_while_saving(job, attempt):
        return Finish(outcome="cancelled", reason="on request")
    if _exceeded_time_limit(job, attempt, end):
        return Finish(outcome="timeout", code=end.exit_code, reason=_timeout_text(job, end))
    if end.reason == "lost" and job.spec.requeue and _counted_attempts(job) < job.spec.max_attempts:
        return _same_again(job, f"retry: {end.detail or 'the last attempt was lost'}")
    if end.reason == "lost":
        return Finish(outcome="lost", reason=end.detail or "its exit was not observed")
    if end.reason == "never-ran":
        return _same_again(job, f"retry: {end.detail}")
    if end.reason == "stopped":
        return _after_stop(job, attempt, end)
    if end.reason == "not-started":
        return Finish(outcome="failed", code=end.exit_code, reason=end.detail or "could not be started")
    if end.exit_code == 0:
        return Finish(outcome="completed", code=0)
    if ran_out_of_memory(end):
        return _after_oom(job, attempt, end.oom)
    return _after_failure(job, end)


def _after_stop(job: Job, attempt: Attempt, end: AttemptExit) -> Retry | Finish:
    if completed_while_saving(job, attempt):
        return Finish(outcome="completed", code=0)
    if end.detail.startswith(OVERRUN_STOP):
        return _after_overrun(job, attempt, end)
    if is_moved(attempt):
        return _same_again(job, f"{end.detail}, {'with' if is_saved(attempt) else 'without'} its state saved")
    if end.detail.startswith(TIME_SLICE_STOP) or is_time_slice_over(job, attempt):
        return fast_replace(_same_again(job, "its time slice was over"), uncount_attempts=True)
    return Finish(outcome="cancelled", reason=end.detail or "stopped from outside")


def _is_parked(attempt: Attempt) -> bool:
    """Whether it was stopped because it was idle, and its job is to wait for its user."""
    end = attempt.exit
    return attempt.stop_reason is None and end is not None and end.reason == "stopped" and end.detail.startswith(PARKED)


def _timeout_text(job: Job, end: AttemptExit) -> str:
    """Why it timed out. A stop by the daemon says `timeout` and nothing more."""
    if end.detail not in ("", "timeout") or job.spec.time_limit_s is None:
        return end.detail
    return f"longer than its limit of {job.spec.time_limit_s:g} s"


def _same_again(job: Job, reason: str) -> Retry:
    return Retry(min_memory_bytes=job.min_memory_bytes, exclusive=job.exclusive_retry, reason=reason)


def _after_failure(job: Job, end: AttemptExit) -> Retry | Finish:
    if end.mps_fault:
        return _same_again(job, "retry without MPS: its MPS server failed after a fault of one of its clients")
    code = 128 + end.signal if end.signal is not None else end.exit_code
    reason = end.detail or (f"ended by signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}")
    if failures(job) > job.spec.retries:
        return Finish(outcome="failed", code=code, reason=reason)
    if is_crash_looping(job):
        return Finish(outcome="failed", code=code, reason=f"{reason}, twice within a minute of the start: not retried")
    return _same_again(job, f"retry as requested: {reason}")


def _counted(job: Job) -> tuple[Attempt, ...]:
    """Attempts since the job was last requeued."""
    return job.attempts[job.uncounted_attempts :]


def _oomed(attempt: Attempt) -> bool:
    return attempt.exit is not None and ran_out_of_memory(attempt.exit)


def is_confirmed(attempt: Attempt) -> bool:
    """Whether samples bear out that an attempt ran out of memory, whatever its output claims.

    It was seen to hold half of its promise or more, or the GPU could not provide the promise. Neither is true of a
    process that only prints the message; both may be missed of one that grew and ended between two samples.
    """
    promised = attempt.placement.promised_bytes
    peak = max(attempt.peak_observed_bytes.values(), default=0)
    if peak >= SEEN_SHARE * promised:
        return True
    free = None if attempt.exit is None else attempt.exit.oom.free_bytes
    return free is not None and peak + free < DEPRIVED_BELOW * promised


def is_forgiven(attempt: Attempt) -> bool:
    """Whether an attempt ran out of memory because a neighbor exceeded its promise, while it stayed within its own."""
    return bool(attempt.overruns) and _oomed(attempt) and _is_within_promise(attempt) and is_confirmed(attempt)


def _is_within_promise(attempt: Attempt) -> bool:
    """Whether an attempt that ran out of memory needed no more than its promise, by its message and by samples."""
    oom = attempt.exit.oom if attempt.exit is not None else OomEvidence()
    promised = attempt.placement.promised_bytes
    if max(attempt.peak_observed_bytes.values(), default=0) > tolerated_bytes(promised):
        return False
    if oom.tried_bytes is None or oom.in_use_bytes is None:
        return bool(attempt.overruns)
    return oom.tried_bytes + oom.in_use_bytes <= promised


def _last_oom(job: Job) -> Attempt | None:
    """The newest attempt that ran out of memory since the job was last requeued."""
    return next((attempt for attempt in reversed(_counted(job)) if _oomed(attempt)), None)


def has_oomed(job: Job) -> bool:
    """Whether the job ran out of memory since it was last requeued, by its own account."""
    return _last_oom(job) is not None


def has_precedence(job: Job) -> bool:
    """Whether the job ran out of memory, as samples bear out: it restarts at once, wherever it fits."""
    last = _last_oom(job)
    return last is not None and is_confirmed(last)


def is_first(job: Job) -> bool:
    """Whether another user's job took its memory: it gets the next room, whatever the order of the queue.

    Not for jobs of the same user: two of them could make a third one first.
    """
    last = _last_oom(job)
    return last is not None and is_forgiven(last) and any(found.uid != job.spec.uid for found in last.overruns)


def failures(job: Job) -> int:
    """The number of failures of the job's own since it was last requeued: neither out of memory nor an MPS fault."""
    return sum(1 for attempt in _counted(job) if _failed(attempt))


def effective_sharing(job: Job) -> SharingRequest:
    """Sharing of the next attempt: as requested, but time-slicing instead of MPS after an MPS fault."""
    if not job.attempts:
        return job.spec.sharing
    faulted = any(attempt.exit is not None and attempt.exit.mps_fault for attempt in _counted(job))
    return "time" if faulted and job.spec.sharing != "mig" else job.spec.sharing


def is_crash_looping(job: Job) -> bool:
    """Whether the last two attempts failed within `CRASH_LOOP_S` of their start."""
    last = _counted(job)[-2:]
    return len(last) == 2 and all(
        _failed(attempt)
        and attempt.started_at_s is not None
        and attempt.ended_at_s is not None
        and attempt.ended_at_s - attempt.started_at_s < CRASH_LOOP_S
        for attempt in last
    )


def is_time_slice_over(job: Job, attempt: Attempt) -> bool:
    """Whether `attempt` ended after the time slice of its job."""
    until_s = attempt.ended_at_s
    time_slice_s, since_s = job.spec.time_slice_s, attempt.started_at_s
    return (
        time_slice_s is not None and since_s is not None and until_s is not None and until_s - since_s >= time_slice_s
    )


def _failed(attempt: Attempt) -> bool:
    end = attempt.exit
    if end is None or end.reason != "exited" or end.exit_code == 0 or end.mps_fault:
        return False
    return not ran_out_of_memory(end)


def _counted_attempts(job: Job) -> int:
    """Attempts that count against `max_attempts`."""
    counted = _counted(job)
    faults = sum(1 for attempt in counted if attempt.exit is not None and attempt.exit.mps_fault)
    never_ran = sum(1 for attempt in counted if attempt.exit is not None and attempt.exit.reason == "never-ran")
    forgiven = min(MAX_FORGIVEN, sum(1 for attempt in counted if is_forgiven(attempt)))
    return len(counted) - faults - never_ran - forgiven - sum(1 for attempt in counted if is_moved(attempt))


def ran_out_of_memory(end: AttemptExit) -> bool:
    """Whether the evidence shows that an attempt ran out of GPU memory."""
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


def _exceeded_time_limit(job: Job, attempt: Attempt, end: AttemptExit) -> bool:
    if end.reason == "timeout":
        return True
    limit_s, since_s = job.spec.time_limit_s, attempt.started_at_s
    if limit_s is None or since_s is None or attempt.ended_at_s is None:
        return False
    stopped = end.reason == "stopped" or (end.reason == "exited" and end.signal in TERMINATED)
    return stopped and attempt.ended_at_s - since_s >= limit_s


def _after_oom(job: Job, attempt: Attempt, oom: OomEvidence) -> Retry | Finish:
    exclusive = attempt.placement.sharing == "exclusive"
    wanted = None if oom.tried_bytes is None or oom.in_use_bytes is None else oom.tried_bytes + oom.in_use_bytes
    is_victim = _is_within_promise(attempt)
    if is_forgiven(attempt) and sum(1 for past in _counted(job) if is_forgiven(past)) <= MAX_FORGIVEN:
        return _same_again(job, f"retry after out of memory: {overruns_text(attempt.overruns, job.spec.uid)}")
    attempts = _counted_attempts(job)
    if attempts >= job.spec.max_attempts:
        return Finish(outcome="oom", code=_code(attempt), reason=f"out of memory in {counted(attempts, 'attempt')}")
    if exclusive and (not is_victim or _exclusive_ooms(job) >= MAX_EXCLUSIVE_OOMS):
        reason = f"out of memory on an exclusive GPU, {_memory_text(oom, attempt)}"
        return Finish(outcome="oom", code=_code(attempt), reason=reason)
    minimum = job.min_memory_bytes if is_victim else next_min_memory_bytes(job, attempt, wanted)
    if not is_victim and oom.total_bytes is not None:
        minimum = max(job.min_memory_bytes, min(minimum, oom.total_bytes))
    needs_whole_gpu = oom.total_bytes is not None and minimum >= oom.total_bytes
    ooms = 1 + sum(1 for earlier in job.attempts[:-1] if _oomed(earlier) and not is_forgiven(earlier))
    is_last = attempts + 1 >= job.spec.max_attempts
    cause = "neighbors took its memory" if is_victim else _memory_text(oom, attempt)
    return Retry(
        min_memory_bytes=minimum,
        exclusive=exclusive or needs_whole_gpu or is_last or ooms >= MAX_SHARED_OOMS,
        reason=f"retry after out of memory: {cause}",
    )


def _after_overrun(job: Job, attempt: Attempt, end: AttemptExit) -> Retry | Finish:
    """The daemon stopped it for what it held beyond its promise: the next attempt is promised that and 10 %."""
    attempts = _counted_attempts(job)
    if attempts >= job.spec.max_attempts:
        return Finish(outcome="oom", code=_code(attempt), reason=f"{end.detail}, in {counted(attempts, 'attempt')}")
    minimum = next_min_memory_bytes(job, attempt, None)
    return Retry(min_memory_bytes=minimum, exclusive=job.exclusive_retry, reason=f"retry: it {end.detail}")


def _exclusive_ooms(job: Job) -> int:
    """How often the job ran out of memory on exclusive GPUs since it was last requeued."""
    return sum(1 for attempt in _counted(job) if attempt.placement.sharing == "exclusive" and _oomed(attempt))


def next_min_memory_bytes(job: Job, attempt: Attempt, wanted_bytes: int | None) -> int:
    """The minimum after an attempt that exceeded its promise; `wanted_bytes`: if the framework reported it."""
    peak = max(attempt.peak_observed_bytes.values(), default=0)
    return max(grown_bytes(attempt.placement.promised_bytes, peak, wanted_bytes), job.min_memory_bytes)


def grown_bytes(promised_bytes: int, peak_bytes: int, wanted_bytes: int | None) -> int:
    """What to promise after `promised_bytes` were too few: 10 % above what was seen or wanted, and a step more."""
    learned = int(max(wanted_bytes or 0, peak_bytes) * HEADROOM)
    return max(learned, int(promised_bytes * (MIN_STEP if wanted_bytes is not None else BLIND_STEP)))


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
