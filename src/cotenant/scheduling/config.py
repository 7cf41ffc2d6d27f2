"""What a manager is told besides its policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one user may have at once; None is no limit.

    Attributes:
        max_running: attempts that run.
        gpus: GPUs of these, shared ones counted once for each.
        max_unfinished: jobs that are not over; submitting more is refused.
    """

    max_running: int | None = None
    gpus: int | None = None
    max_unfinished: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """Numbers of a manager; the defaults suit one reading of the GPUs a second.

    Attributes:
        estimate: ask for estimates. Without, a job that declares nothing has an unknown need and runs alone.
        stale_after_s: a reading older than this admits nothing.
        window_s: samples kept for policies.
        stop_grace_s: from the polite signal to the end of the process tree.
        time_slice_grace_s: the same for a job whose time slot is over: the time it has to save its state.
        eager_queue: with more jobs waiting than this, a new one is looked at with the next sample, not at once.
        quota: of every user, but those in `user_quotas`.
        pace: seconds of the GPUs' time in one of ours; above 1 on a simulated server whose time runs faster.
    """

    estimate: bool = True
    stale_after_s: float = 5.0
    window_s: float = 30.0
    stop_grace_s: float = 10.0
    time_slice_grace_s: float = 120.0
    eager_queue: int = 200
    quota: Quota = Quota()
    user_quotas: Mapping[str, Quota] = field(default_factory=dict)
    pace: float = 1.0

    def quota_of(self, user: str) -> Quota:
        """What holds for this user."""
        return self.user_quotas.get(user, self.quota)
