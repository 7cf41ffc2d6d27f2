"""`torch.cuda` as a script sees it: GPUs of the simulated model, without a driver.

Each thread has a current GPU, as with CUDA. Each GPU has a current stream, which all threads share here: autograd's
threads run backward on the streams of the forward pass.
Source of what changes the current GPU: torch/csrc/cuda/Module.cpp and Stream.cpp.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from cotenant.tracing.device import cuda_graphs, libtorch_patch
from cotenant.tracing.device.memory_queries import MEMORY_FUNCTIONS, memory_queries
from cotenant.tracing.device.rng import gpu_state
from cotenant.tracing.device.streams import STREAM_CLASSES, FakeStream, device_index
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.sensors.nvidia_smi import uuid_of

_NCCL_VERSION = (2, 27, 5)
_KIB = 1 << 10
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Most threads of a multiprocessor, by compute capability, where it is not 2048.

Source: CUDA C++ Programming Guide, `Technical Specifications per Compute Capability`.
"""
_SHARED_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""Shared memory that a block can have; 99 for others. Source: CUDA C++ Programming Guide, technical specifications."""
_SOME_VERSIONS = "some versions: functions come and go between PyTorch 2.4 and 2.13"


@dataclass(frozen=True, kw_only=True)
class FakeGpuSpec:
    """The simulated GPUs, all of one model.

    Attributes:
        total_bytes: `torch.cuda.get_device_properties(0).total_memory`.
        capability: compute capability, e.g. (8, 0).
        count: number of GPUs.
        allocator_bytes: total memory less the CUDA context; None: all of it.
        nvml_total_bytes: as nvidia-smi shows it, which is more; None: `total_bytes`.
    """

    name: str
    total_bytes: int
    capability: tuple[int, int]
    sm_count: int
    count: int = 1
    allocator_bytes: int | None = None
    nvml_total_bytes: int | None = None


class _DeviceProperties:
    """Replaces `torch._C._CudaDeviceProperties`."""

    def __init__(self, spec: FakeGpuSpec, index: int) -> None:
        self.name = spec.name
        self.major, self.minor = spec.capability
        self.total_memory = spec.total_bytes
        self.multi_processor_count = spec.sm_count
        self.is_integrated = False
        self.is_multi_gpu_board = False
        self.max_threads_per_multi_processor = _THREADS.get(spec.capability, 2048)
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = _SHARED_KIB.get(spec.capability, 99) * _KIB
        # One KiB of each block is the system's; from 8.0 on a block can have all of the rest.
        reserved = _KIB if spec.capability >= (8, 0) else 0
        self.shared_memory_per_multiprocessor = self.shared_memory_per_block_optin + reserved
        self.L2_cache_size = 40 * 2**20
        self.gcnArchName = ""
        # As NVML and nvidia-smi name it, less their "GPU-".
        self.uuid = uuid_of(index).removeprefix("GPU-")
        self.pci_bus_id = 1 + index
        self.pci_device_id = self.pci_domain_id = 0
        # Of an A100; scripts print a bandwidth.
        self.clock_rate, self.memory_clock_rate, self.memory_bus_width = 1_410_000, 1_215_000, 5120

    def __repr__(self) -> str:
        """As torch/csrc/cuda/Module.cpp, `registerCudaDeviceProperties`."""
        mib = _KIB**2
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // mib}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // mib}MB)"
        )


def patches(context: PatchContext) -> list[Patch]:
    """What scripts and libraries call in `torch.cuda`, in `torch.accelerator` and in the C module below them."""
    spec, recorder, cuda = context.gpu, context.recorder, torch.cuda
    replaced: dict[str, Any] = {
        **_availability(spec),
        **_devices(spec),
        **memory_queries(spec, recorder, libtorch_patch.current_device),
        **_random_state(spec),
        **_streams(recorder),
    }
    ours = {name: _unique_function(value) for name, value in replaced.items()}
    memory = {name: ours[name] if hasattr(cuda, name) else replaced[name] for name in MEMORY_FUNCTIONS}
    no_driver = "It calls the driver; the simulated GPU answers."
    source = "torch/cuda/__init__.py"
    return [
        *patch_attributes(
            "torch.cuda", ours, phase=Phase.DEVICE, reason=no_driver, source=source, missing=_SOME_VERSIONS
        ),
        *patch_attributes(
            "torch.cuda.streams", STREAM_CLASSES, phase=Phase.DEVICE,
            reason="Libraries and PyTorch itself take these from where they are defined.",
            source="torch/cuda/streams.py, `Stream`",
        ),
        *cuda_graphs.patches(recorder, lambda number: FakeStream(number=number), context.observer.progress),
        *patch_attributes(
            "torch.cuda.nvtx",
            dict.fromkeys(("range_push", "range_pop", "mark", "range_start", "range_end"), lambda *_, **__: 0),
            phase=Phase.DEVICE, reason="A CPU build has no NVTX.", source="torch/cuda/nvtx.py", create=True,
        ),
        *patch_attributes(
            "torch.cuda.memory", memory,
            phase=Phase.DEVICE, reason="Libraries import these from where they are defined.",
            source="torch/cuda/memory.py", missing=_SOME_VERSIONS,
        ),
        *patch_attributes(
            "torch.cuda.random", {name: replaced[name] for name in ("get_rng_state", "set_rng_state")},
            phase=Phase.DEVICE, reason="Libraries import these from where they are defined.",
            source="torch/cuda/random.py, `get_rng_state`",
        ),
        Patch(
            target="torch.cuda.graphs:is_current_stream_capturing", phase=Phase.DEVICE,
            replacement=replaced["is_current_stream_capturing"],
            reason=no_driver, source="torch/cuda/graphs.py, `is_current_stream_capturing`",
        ),
        *_accelerator_patches(spec, replaced),
        *_c_module_patches(recorder, replaced),
        Patch(
            target="torch.backends.cuda:is_built", phase=Phase.DEVICE, replacement=lambda: True,
            reason="A CPU build says that it has no CUDA.", source="torch/backends/cuda/__init__.py, `is_built`",
        ),
        Patch(
            target="torch.cuda.nccl:version", phase=Phase.DEVICE, replacement=lambda: _NCCL_VERSION,
            reason="A CPU build has no NCCL.", source="torch/cuda/nccl.py, `version`",
        ),
    ]  # fmt: skip


def _availability(spec: FakeGpuSpec) -> dict[str, Any]:
    """CUDA is available, initialized and idle."""

    @functools.cache
    def makes_bf16() -> bool:
        """As torch.cuda's `_check_bf16_tensor_supported`, once for each process."""
        torch.tensor([1.0], dtype=torch.bfloat16, device="cuda")
        return True

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return spec.capability >= (8, 0) or (including_emulation and makes_bf16())

    return {
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "get_arch_list": lambda: [f"sm_{spec.capability[0]}{spec.capability[1]}"],
        "is_bf16_supported": is_bf16_supported,
        "synchronize": lambda device=None: None,
    }


