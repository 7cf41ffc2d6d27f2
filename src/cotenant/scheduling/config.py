"""Configuration of a manager: estimates, telemetry, stopping, quotas.

A module of its own: the daemon, the simulator and the demo configure a manager without importing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.scheduling.idle_watch import IdlePolicy
from cotenant.scheduling.overrun_watch import OverrunPolicy
from cotenant.scheduling.prediction.interference_table import InterferenceTable
from cotenant.scheduling.repartition import RepartitionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of one user; None means unlimited.

    Attributes:
        max_running: starting and running attempts.
        gpus: GPUs of these attempts; a shared GPU counts once per attempt.
        max_unfinished: jobs that are not done; further submissions are refused.
    """

    max_running: int | None = None
    gpus: int | None = None
    max_unfinished: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """Settings of a manager; the defaults suit one GPU sample per second.

    Attributes:
        estimate: request memory estimates. Without them, the demand of a job that declares none is unknown, and the
            job gets its GPUs exclusively.
        stale_after_s: no job is placed by a GPU sample older than this.
        window_s: length of the window of samples that policies see.
        stop_grace_s: time from the termination signal to the kill of the process tree.
        time_slice_grace_s: the same for a job whose time slice is over, where it gets no notice before that.
        time_slice_s: longest time slice of every job, see `time_limits`; None: only jobs that ask for one have one.
        time_slice_notice_s: how long before the end of a slice its job gets the termination signal.
        eager_queue: with more queued jobs than this, a new job is considered at the next sample, not at once.
        quota: of every user without an entry in `user_quotas`.
        overrun: what is done about attempts that hold more than their promise.
        idle: when an attempt that holds GPUs counts as idle, and the action on it; None: none is looked for.
        interference: what a study measured of the workloads on these GPUs; None without a study.
        repartition: when empty GPUs in MIG mode get other instances; None: layouts stay as they are.
        pace: seconds of GPU time per second of the manager's clock; above 1 on an accelerated simulated server.
    """

    estimate: bool = True
    stale_after_s: float = 5.0
    window_s: float = 30.0
    stop_grace_s: float = 10.0
    time_slice_grace_s: float = 120.0
    time_slice_s: float | None = None
    time_slice_notice_s: float = 0.0
    eager_queue: int = 200
    quota: Quota = Quota()
    user_quotas: Mapping[str, Quota] = field(default_factory=dict)
    overrun: OverrunPolicy = field(default_factory=OverrunPolicy)
    idle: IdlePolicy | None = None
    interference: InterferenceTable | None = None
    repartition: RepartitionRule | None = None
    pace: float = 1.0

    def quota_of(self, user: str) -> Quota:
        """The quota of this user."""
        return self.user_quotas.get(user, self.quota)
