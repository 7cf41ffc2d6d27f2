"""Admission control: selects the queued jobs that are offered to the policy.

A job is *ready* when its memory demand is known, its dependencies are met and its begin time has come. Ready jobs are
admitted in queue order, as long as they exceed neither the limit of their array nor the quota of their user. The first
job that would exceed a user's quota blocks all later jobs of that user; otherwise small jobs could starve a large one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from cotenant.core.job import Job, JobSpec, Queued
from cotenant.core.units import counted, format_duration
from cotenant.scheduling.checkpoints import offered_from_s
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.dependencies import dependency_text, open_dependencies
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.placement.refusal import Refusal


class AdmissionControl:
    """Tracks which jobs of `table` may be placed."""

    def __init__(self, table: JobTable, config: ManagerConfig) -> None:
        self._table = table
        self._config = config
        self._ready: dict[int, Job] = {}
        self._limited: set[int] = set()  # ready jobs whose array or user has a limit
        self._begin_times: list[tuple[float, int]] = []
        self._over_limit: dict[int, Refusal] = {}
        self._queue_ids: list[int] | None = None
        self._changed: set[int] = set()

    def follow(self, changed: Iterable[int], at_s: float) -> None:
        """Re-evaluate changed jobs, and those whose begin time has come by `at_s`."""
        for job_id in changed:
            self._refresh(job_id, at_s)
        while self._begin_times and self._begin_times[0][0] <= at_s:
            self._refresh(heapq.heappop(self._begin_times)[1], at_s)

    def _refresh(self, job_id: int, at_s: float) -> None:
        job = self._table.jobs.get(job_id)
        self._ready.pop(job_id, None)
        self._limited.discard(job_id)
        self._over_limit.pop(job_id, None)
        self._queue_ids = None
        self._changed.add(job_id)
        if job is None or not isinstance(job.state, Queued):
            return
        begin_at_s = offered_from_s(job)
        if begin_at_s is not None and begin_at_s > at_s:
            heapq.heappush(self._begin_times, (begin_at_s, job_id))
            return
        if self._table.is_blocked(job) or not self._has_known_demand(job):
            return
        self._ready[job_id] = job
        quota = self._config.quota_of(job.spec.user)
        array = job.spec.array
        if quota.max_running is not None or quota.gpus is not None or (array is not None and array.limit is not None):
            self._limited.add(job_id)

    def _has_known_demand(self, job: Job) -> bool:
        return not self._table.lacks_estimate(job) or demand_bytes(job) is not None

    def is_ready(self, job_id: int) -> bool:
        """Whether the job waits only for GPUs or for a limit on running jobs."""
        return job_id in self._ready

    def offered(self) -> list[Job]:
        """The jobs offered to the policy, oldest first."""
        over = self._over_limit = self._held_by_limits() if self._limited else {}
        jobs = [job for job_id, job in self._ready.items() if job_id not in over] if over else [*self._ready.values()]
        jobs.sort(key=lambda job: (job.submitted_at_s, job.id))
        return jobs

    def take_changes(self) -> tuple[list[Job], list[int]]:
        """Changes since the last call: offered jobs that are new or changed, and ids of jobs no longer offered."""
        before = self._over_limit
        over = self._over_limit = self._held_by_limits() if self._limited else {}
        changed = self._changed
        changed.update(before.keys() ^ over.keys())
        self._changed = set()
        offered = {job_id for job_id in changed if job_id in self._ready and job_id not in over}
        return [self._ready[job_id] for job_id in sorted(offered)], sorted(changed - offered)

    def _held_by_limits(self) -> dict[int, Refusal]:
        """Ready jobs blocked by a limit, by job id."""
        counts = _RunningCounts(self._table, self._config)
        over: dict[int, Refusal] = {}
        for job in sorted((self._ready[job_id] for job_id in self._limited), key=_queue_key):
            why = counts.refusal(job)
            if why is None:
                counts.count(job)
            else:
                over[job.id] = why
        return over

    def refusal(self, job: Job, at_s: float) -> Refusal | None:
        """Why a queued job is not offered to the policy; None if it is offered."""
        over_limit = self._over_limit.get(job.id)
        if over_limit is not None:
            return over_limit
        if job.id in self._ready:
            return None
        older_singletons = self._table.older_singletons(job)
        if older_singletons or open_dependencies(job, self._table.jobs):
            return Refusal("dependency", lambda: dependency_text(job, self._table.jobs, older_singletons))
        begin_at_s = offered_from_s(job)
        if begin_at_s is not None and begin_at_s > at_s:
            return Refusal("begin_time", lambda: f"begins in {format_duration(begin_at_s - at_s)}", begin_at_s)
        return None

    def over_quota(self, specs: Sequence[JobSpec], *, besides: int) -> str | None:
        """Why the user's quota refuses these jobs; None if it does not. `besides`: further submissions in progress."""
        user, quota = specs[0].user, self._config.quota_of(specs[0].user)
        open_jobs = self._table.unfinished(user) + besides
        if quota.max_unfinished is not None and open_jobs + len(specs) > quota.max_unfinished:
            limit = f"{user} may have {counted(quota.max_unfinished, 'unfinished job')}"
            return f"{limit}, has {open_jobs}, submits {len(specs)} more"
        max_gpus = max(spec.gpus for spec in specs)
        if quota.gpus is not None and max_gpus > quota.gpus:
            return f"{user} may have {counted(quota.gpus, 'GPU')} at once, {max_gpus} requested"
        return None

    def pending(self, job_id: int) -> str:
        """The reason shown for a queued job that the policy has not considered yet."""
        if job_id not in self._ready:
            return "waits for its memory estimate"
        if self._queue_ids is None:
            self._queue_ids = sorted(self._table.queued)
        place = bisect_right(self._queue_ids, job_id)
        return f"position {place} of {len(self._queue_ids)} in the queue, considered at the next GPU sample"


