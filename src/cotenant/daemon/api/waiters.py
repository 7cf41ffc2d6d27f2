"""Clients that wait for a job to start or to end."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.core.errors import NoSuchJob
from cotenant.core.job import Job
from cotenant.daemon.messages import WaitRequest


class Waiters:
    """Who waits for which of `jobs`. Lives in the loop's thread."""

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        self._jobs = jobs
        self._waiting: dict[int, list[WaitRequest]] = {}

    def add(self, watch: WaitRequest) -> None:
        """Wait for a job; one that does not exist is answered with `NoSuchJob`."""
        if watch.job_id not in self._jobs:
            watch.answer.set_exception(NoSuchJob(f"no job {watch.job_id}", hint="see `cotenant ls`"))
            return
        self._waiting.setdefault(watch.job_id, []).append(watch)

    def answer(self) -> None:
        """Tell those whose job is as far as they wanted, and forget those who have gone."""
        for job_id in list(self._waiting):
            job = self._jobs[job_id]
            waiting = []
            for watch in self._waiting.pop(job_id):
                if watch.reached(job):
                    # False when the one who waited has gone.
                    if watch.answer.set_running_or_notify_cancel():
                        watch.answer.set_result(job)
                elif not watch.answer.cancelled():
                    waiting.append(watch)
            if waiting:
                self._waiting[job_id] = waiting
