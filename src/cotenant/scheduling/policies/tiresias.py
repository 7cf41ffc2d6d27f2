"""Tiresias, without preemption (2019): every job exclusively, those with the least attained service first.

Service is GPUs x time of earlier attempts, in levels that begin at `first_level_s` and `second_level_s`; within a
level, first come, first served. Tiresias preempts running jobs to keep that order at all times; here it orders the
queue only, so a job that was requeued or retried goes behind those with less service.

Source: Gu et al., Tiresias, discretized 2D-LAS. One file for each policy.
"""

from __future__ import annotations

from cotenant.core.errors import UsageError
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.ranked import Ranked


def tiresias(
    *, first_level_s: float = 3600.0, second_level_s: float = 36000.0, reserve_after_s: float | None = 1800.0
) -> Ranked:
    """Levels are GPU seconds; `reserve_after_s` protects a job from starvation, as Tiresias' own knob does."""
    if not 0 < first_level_s <= second_level_s:
        raise UsageError(
            f"levels must be above 0 and ascend, got {first_level_s:g} and {second_level_s:g} GPU seconds",
            hint="write e.g. 3600, 36000",
        )
    return Ranked(
        name="tiresias",
        order=orders.least_attained((first_level_s, second_level_s)),
        score=scores.first,
        reserve_after_s=reserve_after_s,
        exclusive=True,
    )
