"""The history of a job, from its journaled events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cotenant.core.events import (
    AttemptBusy,
    AttemptExited,
    AttemptIdle,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobSubmitted,
    JobUpdated,
    Journaled,
    RepartitionEnded,
    RepartitionStarted,
)
from cotenant.core.job import AttemptExit, Done, Held, Job, JobSpec
from cotenant.core.units import counted, format_bytes, format_duration, format_energy
from cotenant.daemon.api.schemas.json_objects import JobEvent
from cotenant.daemon.api.submission.job_fields import UPDATABLE_FIELDS, Unit
from cotenant.daemon.api.views.job_words import rfc3339
from cotenant.estimators.declared import DeclaredEstimator
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.explain import charge_text, gpus_text, name_neighbors
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.overrun import overruns_text

RedactIds = Callable[[Iterable[int]], Sequence[int | None]]


def timeline(
    events: Iterable[Journaled],
    neighbor_ids: RedactIds = tuple,
    *,
    indices: Mapping[str, int] = MappingProxyType({}),
    job: Job | None = None,
) -> list[JobEvent]:
    """One entry per event of one job, oldest first: `at`, `event`, `cause`, `text`, `state`.

    `state` is the state after the event, from the job's own events alone. If an event of another job changed the state
    of `job` since, e.g. a dependency failed, a last entry `JobState` says so. `NeighborCharged` is a neighbor that
    ran out of memory because the job exceeded its promise.
    `neighbor_ids` replaces the ids of jobs that the reader may not see by None; `indices`: of GPUs, by UUID.
    """
    table = JobTable(ManagerConfig(estimate=False))
    entries: list[JobEvent] = []
    spec: JobSpec | None = None
    for event in events:
        text = _text(event, spec, indices)
        if isinstance(event, AttemptExited):
            text += _measured(event, neighbor_ids) + _blamed(event, spec)
        if isinstance(event, (JobSubmitted, JobUpdated)):
            spec = event.spec
        if isinstance(event, JobSubmitted):
            # Other jobs are not at hand: without them, its dependencies would seem unknown.
            alone = dataclasses.replace(event.spec, after=(), after_any=(), after_failed=())
            table.apply(dataclasses.replace(event, spec=alone))
        elif not isinstance(event, JobUpdated):
            table.apply(event)
        known = table.jobs.get(event.job_id)
        entries.append(
            {
                "at": rfc3339(event.at_s),
                "at_s": event.at_s,
                "event": type(event).__name__,
                "cause": event.cause,
                "text": text,
                "state": None if known is None else _state(known),
            }
        )
    if job is not None:
        entries = _with_charges(entries, job)
    if job is not None and isinstance(job.state, (Done, Held)) and entries and entries[-1]["state"] != _state(job):
        at_s = job.state.at_s if isinstance(job.state, Done) else job.state.since_s
        reason = job.state.reason
        entries.append(
            {
                "at": rfc3339(at_s),
                "at_s": at_s,
                "event": "JobState",
                "cause": reason,
                "text": f"{job.state.outcome}: {reason}" if isinstance(job.state, Done) else reason,
                "state": _state(job),
            }
        )
    return entries


def _with_charges(entries: list[JobEvent], job: Job) -> list[JobEvent]:
    """`entries` and what the job's overruns cost neighbors, in order of time: events of other jobs say so."""
    for attempt in job.attempts:
        for charge in attempt.charges:
            before = [entry for entry in entries if entry["at_s"] <= charge.at_s]
            after = entries[len(before) :]
            entry: JobEvent = {
                "at": rfc3339(charge.at_s),
                "at_s": charge.at_s,
                "event": "NeighborCharged",
                "cause": "exceeded its promise",
                "text": charge_text(charge, attempt.placement.promised_bytes, job.spec.uid),
                "state": before[-1]["state"] if before else None,
            }
            entries = [*before, entry, *after]
    return entries


def _state(job: Job) -> str:
    return type(job.state).__name__.lower()


