"""Events in, commands out: all that crosses the boundary of the pure `Manager`.

The store saves `Journaled` events: replaying them in an empty `Manager` restores its state. `ServerSampled` and `Tick`
are not saved; the decisions they lead to are (`AttemptPlaced`).

Renaming a class or a field here, or in `job`, `estimate` and `placement`, needs an entry in `store/event_format.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotenant.core.estimate import Estimate
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import AttemptExit, CoRun, JobSpec, Overrun, ProcessId, ResourceUsage
from cotenant.core.mig import MigGpu
from cotenant.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    at_s: float
    cause: str
    job_id: int
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateReady:
    """The result of an estimator: an estimate, or None and the error as a sentence.

    Attributes:
        is_fatal: the script fails with this error wherever it runs: an import or its syntax.
    """

    at_s: float
    cause: str
    job_id: int
    estimate: Estimate | None
    error: str | None = None
    is_fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlaced:
    """The decision to start an attempt; saved before the engine launches it."""

    at_s: float
    cause: str
    job_id: int
    attempt: int
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    at_s: float
    cause: str
    job_id: int
    attempt: int
    process: ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptExited:
    at_s: float
    cause: str
    job_id: int
    attempt: int
    exit: AttemptExit
    peak_observed_bytes: Mapping[str, int]
    co_runs: tuple[CoRun, ...] = ()
    usage: ResourceUsage | None = None
    overruns: tuple[Overrun, ...] = ()
    startup_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptIdle:
    """A running attempt computes nothing on its GPUs, since `idle_since_s`; see `scheduling/idle_watch.py`."""

    at_s: float
    cause: str
    job_id: int
    attempt: int
    idle_since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBusy:
    """An attempt that was idle since `idle_since_s` computes again."""

    at_s: float
    cause: str
    job_id: int
    attempt: int
    idle_since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    at_s: float
    cause: str
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld:
    at_s: float
    cause: str
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    at_s: float
    cause: str
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdated:
    """A pending job has changed: `spec` replaces the old one."""

    at_s: float
    cause: str
    job_id: int
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequeued:
    """A job returns to the queue: a finished one at once, a running one after it was stopped."""

    at_s: float
    cause: str
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionStarted:
    """The decision to give an empty GPU in MIG mode other instances; saved before any of them is changed.

    Attributes:
        job_id: the first waiting job that gets one of them.
        before, after: the layouts, as `core.mig.MigInstance.text` writes instances.
    """

    at_s: float
    cause: str
    job_id: int
    gpu_uuid: str
    gpu_index: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionEnded:
    """A repartition is over: the GPU has the instances of `layout` now. `error`: why these are not what was wanted."""

    at_s: float
    cause: str
    job_id: int
    gpu_uuid: str
    gpu_index: int
    layout: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSample:
    """Memory and activity of one attempt's processes on one GPU.

    Attributes:
        sm: their share of the SMs' time, 0..1; None where the driver does not report it per process.
        steps_hz: steps per second of the attempt, if it reports steps, over the last `steps_s` seconds, or since the
            last sample where that is None.
    """

    job_id: int
    attempt: int
    gpu_uuid: str
    used_bytes: int
    sm: float | None = None
    steps_hz: float | None = None
    steps_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSampled:
    """Samples of all GPUs. A GPU absent from `samples` could not be read this time.

    `mig_gpus`: the GPUs in MIG mode, where their layouts may be changed.
    """

    at_s: float
    cause: str
    gpus: tuple[Gpu, ...]
    samples: Mapping[str, GpuSample]
    observed: tuple[AttemptSample, ...]
    mig_gpus: tuple[MigGpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at_s: float
    cause: str


Journaled = (
    JobSubmitted
    | EstimateReady
    | AttemptPlaced
    | AttemptStarted
    | AttemptExited
    | JobCancelled
    | JobHeld
    | JobReleased
    | JobUpdated
    | JobRequeued
    | AttemptIdle
    | AttemptBusy
    | RepartitionStarted
    | RepartitionEnded
)
Event = Journaled | ServerSampled | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEstimate:
    at_s: float
    cause: str
    job_id: int
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start an attempt. `placed` is the event to save first; the manager has already applied it."""

    at_s: float
    cause: str
    spec: JobSpec
    placed: AttemptPlaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop an attempt: SIGTERM, then after `grace_s` SIGKILL to its whole process tree.

    Attributes:
        checkpoint: the job is to save its state: its programs get its own signal first.
    """

    at_s: float
    cause: str
    job_id: int
    attempt: int
    grace_s: float
    checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Suspend the processes of an attempt, which keep their memory."""

    at_s: float
    cause: str
    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Let the processes of an attempt continue; no effect if it is not paused."""

    at_s: float
    cause: str
    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportIdleness:
    """Save `event`, which the manager has already applied, and notify the user if the attempt is idle."""

    at_s: float
    cause: str
    spec: JobSpec
    event: AttemptIdle | AttemptBusy


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Give a GPU in MIG mode the instances `started.after`. `started`, already applied, is to be saved first.

    `is_resumed`: it was saved by an earlier daemon, which may have changed some instances already.
    """

    at_s: float
    cause: str
    started: RepartitionStarted
    is_resumed: bool = False


Command = RequestEstimate | Launch | Stop | Pause | Resume | ReportIdleness | Repartition
