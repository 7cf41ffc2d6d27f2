"""Explains the state of a job as a `Deferral`: a sentence, and a rejection for each GPU that was considered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cotenant.core.job import Charge, Done, Held, Job, Queued, Running, Starting
from cotenant.core.placement import Deferral
from cotenant.core.units import format_bytes, format_duration
from cotenant.scheduling.idle_watch import IdleStatus
from cotenant.scheduling.overrun import job_text
from cotenant.scheduling.placement.refusal import Refusal

_JOB_ID = re.compile(r"(?<!another user's )\bjob ([0-9]{1,18})\b")
"""An overrun says of itself whose job it was, and its id (`overrun.job_text`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunStatus:
    """Slowdown of a live job in its current co-run: step time as a multiple of the solo step time.

    Attributes:
        neighbor_ids: jobs on the same GPU; None for a job of another user.
        predicted: by the interference predictor; None if a neighbor is no longer known.
        measured: from the job's own step rate; None if it reports none, or if its solo step rate is not known.
    """

    neighbor_ids: tuple[int | None, ...]
    predicted: float | None
    measured: float | None


def explanation(
    job: Job,
    *,
    refusal: Refusal | None,
    wait: Deferral | None,
    pending: Callable[[], str],
    supply: str = "",
    indices: Mapping[str, int],
    peak_bytes: int = 0,
    co_run_status: CoRunStatus | None = None,
    is_paused: bool = False,
    idle: IdleStatus | None = None,
) -> Deferral:
    """The explanation of the state of `job`.

    Args:
        job: with its state and attempts.
        refusal: why the job is not offered to the policy; None if it is.
        wait: the newest answer of the policy; None if it has not considered the job since it was queued.
        pending: gives the reason shown without either.
        supply: why there are no more GPUs yet; empty if none can be requested.
        indices: display indices of the GPUs, by UUID.
        peak_bytes: the largest observed memory use of a live attempt on one GPU.
        co_run_status: slowdown of a live job; None if it has no neighbors.
        is_paused: its newest attempt is paused, because it exceeded its promise.
        idle: how long it has been idle; None if it is not.
    """
    match job.state:
        case Queued() if refusal is not None:
            return Deferral(job_id=job.id, reason=refusal.reason, rule=refusal.rule)
        case Queued(reason=reason) if wait is not None:
            return replace(wait, reason="; ".join(filter(None, (reason, wait.reason, supply))))
        case Queued(reason=reason):
            return _deferral(job, "; ".join(filter(None, (reason, supply or pending()))))
        case Held(reason=reason):
            return _deferral(job, f"held: {reason}" if reason else "held until released")
        case Starting() | Running():
            text = _live_text(job, indices, peak_bytes) + _co_run_text(co_run_status)
            paused = ", paused until all promises fit" if is_paused else ""
            return _deferral(job, text + paused + _idle_text(idle) + _charges_text(job))
        case Done(outcome=outcome, reason=reason):
            return _deferral(job, (f"{outcome}: {reason}" if reason else outcome) + _charges_text(job))


def gpus_text(gpu_uuids: Sequence[str], indices: Mapping[str, int]) -> str:
    """`GPU 0`, `GPUs 0, 1`; a GPU that has no index now keeps its UUID."""
    names = ", ".join(str(indices.get(uuid, uuid)) for uuid in gpu_uuids)
    return f"{'GPU' if len(gpu_uuids) == 1 else 'GPUs'} {names}"


def _live_text(job: Job, indices: Mapping[str, int], peak_bytes: int) -> str:
    attempt = job.attempts[-1]
    place = attempt.placement
    verb = "starts" if isinstance(job.state, Starting) else "runs"
    again = f", attempt {attempt.number}" if attempt.number > 1 else ""
    over = f", exceeded: {format_bytes(peak_bytes)} observed" if peak_bytes > place.promised_bytes else ""
    stop = f", being stopped ({attempt.stop_reason})" if attempt.stop_reason else ""
    where = f"{gpus_text(place.gpu_uuids, indices)} ({place.sharing})"
    return f"{verb} on {where}, {format_bytes(place.promised_bytes)} promised{over}{again}{stop}"


def _idle_text(idle: IdleStatus | None) -> str:
    if idle is None:
        return ""
    return f", idle for {format_duration(idle.idle_s)}" + (f", {idle.next_text}" if idle.next_text else "")


def _co_run_text(co_run_status: CoRunStatus | None) -> str:
    if co_run_status is None:
        return ""
    slowdowns = [
        f"{value:.2f} times as long {word}"
        for value, word in ((co_run_status.measured, "measured"), (co_run_status.predicted, "predicted"))
        if value is not None
    ]
    return f", beside {name_neighbors(co_run_status.neighbor_ids)}{': ' if slowdowns else ''}{', '.join(slowdowns)}"


def name_neighbors(neighbor_ids: Sequence[int | None]) -> str:
    """`job 3`, `jobs 3, 4`, `job 3 and 2 of other users`, `another user's job`."""
    known = [str(job_id) for job_id in neighbor_ids if job_id is not None]
    hidden = len(neighbor_ids) - len(known)
    if not known:
        return "another user's job" if hidden == 1 else f"{hidden} jobs of other users"
    named = f"{'job' if len(known) == 1 else 'jobs'} {', '.join(known)}"
    return f"{named} and {hidden} of other users" if hidden else named


def _charges_text(job: Job) -> str:
    """What its overruns cost neighbors, attempt by attempt."""
    return "".join(
        f"; {charge_text(charge, attempt.placement.promised_bytes, job.spec.uid)}"
        for attempt in job.attempts
        for charge in attempt.charges
    )


def charge_text(charge: Charge, promised_bytes: int, uid: int) -> str:
    """One charge, as the user `uid` of the job that is charged may see it."""
    victim = job_text(charge.victim_id, same_user=charge.victim_uid == uid)
    cost = "" if charge.usage is None else f", {format_duration(charge.usage.gpu_s)} of GPU time charged"
    held, promised = format_bytes(charge.observed_bytes), format_bytes(promised_bytes)
    return f"{victim} ran out of memory because it held {held}, {promised} promised{cost}"


def _deferral(job: Job, sentence: str) -> Deferral:
    return Deferral(job_id=job.id, reason=sentence)


def without_strangers(wait: Deferral, uid: int, jobs: Mapping[int, Job]) -> Deferral:
    """`wait` as user `uid` may see it: jobs of other users have no id there.

    What a policy says is about whoever is on a GPU. A dependency is on a job that the user named.
    """
    if wait.rule == "dependency":
        return wait

    def shown(text: str) -> str:
        return _JOB_ID.sub(lambda found: found[0] if is_own(int(found[1])) else "another user's job", text)

    def is_own(job_id: int) -> bool:
        return job_id not in jobs or jobs[job_id].spec.uid == uid

    rejections = tuple(replace(rejection, reason=shown(rejection.reason)) for rejection in wait.rejections)
    return replace(wait, reason=shown(wait.reason), rejections=rejections)
