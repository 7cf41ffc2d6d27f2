"""Raises predicted slowdowns while too many jobs miss their slowdown bound.

`marginal-gain` admits a job whose predicted slowdown, weighted for the part of its run in which it shares, stays within
the bound. On a server that is always full jobs share all the time, and the weights are too small. So the part of a
slowdown above 1 is multiplied by a factor that follows the jobs that have ended: adaptive conformal inference (Gibbs
and Candès, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021, equation 2) on the logarithm of the
factor (decision 0087).

A module of its own: a history holds one, and nothing here knows jobs.
"""

from __future__ import annotations

import math

from cotenant.scheduling.prediction.interference import MEASUREMENT_STD

MISSES_WANTED = 0.05
"""Share of jobs that may miss their bound."""

RATE = 0.02
"""Change of the factor's logarithm for a job that misses its bound; one that keeps it takes back a nineteenth of it."""

MAX_FACTOR = 1.6
"""From here on a bound of 1.5 admits next to nothing, and jobs that do not share teach nothing but that."""

FACTOR_STEP = 0.02
"""A smaller change of the factor changes no decision: judgments are cached."""


class BoundCalibration:
    """The factor of one server, from 1 to `MAX_FACTOR`. It depends on the jobs and their order alone."""

    __slots__ = ("_exact",)

    def __init__(self, factor: float = 1.0) -> None:
        self._exact = min(MAX_FACTOR, max(1.0, factor))

    @property
    def factor(self) -> float:
        """By which the part of a predicted slowdown above 1 is multiplied, in steps of `FACTOR_STEP`."""
        return 1.0 + FACTOR_STEP * round((self._exact - 1.0) / FACTOR_STEP)

    def learn(self, slowdown: float, bound: float) -> None:
        """Learn from a job that had this slowdown over its run.

        Most slowdowns are predicted, not measured, so that one near the bound counts as a part of a miss: the
        probability of one if the log of the slowdown has the standard deviation of a measured one. A job that lost
        nothing missed nothing, though its bound be 1.
        """
        missed = 0.0
        if slowdown > 1.0:
            surplus = math.log(slowdown / bound) / MEASUREMENT_STD
            missed = 0.5 * math.erfc(-surplus / math.sqrt(2.0))
        self._exact = min(MAX_FACTOR, max(1.0, self._exact * math.exp(RATE * (missed - MISSES_WANTED))))

    def state(self) -> float:
        """The factor as it is, for another instance."""
        return self._exact
