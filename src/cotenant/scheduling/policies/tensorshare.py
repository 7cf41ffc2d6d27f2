"""TensorShare's bound (2026): share where every job's predicted increase of completion time is within an agreed bound.

Published are the bound ("GPU SLA", the most by which sharing may prolong a job) and the rule: of the jobs that keep it,
those are placed together that prolong each other least. So an empty GPU comes first, then the GPU where the longest
predicted slowdown is the shortest. Not published, and assumed here: two jobs share a GPU at most, jobs are considered
first come, first served, and later ones pass those that wait. Its deep-learning model is replaced by our predictor, as
`marginal-gain` has it, and a bound that a job requests counts before `max_slowdown`.

Source: Shin et al., Prediction-based GPU sharing for distributed training, FGCS 181 (abstract). One file for each
policy.
"""

from __future__ import annotations

import math

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents, expected_co_runner_of
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.prediction.interference import InterferencePredictor, PriorInterference


class LeastProlongedPairing(ActivityPairing):
    """The pairing rule of the policy."""

    def __init__(self, predictor: InterferencePredictor, max_slowdown: float) -> None:
        self._predictor = predictor
        self._max_slowdown = max_slowdown

    def with_predictions(self, predictions: JobPredictions) -> LeastProlongedPairing:
        """The same with what history knows of slowdowns."""
        return LeastProlongedPairing(predictions.interference or self._predictor, self._max_slowdown)

    def profile(self, job: Job, predictions: JobPredictions) -> CoRunner:
        """Its activity, by the estimate where it is not known, and its bound."""
        return expected_co_runner_of(job, predictions)

    def judge(self, profile: CoRunner, gpu_class: Residents) -> float | Refusal:
        """The longest predicted slowdown of all."""
        if not gpu_class:
            return 1.0
        together = (*gpu_class, profile)
        slowdowns = self._predictor.slowdowns([co_runner.activity for co_runner in together])
        for co_runner, slowdown in zip(together, slowdowns, strict=True):
            bound = self._max_slowdown if co_runner.max_slowdown is None else co_runner.max_slowdown
            if slowdown > bound:
                return _too_slow(slowdown, bound)
        return round(max(slowdowns), 4)


def _too_slow(slowdown: float, bound: float) -> Refusal:
    return Refusal("max_slowdown", lambda: f"a job would take {slowdown:.2f} times as long, bound {bound:.2f}")


def tensorshare(
    *, max_slowdown: float = 1.5, max_jobs: int = 2, warmup_s: float = 15.0, sharing: Collocation = "time-sliced"
) -> Ranked:
    """`max_slowdown` is for jobs that request none; `max_jobs` share a GPU at most."""
    if not 1 <= max_slowdown < math.inf:
        raise UsageError(f"`max_slowdown` must be >= 1 and finite, got {max_slowdown:g}", hint="write e.g. `1.5`")
    return Ranked(
        name="tensorshare",
        order=orders.fifo,
        gates=(gates.max_jobs(max_jobs), gates.warming_up_unless_known(warmup_s)),
        score=scores.most_available_memory,
        pairing=LeastProlongedPairing(PriorInterference(), max_slowdown),
        sharing=sharing,
    )
