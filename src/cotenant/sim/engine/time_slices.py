"""Time slices in a simulation: attempts that give way to jobs that wait, with or without a checkpoint.

A module of its own: without a slice a simulation does not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotenant.core.job import Job
from cotenant.scheduling.checkpoints import TIME_SLICE_STOP
from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import SLICE_END, EventQueue
from cotenant.sim.engine.running_attempt import RunningAttempt, job_after_stop

MAX_RESTARTS = 3
"""Without checkpoints a job is stopped this often: two jobs longer than a slice would otherwise restart for ever."""


class TimeSlices:
    """Handles SLICE_END events; `interrupt(attempt, job, at_s, lost_s)` ends an attempt whose job is queued again.

    Attributes:
        over: attempts whose slice is over, in the order in which it ended; they run on until a job waits.
    """

    def __init__(
        self,
        config: SimulationConfig,
        plans: AttemptPlans,
        events: EventQueue[Any],
        interrupt: Callable[[RunningAttempt, Job, float, float], None],
    ) -> None:
        self._config = config
        self._plans = plans
        self._events = events
        self._interrupt = interrupt
        self.over: list[RunningAttempt] = []

    def started(self, attempt: RunningAttempt, at_s: float) -> None:
        """Schedule the signal at the end of its slice, less the notice."""
        slice_s = self._config.time_slice_s
        if slice_s is not None:
            notice_s = min(self._config.time_slice_notice_s, slice_s / 2)
            self._events.put(at_s + slice_s - notice_s, SLICE_END, attempt)

    def end(self, attempt: RunningAttempt, _at_s: float) -> None:
        """The slice of `attempt` is over, if it still runs."""
        is_spared = not self._config.slice_checkpoints and len(attempt.job.attempts) >= MAX_RESTARTS
        if attempt in attempt.gpus[0].residents and not is_spared:
            self.over.append(attempt)

    def give_way(self, at_s: float) -> None:
        """Jobs wait: end the attempts whose slice is over. A job with checkpoints keeps all its work but the launch."""
        over, self.over = self.over, []
        for attempt in over:
            if attempt not in attempt.gpus[0].residents:
                continue
            queued_at_s = at_s + self._config.restart_s  # behind the job that it gives way to
            job = job_after_stop(attempt, TIME_SLICE_STOP, queued_at_s)
            lost_s = at_s - attempt.placed_s
            if self._config.slice_checkpoints and attempt.is_active:
                done_s = attempt.done_s + attempt.speed * (at_s - attempt.since_s)
                self._plans.checkpoint(attempt, done_s)
                lost_s = min(lost_s, attempt.delay_s)
            self._interrupt(attempt, job, at_s, lost_s)
