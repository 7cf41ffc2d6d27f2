"""Protocols of policies: a pure function of a queue and a server, and a placer that follows their changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from cotenant.core.gpu import GpuSnapshot, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.prediction.durations import ASSUMED_DURATION_S
from cotenant.scheduling.prediction.interference import GpuActivity, InterferencePredictor


class JobPredictions(Protocol):
    """What is known of a job beyond its specification and estimate; None where nothing is."""

    @property
    def interference(self) -> InterferencePredictor | None:
        """What is known of slowdowns between workloads."""
        ...

    @property
    def typical_bytes(self) -> Sequence[tuple[int, int]]:
        """Memory that completed runs held on each GPU, and how many runs; the same object until that changes."""
        ...

    @property
    def assumed_duration_s(self) -> float:
        """How long a job is taken to run alone whose `duration_s` is not known."""
        ...

    @property
    def slowdown_factor(self) -> float:
        """By which the part of a predicted slowdown above 1 is multiplied, so that jobs keep their bounds."""
        ...

    def activity(self, job: Job) -> GpuActivity | None:
        """What it does to a GPU that it has exclusively."""
        ...

    def duration_s(self, job: Job) -> float | None:
        """How long it runs alone."""
        ...

    def demand_bytes(self, job: Job) -> int | None:
        """What must be available on each GPU, where more is known than the estimate says."""
        ...


class NoPredictions:
    """The predictions of a scheduler without history."""

    interference: InterferencePredictor | None = None
    typical_bytes: Sequence[tuple[int, int]] = ()
    assumed_duration_s = ASSUMED_DURATION_S
    slowdown_factor = 1.0

    def activity(self, _job: Job) -> GpuActivity | None:
        """Not known."""
        return None

    def duration_s(self, _job: Job) -> float | None:
        """Not known."""
        return None

    def demand_bytes(self, _job: Job) -> int | None:
        """Not known."""
        return None


NO_PREDICTIONS = NoPredictions()


class Placer(Protocol):
    """Follows the changes of a queue and of GPUs, and decides from them."""

    @property
    def waiting(self) -> int:
        """The number of pending jobs."""
        ...

    @property
    def wakes_at_s(self) -> float | None:
        """When a decision may come out differently although nothing changes; None: never."""
        ...

    def add(self, job: Job) -> None:
        """`job` is pending and may start. A job that is pending already has changed."""
        ...

    def remove(self, job_id: int) -> None:
        """The job is no longer pending; nothing if it is not."""
        ...

    def update(self, gpu: GpuSnapshot) -> None:
        """Replace the state of one GPU. The order of the first updates is the display order of the GPUs."""
        ...

    def release(self, job_id: int) -> None:
        """A job that this placer placed has left its GPUs."""
        ...

    def mark_active(self, job_id: int, at_s: float) -> None:
        """A job that this placer placed has used its GPUs for the first time."""
        ...

    def set_activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """Set the mean activity of a GPU since its newest resident was first active; it stands in for samples."""
        ...

    def decide(self, at_s: float) -> list[Placement]:
        """Which jobs start now, and where. Their promises count as soon as it returns."""
        ...

    def explain(self, job_id: int, at_s: float) -> Deferral:
        """Why a pending job is not placed, with one rejection for every GPU.

        Raises:
            KeyError: it is not pending.
        """
        ...


class Policy(Protocol):
    """Decides which jobs start now, and where.

    `queue` has the jobs that may start (queued, dependencies met, memory demand known), oldest first. The answer has
    exactly one entry for each, and all placements together promise no more than a GPU has.
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
    """A policy with a placer of its own, as every `Ranked` is; others run in a `SnapshotPolicyAdapter`."""

    def placer(self, predictions: JobPredictions = NO_PREDICTIONS) -> Placer:
        """A placer with an empty queue and no GPU, which answers as `decide` does in the same state."""
        ...
