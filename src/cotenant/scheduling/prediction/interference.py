"""Predicts how much jobs on one GPU slow each other down.

The prior uses solo activity: the slowdown of a job is 1 plus, for each partner, 0.868 x SMACT^2.565 x (fifths of the
GPU's memory)^0.791 of that partner, or 1.94 x SMACT^4.44 where its memory is not known (fitted on 218 pairs of jobs on
an A100-40GB, where the activity of the victim has little effect). If the speeds would need more than all SMs, all are
reduced by the same factor. For more than two jobs the sum is an extrapolation; time-sliced ones are reduced to the
largest sum of speeds that was measured.

The posterior adds two effects per workload in log slowdown, learned from observed co-runs: its sensitivity as a victim
and its pressure as an aggressor. On the 218 pairs they explain most of the variance that SM activity leaves; a sum of
activities cannot express that interference is asymmetric. Both start at 0 with a prior variance and are updated by a
Kalman filter with a diagonal covariance, so that an outlier has little effect on a well-known workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cotenant.core.estimate import SmactInterval, smact_interval_around
from cotenant.core.gpu import Sharing
from cotenant.core.units import GiB, MiB
from cotenant.scheduling.prediction.interference_table import InterferenceTable

if TYPE_CHECKING:
    from cotenant.core.job import Job

AGGRESSIVENESS = 1.94
EXPONENT = 4.44

AGGRESSIVENESS_WITH_MEMORY = (0.868, 2.565, 0.791)
"""Factor, and powers of SM activity and of memory in fifths of the GPU's: a large batch has long kernels, for which
others wait, longer where the GPU is small.

Fitted to the same pairs. Partners of a family left out: R2 of the speed 0.65, where SM activity alone has 0.57; victims
0.76, 0.69 (decision 0048).
"""
AGGRESSIVENESS_UNIT_SHARE = 0.2
ASSUMED_GPU_MEMORY_BYTES = 40 * GiB
"""Memory assumed for a GPU of unknown size: that of the GPU the prior was fitted on."""

MAX_TOTAL_SPEED = 2.8
"""Most that time-sliced jobs on one GPU do together, as a multiple of one alone: the best of four or five that were
measured did 2.72 (AEGIS, progressive admission); seven small ones 2.8 to 3.5 under MPS (thesis, chapter 4)."""

ASSUMED_SMACT = 0.5
"""SM activity assumed for a job without any data, as in the replays of the CARMA traces that the policies come from."""

EXPECTED_SMACT = (-1.38, 0.16)
EXPECTED_SMACT_RANGE_MIB = (512.0, 8192.0)
"""Expected SM activity of a job that needs m MiB: first + second x log2 m, with m limited to the range.

Fitted to 53 training jobs on an A100-40GB (R2 0.86). A model left out at all its batch sizes is missed by 0.08 on
average, where `ASSUMED_SMACT` misses by 0.26: what fits in little memory is a small batch or a small model, and both
leave SMs idle.
"""

PRIOR_STD = 0.2
"""Prior standard deviation of a workload's effects in log slowdown; the order of magnitude over 52 workloads."""

MEASUREMENT_STD = 0.1
"""Standard deviation of a measured log slowdown: repeated runs of the same pair differ by 1 to 10 %."""


class GpuActivity(NamedTuple):
    """Solo activity of a job on a GPU; None where not known.

    Attributes:
        workload: key shared by all jobs of the same workload, see `workloads`.
        smact, smocc, drama: ratios, 0..1.
        memory_bytes: observed or expected memory of the job.
        gpu_memory_bytes: total memory of the GPU.
    """

    workload: str | None = None
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None


class InterferencePredictor(Protocol):
    """Predicts slowdowns. `version` grows when predictions may have changed."""

    @property
    def version(self) -> int:
        """The number of observations learned."""
        ...

    def learned_at(self, workloads: Iterable[str]) -> int:
        """The version since which no prediction for jobs of these workloads alone has changed."""
        ...

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:
        """Step time of each beside the others, as a multiple of its step time alone; at least 1, in the same order."""
        ...

    def slice_speed(self, workload: str | None, profile: str) -> float | None:
        """Measured speed of a workload alone on a MIG instance, as a part of that on the whole GPU; None: not known."""
        ...


def expected_smact(needed_bytes: int) -> float:
    """Expected SM activity (0..1) of a job of which only the memory demand is known."""
    start, slope = EXPECTED_SMACT
    low, high = EXPECTED_SMACT_RANGE_MIB
    return min(1.0, max(0.0, start + slope * math.log2(min(max(needed_bytes / MiB, low), high))))


def smact_interval_by_memory(needed_bytes: int | None) -> SmactInterval:
    """`expected_smact` with its interval; `ASSUMED_SMACT` where the memory demand is not known either."""
    return smact_interval_around(ASSUMED_SMACT if needed_bytes is None else expected_smact(needed_bytes))


def smact_interval_of_unseen(job: Job, needed_bytes: int | None) -> SmactInterval:
    """Expected SM activity of a job whose workload was not observed yet: that of its estimate, else by memory alone."""
    found = None if job.estimate is None else job.estimate.smact_interval
    return smact_interval_by_memory(needed_bytes) if found is None else found


