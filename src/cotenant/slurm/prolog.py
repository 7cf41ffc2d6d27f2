"""What slurmd's Prolog starts for a job on its node, and its Epilog ends: MPS for its GPUs, and their record."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from cotenant.core.errors import BackendError
from cotenant.gpus.mps import MpsServers
from cotenant.osutil import procfs
from cotenant.slurm.node_job import NodeJob, open_gpus

END_TIMEOUT_S = 5.0
POLL_S = 0.05


class StartedServices(NamedTuple):
    """What runs beside a job."""

    mps: bool
    record: bool


def begin(job: NodeJob, *, with_mps: bool, with_record: bool, simulate: Path | None) -> StartedServices:
    """Prepare the node for a job with GPUs; without, nothing is started.

    Raises:
        BackendError: its GPUs cannot be read, MPS does not start, or others can write the folder of all jobs.
        OSError: it cannot be written.
    """
    end(job)  # one that slurmd could not end
    if not job.gpus:
        return StartedServices(mps=False, record=False)
    _make_folders(job)
    with_record = with_record and job.nodes == 1  # watchers of several nodes would overwrite each other
    if with_record:
        _start_watcher(job, simulate)
    if with_mps:
        backend = open_gpus(job.gpus, simulate)
        found = backend.inventory()
        backend.close()
        (job.folder / "gpus").write_text("".join(f"{gpu.index} {gpu.uuid}\n" for gpu in found))
        env = MpsServers(job.folder / "mps").client_env(",".join(gpu.uuid for gpu in found), job.uid)
        (job.folder / "environment").write_text("".join(f"export {name}={value}\n" for name, value in env.items()))
    return StartedServices(mps=with_mps, record=with_record)


def end(job: NodeJob) -> None:
    """End what `begin` has started, and remove the job's folder."""
    with contextlib.suppress(OSError, ValueError):
        pid, ticks = (int(word) for word in (job.folder / "watcher.pid").read_text().split())
        give_up_s = time.monotonic() + END_TIMEOUT_S
        number = signal.SIGTERM
        while procfs.start_ticks(pid) == ticks and time.monotonic() < give_up_s:
            os.kill(pid, number)
            time.sleep(POLL_S)
    if (job.folder / "mps").is_dir():
        MpsServers(job.folder / "mps").stop_all_but(())
    shutil.rmtree(job.folder, ignore_errors=True)


def _make_folders(job: NodeJob) -> None:
    root, flush = job.folder.parent, job.folder / "flush"
    root.mkdir(mode=0o755, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise BackendError(
            f"`{root}` can be written by others: found uid {status.st_uid}, mode {status.st_mode & 0o777:o}",
            hint="name a folder that only root can write",
        )
    for path in (job.folder, flush):
        path.mkdir()
        path.chmod(0o755)
    os.chown(flush, job.uid, -1)


def _start_watcher(job: NodeJob, simulate: Path | None) -> None:
    words = [str(job.folder), job.job_id, str(job.uid), job.gpus, *([] if simulate is None else [str(simulate)])]
    with (job.folder / "watcher.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cotenant.slurm.usage_watcher", *words],
            cwd="/",  # `python -m` finds modules in its working directory
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # slurmd kills the process group of Prolog when that ends
        )
    (job.folder / "watcher.pid").write_text(f"{process.pid} {procfs.start_ticks(process.pid)}\n")
