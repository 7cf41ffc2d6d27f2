"""What the daemon calls. Each protocol is proven by one contract test that every implementation must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cotenant.core.estimate import Estimate
from cotenant.core.events import AttemptExited, AttemptStarted, Journaled
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.snapshot import ManagerSnapshot


class GpuBackend(Protocol):
    """Reads the GPUs of this machine. Calls may block for milliseconds; never called from two threads at once."""

    name: str

    def inventory(self) -> tuple[Gpu, ...]:
        """The GPUs, in display order.

        Raises:
            BackendError: they cannot be listed.
        """
        ...

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """One sample of every GPU that can be read, by UUID. A GPU that fails is left out, not invented."""
        ...

    def close(self) -> None:
        """Release the driver; the backend is not used again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRef:
    """Names one attempt for an engine."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredAttempt:
    """What an engine knows of an attempt after a restart: the events it would have reported, None for those to come."""

    ref: AttemptRef
    started: AttemptStarted | None
    exited: AttemptExited | None


class Engine(Protocol):
    """Starts, watches and stops attempts, here or elsewhere. An attempt never changes after its launch."""

    name: str

    def start(self, on_event: Callable[[AttemptStarted | AttemptExited], None]) -> None:
        """Begin to watch; a thread of the engine calls `on_event` once for each event."""
        ...

    def launch(self, spec: JobSpec, attempt: int, placement: Placement, env: Mapping[str, str]) -> None:
        """Start an attempt; a second call for the same job and attempt starts nothing.

        `env` overrides `spec.env`. The call returns before the attempt is known to run.

        Raises:
            BackendError: it cannot be started, for the reason given; nothing is left behind.
        """
        ...

    def stop(self, ref: AttemptRef, *, reason: str, grace_s: float) -> None:
        """Send SIGTERM to an attempt, and kill what is left of it after `grace_s`; ignored if it is unknown or over."""
        ...

    def recover(self, refs: Iterable[AttemptRef]) -> tuple[RecoveredAttempt, ...]:
        """After a restart: what became of these attempts. One without any event never started, and never will."""
        ...

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """The attempts that processes of this machine belong to; other processes are absent.

        An engine that runs attempts on other machines returns nothing.
        """
        ...

    def log_paths(self, ref: AttemptRef) -> tuple[str, str]:
        """Paths of files that this machine can read, with the attempt's standard output and standard error."""
        ...

    def close(self) -> None:
        """Stop watching. Attempts go on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """What an estimator is asked.

    Attributes:
        command: argv as it would be run; `python train.py --batch 32`, or a script with arguments.
        gpu: name of a device profile, e.g. `A100-40GB`.
        timeout_s: wall-clock limit.
        declared_bytes: what the user declared, for the estimator of that name.
        gpus: how many GPUs the command sees, all of the model `gpu`.
        synthetic_data: data to be made up where it is absent, as `tracing.loading.wishes` reads them.
        lengths: of which samples batches are made where lengths vary, as `tracing.loading.wishes` reads it, or a
            file of lengths; empty: the first.
        online: whether the script may use the network; `no_sandbox`: whether what it writes is kept.
    """

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: str
    timeout_s: float = 120.0
    declared_bytes: int | None = None
    gpus: int = 1
    synthetic_data: tuple[str, ...] = ()
    sequence_lengths: str = ""
    allow_network: bool = False
    no_sandbox: bool = False


class Estimator(Protocol):
    """Turns a workload into an `Estimate`."""

    name: str
    version: str

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate.

        Raises:
            TraceError, UsageError: it cannot say; the message tells why.
        """
        ...


class Journal(Protocol):
    """Keeps events. One writer."""

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:
        """Kept when it returns; on disk then if `durable`, else no later than what is next durable, or `sync`.

        Raises:
            JournalError: nothing of `events` was kept (a full disk, say).
        """
        ...

    def sync(self) -> None:
        """Bring to the disk what was kept without.

        Raises:
            JournalError: the disk failed.
        """
        ...

    def replay(self) -> Iterator[Journaled]:
        """All events ever kept, oldest first."""
        ...

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, Iterator[Journaled]]:
        """What is known without reading all events, and the events after that; all where nothing is."""
        ...

    def events_since_snapshot(self) -> int:
        """How many events `resume` would give.

        Raises:
            JournalError: they cannot be counted.
        """
        ...

    def save_snapshot(self, folded: ManagerSnapshot) -> None:
        """Keep what all events so far amount to; the events stay.

        Raises:
            JournalError: it was not kept; what was kept before it still is.
        """
        ...

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job, oldest first.

        Raises:
            JournalError: they cannot be read.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...
