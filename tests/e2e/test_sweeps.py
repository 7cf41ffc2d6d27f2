"""Sweeps of hydra and of optuna on a real daemon."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("submitit", reason="needs submitit")
TIMEOUT_S = 240
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sweep-from-python.md"
TRAIN = """
import os
import hydra

@hydra.main(version_base=None, config_path=None)
def main(config):
    with open("seen", "a") as file:
        file.write(f"{config.width} {os.environ['COTENANT_ATTEMPT']};")
    if config.width == 3:
        raise ValueError("three is refused")
    if config.width == 2 and os.environ["COTENANT_ATTEMPT"] == "1":
        kind = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
        raise kind("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which "
                   "1.00 GiB is free. Including non-PyTorch memory, this process has 4.00 GiB memory in use.")
    return config.width

main()
"""


def run(site, *command):
    return subprocess.run(
        [sys.executable, *command], env=site.env, cwd=site.root, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_S,
    )  # fmt: skip


def test_a_sweep_of_hydra(server):
    pytest.importorskip("hydra", reason="needs hydra-core")
    (server.root / "train.py").write_text(TRAIN)
    options = ("hydra/launcher=cotenant", "hydra.launcher.gpu_mem=1G", "hydra.sweep.dir=out", "hydra.job.chdir=true")
    done = run(server, "train.py", "--multirun", *options, "+width=1,2,3")
    assert done.returncode == 1
    assert "ValueError: three is refused" in done.stderr
    assert [(job["name"], job["state"], job["attempts"]) for job in server.client.jobs()] == [
        ("train", "COMPLETED", 1),
        ("train", "COMPLETED", 2),
        ("train", "FAILED", 1),
    ]
    seen = [(server.root / "out" / str(number) / "seen").read_text() for number in range(3)]
    assert seen == ["1 1;", "2 1;2 2;", "3 1;"]


def test_the_study_of_the_page(server):
    pytest.importorskip("optuna", reason="needs optuna")
    ((script,),) = [re.findall(r'^```python title="study.py"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)]
    (server.root / "study.py").write_text(script)
    done = run(server, "study.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 trials, best: {'lr': ")
    assert {(job["name"], job["state"], job["promised_bytes"]) for job in server.client.jobs()} == {
        ("study", "COMPLETED", 2 * 2**30)
    }
