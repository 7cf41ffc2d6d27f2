"""What a runner is told, and how it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.units import MiB
from cotenant.engines.attempt_files import AttemptFolder

RUNNER_PATH = Path(__file__).parent.parent / "runner"  # started, never imported
GRACE_S = 10.0  # between SIGTERM and SIGKILL where nobody says otherwise, e.g. at a time limit


def runner_spec(
    spec: JobSpec, folder: AttemptFolder, attempt: int, placement: Placement, env: Mapping[str, str]
) -> dict[str, object]:
    """The runner's `spec.json`. In the job's environment ours stands over the submitter's, and `env` over ours."""
    gpus = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(placement.gpu_uuids),
        "COTENANT_JOB_ID": str(placement.job_id),
        "COTENANT_ATTEMPT": str(attempt),
        "COTENANT_GPU_MEM_MIB": str(placement.promised_bytes // MiB),
    }
    return {
        "job_id": placement.job_id,
        "attempt": attempt,
        "argv": list(spec.command),
        "cwd": spec.workdir,
        "env": {**spec.env, **gpus, **env, **folder.mark()},
        "stdout": spec.stdout_path or str(folder.stdout_path),
        "stderr": spec.stderr_path or str(folder.stderr_path),
        "time_limit_s": spec.time_limit_s,
        "grace_s": GRACE_S,
        "uid": None if spec.uid == os.geteuid() else spec.uid,
    }


def start_runner(folder: AttemptFolder, notify: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A runner in a session of its own, which tells of the start on `notify` and closes it at its end.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(RUNNER_PATH), str(folder.path), str(notify)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        pass_fds=(notify,),
        start_new_session=True,
    )
