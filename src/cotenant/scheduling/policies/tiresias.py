"""Tiresias as far as it goes without preemption (2019): every job alone, those that had least service first.

Service is GPUs x time of earlier attempts, in classes that begin at `first_level_s` and `second_level_s`; within a
class, first come first served. Tiresias stops running jobs to keep that order all the time; here it orders the queue
only, so a job that was requeued or retried goes behind those that had less.

Source: Gu et al., Tiresias, discretized 2D-LAS.
"""

from __future__ import annotations

from cotenant.core.errors import UsageError
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.ranked import Ranked


def tiresias(
    *, first_level_s: float = 3600.0, second_level_s: float = 36000.0, reserve_after_s: float | None = 1800.0
) -> Ranked:
    """Levels are GPU seconds; `reserve_after_s` promotes a job that starves, as its own knob does there."""
    if not 0 < first_level_s <= second_level_s:
        raise UsageError(
            f"levels of {first_level_s:g} and {second_level_s:g} GPU seconds do not rise", hint="write e.g. 3600, 36000"
        )
    return Ranked(
        name="tiresias",
        order=orders.least_attained((first_level_s, second_level_s)),
        score=scores.first,
        reserve_after_s=reserve_after_s,
        alone=True,
    )
