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
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.pairing import CoRunner, annotate, co_runner_of, residents_of
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.prediction.interference import Predictor, PriorInterference

DURATION_STEP_RATIO = 1.2
"""Times still to go are rounded to powers of this: what differs by less is the same."""


class TimedCoRunner(NamedTuple):
    """A job and how long it has to go alone; None where not known."""

    member: CoRunner
    left_s: float | None


class ShareOrWaitPairing:
    """The match of the policy. Remembers how long each kind of work lasts, for residents do not tell."""

    rule = "share_or_wait"

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._durations: dict[str, float] = {}

    def with_predictions(self, facts: JobPredictions) -> ShareOrWaitPairing:
        """The same with what history knows of slowdowns, if it does."""
        return ShareOrWaitPairing(getattr(facts, "interference", None) or self._predictor)

    def profile(self, job: Job, facts: JobPredictions) -> TimedCoRunner:
        """Its activity and its duration."""
        member = co_runner_of(job, facts)
        duration_s = facts.duration_s(job)
        if duration_s is not None and member.workload:
            self._durations[member.workload] = duration_s
        return TimedCoRunner(member, _rounded(duration_s))

    def gpu_class(self, view: GpuView) -> tuple[TimedCoRunner, ...]:
        """Who is there, and for how long."""
        company = residents_of(view)
        if len(company) != 1:
            return tuple(TimedCoRunner(each, None) for each in company)
        duration_s = self._durations.get(company[0].workload)
        if duration_s is None:
            return (TimedCoRunner(company[0], None),)
        ran_s = max(0.0, view.at_s - view.residents[0].placed_at_s)  # nothing was read of the GPU yet, after a restart
        return (TimedCoRunner(company[0], _rounded(max(duration_s - ran_s, duration_s / 20))),)

    def annotate(self, newcomer: NewResident, profile: Hashable) -> None:
        """Its activity."""
        annotate(newcomer, cast("TimedCoRunner", profile).member)

    def cost(self, profile: Hashable, gpu_class: Hashable) -> float | None:
        """What sharing saves, negated; an empty GPU saves more than any other."""
        company = cast("tuple[TimedCoRunner, ...]", gpu_class)
        if not company:
            return -math.inf
        if len(company) > 1:
            return None
        shared_s, waited_s = self._ends(cast("TimedCoRunner", profile), company[0])
        return None if shared_s >= waited_s else round(shared_s - waited_s, 3)

    def reason(self, profile: Hashable, gpu_class: Hashable) -> str:
        """Both means."""
        company = cast("tuple[TimedCoRunner, ...]", gpu_class)
        if len(company) > 1:
            return f"{len(company)} jobs on it, at most 2 share"
        shared_s, waited_s = self._ends(cast("TimedCoRunner", profile), company[0])
        return f"shared, both would end after {shared_s:.0f}s on average, one after the other after {waited_s:.0f}s"

    def _ends(self, newcomer: TimedCoRunner, resident: TimedCoRunner) -> tuple[float, float]:
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
    return float(DURATION_STEP_RATIO ** round(math.log(max(seconds, 1.0), DURATION_STEP_RATIO)))


def sjf_bsbf(
    *, warmup_s: float = 15.0, reserve_after_s: float | None = 1800.0, sharing: Collocation = "time-sliced"
) -> Ranked:
    """`reserve_after_s` keeps long jobs from starving behind short ones."""
    return Ranked(
        name="sjf-bsbf",
        order=orders.shortest_first,
        gates=(gates.warming_up_unless_known(warmup_s),),
        score=scores.most_available_memory,
        match=ShareOrWaitPairing(PriorInterference()),
        reserve_after_s=reserve_after_s,
        sharing=sharing,
    )
