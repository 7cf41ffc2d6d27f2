"""Points attempts at the simulated server, and their torch at its fake CUDA devices.

One file for each service.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.daemon.services.base import AttemptService


class SimulatedGpuService(AttemptService):
    """Sets `env` for every attempt and puts the folder `site`, if given, first on its PYTHONPATH."""

    def __init__(self, env: Mapping[str, str], *, site: Path | None = None) -> None:
        self._env = dict(env)
        self._site = site

    def prepare(self, spec: JobSpec, placement: Placement) -> Mapping[str, str]:
        del placement
        if self._site is None:
            return self._env
        python_path = filter(None, (str(self._site), spec.env.get("PYTHONPATH")))
        return {**self._env, "PYTHONPATH": os.pathsep.join(python_path)}
