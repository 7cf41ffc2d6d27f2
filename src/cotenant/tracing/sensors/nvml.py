"""NVML for the simulated GPUs: the functions of the module `pynvml`, once a script imports it.

Without a driver its `nvmlInit` fails. Memory in use is what the trace has allocated. Functions that are not here fail
as they do without a driver. Source: pynvml.py of nvidia-ml-py 13; NVML API reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
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


def patches(context: PatchContext) -> list[Entry]:
    """The functions of `pynvml` that are known."""
    functions = nvml_functions(context.gpu, lambda index: int(context.recorder.live_bytes[index]))

    def expand(_: ModuleType) -> Iterator[Patch]:
        yield from patch_attributes(
            "pynvml", functions, phase=Phase.LIBRARIES, reason="There is no driver.", source="pynvml.py, `nvmlInit`",
            missing="old versions",
        )  # fmt: skip

    return [
        ImportPatch(
            target="pynvml", phase=Phase.LIBRARIES, expand=expand,
            reason="Scripts read the simulated GPU's memory and sensors through it.", source="pynvml.py, `nvmlInit`",
        )
    ]  # fmt: skip


def nvml_functions(gpu: FakeGpuSpec, live_bytes: Callable[[int], int]) -> dict[str, Any]:
    """Functions by name; a handle is the index of a GPU. `live_bytes`: in use on a GPU."""
    total = gpu.nvml_total_bytes or gpu.total_bytes

    def handle(index: int) -> int:
        if not 0 <= int(index) < gpu.count:
            import pynvml

            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(index)

    def memory_info(handle: int, version: object = None) -> SimpleNamespace:
        used = min(total, live_bytes(handle))
        return SimpleNamespace(total=total, free=total - used, used=used, reserved=0, version=version)

    def by_uuid(uuid: str | bytes) -> int:
        text = uuid.decode() if isinstance(uuid, bytes) else uuid
        return handle(next((index for index in range(gpu.count) if uuid_of(index) == text), -1))

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    answers = {
        "nvmlInit": None,
        "nvmlInitWithFlags": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": gpu.count,
        "nvmlDeviceGetName": gpu.name,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
        "nvmlDeviceGetTemperature": TEMPERATURE_C,
        "nvmlDeviceGetPowerUsage": POWER_W * 1000,
        "nvmlDeviceGetEnforcedPowerLimit": POWER_LIMIT_W * 1000,
        "nvmlDeviceGetPowerManagementLimit": POWER_LIMIT_W * 1000,
        "nvmlDeviceGetTotalEnergyConsumption": 0,
        "nvmlDeviceGetClockInfo": CLOCK_MHZ,
        "nvmlDeviceGetMaxClockInfo": CLOCK_MHZ,
        "nvmlDeviceGetPerformanceState": 0,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetCudaComputeCapability": tuple(gpu.capability),
        "nvmlSystemGetDriverVersion": DRIVER_VERSION,
        "nvmlSystemGetNVMLVersion": f"13.{DRIVER_VERSION}",
        "nvmlSystemGetCudaDriverVersion": _CUDA_DRIVER,
        "nvmlSystemGetCudaDriverVersion_v2": _CUDA_DRIVER,
    }
    processes = ("Compute", "Graphics", "MPSCompute")
    empty = [f"nvmlDeviceGet{kind}RunningProcesses{version}" for kind in processes for version in ("", "_v2", "_v3")]
    return {
        **{name: constant(value) for name, value in answers.items()},
        **{name: lambda *_, **__: [] for name in empty},
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetHandleByPciBusId": lambda bus_id: handle(int(str(bus_id).split(":")[-2], 16) - 1),
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetMinorNumber": lambda handle: handle,
        "nvmlDeviceGetUUID": uuid_of,
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=bus_id_of(handle), bus=1 + handle, device=0),
    }
