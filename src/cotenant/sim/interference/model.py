"""Speeds of jobs that share a GPU, from what each pair of them costs.

A job's slowdown is 1 plus what its partners cost it. What one partner costs comes from the first source that
knows the pair: a measurement, a fit to measurements, or a law; `origin` says which. Of more than two jobs there are
no pairs' tables: costs add up or multiply, as chosen, and the speeds together stay below a ceiling, as chosen too
(decision 0036).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from cotenant.core.gpu import Sharing

DEFAULT_GPU = "A100-40GB"

Origin = Literal["measured", "fitted", "assumed"]
Combine = Literal["additive", "multiplicative"]
Ceiling = Literal["multiprocessors", "line"]

# Summed speed of 218 pairs on an A100-40GB against their summed SM activity: 2.26 - 0.63 x sum, R2 0.78.
LINE_START = 2.26
LINE_SLOPE = -0.63

# Seven small jobs are together 2.8 to 3.5 times as fast as one under MPS, slower when time-sliced (thesis, chapter 4);
# the best of four or five time-sliced jobs was 2.72 (AEGIS, progressive admission).
MAX_TOTAL_SPEED = 2.8

MAX_CACHED_PAIRS = 100_000


class TrueActivity(NamedTuple):
    """A job on a GPU, described by what it does there alone.

    Attributes:
        workload: name by which pairs were measured, or None.
        smact, smocc, drama, utilization: ratios; None where not known.
        sensitivity: multiplies what partners cost this job; 1 is the job as measured. A policy cannot see it. Last.
    """

    workload: str | None
    smact: float
    smocc: float | None = None
    drama: float | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    sensitivity: float = 1.0


class PairCost(NamedTuple):
    """What a partner adds to a victim's slowdown (0: nothing, 1: half its speed), and how that is known."""

    slowdown: float
    origin: Origin


class PairCosts(Protocol):
    """A source of what one job costs another on one kind of GPU, under one kind of sharing."""

    def cost(self, victim: TrueActivity, partner: TrueActivity) -> PairCost | None:
        """What `partner` costs `victim`; None where this source cannot say."""
        ...


class Interference(Protocol):
    """Speeds of jobs that share a GPU."""

    def speeds(
        self, members: Sequence[TrueActivity], gpu_type: str = DEFAULT_GPU, sharing: Sharing = "time-sliced"
    ) -> Sequence[float]:
        """Speed of each, in the order given, as a part of its speed alone on a whole GPU of that type: 0..1."""
        ...


class Collocation:
    """Speeds on one kind of GPU under time slicing, from pair costs.

    `sources` are asked in order; the last should know every pair, else a partner that none knows costs nothing.
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
        """What the first source that knows this pair says, for a sensitivity of 1."""
        key = (victim[:-1], partner[:-1])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED_PAIRS:
                self._known.clear()
            found = self._known[key] = self._ask(victim, partner)
        return found

    def _ask(self, victim: TrueActivity, partner: TrueActivity) -> PairCost:
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
        """Speed of each; alone it is 1."""
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
    """`speeds`, all cut by one factor where together they would need more than all SMs."""
    needed = sum(each.smact * speed for each, speed in zip(members, speeds, strict=True))
    return speeds if needed <= 1.0 else [speed / needed for speed in speeds]


def within_total(speeds: list[float], _members: Sequence[TrueActivity]) -> list[float]:
    """`speeds`, all cut by one factor where their sum is above what was ever seen."""
    total = sum(speeds)
    return speeds if total <= MAX_TOTAL_SPEED else [speed * MAX_TOTAL_SPEED / total for speed in speeds]


def within_line(speeds: list[float], members: Sequence[TrueActivity]) -> list[float]:
    """`speeds`, all cut by one factor where their sum is above the line of the measured pairs.

    The line is extrapolated to more than two jobs, but never below 1: together they are not slower than in turn.
    """
    limit = max(1.0, LINE_START + LINE_SLOPE * sum(member.smact for member in members))
    total = sum(speeds)
    return speeds if total <= limit else [speed * limit / total for speed in speeds]
