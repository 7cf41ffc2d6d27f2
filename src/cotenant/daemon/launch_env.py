"""What is laid over an attempt's environment: how it finds a simulated server, how it becomes a client of MPS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.gpus.mps import MpsServers


class LaunchEnv:
    """Environments of attempts. Starts MPS when the first attempt on a GPU is to share it so, ends it after the last.

    `fixed` goes to every attempt, and `site` comes first on its PYTHONPATH. Without `mps` (a simulated server) nobody
    becomes a client. `thread_percent`: share of the SMs that the kernels of one client may use, None for all.
    """

    def __init__(
        self,
        fixed: Mapping[str, str],
        mps: MpsServers | None = None,
        *,
        site: Path | None = None,
        thread_percent: float | None = None,
    ) -> None:
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
        owner = _owner(spec, placement)
        if self._mps is not None and owner is not None:
            limit = placement.memory_limit_bytes or placement.promised_bytes
            self._owners.add(owner)
            env |= self._mps.client_env(*owner, memory_limit_bytes=limit, thread_percent=self._thread_percent)
        return env

    def tidy(self, live: Callable[[], Iterable[tuple[JobSpec, Placement]]]) -> None:
        """End the control daemons that none of these attempts needs; `live` is asked only if there are any."""
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
