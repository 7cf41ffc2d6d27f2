"""The numbers of a simulated world that are not the trace's, the GPUs' or the policy's."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass

from cotenant.core.errors import UsageError

P95 = 1.6448536269514722
"""Standard deviations from the median of a normal distribution to its 95th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """How a world behaves; the defaults are those of a server with one reading of its GPUs a second.

    Attributes:
        seed: of all that is drawn: launch delays, sensitivities, faults.
        delay_median_s, delay_p95_s: from launch to the first work on a GPU, log-normal; part of a job's duration, of
            which it is at most `delay_share`. Source of both: AEGIS, on its A100 runs.
        window_s: what a policy sees of the past, in readings `reading_s` apart, each the mean since the one before.
        recheck_s: so long after a GPU changed, waiting jobs are looked at again, for by then it shows more of what it
            does now. A daemon looks every second; nothing new shows between these moments.
        restart_s: from an attempt that ran out of memory to its job being queued again.
        cross_node_speed: what a job of several GPUs keeps of its speed where they are not all in one server, 0 to 1. Gavel
            measured medians of 0.5 on V100s, 0.7 on P100s and 1 on K80s.
        reference_gpu: the GPU type that the run times of the trace are of; None for the first of the cluster. On other types
            jobs are as much faster or slower as `gpu_speeds` knows.
        sensitivity_sd: standard deviation of the log of a factor, hidden from policies, on what company costs a job.
        fault_every_s: mean time between faults of one GPU, exponential; None for never. Its jobs start again, from
            the last multiple of `checkpoint_s` of their work if that is given; it is back after `repair_s`.
        record: keep what every GPU did over time, for reports.
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
    record: bool = False

    def __post_init__(self) -> None:
        for name in ("delay_median_s", "delay_share", "restart_s", "sensitivity_sd", "repair_s"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"`{name}` is {value:g}, wanted 0 or more")
        if not 0.0 < self.cross_node_speed <= 1.0:
            raise UsageError(f"`cross_node_speed` is {self.cross_node_speed:g}, wanted more than 0 and up to 1")
        if self.delay_p95_s < self.delay_median_s:
            raise UsageError(f"launch delay has P95 {self.delay_p95_s:g} s below its median {self.delay_median_s:g} s")
        for name in ("window_s", "reading_s", "fault_every_s", "checkpoint_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise UsageError(f"`{name}` is {value:g}, wanted more than 0")

    @property
    def delay_sigma(self) -> float:
        """Standard deviation of the log of the launch delay."""
        return math.log(self.delay_p95_s / self.delay_median_s) / P95 if self.delay_median_s > 0 else 0.0

    def first_delays(self, count: int) -> array[float]:
        """From launch to first work, for the first attempt of each of `count` jobs: the first that `seed` draws."""
        drawn = random.Random(self.seed)  # noqa: S311 - no secret
        return array(
            "d", [self.delay_median_s * math.exp(self.delay_sigma * drawn.gauss(0.0, 1.0)) for _ in range(count)]
        )
