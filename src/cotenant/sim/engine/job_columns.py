"""What a simulated world keeps of each job, as columns: a year of a cluster has a million of them."""

from __future__ import annotations

import math
from array import array

COMPLETED, FAILED, OUT_OF_MEMORY, NEVER_STARTED = range(4)
OUTCOMES = ("completed", "failed", "oom", "never started")


class JobColumns:
    """One value a job, by its number in the trace.

    Attributes:
        start_s, end_s: first launch and end; NaN where there was none.
        run_s: in attempts, all of them; `lost_s`: of that, in attempts that ended without a result.
        alone_s: of the last attempt, had it been alone on whole GPUs of the kinds it got; NaN where there was none.
        retry_wait_s: from running out of memory to the next launch, summed.
        attempts, ooms: how many.
        outcome: index into `OUTCOMES`.
    """

    def __init__(self, count: int) -> None:
        nan, zero, none = array("d", [math.nan]), array("d", [0.0]), array("i", [0])
        self.start_s, self.end_s, self.alone_s = nan * count, nan * count, nan * count
        self.run_s, self.lost_s, self.retry_wait_s = zero * count, zero * count, zero * count
        self.attempts, self.ooms = none * count, none * count
        self.outcome = array("b", [NEVER_STARTED]) * count
