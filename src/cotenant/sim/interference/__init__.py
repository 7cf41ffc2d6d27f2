"""How much jobs on one GPU slow each other down: what was measured, what was fitted to it, and what is assumed."""

from cotenant.sim.interference.model import (
    Ceiling,
    Collocation,
    Combine,
    Interference,
    Origin,
    PairCost,
    PairCosts,
    TrueActivity,
)
from cotenant.sim.interference.sources import PairTable, SmactPowerLaw
from cotenant.sim.interference.standard import StandardInterference, draw_sensitivity, standard

__all__ = [
    "Ceiling",
    "Collocation",
    "Combine",
    "Interference",
    "Origin",
    "PairCost",
    "PairCosts",
    "PairTable",
    "SmactPowerLaw",
    "StandardInterference",
    "TrueActivity",
    "draw_sensitivity",
    "standard",
]
