"""Gandiva's packing, without preemption (2018): when no GPU is empty, join the least active one.

A job joins the residents whose SM activities have the smallest sum, unless all together are predicted to be slower
than the residents are now. Gandiva packs, watches the aggregate rate, and unpacks where it fell; a placement here is
final, so the predictor is consulted before. No migration, no time slicing by suspension.

Source: Xiao et al., Gandiva. One file for each policy.
"""

from __future__ import annotations

from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.prediction.interference import InterferencePredictor, PriorInterference


class LeastActivePairing(ActivityPairing):
    """The pairing rule of the policy."""

    def __init__(self, predictor: InterferencePredictor) -> None:
        self._predictor = predictor

    def with_predictions(self, predictions: JobPredictions) -> LeastActivePairing:
        """The same with what history knows of slowdowns."""
        return LeastActivePairing(predictions.interference or self._predictor)

    def judge(self, profile: CoRunner, gpu_class: Residents) -> float | Refusal:
        """The residents' activity."""
        gain = self._gain(profile, gpu_class)
        if gpu_class and gain <= 0:
            return Refusal(
                "no_gain", lambda: f"all together would be slower than the residents are now ({gain:+.2f} jobs' speed)"
            )
        return round(sum(resident.smact for resident in gpu_class), 4)

    def _gain(self, new: CoRunner, residents: Residents) -> float:
        before = self._predictor.slowdowns([resident.activity for resident in residents])
        after = self._predictor.slowdowns([co_runner.activity for co_runner in (*residents, new)])
        return round(sum(1.0 / slowdown for slowdown in after) - sum(1.0 / slowdown for slowdown in before), 4)


def gandiva(*, max_jobs: int = 4, warmup_s: float = 15.0, sharing: Collocation = "time-sliced") -> Ranked:
    """`max_jobs` share a GPU at most."""
    return Ranked(
        name="gandiva",
        order=orders.fifo,
        gates=(gates.max_jobs(max_jobs), gates.warming_up_unless_known(warmup_s)),
        score=scores.most_available_memory,
        pairing=LeastActivePairing(PriorInterference()),
        sharing=sharing,
    )
