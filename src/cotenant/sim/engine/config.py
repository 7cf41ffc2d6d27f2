"""Settings of a simulation besides trace, cluster and policy."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cotenant.core.errors import UsageError
from cotenant.scheduling.overrun_watch import OverrunPolicy
from cotenant.scheduling.repartition import RepartitionRule

P95 = 1.6448536269514722
"""Standard deviations from the median of a normal distribution to its 95th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """The defaults are those of a server that samples its GPUs once per second.

    Attributes:
        seed: of launch delays, sensitivities and faults.
        delay_median_s, delay_p95_s: time from launch to the first work on a GPU, log-normal (measured by AEGIS on
            A100s). The delay is part of a job's duration, at most `delay_share` of it.
        window_s: how far back a policy sees, in readings `reading_s` apart. A reading is the mean since the last one.
        recheck_s: pending jobs are reconsidered this long after a GPU changed, when its readings show more of its new
            activity. A daemon looks every second; between these moments nothing new shows.
        restart_s: time from an OOM until the job is queued again.
        cross_node_speed: speed of a job whose GPUs are in several servers, relative to one server, 0 to 1. Gavel
            measured medians of 0.5 on V100s, 0.7 on P100s and 1 on K80s.
        reference_gpu: GPU type that the run times of the trace refer to; None for the first of the cluster. On other
            types jobs run at the relative speeds of `gpu_speeds`.
        sensitivity_sd: standard deviation of the log of a factor on each job's slowdown that policies cannot see.
        fault_every_s: mean time between faults of one GPU, exponential; None for no faults. Jobs on it restart, from
            the last multiple of `checkpoint_s` of their work if that is set; the GPU is back after `repair_s`.
        time_slice_s: after this long, less `time_slice_notice_s`, an attempt is stopped if jobs wait, and its job is
            queued last. With `slice_checkpoints` it continues where it was, else from its beginning.
        overrun: what is done about attempts that hold more than their promise, as `[scheduling] overrun` of a daemon.
        movable_share: share of the jobs that can be moved, drawn by the seed. A move takes `save_s`, in which the job
            holds its GPUs and makes no step, and `startup_s` of the next attempt. Policies that move jobs use it.
        reports_steps: jobs report their steps, so that a history knows how much each group slowed them down.
        repartition: when empty GPUs in MIG mode get another layout of instances, and at which cost; None: never.
        record: keep the use of every GPU over time, for reports.
    """

    seed: int = 0
    delay_median_s: float = 8.2
    delay_p95_s: float = 20.6
    delay_share: float = 0.3
    window_s: float = 30.0
    reading_s: float = 1.0
    recheck_s: tuple[float, ...] = (0.0, 15.0, 30.0)
    restart_s: float = 1.0
    cross_node_speed: float = 1.0
    reference_gpu: str | None = None
    sensitivity_sd: float = 0.0
    fault_every_s: float | None = None
    repair_s: float = 3600.0
    checkpoint_s: float | None = None
    time_slice_s: float | None = None
    time_slice_notice_s: float = 600.0
    slice_checkpoints: bool = True
    overrun: OverrunPolicy = field(default_factory=OverrunPolicy)
    movable_share: float = 0.0
    save_s: float = 30.0
    startup_s: float = 30.0
    reports_steps: bool = False
    repartition: RepartitionRule | None = None
    record: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.movable_share <= 1.0:
            raise UsageError(f"`movable_share` must be 0 to 1, got {self.movable_share:g}")
        if self.repartition is not None and self.fault_every_s is not None:
            raise UsageError("faults and MIG repartitioning cannot be simulated together", hint="leave one of them out")
        durations = ("save_s", "startup_s", "delay_median_s", "restart_s", "repair_s", "time_slice_notice_s")
        for name in (*durations, "delay_share", "sensitivity_sd"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"`{name}` must be >= 0, got {value:g}")
        if not 0.0 < self.cross_node_speed <= 1.0:
            raise UsageError(f"`cross_node_speed` must be > 0 and <= 1, got {self.cross_node_speed:g}")
        if self.delay_p95_s < self.delay_median_s:
            raise UsageError(
                f"the P95 of the launch delay, {self.delay_p95_s:g} s, is below its median, {self.delay_median_s:g} s"
            )
        for name in ("window_s", "reading_s", "fault_every_s", "checkpoint_s", "time_slice_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise UsageError(f"`{name}` must be > 0, got {value:g}")

    def movable(self) -> Callable[[int], bool] | None:
        """Whether the job of a number can be moved, by the seed; None: no job can."""
        if not self.movable_share:
            return None
        seed, share = self.seed, self.movable_share
        return lambda number: random.Random(f"{seed} {number}").random() < share  # noqa: S311 - no secret

    def with_window(self, window_s: float | None) -> SimulationConfig:
        """The same with a window of at least `window_s`, and rechecks until it shows the new activity alone."""
        if window_s is None or window_s <= self.window_s:
            return self
        rechecks = tuple(sorted({*self.recheck_s, window_s * 2 / 3, window_s}))
        return replace(self, window_s=window_s, recheck_s=rechecks)

    @property
    def delay_sigma(self) -> float:
        """Standard deviation of the log of the launch delay."""
        return math.log(self.delay_p95_s / self.delay_median_s) / P95 if self.delay_median_s > 0 else 0.0

    def draw_delay_s(self, rng: random.Random) -> float:
        """A launch delay."""
        return self.draw_delays_s(1, rng)[0]

    def draw_delays_s(self, count: int, rng: random.Random) -> array[float]:
        """Launch delays, drawn one after the other."""
        median_s, sigma, exp, gauss = self.delay_median_s, self.delay_sigma, math.exp, rng.gauss
        return array("d", [median_s * exp(sigma * gauss(0.0, 1.0)) for _ in range(count)])

    def first_delays(self, count: int) -> array[float]:
        """Launch delays of the first attempts of `count` jobs: the first values drawn from `seed`."""
        rng = random.Random(self.seed)  # noqa: S311 - no secret
        return self.draw_delays_s(count, rng)
