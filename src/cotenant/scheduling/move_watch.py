"""When to look for a move, and the stop that begins one on a live server. The rule is `moves`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from cotenant.core.events import Stop
from cotenant.core.job import Attempt, Job, Running
from cotenant.scheduling.admission import AdmissionControl
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.moves import MovePlanner, RunningJob, running_job
from cotenant.scheduling.placement.composition import MoveRule
from cotenant.scheduling.policy_driver import PolicyDriver
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.telemetry.samples import Telemetry


class MoveTimer:
    """When to look: `settle_s` of the rule after a change, `period_s` after the last look at the earliest.

    Changes are jobs that are queued, start, end or reach `min_run_s`, and new GPUs. Without a change, what is only
    guessed of durations and activity drifts: then a look every `quiet_s`.
    """

    def __init__(self, rule: MoveRule, *, pace: float = 1.0) -> None:
        self._rule = rule
        self._pace = pace
        self._earliest_s = -math.inf
        self.due_s = math.inf

    def reset(self) -> None:
        """Look at once: nothing is known of the last look."""
        self.due_s = self._earliest_s = -math.inf

    def changed(self, at_s: float) -> None:
        """A move may be worth its cost now."""
        self._look_by(at_s + self._rule.settle_s / self._pace)

    def looked(self, at_s: float, started_s: Iterable[float]) -> None:
        """There was a look; `started_s`: when the attempts of jobs that can be moved have started."""
        self._earliest_s = at_s + self._rule.period_s / self._pace
        self.due_s = at_s + self._rule.quiet_s / self._pace
        young_s = [start_s + self._rule.min_run_s / self._pace for start_s in started_s]
        self._look_by(min([ripe_s for ripe_s in young_s if ripe_s > at_s], default=math.inf))

    def _look_by(self, at_s: float) -> None:
        self.due_s = min(self.due_s, max(at_s, self._earliest_s))


class MoveWatch:
    """Looks for a move on a live server, while no other move is on its way.

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
        self._timer = None if planner is None else MoveTimer(planner.rule, pace=pace)
        self._changes = 0  # of the driver, as of the last sample
        self._at_s = -math.inf
        self._begun: tuple[int, int] | None = None  # job and attempt

    def commands(self, at_s: float, is_suspended: Callable[[Job], bool]) -> list[Stop]:
        """The stop of a job that is worth moving, or none. A job that `is_suspended` is left where it is."""
        planner, timer, table = self._planner, self._timer, self._table
        if planner is None or timer is None or not self._is_due(timer, at_s):
            return []
        live = [table.jobs[job_id] for job_id in sorted(table.live)]
        if all(job.spec.checkpoint_signal is None for job in live) or any(self.is_moving(job) for job in live):
            return []
        starts_s = [job.attempts[-1].started_at_s for job in live if planner.is_movable(job)]
        timer.looked(at_s, [at_s if start_s is None else start_s for start_s in starts_s])
        found = [self._running(job, at_s) for job in live if not is_suspended(job)]
        running = {live_job.job.id: live_job for live_job in found if live_job is not None}
        driver, offered = self._driver, self._admission.offered()
        move = planner.plan(driver.snapshot(at_s).gpus, running, offered, driver.reserved, at_s)
        if move is None:
            return []
        job = table.jobs[move.job_id]
        self._begun = (job.id, len(job.attempts))
        return [table.stop(job, at_s, move.reason)]

    def _is_due(self, timer: MoveTimer, at_s: float) -> bool:
        if at_s < self._at_s:  # the clock was set back
            timer.reset()
        self._at_s = at_s
        if self._driver.changes != self._changes:
            self._changes = self._driver.changes
            timer.changed(at_s)
        return at_s >= timer.due_s

    def is_moving(self, job: Job) -> bool:
        """Whether its attempt got the signal to save its state for a move."""
        return self._begun == (job.id, len(job.attempts))

    def _running(self, job: Job, at_s: float) -> RunningJob | None:
        attempt = job.attempts[-1]
        if not isinstance(job.state, Running) or attempt.started_at_s is None or attempt.stop_reason is not None:
            return None
        ran_s = at_s - attempt.started_at_s

        def with_co_runs() -> Attempt:
            return replace(attempt, co_runs=self._telemetry.co_runs(job.id, attempt.number))

        return running_job(self._history, job, with_co_runs, ran_s, self._table.jobs)
