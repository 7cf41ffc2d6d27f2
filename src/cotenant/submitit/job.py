"""A function that was submitted: its state, its output, its result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from submitit.core import core, logger

from cotenant.core.errors import CotenantError, DaemonUnreachable, NoSuchJob, UsageError
from cotenant.daemon.api.views.states import DONE
from cotenant.daemon.client import Client

R = TypeVar("R", covariant=True)  # noqa: PLC0105 (submitit's name)

MAX_SINGLE = 8
"""Up to so many jobs are requested one by one; more by one list of all that are as new."""
RETRY_S = 1.0


class DaemonWatcher(core.InfoWatcher):
    """The states of all jobs of this process, by calls to the daemon. `get_info` gives the daemon's view of a job."""

    def register_job(self, job_id: str) -> None:
        """Watch a job. What was known by this id is dropped: it may have been another daemon's job."""
        super().register_job(job_id)
        self._finished.discard(job_id)
        self._info_dict.pop(job_id, None)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """The state in the daemon's words; `UNKNOWN` before its first answer."""
        return str(self.get_info(job_id, mode=mode).get("state", "UNKNOWN"))

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether the job has ended for good: an attempt that is followed by another is not the end."""
        return self.get_state(job_id, mode=mode) in DONE

    def update(self) -> None:
        """Read the views of all jobs that have not ended; where the daemon does not answer, the old ones stay."""
        self._num_calls += 1
        unfinished = sorted((self._registered - self._finished), key=int)
        try:
            views = _views(unfinished)
        except CotenantError as error:
            logger.get_logger().warning(f"Call #{self.num_calls} - the states of jobs may be old: {error}")
            views = {}
        self._info_dict.update(views)
        self._last_status_check = time.time()
        self._finished.update(job_id for job_id, view in views.items() if view["state"] in DONE)


def _views(job_ids: Sequence[str]) -> dict[str, Any]:
    """The daemon's views of jobs, by id. A job that it does not know is lost."""
    if not job_ids:
        return {}
    client = Client()
    found: dict[str, Any] = {job_id: {"state": "LOST"} for job_id in job_ids}
    if len(job_ids) > MAX_SINGLE:
        listed = {str(view["id"]): view for view in client.jobs(after=int(job_ids[0]) - 1)}
        return {job_id: listed.get(job_id, lost) for job_id, lost in found.items()}
    for job_id in job_ids:
        try:
            found[job_id] = client.job(int(job_id))
        except NoSuchJob:
            continue
    return found


class CotenantJob(core.Job[R]):
    """A job of the daemon, as `submitit.Job`.

    It differs in one respect: a result is one only when the daemon says that the job has ended. A function that runs
    out of GPU memory leaves an exception behind, and runs again with more.
    """

    _results_timeout_s = 2
    watcher = DaemonWatcher(delay_s=1)

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)

    def done(self, force_check: bool = False) -> bool:
        """Whether the job has ended for good; with `force_check` the daemon is called in any case."""
        return bool(self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"))

    def wait(self) -> None:
        """Wait for its end, also while the daemon restarts."""
        while not self.done(force_check=True):
            try:
                Client().wait(int(self.job_id))
            except DaemonUnreachable:
                time.sleep(RETRY_S)
            except NoSuchJob:
                continue

    def cancel(self, check: bool = True) -> None:
        """Cancel the job; one that has ended stays as it is.

        Raises:
            CotenantError: with `check`: the daemon does not answer, or refuses it.
        """
        try:
            Client().cancel(int(self.job_id))
        except UsageError:  # it has ended
            return
        except CotenantError:
            if check:
                raise

    def _interrupt(self) -> None:
        """Stop and requeue it, as at the end of a time slice; submitit's tests of checkpoints call it."""
        Client().requeue(int(self.job_id))
