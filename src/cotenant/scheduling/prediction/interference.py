"""How much jobs on one GPU slow each other down, as far as a policy can know it.

At first, from what a job does alone: its slowdown is 1 plus, for each partner, 0.868 x SMACT^2.565 x (fifths of the
GPU's memory)^0.791 of that partner, or 1.94 x SMACT^4.44 where its memory is not known (fitted on 218 pairs of jobs on
an A100-40GB; what the victim does itself hardly matters there). All together need no more than all SMs, so where the
speeds would, all are cut by the same factor. For more than two jobs the sum is an extrapolation: nobody has measured
it.

Then, from what was observed: each kind of work has one number for how much more it suffers than that, and one for how
much more it makes others suffer, both in log slowdown. On the 218 pairs two such numbers explain most of what SM
activity leaves open, and interference is one-sided, which a sum of activities cannot say. They start at 0 with a
prior spread and are moved by every observation by as much as is still uncertain about them (a Kalman filter with a
diagonal covariance), so that one odd reading moves what is well known only a little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from cotenant.core.gpu import Sharing
from cotenant.core.units import GiB, MiB

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
"""Memory of a GPU of which nobody says how large it is: that of the law."""

ASSUMED_SMACT = 0.5
"""SM activity of a job of which nothing is known, as in the replays of the CARMA traces that the policies come from."""

EXPECTED_SMACT = (-1.38, 0.16)
EXPECTED_SMACT_RANGE_MIB = (512.0, 8192.0)
"""A job that needs m MiB is expected to keep so much of the SMs active: first + second x log2 m, m cut to the range.

Fitted to 53 training jobs on an A100-40GB (R2 0.86). A model left out at all its batch sizes is missed by 0.08 on
average, where `ASSUMED_SMACT` misses by 0.26: what fits in little memory is a small batch or a small model, and both
leave SMs idle.
"""

PRIOR_STD = 0.2
"""How far, in log slowdown, a kind of work is from what its SM activity says; the order of what 52 workloads show."""

MEASUREMENT_STD = 0.1
"""How far a good reading of a slowdown is from the truth: repeats of the same pair differ by 1 to 10 %."""


class GpuActivity(NamedTuple):
    """What a job does to a GPU when it has it alone; None where not known.

    Attributes:
        workload: the key that jobs of the same work have in common, see `history`.
        smact, smocc, drama: ratios, 0..1.
        memory_bytes: that it holds, or is expected to.
        gpu_memory_bytes: memory of the GPU in question.
    """

    workload: str | None = None
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None


class InterferencePredictor(Protocol):
    """Predicts slowdowns. `version` changes when the same question may get another answer."""

    @property
    def version(self) -> int:
        """Counts what was learned."""
        ...

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:
        """Step time of each beside the others, as a multiple of its step time alone; at least 1, in the same order."""
        ...


def expected_smact(needed_bytes: int) -> float:
    """SM activity of a job of which nothing but its memory need is known; a ratio."""
    start, slope = EXPECTED_SMACT
    low, high = EXPECTED_SMACT_RANGE_MIB
    return min(1.0, max(0.0, start + slope * math.log2(min(max(needed_bytes / MiB, low), high))))


def aggressiveness(smact: float, memory_bytes: int | None, gpu_memory_bytes: int = ASSUMED_GPU_MEMORY_BYTES) -> float:
    """What a partner that does this on a GPU of that size adds to anybody's slowdown, before that was ever seen."""
    if not memory_bytes:
        return float(AGGRESSIVENESS * smact**EXPONENT)
    factor, power, of_memory = AGGRESSIVENESS_WITH_MEMORY
    return float(factor * smact**power * (memory_bytes / (AGGRESSIVENESS_UNIT_SHARE * gpu_memory_bytes)) ** of_memory)


def prior_slowdowns(activities: Sequence[GpuActivity], smacts: Sequence[float]) -> list[float]:
    """What activity and memory alone say; not yet cut to what all SMs can do. All are on the GPU that one tells of."""
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
    """`slowdowns`, raised so that all together need no more than all SMs; at least 1."""
    needed = sum([smact / slowdown for smact, slowdown in zip(smacts, slowdowns, strict=True)])
    stretch = max(1.0, needed)
    return tuple([max(1.0, slowdown * stretch) for slowdown in slowdowns])


class PriorInterference:
    """Knows every job by its SM activity and memory, and none in particular."""

    version = 0

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:  # noqa: ARG002 -- one model for all ways to share, until MPS pairs are measured
        """From activity and memory alone."""
        if len(activities) < 2:
            return (1.0,) * len(activities)
        smacts = smacts_or_assumed(activities)
        return limit_to_all_sms(prior_slowdowns(activities, smacts), smacts)


