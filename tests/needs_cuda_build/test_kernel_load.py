"""The kernels of `cotenant study metrics` compile by the real NVRTC of a CUDA build; launches do nothing here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import build_libraries, find_wheels
from cotenant.nullgpu.run import environment_of
from cotenant.study.metrics import KERNELS
from cotenant.study.overhead import JOBS_FOLDER

PYTHON = os.environ.get("COTENANT_CUDA_PYTHON", "")

pytestmark = pytest.mark.skipif(not PYTHON, reason="COTENANT_CUDA_PYTHON names no Python with a CUDA build of torch")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    libraries = build_libraries(find_wheels(PYTHON), tmp_path_factory.mktemp("null-gpu"))
    return {**os.environ, **environment_of(libraries, gpu_spec("A100-40GB"), env=os.environ)}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_and_is_launched(environment, kernel):
    command = [PYTHON, str(Path(JOBS_FOLDER) / "kernel_load.py"), "--kernel", kernel, "--blocks", "108"]
    done = subprocess.run(
        [*command, "--threads", "256", "--duty", "0.5", "--seconds", "0.5"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["launches"] > 0
