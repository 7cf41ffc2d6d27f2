"""Moves of a live server: when to look for one, and the stop that begins it. The rule is `moves`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cotenant.core.events import Stop
from cotenant.core.job import Job, Running
from cotenant.scheduling.admission import AdmissionControl
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.moves import MovePlanner, RunningJob, running_job
from cotenant.scheduling.policy_driver import PolicyDriver
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.telemetry.samples import Telemetry


class MoveWatch:
    """Looks for a move every `period_s` of the rule, while no other move is on its way.

    A move is not journaled: after a restart the attempt still ends by the signal it got, and another move may begin.
    `planner` is None for a policy that moves no job.
    """

    def __init__(
        self,
        planner: MovePlanner | None,
        table: JobTable,
        admission: AdmissionControl,
        telemetry: Telemetry,
        history: WorkloadHistory,
        driver: PolicyDriver,
        *,
        pace: float,
    ) -> None:
        self._planner = planner
        self._table = table
        self._admission = admission
        self._telemetry = telemetry
        self._history = history
        self._driver = driver
        self._pace = pace
        self._looked_at_s = -math.inf
        self._begun: tuple[int, int] | None = None  # job and attempt

    def commands(self, at_s: float, is_suspended: Callable[[Job], bool]) -> list[Stop]:
        """The stop of a job that is worth moving, or none. A job that `is_suspended` is left where it is."""
        planner, table = self._planner, self._table
        if planner is None or 0 <= at_s - self._looked_at_s < planner.rule.period_s / self._pace:
            return []
        live = [table.jobs[job_id] for job_id in sorted(table.live)]
        if all(job.spec.checkpoint_signal is None for job in live) or any(self.is_moving(job) for job in live):
            return []
        self._looked_at_s = at_s
        found = [self._running(job, at_s) for job in live if not is_suspended(job)]
        running = {live_job.job.id: live_job for live_job in found if live_job is not None}
        move = planner.plan(self._driver.snapshot(at_s).gpus, running, self._admission.offered(), at_s)
        if move is None:
            return []
        job = table.jobs[move.job_id]
        self._begun = (job.id, len(job.attempts))
        return [table.stop(job, at_s, move.reason)]

    def is_moving(self, job: Job) -> bool:
        """Whether its attempt got the signal to save its state for a move."""
        return self._begun == (job.id, len(job.attempts))

    def _running(self, job: Job, at_s: float) -> RunningJob | None:
        attempt = job.attempts[-1]
        if not isinstance(job.state, Running) or attempt.started_at_s is None or attempt.stop_reason is not None:
            return None
        ran_s = at_s - attempt.started_at_s
        attempt = replace(attempt, co_runs=self._telemetry.co_runs(job.id, attempt.number))
        return running_job(self._history, job, attempt, ran_s, self._table.jobs)