def _devices(spec: FakeGpuSpec) -> dict[str, Any]:
    """The number of GPUs, the current one, and their properties."""
    properties = [_DeviceProperties(spec, index) for index in range(spec.count)]

    def properties_of(device: object = None) -> _DeviceProperties:
        index = device_index(device)
        if not 0 <= index < spec.count:
            raise AssertionError("Invalid device id")  # as torch/cuda/__init__.py, `get_device_properties`
        return properties[index]

    def set_device(device: object) -> None:
        _exchange_device(device_index(device))

    return {
        "device_count": lambda: spec.count,
        "_device_count_nvml": lambda: spec.count,
        "_raw_device_count_nvml": lambda: spec.count,
        "current_device": libtorch_patch.current_device,
        "set_device": set_device,
        "_exchange_device": _exchange_device,  # of `torch.cuda.device` and `device_of`
        "_maybe_exchange_device": _exchange_device,
        "get_device_properties": properties_of,
        "get_device_capability": lambda device=None: spec.capability,
        "get_device_name": lambda device=None: spec.name,
        "can_device_access_peer": lambda device, peer_device: True,
    }


def _exchange_device(index: int) -> int:
    """Make GPU `index` the current one and return the one before; a negative index changes nothing and returns -1."""
    # `torch.cuda.device_of` passes -1 for a CPU tensor (torch/cuda/__init__.py).
    if index < 0:
        return -1
    before = libtorch_patch.current_device()
    libtorch_patch.set_current_device(index)
    return before


