"""How much jobs on one GPU slow each other down: what was measured, what was fitted to it, and what is assumed."""

from cotenant.sim.interference.model import (
    Activity,
    Ceiling,
    Collocation,
    Combine,
    Interference,
    Origin,
    PairCost,
    PairCosts,
)
from cotenant.sim.interference.sources import PairTable, SmactPowerLaw
from cotenant.sim.interference.standard import Standard, draw_sensitivity, standard

__all__ = [
    "Activity",
    "Ceiling",
    "Collocation",
    "Combine",
    "Interference",
    "Origin",
    "PairCost",
    "PairCosts",
    "PairTable",
    "SmactPowerLaw",
    "Standard",
    "draw_sensitivity",
    "standard",
]
