"""Moves in a simulation: jobs that save their state, leave their GPUs, and go on where the policy places them next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cotenant.core.job import Attempt, Job
from cotenant.scheduling.move_watch import MoveTimer
from cotenant.scheduling.moves import Move, MovePlanner, RunningJob, running_job
from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import MOVE_CHECK, SAVED, EventQueue
from cotenant.sim.engine.history_feed import SUCCESS, HistoryFeed
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.running_attempt import RunningAttempt, job_after_move
from cotenant.sim.engine.sim_gpu import SimGpu
from cotenant.sim.engine.speeds import SpeedUpdater

End = Callable[[RunningAttempt, Job, float, float], None]
"""`end(attempt, job, at_s, lost_s)` ends an attempt, and queues `job` again."""

Handler = Callable[[Any, float], bool | None]
"""Of a kind of event, with its subject; False: it changed nothing."""


def ignore_change(_at_s: float) -> None:
    """In place of `Mover.changed` where no job is moved."""


def ignore_event(_subject: Any, _at_s: float) -> bool:
    """The handler of events that this run does not have."""
    return False


class Mover:
    """Handles MOVE_CHECK and SAVED events: the moves of a policy that moves jobs."""

    def __init__(
        self,
        planner: MovePlanner,
        feed: HistoryFeed,
        plans: AttemptPlans,
        config: SimulationConfig,
        observations: Observations,
        events: EventQueue[Any],
        updater: SpeedUpdater,
    ) -> None:
        self._planner = planner
        self._timer = MoveTimer(planner.rule)
        self._scheduled_s = math.inf
        self._config = config
        self._plans = plans
        self._observations = observations
        self._events = events
        self._updater = updater
        self._feed = feed

    def handlers(self, gpus: Sequence[SimGpu], waiting: Mapping[int, Job], end: End) -> tuple[Handler, Handler]:
        """Of MOVE_CHECK and of SAVED."""
        return partial(self.check, gpus, waiting), partial(self.saved, end)

    def changed(self, at_s: float) -> None:
        """A job is queued, or an attempt was launched or has ended."""
        self._timer.changed(at_s)
        self._schedule()

    def _schedule(self) -> None:
        due_s = self._timer.due_s
        if due_s < self._scheduled_s:
            self._scheduled_s = due_s
            self._events.put(due_s, MOVE_CHECK, None)

    def check(self, gpus: Sequence[SimGpu], waiting: Mapping[int, Job], _subject: None, at_s: float) -> bool:
        """Begin the move that is worth most; whether there was any."""
        if at_s < self._timer.due_s:
            return False  # it was due before a look that has been made since
        planner, feed = self._planner, self._feed
        attempts = {attempt.job.id: attempt for gpu in gpus for attempt in gpu.residents}
        movable = [attempt.placed_s for attempt in attempts.values() if planner.is_movable(attempt.job)]
        self._timer.looked(at_s, movable)
        self._scheduled_s = math.inf
        if not attempts:
            return False
        self._schedule()
        if not movable:
            return False
        feed.close_intervals(gpus, at_s)
        running = {
            job_id: self._running(attempt, feed, at_s)
            for job_id, attempt in attempts.items()
            if attempt.is_active and not attempt.is_paused
        }
        snapshots = [self._observations.snapshot(gpu, at_s) for gpu in gpus]
        move = planner.plan(snapshots, running, [*waiting.values()], self._observations.reserved, at_s)
        if move is not None:
            self._begin(attempts[move.job_id], move, at_s)
        return move is not None

    def _running(self, attempt: RunningAttempt, feed: HistoryFeed, at_s: float) -> RunningJob:
        def record() -> Attempt:
            return attempt.ended(at_s, SUCCESS, attempt.held_bytes)

        return running_job(feed.history, attempt.job, record, at_s - attempt.placed_s, feed.jobs)

    def _begin(self, attempt: RunningAttempt, move: Move, at_s: float) -> None:
        """It saves its state: it holds its memory and makes no step."""
        self._feed.close_intervals(attempt.gpus, at_s)
        attempt.done_s += attempt.speed * (at_s - attempt.since_s)
        attempt.since_s, attempt.speed = at_s, 0.0
        attempt.version += 1
        attempt.is_paused = True
        for gpu in attempt.gpus:
            gpu.advance(at_s)
            gpu.active.remove(attempt)
        self._updater.update(attempt.gpus, at_s)
        self._events.put(at_s + self._config.save_s, SAVED, (attempt, move.reason))

    def saved(self, end: End, subject: tuple[RunningAttempt, str], at_s: float) -> bool:
        """Its state is saved, and `end` ends it; unless it has ended by a fault meanwhile."""
        attempt, reason = subject
        if attempt not in attempt.gpus[0].residents:
            return False
        attempt.is_moved = True
        self._plans.moved(attempt, attempt.done_s)
        end(attempt, job_after_move(attempt, reason, at_s, self._config.save_s), at_s, 0.0)
        return True
