"""A CUDA build of PyTorch without a GPU: its own allocator and its own choice of workspaces, on libraries that count.

Our libcuda, libcudart, libcublas, libcublasLt, libcufft, libcusolver, libcusparse and libnvidia-ml stand in front of
the wheel's own and serve documented interfaces only. Allocations are counted, kernels are not run, and what is copied
from the device is zeros; values of data that are known all the same are `tracing.cuda_build.known_tensors`. The wheel's
cuDNN (9.8 or newer) stays as it is and chooses plans by the properties of the GPU. What this is for, what it cannot
know, and where the line to NVIDIA's own checks is: decision 0053.
"""

from cotenant.nullgpu.build import NullGpuLibraries, build_for_cudnn, build_libraries, check_compiler
from cotenant.nullgpu.device import device_text
from cotenant.nullgpu.history import RequestHistory, read_history, write_history
from cotenant.nullgpu.run import TrainingRun, environment_of, read_answer, run_script
from cotenant.nullgpu.wheels import CudaWheels, NullGpuError, find_wheels

__all__ = [
    "CudaWheels",
    "NullGpuError",
    "NullGpuLibraries",
    "RequestHistory",
    "TrainingRun",
    "build_for_cudnn",
    "build_libraries",
    "check_compiler",
    "device_text",
    "environment_of",
    "find_wheels",
    "read_answer",
    "read_history",
    "run_script",
    "write_history",
]