class _RunningCounts:
    """Running jobs by array and by user, including those admitted so far."""

    def __init__(self, table: JobTable, config: ManagerConfig) -> None:
        self._config = config
        self._arrays: dict[int, int] = {}
        self._jobs: dict[str, int] = {}
        self._gpus: dict[str, int] = {}
        self._blocked_users: dict[str, Refusal] = {}
        for job_id in table.live:
            self.count(table.jobs[job_id])
        self._running = dict(self._jobs), dict(self._gpus)

    def count(self, job: Job) -> None:
        """Count `job` as running."""
        user, array = job.spec.user, job.spec.array
        self._jobs[user] = self._jobs.get(user, 0) + 1
        self._gpus[user] = self._gpus.get(user, 0) + job.spec.gpus
        if array is not None:
            self._arrays[array.array_id] = self._arrays.get(array.array_id, 0) + 1

    def refusal(self, job: Job) -> Refusal | None:
        """Why `job` waits for other jobs of its array or user to end; None if it is within all limits."""
        user, array = job.spec.user, job.spec.array
        if array is not None and array.limit is not None and self._arrays.get(array.array_id, 0) >= array.limit:
            why = f"array {array.array_id} runs at most {array.limit} at once"
            return Refusal("array_limit", lambda: why)
        known = self._blocked_users.get(user)
        if known is not None:
            return known
        quota = self._config.quota_of(user)
        text = None
        if quota.max_running is not None and self._jobs.get(user, 0) >= quota.max_running:
            shares = self._shares(user, self._jobs, self._running[0])
            text = f"quota: {user} may run {counted(quota.max_running, 'job')} at once: {shares}"
        elif quota.gpus is not None and self._gpus.get(user, 0) + job.spec.gpus > quota.gpus:
            shares = self._shares(user, self._gpus, self._running[1])
            limit = counted(quota.gpus, "GPU")
            text = f"quota: {user} may have {limit} at once: {shares}, job {job.id} needs {job.spec.gpus}"
        if text is None:
            return None
        self._blocked_users[user] = Refusal("quota", lambda: text)
        return self._blocked_users[user]

    @staticmethod
    def _shares(user: str, admitted: Mapping[str, int], running: Mapping[str, int]) -> str:
        """`2 running, 1 queued before`: what of a quota runs, and what is admitted and has yet to start."""
        live = running.get(user, 0)
        queued = admitted.get(user, 0) - live
        return f"{live} running" + (f", {queued} queued before" if queued else "")


def _queue_key(job: Job) -> tuple[float, ...]:
    return (-job.spec.priority, job.submitted_at_s, job.id)