def _text(event: Journaled, spec: JobSpec | None, indices: Mapping[str, int]) -> str:
    match event:
        case JobSubmitted(spec=submitted):
            return f"submitted by {submitted.user}: {_demand(submitted)}"
        case EstimateReady(estimate=None, error=error):
            return f"no estimate: {error or 'no reason given'}"
        case EstimateReady(estimate=estimate) if estimate is not None and estimate.estimator == DeclaredEstimator.name:
            return f"{format_bytes(estimate.bound_bytes)} per GPU, as declared"
        case EstimateReady(estimate=estimate) if estimate is not None:
            partial = ", a lower bound" if estimate.partial else ""
            return f"estimated: {format_bytes(estimate.bound_bytes)} per GPU by {estimate.estimator}{partial}"
        case AttemptPlaced(attempt=number, placement=place, cause=cause):
            gpus = gpus_text(place.gpu_uuids, indices)
            promised = format_bytes(place.promised_bytes)
            return f"attempt {number} placed by {cause} on {gpus} ({place.sharing}), {promised} promised"
        case AttemptStarted(attempt=number, process=process):
            return f"attempt {number} started, runner {process.pid}"
        case AttemptExited(attempt=number, exit=end, peak_observed_bytes=peaks):
            peak = f", {format_bytes(max(peaks.values()))} seen at most" if peaks else ""
            return f"attempt {number} ended: {_end(end)}{peak}"
        case AttemptIdle(attempt=number, cause=cause):
            return f"attempt {number} is idle: {cause}"
        case AttemptBusy(attempt=number, at_s=at_s, idle_since_s=since_s):
            return f"attempt {number} computes again, after {format_duration(max(0.0, at_s - since_s))}"
        case RepartitionStarted() | RepartitionEnded():
            return _repartition(event)
        case JobUpdated(spec=new):
            return f"updated: {_difference(spec, new)}"
        case JobCancelled(cause=cause) | JobHeld(cause=cause) | JobReleased(cause=cause) | JobRequeued(cause=cause):
            return cause
    return type(event).__name__


def _repartition(event: RepartitionStarted | RepartitionEnded) -> str:
    name = f"GPU {event.gpu_index}"
    if isinstance(event, RepartitionStarted):
        return f"{name} is repartitioned from {_layout(event.before)} into {_layout(event.after)}: {event.cause}"
    if event.error is None:
        return f"{name} has {_layout(event.layout)}"
    return f"{name} was not repartitioned: {event.error}; it has {_layout(event.layout)}"


def _layout(texts: Sequence[str]) -> str:
    return ", ".join(texts) or "no instance"


def _demand(spec: JobSpec) -> str:
    memory = "memory to be estimated" if spec.declared_bytes is None else f"{format_bytes(spec.declared_bytes)} each"
    return f"{counted(spec.gpus, 'GPU')}, {memory}"


def _end(end: AttemptExit) -> str:
    how: str = end.reason
    if end.reason == "exited":
        how = f"exit code {end.exit_code}" if end.signal is None else f"signal {end.signal}"
    memory = ", out of GPU memory" if end.oom.exception else ""
    server = ", after its MPS server had failed, by a fault of any of its clients" if end.mps_fault else ""
    return f"{how}{memory}{server}{f' ({end.detail})' if end.detail else ''}"


def _measured(event: AttemptExited, named: RedactIds) -> str:
    """Energy, and what company did to it, as far as they were measured."""
    words = []
    usage = event.usage
    if usage is not None and usage.metered_s:
        words.append(f"{format_energy(usage.energy_j)} over {usage.metered_s / 3600:.2f} GPU hours")
    for co_run in event.co_runs:
        if co_run.slowdown is not None:
            words.append(
                f"{co_run.slowdown:.2f} times as long a step beside {name_neighbors(named(co_run.neighbor_ids))}"
            )
    return "".join(f", {word}" for word in words)


def _blamed(event: AttemptExited, spec: JobSpec | None) -> str:
    """The neighbors beyond their promise when it ran out of memory."""
    if not event.overruns or spec is None:
        return ""
    return f", while {overruns_text(event.overruns, spec.uid)}"


def _difference(old: JobSpec | None, new: JobSpec) -> str:
    if old is None:
        return "its spec"
    changed = []
    for field in dataclasses.fields(JobSpec):
        before, after = getattr(old, field.name), getattr(new, field.name)
        known = UPDATABLE_FIELDS.get(field.name)
        if known is not None and before != after:
            changed.append(f"{known.label} {_value(known.unit, before)} to {_value(known.unit, after)}")
    return ", ".join(changed) or "nothing"


def _value(unit: Unit, value: Any) -> str:
    if value is None or value == ():
        return "none"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "duration":
        return format_duration(value)
    if unit == "time":
        return rfc3339(value) or ""
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
