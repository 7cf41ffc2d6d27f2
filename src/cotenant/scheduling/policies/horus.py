"""Horus as published (2021): the least loaded GPU, as long as predicted utilization stays under a cap.

A job's utilization is predicted before it runs: by the history of its work, else .5 (Horus reads it off the graph).
Among the GPUs whose residents' and the newcomer's SM activities together stay within `utilization_cap`, the one with
the smallest sum is taken.

Source: Yeung et al., Horus (2022).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import cast

from cotenant.core.errors import UsageError
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents
from cotenant.scheduling.placement.ranked import Collocation, Ranked


class LeastLoadedPairing(ActivityPairing):
    """The match of the policy."""

    rule = "utilization_cap"

    def __init__(self, cap: float) -> None:
        self._cap = cap

    def cost(self, profile: Hashable, gpu_class: Hashable) -> float | None:
        """The sum; an empty GPU takes everybody."""
        total = _sum(profile, gpu_class)
        return None if gpu_class and total > self._cap + 1e-9 else total

    def reason(self, profile: Hashable, gpu_class: Hashable) -> str:
        """The sum and the cap."""
        return f"utilization {_sum(profile, gpu_class):.2f} in all with this job, cap {self._cap:.2f}"


def _sum(profile: Hashable, gpu_class: Hashable) -> float:
    everybody = (*cast("Residents", gpu_class), cast("CoRunner", profile))
    return round(sum(each.smact for each in everybody), 4)


def horus(*, utilization_cap: float = 1.0, backfill: bool = False, sharing: Collocation = "time-sliced") -> Ranked:
    """`utilization_cap` is a sum of SM activities; above 1, jobs are known to compete."""
    if not 0 < utilization_cap < math.inf:
        raise UsageError(f"a utilization cap of {utilization_cap:g} is no limit", hint="write e.g. `1.0`")
    return Ranked(
        name="horus",
        order=orders.fifo,
        score=scores.most_available_memory,
        match=LeastLoadedPairing(utilization_cap),
        backfill=backfill,
        sharing=sharing,
    )
