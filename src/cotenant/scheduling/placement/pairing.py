"""Pairing rules: whether a job may join the residents of a GPU, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from cotenant.core.gpu import Resident
from cotenant.core.job import Job
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.prediction.attribution import attribute_activity
from cotenant.scheduling.prediction.interference import (
    ASSUMED_SMACT,
    GpuActivity,
    smact_interval_by_memory,
    smact_interval_of_unseen,
)

SMACT_STEP = 0.02
"""SM activities are rounded to this, so that GPUs and jobs fall into few classes."""

MEMORY_STEPS_PER_OCTAVE = 4
"""Memory is rounded to this many steps between powers of 2: a difference below a tenth makes no new class."""

P = TypeVar("P", bound=Hashable)
"""Profile: what a pairing rule sees in a job."""

G = TypeVar("G", bound=Hashable)
"""GPU class: what a pairing rule sees in a GPU."""


class PairingRule(Protocol[P, G]):
    """Compares a job with a GPU by the profile of one and the class of the other, and by nothing else.

    Thousands of GPUs fall into a few classes, so a decision costs a few judgments.
    """

    def profile(self, job: Job, predictions: JobPredictions) -> P:
        """What matters in a job."""
        ...

    def gpu_class(self, view: GpuView) -> G:
        """What matters in a GPU; not None."""
        ...

    def annotate(self, resident: NewResident, profile: P) -> None:
        """Set on a new resident what `gpu_class` reads."""
        ...

    def judge(self, profile: P, gpu_class: G) -> float | Refusal:
        """The cost of placing such a job on such a GPU (smaller is better), or why it must not go there."""
        ...


@runtime_checkable
class LearningPairingRule(Protocol):
    """A pairing rule that judges better with history."""

    def with_predictions(self, predictions: JobPredictions) -> PairingRule[Any, Any]:
        """The same rule, judging by what `predictions` know, now and later."""
        ...


@runtime_checkable
class VersionedPairingRule(Protocol):
    """A pairing rule that says when it may judge otherwise than before; others may at any time."""

    @property
    def version(self) -> int:
        """Another one: judgments may have changed."""
        ...


class CoRunner(NamedTuple):
    """A job that shares a GPU, as pairing rules compare them.

    Attributes:
        smact: SM activity alone; rounded. `smact_high`: the upper end of its interval; None where it is known.
        max_slowdown: longest step time that it accepts, as a multiple of that alone; None: the policy's default.
        gpus: how many it has.
        guessed: `smact` is assumed or expected from an estimate: no such job was observed.
        memory_bytes: that it uses or needs on a GPU; rounded; None if not known.
        gpu_memory_bytes: memory of the GPU; known of residents only.
        ignores_activity: it ran out of memory and is retried, see `Demand`; known of new jobs only.
    """

    workload: str = ""
    smact: float = ASSUMED_SMACT
    max_slowdown: float | None = None
    gpus: int = 1
    guessed: bool = False
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    ignores_activity: bool = False
    smact_high: float | None = None

    @property
    def activity(self) -> GpuActivity:
        """As predictors of interference take it."""
        return self._activity(self.smact)

    @property
    def upper_activity(self) -> GpuActivity:
        """As `activity`, with the upper end of its SM activity."""
        return self._activity(self.smact if self.smact_high is None else self.smact_high)

    def _activity(self, smact: float) -> GpuActivity:
        return GpuActivity(
            self.workload or None, smact, memory_bytes=self.memory_bytes, gpu_memory_bytes=self.gpu_memory_bytes
        )


Residents = tuple[CoRunner, ...]


def co_runner_of(job: Job, predictions: JobPredictions) -> CoRunner:
    """A pending job."""
    activity = predictions.activity(job) or GpuActivity()
    return CoRunner(
        workload=activity.workload or "",
        smact=_round_smact(ASSUMED_SMACT if activity.smact is None else activity.smact),
        max_slowdown=job.spec.max_slowdown,
        gpus=job.spec.gpus,
        guessed=activity.smact is None,
        memory_bytes=_round_bytes(predictions.demand_bytes(job) or demand_bytes(job) or activity.memory_bytes),
    )


def expected_co_runner_of(job: Job, predictions: JobPredictions) -> CoRunner:
    """As `co_runner_of`, but an unknown activity is that of the estimate, or is expected from the memory demand."""
    co_runner = co_runner_of(job, predictions)
    if not co_runner.guessed:
        return co_runner
    found = smact_interval_of_unseen(job, predictions.demand_bytes(job) or demand_bytes(job))
    return co_runner._replace(smact=_round_smact(found.expected), smact_high=_round_smact(found.high))


@lru_cache(maxsize=10_000)
def rounded_smact_by_memory(needed_bytes: int | None) -> tuple[float, float]:
    """Expectation and upper end by memory alone, rounded. Cached: clear the cache where the law is replaced."""
    found = smact_interval_by_memory(needed_bytes)
    return _round_smact(found.expected), _round_smact(found.high)


def annotate(resident: NewResident, co_runner: CoRunner) -> None:
    """Set on `resident` what `residents_of` reads."""
    resident.workload = co_runner.workload or None
    resident.smact = None if co_runner.guessed else co_runner.smact
    resident.gpus = co_runner.gpus


def residents_of(view: GpuView) -> Residents:
    """The residents, in an order that depends on nothing else."""
    return residents_key(co_runners_of(view)) if view.residents else ()


class InstanceClass(NamedTuple):
    """What a policy sees in a MIG instance: its profile, and its residents."""

    profile: str
    residents: Residents


def class_of(view: GpuView, co_runners: list[CoRunner]) -> Residents | InstanceClass:
    """The class of a GPU or MIG instance with these residents."""
    residents, profile = residents_key(co_runners), view.snapshot.gpu.mig_profile
    return residents if profile is None else InstanceClass(profile, residents)


def residents_key(found: list[CoRunner]) -> Residents:
    """Residents in an order that depends on nothing else."""
    return tuple(sorted(found, key=_sort_key)) if len(found) > 1 else tuple(found)


def co_runners_of(view: GpuView) -> list[CoRunner]:
    """The residents, in the order of the view.

    Residents of unknown activity are expected to act as jobs of their size do. Once all of them have been active, the
    measured activity of the GPU corrects that: a single resident does just that, for several see `attribution`.
    """
    residents = view.residents
    if not residents:
        return []
    found = [_as_co_runner(resident, view.total_bytes) for resident in residents]
    guessed = [co_runner for co_runner in found if co_runner.guessed]
    if guessed and all(resident.first_active_at_s is not None for resident in residents if resident.smact is None):
        measured = view.smact
        if measured is not None and len(found) == 1:
            smact = _round_smact(min(1.0, max(SMACT_STEP, measured)))
            found = [found[0]._replace(smact=smact, smact_high=None)]
        elif measured is not None:
            known = [co_runner for co_runner in found if not co_runner.guessed]
            factor = attribute_activity(_loads(known), _loads(guessed), _round_smact(measured), view.total_bytes)
            found = [_times(co_runner, factor) if co_runner.guessed else co_runner for co_runner in found]
    return found


def _times(co_runner: CoRunner, factor: float) -> CoRunner:
    """With `factor` times its expected activity, and the same part of it in doubt."""
    high = co_runner.smact if co_runner.smact_high is None else co_runner.smact_high
    return co_runner._replace(
        smact=_round_smact(min(1.0, factor * co_runner.smact)), smact_high=_round_smact(min(1.0, factor * high))
    )


def _loads(co_runners: list[CoRunner]) -> tuple[tuple[float, int], ...]:
    return tuple(sorted((co_runner.smact, co_runner.memory_bytes or 0) for co_runner in co_runners))


class ActivityPairing:
    """Base of pairing rules by activity: profiles are co-runners, GPU classes are their residents."""

    def profile(self, job: Job, predictions: JobPredictions) -> CoRunner:
        """Its activity."""
        return co_runner_of(job, predictions)

    def gpu_class(self, view: GpuView) -> Residents:
        """The residents and their activity."""
        return residents_of(view)

    def annotate(self, resident: NewResident, profile: CoRunner) -> None:
        """Its activity."""
        annotate(resident, profile)


def _as_co_runner(resident: Resident | NewResident, gpu_memory_bytes: int) -> CoRunner:
    smact, held, expected = resident.smact, resident.held_bytes, resident.expected_smact
    high = None
    guessed = smact is None
    if smact is not None:
        smact = _round_smact(min(1.0, smact))
    elif expected is not None:
        smact, high = _round_smact(expected.expected), _round_smact(expected.high)
    else:
        smact, high = rounded_smact_by_memory(held)
    return CoRunner(
        resident.workload or "",
        smact,
        resident.max_slowdown,
        resident.gpus,
        guessed,
        _round_bytes(held),
        gpu_memory_bytes,
        smact_high=high,
    )


def _sort_key(co_runner: CoRunner) -> tuple[object, ...]:
    """None does not compare with numbers."""
    return (
        co_runner.workload,
        co_runner.smact,
        co_runner.max_slowdown or 0.0,
        co_runner.gpus,
        co_runner.guessed,
        co_runner.memory_bytes or 0,
        co_runner.smact_high or 0.0,
    )


@lru_cache(maxsize=10_000)
def _round_bytes(size: int | None) -> int | None:
    return round(2 ** (round(MEMORY_STEPS_PER_OCTAVE * math.log2(size)) / MEMORY_STEPS_PER_OCTAVE)) if size else None


def _round_smact(smact: float) -> float:
    return round(round(smact / SMACT_STEP) * SMACT_STEP, 4)
