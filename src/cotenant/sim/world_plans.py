"""What chance and the trace have in store for an attempt: its launch delay, its work, its sensitivity."""

from __future__ import annotations

import math
import random
from array import array

from cotenant.sim.jobs import Trace
from cotenant.sim.power import busy
from cotenant.sim.world_card import Live
from cotenant.sim.world_config import WorldConfig
from cotenant.sim.world_speeds import Speeds, activity_of


class Plans:
    """Drawn from the seed of `config`: for first attempts in the order of the trace, whatever the policy does.

    Attributes:
        done_before_s: work that a job need not do again, by number.
    """

    def __init__(self, trace: Trace, config: WorldConfig, speeds: Speeds) -> None:
        self._trace = trace
        self._config = config
        self._speeds = speeds
        self._random = random.Random(config.seed)  # noqa: S311 - no secret
        self._delays = array("d", [self._delay_s() for _ in range(len(trace))])
        self._sensitivities: array[float] | None = None
        if config.sensitivity_sd > 0:
            gauss, sd = self._random.gauss, config.sensitivity_sd
            self._sensitivities = array("d", [math.exp(sd * gauss(0.0, 1.0)) for _ in range(len(trace))])
        self._profile_ids = [speeds.id_of(activity_of(each)) for each in trace.profiles]
        self._busy = [busy([activity_of(each)]) for each in trace.profiles]
        self.done_before_s: dict[int, float] = {}

    def _delay_s(self) -> float:
        return self._config.delay_median_s * math.exp(self._config.delay_sigma * self._random.gauss(0.0, 1.0))

    def fault_after_s(self) -> float:
        """Time to the next fault of a GPU."""
        return self._random.expovariate(1.0 / (self._config.fault_every_s or math.inf))

    def fill(self, live: Live, *, first: bool, delay_s: float | None = None) -> None:
        """Give an attempt its delay (or the one given), its work and its activity."""
        number = live.number
        duration_s = self._trace.duration_s[number]
        if delay_s is None:
            delay_s = self._delays[number] if first else self._delay_s()
        live.delay_s = min(delay_s, self._config.delay_share * duration_s)
        live.work_s = duration_s - live.delay_s
        live.done_s = self.done_before_s.get(number, 0.0)
        if self._config.spread_speed < 1.0 and len({card.server for card in live.cards}) > 1:
            live.links = self._config.spread_speed
        index = self._trace.profile_of[number]
        if index < 0:
            return
        live.profile = self._trace.profiles[index]
        live.activity_id = self._profile_ids[index]
        live.busy = self._busy[index]
        if self._sensitivities is not None:
            own = self._speeds[live.activity_id]._replace(sensitivity=self._sensitivities[number])
            live.activity_id = self._speeds.id_of(own)
        live.activity = self._speeds[live.activity_id]
