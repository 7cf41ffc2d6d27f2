"""How much jobs on one GPU slow each other down.

The model: a job's slowdown is 1 plus what each partner costs it. A pair that was measured costs what was
measured; any other costs 1.94 * SMACT^4.44 of the partner, fitted on 218 pairs of jobs on an A100 (what the
victim does itself hardly matters there). With more than two jobs the costs add up, which nobody has measured:
it is an extrapolation. A GPU has only so many SMs, so where modeled speeds would need more SM activity than
1 together, all are cut by the same factor; a measured pair alone is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

AGGRESSION = 1.94
EXPONENT = 4.44


class Load(NamedTuple):
    """A job on a GPU: its workload's name (None: not measured) and its SM activity alone, 0..1."""

    workload: str | None
    smact: float


class Interference(Protocol):
    """Speeds of jobs that share a GPU."""

    def speeds(self, loads: Sequence[Load]) -> list[float]:
        """Speed of each, in the order given, as a part of its speed alone."""
        ...


class SmactPowerLaw:
    """Costs from SM activity alone: knows every job, and none in particular."""

    def speeds(self, loads: Sequence[Load]) -> list[float]:
        """Speed of each; alone it is 1."""
        costs = [sum(_cost(each) for j, each in enumerate(loads) if j != i) for i in range(len(loads))]
        return _capped([1.0 / (1.0 + cost) for cost in costs], loads)


class PairTable:
    """Costs from measured pairs where there are any, else from SM activity."""

    def __init__(self, pairs: Mapping[tuple[str, str], float]) -> None:
        # Some jobs were measured a little faster in company: that is noise, and no company pays a job.
        self._costs = {pair: max(0.0, 1.0 / speed - 1.0) for pair, speed in pairs.items()}

    def speeds(self, loads: Sequence[Load]) -> list[float]:
        """Speed of each; alone it is 1."""
        speeds = [1.0 / (1.0 + self._cost_of_company(loads, i)) for i in range(len(loads))]
        measured = len(loads) == 2 and self._measured(loads[0], loads[1]) is not None
        return speeds if measured else _capped(speeds, loads)

    def _cost_of_company(self, loads: Sequence[Load], victim: int) -> float:
        costs = 0.0
        for j, partner in enumerate(loads):
            if j != victim:
                measured = self._measured(loads[victim], partner)
                costs += _cost(partner) if measured is None else measured
        return costs

    def _measured(self, victim: Load, partner: Load) -> float | None:
        if victim.workload is None or partner.workload is None:
            return None
        return self._costs.get((victim.workload, partner.workload))


def _cost(partner: Load) -> float:
    return float(AGGRESSION * partner.smact**EXPONENT)


def _capped(speeds: list[float], loads: Sequence[Load]) -> list[float]:
    """`speeds`, cut so that together they need no more than all SMs."""
    needed = sum(load.smact * speed for load, speed in zip(loads, speeds, strict=True))
    return speeds if needed <= 1.0 else [speed / needed for speed in speeds]