def _random_state(spec: FakeGpuSpec) -> dict[str, Any]:
    """Seeds and states of the GPU's random number generators, which draw nothing."""
    return {
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device="cuda": gpu_state(),
        "get_rng_state_all": lambda: [gpu_state() for _ in range(spec.count)],
        "set_rng_state": lambda state, device="cuda": None,
        "set_rng_state_all": lambda states: None,
    }


def _streams(recorder: TraceRecorder) -> dict[str, Any]:
    """Streams, which the recorder attributes storages to, and events."""
    current: dict[int, FakeStream] = {}

    def default_stream(device: object = None) -> FakeStream:
        return FakeStream(device, number=0)

    def current_stream(device: object = None) -> FakeStream:
        return current.get(device_index(device)) or default_stream(device)

    def set_stream(stream: object) -> None:
        if not isinstance(stream, FakeStream):  # an object of another library: the current stream stays
            return
        current[stream.device_index] = stream
        recorder.streams[stream.device_index] = stream.number
        libtorch_patch.set_current_device(stream.device_index)

    return {
        **STREAM_CLASSES,
        "set_stream": set_stream,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "is_current_stream_capturing": lambda: False,
    }


def _c_module_patches(recorder: TraceRecorder, replaced: dict[str, Any]) -> list[Patch]:
    """The C module, which half of the libraries ask directly."""
    functions = {
        "_cuda_getDeviceCount": replaced["device_count"],
        "_cuda_getDevice": replaced["current_device"],
        "_cuda_setDevice": replaced["set_device"],
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_accelerator_exchangeDevice": _exchange_device,
        "_accelerator_maybeExchangeDevice": _exchange_device,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_resetPeakMemoryStats": lambda device: None,
        "_cuda_emptyCache": recorder.empty_cache,
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_get_accelerator": lambda check=None: torch.device("cuda"),
    }
    return patch_attributes(
        "torch._C",
        {name: _unique_function(value) for name, value in functions.items()},
        phase=Phase.DEVICE,
        reason="Libraries and PyTorch itself call the C module directly.",
        source="torch/csrc/cuda/Module.cpp",
        missing="builds without CUDA",
        create=True,
    )


def _accelerator_patches(spec: FakeGpuSpec, replaced: dict[str, Any]) -> list[Patch]:
    functions = {
        "is_available": lambda: True,
        "device_count": lambda: spec.count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": libtorch_patch.current_device,
        "current_device_idx": libtorch_patch.current_device,
        "set_device_index": replaced["set_device"],
        "set_device_idx": replaced["set_device"],
        "current_stream": replaced["current_stream"],
        "set_stream": replaced["set_stream"],
        "synchronize": lambda device=None: None,
        "empty_cache": replaced["empty_cache"],
        "get_memory_info": replaced["mem_get_info"],
        "memory_stats": replaced["memory_stats"],
        "memory_allocated": replaced["memory_allocated"],
        "max_memory_allocated": replaced["max_memory_allocated"],
        "memory_reserved": replaced["memory_reserved"],
        "max_memory_reserved": replaced["max_memory_reserved"],
        "reset_peak_memory_stats": lambda device_index=None: None,
        "reset_accumulated_memory_stats": lambda device_index=None: None,
    }
    return patch_attributes(
        "torch.accelerator",
        {name: _unique_function(value) for name, value in functions.items()},
        phase=Phase.DEVICE,
        reason="The same queries for any kind of accelerator.",
        source="torch/accelerator/__init__.py",
        missing=_SOME_VERSIONS,
    )


def _unique_function(value: Any) -> Any:
    """A function object of its own for each name.

    The tables of `torch._dynamo` refuse one object under two names. Source: torch/_dynamo/trace_rules.py,
    `get_torch_obj_rule_map`.
    """
    if isinstance(value, type):
        return value

    @functools.wraps(value)
    def call(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    return call
