"""NVML for the simulated GPUs: the C functions below `pynvml` and `py3nvml`, once a script imports one of them.

Everything that is built upon these modules (nvitop, gpustat, deepspeed) calls the library by name, with structs to
fill. Memory in use is what the trace has allocated; no process is listed. A function that is not here returns
`NVML_ERROR_NOT_SUPPORTED`, as of a feature that the GPU lacks, such as a fan; one that would change the GPU lacks the
permission. Source: pynvml.py of nvidia-ml-py 13, `_nvmlGetFunctionPointer`; NVML API reference.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cotenant.tracing.patches.registry import Entry, ImportPatch, Patch, PatchContext, Phase, patch_attributes
from cotenant.tracing.sensors.nvidia_smi import (
    CLOCK_MHZ,
    DRIVER_VERSION,
    POWER_LIMIT_W,
    POWER_W,
    TEMPERATURE_C,
    bus_id_of,
    uuid_of,
)

if TYPE_CHECKING:
    from cotenant.tracing.device.cuda_api import FakeGpuSpec

_CUDA_DRIVER = 13000
_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND = 0, 2, 3, 4, 6
"""Of `nvmlReturn_t`."""
_ERRORS = {
    _SUCCESS: b"Success", _INVALID_ARGUMENT: b"Invalid Argument", _NOT_SUPPORTED: b"Not Supported",
    _NO_PERMISSION: b"Insufficient Permissions", _NOT_FOUND: b"Not Found",
}  # fmt: skip
_ARCHITECTURES = {(7, 0): 5, (7, 5): 6, (8, 0): 7, (8, 6): 7, (8, 9): 8, (9, 0): 9, (10, 0): 10, (12, 0): 10}
"""`nvmlDeviceArchitecture_t` by compute capability."""
_PCIE_GENERATION, _PCIE_WIDTH = 4, 16
_MODULES = ("pynvml", "py3nvml.py3nvml")


def patches(context: PatchContext) -> list[Entry]:
    """How the modules of Python find the functions of the library."""
    library = SimulatedNvml(context.gpu, lambda index: int(context.recorder.live_bytes[index]))
    common: dict[str, Any] = {"phase": Phase.LIBRARIES, "source": "pynvml.py, `_nvmlGetFunctionPointer`"}

    def expand(module: ModuleType) -> Iterator[Patch]:
        yield from patch_attributes(
            module.__name__,
            {"_nvmlGetFunctionPointer": library.function, "_LoadNvmlLibrary": lambda: None, "nvmlLib": library},
            reason="There is no driver.", missing="old versions", **common,
        )  # fmt: skip

    return [
        ImportPatch(
            target=module, expand=expand,
            reason="Scripts read the simulated GPU's memory and sensors through it.", **common,
        )
        for module in _MODULES
    ]  # fmt: skip


class SimulatedNvml:
    """Functions by their names in C. A handle is an address: the index of its GPU, plus one.

    `live_bytes`: in use on a GPU.
    """

    def __init__(self, gpu: FakeGpuSpec, live_bytes: Callable[[int], int]) -> None:
        self._gpu = gpu
        self._live_bytes = live_bytes
        self._functions = {**self._of_system(), **self._of_device()}

    def function(self, name: str) -> Callable[..., Any]:
        """The function of this name, or of its version for other structs."""
        found = self._functions.get(name) or self._functions.get(name.rpartition("_v")[0])
        if found is not None:
            return found
        changes = name.startswith(("nvmlDeviceSet", "nvmlDeviceReset", "nvmlDeviceClear"))
        return lambda *_: _NO_PERMISSION if changes else _NOT_SUPPORTED

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return self.function(name)

    def _of_system(self) -> dict[str, Callable[..., Any]]:
        return {
            **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), lambda *_: _SUCCESS),
            "nvmlErrorString": lambda code: _ERRORS.get(_value(code), b"Unknown Error"),
            "nvmlSystemGetDriverVersion": lambda text, *_: _write(text, DRIVER_VERSION),
            "nvmlSystemGetNVMLVersion": lambda text, *_: _write(text, f"13.{DRIVER_VERSION}"),
            "nvmlSystemGetCudaDriverVersion": lambda number: _write(number, _CUDA_DRIVER),
            "nvmlSystemGetProcessName": lambda *_: _NOT_FOUND,
            "nvmlDeviceGetCount": lambda number: _write(number, self._gpu.count),
            "nvmlDeviceGetHandleByIndex": lambda index, handle: self._find(int(_value(index)), handle),
            "nvmlDeviceGetHandleByUUID": lambda text, handle: self._find_by(uuid_of, text, handle),
            "nvmlDeviceGetHandleByPciBusId": lambda text, handle: self._find_by(bus_id_of, text, handle),
        }

    def _of_device(self) -> dict[str, Callable[..., int]]:
        major, minor = self._gpu.capability
        numbers = {
            "TemperatureThreshold": 90,
            "PowerUsage": POWER_W * 1000,
            "EnforcedPowerLimit": POWER_LIMIT_W * 1000,
            "PowerManagementLimit": POWER_LIMIT_W * 1000,
            "PowerManagementDefaultLimit": POWER_LIMIT_W * 1000,
            "TotalEnergyConsumption": 0,
            "ClockInfo": CLOCK_MHZ,
            "MaxClockInfo": CLOCK_MHZ,
            "ApplicationsClock": CLOCK_MHZ,
            "Temperature": TEMPERATURE_C,
            "PerformanceState": 0,
            "PowerState": 0,
            "PersistenceMode": 1,
            "ComputeMode": 0,
            "DisplayMode": 0,
            "DisplayActive": 0,
            "Architecture": _ARCHITECTURES.get((major, minor), 0xFFFFFFFF),
            "MaxPcieLinkGeneration": _PCIE_GENERATION,
            "CurrPcieLinkGeneration": _PCIE_GENERATION,
            "MaxPcieLinkWidth": _PCIE_WIDTH,
            "CurrPcieLinkWidth": _PCIE_WIDTH,
            "PcieThroughput": 0,
            "TotalEccErrors": 0,
            "CurrentClocksThrottleReasons": 1,  # idle
            "MultiGpuBoard": 0,
        }
        pairs = {
            "CudaComputeCapability": (major, minor),
            "MigMode": (0, 0),
            "EccMode": (1, 1),
            "EncoderUtilization": (0, 0),
            "DecoderUtilization": (0, 0),
            "PowerManagementLimitConstraints": (POWER_LIMIT_W * 1000, POWER_LIMIT_W * 1000),
        }
        processes = ("ComputeRunning", "GraphicsRunning", "MPSComputeRunning")
        found: dict[str, Callable[..., int]] = {
            **{name: _returning(number) for name, number in numbers.items()},
            **{name: _returning(*both) for name, both in pairs.items()},
            **{f"{kind}Processes": lambda handle, count, *_: _write(count, 0) for kind in processes},
            "Name": lambda handle, text, *_: _write(text, self._gpu.name),
            "UUID": lambda handle, text, *_: _write(text, uuid_of(_index(handle))),
            "Index": lambda handle, number: _write(number, _index(handle)),
            "MinorNumber": lambda handle, number: _write(number, _index(handle)),
            "MemoryInfo": self._memory,
            "BAR1MemoryInfo": self._bar1_memory,
            "UtilizationRates": lambda handle, rates: _fill(rates, gpu=0, memory=0),
            "TemperatureV": lambda handle, reading: _fill(reading, temperature=TEMPERATURE_C),
            "PciInfo": _pci_info,
            "CpuAffinity": _cpu_affinity,
        }
        return {
            **{f"nvmlDeviceGet{name}": function for name, function in found.items()},
            "nvmlDeviceSetCpuAffinity": lambda *_: _SUCCESS,
            "nvmlDeviceClearCpuAffinity": lambda *_: _SUCCESS,
        }

    def _find(self, index: int, handle: Any) -> int:
        if not 0 <= index < self._gpu.count:
            return _INVALID_ARGUMENT
        address = ctypes.c_void_p(index + 1)
        ctypes.memmove(ctypes.addressof(_target(handle)), ctypes.addressof(address), ctypes.sizeof(address))
        return _SUCCESS

    def _find_by(self, name_of: Callable[[int], str], text: Any, handle: Any) -> int:
        wanted = bytes(_value(text)).decode()
        found = next((index for index in range(self._gpu.count) if name_of(index).endswith(wanted)), None)
        return _NOT_FOUND if found is None else self._find(found, handle)

    def _memory(self, handle: Any, info: Any) -> int:
        total = self._gpu.nvml_total_bytes or self._gpu.total_bytes
        used = min(total, self._live_bytes(_index(handle)))
        return _fill(info, total=total, free=total - used, used=used, reserved=0)

    def _bar1_memory(self, handle: Any, info: Any) -> int:
        total = self._gpu.nvml_total_bytes or self._gpu.total_bytes
        return _fill(info, bar1Total=total, bar1Free=total, bar1Used=0)


def _returning(*numbers: int) -> Callable[..., int]:
    """A function that writes numbers to its last arguments."""

    def call(*args: Any) -> int:
        for number, target in zip(numbers, args[-len(numbers) :], strict=True):
            _write(target, number)
        return _SUCCESS

    return call


def _pci_info(handle: Any, info: Any) -> int:
    index = _index(handle)
    name = bus_id_of(index).encode()
    return _fill(info, busId=name, busIdLegacy=name[-12:], domain=0, bus=1 + index, device=0)


def _cpu_affinity(handle: Any, words: Any, mask: Any) -> int:
    """The CPUs of this process, which are near to every GPU."""
    target = _target(mask)
    bits = ctypes.sizeof(target) * 8 // int(_value(words))
    for cpu in os.sched_getaffinity(0):
        if cpu < bits * int(_value(words)):
            target[cpu // bits] |= 1 << cpu % bits
    return _SUCCESS


def _index(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 1) - 1


def _value(argument: Any) -> Any:
    return getattr(argument, "value", argument)


def _target(argument: Any) -> Any:
    """What `byref` refers to, or the buffer itself."""
    return getattr(argument, "_obj", argument)


def _write(argument: Any, value: str | int) -> int:
    _target(argument).value = value.encode() if isinstance(value, str) else value
    return _SUCCESS


def _fill(argument: Any, **fields: Any) -> int:
    """Write those fields that the struct has: versions of one differ."""
    struct = _target(argument)
    for name, value in fields.items():
        if hasattr(struct, name):
            setattr(struct, name, value)
    return _SUCCESS
