"""An attempt on the GPUs of a simulation, from its launch to its end."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import Resident
from cotenant.core.job import Attempt, AttemptExit, Job, OomEvidence, Overrun
from cotenant.core.placement import Placement
from cotenant.core.units import MiB
from cotenant.scheduling.checkpoints import EXIT_SAVED
from cotenant.scheduling.overrun import have_room, is_overrun
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.scheduling.recovery import after_exit
from cotenant.scheduling.telemetry.co_run import CoRunAccumulator
from cotenant.sim.interference import TrueActivity
from cotenant.sim.trace import JobProfile

if TYPE_CHECKING:
    from cotenant.sim.engine.sim_gpu import SimGpu

ALLOCATION_STEP = 1 / 32
"""A job allocates this share of what it still needs at once, at least 64 MiB, until an allocation fails. So the
evidence of an OOM says little more than how much memory was free, as in reality."""

_UNKNOWN = GpuActivity()

_attempt: Callable[..., Attempt] = fast_constructor(Attempt)
_resident: Callable[..., Resident] = fast_constructor(Resident)


class RunningAttempt:
    """An attempt that has been placed and has not ended.

    Attributes:
        number: of the job in the trace.
        work_s: its work after the launch delay, in seconds alone on the GPUs it has.
        done_s: work done at `since_s`; since then it runs at `speed`.
        relative_speed: of the slowest GPU it has, relative to the GPU type that the run times of the trace refer to.
        network_factor: what the network between its GPUs leaves of its speed.
        visible_s: the first reading that shows it; infinite before it works.
        milestone_s: the work at which it grows or ends.
        version: of its newest event in the queue; older events are stale.
        is_moved: it has saved its state, so that its job goes on elsewhere.
        is_paused: its processes are suspended: it holds its memory and makes no progress.
        busy: share of time in which a GPU that it has alone is busy.
        predicted: what the history knows of its workload by now; None without a history.
        co_runs: what its first GPU showed in each group of jobs until `co_run_since_s`; None without a history.
    """

    __slots__ = (
        "activity",
        "activity_id",
        "busy",
        "co_run_since_s",
        "co_runs",
        "delay_s",
        "done_s",
        "gpus",
        "held_bytes",
        "is_active",
        "is_full_size",
        "is_moved",
        "is_paused",
        "job",
        "milestone_s",
        "network_factor",
        "number",
        "placed_s",
        "placement",
        "predicted",
        "profile",
        "relative_speed",
        "resident",
        "since_s",
        "speed",
        "version",
        "visible_s",
        "work_s",
    )

    def __init__(self, number: int, job: Job, placement: Placement, gpus: list[SimGpu], placed_s: float) -> None:
        self.number = number
        self.job = job
        self.placement = placement
        self.gpus = gpus
        self.placed_s = placed_s
        self.profile: JobProfile | None = None
        self.activity: TrueActivity | None = None
        self.activity_id = -1
        self.busy = 0.0
        self.delay_s = 0.0
        self.work_s = 0.0
        self.done_s = 0.0
        self.since_s = placed_s
        self.speed = 1.0
        self.network_factor = 1.0
        self.relative_speed = 1.0
        self.is_active = False
        self.is_moved = self.is_paused = False
        self.visible_s = math.inf
        self.is_full_size = True
        self.milestone_s = 0.0
        self.held_bytes = 0
        self.version = 0
        self.resident: Resident | None = None
        self.predicted: Callable[[], GpuActivity] | None = None
        self.co_runs: CoRunAccumulator | None = None
        self.co_run_since_s = placed_s

    @property
    def peak_bytes(self) -> int:
        """Memory it holds on each GPU at full size; 0 where the trace does not say."""
        return self.profile.peak_bytes if self.profile is not None else 0

    def as_resident(self, at_s: float) -> Resident:
        """The attempt as the readings up to `at_s` show it."""
        resident = self.resident
        known = _UNKNOWN if self.predicted is None else self.predicted()
        if known.smact is None and self.predicted is not None:
            known = known._replace(smact=self._solo_smact(at_s))
        is_visible = at_s >= self.visible_s
        if resident is None or (is_visible and resident.first_active_at_s is None) or resident.smact != known.smact:
            resident = self.resident = _resident(
                self.job.id,
                len(self.job.attempts) + 1,
                self.placement.promised_bytes,
                self.held_bytes if is_visible else None,
                self.placement.sharing,
                self.placed_s,
                self.visible_s if is_visible else None,
                self.job.spec.max_slowdown,
                len(self.gpus),
                known.workload,
                known.smact,
                None if self.job.estimate is None else self.job.estimate.smact_interval,
            )
        return resident

    def _solo_smact(self, at_s: float) -> float | None:
        """SM activity while it had its first GPU to itself, the running interval included."""
        if self.co_runs is None:
            return None
        gpu = self.gpus[0]
        if self.is_active and not self.is_paused and len(gpu.active) == 1:
            return self.co_runs.solo_smact(at_s - self.co_run_since_s, gpu.smact)
        return self.co_runs.solo_smact()

    def ended(self, at_s: float, end: AttemptExit, peak_bytes: int) -> Attempt:
        """Its record, as a daemon would have it."""
        return _attempt(
            number=len(self.job.attempts) + 1,
            placement=self.placement,
            placed_at_s=self.placed_s,
            started_at_s=self.placed_s,
            peak_observed_bytes={gpu.device.uuid: peak_bytes for gpu in self.gpus} if peak_bytes else {},
            ended_at_s=at_s,
            exit=end,
            startup_s=self.delay_s if self.job.spec.checkpoint_signal is not None else None,
            co_runs=() if self.co_runs is None else self.co_runs.co_runs(),
        )


def job_after_stop(attempt: RunningAttempt, reason: str, at_s: float) -> Job:
    """The job after its attempt was stopped by SIGTERM for a `reason` that recovery knows."""
    end = AttemptExit(exit_code=None, signal=signal.SIGTERM, reason="stopped", detail=reason)
    return after_exit(attempt.job, attempt.ended(at_s, end, attempt.held_bytes))


def job_after_move(attempt: RunningAttempt, reason: str, at_s: float, save_s: float) -> Job:
    """The job after its attempt saved its state for `save_s` and ended."""
    end = AttemptExit(exit_code=EXIT_SAVED, signal=None, reason="stopped", detail=reason, stopping_s=save_s)
    return after_exit(attempt.job, attempt.ended(at_s, end, attempt.held_bytes))


def job_after_oom(attempt: RunningAttempt, gpu: SimGpu, wanted_bytes: int, at_s: float) -> Job:
    """The job after its attempt requested `wanted_bytes` more than `gpu` has free: queued again, or done."""
    free_bytes = gpu.total_bytes - gpu.held_bytes
    tried_bytes = min(wanted_bytes - free_bytes, max(64 * MiB, int(wanted_bytes * ALLOCATION_STEP)))
    held_bytes = attempt.held_bytes + free_bytes
    evidence = OomEvidence(
        exception=True,
        tried_bytes=tried_bytes,
        in_use_bytes=held_bytes,
        free_bytes=0,
        total_bytes=gpu.total_bytes,
    )
    end = AttemptExit(exit_code=1, signal=None, reason="exited", oom=evidence)
    ended = attempt.ended(at_s, end, held_bytes)
    return after_exit(attempt.job, replace(ended, overruns=_overruns(attempt, gpu, at_s)))


def _overruns(victim: RunningAttempt, gpu: SimGpu, at_s: float) -> tuple[Overrun, ...]:
    """Neighbors that the readings up to `at_s` show beyond their promise, unless all promises fit beside them."""
    held_bytes = [
        max(resident.placement.promised_bytes, resident.held_bytes if at_s >= resident.visible_s else 0)
        for resident in gpu.residents
    ]
    if have_room(held_bytes, gpu.total_bytes):
        return ()
    return tuple(
        Overrun(
            job_id=neighbor.job.id,
            attempt=len(neighbor.job.attempts) + 1,
            uid=neighbor.job.spec.uid,
            gpu_uuid=gpu.device.uuid,
            promised_bytes=neighbor.placement.promised_bytes,
            observed_bytes=neighbor.held_bytes,
        )
        for neighbor in gpu.residents
        if neighbor is not victim and at_s >= neighbor.visible_s
        if is_overrun(neighbor.placement.promised_bytes, neighbor.held_bytes)
    )
