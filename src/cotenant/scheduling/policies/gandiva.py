"""Gandiva's packing as far as it goes without preemption (2018): when no GPU is empty, join the least active.

A job joins the residents whose SM activities add up to least, unless all together are predicted to be slower than the
residents are now: Gandiva packs, watches the aggregate rate and unpacks where it fell; we cannot take back, so we ask
the predictor before. No migration, no time slicing by suspension.

Source: Xiao et al., Gandiva.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from cotenant.scheduling import filters, orders, scores
from cotenant.scheduling.knowledge.interference import ColdStart, Predictor
from cotenant.scheduling.matches import ByActivity, Company, Member
from cotenant.scheduling.policy import Facts
from cotenant.scheduling.ranked import Collocation, Ranked


class LeastActive(ByActivity):
    """The match of the policy."""

    rule = "packing"

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def following(self, facts: Facts) -> LeastActive:
        """The same with what history knows of slowdowns, if it does."""
        return LeastActive(getattr(facts, "fingerprints", None) or self._predictor)

    def cost(self, profile: Hashable, signature: Hashable) -> float | None:
        """The residents' activity."""
        company = cast("Company", signature)
        if company and self._gain(cast("Member", profile), company) <= 0:
            return None
        return round(sum(each.smact for each in company), 4)

    def reason(self, profile: Hashable, signature: Hashable) -> str:
        """What all together would lose."""
        gain = self._gain(cast("Member", profile), cast("Company", signature))
        return f"all together would be slower than those there now ({gain:+.2f} jobs' worth of speed)"

    def _gain(self, newcomer: Member, company: Company) -> float:
        before = self._predictor.slowdowns([each.activity for each in company])
        after = self._predictor.slowdowns([each.activity for each in (*company, newcomer)])
        return round(sum(1.0 / each for each in after) - sum(1.0 / each for each in before), 4)


def gandiva(*, most_jobs: int = 4, settle_s: float = 15.0, sharing: Collocation = "time-sliced") -> Ranked:
    """`most_jobs` share a GPU at most."""
    return Ranked(
        name="gandiva",
        order=orders.fifo,
        gates=(filters.at_most(most_jobs), filters.known_or_settled(settle_s)),
        score=scores.most_available_memory,
        match=LeastActive(ColdStart()),
        sharing=sharing,
    )
