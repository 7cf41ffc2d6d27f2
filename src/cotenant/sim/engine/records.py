"""What a simulation records: columns of jobs, sums of GPUs, and GPU use over time."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

COMPLETED, FAILED, OUT_OF_MEMORY, NEVER_STARTED = range(4)
OUTCOMES = ("completed", "failed", "oom", "never started")


class JobColumns:
    """One value per job, indexed by its number in the trace. Columns, because a cluster's year has a million jobs.

    Attributes:
        start_s, end_s: first launch and end; NaN where there was none.
        run_s: time in attempts, all of them; `lost_s`: part of it in attempts that ended without a result.
        alone_s: time that the last attempt would have taken alone on whole GPUs of the types it got; NaN if none.
        retry_wait_s: time from an OOM to the next launch, summed.
        attempts, ooms: counts.
        outcome: index into `OUTCOMES`.
    """

    __slots__ = ("alone_s", "attempts", "end_s", "lost_s", "ooms", "outcome", "retry_wait_s", "run_s", "start_s")

    def __init__(self, count: int) -> None:
        nan, zero, none = array("d", [math.nan]), array("d", [0.0]), array("i", [0])
        self.start_s, self.end_s, self.alone_s = nan * count, nan * count, nan * count
        self.run_s, self.lost_s, self.retry_wait_s = zero * count, zero * count, zero * count
        self.attempts, self.ooms = none * count, none * count
        self.outcome = array("b", [NEVER_STARTED]) * count


class GpuTotals(NamedTuple):
    """Sums of one GPU over a whole run.

    Attributes:
        busy_s: time with an attempt on it; `active_s`: with one at work; `shared_s`: with more than one on it.
        memory_byte_s, smact_s, smocc_s, drama_s: integrals over time.
    """

    busy_s: float
    active_s: float
    shared_s: float
    memory_byte_s: float
    smact_s: float
    smocc_s: float
    drama_s: float
    energy_j: float


class GpuRun(NamedTuple):
    """An attempt on a GPU, of the job `number`. `is_moved`: it saved its state, and its job goes on elsewhere."""

    number: int
    placed_s: float
    ended_s: float
    is_moved: bool


class GpuMoment(NamedTuple):
    """State of a GPU from `at_s` until its next moment."""

    at_s: float
    residents: int
    held_bytes: int
    smact: float
    power_w: float
