"""What became of a job, transition by transition, as the journal has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from cotenant.core.events import (
    AttemptExited,
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
)
from cotenant.core.job import AttemptExit, JobSpec
from cotenant.core.units import format_bytes
from cotenant.daemon.views import rfc3339
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.jobs import JobTable


def story(events: Iterable[Journaled]) -> list[dict[str, Any]]:
    """One entry per event of one job, oldest first: `at`, `event`, `cause`, `text`, `state`.

    `state` is what the job was in afterwards, by its own events alone: that a dependency failed shows in the job.
    """
    table = JobTable(ManagerConfig(estimate=False))
    entries: list[dict[str, Any]] = []
    spec: JobSpec | None = None
    for event in events:
        text = _text(event, spec)
        if isinstance(event, (JobSubmitted, JobUpdated)):
            spec = event.spec
        if isinstance(event, JobSubmitted):
            # Other jobs are not at hand: without them, its dependencies would seem unknown.
            alone = dataclasses.replace(event.spec, after=(), after_any=(), after_failed=())
            table.apply(dataclasses.replace(event, spec=alone))
        elif not isinstance(event, JobUpdated):
            table.apply(event)
        job = table.jobs.get(event.job_id)
        entries.append(
            {
                "at": rfc3339(event.at_s),
                "at_s": event.at_s,
                "event": type(event).__name__,
                "cause": event.cause,
                "text": text,
                "state": None if job is None else type(job.state).__name__.lower(),
            }
        )
    return entries


def _text(event: Journaled, spec: JobSpec | None) -> str:
    match event:
        case JobSubmitted(spec=asked):
            return f"submitted by {asked.user}: {_asked(asked)}"
        case EstimateReady(estimate=None, error=error):
            return f"no estimate: {error or 'no reason given'}"
        case EstimateReady(estimate=estimate) if estimate is not None:
            partial = ", a lower bound" if estimate.partial else ""
            return f"estimated: {format_bytes(estimate.bound_bytes)} per GPU by {estimate.estimator}{partial}"
        case AttemptPlaced(attempt=number, placement=place, cause=cause):
            gpus = ", ".join(place.gpu_uuids)
            promised = format_bytes(place.promised_bytes)
            return f"attempt {number} placed by {cause} on {gpus} ({place.sharing}), {promised} promised"
        case AttemptStarted(attempt=number, process=process):
            return f"attempt {number} started, runner {process.pid}"
        case AttemptExited(attempt=number, exit=end, peak_observed_bytes=peaks):
            peak = f", {format_bytes(max(peaks.values()))} seen at most" if peaks else ""
            return f"attempt {number} ended: {_end(end)}{peak}"
        case JobUpdated(spec=new):
            return f"updated: {_difference(spec, new)}"
        case JobCancelled(cause=cause) | JobHeld(cause=cause) | JobReleased(cause=cause) | JobRequeued(cause=cause):
            return cause
    return type(event).__name__


def _asked(spec: JobSpec) -> str:
    memory = "memory to be estimated" if spec.declared_bytes is None else f"{format_bytes(spec.declared_bytes)} each"
    return f"{spec.gpus} GPU{'' if spec.gpus == 1 else 's'}, {memory}"


def _end(end: AttemptExit) -> str:
    how: str = end.reason
    if end.reason == "exited":
        how = f"exit code {end.exit_code}" if end.signal is None else f"signal {end.signal}"
    memory = ", out of GPU memory" if end.oom.exception else ""
    return f"{how}{memory}{f' ({end.detail})' if end.detail else ''}"


def _difference(old: JobSpec | None, new: JobSpec) -> str:
    if old is None:
        return "its spec"
    changed = [
        f"{each.name} {getattr(old, each.name)!r} to {getattr(new, each.name)!r}"
        for each in dataclasses.fields(JobSpec)
        if each.name != "env" and getattr(old, each.name) != getattr(new, each.name)
    ]
    return ", ".join(changed) or "nothing"
