"""The shipped jobs of `cotenant study` train, here on the CPU and small; timm's need a real torchvision."""

import json
import os
import subprocess
import sys

import pytest

from cotenant.study.overhead import JOBS_FOLDER

SMALL = ["--epochs", "2", "--device", "cpu"]


@pytest.mark.parametrize(
    "command",
    [
        ["mnist_cnn.py", "--images", "32", "--batch-size", "16"],
        ["resnet.py", "--depth", "26", "--image-size", "32", "--batch-size", "2", "--batches", "1"],
        ["dlrm.py", "--rows", "100", "--batch-size", "8", "--batches", "2"],
    ],
    ids=lambda command: command[0],
)
def test_a_shipped_job_records_its_epochs(tmp_path, command):
    epochs = tmp_path / "epochs"
    env = {**os.environ, "COTENANT_STUDY_EPOCHS": str(epochs), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(JOBS_FOLDER / command[0]), *command[1:], *SMALL]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in epochs.read_text().splitlines()]
    assert len(records) == 2
    assert all(record["began_s"] < record["ended_s"] for record in records)
