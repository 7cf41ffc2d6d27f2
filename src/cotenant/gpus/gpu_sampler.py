"""Samples one GPU every 50 ms while a job runs, from a thread of its own."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from cotenant import gpus
from cotenant.core.errors import CotenantError
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.ports import GpuBackend
from cotenant.core.stats import mean_of_known

SAMPLE_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUsage:
    """What one job used; None where the driver does not report it.

    Attributes:
        peak_process_bytes, end_process_bytes: memory of the job's processes: the peak, and after the last step while
            they still held everything.
        peak_device_bytes, end_device_bytes: memory of the whole GPU, less what was in use before the job started.
        smact, smocc, drama, gract, tensor, fp32, pcie_tx_bytes_s, pcie_rx_bytes_s, power_w: means over the timed steps;
            sm_clock_mhz: the median; energy_j: over the same time.
    """

    samples: int = 0
    peak_process_bytes: int | None = None
    end_process_bytes: int | None = None
    peak_device_bytes: int | None = None
    end_device_bytes: int | None = None
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    gract: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    pcie_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None


class GpuSampler:
    """Samples one GPU between `start` and `stop`; a `with` block does both.

    `visible`: value of CUDA_VISIBLE_DEVICES with which processes use this GPU; None if there is no other GPU.
    """

    def __init__(
        self,
        backend: GpuBackend,
        gpu: Gpu,
        *,
        every_s: float = SAMPLE_INTERVAL_S,
        visible: str | None = None,
    ) -> None:
        self.gpu = gpu
        self.visible = visible
        self._backend = backend
        self._every_s = every_s
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[GpuSample] = []
        self.idle_bytes: int | None = None

    def start(self) -> None:
        """Record the memory in use now as idle, and begin to sample."""
        self._stopped.clear()
        first = self.read()
        self.idle_bytes = None if first is None else first.used_bytes
        self._samples = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> GpuSampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.stop()

    def read(self) -> GpuSample | None:
        """Take one sample now; it counts among the others."""
        with self._lock:
            try:
                sample = self._backend.sample(time.time()).get(self.gpu.uuid)
            except Exception:  # noqa: BLE001 (a failing sample must not end a campaign)
                sample = None
        if sample is not None:
            self._samples.append(sample)
        return sample

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        """The samples since the last `start`, oldest first."""
        return tuple(self._samples)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self.read()

    def usage(self, pids: Iterable[int], end: GpuSample | None, window_s: tuple[float, float] | None) -> MeasuredUsage:
        """What the processes `pids` used; activity and power within `window_s`, seconds since the epoch."""
        wanted = set(pids)
        held = [_held(sample, wanted) for sample in self._samples]
        device = [sample.used_bytes for sample in self._samples if sample.used_bytes is not None]
        begin_s, finish_s = window_s or (0.0, 0.0)
        timed = [sample for sample in self._samples if begin_s <= sample.at_s <= finish_s]
        energies = [sample.energy_j for sample in timed if sample.energy_j is not None]
        clocks = [sample.sm_clock_mhz for sample in timed if sample.sm_clock_mhz is not None]
        return MeasuredUsage(
            samples=len(self._samples),
            peak_process_bytes=max((size for size in held if size is not None), default=None),
            end_process_bytes=None if end is None else _held(end, wanted),
            peak_device_bytes=self._above_idle(max(device, default=None)),
            end_device_bytes=None if end is None else self._above_idle(end.used_bytes),
            smact=mean_of_known(sample.smact for sample in timed),
            smocc=mean_of_known(sample.smocc for sample in timed),
            drama=mean_of_known(sample.drama for sample in timed),
            gract=mean_of_known(sample.gract for sample in timed),
            tensor=mean_of_known(sample.tensor for sample in timed),
            fp32=mean_of_known(sample.fp32 for sample in timed),
            pcie_tx_bytes_s=mean_of_known(sample.pcie_tx_bytes_s for sample in timed),
            pcie_rx_bytes_s=mean_of_known(sample.pcie_rx_bytes_s for sample in timed),
            power_w=mean_of_known(sample.power_w for sample in timed),
            energy_j=energies[-1] - energies[0] if len(energies) > 1 else None,
            sm_clock_mhz=statistics.median(clocks) if clocks else None,
        )

    def _above_idle(self, used_bytes: int | None) -> int | None:
        return None if used_bytes is None or self.idle_bytes is None else used_bytes - self.idle_bytes


def open_sampler(visible: str | None = None, *, every_s: float = SAMPLE_INTERVAL_S) -> tuple[GpuSampler | None, str]:
    """(A sampler of one GPU, ""); (None, the reason) where the driver has no such GPU.

    `visible`: CUDA_VISIBLE_DEVICES; its first entry counts (an index, a UUID or the beginning of one). Without it, the
    driver's first GPU.
    """
    try:
        backend = gpus.create("nvml")
        known = backend.inventory()
    except CotenantError as error:
        return None, error.message
    wanted = (visible or "").split(",")[0].strip()
    found = [gpu for gpu in known if not wanted or wanted == str(gpu.index) or gpu.uuid.startswith(wanted)]
    if not found:
        return None, f"the driver lists no GPU `{wanted}`" if wanted else "the driver lists no GPU"
    # With one GPU a job needs no CUDA_VISIBLE_DEVICES, and runs in the environment as it is.
    names = found[0].uuid if len(known) > 1 else None
    return GpuSampler(backend, found[0], every_s=every_s, visible=names), ""


def driver_version() -> str | None:
    """Version of the NVIDIA driver; None if there is none."""
    with suppress(Exception):
        import pynvml

        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    return None


def _held(sample: GpuSample, pids: set[int]) -> int | None:
    """Bytes of `pids` in a sample; None if the driver names none of them, as inside containers with a pid namespace."""
    sizes = [
        process.used_bytes for process in sample.processes if process.pid in pids and process.used_bytes is not None
    ]
    return sum(sizes) if sizes else None
