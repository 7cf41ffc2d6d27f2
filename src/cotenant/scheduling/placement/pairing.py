"""What a policy thinks of a job beside certain others: refused, or a cost by which GPUs are compared."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple, Protocol, cast, runtime_checkable

from cotenant.core.gpu import Resident
from cotenant.core.job import Job
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.memory_demand import demand_bytes
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.prediction.attribution import attribute_activity
from cotenant.scheduling.prediction.interference import ASSUMED_SMACT, GpuActivity, expected_smact

SMACT_STEP = 0.02
"""SM activities are rounded to this: what differs by less is the same to a policy."""

MEMORY_STEPS_PER_OCTAVE = 4
"""Memory is rounded to so many steps an octave: what differs by less than a tenth is the same to a policy."""


class PairingRule(Protocol):
    """Compares a job with a GPU by what both look like to this policy, and by nothing else.

    So thousands of GPUs are judged by the few different ways in which they are taken.
    """

    @property
    def rule(self) -> str:
        """Its name in rejections."""
        ...

    def profile(self, job: Job, facts: JobPredictions) -> Hashable:
        """What matters of a job."""
        ...

    def gpu_class(self, view: GpuView) -> Hashable:
        """What matters of a GPU; not None."""
        ...

    def annotate(self, newcomer: NewResident, profile: Hashable) -> None:
        """Write on a newcomer what `signature` will want to read."""
        ...

    def cost(self, profile: Hashable, gpu_class: Hashable) -> float | None:
        """Smaller is better; None: refused."""
        ...

    def reason(self, profile: Hashable, gpu_class: Hashable) -> str:
        """Why it is refused, with the numbers."""
        ...


@runtime_checkable
class LearningPairingRule(Protocol):
    """A match that judges better with history."""

    def with_predictions(self, facts: JobPredictions) -> PairingRule:
        """The same, judging by what `facts` knows, now and later."""
        ...


class CoRunner(NamedTuple):
    """A job in company, as policies compare them.

    Attributes:
        smact: what it does to a GPU alone; rounded.
        bound: longest step time that it accepts, as a multiple of the one alone; None: the policy's default.
        gpus: how many it has.
        guessed: `smact` is no more than assumed, or expected from an estimate, for nobody has seen such a job.
        memory_bytes: that it holds or needs on a GPU; rounded; None where not known.
        gpu_memory_bytes: memory of the GPU; told of residents only.
        at_once: it ran out of memory and is tried again, see `MemoryDemand`; told of newcomers only.
    """

    workload: str = ""
    smact: float = ASSUMED_SMACT
    bound: float | None = None
    gpus: int = 1
    guessed: bool = False
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    ignores_activity: bool = False

    @property
    def activity(self) -> GpuActivity:
        """As predictors want it."""
        return GpuActivity(
            workload=self.workload or None,
            smact=self.smact,
            memory_bytes=self.memory_bytes,
            gpu_memory_bytes=self.gpu_memory_bytes,
        )


Residents = tuple[CoRunner, ...]


def co_runner_of(job: Job, facts: JobPredictions) -> CoRunner:
    """A job that wants to join."""
    activity = facts.activity(job) or GpuActivity()
    return CoRunner(
        workload=activity.workload or "",
        smact=_rounded(ASSUMED_SMACT if activity.smact is None else activity.smact),
        bound=job.spec.max_slowdown,
        gpus=job.spec.gpus,
        guessed=activity.smact is None,
        memory_bytes=_rounded_bytes(facts.need_bytes(job) or demand_bytes(job) or activity.memory_bytes),
    )


def expected_co_runner_of(job: Job, facts: JobPredictions) -> CoRunner:
    """As `co_runner_of`, but where no activity is known it is what the estimate tells, or follows from the memory need."""
    member = co_runner_of(job, facts)
    if not member.guessed:
        return member
    if job.estimate is not None and job.estimate.smact is not None:
        return member._replace(smact=_rounded(job.estimate.smact))
    needed = facts.need_bytes(job) or demand_bytes(job)
    return member if needed is None else member._replace(smact=_rounded(expected_smact(needed)))


def annotate(newcomer: NewResident, member: CoRunner) -> None:
    """Write on `newcomer` what `residents_of` reads."""
    newcomer.workload = member.workload or None
    newcomer.smact = None if member.guessed else member.smact
    newcomer.gpus = member.gpus


def residents_of(view: GpuView) -> Residents:
    """Who is there, in an order that depends on nothing else.

    Residents of which nothing is known are expected to do what jobs of their size do, and corrected by what the GPU
    does as soon as all of them were seen: one that is alone does just that, several are told apart as in `apart`.
    """
    residents = view.residents
    if not residents:
        return ()
    found = [_as_co_runner(each, view.total_bytes) for each in residents]
    unknown = [each for each in found if each.guessed]
    if unknown and all(each.first_active_at_s is not None for each in residents if each.smact is None):
        measured = view.smact
        if measured is not None and len(found) == 1:
            found = [found[0]._replace(smact=_rounded(min(1.0, max(SMACT_STEP, measured))))]
        elif measured is not None:
            known = tuple(sorted((each.smact, each.memory_bytes or 0) for each in found if not each.guessed))
            guessed = tuple(sorted((each.smact, each.memory_bytes or 0) for each in unknown))
            factor = attribute_activity(known, guessed, _rounded(measured), view.total_bytes)
            found = [
                each._replace(smact=_rounded(min(1.0, factor * each.smact))) if each.guessed else each for each in found
            ]
    return tuple(sorted(found, key=_sort_key)) if len(found) > 1 else tuple(found)


class ActivityPairing:
    """What matches share that go by what jobs do to a GPU: profiles are members, signatures companies."""

    def profile(self, job: Job, facts: JobPredictions) -> CoRunner:
        """Its activity."""
        return co_runner_of(job, facts)

    def gpu_class(self, view: GpuView) -> Residents:
        """Who is there."""
        return residents_of(view)

    def annotate(self, newcomer: NewResident, profile: Hashable) -> None:
        """Its activity."""
        annotate(newcomer, cast("CoRunner", profile))


def _as_co_runner(mate: Resident | NewResident, gpu_memory_bytes: int) -> CoRunner:
    held = mate.held_bytes
    return CoRunner(
        workload=mate.workload or "",
        smact=_rounded(min(1.0, expected_smact(held) if mate.smact is None else mate.smact)),
        bound=mate.max_slowdown,
        gpus=mate.gpus,
        guessed=mate.smact is None,
        memory_bytes=_rounded_bytes(held),
        gpu_memory_bytes=gpu_memory_bytes,
    )


def _sort_key(member: CoRunner) -> tuple[object, ...]:
    """For sorting, where None is no number."""
    return (member.workload, member.smact, member.bound or 0.0, member.gpus, member.guessed, member.memory_bytes or 0)


def _rounded_bytes(size: int | None) -> int | None:
    return round(2 ** (round(MEMORY_STEPS_PER_OCTAVE * math.log2(size)) / MEMORY_STEPS_PER_OCTAVE)) if size else None


def _rounded(smact: float) -> float:
    return round(round(smact / SMACT_STEP) * SMACT_STEP, 4)
