"""Attempts at work on one GPU of a simulated world, and what the GPU shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cotenant.sim.interference import TrueActivity
from cotenant.sim.power import busy


class GpuLoad(NamedTuple):
    """Attempts at work on one GPU, and what it shows while they go at these speeds.

    Attributes:
        speeds: one for each, in the order they came to work.
        smact, smocc, drama: of the GPU, ratios; `busy`: part of the time in which it has work.
    """

    speeds: tuple[float, ...] = ()
    smact: float = 0.0
    smocc: float = 0.0
    drama: float = 0.0
    busy: float = 0.0


def gpu_load(activities: Sequence[TrueActivity | None], speeds: tuple[float, ...]) -> GpuLoad:
    """Attempts that go at these speeds; None where it is not known what one does."""
    smact = smocc = drama = 0.0
    for activity, speed in zip(activities, speeds, strict=True):
        if activity is not None:
            smact += activity.smact * speed
            smocc += (activity.smocc or 0.0) * speed
            drama += (activity.drama or 0.0) * speed
    return GpuLoad(speeds, min(1.0, smact), min(1.0, smocc), min(1.0, drama), busy(activities))


NO_LOAD = GpuLoad()
