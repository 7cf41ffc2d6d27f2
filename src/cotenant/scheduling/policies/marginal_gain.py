"""Share where all jobs together gain most speed and none exceeds its slowdown bound. Our own policy.

For each GPU: how much faster are the residents and the new job together there than the residents are now, summed over
jobs? An empty GPU gains 1. A job is admitted if the gain is at least `min_gain`, every predicted slowdown times
`safety_factor` stays within the bound of its job, and the SM activities add up to at most `smact_sum`, which limits the
damage where the predictor is wrong. The GPU with the largest gain is taken, among equals the one with most memory
available. For the retry of a job that ran out of memory only bounds that users requested count: it starts wherever
there is room.

A job of several GPUs is as slow as on the slowest of them: what it loses on one counts for all. Until its activity is
known, from history or from time alone on its GPUs, it shares none (decision 0048): a wrong guess costs on each.

A bound covers the whole run, but jobs overlap for only part of it, so a predicted slowdown is weighted
(`SLOWDOWN_WEIGHTS`, decision 0048), and raised while too many jobs miss their bound (decision 0087). Where an
activity is not known, residents are protected by the upper ends of the intervals, and the new job by a larger weight;
the gain is that of the expected activities (decision 0082).

Where a study measured a job on MIG instances (decision 0062), an empty instance gains its speed there to the nearest
tenth, and the smaller one of equal gain is taken: a job that loses nothing on one slice leaves the larger ones to
others. Sharing an instance gains in proportion.

A job's activity comes from the history of its workload, and so do its slowdowns. Without history, the activity of a new
job is that of its estimate, or is expected from its memory demand; that of a resident is what the GPU showed while it
was alone there, or is attributed from what all residents show together; and others are slowed down as such activity and
memory slow jobs down on average (decision 0048).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from cotenant.core.errors import UsageError
from cotenant.core.gpu import WHOLE_GPU_SLICES, Sharing, mig_slices
from cotenant.core.job import Job
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.composition import MoveRule
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.pairing import (
    CoRunner,
    InstanceClass,
    Residents,
    annotate,
    expected_co_runner_of,
    residents_of,
)
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.policies._options import gib_to_bytes
from cotenant.scheduling.prediction.interference import InterferencePredictor, PriorInterference
from cotenant.scheduling.prediction.prediction_cache import PredictionCache
from cotenant.scheduling.recovery import has_precedence

QueueOrder = Literal["oldest", "shortest", "least-work", "due"]

SLOWDOWN_WEIGHTS = {(2, False): 0.8, (2, True): 1.0, (3, False): 0.9, (3, True): 1.2}
"""Weight of a predicted slowdown over the whole run: by the number of jobs that would share (3 stands for more), and
whether the activity of one of them is guessed."""

UPPER_WEIGHTS = {2: 0.7, 3: 0.8}
"""The same for a resident where an activity is guessed, whose slowdown is predicted with the upper end of that."""

PATIENCE = 3.0
"""Jobs are ordered by due time: submission + 3 x expected GPU time (decision 0048)."""

_ORDERS: dict[QueueOrder, orders.Order] = {
    "oldest": orders.fifo,
    "shortest": orders.shortest_first,
    "least-work": orders.least_work_first,
    "due": orders.due_first(PATIENCE),
}


SLICE_COST = 0.01
"""Of each slice of a MIG instance, in jobs' worth of speed: it decides between instances of equal gain only, which is
rounded to tenths."""


class MarginalGainPairing:
    """The pairing rule of the policy: profiles are co-runners, GPU classes are the residents of a GPU or instance."""

    def __init__(
        self,
        *,
        min_gain: float,
        max_slowdown: float,
        smact_sum: float,
        predictor: InterferencePredictor,
        safety_factor: float = 1.0,
        sharing: Sharing = "time-sliced",
        predictions: JobPredictions = NO_PREDICTIONS,
    ) -> None:
        self._min_gain = min_gain
        self._max_slowdown = max_slowdown
        self._smact_sum = smact_sum
        self._predictor = predictor
        self._safety_factor = safety_factor
        self._sharing: Sharing = sharing
        self._predictions = predictions
        self._judgments: PredictionCache[tuple[CoRunner, Residents | InstanceClass, float], float | Refusal]
        self._judgments = PredictionCache(predictor)
        self._judged_by = (-1, 1.0)
        self._version = 0

    @property
    def version(self) -> int:
        """Grows with what is predicted, and with the factor that calibrates it."""
        judged_by = (self._predictor.version, self._predictions.slowdown_factor)
        if judged_by != self._judged_by:
            self._judged_by = judged_by
            self._version += 1
        return self._version

    def with_predictions(self, predictions: JobPredictions) -> MarginalGainPairing:
        """The same with what history knows of slowdowns."""
        return MarginalGainPairing(
            min_gain=self._min_gain,
            max_slowdown=self._max_slowdown,
            smact_sum=self._smact_sum,
            predictor=predictions.interference or self._predictor,
            safety_factor=self._safety_factor,
            sharing=self._sharing,
            predictions=predictions,
        )

    def profile(self, job: Job, predictions: JobPredictions) -> CoRunner:
        """Its activity and its bound, and whether it ran out of memory."""
        co_runner = expected_co_runner_of(job, predictions)
        return co_runner._replace(ignores_activity=True) if job.attempts and has_precedence(job) else co_runner

    def gpu_class(self, view: GpuView) -> Residents | InstanceClass:
        """The residents and their activity; of a MIG instance, its profile, too."""
        residents = residents_of(view)
        profile = view.snapshot.gpu.mig_profile
        return residents if profile is None else InstanceClass(profile, residents)

    def annotate(self, resident: NewResident, profile: CoRunner) -> None:
        """Its activity."""
        annotate(resident, profile)

    def judge(self, profile: CoRunner, gpu_class: Residents | InstanceClass) -> float | Refusal:
        """The gain, negated."""
        key = (profile, gpu_class, self._predictions.slowdown_factor)
        judgment = self._judgments.get(key)
        if judgment is None:
            residents = gpu_class.residents if isinstance(gpu_class, InstanceClass) else gpu_class
            judgment = self._activity_refusal(profile, residents)
            predicted_of = () if judgment is not None else (*residents, profile)
            if judgment is None:
                judgment = self._judge(profile, gpu_class)
            self._judgments.put(key, judgment, [co_runner.workload for co_runner in predicted_of])
        return judgment

    def _activity_refusal(self, new: CoRunner, residents: Residents) -> Refusal | None:
        """Why activities alone forbid it, whatever slowdowns are predicted."""
        if not residents or new.ignores_activity:
            return None
        total = sum([resident.smact for resident in residents]) + new.smact
        if total > self._smact_sum + 1e-9:
            return Refusal("smact_sum", lambda: self._smact_text(total, new))
        if any(co_runner.guessed and co_runner.gpus > 1 for co_runner in (*residents, new)):
            return Refusal("gang_unknown", lambda: _gang_text(new))
        return None

    def _judge(self, new: CoRunner, gpu_class: Residents | InstanceClass) -> float | Refusal:
        if not isinstance(gpu_class, InstanceClass):
            return self._judge_shared(new, gpu_class) if gpu_class else -1.0
        profile, residents = gpu_class
        speed = self._predictor.slice_speed(new.workload or None, profile)
        if speed is None:
            return self._judge_shared(new, residents) if residents else -1.0
        if residents:
            shared = self._judge_shared(new, residents)
            return shared if isinstance(shared, Refusal) else speed * shared
        return -(round(speed, 1) + SLICE_COST * (WHOLE_GPU_SLICES - mig_slices(profile)))

    def _judge_shared(self, new: CoRunner, residents: Residents) -> float | Refusal:
        together = (*residents, new)
        # Most groups are refused for the slowdown of one of them: each prediction is made when it is needed.
        is_guessed = any(co_runner.guessed for co_runner in together)
        highest = self._slowdowns(together, upper=True)
        count = min(3, len(together))
        weight = SLOWDOWN_WEIGHTS[count, is_guessed]
        upper_weight = UPPER_WEIGHTS[count] if is_guessed else weight
        default = math.inf if new.ignores_activity else self._max_slowdown
        for resident, upper in zip(residents, highest[:-1], strict=True):
            refusal = self._bound_refusal(resident, upper_weight, upper, default)
            if refusal is not None:
                return refusal
        is_exact = all(co_runner.smact_high is None for co_runner in together)
        after = highest if is_exact else self._slowdowns(together)
        refusal = self._bound_refusal(new, weight, after[-1], default, is_new=True)
        if refusal is not None:
            return refusal
        before = self._slowdowns(residents)
        # Rounded, so that equal gains are equal.
        gain = round(_gain(together, before, after), 4)
        if gain < self._min_gain and not new.ignores_activity:
            return Refusal(
                "insufficient_gain", lambda: f"{gain:+.2f} jobs' worth of speed gained, {self._min_gain:.2f} wanted"
            )
        return -gain

    def _slowdowns(self, co_runners: Residents, *, upper: bool = False) -> Sequence[float]:
        """Those predicted if these share a GPU; `upper`: with the upper ends of their activities."""
        activities = [co_runner.upper_activity if upper else co_runner.activity for co_runner in co_runners]
        return self._predictor.slowdowns(activities, self._sharing)

    def _bound_refusal(
        self, co_runner: CoRunner, weight: float, predicted: float, default: float, *, is_new: bool = False
    ) -> Refusal | None:
        """Why the predicted slowdown is too much for a co-runner over its run."""
        slowdown = 1.0 + self._predictions.slowdown_factor * weight * (predicted - 1.0)
        bound = default if co_runner.max_slowdown is None else co_runner.max_slowdown
        return (
            self._too_slow(co_runner, slowdown, bound, is_new=is_new)
            if slowdown * self._safety_factor > bound
            else None
        )

    def _smact_text(self, total: float, new: CoRunner) -> str:
        expected = f" ({new.smact:.2f} expected of it)" if new.guessed else ""
        return f"SMACT {total:.2f} in all with this job{expected}, limit {self._smact_sum:.2f}"

    def _too_slow(self, co_runner: CoRunner, slowdown: float, bound: float, *, is_new: bool) -> Refusal:
        calibrated = self._predictions.slowdown_factor

        def text() -> str:
            who = "this job" if is_new else f"a job with SMACT {co_runner.smact:.2f} there"
            factor = f" with safety factor {self._safety_factor:.2f}" if self._safety_factor > 1 else ""
            missed = f"; slowdown factor {calibrated:.2f}, since jobs missed their bounds" if calibrated > 1 else ""
            return f"{who} would take {slowdown:.2f} times as long, bound {bound:.2f}{factor}{missed}"

        return Refusal("max_slowdown", text)


def _gain(together: Residents, before: Sequence[float], after: Sequence[float]) -> float:
    """Speed gained by all, the last of whom is new; what slows a gang down on one of its GPUs is lost on all."""
    *residents, new = together
    lost = sum(
        [
            resident.gpus * (1.0 / alone - 1.0 / shared)
            for resident, alone, shared in zip(residents, before, after[:-1], strict=True)
        ]
    )
    return 1.0 - new.gpus * (1.0 - 1.0 / after[-1]) - lost


def _gang_text(new: CoRunner) -> str:
    who = "this job" if new.guessed and new.gpus > 1 else "a job there"
    return f"{who} has several GPUs, and its activity is not known yet"


def marginal_gain(
    *,
    min_gain: float = 0.3,
    max_slowdown: float = 1.5,
    smact_sum: float = 1.4,
    safety_factor: float = 1.0,
    max_jobs: int = 4,
    warmup_s: float = 15.0,
    headroom_gib: float = 0.0,
    order: QueueOrder = "due",
    reserve_after_s: float | None = 14400.0,
    sharing: Collocation = "time-sliced",
    moves: bool = True,
    max_moves: int = 4,
) -> Ranked:
    """`max_slowdown` is for jobs that request none; `max_jobs` share a GPU at most; others as described above.

    A `safety_factor` above 1 keeps more jobs within their bound. `order` is that of jobs of equal priority: by due time
    (see `PATIENCE`), by age, or by history the shortest or those with least GPU time first, and then those of unknown
    duration by age. GPUs are reserved for a job that has waited for `reserve_after_s`. `headroom_gib` stays free in
    addition to all promises, for fragmentation and memory outside any process. With `moves`, a job that can save its
    state is moved where that is worth its cost (`scheduling.moves`), at most `max_moves` times.
    """
    if not min_gain <= 1:
        raise UsageError(
            f"`min_gain` must be <= 1, the gain of an empty GPU, got {min_gain:g}", hint="write e.g. `0.3`"
        )
    if not 1 <= max_slowdown < math.inf:
        raise UsageError(f"`max_slowdown` must be >= 1 and finite, got {max_slowdown:g}", hint="write e.g. `1.5`")
    if not 1 <= safety_factor < math.inf:
        raise UsageError(f"`safety_factor` must be >= 1 and finite, got {safety_factor:g}", hint="write e.g. `1.2`")
    if not 0 < smact_sum < math.inf:
        raise UsageError(f"`smact_sum` must be above 0 and finite, got {smact_sum:g}", hint="write e.g. `1.6`")
    if max_moves < 1:
        raise UsageError(f"`max_moves` must be >= 1, got {max_moves}", hint="`moves = false` moves no job")
    return Ranked(
        name="marginal-gain",
        moves=MoveRule(min_gain=min_gain, max_moves=max_moves) if moves else None,
        order=_ORDERS[order],
        gates=(gates.max_jobs(max_jobs), gates.warming_up_unless_known(warmup_s)),
        score=scores.most_available_memory,
        pairing=MarginalGainPairing(
            min_gain=min_gain,
            max_slowdown=max_slowdown,
            smact_sum=smact_sum,
            predictor=PriorInterference(),
            safety_factor=safety_factor,
            sharing=sharing,
        ),
        reserve_after_s=reserve_after_s,
        headroom_bytes=gib_to_bytes(headroom_gib, "headroom"),
        sharing=sharing,
        max_slowdown=max_slowdown,
    )
