"""What is asked of the loop before anything is kept: may these jobs be queued, and under which numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cotenant.core.errors import CotenantError, NoSuchJob, NotPermitted, UsageError
from cotenant.core.events import JobSubmitted
from cotenant.core.job import Job, JobSpec
from cotenant.daemon.api.job_specs import expand_paths, with_array_ids
from cotenant.daemon.messages import SubmitRequest
from cotenant.scheduling.dependencies import all_dependencies
from cotenant.scheduling.manager import Manager


class SubmissionHandler:
    """Gives numbers to jobs. Lives in the loop's thread."""

    def __init__(self, manager: Manager, now: Callable[[], float]) -> None:
        self._manager = manager
        self._now = now
        self._next_id = 1
        self.reset_ids()

    def reset_ids(self) -> None:
        """Numbers that were given but not kept are free again."""
        self._next_id = max(self._manager.jobs, default=0) + 1

    def accepted(self, submits: Iterable[SubmitRequest[Any]]) -> list[tuple[SubmitRequest[Any], list[JobSubmitted]]]:
        """The events of those submissions that can be accepted; the others are answered with their error."""
        accepted = []
        coming: dict[str, int] = {}
        for request in submits:
            try:
                for spec in request.specs:
                    self.check_dependencies(spec)
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
        """See that `job`, which waits, may become `new`.

        Raises:
            UsageError: it would wait for itself.
            NoSuchJob, NotPermitted: as for a new job; or its user may not have so many GPUs at once.
        """
        self.check_dependencies(new)
        ahead, seen = list(all_dependencies(new)), set[int]()
        while ahead:
            each = ahead.pop()
            if each == job.id:
                raise UsageError(f"job {job.id} cannot wait for itself, nor for one that waits for it")
            if each in self._manager.jobs and each not in seen:
                seen.add(each)
                ahead += all_dependencies(self._manager.jobs[each].spec)
        # It is counted already, so that there is one less besides it.
        over = self._manager.over_quota([new], besides=-1) if new.gpus > job.spec.gpus else None
        if over is not None:
            raise NotPermitted(f"quota: {over}", hint="ask an admin")

    def check_dependencies(self, spec: JobSpec) -> None:
        """See that the jobs that `spec` waits for exist, and may be waited for.

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
