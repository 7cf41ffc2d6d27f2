"""Checks and numbers submissions in the control loop, before they are journaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cotenant.core.errors import CotenantError, NoSuchJob, NotPermitted, UsageError
from cotenant.core.events import JobSubmitted
from cotenant.core.job import Job, JobSpec
from cotenant.daemon.api.submission.job_specs import expand_paths, with_array_ids
from cotenant.daemon.messages import SubmitRequest
from cotenant.daemon.storage_quota import StorageQuota
from cotenant.scheduling.dependencies import all_dependencies
from cotenant.scheduling.manager import Manager


class SubmissionHandler:
    """Assigns job ids. Used in the control loop's thread only.

    `taken_ids` are ids of jobs whose submissions were set aside: a repair may bring them back.
    """

    def __init__(
        self,
        manager: Manager,
        now: Callable[[], float],
        *,
        quota: StorageQuota | None = None,
        taken_ids: Callable[[], Iterable[int]] = lambda: (),
    ) -> None:
        self._manager = manager
        self._now = now
        self._quota = quota
        self._taken_ids = taken_ids
        self._next_id = 1
        self.reset_ids()

    def reset_ids(self) -> None:
        """Free ids that were assigned but not journaled."""
        self._next_id = max(max(self._manager.jobs, default=0), *self._taken_ids(), 0) + 1

    def accepted(self, submits: Iterable[SubmitRequest[Any]]) -> list[tuple[SubmitRequest[Any], list[JobSubmitted]]]:
        """Return the acceptable submissions with their events; the others get an exception as their answer."""
        accepted = []
        coming: dict[str, int] = {}
        for request in submits:
            try:
                for spec in request.specs:
                    self.check_dependencies(spec)
                if self._quota is not None:
                    self._quota.check(request.specs)
                user = request.specs[0].user
                over = self._manager.over_quota(request.specs, besides=coming.get(user, 0))
                if over is not None:
                    raise NotPermitted(f"quota: {over}", hint="see `cotenant ls`, or ask an admin")
            except CotenantError as error:
                request.answer.set_exception(error)
                continue
            coming[user] = coming.get(user, 0) + len(request.specs)
            at_s, first = self._now(), self._next_id
            self._next_id += len(request.specs)
            events = [
                JobSubmitted(at_s=at_s, cause="submit", job_id=first + i, spec=expand_paths(spec, first + i))
                for i, spec in enumerate(with_array_ids(request.specs, first))
            ]
            accepted.append((request, events))
        return accepted

    def check_update(self, job: Job, new: JobSpec) -> None:
        """Check the new spec of a pending job.

        Raises:
            UsageError: it would depend on itself.
            NoSuchJob, NotPermitted: as for a new job, or its user's quota of GPUs is too small.
        """
        self.check_dependencies(new)
        ahead, seen = list(all_dependencies(new)), set[int]()
        while ahead:
            job_id = ahead.pop()
            if job_id == job.id:
                raise UsageError(f"job {job.id} cannot wait for itself, nor for one that waits for it")
            if job_id in self._manager.jobs and job_id not in seen:
                seen.add(job_id)
                ahead += all_dependencies(self._manager.jobs[job_id].spec)
        # The job itself is already counted.
        over = self._manager.over_quota([new], besides=-1) if new.gpus > job.spec.gpus else None
        if over is not None:
            raise NotPermitted(f"quota: {over}", hint="ask an admin")

    def check_dependencies(self, spec: JobSpec) -> None:
        """Check that the jobs that `spec` depends on exist, and belong to its user.

        Raises:
            NoSuchJob: one does not exist.
            NotPermitted: one is another user's.
        """
        for dependency in all_dependencies(spec):
            needed = self._manager.jobs.get(dependency)
            if needed is None:
                raise NoSuchJob(f"no job {dependency} to wait for", hint="see `cotenant ls`")
            if spec.uid not in (needed.spec.uid, 0):
                raise NotPermitted(f"job {dependency} is another user's")