def smacts_or_assumed(activities: Sequence[GpuActivity]) -> list[float]:
    """SM activity of each, or what is assumed."""
    return [ASSUMED_SMACT if activity.smact is None else activity.smact for activity in activities]


class GaussianEstimate(NamedTuple):
    """What is known of one number: its value, and the variance of what is not known about it."""

    value: float = 0.0
    variance: float = PRIOR_STD**2


_UNKNOWN = GaussianEstimate()


class LearnedInterference:
    """Predicts from what was observed of each kind of work, on top of `PriorInterference`."""

    def __init__(self) -> None:
        self.version = 0
        self._victims: dict[str, GaussianEstimate] = {}
        self._aggressors: dict[str, GaussianEstimate] = {}

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:  # noqa: ARG002 -- as PriorInterference
        """From activity and memory, and from what is known of each kind of work."""
        if len(activities) < 2:
            return (1.0,) * len(activities)
        smacts = smacts_or_assumed(activities)
        return limit_to_all_sms(self._learned(activities, smacts), smacts)

    def _learned(self, activities: Sequence[GpuActivity], smacts: Sequence[float]) -> list[float]:
        # Nobody learns of a workload that has no name: `None` is no key of these.
        victims, aggressors = self._victims, self._aggressors
        suffering = [victims.get(activity.workload, _UNKNOWN)[0] for activity in activities]  # type: ignore[arg-type]
        aggression = [aggressors.get(activity.workload, _UNKNOWN)[0] for activity in activities]  # type: ignore[arg-type]
        total = sum(aggression)
        return [
            cold * math.exp(victim + total - own)
            for cold, victim, own in zip(prior_slowdowns(activities, smacts), suffering, aggression, strict=True)
        ]

    def learn(
        self,
        activities: Sequence[GpuActivity],
        observed: Sequence[float | None],
        *,
        spread: float,
        predicted: Sequence[float] | None = None,
    ) -> None:
        """Take in slowdowns observed of jobs that shared a GPU; None where a job's is not known.

        `spread` is how far the readings may be off in log slowdown: `MEASUREMENT_STD` for measured step rates.
        `predicted` are the `slowdowns` of these as of now, if somebody has them.
        """
        if len(activities) < 2:
            return
        predicted = predicted or self.slowdowns(activities)
        for index, slowdown in enumerate(observed):
            if slowdown is None or not 0 < slowdown < math.inf:
                continue
            # A speed-up in company is noise: no company pays a job.
            surprise = math.log(max(1.0, slowdown)) - math.log(predicted[index])
            self._move(activities, index, surprise, spread)
            self.version += 1

    def _move(self, activities: Sequence[GpuActivity], victim: int, surprise: float, spread: float) -> None:
        """Share `surprise` out among the victim and its aggressors by how uncertain each is."""
        roles = [(self._victims, activities[victim].workload)]
        roles += [(self._aggressors, activity.workload) for index, activity in enumerate(activities) if index != victim]
        uncertain = [(_UNKNOWN if name is None else effects.get(name, _UNKNOWN)).variance for effects, name in roles]
        total = spread**2 + sum(uncertain)
        for effects, name in roles:
            if name is not None:
                value, variance = effects.get(name, _UNKNOWN)
                gain = variance / total
                effects[name] = GaussianEstimate(value + gain * surprise, variance * (1.0 - gain))

    def effects(self, workload: str) -> tuple[float | None, float | None]:
        """How much more it suffers, and makes suffer, than its activity says, in log slowdown; None where not seen."""
        victim, aggressor = self._victims.get(workload), self._aggressors.get(workload)
        return (None if victim is None else victim.value, None if aggressor is None else aggressor.value)

    def state(self) -> dict[str, list[float]]:
        """What was learned, as plain values: by workload, value and variance as victim, then as aggressor."""
        keys = sorted(self._victims.keys() | self._aggressors.keys())
        return {key: [*self._victims.get(key, _UNKNOWN), *self._aggressors.get(key, _UNKNOWN)] for key in keys}

    @classmethod
    def restored(cls, state: Mapping[str, Sequence[float]]) -> LearnedInterference:
        """As it was when `state` was asked for."""
        found = cls()
        for workload, (victim, victim_variance, aggressor, aggressor_variance) in state.items():
            found._victims[workload] = GaussianEstimate(victim, victim_variance)
            found._aggressors[workload] = GaussianEstimate(aggressor, aggressor_variance)
        found.version = len(found._victims)
        return found
