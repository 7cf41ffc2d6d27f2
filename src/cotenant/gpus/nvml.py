"""NVIDIA GPUs through NVML: memory, processes, power, energy, and SM activity where the GPU has it.

SM activity comes from NVML's GPU performance monitoring (GPM, Hopper and later). Older GPUs give None: `utilization` is
the share of time in which any kernel ran, not SM activity. A value that cannot be read is None; a GPU that cannot be
read is left out.

A MIG instance has no power meter. Its power and energy are assumed to be the GPU's, multiplied by the instance's share
of the SMs, whatever each instance does. The share of SMs that belong to no instance is charged to no job.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.core.stats import mean
from cotenant.gpus.mig_nvml import NvmlMig

if TYPE_CHECKING:
    from cotenant.core.ports import GpuBackend
    from cotenant.gpus import BackendOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

MIB = 2**20

_GPM_METRICS = {
    "gract": "GRAPHICS_UTIL",
    "smact": "SM_UTIL",
    "smocc": "SM_OCCUPANCY",
    "drama": "DRAM_BW_UTIL",
    "tensor": "ANY_TENSOR_UTIL",
    "fp32": "FP32_UTIL",
    "pcie_tx_bytes_s": "PCIE_TX_PER_SEC",
    "pcie_rx_bytes_s": "PCIE_RX_PER_SEC",
}
"""Fields of a sample, and the GPM metrics that give them: percent, and MiB per second (nvml.h, `nvmlGpmMetricId_t`).

