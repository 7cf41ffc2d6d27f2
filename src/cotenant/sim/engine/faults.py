"""GPUs of a simulated world that go down under their jobs, and come back repaired."""

from __future__ import annotations

import math
from collections.abc import Callable

from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.sim_gpu import RunningAttempt, SimGpu


class FaultInjector:
    """What the faults of `config` do; `interrupt(live, at_s)` ends an attempt whose job is to start again.

    `fault_at` and `repaired_at` let the world come back with `happens` and `repaired`.
    """

    def __init__(
        self,
        config: SimulationConfig,
        plans: AttemptPlans,
        shown: Observations,
        *,
        fault_at: Callable[[float, SimGpu], None],
        repaired_at: Callable[[float, SimGpu], None],
        interrupt: Callable[[RunningAttempt, float], None],
    ) -> None:
        self._config = config
        self._plans = plans
        self._shown = shown
        self._fault_at = fault_at
        self._repaired_at = repaired_at
        self._interrupt = interrupt

    def await_first(self, card: SimGpu) -> None:
        """Plan the first fault of a GPU, if there will be any."""
        if self._config.fault_every_s is not None:
            self._fault_at(self._plans.fault_after_s(), card)

    def happens(self, card: SimGpu, at_s: float) -> None:
        """It goes down, and its jobs with it; they keep what their last checkpoint holds."""
        card.down = True
        self._shown.changed(card)
        for live in list(card.residents):
            self._plans.keep(live, self._saved_s(live, at_s))
            self._interrupt(live, at_s)
        self._repaired_at(at_s + self._config.repair_s, card)

    def repaired(self, card: SimGpu, at_s: float) -> None:
        """It is back, and will go down again one day."""
        card.down = False
        self._shown.changed(card)
        self._fault_at(at_s + self._plans.fault_after_s(), card)

    def _saved_s(self, live: RunningAttempt, at_s: float) -> float:
        step_s = self._config.checkpoint_s
        if step_s is None:
            return 0.0
        done_s = live.done_s + (live.speed * (at_s - live.since_s) if live.active else 0.0)
        return math.floor(done_s / step_s) * step_s
