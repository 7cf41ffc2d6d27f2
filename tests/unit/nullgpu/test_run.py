"""The environment of a process on the null GPU."""

from __future__ import annotations

from pathlib import Path

from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import CudaWheels, NullGpuLibraries, environment_of

WHEELS = CudaWheels(
    python="python",
    cuda_major=13,
    cudnn=(9, 20, 0),
    libraries={"cudnn": Path("/wheels/cudnn/lib/libcudnn.so.9")},
    includes=(),
)
LIBRARIES = NullGpuLibraries(wheels=WHEELS, preload=(Path("/null/libcuda.so.1"), Path("/null/libcudart.so.13")))


def test_libraries_of_the_job_are_found_behind_those_of_the_null_gpu():
    env = {"LD_PRELOAD": "libjemalloc.so.2", "LD_LIBRARY_PATH": "/job/lib:/usr/local/cuda/lib64"}
    found = environment_of(LIBRARIES, gpu_spec("A100-40GB"), env=env)
    assert found["LD_PRELOAD"] == "/null/libcuda.so.1:/null/libcudart.so.13:libjemalloc.so.2"
    assert found["LD_LIBRARY_PATH"] == "/null:/wheels/cudnn/lib:/job/lib:/usr/local/cuda/lib64"


def test_empty_variables_of_the_job_add_no_folder():
    found = environment_of(LIBRARIES, gpu_spec("A100-40GB"), env={"LD_LIBRARY_PATH": ""})
    assert found["LD_LIBRARY_PATH"] == "/null:/wheels/cudnn/lib"
