"""What a policy thinks of a job beside certain others: refused, or a cost by which GPUs are compared."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol, runtime_checkable

from cotenant.core.job import Job
from cotenant.scheduling.interference import ASSUMED_SMACT, Activity, expected_smact
from cotenant.scheduling.ledger import need_bytes
from cotenant.scheduling.policy import Facts
from cotenant.scheduling.views import GpuView, Newcomer

SMACT_STEP = 0.02
"""SM activities are rounded to this: what differs by less is the same to a policy."""


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
        guessed: `smact` is no more than assumed, or expected from the memory need, for nobody has seen such a job.
    """

    workload: str = ""
    smact: float = ASSUMED_SMACT
    bound: float | None = None
    gpus: int = 1
    guessed: bool = False

    @property
    def activity(self) -> Activity:
        """As predictors want it."""
        return Activity(workload=self.workload or None, smact=self.smact)


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
    )


def expected_member_of(job: Job, facts: Facts) -> Member:
    """As `member_of`, but where no activity is known it is expected from the memory that the job needs."""
    member = member_of(job, facts)
    needed = facts.need_bytes(job) or need_bytes(job) if member.guessed else None
    return member if needed is None else member._replace(smact=_rounded(expected_smact(needed)))


def describe(newcomer: Newcomer, member: Member) -> None:
    """Write on `newcomer` what `company_of` reads."""
    newcomer.workload = member.workload or None
    newcomer.smact = None if member.guessed else member.smact
    newcomer.gpus = member.gpus


def company_of(view: GpuView) -> Company:
    """Who is there, in an order that depends on nothing else.

    A resident of which nothing is known is taken for what the GPU does beyond what is known of the others, if that
    was read and is not nothing; else for `ASSUMED_SMACT`.
    """
    residents = view.residents
    if not residents:
        return ()
    guess = ASSUMED_SMACT
    unknown = sum(1 for each in residents if each.smact is None)
    if unknown and all(each.seen_at_s is not None for each in residents if each.smact is None):
        measured = view.smact
        if measured is not None:
            known = sum(each.smact for each in residents if each.smact is not None)
            guess = max(SMACT_STEP, (measured - known) / unknown)
    return tuple(
        sorted(
            Member(
                workload=each.workload or "",
                smact=_rounded(min(1.0, guess if each.smact is None else each.smact)),
                bound=each.slowdown_bound,
                gpus=each.gpus,
                guessed=each.smact is None,
            )
            for each in residents
        )
    )


def _rounded(smact: float) -> float:
    return round(round(smact / SMACT_STEP) * SMACT_STEP, 4)