Before Hopper there is only `nvmlDeviceGetPcieThroughput`, which blocks for 20 ms for each direction: it is not called.
"""


def create(_: BackendOptions) -> GpuBackend:
    """NVML, with SM activity from DCGM where the driver has none and DCGM runs.

    Raises:
        BackendError: pynvml is missing, or no driver answers.
    """
    backend = NvmlBackend()
    if backend.has_activity or shutil.which("dcgmi") is None:
        return backend
    from cotenant.gpus.dcgm import DcgmActivityBackend, DcgmReader

    try:
        return DcgmActivityBackend(backend, DcgmReader())
    except BackendError as error:
        logger.warning("no SM activity from DCGM", extra={"fields": {"why": error.message, "hint": error.hint}})
        return backend


@dataclass(slots=True, kw_only=True)
class _Device:
    """A GPU or a MIG instance.

    Attributes:
        parent: handle of the GPU that holds this MIG instance, or None.
        gpm: the last GPM sample, which the next one is compared with; None if GPM is not supported.
        seen_us: time stamp of the newest sample of a process' SM time; 0 before the first.
        sm_share: its part of the SMs that the GPU has for instances, 0..1; 1 for a whole GPU, None where not known.
    """

    gpu: Gpu
    handle: Any
    parent: Any = None
    gpu_instance_id: int | None = None
    gpm: Any = None
    seen_us: int = 0
    sm_share: float | None = 1.0


class NvmlBackend:
    """Reads the GPUs of this machine through the driver.

    Raises:
        BackendError: pynvml is missing, or no driver answers.
    """

    name = "nvml"

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise BackendError(
                "the Python package `nvidia-ml-py` is missing", hint="install it, or simulate"
            ) from error
        self._nvml: Any = pynvml
        self._devices: tuple[_Device, ...] | None = None
        self.mig = NvmlMig(pynvml)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise BackendError(f"NVML does not start: {error}", hint="is the NVIDIA driver loaded?") from error

    def inventory(self) -> tuple[Gpu, ...]:
        """The GPUs, read by every call; a GPU in MIG mode is replaced by its instances."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise BackendError(f"NVML cannot list the GPUs: {error}") from error
        self._forget_devices()
        self._devices = tuple(device for index in range(count) for device in self._devices_at(index))
        return tuple(device.gpu for device in self._devices)

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """One sample of each GPU of the last inventory; a GPU whose memory cannot be read is left out."""
        if self._devices is None:
            with contextlib.suppress(BackendError):
                self.inventory()
        samples = {device.gpu.uuid: self._sample(device, at_s) for device in self._devices or ()}
        return {uuid: sample for uuid, sample in samples.items() if sample is not None}

    @property
    def has_activity(self) -> bool:
        """Whether the driver has the SM activity of every GPU (Hopper and later)."""
        if self._devices is None:
            with contextlib.suppress(BackendError):
                self.inventory()
        return all(device.gpm is not None for device in self._devices or ())

    def close(self) -> None:
        """Release the driver."""
        self._forget_devices()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    # -- inventory

    def _devices_at(self, index: int) -> Iterable[_Device]:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            name = _text(nvml.nvmlDeviceGetName(handle))
            total_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError:
            return ()  # one broken GPU must not hide the others
        if self._read(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) == nvml.NVML_DEVICE_MIG_ENABLE:
            return self._instances(handle, uuid, index)
        gpu = Gpu(uuid=uuid, index=index, name=name, memory_total_bytes=total_bytes)
        return (_Device(gpu=gpu, handle=handle, gpm=self._first_gpm(handle)),)

    def _instances(self, parent: Any, parent_uuid: str, index: int) -> Iterable[_Device]:
        nvml = self._nvml
        gpu_sms = self._gpu_sms(parent)
        for position in range(self._read(lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(parent))) or 0):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, position)
                gpu = Gpu(
                    uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    index=index,
                    name=_text(nvml.nvmlDeviceGetName(handle)),
                    memory_total_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                    mig_parent=parent_uuid,
                    mig_profile=self._profile(handle),
                )
                instance = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
            except nvml.NVMLError:
                continue  # no instance here: indices run up to the possible number of instances, not the existing one
            yield _Device(
                gpu=gpu,
                handle=handle,
                parent=parent,
                gpu_instance_id=instance,
                gpm=self._first_gpm(parent, instance),
                sm_share=self._sm_share(handle, gpu_sms),
            )

    def _gpu_sms(self, parent: Any) -> int | None:
        """SMs of the largest instance that this GPU could have; None if the driver knows no profile."""
        profiles = range(getattr(self._nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0))
        sms = [self._profile_sms(parent, profile) for profile in profiles]
        return max((count for count in sms if count is not None), default=None)

    def _profile_sms(self, parent: Any, profile: int) -> int | None:
        nvml = self._nvml
        return self._read(lambda: int(nvml.nvmlDeviceGetGpuInstanceProfileInfo(parent, profile).multiprocessorCount))

    def _sm_share(self, handle: Any, gpu_sms: int | None) -> float | None:
        own = self._read(lambda: int(self._nvml.nvmlDeviceGetAttributes(handle).multiprocessorCount))
        return None if not own or not gpu_sms else min(1.0, own / gpu_sms)

    def _profile(self, handle: Any) -> str | None:
        """E.g. `3g.20gb`, from the instance's name: NVML has no call for it, but the name ends in `MIG 3g.20gb`."""
        name = _text(self._read(lambda: self._nvml.nvmlDeviceGetName(handle)) or "")
        return name.rpartition("MIG ")[2] if "MIG " in name else None

    def _forget_devices(self) -> None:
        for device in self._devices or ():
            if device.gpm is not None:
                self._free(device.gpm)
        self._devices = None

    # -- sampling

    def _sample(self, device: _Device, at_s: float) -> GpuSample | None:
        nvml, handle = self._nvml, device.handle
        memory = self._read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if memory is None:
            return None
        activity = self._activity(device)
        metered = handle if device.parent is None else device.parent
        power_mw = self._read(lambda: nvml.nvmlDeviceGetPowerUsage(metered))
        energy_mj = self._read(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(metered))
        utilization_percent = self._read(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return GpuSample(
            at_s=at_s,
            # `used` of nvmlMemory_t leaves out what the driver reserves, since R510; no job can have that either.
            used_bytes=int(memory.total) - int(memory.free),
            utilization=None if utilization_percent is None else utilization_percent / 100,
            power_w=_scaled(power_mw, device.sm_share),
            energy_j=_scaled(energy_mj, device.sm_share),
            processes=self._processes(device),
            sm_clock_mhz=self._read(lambda: float(nvml.nvmlDeviceGetClockInfo(metered, nvml.NVML_CLOCK_SM))),
            **activity,
        )

    def _processes(self, device: _Device) -> tuple[GpuProcess, ...]:
        """Compute processes and MPS clients, each once: NVML has a list for each, and a client may be in both."""
        nvml, handle = self._nvml, device.handle
        running = self._read(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        clients = self._read(lambda: nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)) or []
        found: dict[int, int | None] = {}
        for process in [*running, *clients]:
            sizes = [size for size in (found.get(process.pid), process.usedGpuMemory) if size is not None]
            found[int(process.pid)] = max(sizes) if sizes else None
        times = self._sm_times(device) if found and device.parent is None else None
        return tuple(
            GpuProcess(pid=pid, used_bytes=used, sm=None if times is None else times.get(pid, 0.0))
            for pid, used in sorted(found.items())
        )

    def _sm_times(self, device: _Device) -> dict[int, float] | None:
        """Share of the time since the last call in which each process had kernels on the SMs; None if not known.

        The driver leaves out processes that had none. The first answer is not used: it covers an unknown time.
        Source: NVML API reference, `nvmlDeviceGetProcessUtilization`; not supported on MIG instances.
        """
        nvml, first = self._nvml, device.seen_us == 0
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device.handle, device.seen_us)
        except (nvml.NVMLError, AttributeError) as error:
            nothing_ran = getattr(error, "value", None) == getattr(nvml, "NVML_ERROR_NOT_FOUND", 6)
            return {} if nothing_ran and not first else None
        # The buffer that the driver fills may hold older entries, and unused ones with values above 100 %.
        new = [sample for sample in samples if sample.timeStamp > device.seen_us and sample.smUtil <= 100]
        device.seen_us = max((int(sample.timeStamp) for sample in new), default=device.seen_us)
        percents: dict[int, list[int]] = {}
        for sample in new:
            percents.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        return None if first else {pid: mean(values) / 100 for pid, values in percents.items()}

    def _activity(self, device: _Device) -> dict[str, float | None]:
        """The activity fields of a sample, since the last call; empty where the driver has none."""
        if device.gpm is None:
            return {}
        owner = device.parent if device.parent is not None else device.handle
        current = self._gpm_sample(owner, device.gpu_instance_id)
        if current is None:
            return {}
        before, device.gpm = device.gpm, current
        values = self._read(lambda: self._gpm_values(before, current))
        self._free(before)
        return values or {}

    def _gpm_values(self, before: Any, current: Any) -> dict[str, float | None]:
        nvml = self._nvml
        wanted = {name: getattr(nvml, f"NVML_GPM_METRIC_{metric}") for name, metric in _GPM_METRICS.items()}
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = before, current
        for position, metric in enumerate(wanted.values()):
            request.metrics[position].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        return {name: _gpm_value(name, request.metrics[position]) for position, name in enumerate(wanted)}

    def _first_gpm(self, handle: Any, gpu_instance_id: int | None = None) -> Any:
        support = self._read(lambda: self._nvml.nvmlGpmQueryDeviceSupport(handle))
        supported = support is not None and bool(support.isSupportedDevice)
        return self._gpm_sample(handle, gpu_instance_id) if supported else None

    def _gpm_sample(self, handle: Any, gpu_instance_id: int | None) -> Any:
        nvml = self._nvml
        sample = self._read(nvml.nvmlGpmSampleAlloc)
        if sample is None:
            return None
        try:
            if gpu_instance_id is None:
                nvml.nvmlGpmSampleGet(handle, sample)
            else:
                nvml.nvmlGpmMigSampleGet(handle, gpu_instance_id, sample)
        except nvml.NVMLError:
            self._free(sample)
            return None
        return sample

    def _free(self, sample: Any) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlGpmSampleFree(sample)

    def _read(self, reader: Callable[[], T]) -> T | None:
        """The result of `reader`; None if this GPU, driver or library does not have it."""
        try:
            return reader()
        except (self._nvml.NVMLError, AttributeError):
            return None


def _gpm_value(name: str, metric: Any) -> float | None:
    """A value from GPM as the field `name` of a sample has it; None if it could not be read."""
    value = float(metric.value)
    if metric.nvmlReturn != 0 or not math.isfinite(value):
        return None
    if name.endswith("_bytes_s"):
        return max(0.0, value) * MIB
    return min(1.0, max(0.0, value / 100))


def _scaled(thousandths: int | None, share: float | None) -> float | None:
    # `nvmlDeviceGetPowerUsage` counts milliwatts, `nvmlDeviceGetTotalEnergyConsumption` millijoules (nvml.h).
    return None if thousandths is None or share is None else thousandths / 1000 * share


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
