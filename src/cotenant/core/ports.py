"""Protocols that the daemon depends on. Each has one contract test, which every implementation must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from cotenant.core.trace import CompiledCode  # the codec reads the types of `TraceOptions`

if TYPE_CHECKING:  # each traced script and each estimate would import all events and jobs, in 20 ms of CPU time
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


SignalTarget = Literal["programs", "command", "all"]
"""Which processes of an attempt get a signal: all but a shell that runs the others, the command only, or all."""


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

    def stop(self, ref: AttemptRef, *, reason: str, grace_s: float, checkpoint: bool = False) -> None:
        """Send SIGTERM to an attempt, and kill what is left of it after `grace_s`; ignored if it is unknown or over.

        With `checkpoint` its programs get `JobSpec.checkpoint_signal` instead, if it has one.
        """
        ...

    def pause(self, ref: AttemptRef) -> None:
        """Suspend the processes of an attempt; ignored if it is unknown or over. `stop` works on a paused attempt."""
        ...

    def resume(self, ref: AttemptRef) -> None:
        """Let a paused attempt continue; ignored if it is not paused. It may have been paused by an earlier daemon."""
        ...

    def send_signal(self, ref: AttemptRef, number: int, target: SignalTarget, *, uid: int) -> int:
        """Signal those processes of an attempt that the user `uid` could signal; returns how many.

        0 if it is unknown, over, or has not started its command.
        """
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
class TraceOptions:
    """How a script is traced.

    Attributes:
        steps: optimizer steps to trace.
        cudnn_version: of the job, e.g. 91900 for 9.19.0; it decides between attention kernels.
        synthetic_data: samples in place of missing data, as `tracing.data.data_options` reads them.
        sequence_lengths: which samples batches are made of where lengths vary, as `tracing.data.data_options` reads it,
            or a file of lengths; empty: the first ones.
        sandbox: whether changes of files go to a scratch folder; false: the script changes files for real.
        allow_network: whether the script may use the network.
        compiled_code: what runs in place of code that is compiled on a GPU; see `CompiledCode`.
        null_packages: packages that are not installed and whose calls do nothing; `trace_script` finds out which.
    """

    steps: int = 3
    cudnn_version: int = 91900
    synthetic_data: tuple[str, ...] = ()
    sequence_lengths: str = ""
    sandbox: bool = True
    allow_network: bool = False
    compiled_code: CompiledCode = "auto"
    null_packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """A workload to estimate.

    Attributes:
        command: argv as it would be run; `python train.py --batch 32`, or a script with arguments.
        gpu: name of a GPU in `gpu_specs`, e.g. `A100-40GB`.
        timeout_s: wall-clock limit.
        declared_bytes: memory that the user declared, for the estimator `declared`.
        gpus: how many GPUs the command sees, all of type `gpu`.
        trace: how the script is traced; an estimator may set its own `steps`.
        model_summary: file with a printed summary of the model, for the estimator `summary`, and where the command
            cannot be traced. `batch_size`: samples of a step; `tokens`: of a sample, where the summary does not say.
    """

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: str
    timeout_s: float = 120.0
    declared_bytes: int | None = None
    gpus: int = 1
    trace: TraceOptions = field(default_factory=TraceOptions)
    model_summary: str | None = None
    batch_size: int | None = None
    tokens: int | None = None


class Estimator(Protocol):
    """Estimates the GPU memory of a workload."""

    name: str
    version: str

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate.

        Raises:
            TraceError, UsageError: there is none, for the reason in the message.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedEvent:
    """A journaled event that replays leave out, or replace, because it could not be applied.

    Attributes:
        seq: its number in the journal.
        at_s: when it was set aside.
        type, job_id: of the event; empty and 0 if its row is gone.
        cause: who set it aside.
        error: why, in one line; `trace` is the traceback.
        is_replaced: replays read another event in its place.
    """

    seq: int
    at_s: float
    type: str
    job_id: int
    cause: str
    error: str
    trace: str
    is_replaced: bool = False


class EventReader(Protocol):
    """Events, oldest first. `seq` is the number of the event that was read last."""

    seq: int

    def __iter__(self) -> Iterator[Journaled]:
        """Itself."""
        ...

    def __next__(self) -> Journaled:
        """The next event.

        Raises:
            UnreadableEvent: it cannot be read.
        """
        ...


class Journal(Protocol):
    """Stores events, append-only. There is one writer."""

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:
        """Append all of `events` or none.

        With `durable` they are on disk when it returns, else after the next durable append or `sync`.

        Raises:
            JournalError: none of them was appended, e.g. because the disk is full.
        """
        ...

    def sync(self) -> None:
        """Bring to the disk what was appended with `durable=False`.

        Raises:
            JournalError: the disk failed.
        """
        ...

    def replay(self) -> EventReader:
        """All events, oldest first, without those that were set aside."""
        ...

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, EventReader]:
        """The newest snapshot and the events after it; None and all events without one."""
        ...

    def quarantine(self, event: Journaled | int, *, at_s: float, error: str, trace: str) -> None:
        """Leave an event, or the one of that number, out of all later replays. Its row stays.

        Raises:
            JournalError: there is no such event, or this cannot be written.
        """
        ...

    def quarantined(self, job_id: int | None = None) -> list[QuarantinedEvent]:
        """The events that were set aside, of one job or of all."""
        ...

    def release_reserve(self) -> bool:
        """Give up the disk space that is set aside for cancellations and ends; False if there is none."""
        ...

    def restore_reserve(self) -> bool:
        """Set the space aside again; False if the disk has not enough."""
        ...

    def is_writable(self) -> bool:
        """Whether the journal can be written now, and the space be set aside: by writing, but no event."""
        ...

    def prune(self, job_ids: Iterable[int]) -> None:
        """Drop the environments of done jobs; their events stay.

        Raises:
            JournalError: it cannot be written.
        """
        ...

    def pruned_jobs(self) -> frozenset[int]:
        """The jobs whose environments were dropped."""
        ...

    def size_bytes(self) -> int:
        """How much of the disk the events take.

        Raises:
            JournalError: the file cannot be read.
        """
        ...

    def events_since_snapshot(self) -> int:
        """How many events `load_snapshot` would give.

        Raises:
            JournalError: they cannot be counted.
        """
        ...

    def save_snapshot(self, state: ManagerSnapshot) -> None:
        """Save the state after all events so far; the events stay.

        Raises:
            JournalError: it was not saved; the snapshot before is still there.
        """
        ...

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job, oldest first.

        Raises:
            JournalError: they cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...
