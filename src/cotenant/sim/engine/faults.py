"""GPU faults: a GPU goes down under its jobs and comes back repaired.

A module of its own: without a failure rate a simulation does not use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import FAULT, REPAIR, EventQueue
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.engine.sim_gpu import SimGpu
from cotenant.sim.trace import Trace

MAX_EXPECTED_ATTEMPTS = 10_000


def check_faults(config: SimulationConfig, trace: Trace, gpu_count: int) -> None:
    """Refuse faults so frequent that a job would start again and again, and the simulation would not end.

    Work of s seconds on g GPUs, each with a fault every f seconds in the mean, succeeds with probability exp(-s g / f).

    Raises:
        UsageError: a job that fits into the cluster would need more than `MAX_EXPECTED_ATTEMPTS` for some of its work.
    """
    if config.fault_every_s is None:
        return
    longest_s = config.fault_every_s * math.log(MAX_EXPECTED_ATTEMPTS)
    saved_s = math.inf if config.checkpoint_s is None else config.checkpoint_s
    for number, (duration_s, gpus) in enumerate(zip(trace.duration_s, trace.gpus, strict=True)):
        if gpus <= gpu_count and min(duration_s, saved_s) * gpus > longest_s:
            raise UsageError(
                f"job {number} of trace `{trace.name}` needs {min(duration_s, saved_s):g} s without a fault of its GPUs"
                f" ({gpus}), and each fails every {config.fault_every_s:g} s: it would hardly ever end",
                hint=f"save its work (`checkpoint_s`) at least every {longest_s / gpus:.3g} s, or let GPUs fail rarely",
            )


class FaultInjector:
    """Handles FAULT and REPAIR events; `interrupt(attempt, at_s)` ends an attempt whose job is to start again."""

    def __init__(
        self,
        config: SimulationConfig,
        plans: AttemptPlans,
        observations: Observations,
        events: EventQueue[Any],
        interrupt: Callable[[RunningAttempt, float], None],
    ) -> None:
        self._config = config
        self._plans = plans
        self._observations = observations
        self._events = events
        self._interrupt = interrupt

    def schedule_first(self, gpu: SimGpu) -> None:
        """Schedule the first fault of a GPU, if there are faults."""
        if self._config.fault_every_s is not None:
            self._events.put(self._plans.draw_time_to_fault_s(), FAULT, gpu)

    def fail(self, gpu: SimGpu, at_s: float) -> None:
        """Take the GPU down and interrupt its jobs; they keep their last checkpoint."""
        gpu.is_down = True
        self._observations.gpu_changed(gpu)
        for attempt in list(gpu.residents):
            self._plans.checkpoint(attempt, self._checkpointed_s(attempt, at_s))
            self._interrupt(attempt, at_s)
        self._events.put(at_s + self._config.repair_s, REPAIR, gpu)

    def repair(self, gpu: SimGpu, at_s: float) -> None:
        """Bring the GPU back and schedule its next fault."""
        gpu.is_down = False
        self._observations.gpu_changed(gpu)
        self._events.put(at_s + self._plans.draw_time_to_fault_s(), FAULT, gpu)

    def _checkpointed_s(self, attempt: RunningAttempt, at_s: float) -> float:
        step_s = self._config.checkpoint_s
        if step_s is None:
            return 0.0
        done_s = attempt.done_s + (attempt.speed * (at_s - attempt.since_s) if attempt.is_active else 0.0)
        return math.floor(done_s / step_s) * step_s
