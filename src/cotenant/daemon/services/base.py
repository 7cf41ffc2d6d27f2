"""The interface of an attempt service, and the list of services that the control loop calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cotenant.core.events import AttemptExited, AttemptIdle
from cotenant.core.job import Attempt, Job, JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef

RunningJobs = Callable[[], Sequence[Job]]
"""Returns the jobs that have an attempt at the moment. It scans all jobs, so call it only when needed."""


class StepRate(NamedTuple):
    """Steps per second of an attempt, averaged over the last `span_s` seconds."""

    steps_hz: float
    span_s: float


class AttemptService:
    """Accompanies attempts from launch to exit. A service overrides the methods it needs; the others do nothing.

    `observe` is called in the monitor's thread, everything else in the control loop's thread. No method may block for
    longer than a local system call: while it does, nothing is scheduled.
    """

    def start(self) -> None:
        """Start background threads, if the service has any."""

    def prepare(self, spec: JobSpec, placement: Placement) -> Mapping[str, str]:
        """Return environment variables for an attempt that is about to be launched.

        Raises:
            BackendError: the attempt cannot run; the job fails with this message.
        """
        del spec, placement
        return {}

    def observe(self, ref: AttemptRef) -> StepRate | None:
        """Return the step rate of a running attempt if it reported progress since the last call."""
        del ref
        return None

    def ended(self, job: Job, attempt: Attempt, event: AttemptExited, running: RunningJobs) -> AttemptExited:
        """Return `event`, with evidence of why the attempt ended added; called before the event is journaled."""
        del job, attempt, running
        return event

    def reconcile(self, running: RunningJobs) -> None:
        """Release what no running attempt uses; called after attempts ended."""
        del running

    def attempt_idle(self, spec: JobSpec, event: AttemptIdle) -> None:
        """Handle an attempt that computes nothing."""
        del spec, event

    def job_done(self, job: Job) -> None:
        """Handle the end of a job; called once its last event is on disk."""
        del job

    def close(self) -> None:
        """Stop background threads. Attempts go on."""


class AttemptServices(AttemptService):
    """Several services as one, called in order; later environment variables override earlier ones."""

    def __init__(self, services: Sequence[AttemptService] = ()) -> None:
        self._services = tuple(services)

    def start(self) -> None:
        for service in self._services:
            service.start()

    def prepare(self, spec: JobSpec, placement: Placement) -> Mapping[str, str]:
        env: dict[str, str] = {}
        for service in self._services:
            env.update(service.prepare(spec, placement))
        return env

    def observe(self, ref: AttemptRef) -> StepRate | None:
        for service in self._services:
            rate = service.observe(ref)
            if rate is not None:
                return rate
        return None

    def ended(self, job: Job, attempt: Attempt, event: AttemptExited, running: RunningJobs) -> AttemptExited:
        for service in self._services:
            event = service.ended(job, attempt, event, running)
        return event

    def reconcile(self, running: RunningJobs) -> None:
        for service in self._services:
            service.reconcile(running)

    def attempt_idle(self, spec: JobSpec, event: AttemptIdle) -> None:
        for service in self._services:
            service.attempt_idle(spec, event)

    def job_done(self, job: Job) -> None:
        for service in self._services:
            service.job_done(job)

    def close(self) -> None:
        for service in reversed(self._services):
            service.close()
