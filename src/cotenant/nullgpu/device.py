"""Properties of the simulated device, from the one table of GPUs and from its compute capability."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.gpu_specs import GpuSpec
from cotenant.nullgpu.wheels import NullGpuError


@dataclass(frozen=True, slots=True)
class _Architecture:
    """Limits of an SM. Source: CUDA C++ Programming Guide, compute capabilities, technical specifications."""

    threads: int
    blocks: int
    shared_kib: int
    shared_optin_kib: int


_ARCHITECTURES = {
    (7, 0): _Architecture(2048, 32, 96, 96),
    (7, 5): _Architecture(1024, 16, 64, 64),
    (8, 0): _Architecture(2048, 32, 164, 163),
    (8, 6): _Architecture(1536, 16, 100, 99),
    (8, 9): _Architecture(1536, 24, 100, 99),
    (9, 0): _Architecture(2048, 32, 228, 227),
    (10, 0): _Architecture(2048, 32, 228, 227),
    (12, 0): _Architecture(1536, 24, 100, 99),
}
_L2_MIB, _BUS_BITS, _CLOCK_KHZ = 40, 5120, 1_410_000
"""Of an A100, for every GPU: not in the table of GPUs. Assumed to decide nothing; not checked for torch's kernels."""


def device_text(spec: GpuSpec, *, total_bytes: int | None = None, limit_bytes: int | None = None) -> str:
    """Value of `COTENANT_NULL_GPU` for `spec`; `total_bytes` replaces its memory, `limit_bytes` what can be allocated.

    Raises:
        NullGpuError: the limits of its compute capability are not in the table.
    """
    architecture = _architecture(spec)
    members = {
        "name": spec.nvml_names[0] if spec.nvml_names else spec.name,
        "compute_major": spec.compute_capability[0],
        "compute_minor": spec.compute_capability[1],
        "sm_count": spec.sm_count,
        "threads_per_sm": architecture.threads,
        "blocks_per_sm": architecture.blocks,
        "shared_bytes_per_sm": architecture.shared_kib * 1024,
        "shared_bytes_per_block_optin": architecture.shared_optin_kib * 1024,
        "l2_bytes": _L2_MIB * 2**20,
        "memory_bus_bits": _BUS_BITS,
        "sm_clock_khz": _CLOCK_KHZ,
        "memory_clock_khz": _CLOCK_KHZ,
        "total_bytes": spec.usable_bytes if total_bytes is None else total_bytes,
        "context_bytes": spec.context.typical_bytes,
        "limit_bytes": limit_bytes or 0,
    }
    return ";".join(f"{name}={value}" for name, value in members.items())


def cudnn_device(spec: GpuSpec, *, cuda_major: int) -> dict[str, object]:
    """The device of a query to cuDNN without a device: all keys of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.

    cuDNN's choice depends on the compute capability first; for compute capability 7.5 and for depthwise convolutions
    also on the limits of an SM (seen with 9.20). csrc/cudnn.c makes the same text for a process on the null GPU.

    Raises:
        NullGpuError: as `device_text`.
    """
    architecture = _architecture(spec)
    major, minor = spec.compute_capability
    return {
        "cudaDeviceId": 0,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 1000 * cuda_major,
        "runtimeVer": 1000 * cuda_major,
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": spec.sm_count,
        "smCountOrigin": 0,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": architecture.shared_optin_kib * 1024,
        "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": architecture.blocks,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": architecture.threads,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "smClockRateKHz": _CLOCK_KHZ,
        "memClockRateKHz": _CLOCK_KHZ,
        "memoryBusWidth": _BUS_BITS,
        "l2CacheSize": _L2_MIB * 2**20,
        "totalGlobalMem": spec.usable_bytes,
        "deviceName": spec.nvml_names[0] if spec.nvml_names else spec.name,
    }


def _architecture(spec: GpuSpec) -> _Architecture:
    found = _ARCHITECTURES.get(spec.compute_capability)
    if found is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in _ARCHITECTURES)
        major, minor = spec.compute_capability
        raise NullGpuError(f"no limits of compute capability {major}.{minor} are known (known: {known})")
    return found
