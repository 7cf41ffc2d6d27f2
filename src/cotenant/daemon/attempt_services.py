"""What is laid over an attempt's environment: how it finds a simulated server, how it becomes a client of MPS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from cotenant.core.job import Attempt, Job, JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.daemon.monitoring.mps_monitor import MpsMonitor
from cotenant.daemon.monitoring.progress_files import ProgressFiles
from cotenant.gpus.mps import COMMAND

PIPE = "CUDA_MPS_PIPE_DIRECTORY"


class LaunchEnv:
    """Environments of attempts. Starts MPS when the first attempt on a GPU is to share it so, ends it after the last.

    `fixed` goes to every attempt, and `site` comes first on its PYTHONPATH. Without `mps` (a simulated server) nobody
    becomes a client. `thread_percent`: share of the SMs that the kernels of one client may use, None for all.
    `progress`: where attempts tell of their steps.
    """

    def __init__(
        self,
        fixed: Mapping[str, str],
        mps: MpsMonitor | None = None,
        *,
        site: Path | None = None,
        thread_percent: float | None = None,
        progress: ProgressFiles | None = None,
    ) -> None:
        self.progress = progress
        self._fixed = dict(fixed)
        self._site = site
        self._mps = mps
        self._thread_percent = thread_percent
        self._owners = mps.known() if mps is not None else set()

    def __call__(self, spec: JobSpec, placement: Placement) -> dict[str, str]:
        """The environment for this attempt.

        A job of several GPUs is no client: a process can have one control daemon, and each of ours is for one GPU.
        Its kernels take turns with those of the clients.

        Raises:
            BackendError: MPS is asked for and does not start.
        """
        env = dict(self._fixed)
        if self._site is not None:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._site), spec.env.get("PYTHONPATH"))))
        file = self.progress.make(placement.job_id, spec.uid) if self.progress is not None else None
        if file is not None:
            env["COTENANT_PROGRESS"] = str(file)
        owner = _owner(spec, placement)
        if self._mps is not None and owner is not None:
            limit = placement.memory_limit_bytes or placement.promised_bytes
            self._owners.add(owner)
            env |= self._mps.client_env(*owner, memory_limit_bytes=limit, thread_percent=self._thread_percent)
        elif self._mps is not None and (spec.sharing == "time" or self._mps.is_ours(spec.env.get(PIPE, ""))):
            # Submitted by a client, it has that one's pipe in its environment; or another control daemon is at large.
            env[PIPE] = self._mps.nowhere
        return env

    @property
    def mps_unavailable_reason(self) -> str | None:
        """Why nobody can become a client, or None."""
        if self._mps is None:
            return "its GPUs are simulated"
        return None if self._mps.available else f"there is no `{COMMAND}`"

    def start(self) -> None:
        """Begin to watch over MPS."""
        if self._mps is not None:
            self._mps.start()

    def close(self) -> None:
        """Watch no more."""
        if self._mps is not None:
            self._mps.close()

    def server_failed_under(self, job: Job, attempt: Attempt, ran_s: float, live: Callable[[], Iterable[Job]]) -> bool:
        """Whether `attempt`, which has failed, was a client of an MPS server that failed under it."""
        owner = _owner(job.spec, attempt.placement)
        if self._mps is None or owner is None:
            return False
        mates = any(_owner(each.spec, each.attempts[-1].placement) == owner for each in live() if each.id != job.id)
        return self._mps.server_failed_under(owner, ran_s=ran_s, mates=mates)

    def rate(self, ref: AttemptRef) -> tuple[float, float] | None:
        """Steps a second of an attempt, and over how many seconds, if there is something new to tell."""
        return None if self.progress is None else self.progress.rate(ref)

    def tidy(self, live: Callable[[], Iterable[tuple[JobSpec, Placement]]]) -> None:
        """Remove what none of these attempts needs: progress files, control daemons. `live` is asked if need be."""
        if self.progress is not None and self.progress.needs_cleanup:
            self.progress.tidy(placement.job_id for _, placement in live())
        if self._mps is None or not self._owners:
            return
        in_use = {owner for spec, placement in live() if (owner := _owner(spec, placement)) is not None}
        if not self._owners <= in_use:
            self._mps.stop_all_but(in_use)
            self._owners = self._mps.known()


def _owner(spec: JobSpec, placement: Placement) -> tuple[str, int] | None:
    """GPU and user of the control daemon that an attempt is a client of."""
    if placement.sharing != "mps" or len(placement.gpu_uuids) != 1:
        return None
    return placement.gpu_uuids[0], os.geteuid() if spec.uid is None else spec.uid
