"""Sources of pair costs: measured pairs, and a law of the partner's SM activity.

A module of its own: `model` combines any sources, these are the ones that ship.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.sim.interference.model import Collocation, Origin, PairCost, TrueActivity

# Fitted on 218 pairs of jobs on an A100 (R2 0.69): what the victim does itself hardly matters there.
AGGRESSION = 1.94
EXPONENT = 4.44


class SmactCosts:
    """1.94 x SMACT^4.44 of the partner, for every pair."""

    def __init__(self, origin: Origin = "fitted") -> None:
        self._origin: Origin = origin

    def cost(self, victim: TrueActivity, partner: TrueActivity) -> PairCost:  # noqa: ARG002 - of the protocol
        """The cost of the partner to any job."""
        return PairCost(float(AGGRESSION * partner.smact**EXPONENT), self._origin)


class MeasuredCosts:
    """Costs of measured pairs: `speeds[(victim, partner)]` is the speed of the victim relative to alone."""

    def __init__(self, speeds: Mapping[tuple[str, str], float]) -> None:
        # Some jobs were measured slightly faster with a partner. That is noise: a partner costs at least 0.
        self._costs = {pair: PairCost(max(0.0, 1.0 / speed - 1.0), "measured") for pair, speed in speeds.items()}

    def cost(self, victim: TrueActivity, partner: TrueActivity) -> PairCost | None:
        """The measured cost; None if this pair was not measured."""
        if victim.workload is None or partner.workload is None:
            return None
        return self._costs.get((victim.workload, partner.workload))


class SmactPowerLaw(Collocation):
    """Speeds from SM activity alone."""

    def __init__(self) -> None:
        super().__init__([SmactCosts()])


class PairTable(Collocation):
    """Speeds from measured pairs, else from SM activity."""

    def __init__(self, pairs: Mapping[tuple[str, str], float]) -> None:
        super().__init__([MeasuredCosts(pairs), SmactCosts()])
