"""GPU faults: a GPU goes down under its jobs and comes back repaired.

A module of its own: without a failure rate a simulation does not use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import FAULT, REPAIR, EventQueue
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.engine.sim_gpu import SimGpu


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
