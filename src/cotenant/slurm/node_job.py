"""A job on a node, as slurmd's Prolog and Epilog see it, and its folder there.

The folder is root's, and the user may read it:

    environment    lines for TaskProlog: where the control daemon of MPS listens
    gpus           for TaskProlog: number and UUID of each GPU
    watcher.pid    of the process that reads the GPUs (`usage_watcher`)
    flush/         the user's: TaskEpilog makes `now` there, and waits until the watcher has removed it
    mps/           the control daemon's pipe and log
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant import gpus
from cotenant.core.errors import UsageError
from cotenant.gpus.visible import VisibleGpus

FOLDER = Path("/run/cotenant-slurm")
"""On a file system of the node, where only root can write."""
MPS_WORD = re.compile(r"(?:^|[\s,;:])mps(?:$|[\s,;:])")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """A job on this node.

    Attributes:
        gpus: its GPUs here, as CUDA_VISIBLE_DEVICES names them; empty if it has none.
        comment: its user's.
        folder: its own on this node.
    """

    job_id: str
    uid: int
    gpus: str
    comment: str
    nodes: int
    folder: Path

    @property
    def wants_mps(self) -> bool:
        """Whether its user requests MPS: `--comment=mps`, also beside other words."""
        return MPS_WORD.search(self.comment) is not None


def node_job(env: Mapping[str, str], folder: Path) -> NodeJob:
    """The job that slurmd names in the environment of Prolog and Epilog; `folder` has those of all jobs.

    Raises:
        UsageError: it names none.
    """
    job_id, uid = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_UID", "")
    if not (job_id.isascii() and job_id.isdigit() and uid.isascii() and uid.isdigit()):
        raise UsageError(
            "SLURM_JOB_ID and SLURM_JOB_UID name no job", hint="slurmd calls this, as Prolog or Epilog of slurm.conf"
        )
    nodes = env.get("SLURM_JOB_NUM_NODES", "1")
    return NodeJob(
        job_id=job_id,
        uid=int(uid),
        gpus=env.get("SLURM_JOB_GPUS", ""),  # also of a job with shards
        comment=env.get("SLURM_JOB_COMMENT", ""),
        nodes=int(nodes) if nodes.isdecimal() else 1,
        folder=folder / job_id,
    )


def open_gpus(visible: str, simulate: Path | None) -> VisibleGpus:
    """The GPUs of a job; `simulate` is a simulated server in place of the driver's.

    Raises:
        BackendError: they cannot be read, or are not there.
    """
    # slurmd's environment may name other GPUs, or none.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    backend = gpus.create("auto" if simulate is None else "simulated", gpus.BackendOptions(simulated_dir=simulate))
    return VisibleGpus(backend, visible)
