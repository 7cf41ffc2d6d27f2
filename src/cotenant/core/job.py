"""Jobs: the specification, the attempts, the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from cotenant.core.estimate import Estimate
from cotenant.core.placement import Placement

SharingRequest = Literal["auto", "time", "mps", "mig"]
"""How a job is to share a GPU: as the policy decides, by time slicing, as an MPS client, on its own MIG instance."""

SlurmEnv = Literal["none", "job", "all"]
"""Which of Slurm's variables a job gets: none, those that say what the job is, or also those that launchers act on."""

CheckpointSignal = Literal["TERM", "INT", "USR1", "USR2"]
"""The signal after which a job saves its state. Source of the choice: what launchers and Slurm's users use."""

Outcome = Literal["completed", "failed", "oom", "timeout", "cancelled", "lost"]

ExitReason = Literal["exited", "not-started", "timeout", "stopped", "lost", "never-ran"]
"""How an attempt ended, see `AttemptExit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTask:
    """The position of a job in an array, which people write `ARRAY_INDEX`.

    Attributes:
        array_id: id of the array's first job, the same for all its jobs.
        index: as requested, e.g. one of 1..10.
        limit: tasks of the array that may run at once, or None.
    """

    array_id: int
    index: int
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a job is to run and needs. It is replaced as a whole when the submitter updates a pending job.

    Attributes:
        command: argv; the first word is looked up on the PATH of `env`.
        user, uid: the submitter, as the kernel identified it (SO_PEERCRED).
        declared_bytes: GPU memory per GPU that the submitter declared, or None to have it estimated.
        estimator: name of the estimator, or None for the daemon's default.
        run_anyway: run it even if an import or its syntax fails in the estimate, which otherwise ends the job.
        priority: larger runs earlier.
        time_limit_s: the attempt is stopped after this long, or None.
        max_slowdown: longest step time that the submitter accepts, as a multiple of the time alone; or None.
        after, after_any, after_failed: jobs that must have completed, ended, ended without completing, first.
        singleton: waits until no older job of this user and this name is left.
        begin_at_s: not started before this time, or None.
        hold: held from submission until it is released.
        array: its position in an array, or None.
        requeue: a lost attempt, e.g. after the machine went down, is followed by another.
        max_attempts: attempts allowed for a job that runs out of memory.
        stdout_path, stderr_path: absolute; None lets the daemon choose under its state folder.
        source: where the spec came from, e.g. `/home/ann/bert.rad`, for people.
        retries: further attempts after failures other than OOM; see `scheduling.recovery`.
        time_slice_s: after this long, if others wait, SIGTERM to checkpoint, then requeue last; or None.
        notify: run or called at its end, and when it is idle: a command for `sh -c`, or an `http(s)://` URL; or None.
        sharing: how the job may share a GPU with others; see `SharingRequest`.
        progress: how its output shows its steps: `tqdm` or a regular expression, see `runner/progress.py`; or None.
        umask: its file mode creation mask; None for the daemon's.
        limits: (soft, hard) limits of the submitting process by their names in getrlimit(2), -1 for unlimited; None for
            the daemon's.
        stdin_path: file, or unix socket to connect to, that each attempt reads as stdin; None for /dev/null.
        slurm_env: which of Slurm's environment variables it gets beside ours; see `engines/slurm_environment.py`.
        model_summary: file with a printed summary of its model, absolute; its memory is estimated from that where the
            command cannot be traced. `batch_size`: samples of a step, for that estimate.
        checkpoint_signal: name of the signal, e.g. `TERM`, after which the job saves its state and exits with code 85,
            to continue in its next attempt; None: it cannot. `checkpoint_grace_s`: how long that may take.
    """

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    user: str
    uid: int
    name: str
    gpus: int = 1
    declared_bytes: int | None = None
    estimator: str | None = None
    exclusive: bool = False
    priority: int = 0
    time_limit_s: float | None = None
    max_slowdown: float | None = None
    after: tuple[int, ...] = ()
    max_attempts: int = 4
    stdout_path: str | None = None
    stderr_path: str | None = None
    source: str | None = None
    after_any: tuple[int, ...] = ()
    after_failed: tuple[int, ...] = ()
    singleton: bool = False
    begin_at_s: float | None = None
    hold: bool = False
    array: ArrayTask | None = None
    requeue: bool = False
    retries: int = 0
    time_slice_s: float | None = None
    notify: str | None = None
    progress: str | None = None
    sharing: SharingRequest = "auto"
    umask: int | None = None
    limits: Mapping[str, tuple[int, int]] | None = None
    run_anyway: bool = False
    slurm_env: SlurmEnv = "job"
    stdin_path: str | None = None
    model_summary: str | None = None
    batch_size: int | None = None
    checkpoint_signal: CheckpointSignal | None = None
    checkpoint_grace_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """Identity of a process that a reused pid cannot fake: pid, start time in clock ticks, boot id."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OomEvidence:
    """Evidence that GPU memory ran out, from the runner and the daemon.

    Attributes:
        exception: the process ended with a traceback whose final exception is an out-of-memory error.
        message: the output contains such words, but not as the final exception: a hint, no proof.
        tried_bytes: the allocation that failed, from the framework's message.
        in_use_bytes: memory of the process at that time, from the framework's message.
        free_bytes: minimum free memory on the attempt's GPUs near the end, from samples.
        total_bytes: memory of the GPU that `free_bytes` was read on.
    """

    exception: bool = False
    message: bool = False
    tried_bytes: int | None = None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptExit:
    """How an attempt ended.

    Attributes:
        exit_code: of the process itself; None when a signal ended it or it never started.
        signal: number of the signal that ended it, or None.
        reason: `exited`, `not-started` (e.g. no such command), `timeout`, `stopped`, `lost` (unknown), or `never-ran`
            (the daemon ended between decision and launch, or the disk was full, and the engine guarantees that it
            never will).
        detail: a sentence for people, e.g. why it could not start.
        mps_fault: its MPS server had failed, which ends all clients, whichever of them caused it.
        stopping_s: from the first signal of a stop to its end; None if it was not stopped, or that is not known.
        elapsed_s: from its start to its end, by a clock that nobody can set; None if that is not known.
    """

    exit_code: int | None
    signal: int | None
    reason: ExitReason
    detail: str = ""
    oom: OomEvidence = field(default_factory=OomEvidence)
    mps_fault: bool = False
    stopping_s: float | None = None
    elapsed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """What was measured of an attempt beside one set of neighbors.

    Attributes:
        neighbor_ids: ids of the other jobs on the same GPU; empty where it was alone.
        seconds: total time, without warmups, whose activity says nothing of what follows.
        smact, smocc, drama: means of the whole GPU over that time; None where not read.
        steps_hz: mean steps per second of this attempt; None where it reports none.
        slowdown: step time as a multiple of the step time alone; None where that was not known at the end.
        gpu_memory_bytes: memory of the GPU; None where not known.
    """

    neighbor_ids: tuple[int, ...]
    seconds: float
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    steps_hz: float | None = None
    slowdown: float | None = None
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Resource usage of one attempt, summed over time and GPUs; see `scheduling/telemetry/usage.py`.

    Attributes:
        gpu_s: seconds in which it was placed on a GPU, summed over GPUs, whether or not it held memory there.
        gpu_share_s: the same, but a second that n attempts share counts 1/n for each.
        byte_s: memory held, in bytes times seconds.
        sm_s: its own SM activity times seconds; `sm_known_s`: seconds for which that is known.
        energy_j: its share of the energy; `metered_s`: seconds for which that is known.
        idle_energy_j: how much of `energy_j` is its share of the GPU's idle power.
    """

    gpu_s: float = 0.0
    gpu_share_s: float = 0.0
    byte_s: float = 0.0
    sm_s: float = 0.0
    sm_known_s: float = 0.0
    energy_j: float = 0.0
    idle_energy_j: float = 0.0
    metered_s: float = 0.0

    def __add__(self, other: ResourceUsage) -> ResourceUsage:
        return ResourceUsage(**{name: getattr(self, name) + getattr(other, name) for name in USAGE_FIELDS})

    def __mul__(self, share: float) -> ResourceUsage:
        return ResourceUsage(**{name: getattr(self, name) * share for name in USAGE_FIELDS})

    @property
    def mean_bytes(self) -> float | None:
        """Mean memory on each GPU; None if it never held any."""
        return self.byte_s / self.gpu_s if self.byte_s else None

    @property
    def smact(self) -> float | None:
        """Mean of its own SM activity; None where it could not be attributed."""
        return self.sm_s / self.sm_known_s if self.sm_known_s else None

    @property
    def power_w(self) -> float | None:
        """Mean of its share of a GPU's power; None where energy was not read."""
        return self.energy_j / self.metered_s if self.metered_s else None


