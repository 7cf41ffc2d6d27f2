"""What chance and the trace have in store for an attempt: its launch delay, its work, its sensitivity."""

from __future__ import annotations

import math
import random
from array import array

from cotenant.sim import gpu_speeds
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.sim_gpu import RunningAttempt
from cotenant.sim.engine.speeds import SpeedCache, activity_of
from cotenant.sim.power import busy
from cotenant.sim.trace import Trace


class AttemptPlans:
    """Drawn from the seed of `config`: for first attempts in the order of the trace, whatever the policy does.

    Attributes:
        reference_gpu: the GPU type that the run times of the trace are taken to be of.
    """

    def __init__(self, trace: Trace, config: SimulationConfig, speeds: SpeedCache, cluster: Cluster) -> None:
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
        self._done_before_s: dict[int, float] = {}  # by number, in seconds on the GPUs of the trace
        types = dict.fromkeys(slot.gpu_type for slot in cluster.slots)
        self.reference_gpu = gpu_speeds.reference_type(cluster, config.reference_gpu)
        self._other_types = list(types) != [self.reference_gpu]
        self._paces: dict[tuple[str, int], float] = {}

    def _delay_s(self) -> float:
        return self._config.delay_median_s * math.exp(self._config.delay_sigma * self._random.gauss(0.0, 1.0))

    def fault_after_s(self) -> float:
        """Time to the next fault of a GPU."""
        return self._random.expovariate(1.0 / (self._config.fault_every_s or math.inf))

    def fill(self, live: RunningAttempt, *, first: bool, delay_s: float | None = None) -> None:
        """Give an attempt its delay, its work and its activity.

        With a delay given, it is at work already, and its duration is what it takes where it is.
        """
        number = live.number
        duration_s = self._trace.duration_s[number]
        if delay_s is None:
            delay_s = self._delays[number] if first else self._delay_s()
            if self._other_types:
                live.pace = min([self._pace(card.gpu_type, number) for card in live.cards])
        live.delay_s = min(delay_s, self._config.delay_share * duration_s)
        live.work_s = (duration_s - live.delay_s) / live.pace
        live.done_s = self._done_before_s.get(number, 0.0) / live.pace
        if self._config.cross_node_speed < 1.0 and len({card.server for card in live.cards}) > 1:
            live.links = self._config.cross_node_speed
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

    def keep(self, live: RunningAttempt, done_s: float) -> None:
        """The job need not do this work again, given in seconds on the GPUs of this attempt."""
        self._done_before_s[live.number] = done_s * live.pace

    def _pace(self, gpu_type: str, number: int) -> float:
        """Of a job on a GPU of that type, over that on the GPUs of the trace."""
        index = self._trace.workload_of[number]
        found = self._paces.get((gpu_type, index))
        if found is None:
            workload = self._trace.workloads[index] if index >= 0 else None
            found = self._paces[gpu_type, index] = gpu_speeds.relative_speed(gpu_type, self.reference_gpu, workload)
        return found
