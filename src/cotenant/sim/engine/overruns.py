"""Acts on simulated attempts that outgrow their promise, by the daemon's own rule: `scheduling.overrun_watch`.

A daemon looks at every sample. Here a GPU is looked at, at the times of its readings, only while an attempt on it holds
more than its promise and something of that GPU has changed. A module of its own: `report` does not use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cotenant.core.events import Command, Pause, Resume, Stop
from cotenant.core.job import Job
from cotenant.scheduling.overrun_watch import OverrunWatch
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import OVERRUN_CHECK, EventQueue
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.running_attempt import RunningAttempt, job_after_stop
from cotenant.sim.engine.sim_gpu import SimGpu
from cotenant.sim.engine.speeds import SpeedUpdater


class OverrunGuard:
    """Handles OVERRUN_CHECK events; `end(attempt, job, at_s)` ends an attempt and queues `job` again.

    `before_change(gpus, at_s)`: the attempts at work on these GPUs are about to change.
    """

    def __init__(
        self,
        config: SimulationConfig,
        observations: Observations,
        events: EventQueue[Any],
        updater: SpeedUpdater,
        before_change: Callable[[Sequence[SimGpu], float], None],
        end: Callable[[RunningAttempt, Job, float], None],
    ) -> None:
        self._watch = OverrunWatch(config.overrun, stop_grace_s=0.0)
        self._reading_s = config.reading_s
        self._observations = observations
        self._events = events
        self._updater = updater
        self._before_change = before_change
        self._end = end
        self._suspects: dict[SimGpu, None] = {}
        self._looked_s = -math.inf
        self._due_s = math.inf

    def changed(self, gpus: Iterable[SimGpu], at_s: float) -> None:
        """What is promised or held on these GPUs has changed."""
        self._suspects.update(dict.fromkeys(gpu for gpu in gpus if _overruns(gpu)))
        if self._suspects:
            self._schedule(at_s)

    def check(self, _subject: None, at_s: float) -> bool:
        """Look at the reading of `at_s`; whether anything was done about it."""
        self._looked_s, self._due_s = at_s, math.inf
        self._suspects = dict.fromkeys(gpu for gpu in self._suspects if _overruns(gpu))
        gpus = list(self._suspects)
        residents = {attempt.job.id: attempt for gpu in gpus for attempt in gpu.residents}
        commands = self._watch.commands(lambda: [self._observations.snapshot(gpu, at_s) for gpu in gpus], at_s)
        for command in commands:
            self._execute(command, residents, at_s)
        if commands or self._watch.is_undecided:
            self._schedule(at_s)
        return bool(commands)

    def _schedule(self, at_s: float) -> None:
        due_s = max(self._observations.next_reading_s(at_s), self._looked_s + self._reading_s)
        if due_s < self._due_s:
            self._due_s = due_s
            self._events.put(due_s, OVERRUN_CHECK, None)

    def _execute(self, command: Command, residents: dict[int, RunningAttempt], at_s: float) -> None:
        attempt = residents.get(command.job_id) if isinstance(command, (Stop, Pause, Resume)) else None
        if attempt is None:
            return
        self._before_change(attempt.gpus, at_s)
        if isinstance(command, Stop):
            self._end(attempt, job_after_stop(attempt, command.cause, at_s), at_s)
            return
        attempt.done_s += attempt.speed * (at_s - attempt.since_s)
        attempt.since_s, attempt.speed = at_s, 0.0
        attempt.version += 1
        attempt.is_paused = isinstance(command, Pause)
        attempt.co_run_since_s = at_s
        for gpu in attempt.gpus:
            gpu.advance(at_s)
            if attempt.is_paused:
                gpu.active.remove(attempt)
            else:
                gpu.active.append(attempt)
        self._updater.update(attempt.gpus, at_s)


def _overruns(gpu: SimGpu) -> bool:
    return any(attempt.held_bytes > attempt.placement.promised_bytes for attempt in gpu.residents)
