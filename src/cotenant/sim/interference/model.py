"""Speeds of jobs that share a GPU, from the cost of each pair.

The slowdown of a job is 1 plus the costs of its partners. The cost of a partner comes from the first source that knows
the pair: a measurement, a fit to measurements, or a law; `origin` says which. Groups of more than two jobs were not
measured: costs add up or multiply, as configured, and the sum of the speeds stays below a ceiling, as configured
(decision 0036).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from cotenant.core.gpu import Sharing
from cotenant.scheduling.prediction.interference import MAX_TOTAL_SPEED

DEFAULT_GPU = "A100-40GB"

Origin = Literal["measured", "fitted", "assumed"]
Combine = Literal["additive", "multiplicative"]
Ceiling = Literal["multiprocessors", "line"]

# Summed speed of 218 pairs on an A100-40GB against their summed SM activity: 2.26 - 0.63 x sum, R2 0.78.
LINE_START = 2.26
LINE_SLOPE = -0.63

MAX_CACHED_PAIRS = 100_000


class TrueActivity(NamedTuple):
    """The activity of a job that has a GPU to itself.

    Attributes:
        workload: its name in tables of measured pairs, or None.
        smact, smocc, drama, utilization: ratios; None if unknown.
        sensitivity: multiplies the costs of partners, 1 as measured; hidden from policies. Must be the last field.
    """

    workload: str | None
    smact: float
    smocc: float | None = None
    drama: float | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    sensitivity: float = 1.0


class PairCost(NamedTuple):
    """What a partner adds to the slowdown of a victim (0: nothing, 1: half its speed), and its origin."""

    slowdown: float
    origin: Origin


class PairCosts(Protocol):
    """A source of pair costs on one GPU type under one sharing mode."""

    def cost(self, victim: TrueActivity, partner: TrueActivity) -> PairCost | None:
        """The cost of `partner` to `victim`; None if this source does not know the pair."""
        ...


class Interference(Protocol):
    """Speeds of jobs that share a GPU."""

    def speeds(
        self, members: Sequence[TrueActivity], gpu_type: str = DEFAULT_GPU, sharing: Sharing = "time-sliced"
    ) -> Sequence[float]:
        """Speed of each job in the given order, relative to alone on a whole GPU of that type: 0..1."""
        ...


class Collocation:
    """Speeds on one GPU type under time slicing, from pair costs.

    The first of `sources` that knows a pair counts; a pair that none knows costs nothing.
    """

    def __init__(
        self,
        sources: Sequence[PairCosts],
        *,
        combine: Combine = "additive",
        ceiling: Ceiling = "multiprocessors",
    ) -> None:
        self._sources = tuple(sources)
        self._combine = combine
        self._ceiling = within_line if ceiling == "line" else within_total
        self._known: dict[tuple[object, ...], PairCost] = {}

    def cost(self, victim: TrueActivity, partner: TrueActivity) -> PairCost:
        """The cost from the first source that knows the pair, for a sensitivity of 1."""
        key = (victim[:-1], partner[:-1])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED_PAIRS:
                self._known.clear()
            found = self._known[key] = self._first_known(victim, partner)
        return found

    def _first_known(self, victim: TrueActivity, partner: TrueActivity) -> PairCost:
        for source in self._sources:
            found = source.cost(victim, partner)
            if found is not None:
                return found
        return PairCost(0.0, "assumed")

    def speeds(
        self,
        members: Sequence[TrueActivity],
        gpu_type: str = DEFAULT_GPU,  # noqa: ARG002 - of the protocol; this model is of one type
        sharing: Sharing = "time-sliced",  # noqa: ARG002
    ) -> list[float]:
        """Speed of each job; 1 for a job alone."""
        if len(members) < 2:
            return [1.0] * len(members)
        found: list[float] = []
        known = True
        for i, victim in enumerate(members):
            slowdown = 1.0
            for j, partner in enumerate(members):
                if j == i:
                    continue
                pair = self.cost(victim, partner)
                known = known and pair.origin == "measured"
                extra = pair.slowdown * victim.sensitivity
                slowdown = slowdown * (1.0 + extra) if self._combine == "multiplicative" else slowdown + extra
            found.append(1.0 / slowdown)
        if len(members) == 2:
            return found if known else within_multiprocessors(found, members)
        return self._ceiling(within_multiprocessors(found, members), members)


def within_multiprocessors(speeds: list[float], members: Sequence[TrueActivity]) -> list[float]:
    """`speeds`, scaled down by one factor if the jobs would need more than all SMs."""
    needed = sum(member.smact * speed for member, speed in zip(members, speeds, strict=True))
    return speeds if needed <= 1.0 else [speed / needed for speed in speeds]


def within_total(speeds: list[float], _members: Sequence[TrueActivity]) -> list[float]:
    """`speeds`, scaled down by one factor if their sum exceeds the largest one observed."""
    total = sum(speeds)
    return speeds if total <= MAX_TOTAL_SPEED else [speed * MAX_TOTAL_SPEED / total for speed in speeds]


def within_line(speeds: list[float], members: Sequence[TrueActivity]) -> list[float]:
    """`speeds`, scaled down by one factor if their sum is above the line fitted to the measured pairs.

    For more than two jobs the line is extrapolated, but not below 1: sharing is not slower than running in turn.
    """
    limit = max(1.0, LINE_START + LINE_SLOPE * sum(member.smact for member in members))
    total = sum(speeds)
    return speeds if total <= limit else [speed * limit / total for speed in speeds]