def aggressiveness(smact: float, memory_bytes: int | None, gpu_memory_bytes: int = ASSUMED_GPU_MEMORY_BYTES) -> float:
    """Prior of what a partner with this SM activity and memory adds to the slowdown of every other job on the GPU."""
    if not memory_bytes:
        return float(AGGRESSIVENESS * smact**EXPONENT)
    factor, power, of_memory = AGGRESSIVENESS_WITH_MEMORY
    return float(factor * smact**power * (memory_bytes / (AGGRESSIVENESS_UNIT_SHARE * gpu_memory_bytes)) ** of_memory)


def prior_slowdowns(activities: Sequence[GpuActivity], smacts: Sequence[float]) -> list[float]:
    """Slowdowns by activity and memory alone, without the limit to all SMs. All jobs are on the same GPU."""
    gpu_memory_bytes = next(
        (activity.gpu_memory_bytes for activity in activities if activity.gpu_memory_bytes), ASSUMED_GPU_MEMORY_BYTES
    )
    costs = [
        aggressiveness(smact, activity.memory_bytes, gpu_memory_bytes)
        for smact, activity in zip(smacts, activities, strict=True)
    ]
    total = sum(costs)
    return [1.0 + total - cost for cost in costs]


def limit_to_all_sms(slowdowns: Sequence[float], smacts: Sequence[float]) -> tuple[float, ...]:
    """`slowdowns`, raised so that all jobs together need at most all SMs; at least 1."""
    needed = sum([smact / slowdown for smact, slowdown in zip(smacts, slowdowns, strict=True)])
    stretch = max(1.0, needed)
    return tuple([max(1.0, slowdown * stretch) for slowdown in slowdowns])


def limit_total_speed(slowdowns: tuple[float, ...], sharing: Sharing) -> tuple[float, ...]:
    """`slowdowns` of at least 1, raised until time-sliced jobs do `MAX_TOTAL_SPEED` times what one does alone."""
    if len(slowdowns) <= MAX_TOTAL_SPEED or sharing != "time-sliced":
        return slowdowns
    stretch = sum([1.0 / slowdown for slowdown in slowdowns]) / MAX_TOTAL_SPEED
    return slowdowns if stretch <= 1.0 else tuple([slowdown * stretch for slowdown in slowdowns])


class PriorInterference:
    """Predicts from SM activity and memory alone."""

    version = 0

    def learned_at(self, workloads: Iterable[str]) -> int:  # noqa: ARG002 -- it learns nothing
        """0."""
        return 0

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:
        """Slowdowns by activity and memory alone; pairs under MPS were not measured, and count as time-sliced ones."""
        if len(activities) < 2:
            return (1.0,) * len(activities)
        smacts = smacts_or_assumed(activities)
        return limit_total_speed(limit_to_all_sms(prior_slowdowns(activities, smacts), smacts), sharing)

    def slice_speed(self, workload: str | None, profile: str) -> float | None:  # noqa: ARG002 -- it measured nothing
        """None."""
        return None


def smacts_or_assumed(activities: Sequence[GpuActivity]) -> list[float]:
    """The SM activity of each job, `ASSUMED_SMACT` if unknown."""
    return [ASSUMED_SMACT if activity.smact is None else activity.smact for activity in activities]


class GaussianEstimate(NamedTuple):
    """Mean and variance of an unknown number."""

    value: float = 0.0
    variance: float = PRIOR_STD**2


_UNKNOWN = GaussianEstimate()


