"""What a policy thinks of a job beside certain others: refused, or a cost by which GPUs are compared."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple, Protocol, cast, runtime_checkable

from cotenant.core.gpu import Resident
from cotenant.core.job import Job
from cotenant.scheduling.knowledge.apart import told_apart
from cotenant.scheduling.knowledge.interference import ASSUMED_SMACT, Activity, expected_smact
from cotenant.scheduling.ledger import need_bytes
from cotenant.scheduling.placing.views import GpuView, Newcomer
from cotenant.scheduling.policy import Facts

SMACT_STEP = 0.02
"""SM activities are rounded to this: what differs by less is the same to a policy."""

MEMORY_STEPS = 4
"""Memory is rounded to so many steps an octave: what differs by less than a tenth is the same to a policy."""


class Match(Protocol):
    """Compares a job with a GPU by what both look like to this policy, and by nothing else.

    So thousands of GPUs are judged by the few different ways in which they are taken.
    """

    @property
    def rule(self) -> str:
        """Its name in verdicts."""
        ...

    def profile(self, job: Job, facts: Facts) -> Hashable:
        """What matters of a job."""
        ...

    def signature(self, view: GpuView) -> Hashable:
        """What matters of a GPU; not None."""
        ...

    def describe(self, newcomer: Newcomer, profile: Hashable) -> None:
        """Write on a newcomer what `signature` will want to read."""
        ...

    def cost(self, profile: Hashable, signature: Hashable) -> float | None:
        """Smaller is better; None: refused."""
        ...

    def reason(self, profile: Hashable, signature: Hashable) -> str:
        """Why it is refused, with the numbers."""
        ...


@runtime_checkable
class LearningMatch(Protocol):
    """A match that judges better with history."""

    def following(self, facts: Facts) -> Match:
        """The same, judging by what `facts` knows, now and later."""
        ...


class Member(NamedTuple):
    """A job in company, as policies compare them.

    Attributes:
        smact: what it does to a GPU alone; rounded.
        bound: longest step time that it accepts, as a multiple of the one alone; None: the policy's default.
        gpus: how many it has.
        guessed: `smact` is no more than assumed, or expected from an estimate, for nobody has seen such a job.
        memory_bytes: that it holds or needs on a GPU; rounded; None where not known.
        card_bytes: memory of the GPU; told of residents only.
        at_once: it ran out of memory and is tried again, see `Need`; told of newcomers only.
    """

    workload: str = ""
    smact: float = ASSUMED_SMACT
    bound: float | None = None
    gpus: int = 1
    guessed: bool = False
    memory_bytes: int | None = None
    card_bytes: int | None = None
    at_once: bool = False

    @property
    def activity(self) -> Activity:
        """As predictors want it."""
        return Activity(
            workload=self.workload or None,
            smact=self.smact,
            memory_bytes=self.memory_bytes,
            card_bytes=self.card_bytes,
        )


Company = tuple[Member, ...]


def member_of(job: Job, facts: Facts) -> Member:
    """A job that wants to join."""
    activity = facts.activity(job) or Activity()
    return Member(
        workload=activity.workload or "",
        smact=_rounded(ASSUMED_SMACT if activity.smact is None else activity.smact),
        bound=job.spec.slowdown_bound,
        gpus=job.spec.gpus,
        guessed=activity.smact is None,
        memory_bytes=_rounded_bytes(facts.need_bytes(job) or need_bytes(job) or activity.memory_bytes),
    )


def expected_member_of(job: Job, facts: Facts) -> Member:
    """As `member_of`, but where no activity is known it is what the estimate tells, or follows from the memory need."""
    member = member_of(job, facts)
    if not member.guessed:
        return member
    if job.estimate is not None and job.estimate.smact is not None:
        return member._replace(smact=_rounded(job.estimate.smact))
    needed = facts.need_bytes(job) or need_bytes(job)
    return member if needed is None else member._replace(smact=_rounded(expected_smact(needed)))


def describe(newcomer: Newcomer, member: Member) -> None:
    """Write on `newcomer` what `company_of` reads."""
    newcomer.workload = member.workload or None
    newcomer.smact = None if member.guessed else member.smact
    newcomer.gpus = member.gpus


def company_of(view: GpuView) -> Company:
    """Who is there, in an order that depends on nothing else.

    Residents of which nothing is known are expected to do what jobs of their size do, and corrected by what the GPU
    does as soon as all of them were seen: one that is alone does just that, several are told apart as in `apart`.
    """
    residents = view.residents
    if not residents:
        return ()
    found = [_as_member(each, view.total_bytes) for each in residents]
    unknown = [each for each in found if each.guessed]
    if unknown and all(each.seen_at_s is not None for each in residents if each.smact is None):
        measured = view.smact
        if measured is not None and len(found) == 1:
            found = [found[0]._replace(smact=_rounded(min(1.0, max(SMACT_STEP, measured))))]
        elif measured is not None:
            known = tuple(sorted((each.smact, each.memory_bytes or 0) for each in found if not each.guessed))
            guessed = tuple(sorted((each.smact, each.memory_bytes or 0) for each in unknown))
            factor = told_apart(known, guessed, _rounded(measured), view.total_bytes)
            found = [
                each._replace(smact=_rounded(min(1.0, factor * each.smact))) if each.guessed else each for each in found
            ]
    return tuple(sorted(found, key=_in_order)) if len(found) > 1 else tuple(found)


class ByActivity:
    """What matches share that go by what jobs do to a GPU: profiles are members, signatures companies."""

    def profile(self, job: Job, facts: Facts) -> Member:
        """Its activity."""
        return member_of(job, facts)

    def signature(self, view: GpuView) -> Company:
        """Who is there."""
        return company_of(view)

    def describe(self, newcomer: Newcomer, profile: Hashable) -> None:
        """Its activity."""
        describe(newcomer, cast("Member", profile))


def _as_member(mate: Resident | Newcomer, card_bytes: int) -> Member:
    held = mate.held_bytes
    return Member(
        workload=mate.workload or "",
        smact=_rounded(min(1.0, expected_smact(held) if mate.smact is None else mate.smact)),
        bound=mate.slowdown_bound,
        gpus=mate.gpus,
        guessed=mate.smact is None,
        memory_bytes=_rounded_bytes(held),
        card_bytes=card_bytes,
    )


def _in_order(member: Member) -> tuple[object, ...]:
    """For sorting, where None is no number."""
    return (member.workload, member.smact, member.bound or 0.0, member.gpus, member.guessed, member.memory_bytes or 0)


def _rounded_bytes(size: int | None) -> int | None:
    return round(2 ** (round(MEMORY_STEPS * math.log2(size)) / MEMORY_STEPS)) if size else None


def _rounded(smact: float) -> float:
    return round(round(smact / SMACT_STEP) * SMACT_STEP, 4)
