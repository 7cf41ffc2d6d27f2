"""Horus as published (2021): the least loaded GPU, as long as predicted utilization stays under a cap.

A job's utilization is predicted before it runs: by the history of its workload, else 0.5 (Horus reads it off the
graph). Of the GPUs where the SM activities of the residents and the job add up to at most `utilization_cap`, the one
with the smallest sum is taken.

Source: Yeung et al., Horus (2022). One file for each policy.
"""

from __future__ import annotations

import math

from cotenant.core.errors import UsageError
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.refusal import Refusal


class LeastLoadedPairing(ActivityPairing):
    """The pairing rule of the policy."""

    def __init__(self, cap: float) -> None:
        self._cap = cap

    def judge(self, profile: CoRunner, gpu_class: Residents) -> float | Refusal:
        """The sum of activities; an empty GPU admits every job."""
        total = round(sum([co_runner.smact for co_runner in gpu_class]) + profile.smact, 4)
        return _too_busy(total, self._cap) if gpu_class and total > self._cap + 1e-9 else total


def _too_busy(total: float, cap: float) -> Refusal:
    return Refusal("utilization_cap", lambda: f"utilization {total:.2f} in all with this job, cap {cap:.2f}")


def horus(*, utilization_cap: float = 1.0, backfill: bool = False, sharing: Collocation = "time-sliced") -> Ranked:
    """`utilization_cap` is a sum of SM activities; above 1, jobs are known to compete."""
    if not 0 < utilization_cap < math.inf:
        raise UsageError(
            f"`utilization_cap` must be above 0 and finite, got {utilization_cap:g}", hint="write e.g. `1.0`"
        )
    return Ranked(
        name="horus",
        order=orders.fifo,
        score=scores.most_available_memory,
        pairing=LeastLoadedPairing(utilization_cap),
        backfill=backfill,
        sharing=sharing,
    )