class LearnedInterference:
    """Predicts from `PriorInterference` and the effects of each workload.

    The effects of a workload start where `table` has them for the way to share, else at 0. What is learned is the same
    for all ways to share, and is added to what the table says.
    """

    def __init__(self, table: InterferenceTable | None = None) -> None:
        self.version = 0
        self.table = table
        self.table_digest = "" if table is None else table.digest
        self._victims: dict[str, GaussianEstimate] = {}
        self._aggressors: dict[str, GaussianEstimate] = {}
        self._learned_at: dict[str, int] = {}  # version by workload

    def learned_at(self, workloads: Iterable[str]) -> int:
        """The version at which the newest effect of one of them was learned."""
        learned_at = self._learned_at
        return max([learned_at.get(workload, 0) for workload in workloads], default=0)

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:
        """Slowdowns by activity, memory, measured and learned effects."""
        if len(activities) < 2:
            return (1.0,) * len(activities)
        smacts = smacts_or_assumed(activities)
        found = limit_to_all_sms(self._learned(activities, smacts, sharing), smacts)
        measured = None if self.table is None else self.table.way(sharing)
        return found if measured is not None and measured.group_factors else limit_total_speed(found, sharing)

    def slice_speed(self, workload: str | None, profile: str) -> float | None:
        """As the table has it; None without one."""
        measured = None if self.table is None or workload is None else self.table.workloads.get(workload)
        return None if measured is None else measured.slice_speeds.get(profile)

    def _learned(self, activities: Sequence[GpuActivity], smacts: Sequence[float], sharing: Sharing) -> list[float]:
        # `None` is never a key here, because `learn` skips activities without a workload.
        victims, aggressors = self._victims, self._aggressors
        sensitivity = [victims.get(activity.workload, _UNKNOWN)[0] for activity in activities]  # type: ignore[arg-type]
        pressure = [aggressors.get(activity.workload, _UNKNOWN)[0] for activity in activities]  # type: ignore[arg-type]
        shift = 0.0
        measured = None if self.table is None else self.table.way(sharing)
        if measured is not None:
            for index, activity in enumerate(activities):
                effects = measured.effects.get(activity.workload or "")
                if effects is not None:
                    sensitivity[index] += effects.victim
                    pressure[index] += effects.aggressor
            shift = math.log(group_factor(measured.group_factors, len(activities)))
        total = sum(pressure) + shift
        return [
            cold * math.exp(victim + total - own)
            for cold, victim, own in zip(prior_slowdowns(activities, smacts), sensitivity, pressure, strict=True)
        ]

    def learn(
        self,
        activities: Sequence[GpuActivity],
        observed: Sequence[float | None],
        *,
        spread: float,
        predicted: Sequence[float] | None = None,
        sharing: Sharing = "time-sliced",
    ) -> None:
        """Learn from observed slowdowns of jobs that shared a GPU; None for a job whose slowdown is not known.

        `spread` is the standard deviation of the observations in log slowdown: `MEASUREMENT_STD` for measured step
        rates. `predicted` are the current `slowdowns` of these activities, if the caller has computed them.
        """
        if len(activities) < 2:
            return
        predicted = predicted or self.slowdowns(activities, sharing)
        for index, slowdown in enumerate(observed):
            if slowdown is None or not 0 < slowdown < math.inf:
                continue
            # Neighbors never speed a job up: a slowdown below 1 is noise.
            surprise = math.log(max(1.0, slowdown)) - math.log(predicted[index])
            self.version += 1
            self._move(activities, index, surprise, spread, sharing)

    def _move(
        self, activities: Sequence[GpuActivity], victim: int, surprise: float, spread: float, sharing: Sharing
    ) -> None:
        """Distribute `surprise` over the victim and its aggressors in proportion to their variances."""
        starts = self._start_variances(activities[victim].workload, sharing)
        roles = [(self._victims, activities[victim].workload, starts[0])]
        for index, activity in enumerate(activities):
            if index != victim:
                start = self._start_variances(activity.workload, sharing)[1]
                roles.append((self._aggressors, activity.workload, start))
        uncertain = [
            (_UNKNOWN if name is None else effects.get(name, GaussianEstimate(0.0, start))).variance
            for effects, name, start in roles
        ]
        total = spread**2 + sum(uncertain)
        for effects, name, start in roles:
            if name is not None:
                value, variance = effects.get(name, GaussianEstimate(0.0, start))
                gain = variance / total
                effects[name] = GaussianEstimate(value + gain * surprise, variance * (1.0 - gain))
                self._learned_at[name] = self.version

    def _start_variances(self, workload: str | None, sharing: Sharing) -> tuple[float, float]:
        """Variances of the effects of a workload, as victim and as aggressor, before anything was learned."""
        measured = None if self.table is None else self.table.way(sharing)
        effects = None if measured is None or workload is None else measured.effects.get(workload)
        if effects is None:
            return _UNKNOWN.variance, _UNKNOWN.variance
        return effects.victim_variance, effects.aggressor_variance

    def effects(self, workload: str) -> tuple[float | None, float | None]:
        """Learned effects of a workload as victim and as aggressor, in log slowdown; None if not observed."""
        victim, aggressor = self._victims.get(workload), self._aggressors.get(workload)
        return (None if victim is None else victim.value, None if aggressor is None else aggressor.value)

    def state(self) -> dict[str, list[float]]:
        """Learned effects as plain values: by workload, mean and variance as victim, then as aggressor."""
        keys = sorted(self._victims.keys() | self._aggressors.keys())
        return {key: [*self._victims.get(key, _UNKNOWN), *self._aggressors.get(key, _UNKNOWN)] for key in keys}

    @classmethod
    def restored(
        cls, state: Mapping[str, Sequence[float]], table: InterferenceTable | None = None, *, learned_with: str = ""
    ) -> LearnedInterference:
        """The predictor with a state that `state` returned, learned on top of the table of digest `learned_with`.

        What was learned on top of another table, or without one, would count twice: it is forgotten for the workloads
        that either table may name.
        """
        found = cls(table)
        for workload, (victim, victim_variance, aggressor, aggressor_variance) in state.items():
            if found.table_digest != learned_with and (learned_with or table is None or workload in table.workloads):
                continue
            found._victims[workload] = GaussianEstimate(victim, victim_variance)
            found._aggressors[workload] = GaussianEstimate(aggressor, aggressor_variance)
        found.version = len(found._victims)
        return found


def group_factor(factors: Mapping[int, float], count: int) -> float:
    """The factor of groups of `count` jobs: that of the largest measured number of jobs up to it; 1 without one."""
    known = [measured for measured in factors if measured <= count]
    return factors[max(known)] if known else 1.0
