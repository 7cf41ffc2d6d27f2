"""Speeds of jobs that share a GPU: measured pairs, fits to them, and assumptions."""

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
