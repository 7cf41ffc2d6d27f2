"""Samples the GPUs once per tick, and right after an attempt ended, in a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from cotenant.core.errors import CotenantError
from cotenant.core.events import AttemptSample, RepartitionEnded, RepartitionStarted, ServerSampled
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.core.mig import MigGpu
from cotenant.core.ports import AttemptRef, Engine, GpuBackend
from cotenant.daemon.services.base import StepRate
from cotenant.gpus.mig_control import MigControl, RepartitionResult, repartition

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
        mig: MigControl | None = None,
        ended: Callable[[RepartitionEnded], None] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._engine = engine
        self._tick_s = tick_s
        self._now = now
        self._emit = emit
        self._observe = observe
        self._inventory_every = inventory_every
        self._mig = mig
        self._ended = ended
        self._requests: queue.SimpleQueue[tuple[RepartitionStarted, bool]] = queue.SimpleQueue()
        self._mig_gpus: tuple[MigGpu, ...] = ()
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

    def repartition(self, started: RepartitionStarted, is_resumed: bool) -> None:
        """Give a GPU in MIG mode other instances soon; `ended` gets the result. No sample is taken meanwhile.

        It happens in the thread that samples, because no backend is called from two threads at once.
        """
        self._requests.put((started, is_resumed))
        self.poke()

    def close(self) -> None:
        """Stop; waits up to 5 s for a sample in progress, since a driver may hang."""
        self._closing.set()
        self._poked.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._repartition_requested()
            self._emit(self.read())
            self._closing.wait(min(MIN_INTERVAL_S, self._tick_s))
            self._poked.wait(max(0.0, self._tick_s - MIN_INTERVAL_S))
            self._poked.clear()

    def _repartition_requested(self) -> None:
        while not self._requests.empty():
            started, is_resumed = self._requests.get()
            if self._mig is None:
                result = RepartitionResult((), "this daemon has no access to MIG layouts")
            else:
                try:
                    before, after = started.before, started.after
                    result = repartition(self._mig, started.gpu_uuid, before, after, is_resumed=is_resumed)
                except Exception as error:  # a bug must not end the thread that samples
                    logger.exception("a repartition failed")
                    result = RepartitionResult((), f"{type(error).__name__}: {error}")
            self._readings = 0  # the next sample needs a new inventory
            ended = RepartitionEnded(
                at_s=self._now(),
                cause="repartition" if not is_resumed else "restart",
                job_id=started.job_id,
                gpu_uuid=started.gpu_uuid,
                gpu_index=started.gpu_index,
                layout=result.layout,
                error=result.error,
            )
            self._ended(ended)

    def _inventory(self) -> tuple[Gpu, ...]:
        """The GPUs, and those in MIG mode; a layout that cannot be read is changed by nobody."""
        self._mig_gpus = ()
        if self._mig is not None:
            try:
                self._mig_gpus = self._mig.gpus()
            except CotenantError as error:
                logger.warning("MIG layouts cannot be read", extra={"fields": {"why": error.message}})
        return self._backend.inventory()

    def read(self) -> ServerSampled:
        """Take one sample, with the memory of each attempt."""
        at_s = self._now()
        samples: Mapping[str, GpuSample] = {}
        observed: tuple[AttemptSample, ...] = ()
        try:
            if self._failing or self._readings % self._inventory_every == 0:
                self._gpus = self._inventory()
            samples = self._backend.sample(at_s)
            if {gpu.uuid for gpu in self._gpus} != samples.keys():  # a host came or went, or a GPU fails
                self._gpus = self._inventory()
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
        return ServerSampled(
            at_s=at_s, cause="monitor", gpus=self._gpus, samples=samples, observed=observed, mig_gpus=self._mig_gpus
        )

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
