"""Share where all jobs together gain most, and nobody is slowed down beyond its bound. Ours.

For each GPU: how fast would each resident and the newcomer be there together, and how much more is that, summed up,
than the residents' speeds now? An empty GPU gains 1. Admitted is a gain of at least `min_gain`, as long as every
resident's and the newcomer's predicted slowdown, times `safety_factor`, stays within its own bound and the sum of SM
activities within `smact_sum`, which keeps the rule honest where the predictor is wrong. The GPU with the largest gain
is taken, the one with most memory available among equals. For a job that ran out of memory and is tried again, only
bounds count that users have asked for: it had its place, and starts wherever there is room.

A bound is of a whole run, and a company lasts for a part of it, so what a pair costs counts in part; where three or
more would share, and it is guessed what one of them does, predictions are too low more often (`SLOWDOWN_WEIGHTS`, decision 0048).

What a job does to a GPU comes from the history of the same work, and so do its slowdowns. Before there is any, a
newcomer's activity is expected from the memory that it needs (decision 0048), that of a resident is what the GPU did
while it was alone there, or is told apart from what all do together, and others suffer as such activity and memory
cost them on average (decision 0048).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal, cast

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.pairing import ActivityPairing, CoRunner, Residents, expected_co_runner_of
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.policies._options import gib_to_bytes
from cotenant.scheduling.prediction.interference import Predictor, PriorInterference
from cotenant.scheduling.recovery import has_oomed

MAX_CACHED = 100_000

QueueOrder = Literal["oldest", "shortest", "least-work", "due"]

SLOWDOWN_WEIGHTS = {(2, False): 0.75, (2, True): 0.85, (3, False): 1.0, (3, True): 1.35}
"""What multiplies the time that company is predicted to cost, for the whole run: by how many would share, three
standing for more, and whether it is guessed what one of them does to a GPU."""

PATIENCE = 3.0
"""A job is due so many times its GPU time after its submission (decision 0048)."""

_ORDERS: dict[QueueOrder, orders.Order] = {
    "oldest": orders.fifo,
    "shortest": orders.shortest_first,
    "least-work": orders.least_work_first,
    "due": orders.due_first(PATIENCE),
}


class MarginalGainPairing(ActivityPairing):
    """The match of the policy."""

    rule = "marginal_gain"

    def __init__(
        self,
        *,
        min_gain: float,
        max_slowdown: float,
        smact_sum: float,
        predictor: Predictor,
        safety_factor: float = 1.0,
    ) -> None:
        self._caution = safety_factor
        self._least_gain = min_gain
        self._slowdown_bound = max_slowdown
        self._smact_sum = smact_sum
        self._predictor = predictor
        self._known: dict[tuple[CoRunner, Residents], float | None] = {}
        self._known_version = -1

    def with_predictions(self, facts: JobPredictions) -> MarginalGainPairing:
        """The same with what history knows of slowdowns, if it does."""
        predictor = getattr(facts, "interference", None) or self._predictor
        return MarginalGainPairing(
            min_gain=self._least_gain,
            max_slowdown=self._slowdown_bound,
            smact_sum=self._smact_sum,
            predictor=predictor,
            safety_factor=self._caution,
        )

    def profile(self, job: Job, facts: JobPredictions) -> CoRunner:
        """Its activity and its bound, and whether it ran out of memory."""
        member = expected_co_runner_of(job, facts)
        return member._replace(ignores_activity=True) if job.attempts and has_oomed(job) else member

    def cost(self, profile: Hashable, gpu_class: Hashable) -> float | None:
        """The gain, negated."""
        key = (cast("CoRunner", profile), cast("Residents", gpu_class))
        if self._known_version != self._predictor.version or len(self._known) > MAX_CACHED:
            self._known.clear()
            self._known_version = self._predictor.version
        if key not in self._known:
            gain, why_not = (0.0, "too active") if self._are_too_active(*key) else self._judge(*key)
            self._known[key] = None if why_not else -gain
        return self._known[key]

    def _are_too_active(self, newcomer: CoRunner, residents: Residents) -> bool:
        """The cheapest limit to see."""
        if newcomer.ignores_activity or not residents:
            return False
        return sum([each.smact for each in residents]) + newcomer.smact > self._smact_sum + 1e-9

    def reason(self, profile: Hashable, gpu_class: Hashable) -> str:
        """Which limit it would break, with the numbers."""
        return self._judge(cast("CoRunner", profile), cast("Residents", gpu_class))[1]

    def _judge(self, newcomer: CoRunner, residents: Residents) -> tuple[float, str]:
        """The gain, rounded so that equals are equal, and the limit that is broken, if one is."""
        if not residents:
            return 1.0, ""
        everybody = (*residents, newcomer)
        smact_sum = sum(each.smact for each in everybody)
        before = self._predictor.slowdowns([each.activity for each in residents])
        after = self._predictor.slowdowns([each.activity for each in everybody])
        gain = round(sum(1.0 / each for each in after) - sum(1.0 / each for each in before), 4)
        if self._are_too_active(newcomer, residents):
            added = f" ({newcomer.smact:.2f} expected of it)" if newcomer.guessed else ""
            return gain, f"SMACT {smact_sum:.2f} in all with this job{added}, limit {self._smact_sum:.2f}"
        counts = SLOWDOWN_WEIGHTS[min(3, len(everybody)), any(each.guessed for each in everybody)]
        for each, at_a_time in zip(everybody, after, strict=True):
            slowdown = 1.0 + counts * (at_a_time - 1.0)
            own = math.inf if newcomer.ignores_activity else self._slowdown_bound
            bound = own if each.bound is None else each.bound
            if slowdown * self._caution > bound:
                who = "this job" if each is everybody[-1] else f"a job with SMACT {each.smact:.2f} there"
                careful = f" with safety factor {self._caution:.2f}" if self._caution > 1 else ""
                return gain, f"{who} would take {slowdown:.2f} times as long, bound {bound:.2f}{careful}"
        if gain < self._least_gain and not newcomer.ignores_activity:
            return gain, f"{gain:+.2f} jobs' worth of speed gained, {self._least_gain:.2f} wanted"
        return gain, ""


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
) -> Ranked:
    """`parse_slowdown` is for jobs that name none; `max_jobs` share a GPU at most; others as described above.

    `safety_factor` multiplies predicted slowdowns before they are compared with a bound: more jobs stay within it above 1.
    `order` is who is considered first among those of equal priority: who is due first, see `PATIENCE`; the oldest; or,
    by history, the shortest or those that need least GPU time, then those of unknown duration by age. `reserve_after_s` is
    how long anybody waits before GPUs are emptied for it.
    `headroom_gib` stays free besides all promises, for what fragments, or is held outside any process.
    """
    if not min_gain <= 1:
        raise UsageError(f"no job gains {min_gain:g}: an empty GPU is 1", hint="write e.g. `0.3`")
    if not 1 <= max_slowdown < math.inf:
        raise UsageError(f"slowdown bound {max_slowdown:g} is below 1 or no number", hint="write e.g. `1.5`")
    if not 1 <= safety_factor < math.inf:
        raise UsageError(f"safety factor {safety_factor:g} is below 1 or no number", hint="write e.g. `1.2`")
    if not 0 < smact_sum < math.inf:
        raise UsageError(f"a sum of SM activities of {smact_sum:g} is no limit", hint="write e.g. `1.6`")
    return Ranked(
        name="marginal-gain",
        order=_ORDERS[order],
        gates=(gates.max_jobs(max_jobs), gates.warming_up_unless_known(warmup_s)),
        score=scores.most_available_memory,
        match=MarginalGainPairing(
            min_gain=min_gain,
            max_slowdown=max_slowdown,
            smact_sum=smact_sum,
            predictor=PriorInterference(),
            safety_factor=safety_factor,
        ),
        reserve_after_s=reserve_after_s,
        headroom_bytes=gib_to_bytes(headroom_gib, "memory to spare"),
        sharing=sharing,
    )
