"""SJF-BSBF as published: shortest first, and for each running job the better of sharing now and starting after it.

Where no GPU is empty, a job is compared with each GPU that has one resident: if both share from now on, when does each
end; if the newcomer waits for the resident to end, when? It shares where that lowers the mean, on the GPU where it
lowers it most. Durations come from history; where one is not known, both are taken to have as long to go.

Not here: halving the batch with gradient accumulation where memory lacks, for jobs are not changed.

Source: "Scheduling deep learning jobs in multi-tenant GPU clusters via wise resource sharing" (2024), SJF-BSBF.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple, cast

from cotenant.core.job import Job
from cotenant.scheduling import filters, orders, scores
from cotenant.scheduling.knowledge.interference import ColdStart, Predictor
from cotenant.scheduling.matches import Member, company_of, describe, member_of
from cotenant.scheduling.placing.views import GpuView, Newcomer
from cotenant.scheduling.policy import Facts
from cotenant.scheduling.ranked import Collocation, Ranked

ROUNDED_TO = 1.2
"""Times still to go are rounded to powers of this: what differs by less is the same."""


class Lasting(NamedTuple):
    """A job and how long it has to go alone; None where not known."""

    member: Member
    left_s: float | None


class ShareOrWait:
    """The match of the policy. Remembers how long each kind of work lasts, for residents do not tell."""

    rule = "share_or_wait"

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._durations: dict[str, float] = {}

    def following(self, facts: Facts) -> ShareOrWait:
        """The same with what history knows of slowdowns, if it does."""
        return ShareOrWait(getattr(facts, "fingerprints", None) or self._predictor)

    def profile(self, job: Job, facts: Facts) -> Lasting:
        """Its activity and its duration."""
        member = member_of(job, facts)
        duration_s = facts.duration_s(job)
        if duration_s is not None and member.workload:
            self._durations[member.workload] = duration_s
        return Lasting(member, _rounded(duration_s))

    def signature(self, view: GpuView) -> tuple[Lasting, ...]:
        """Who is there, and for how long."""
        company = company_of(view)
        if len(company) != 1:
            return tuple(Lasting(each, None) for each in company)
        duration_s = self._durations.get(company[0].workload)
        if duration_s is None:
            return (Lasting(company[0], None),)
        ran_s = max(0.0, view.at_s - view.residents[0].placed_at_s)  # nothing was read of the GPU yet, after a restart
        return (Lasting(company[0], _rounded(max(duration_s - ran_s, duration_s / 20))),)

    def describe(self, newcomer: Newcomer, profile: Hashable) -> None:
        """Its activity."""
        describe(newcomer, cast("Lasting", profile).member)

    def cost(self, profile: Hashable, signature: Hashable) -> float | None:
        """What sharing saves, negated; an empty GPU saves more than any other."""
        company = cast("tuple[Lasting, ...]", signature)
        if not company:
            return -math.inf
        if len(company) > 1:
            return None
        shared_s, waited_s = self._ends(cast("Lasting", profile), company[0])
        return None if shared_s >= waited_s else round(shared_s - waited_s, 3)

    def reason(self, profile: Hashable, signature: Hashable) -> str:
        """Both means."""
        company = cast("tuple[Lasting, ...]", signature)
        if len(company) > 1:
            return f"{len(company)} jobs on it, at most 2 share"
        shared_s, waited_s = self._ends(cast("Lasting", profile), company[0])
        return f"shared, both would end after {shared_s:.0f}s on average, one after the other after {waited_s:.0f}s"

    def _ends(self, newcomer: Lasting, resident: Lasting) -> tuple[float, float]:
        """Mean time to the ends of both: shared from now on, and one after the other."""
        known = newcomer.left_s or resident.left_s or 3600.0
        mine_s, its_s = newcomer.left_s or known, resident.left_s or known
        its_slowdown, my_slowdown = self._predictor.slowdowns([resident.member.activity, newcomer.member.activity])
        first_s = min(mine_s * my_slowdown, its_s * its_slowdown)
        my_end_s = first_s + max(0.0, mine_s - first_s / my_slowdown)
        its_end_s = first_s + max(0.0, its_s - first_s / its_slowdown)
        return (my_end_s + its_end_s) / 2, (its_s + its_s + mine_s) / 2


def _rounded(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    return float(ROUNDED_TO ** round(math.log(max(seconds, 1.0), ROUNDED_TO)))


def sjf_bsbf(
    *, settle_s: float = 15.0, keep_after_s: float | None = 1800.0, sharing: Collocation = "time-sliced"
) -> Ranked:
    """`keep_after_s` keeps long jobs from starving behind short ones."""
    return Ranked(
        name="sjf-bsbf",
        order=orders.shortest_first,
        gates=(filters.known_or_settled(settle_s),),
        score=scores.most_available_memory,
        match=ShareOrWait(ColdStart()),
        keep_after_s=keep_after_s,
        sharing=sharing,
    )
