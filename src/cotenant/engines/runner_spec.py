"""What a runner is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.units import MiB
from cotenant.engines.attempt_dir import AttemptDir

RUNNER_PATH = Path(__file__).parent.parent / "runner"  # started, never imported
PROGRESS_ENV = "COTENANT_PROGRESS"
GRACE_S = 10.0  # between SIGTERM and SIGKILL where nobody says otherwise, e.g. at a time limit


def runner_spec(
    spec: JobSpec, folder: AttemptDir, attempt: int, placement: Placement, env: Mapping[str, str]
) -> dict[str, object]:
    """The runner's `spec.json`. In the job's environment ours stands over the submitter's, and `env` over ours."""
    gpus = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(placement.gpu_uuids),
        "COTENANT_JOB_ID": str(placement.job_id),
        "COTENANT_ATTEMPT": str(attempt),
        "COTENANT_GPU_MEM_MIB": str(placement.promised_bytes // MiB),
    }
    if spec.array is not None:
        gpus["COTENANT_ARRAY_JOB_ID"] = str(spec.array.array_id)
        gpus["COTENANT_ARRAY_TASK_ID"] = str(spec.array.index)
    progress: dict[str, str | None] = {}
    if spec.progress is not None:
        # Its output is watched, and only that: two who count would not count the same.
        progress = {"progress": spec.progress, "progress_file": env.get(PROGRESS_ENV)}
        env = {name: value for name, value in env.items() if name != PROGRESS_ENV}
        gpus.setdefault("PYTHONUNBUFFERED", spec.env.get("PYTHONUNBUFFERED", "1"))  # what is printed must be there
    return {
        "job_id": placement.job_id,
        "attempt": attempt,
        "argv": list(spec.command),
        "cwd": spec.workdir,
        "env": {**spec.env, **gpus, **env, **folder.env_tag()},
        "stdout": spec.stdout_path or str(folder.stdout_path),
        "stderr": spec.stderr_path or str(folder.stderr_path),
        "time_limit_s": spec.time_limit_s,
        **progress,
        "grace_s": GRACE_S,
        "uid": None if spec.uid == os.geteuid() else spec.uid,
        "user": spec.user,
        "umask": spec.umask,
        "limits": None if spec.uid == os.geteuid() else spec.limits,
    }
