"""A fake `pynvml` without a driver, with errors where a test wants them.

Install with `monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(...))`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    """Same name and attribute as pynvml's."""

    value = 3


class NotFound(NVMLError):
    """`NVML_ERROR_NOT_FOUND`."""

    value = 6


@dataclass
class FakeGpu:
    """A GPU or a MIG instance. `broken`: calls that fail, without the prefix `nvmlDeviceGet`; `*` for all."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total_bytes: int = 81559 * MIB
    free_bytes: int = 81000 * MIB
    broken: set[str] = field(default_factory=set)
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    mps_clients: list[tuple[int, int | None]] = field(default_factory=list)
    mig: list[FakeGpu | None] | None = None
    gpm: tuple[float, float, float] | None = None  # percent: SM, occupancy, DRAM
    gpm_others: dict[int, float] = field(default_factory=dict)  # GPM metric -> percent, or MiB per second
    gpu_instance_id: int = 0
    sm_samples: list[tuple[int, int, int]] = field(default_factory=list)  # pid, time stamp in us, percent
    energy_mj: int = 7_000_500
    sms: int = 0  # of a MIG instance
    instance_sms: dict[int, int] = field(default_factory=dict)  # GPU instance profile -> SMs


class FakeDriver:
    """The module `pynvml`."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_ERROR_NOT_FOUND = 6
    NVML_GPU_INSTANCE_PROFILE_COUNT = 18
    NVML_GPM_METRIC_GRAPHICS_UTIL = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_SM_OCCUPANCY = 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10
    NVML_GPM_METRIC_FP32_UTIL = 12
    NVML_GPM_METRIC_PCIE_TX_PER_SEC = 20
    NVML_GPM_METRIC_PCIE_RX_PER_SEC = 21
    NVML_CLOCK_SM = 1
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, *gpus: FakeGpu, no_driver: bool = False) -> None:
        self.gpus = gpus
        self.no_driver = no_driver
        self.samples_open = 0
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.no_driver:
            raise NVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.no_driver:
            raise NVMLError("Driver Not Loaded")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self._checked(self.gpus[index], "HandleByIndex")

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return self._checked(gpu, "UUID").uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:  # noqa: N802
        return self._checked(gpu, "Name").name.encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        self._checked(gpu, "MemoryInfo")
        # As nvmlDeviceGetMemoryInfo_v2: memory reserved by the driver is in neither `used` nor `free`.
        return SimpleNamespace(total=gpu.total_bytes, free=gpu.free_bytes, used=0)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:  # noqa: N802
        self._checked(gpu, "PowerUsage")
        return 312_500

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:  # noqa: N802
        self._checked(gpu, "TotalEnergyConsumption")
        return gpu.energy_mj

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, clock: int) -> int:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        self._checked(gpu, "ClockInfo")
        return 1980

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:  # noqa: N802
        self._checked(gpu, "UtilizationRates")
        return SimpleNamespace(gpu=87, memory=12)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        self._checked(gpu, "ComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        self._checked(gpu, "MPSComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.mps_clients]

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, since_us: int) -> list[Any]:  # noqa: N802
        self._checked(gpu, "ProcessUtilization")
        found = [
            SimpleNamespace(pid=pid, timeStamp=at_us, smUtil=percent)
            for pid, at_us, percent in gpu.sm_samples
            if at_us > since_us
        ]
        if not found:
            raise NotFound("Not Found")
        return found

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        self._checked(gpu, "MigMode")
        return [0 if gpu.mig is None else 1, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        return len(gpu.mig or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        instance = (gpu.mig or [])[index]
        if instance is None:
            raise NVMLError("Not Found")
        return instance

    def nvmlDeviceGetGpuInstanceId(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.gpu_instance_id

    def nvmlDeviceGetAttributes(self, gpu: FakeGpu) -> Any:  # noqa: N802
        self._checked(gpu, "Attributes")
        return SimpleNamespace(multiprocessorCount=gpu.sms)

    def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: FakeGpu, kind: int) -> Any:  # noqa: N802
        self._checked(gpu, "GpuInstanceProfileInfo")
        if kind not in gpu.instance_sms:
            raise NVMLError("Not Supported")
        return SimpleNamespace(multiprocessorCount=gpu.instance_sms[kind])

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> Any:  # noqa: N802
        self._checked(gpu, "Gpm")
        return SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self.samples_open += 1
        return SimpleNamespace(of=None, instance=None)

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        assert sample.of != "freed"
        sample.of = "freed"
        self.samples_open -= 1

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> None:  # noqa: N802
        sample.of = self._checked(gpu, "GpmSample")

    def nvmlGpmMigSampleGet(self, gpu: FakeGpu, instance: int, sample: Any) -> None:  # noqa: N802
        sample.of, sample.instance = self._checked(gpu, "GpmSample"), instance

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)])

    def nvmlGpmMetricsGet(self, request: Any) -> None:  # noqa: N802
        assert request.version == 1
        assert request.sample1 is not request.sample2
        gpu = request.sample2.of
        assert isinstance(gpu, FakeGpu)
        assert request.sample1.of is gpu
        values = {**dict(zip((2, 3, 10), gpu.gpm or (), strict=True)), **gpu.gpm_others}
        for metric in request.metrics[: request.numMetrics]:
            metric.value = values.get(metric.metricId, 0.0)
            metric.nvmlReturn = int("GpmMetric" in gpu.broken or metric.metricId not in values)

    def _checked(self, gpu: FakeGpu, call: str) -> FakeGpu:
        if gpu.broken & {call, "*"}:
            raise NVMLError("GPU is lost" if "*" in gpu.broken else "Not Supported")
        return gpu
