"""The variables of Slurm that a job gets: which ones, by its option, and with which values."""

from __future__ import annotations

import os

import pytest

from builders import a_spec
from cotenant.core.job import ArrayTask
from cotenant.core.placement import Placement
from cotenant.engines.slurm_environment import array_environment, slurm_environment

PLACEMENT = Placement(job_id=17, gpu_uuids=("GPU-a", "GPU-b"), sharing="exclusive", promised_bytes=2**30)
LAUNCHERS_ACT_ON = {
    "SLURM_JOBID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_NODELIST",
}


def variables(attempt=1, **fields):
    return slurm_environment(a_spec(**fields), PLACEMENT, attempt)


def test_the_default_says_what_the_job_is_and_offers_launchers_no_allocation():
    found = variables(name="train", user="ann", uid=1234, workdir="/data")
    node = os.uname().nodename
    assert found == {
        "SLURMD_NODENAME": node,
        "SLURM_CLUSTER_NAME": "cotenant",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": node,
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_UID": "1234",
        "SLURM_JOB_USER": "ann",
        "SLURM_SUBMIT_DIR": "/data",
    }
    assert not LAUNCHERS_ACT_ON & found.keys()


def test_all_describes_one_node_with_the_tasks_of_the_submitter():
    found = variables(slurm_env="all", env={"SLURM_NTASKS": "4", "SLURM_SUBMIT_DIR": "/home"})
    assert found.keys() >= LAUNCHERS_ACT_ON
    assert (found["SLURM_NTASKS"], found["SLURM_TASKS_PER_NODE"], found["SLURM_NNODES"]) == ("4", "4", "1")
    assert found["SLURM_SUBMIT_DIR"] == "/home"
    assert variables(slurm_env="all")["SLURM_NTASKS"] == "1"


def test_none_sets_nothing():
    assert variables(slurm_env="none", array=ArrayTask(array_id=17, index=3)) == {}


def test_a_task_of_an_array_has_its_index():
    found = variables(array=ArrayTask(array_id=15, index=3))
    assert (found["SLURM_ARRAY_JOB_ID"], found["SLURM_ARRAY_TASK_ID"], found["SLURM_JOB_ID"]) == ("15", "3", "17")


def test_only_a_later_attempt_has_a_restart_count():
    assert "SLURM_RESTART_COUNT" not in variables()
    assert variables(attempt=3)["SLURM_RESTART_COUNT"] == "2"


@pytest.mark.parametrize(
    ("indices", "wanted"),
    [
        ([8, 2, 5], ("3", "2", "8", "3")),  # as Slurm 22.05 sets them for --array=2-10:3
        ([7], ("1", "7", "7", "1")),
        ([1, 2, 9], ("3", "1", "9", "1")),
    ],
)
def test_an_array_counts_its_tasks(indices, wanted):
    found = array_environment(indices)
    names = ("COUNT", "MIN", "MAX", "STEP")
    assert tuple(found[f"SLURM_ARRAY_TASK_{name}"] for name in names) == wanted
