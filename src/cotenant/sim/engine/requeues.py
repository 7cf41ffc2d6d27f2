"""Attempts of a simulation that end without a result, and the return of their jobs to the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cotenant.core.job import Job
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import REQUEUE, EventQueue
from cotenant.sim.engine.history_feed import HistoryFeed
from cotenant.sim.engine.records import OUT_OF_MEMORY, JobColumns
from cotenant.sim.engine.running_attempt import RunningAttempt, job_after_oom
from cotenant.sim.engine.sim_gpu import SimGpu


class Requeues:
    """Ends attempts, records what was lost, and schedules the events by which their jobs are queued again.

    `leave(attempt, at_s)` frees its memory and GPUs. `reconsider(jobs)`: the predictions for these pending jobs have
    changed.

    Attributes:
        waiting: jobs with such an event ahead.
    """

    def __init__(
        self,
        config: SimulationConfig,
        columns: JobColumns,
        events: EventQueue[Any],
        feed: HistoryFeed | None,
        *,
        leave: Callable[[RunningAttempt, float], None],
        reconsider: Callable[[Iterable[Job]], None],
    ) -> None:
        self._config = config
        self._columns = columns
        self._events = events
        self._feed = feed
        self._leave = leave
        self._reconsider = reconsider
        self._oom_at_s: dict[int, float] = {}  # by number in the trace
        self.waiting = 0

    def launched(self, number: int, at_s: float) -> None:
        """The job with this number is placed: if it had run out of memory, it has waited since then."""
        oom_at_s = self._oom_at_s.pop(number, None)
        if oom_at_s is not None:
            self._columns.retry_wait_s[number] += at_s - oom_at_s

    def out_of_memory(self, attempt: RunningAttempt, gpu: SimGpu, wanted_bytes: int, at_s: float) -> None:
        """`gpu` lacks the `wanted_bytes` by which it grows."""
        job = job_after_oom(attempt, gpu, wanted_bytes, at_s)
        self._columns.ooms[attempt.number] += 1
        self._oom_at_s[attempt.number] = at_s
        self.without_result(attempt, job, at_s)

    def without_result(self, attempt: RunningAttempt, job: Job, at_s: float) -> None:
        """It held or needed more than it may; `job` is queued again, or done."""
        number, columns = attempt.number, self._columns
        self._leave(attempt, at_s)
        if self._feed is not None:
            self._reconsider(self._feed.ended(job))
        columns.lost_s[number] += at_s - attempt.placed_s
        if job.is_done:
            columns.outcome[number] = OUT_OF_MEMORY
            columns.end_s[number] = at_s
            return
        self._schedule(number, job, at_s)

    def interrupt(self, attempt: RunningAttempt, at_s: float) -> None:
        """Its GPU went down: work since its last checkpoint is lost."""
        self.put_back(attempt, attempt.job, at_s, at_s - attempt.placed_s)

    def put_back(self, attempt: RunningAttempt, job: Job, at_s: float, lost_s: float) -> None:
        """Its attempt ends without a result, and `job` is queued again."""
        self._leave(attempt, at_s)
        self._columns.lost_s[attempt.number] += lost_s
        self._schedule(attempt.number, job, at_s)

    def _schedule(self, number: int, job: Job, at_s: float) -> None:
        self.waiting += 1
        self._events.put(at_s + self._config.restart_s, REQUEUE, (number, job))
