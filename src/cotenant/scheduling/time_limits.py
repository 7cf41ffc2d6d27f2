"""Time limits and time slices: which attempts are stopped, when, and with what time to save their state.

A time slice is a job's own or the administrator's for everybody, whichever is shorter. It ends an attempt only while
other jobs wait for GPUs. SIGTERM comes `time_slice_notice_s` before the end of the slice, so that the job can write a
checkpoint, and what is left of it is killed at the end. The job then goes to the end of the queue.

Source of the administrator's slice and of the notice: the thesis, section 7.3 (12 hours, 10 minutes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cotenant.core.job import Attempt, Job, JobSpec
from cotenant.scheduling.checkpoints import TIME_SLICE_STOP
from cotenant.scheduling.config import ManagerConfig

TIMEOUT_STOP = "timeout"
"""How the exit of an attempt begins that reached its time limit."""


def time_slice_s(spec: JobSpec, config: ManagerConfig) -> float | None:
    """The slice of a job: its own, at most the one for everybody; None: no slice."""
    slices = [length_s for length_s in (spec.time_slice_s, config.time_slice_s) if length_s is not None]
    return min(slices, default=None)


def notice_s(slice_s: float, config: ManagerConfig) -> float:
    """How long before the end of a slice its job gets a signal: at most half of the slice."""
    return min(config.time_slice_notice_s, slice_s / 2)


class TimeLimits:
    """The live attempts that have a time limit or a time slice."""

    def __init__(self, config: ManagerConfig) -> None:
        self._config = config
        self._watched: set[int] = set()
        self._stop_sent_at_s: dict[int, float] = {}

    def watch(self, job: Job) -> None:
        """An attempt of `job` is live."""
        if job.spec.time_limit_s is not None or time_slice_s(job.spec, self._config) is not None:
            self._watched.add(job.id)

    def forget(self, job_id: int) -> None:
        """Its attempt is over."""
        self._watched.discard(job_id)
        self._stop_sent_at_s.pop(job_id, None)

    def is_stopping(self, job_id: int) -> bool:
        """Whether its attempt was sent a stop."""
        return job_id in self._stop_sent_at_s

    def overdue(self, jobs: Mapping[int, Job], at_s: float, *, others_wait: bool) -> Iterator[tuple[Job, str, float]]:
        """Jobs to stop now, with the reason and the seconds until they are killed.

        A stop is repeated if the attempt is still live after six grace periods.
        """
        for job_id in sorted(self._watched):
            job = jobs[job_id]
            found = self._stop(job.spec, job.attempts[-1], at_s, others_wait=others_wait)
            if found is None:
                continue
            why, grace_s = found
            sent_at_s = self._stop_sent_at_s.get(job_id)
            if sent_at_s is None or at_s - sent_at_s >= 6 * grace_s:
                self._stop_sent_at_s[job_id] = at_s
                yield job, why, grace_s

    def _stop(self, spec: JobSpec, attempt: Attempt, at_s: float, *, others_wait: bool) -> tuple[str, float] | None:
        if attempt.started_at_s is None:
            return None
        run_s = at_s - attempt.started_at_s
        if spec.time_limit_s is not None and run_s >= spec.time_limit_s:
            return TIMEOUT_STOP, self._config.stop_grace_s
        slice_s = time_slice_s(spec, self._config)
        if slice_s is None or not others_wait:
            return None
        notice = notice_s(slice_s, self._config)
        if run_s < slice_s - notice:
            return None
        return TIME_SLICE_STOP, notice or self._config.time_slice_grace_s
