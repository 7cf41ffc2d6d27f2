"""Samples the GPUs once per tick, and right after an attempt ended, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from cotenant.core.errors import CotenantError
from cotenant.core.events import AttemptSample, ServerSampled
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.core.ports import AttemptRef, Engine, GpuBackend
from cotenant.daemon.services.base import StepRate

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.05
"""Between two samples, however often attempts end."""
INVENTORY_EVERY = 60
"""Samples between two inventories (MIG layouts change); a failed sample is followed by one as well."""


class Monitor:
    """Passes a `ServerSampled` to `emit` for every sample; GPUs that could not be read are absent from it.

    No exception of a backend ends the thread: a GPU that cannot be read admits no job. `observe`
    returns the step rate of an attempt if there is a new one.
    """

    def __init__(
        self,
        backend: GpuBackend,
        engine: Engine,
        *,
        tick_s: float,
        now: Callable[[], float],
        emit: Callable[[ServerSampled], None],
        observe: Callable[[AttemptRef], StepRate | None] = lambda _: None,
        inventory_every: int = INVENTORY_EVERY,
    ) -> None:
        self._backend = backend
        self._engine = engine
        self._tick_s = tick_s
        self._now = now
        self._emit = emit
        self._observe = observe
        self._inventory_every = inventory_every
        self._gpus = backend.inventory()
        self._readings = 0
        self._failing = False
        self._poked = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The newest inventory."""
        return self._gpus

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def poke(self) -> None:
        """Take a sample soon."""
        self._poked.set()

    def close(self) -> None:
        """Stop; waits up to 5 s for a sample in progress, since a driver may hang."""
        self._closing.set()
        self._poked.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._emit(self.read())
            self._closing.wait(min(MIN_INTERVAL_S, self._tick_s))
            self._poked.wait(max(0.0, self._tick_s - MIN_INTERVAL_S))
            self._poked.clear()

    def read(self) -> ServerSampled:
        """Take one sample, with the memory of each attempt."""
        at_s = self._now()
        samples: Mapping[str, GpuSample] = {}
        observed: tuple[AttemptSample, ...] = ()
        try:
            if self._failing or self._readings % self._inventory_every == 0:
                self._gpus = self._backend.inventory()
            samples = self._backend.sample(at_s)
            if {gpu.uuid for gpu in self._gpus} != samples.keys():  # a host came or went, or a GPU fails
                self._gpus = self._backend.inventory()
            observed = self._attribute(samples)
            self._log_change(failing=not all(gpu.uuid in samples for gpu in self._gpus), why="a GPU could not be read")
        except CotenantError as error:
            samples = {}
            self._log_change(failing=True, why=error.message)
        except Exception:  # after a bug in a backend, the last good sample must not look fresh forever
            samples = {}
            logger.exception("sampling the GPUs failed")
            self._failing = True
        self._readings += 1
        return ServerSampled(at_s=at_s, cause="monitor", gpus=self._gpus, samples=samples, observed=observed)

    def _attribute(self, samples: Mapping[str, GpuSample]) -> tuple[AttemptSample, ...]:
        """Memory of each attempt on each GPU; other processes are left out."""
        pids = {process.pid for sample in samples.values() for process in sample.processes}
        owners = self._engine.owners(pids) if pids else {}
        held: dict[tuple[AttemptRef, str], list[GpuProcess]] = {}
        for uuid, sample in samples.items():
            for process in sample.processes:
                owner = owners.get(process.pid)
                if owner is not None and process.used_bytes is not None:
                    held.setdefault((owner, uuid), []).append(process)
        rates = {ref: self._observe(ref) for ref in {ref for ref, _ in held}}
        return tuple(_observed(ref, uuid, processes, rates[ref]) for (ref, uuid), processes in held.items())

    def _log_change(self, *, failing: bool, why: str) -> None:
        """Log the first failure and the recovery, not every failed sample."""
        if failing and not self._failing:
            logger.warning("some GPUs cannot be read and admit no jobs", extra={"fields": {"why": why}})
        if self._failing and not failing:
            logger.info("GPUs can be read again")
        self._failing = failing


def _observed(ref: AttemptRef, uuid: str, processes: Sequence[GpuProcess], rate: StepRate | None) -> AttemptSample:
    """Memory, SM time and step rate of one attempt on one GPU."""
    times = [process.sm for process in processes if process.sm is not None]
    return AttemptSample(
        job_id=ref.job_id,
        attempt=ref.attempt,
        gpu_uuid=uuid,
        used_bytes=sum(process.used_bytes or 0 for process in processes),
        sm=sum(times) if len(times) == len(processes) else None,
        steps_hz=None if rate is None else rate.steps_hz,
        steps_s=None if rate is None else rate.span_s,
    )
