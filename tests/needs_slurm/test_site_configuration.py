"""What an administrator installs, on a real Slurm: typed shards, and the filter of sbatch."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from cotenant.demo.slurm_cluster import why_no_cluster
from slurm_clusters import SlurmCluster

FILTER = Path(__file__).parents[2] / "share" / "slurm" / "cli_filter.lua"
PLUGIN = "slurm*/cli_filter_lua.so"


def test_a_type_for_each_gpu_puts_a_job_on_one():
    reason = why_no_cluster()
    if reason is not None:
        pytest.skip(reason)
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="cotenant-typed-", dir="/tmp")), "gpu")
    try:
        cluster.start()
        checked = cluster.cli("slurm", "check")
        assert (checked.returncode, checked.stdout) == (
            0,
            f"{cluster.folder}/slurm.conf: jobs can share GPUs by shards\n",
        )
        for kind, index in (("g1", "1"), ("g0", "0")):
            printed = cluster.slurm("srun", "-w", "n2", f"--gres=shard:{kind}:13", "printenv", "CUDA_VISIBLE_DEVICES")
            assert printed == f"{index}\n"
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def filtered(cluster):
    """The cluster's configuration with the filter, as a login node would have it."""
    if not any(Path("/usr/lib").rglob(PLUGIN)):
        pytest.skip("this Slurm has no cli_filter_lua.so")
    folder = cluster.work / "etc"
    folder.mkdir()
    text = (cluster.folder / "slurm.conf").read_text()
    (folder / "slurm.conf").write_text(f"{text}CliFilterPlugins=cli_filter/lua\n")
    shutil.copy(cluster.folder / "gres.conf", folder)
    shutil.copy(FILTER, folder)
    return {"SLURM_CONF": str(folder / "slurm.conf"), "COTENANT_FILTER_SECONDS": "200"}


TRAIN = """import torch
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_the_filter_says_what_a_whole_gpu_is_too_much_for(cluster, filtered):
    pytest.importorskip("torch", reason="tracing needs torch")
    (cluster.work / "train.py").write_text(TRAIN)
    (cluster.work / "it's.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\npython train.py\n")

    def said(*words, **env):
        done = cluster.plain(*words, env={**filtered, **env})
        assert done.returncode == 0, done.stderr
        return done.stderr

    expected = (
        r"this job requests a whole GPU and needs 0\.\d GiB: `cotenant sbatch` requests 1 of its shards instead\n"
    )
    assert re.fullmatch(f"sbatch: lua: {expected}", said("sbatch", "-H", "it's.sh", "a b"))
    silent = (
        ("sbatch", "-H", "--comment=cotenant:mem=812M", "it's.sh"),
        ("sbatch", "-H", "--wrap", "true"),
        ("sbatch", "-H", "-G", "1", "--wrap", "true"),
    )
    assert [said(*words) for words in silent] == [""] * len(silent)
    assert said("sbatch", "-H", "it's.sh", COTENANT_FILTER_SECONDS="0") == ""
