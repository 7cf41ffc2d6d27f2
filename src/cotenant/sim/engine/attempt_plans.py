"""What the trace and the random seed decide about an attempt: its launch delay, its work, its sensitivity."""

from __future__ import annotations

import math
import random
from array import array

from cotenant.sim import gpu_speeds
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.engine.speeds import SpeedCache, activity_of, busy_share
from cotenant.sim.trace import Trace


class AttemptPlans:
    """Draws from the seed of `config`: for first attempts in the order of the trace, whatever the policy does.

    Attributes:
        reference_gpu: GPU type that the run times of the trace refer to.
    """

    def __init__(self, trace: Trace, config: SimulationConfig, cache: SpeedCache, cluster: Cluster) -> None:
        self._trace = trace
        self._config = config
        self._cache = cache
        self._rng = random.Random(config.seed)  # noqa: S311 - no secret
        self._first_delays_s = config.draw_delays_s(len(trace), self._rng)
        self._sensitivities: array[float] | None = None
        if config.sensitivity_sd > 0:
            gauss, sd = self._rng.gauss, config.sensitivity_sd
            self._sensitivities = array("d", [math.exp(sd * gauss(0.0, 1.0)) for _ in range(len(trace))])
        activities = [activity_of(profile) for profile in trace.profiles]
        self._activity_ids = [cache.id_of(activity) for activity in activities]
        self._busy = [busy_share([activity]) for activity in activities]
        self._moved: dict[int, None] = {}  # by number
        self._checkpoints_s: dict[int, float] = {}  # by number, in seconds on the reference GPU
        types = dict.fromkeys(slot.gpu_type for slot in cluster.slots)
        self.reference_gpu = gpu_speeds.reference_type(cluster, config.reference_gpu)
        self._has_other_types = list(types) != [self.reference_gpu]
        self._relative_speeds: dict[tuple[str, int], float] = {}

    def draw_time_to_fault_s(self) -> float:
        """Time to the next fault of a GPU."""
        return self._rng.expovariate(1.0 / (self._config.fault_every_s or math.inf))

    def fill(self, attempt: RunningAttempt, *, first: bool, delay_s: float | None = None) -> None:
        """Set delay, work and activity of an attempt.

        Pass `delay_s` for an attempt that is at work already: its duration then holds on the GPUs it has.
        """
        number = attempt.number
        duration_s = self._trace.duration_s[number]
        if delay_s is None:
            is_same_work = first or number in self._moved
            delay_s = self._first_delays_s[number] if is_same_work else self._config.draw_delay_s(self._rng)
            if self._has_other_types:
                attempt.relative_speed = min([self._relative_speed(gpu.gpu_type, number) for gpu in attempt.gpus])
        attempt.delay_s = min(delay_s, self._config.delay_share * duration_s)
        attempt.work_s = (duration_s - attempt.delay_s) / attempt.relative_speed
        if number in self._moved:
            attempt.delay_s = self._config.startup_s
        attempt.done_s = self._checkpoints_s.get(number, 0.0) / attempt.relative_speed
        if self._config.cross_node_speed < 1.0 and len({gpu.server for gpu in attempt.gpus}) > 1:
            attempt.network_factor = self._config.cross_node_speed
        index = self._trace.profile_of[number]
        if index < 0:
            return
        attempt.profile = self._trace.profiles[index]
        attempt.activity_id = self._activity_ids[index]
        attempt.busy = self._busy[index]
        if self._sensitivities is not None:
            own = self._cache[attempt.activity_id]._replace(sensitivity=self._sensitivities[number])
            attempt.activity_id = self._cache.id_of(own)
        attempt.activity = self._cache[attempt.activity_id]

    def moved(self, attempt: RunningAttempt, done_s: float) -> None:
        """Save its work as `checkpoint`; its next attempts take `startup_s` to start, on top of its work."""
        self.checkpoint(attempt, done_s)
        self._moved[attempt.number] = None

    def checkpoint(self, attempt: RunningAttempt, done_s: float) -> None:
        """Save `done_s` of its work, in seconds on its GPUs: the next attempt continues from there."""
        self._checkpoints_s[attempt.number] = done_s * attempt.relative_speed

    def _relative_speed(self, gpu_type: str, number: int) -> float:
        """Speed of a job on a GPU of that type, relative to the reference GPU."""
        index = self._trace.workload_of[number]
        speed = self._relative_speeds.get((gpu_type, index))
        if speed is None:
            workload = self._trace.workloads[index] if index >= 0 else None
            speed = gpu_speeds.relative_speed(gpu_type, self.reference_gpu, workload)
            self._relative_speeds[gpu_type, index] = speed
        return speed
