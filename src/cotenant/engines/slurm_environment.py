"""The variables of Slurm that a job gets beside ours, so that scripts written for `sbatch` find what they read.

Names and values are those of sbatch(1), "OUTPUT ENVIRONMENT VARIABLES", on a cluster of this one machine. Some make a
launcher believe that Slurm starts processes for it: Open MPI 4.1's `mpirun` refuses to run with SLURM_JOBID alone, and
counts slots by SLURM_TASKS_PER_NODE; Lightning takes SLURM_NTASKS for `srun` and starts none. Those are set only if
`JobSpec.slurm_env` is `all`. What only the submitting process knows, it adds to the environment itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement

CLUSTER, PARTITION = "cotenant", "gpu"
"""The cluster and its only partition, as `cotenant sinfo` prints them."""
SECRETS = ("COTENANT_TOKEN",)
"""Variables that a submission leaves out: a job does not need them, and others may read a job's environment."""
_SLURM_SETTINGS = ("SLURM_CONF", "SLURM_TIME_FORMAT")
"""Variables that configure Slurm's commands; all other SLURM_* ones describe an allocation."""


def slurm_environment(spec: JobSpec, placement: Placement, attempt: int) -> dict[str, str]:
    """The variables of attempt number `attempt` of a job, by `spec.slurm_env`."""
    if spec.slurm_env == "none":
        return {}
    node = os.uname().nodename
    job_id = str(placement.job_id)
    found = {
        "SLURMD_NODENAME": node,
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_GPUS_ON_NODE": str(len(placement.gpu_uuids)),
        "SLURM_JOB_ID": job_id,
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_NODELIST": node,
        "SLURM_JOB_PARTITION": PARTITION,
        "SLURM_JOB_UID": str(spec.uid),
        "SLURM_JOB_USER": spec.user,
        "SLURM_SUBMIT_DIR": spec.env.get("SLURM_SUBMIT_DIR", spec.workdir),
    }
    if attempt > 1:
        found["SLURM_RESTART_COUNT"] = str(attempt - 1)
    if spec.array is not None:
        found["SLURM_ARRAY_JOB_ID"] = str(spec.array.array_id)
        found["SLURM_ARRAY_TASK_ID"] = str(spec.array.index)
    if spec.slurm_env == "all":
        cpus, tasks = str(os.cpu_count() or 1), spec.env.get("SLURM_NTASKS", "1")
        found |= dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), cpus)
        found |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE"), tasks)
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1")
        found |= dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0")
        found |= {"SLURM_JOBID": job_id, "SLURM_NODELIST": node}
    return found


def array_environment(indices: Iterable[int]) -> dict[str, str]:
    """The variables that are the same for all tasks of an array."""
    ordered = sorted(indices)
    gaps = {later - earlier for earlier, later in itertools.pairwise(ordered)}
    return {
        "SLURM_ARRAY_TASK_COUNT": str(len(ordered)),
        "SLURM_ARRAY_TASK_MIN": str(ordered[0]),
        "SLURM_ARRAY_TASK_MAX": str(ordered[-1]),
        "SLURM_ARRAY_TASK_STEP": str(gaps.pop() if len(gaps) == 1 else 1),
    }


def submitted_environment(
    env: Mapping[str, str], slurm_env: str, *, folder: str, tasks: int | None, cpus_per_task: int | None
) -> dict[str, str]:
    """`env` for a job: without the Slurm allocation it describes, with the variables that only the submitter knows.

    With `none` it stays as it is. The daemon adds the rest, by `slurm_environment`.
    """
    if slurm_env == "none":
        return dict(env)
    own = {
        name: value
        for name, value in env.items()
        if not name.startswith(("SLURM_", "SLURMD_")) or name in _SLURM_SETTINGS
    }
    own |= {"SLURM_SUBMIT_DIR": folder, "SLURM_SUBMIT_HOST": os.uname().nodename}
    if slurm_env == "all":
        own |= {"SLURM_NTASKS": str(tasks)} if tasks is not None else {}
        own |= {"SLURM_CPUS_PER_TASK": str(cpus_per_task)} if cpus_per_task is not None else {}
    return own
