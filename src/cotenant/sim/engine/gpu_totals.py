"""What a GPU of a simulated world did: in all, and from moment to moment."""

from __future__ import annotations

from typing import NamedTuple


class GpuTotals(NamedTuple):
    """What a GPU did from the start of a run to its end.

    Attributes:
        busy_s: with an attempt on it; `active_s`: with one at work.
        memory_byte_s, smact_s, smocc_s, drama_s: integrals over time.
        shared_s: with more than one attempt on it.
    """

    busy_s: float
    active_s: float
    shared_s: float
    memory_byte_s: float
    smact_s: float
    smocc_s: float
    drama_s: float
    energy_j: float


class GpuMoment(NamedTuple):
    """A GPU from `at_s` on, until its next moment."""

    at_s: float
    residents: int
    held_bytes: int
    smact: float
    power_w: float
