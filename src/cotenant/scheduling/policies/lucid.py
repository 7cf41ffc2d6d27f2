"""Lucid as published (2023): pairs of jobs that hardly disturb each other, never more than two on a GPU.

Each job has a label by how fast it is beside a job of its own kind: below .85 of its speed 2, below .95 1, else 0. A
waiting job joins a running one that is alone if both have as many GPUs and their labels add up to `label_sum` at most.
The queue goes by duration x GPUs, where history knows the duration.

Not here: the profiling on extra GPUs (history takes its place), and switching sharing off while few jobs arrive.

Source: Hu et al., Lucid; the speed of a pair is predicted as for `marginal-gain`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from cotenant.core.errors import UsageError
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.prediction.interference import Predictor, PriorInterference

HEAVY_BELOW, MEDIUM_BELOW = 0.85, 0.95


class LabelPairing(ActivityPairing):
    """The match of the policy."""

    rule = "labels"

    def __init__(self, label_sum: int, predictor: Predictor) -> None:
        self._label_sum = label_sum
        self._predictor = predictor

    def with_predictions(self, facts: JobPredictions) -> LabelPairing:
        """The same with what history knows of slowdowns, if it does."""
        return LabelPairing(self._label_sum, getattr(facts, "interference", None) or self._predictor)

    def label(self, member: CoRunner) -> int:
        """0, 1 or 2: how much it minds, and disturbs, company."""
        speed = 1.0 / self._predictor.slowdowns([member.activity, member.activity])[0]
        return 2 if speed < HEAVY_BELOW else 1 if speed < MEDIUM_BELOW else 0

    def cost(self, profile: Hashable, gpu_class: Hashable) -> float | None:
        """Empty GPUs first, then the lightest company."""
        company = cast("Residents", gpu_class)
        if not company:
            return -1.0
        return None if self._why_not(cast("CoRunner", profile), company) else float(self.label(company[0]))

    def reason(self, profile: Hashable, gpu_class: Hashable) -> str:
        """What keeps the two apart."""
        return self._why_not(cast("CoRunner", profile), cast("Residents", gpu_class)) or "pairs"

    def _why_not(self, newcomer: CoRunner, company: Residents) -> str | None:
        if len(company) > 1:
            return f"{len(company)} jobs on it, at most 2 share"
        mate = company[0]
        if mate.gpus != newcomer.gpus:
            return f"the job there has {mate.gpus} GPUs, this one wants {newcomer.gpus}"
        labels = self.label(mate) + self.label(newcomer)
        return f"labels add up to {labels}, limit {self._label_sum}" if labels > self._label_sum else None


def lucid(
    *, label_sum: int = 2, warmup_s: float = 15.0, backfill: bool = True, sharing: Collocation = "time-sliced"
) -> Ranked:
    """`label_sum` is 0 to 4: 4 lets any two share."""
    if not 0 <= label_sum <= 4:
        raise UsageError(f"two labels of at most 2 never add up to {label_sum}", hint="write 0 to 4")
    return Ranked(
        name="lucid",
        order=orders.least_work_first,
        gates=(gates.warming_up_unless_known(warmup_s),),
        score=scores.most_available_memory,
        match=LabelPairing(label_sum, PriorInterference()),
        backfill=backfill,
        sharing=sharing,
    )
