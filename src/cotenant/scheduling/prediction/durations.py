"""How long jobs run: an expectation and an interval, from earlier runs of the workload and from the work done so far.

Times are of a job alone on its GPUs. On each side of an interval are a tenth of the jobs it was chosen on, by the rows
left out (decision 0083).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

ASSUMED_DURATION_S = 3600.0
"""Time alone that work is taken for of which no run has completed."""

RUN_LOG_STD = 0.2
PRIOR_RUNS = 2.0
RUN_REACH = 1.3
"""Standard deviation of the log of a run's duration around that of others of its workload, before any is known, and
the runs that this counts for; an interval reaches so many standard deviations to each side."""

UNKNOWN_LEFT_S = (60.0, 11_000.0)
UNKNOWN_LEFT_RATIOS = (0.12, 20.0)
MAX_RATIO_S = 14_400.0
LATER_RATIO = 5.0
"""What an unknown job has left, at the ends of the interval: so much, and so many times what it has worked; beyond
`MAX_RATIO_S` of work, the upper end grows by `LATER_RATIO`. Fitted to the first half of Philly's jobs."""

OVERDUE_RATIOS = (0.02, 0.1, 0.5)
"""What a job has left at least, as parts of what it has worked, where it outlasted the runs before it."""


class DurationInterval(NamedTuple):
    """Seconds alone: an expectation, and its interval."""

    low_s: float
    expected_s: float
    high_s: float

    def left(self, worked_s: float) -> DurationInterval:
        """What is left of it after so much work."""
        found = [max(whole_s - worked_s, ratio * worked_s) for whole_s, ratio in zip(self, OVERDUE_RATIOS, strict=True)]
        return DurationInterval(*found)


def duration_of_runs(durations_s: Sequence[float]) -> DurationInterval | None:
    """The duration of the next run, by those of completed runs: around their median; None without any."""
    if not durations_s:
        return None
    expected_s = sorted(durations_s)[len(durations_s) // 2]
    if expected_s <= 0.0:
        return DurationInterval(0.0, 0.0, 0.0)
    squares = sum([math.log(max(duration_s, 1e-3) / expected_s) ** 2 for duration_s in durations_s])
    freedom = PRIOR_RUNS + len(durations_s) - 1
    std = math.sqrt((PRIOR_RUNS * RUN_LOG_STD**2 + squares) / freedom * (1.0 + 1.0 / len(durations_s)))
    reach = math.exp(RUN_REACH * std)
    return DurationInterval(expected_s / reach, expected_s, expected_s * reach)


def unknown_left(worked_s: float, *, pace: float = 1.0) -> DurationInterval:
    """What a job has left of whose workload no run has completed; `pace`: seconds of GPU time per second."""
    low_s, high_s = (end_s / pace for end_s in UNKNOWN_LEFT_S)
    early_s = min(worked_s, MAX_RATIO_S / pace)
    below, above = UNKNOWN_LEFT_RATIOS
    return DurationInterval(
        low_s + below * worked_s,
        max(ASSUMED_DURATION_S / pace - worked_s, 0.5 * worked_s),
        high_s + above * early_s + LATER_RATIO * (worked_s - early_s),
    )