USAGE_FIELDS = tuple(field_.name for field_ in fields(ResourceUsage))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """An attempt that held more than its promise on a GPU where a neighbor ran out of memory.

    Attributes:
        uid: the user whose job it is.
        observed_bytes: the most that samples showed there shortly before.
    """

    job_id: int
    attempt: int
    uid: int
    gpu_uuid: str
    promised_bytes: int
    observed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What an attempt that exceeded its promise cost a neighbor.

    Attributes:
        victim_id, victim_uid: the job that ran out of memory within its promise, and its user.
        observed_bytes: what the attempt that is charged held on the GPU.
        usage: share of the usage that the victim lost; None if it was in no sample.
    """

    at_s: float
    victim_id: int
    victim_uid: int
    gpu_uuid: str
    observed_bytes: int
    usage: ResourceUsage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a job. A retry is the next attempt of the same job.

    Attributes:
        number: from 1.
        process: identity of its runner, once it has started.
        peak_observed_bytes: peak of observed memory, by GPU UUID.
        stop_reason: why it is being stopped, or None.
        spells: what it was seen to do, by neighbors; known at its end.
        usage: its resource usage; known at its end, None where it was in no sample.
        overruns: neighbors beyond their promise when it ran out of memory.
        charges: what it cost neighbors when it was beyond its own.
        idle_since_s: since when it has computed nothing on its GPUs, or None; `idle_s`: how long earlier idle times
            lasted, in all.
        startup_s: from its start until samples showed it on a GPU; known at its end.
    """

    number: int
    placement: Placement
    placed_at_s: float
    started_at_s: float | None = None
    process: ProcessId | None = None
    peak_observed_bytes: Mapping[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    co_runs: tuple[CoRun, ...] = ()
    ended_at_s: float | None = None
    exit: AttemptExit | None = None
    usage: ResourceUsage | None = None
    overruns: tuple[Overrun, ...] = ()
    charges: tuple[Charge, ...] = ()
    idle_since_s: float | None = None
    idle_s: float = 0.0
    startup_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Waits for a placement. `reason` is set after a failed attempt, e.g. `retry after out of memory`."""

    since_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Waits for a release by a user."""

    since_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """Placed; its runner has not reported yet."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Its runner has reported and has not ended."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Has ended. `code` is the exit code where the outcome is `failed` (128 + N for signal N)."""

    outcome: Outcome
    at_s: float
    code: int | None = None
    reason: str = ""


JobState = Queued | Held | Starting | Running | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: the spec, its state, and its history.

    Attributes:
        estimate: None until it is known; `estimate_error` is why it never will be.
        min_memory_bytes: from attempts that ran out of memory: the next one needs more than this. 0 at first.
        exclusive_retry: the next attempt must not share its GPUs.
        uncounted_attempts: attempts before the last requeue, which do not count against `spec.max_attempts`.
    """

    id: int
    spec: JobSpec
    submitted_at_s: float
    state: JobState
    estimate: Estimate | None = None
    estimate_error: str | None = None
    attempts: tuple[Attempt, ...] = ()
    min_memory_bytes: int = 0
    exclusive_retry: bool = False
    uncounted_attempts: int = 0

    @property
    def last_attempt(self) -> Attempt | None:
        """The newest attempt, or None."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_done(self) -> bool:
        """Whether it has ended for good."""
        return isinstance(self.state, Done)
