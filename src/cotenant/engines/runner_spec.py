"""What a runner is to do: the content of `spec.json`, which the engine writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.units import MiB
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.slurm_environment import slurm_environment

RUNNER_DIR = Path(__file__).parent.parent / "runner"
"""The runner's folder, which is a program: it is started, never imported."""
PROGRESS_ENV = "COTENANT_PROGRESS"
CHECKPOINT_ENV = "COTENANT_CHECKPOINT_SIGNAL"
"""Names the signal after which a job is to save its state; `cotenant.checkpoint` reads it, too."""
GRACE_S = 10.0
"""Between SIGTERM and SIGKILL where no other time is given, e.g. at a time limit."""


def runner_spec(
    spec: JobSpec, attempt_dir: AttemptDir, attempt: int, placement: Placement, env: Mapping[str, str]
) -> dict[str, object]:
    """The runner's `spec.json`. Our variables override the submitter's environment, and `env` overrides ours."""
    ours = {
        **slurm_environment(spec, placement, attempt),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(placement.gpu_uuids),
        "COTENANT_JOB_ID": str(placement.job_id),
        "COTENANT_ATTEMPT": str(attempt),
        "COTENANT_GPU_MEM_MIB": str(placement.promised_bytes // MiB),
    }
    if spec.array is not None:
        ours["COTENANT_ARRAY_JOB_ID"] = str(spec.array.array_id)
        ours["COTENANT_ARRAY_TASK_ID"] = str(spec.array.index)
    progress: dict[str, str | None] = {}
    if spec.progress is not None:
        # The runner counts steps in the job's output, so the job itself gets no progress file: only one may write it.
        progress = {"progress": spec.progress, "progress_file": env.get(PROGRESS_ENV)}
        env = {name: value for name, value in env.items() if name != PROGRESS_ENV}
        ours["PYTHONUNBUFFERED"] = spec.env.get("PYTHONUNBUFFERED", "1")  # else lines come kilobytes late
    if spec.checkpoint_signal is not None:
        ours[CHECKPOINT_ENV] = spec.checkpoint_signal
    is_ours = spec.uid == os.geteuid()
    return {
        "job_id": placement.job_id,
        "attempt": attempt,
        "argv": list(spec.command),
        "cwd": spec.workdir,
        "env": {**spec.env, **ours, **env, **attempt_dir.env_tag()},
        "stdin": spec.stdin_path,
        "stdout": spec.stdout_path or attempt_dir.stdout_path,
        "stderr": spec.stderr_path or attempt_dir.stderr_path,
        "time_limit_s": spec.time_limit_s,
        **progress,
        "grace_s": GRACE_S,
        "checkpoint_signal": spec.checkpoint_signal and int(signal.Signals[f"SIG{spec.checkpoint_signal}"]),
        "uid": None if is_ours else spec.uid,
        "user": spec.user,
        "umask": spec.umask,
        "limits": None if is_ours else spec.limits,
    }
