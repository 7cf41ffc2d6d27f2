"""One real Slurm cluster for all tests of this folder; they are skipped where it cannot be started."""

from __future__ import annotations

import pytest

from cotenant.demo.slurm_cluster import why_no_cluster
from slurm_clusters import shared_cluster


@pytest.fixture(scope="session")
def slurm_cluster():
    reason = why_no_cluster()
    if reason is not None:
        pytest.skip(reason)
    return shared_cluster()


@pytest.fixture
def cluster(slurm_cluster, tmp_path):
    """The cluster, with a folder of the test's own, where nothing of an earlier test is queued."""
    slurm_cluster.until(lambda: not slurm_cluster.slurm("squeue", "-h").strip(), "the queue is empty")
    work = slurm_cluster.folder / "work" / tmp_path.name
    work.mkdir()
    slurm_cluster.work = work
    yield slurm_cluster
    for job_id in slurm_cluster.slurm("squeue", "-h", "-o", "%A").split():
        slurm_cluster.slurm("scancel", job_id)
