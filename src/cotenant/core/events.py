"""Events in, commands out: everything that crosses the border of the pure `Manager`.

`Journaled` events are what the store keeps: folding them over an empty `Manager` gives its state again.
`ServerSampled` and `Tick` are not kept; what was decided because of them is (`AttemptPlaced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotenant.core.estimate import Estimate
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import AttemptExit, CoRun, JobSpec, ProcessId, ResourceUsage
from cotenant.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    at_s: float
    cause: str
    job_id: int
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateReady:
    """An estimator answered: an estimate, or None and the error as a sentence."""

    at_s: float
    cause: str
    job_id: int
    estimate: Estimate | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlaced:
    """The decision to start an attempt; kept before the engine is asked to."""

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
    """A job that waits is asked for anew: `spec` takes the place of the old one."""

    at_s: float
    cause: str
    job_id: int
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequeued:
    """A job goes back to the queue: one that is over at once, one that runs after it was stopped."""

    at_s: float
    cause: str
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSample:
    """What the processes of one attempt hold and do on one GPU.

    Attributes:
        sm: their part of the SMs' time, 0..1; None where the driver does not tell it apart.
        steps_hz: steps a second of the attempt, if it tells, over the last `steps_s` seconds; None: since the last
            reading.
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
    """A reading of all GPUs. A GPU absent from `samples` could not be read this time."""

    at_s: float
    cause: str
    gpus: tuple[Gpu, ...]
    samples: Mapping[str, GpuSample]
    observed: tuple[AttemptSample, ...]


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
    """Start an attempt. `placed` is the event to keep first; the manager has already applied it."""

    at_s: float
    cause: str
    spec: JobSpec
    placed: AttemptPlaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop an attempt: a polite signal, then, after `grace_s`, the end of its whole process tree."""

    at_s: float
    cause: str
    job_id: int
    attempt: int
    grace_s: float


Command = RequestEstimate | Launch | Stop
