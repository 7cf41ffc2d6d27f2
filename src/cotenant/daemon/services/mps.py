"""Makes attempts clients of CUDA MPS: starts and stops control daemons, and attributes server faults."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from cotenant.core.events import AttemptExited
from cotenant.core.job import Attempt, Job, JobSpec
from cotenant.core.placement import Placement
from cotenant.daemon.services.base import AttemptService, RunningJobs
from cotenant.daemon.services.mps_monitor import MpsMonitor, ServerKey
from cotenant.gpus.mps import COMMAND

PIPE = "CUDA_MPS_PIPE_DIRECTORY"


class MpsService(AttemptService):
    """Starts a control daemon with the first client of a GPU and a user, and stops it after the last.

    `thread_percent`: share of the SMs that the kernels of one client may use, in percent; None for all.
    """

    def __init__(self, mps: MpsMonitor, *, thread_percent: float | None = None) -> None:
        self._mps = mps
        self._thread_percent = thread_percent
        self._started: set[ServerKey] = mps.known()  # an earlier daemon may have left some

    @property
    def unavailable_reason(self) -> str | None:
        """Why no attempt can become a client, or None."""
        return None if self._mps.available else f"there is no `{COMMAND}`"

    def start(self) -> None:
        self._mps.start()

    def prepare(self, spec: JobSpec, placement: Placement) -> Mapping[str, str]:
        """Return the variables of an MPS client, or those that keep an attempt from becoming one by accident.

        A job of several GPUs never becomes a client: a process connects to one control daemon, and each of ours serves
        one GPU. Its kernels are time-sliced with those of the clients.

        Raises:
            BackendError: the placement is by MPS, and the control daemon does not start.
        """
        key = _server_key(spec, placement)
        if key is not None:
            self._started.add(key)
            limit = placement.memory_limit_bytes or placement.promised_bytes
            return self._mps.client_env(*key, memory_limit_bytes=limit, thread_percent=self._thread_percent)
        if spec.sharing == "time" or self._mps.is_ours(spec.env.get(PIPE, "")):
            # `sbatch`-like submission from inside a client: its environment names that client's pipe.
            return {PIPE: self._mps.nowhere}
        return {}

    def ended(self, job: Job, attempt: Attempt, event: AttemptExited, running: RunningJobs) -> AttemptExited:
        """Set `mps_fault` on a failed exit if the MPS server of the attempt failed while it ran."""
        key = _server_key(job.spec, attempt.placement)
        if key is None or event.exit.reason != "exited" or event.exit.exit_code == 0:
            return event
        others = any(
            _server_key(other.spec, other.attempts[-1].placement) == key for other in running() if other.id != job.id
        )
        since_s = attempt.placed_at_s if attempt.started_at_s is None else attempt.started_at_s
        if not self._mps.server_failed_under(key, ran_s=event.at_s - since_s, has_other_clients=others):
            return event
        return dataclasses.replace(event, exit=dataclasses.replace(event.exit, mps_fault=True))

    def reconcile(self, running: RunningJobs) -> None:
        """Stop control daemons without clients."""
        if not self._started:
            return
        in_use = {key for job in running() if (key := _server_key(job.spec, job.attempts[-1].placement)) is not None}
        if not self._started <= in_use:
            self._mps.stop_all_but(in_use)
            self._started = self._mps.known()

    def close(self) -> None:
        self._mps.close()


def _server_key(spec: JobSpec, placement: Placement) -> ServerKey | None:
    """GPU and user of the control daemon that an attempt is a client of; None if it is no client."""
    if placement.sharing != "mps" or len(placement.gpu_uuids) != 1:
        return None
    return placement.gpu_uuids[0], os.geteuid() if spec.uid is None else spec.uid
