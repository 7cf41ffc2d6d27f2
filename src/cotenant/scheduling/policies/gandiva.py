"""Gandiva's packing as far as it goes without preemption (2018): when no GPU is empty, join the least active.

A job joins the residents whose SM activities add up to least, unless all together are predicted to be slower than the
residents are now: Gandiva packs, watches the aggregate rate and unpacks where it fell; we cannot take back, so we ask
the predictor before. No migration, no time slicing by suspension.

Source: Xiao et al., Gandiva.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.prediction.interference import Predictor, PriorInterference


class LeastActivePairing(ActivityPairing):
    """The match of the policy."""

    rule = "packing"

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def with_predictions(self, facts: JobPredictions) -> LeastActivePairing:
        """The same with what history knows of slowdowns, if it does."""
        return LeastActivePairing(getattr(facts, "interference", None) or self._predictor)

    def cost(self, profile: Hashable, gpu_class: Hashable) -> float | None:
        """The residents' activity."""
        company = cast("Residents", gpu_class)
        if company and self._gain(cast("CoRunner", profile), company) <= 0:
            return None
        return round(sum(each.smact for each in company), 4)

    def reason(self, profile: Hashable, gpu_class: Hashable) -> str:
        """What all together would lose."""
        gain = self._gain(cast("CoRunner", profile), cast("Residents", gpu_class))
        return f"all together would be slower than those there now ({gain:+.2f} jobs' worth of speed)"

    def _gain(self, newcomer: CoRunner, company: Residents) -> float:
        before = self._predictor.slowdowns([each.activity for each in company])
        after = self._predictor.slowdowns([each.activity for each in (*company, newcomer)])
        return round(sum(1.0 / each for each in after) - sum(1.0 / each for each in before), 4)


def gandiva(*, max_jobs: int = 4, warmup_s: float = 15.0, sharing: Collocation = "time-sliced") -> Ranked:
    """`max_jobs` share a GPU at most."""
    return Ranked(
        name="gandiva",
        order=orders.fifo,
        gates=(gates.max_jobs(max_jobs), gates.warming_up_unless_known(warmup_s)),
        score=scores.most_available_memory,
        match=LeastActivePairing(PriorInterference()),
        sharing=sharing,
    )
