"""Turns requests to change jobs into events, or refuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from cotenant.core.errors import CotenantError, NoSuchJob, UsageError
from cotenant.daemon.api.submission.submission_handler import SubmissionHandler
from cotenant.daemon.api.views.job_words import label
from cotenant.daemon.job_verbs import JOB_VERBS, ChangeEvent
from cotenant.scheduling.manager import Manager


class JobChanges:
    """Used in the control loop's thread only. `pruned_jobs` returns the jobs whose environments are gone."""

    def __init__(
        self,
        manager: Manager,
        submissions: SubmissionHandler,
        now: Callable[[], float],
        pruned_jobs: Callable[[], AbstractSet[int]],
    ) -> None:
        self._manager = manager
        self._submissions = submissions
        self._now = now
        self._pruned_jobs = pruned_jobs

    def event(self, name: str, job_id: int, cause: str, fields: Mapping[str, Any]) -> ChangeEvent:
        """The event of the verb `name`, applied to a job.

        Raises:
            CotenantError: it is refused.
        """
        job = self._manager.jobs.get(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}", hint="see `cotenant ls`")
        verb = JOB_VERBS[name]
        verb.check(job)
        if name == "requeue" and job.is_done and job_id in self._pruned_jobs():
            raise UsageError(f"job {label(job)} was pruned, its environment is gone", hint="submit it again")
        spec = verb.new_spec(job, fields)
        if spec is not job.spec:
            self._submissions.check_update(job, spec)
        return verb.new_event(job, spec, at_s=self._now(), cause=cause)

    def events(
        self, name: str, job_ids: Sequence[int], cause: str
    ) -> tuple[list[ChangeEvent], list[CotenantError | None]]:
        """The events of a verb without fields, applied to many jobs; for each job, why it was refused, or None."""
        events: list[ChangeEvent] = []
        problems: list[CotenantError | None] = []
        for job_id in job_ids:
            try:
                events.append(self.event(name, job_id, cause, {}))
                problems.append(None)
            except CotenantError as error:
                problems.append(error)
        return events, problems
