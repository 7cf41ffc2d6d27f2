"""Lucid as published (2023): pairs of jobs that hardly disturb each other, never more than two on a GPU.

A job's label follows from its speed beside a job of the same workload: below 0.85 of its speed alone 2, below 0.95 1,
else 0. A job joins a resident that is alone if both have the same number of GPUs and their labels add up to at most
`label_sum`. The queue is ordered by duration x GPUs, where history knows the duration.

Not here: profiling on extra GPUs (history replaces it), and turning sharing off while few jobs arrive.

Source: Hu et al., Lucid; the speed of a pair is predicted as for `marginal-gain`.
"""

from __future__ import annotations

from cotenant.core.errors import UsageError
from cotenant.core.units import counted
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.prediction.interference import InterferencePredictor, PriorInterference

HEAVY_BELOW, MEDIUM_BELOW = 0.85, 0.95


class LabelPairing(ActivityPairing):
    """The pairing rule of the policy."""

    def __init__(self, label_sum: int, predictor: InterferencePredictor) -> None:
        self._label_sum = label_sum
        self._predictor = predictor

    def with_predictions(self, predictions: JobPredictions) -> LabelPairing:
        """The same with what history knows of slowdowns."""
        return LabelPairing(self._label_sum, predictions.interference or self._predictor)

    def label(self, co_runner: CoRunner) -> int:
        """0, 1 or 2: how much it suffers from sharing, and disturbs others."""
        speed = 1.0 / self._predictor.slowdowns([co_runner.activity, co_runner.activity])[0]
        return 2 if speed < HEAVY_BELOW else 1 if speed < MEDIUM_BELOW else 0

    def judge(self, profile: CoRunner, gpu_class: Residents) -> float | Refusal:
        """Empty GPUs first, then the lightest resident."""
        if not gpu_class:
            return -1.0
        count = len(gpu_class)
        if count > 1:
            return Refusal("max_jobs", lambda: f"{count} jobs on it, at most 2 share a GPU")
        resident = gpu_class[0]
        if resident.gpus != profile.gpus:
            text = f"the job there has {counted(resident.gpus, 'GPU')}, this one wants {profile.gpus}"
            return Refusal("gpu_count_mismatch", lambda: text)
        label = self.label(resident)
        labels, limit = label + self.label(profile), self._label_sum
        if labels > limit:
            return Refusal("label_sum", lambda: f"labels add up to {labels}, limit {limit}")
        return float(label)


def lucid(
    *, label_sum: int = 2, warmup_s: float = 15.0, backfill: bool = True, sharing: Collocation = "time-sliced"
) -> Ranked:
    """`label_sum` is 0 to 4: 4 lets any two jobs share."""
    if not 0 <= label_sum <= 4:
        raise UsageError(f"`label_sum` must be 0 to 4 (two labels of at most 2), got {label_sum}")
    return Ranked(
        name="lucid",
        order=orders.least_work_first,
        gates=(gates.warming_up_unless_known(warmup_s),),
        score=scores.most_available_memory,
        pairing=LabelPairing(label_sum, PriorInterference()),
        backfill=backfill,
        sharing=sharing,
    )
