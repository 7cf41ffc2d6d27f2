"""Feeds the daemon's own history with what a daemon would observe of the attempts of a simulation.

A daemon learns when an attempt ends: from its peak, its run time, and the activity of its first GPU in each group of
jobs. Here the intervals between events have constant activity, so nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cotenant.core.job import AttemptExit, Job
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.scheduling.telemetry.co_run import CoRunAccumulator
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.engine.sim_gpu import SimGpu

MAX_CACHED_JOBS = 10_000

SUCCESS = AttemptExit(exit_code=0, signal=None, reason="exited")
FAILURE = AttemptExit(exit_code=1, signal=None, reason="exited")

ACTIVITY_STEP = 0.02
"""Jobs of a workload are not reconsidered for a smaller change of its known SM activity."""


class HistoryFeed:
    """A history, and the pending jobs by workload, so that they are reconsidered when more is known of it.

    `minds_company` is False for policies that use no co-runs: then the history gets solo intervals only. With
    `reports_steps` jobs report their steps, one in a second alone.
    """

    def __init__(
        self,
        history: WorkloadHistory,
        job_of: Callable[[int], Job],
        count: int,
        *,
        minds_company: bool = True,
        reports_steps: bool = False,
    ) -> None:
        self.history = history
        self._jobs = _JobCache(job_of, count)
        self._minds_company = minds_company
        self._reports_steps = reports_steps
        self._pending: dict[str, dict[int, Job]] = {}
        self._summaries: dict[str, tuple[object, ...]] = {}

    @property
    def jobs(self) -> Mapping[int, Job]:
        """All jobs of the trace, by id."""
        return self._jobs

    def queued(self, job: Job) -> None:
        """`job` is pending."""
        self._jobs.add(job)
        self._pending.setdefault(workload_key(job.spec), {})[job.id] = job

    def started(self, attempt: RunningAttempt) -> None:
        """The job of `attempt` is no longer pending; let the attempt know its history and collect its co-runs."""
        job = attempt.job
        self._pending[workload_key(job.spec)].pop(job.id, None)
        attempt.predicted = partial(self.history.activity, job)
        attempt.co_runs = CoRunAccumulator(job.id, gpu_memory_bytes=attempt.gpus[0].total_bytes)

    def close_intervals(self, gpus: Sequence[SimGpu], at_s: float) -> None:
        """Add the intervals that end because the attempts at work on these GPUs are about to change."""
        for gpu in gpus:
            if self._minds_company or len(gpu.active) < 2:
                _add_intervals(gpu, at_s, reports_steps=self._reports_steps)
                continue
            for attempt in gpu.active:
                if attempt.gpus[0] is gpu:
                    attempt.co_run_since_s = at_s

    def completed(self, attempt: RunningAttempt, at_s: float, *, failed: bool) -> list[Job]:
        """An attempt ran to its end; pending jobs to reconsider."""
        held_bytes, activity = attempt.held_bytes, attempt.activity
        if not attempt.is_active and activity is not None:  # it had its GPUs alone and was not observed
            held_bytes = attempt.peak_bytes
            if attempt.co_runs is not None:
                seconds = at_s - attempt.placed_s - attempt.delay_s
                means = activity.smact, activity.smocc or 0.0, activity.drama or 0.0
                attempt.co_runs.add_interval((attempt.job.id,), seconds, *means)
        record = attempt.ended(at_s, FAILURE if failed else SUCCESS, held_bytes)
        return self._to_reconsider(attempt.job, self.history.learn_attempts(attempt.job, (record,), self._jobs))

    def ended(self, job: Job) -> list[Job]:
        """The last attempt of `job` is over; pending jobs to reconsider."""
        return self._to_reconsider(job, self.history.learn(job, self._jobs))

    def _to_reconsider(self, job: Job, key: str | None) -> list[Job]:
        """Pending jobs of the workload of which `job` taught something; none if it taught little."""
        if key is None:
            return []
        summary = self._summary(job)
        if self._summaries.get(key) == summary:
            return []
        self._summaries[key] = summary
        return list(self._pending.get(key, {}).values())

    def _summary(self, job: Job) -> tuple[object, ...]:
        """What a policy may use of the history, rounded: if it stays equal, no decision changes."""
        activity = self.history.activity(job)
        smact = None if activity.smact is None else round(activity.smact / ACTIVITY_STEP)
        plain = replace(job, min_memory_bytes=0) if job.min_memory_bytes else job
        return (self.history.demand_bytes(plain), smact, activity.drama is None)


def _add_intervals(gpu: SimGpu, at_s: float, *, reports_steps: bool) -> None:
    """The interval since the last change, for each attempt whose first GPU this is."""
    active = gpu.active
    group: tuple[int, ...] | None = None
    for attempt in active:
        seconds = at_s - attempt.co_run_since_s
        if attempt.gpus[0] is not gpu or seconds <= 0.0 or attempt.co_runs is None:
            continue
        if group is None:
            group = tuple(sorted([other.job.id for other in active]))
        steps = (attempt.speed * seconds, seconds) if reports_steps else (0.0, 0.0)
        attempt.co_runs.add_interval(group, seconds, gpu.smact, gpu.smocc, gpu.drama, *steps)
        attempt.co_run_since_s = at_s


class _JobCache(Mapping[int, Job]):
    """All jobs of a trace by id, made on demand; the newest are cached."""

    def __init__(self, job_of: Callable[[int], Job], count: int) -> None:
        self._job_of = job_of
        self._count = count
        self._cached: dict[int, Job] = {}

    def __getitem__(self, job_id: int) -> Job:
        job = self._cached.get(job_id)
        if job is None:
            if job_id not in self:
                raise KeyError(job_id)
            job = self._job_of(job_id - 1)
            self.add(job)
        return job

    def add(self, job: Job) -> None:
        """Cache a job."""
        if len(self._cached) >= MAX_CACHED_JOBS:
            self._cached.clear()
        self._cached[job.id] = job

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and 0 < job_id <= self._count

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, self._count + 1))

    def __len__(self) -> int:
        return self._count
