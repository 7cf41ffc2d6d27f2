"""What a policy is: a pure function of the queue and the server, and the same at work on a state that it follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from cotenant.core.gpu import GpuSnapshot, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.prediction.interference import GpuActivity


class JobPredictions(Protocol):
    """What is known of a job besides what was asked and estimated; None where nothing is."""

    def activity(self, job: Job) -> GpuActivity | None:
        """What it will do to a GPU that it has alone."""
        ...

    def duration_s(self, job: Job) -> float | None:
        """How long it will run alone."""
        ...

    def need_bytes(self, job: Job) -> int | None:
        """What it must find free on each GPU, where more is known than the estimate says."""
        ...


class NoPredictions:
    """The facts of somebody who keeps no history."""

    def activity(self, _job: Job) -> GpuActivity | None:
        """Not known."""
        return None

    def duration_s(self, _job: Job) -> float | None:
        """Not known."""
        return None

    def need_bytes(self, _job: Job) -> int | None:
        """Not known."""
        return None


NO_PREDICTIONS = NoPredictions()


class Placer(Protocol):
    """A policy at work: it is told what changes, and decides from what it was told."""

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        ...

    @property
    def wakes_at_s(self) -> float | None:
        """When a decision may come out differently although nothing changes; None: never."""
        ...

    def add(self, job: Job) -> None:
        """`job` waits from now on, and may start. Whoever waits already is taken as changed."""
        ...

    def remove(self, job_id: int) -> None:
        """The job waits no longer; nothing if it does not wait."""
        ...

    def update(self, gpu: GpuSnapshot) -> None:
        """The truth about one GPU. The order in which GPUs come for the first time is their display order."""
        ...

    def release(self, job_id: int) -> None:
        """A job that this placer placed has left its GPUs."""
        ...

    def seen(self, job_id: int, at_s: float) -> None:
        """A job that this placer placed has touched its GPUs for the first time."""
        ...

    def activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """What a GPU was seen to do since its newest resident was at work; stands in for its samples."""
        ...

    def decide(self, at_s: float) -> list[Placement]:
        """Who starts now, and where; already counted in when it returns."""
        ...

    def explain(self, job_id: int, at_s: float) -> Deferral:
        """Why a job that waits is not placed, with one verdict for every GPU."""
        ...


class Policy(Protocol):
    """Decides who starts now, and where.

    `queue` holds the jobs that may start (queued, dependencies met, memory need known), oldest first; the
    answer has exactly one entry for each, and no two placements together promise more than a GPU has.
    """

    @property
    def name(self) -> str:
        """The registered name."""
        ...

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Deferral]:
        """One `Placement` or `Deferral` for every job of `queue`, in the order they were considered."""
        ...


@runtime_checkable
class IncrementalPolicy(Protocol):
    """A policy that can follow a state by itself, as every `Ranked` does; others are asked, see `asking`."""

    def placer(self, facts: JobPredictions = NO_PREDICTIONS) -> Placer:
        """The policy at work on an empty queue and no GPU; the same answers for the same state."""
        ...
