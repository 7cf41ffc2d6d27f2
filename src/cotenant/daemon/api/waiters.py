"""Clients that wait for a job to start or to finish."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.core.errors import NoSuchJob
from cotenant.core.job import Job
from cotenant.daemon.messages import WaitRequest


class Waiters:
    """Wait requests by job. Used in the control loop's thread only."""

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        self._jobs = jobs
        self._waiting: dict[int, list[WaitRequest]] = {}

    def add(self, request: WaitRequest) -> None:
        """Add a request; for an unknown job its answer is `NoSuchJob`."""
        if request.job_id not in self._jobs:
            request.answer.set_exception(NoSuchJob(f"no job {request.job_id}", hint="see `cotenant ls`"))
            return
        self._waiting.setdefault(request.job_id, []).append(request)

    def answer(self) -> None:
        """Answer the requests whose job has come far enough, and drop cancelled ones."""
        for job_id in list(self._waiting):
            job = self._jobs[job_id]
            waiting = []
            for request in self._waiting.pop(job_id):
                if request.reached(job):
                    # False if the client has gone meanwhile.
                    if request.answer.set_running_or_notify_cancel():
                        request.answer.set_result(job)
                elif not request.answer.cancelled():
                    waiting.append(request)
            if waiting:
                self._waiting[job_id] = waiting
