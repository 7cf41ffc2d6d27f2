"""Clients that wait for a job to start or to finish."""

from __future__ import annotations

from cotenant.core.errors import NoSuchJob
from cotenant.daemon.messages import WaitRequest
from cotenant.scheduling.manager import Manager


class Waiters:
    """Wait requests by job. Used in the control loop's thread only."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._waiting: dict[int, list[WaitRequest]] = {}

    def add(self, request: WaitRequest) -> None:
        """Add a request; for an unknown job its answer is `NoSuchJob`."""
        if request.job_id not in self._manager.jobs:
            request.answer.set_exception(_unknown(request.job_id))
            return
        self._waiting.setdefault(request.job_id, []).append(request)

    def answer(self) -> None:
        """Answer the requests whose job has come far enough, and drop cancelled ones."""
        jobs = self._manager.jobs
        for job_id in list(self._waiting):
            job = jobs.get(job_id)
            waiting = []
            for request in self._waiting.pop(job_id):
                if job is None:  # its submission was set aside, see `daemon.quarantine`
                    if request.answer.set_running_or_notify_cancel():
                        request.answer.set_exception(_unknown(job_id))
                elif request.reached(job):
                    # False if the client has gone meanwhile.
                    if request.answer.set_running_or_notify_cancel():
                        request.answer.set_result(job)
                elif not request.answer.cancelled():
                    waiting.append(request)
            if waiting:
                self._waiting[job_id] = waiting


def _unknown(job_id: int) -> NoSuchJob:
    return NoSuchJob(f"no job {job_id}", hint="see `cotenant ls`")
