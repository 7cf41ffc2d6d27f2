"""Which running job is moved: stopped, so that it continues where the policy places it next.

Only a job that can save its state is moved, and only for one of these gains, which are in jobs' worth of speed, times
the GPUs of a job:

- *Apart*: it and its neighbors are faster by `min_gain` in all if it goes to another GPU.
- *Room*: it leaves its GPU, with room for it elsewhere or not, and a job that waits and lacks this one GPU starts.
- *Turn*: the same without a gain in speed, if the job that waits needs `turn_ratio` times less time, by history.

The gain in speed, over the time that the job is expected to run on, must be `hysteresis` times what the move costs. A
job is moved at most `max_moves` times, stays where it is for `min_run_s`, and is not moved again once it has failed to
save its state. One job is moved at a time, because every move changes what the next one is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cotenant.core.gpu import GpuSnapshot
from cotenant.core.job import Attempt, Job
from cotenant.scheduling.checkpoints import MOVE_STOP, is_moved, is_saved
from cotenant.scheduling.demand import Demand, GpuSizes
from cotenant.scheduling.placement.composition import Composition, MoveRule
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.orders import ASSUMED_DURATION_S
from cotenant.scheduling.placement.pairing import CoRunner, LearningPairingRule, co_runners_of, residents_key
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.placement.rules import AdmissionRules
from cotenant.scheduling.prediction.history import WorkloadHistory

MAX_GAIN = 1.0
"""A job that comes to a GPU adds no more speed than it has alone."""
MAX_WAITING = 32
"""So many jobs that wait are looked at, in the order of the policy."""


class RunningJob(NamedTuple):
    """A job on GPUs.

    Attributes:
        ran_s: of its newest attempt.
        worked_s: the time alone that this attempt stands for, and those whose work it continues.
    """

    job: Job
    ran_s: float
    worked_s: float


class Move(NamedTuple):
    """A job to stop, and why: `reason` begins with `MOVE_STOP`."""

    job_id: int
    reason: str


def running_job(
    history: WorkloadHistory, job: Job, attempt: Attempt, ran_s: float, jobs: Mapping[int, Job]
) -> RunningJob:
    """A job whose newest attempt, with its co-runs until now, has run for `ran_s`."""
    return RunningJob(job, ran_s, history.worked_s(job, attempt, ran_s, jobs))


class _Shared(NamedTuple):
    """A GPU, its number among all, its residents as co-runners, and the sum of their speeds."""

    number: int
    view: GpuView
    co_runners: list[CoRunner]
    speed: float


class _Waiting(NamedTuple):
    """A job that waits.

    Attributes:
        admitted_by: numbers of the GPUs that admit it now; `by_server`: how many of them each server has.
    """

    job: Job
    demand: Demand
    admitted_by: frozenset[int]
    by_server: Mapping[str, int]


class MovePlanner:
    """Finds moves by the rules and predictions of a composed policy.

    `pace`: seconds of GPU time per second of all other times; above 1 on an accelerated simulated server.
    """

    def __init__(self, policy: Composition, rule: MoveRule, history: WorkloadHistory, *, pace: float = 1.0) -> None:
        self.rule = rule
        self._pace = pace
        self._policy = policy
        self._history = history
        self._pairing = policy.pairing
        if isinstance(self._pairing, LearningPairingRule):
            self._pairing = self._pairing.with_predictions(history)
        self._rules = AdmissionRules(policy.gates, self._pairing)

    def plan(
        self, gpus: Sequence[GpuSnapshot], running: Mapping[int, RunningJob], waiting: Sequence[Job], at_s: float
    ) -> Move | None:
        """The move that is worth most; None if none is worth its cost.

        `running`: the jobs that may be moved or lose a neighbor; a GPU with others, e.g. one that saves its state, is
        left alone. `waiting`: those offered to the policy.
        """
        movable = {job_id: found for job_id, found in running.items() if self._is_movable(found)}
        if not movable or any(gpu.gpu.mig_profile is not None for gpu in gpus):
            return None
        places = [self._place(number, gpu) for number, gpu in enumerate(gpus)]
        queue = self._queue(waiting, places, at_s)
        best: tuple[float, Move] | None = None
        for place in places:
            if all(resident.job_id in running for resident in place.view.residents):
                for index, resident in enumerate(place.view.residents):
                    if resident.job_id in movable:
                        found = self._best(place, index, running, places, queue, at_s)
                        if found is not None and (best is None or found[0] > best[0]):
                            best = found
        return None if best is None else best[1]

    def _is_movable(self, found: RunningJob) -> bool:
        job, rule = found.job, self.rule
        if job.spec.checkpoint_signal is None or job.spec.gpus > 1 or found.ran_s < rule.min_run_s / self._pace:
            return False
        moved = [attempt for attempt in job.attempts if is_moved(attempt)]
        return len(moved) < rule.max_moves and all(is_saved(attempt) for attempt in moved)

    def _place(self, number: int, gpu: GpuSnapshot) -> _Shared:
        view = GpuView(gpu)
        co_runners = co_runners_of(view)
        view.gpu_class = residents_key(co_runners)
        return _Shared(number, view, co_runners, self._speed(co_runners))

    def _speed(self, co_runners: Sequence[CoRunner]) -> float:
        activities = [co_runner.activity for co_runner in co_runners]
        return sum([1.0 / slowdown for slowdown in self._history.interference.slowdowns(activities)])

    def _queue(self, waiting: Sequence[Job], places: Sequence[_Shared], at_s: float) -> list[_Waiting]:
        """The first jobs that wait, and where each could start: judged once, and not again for each resident."""
        history, pairing = self._history, self._pairing
        gpus = (place.view.snapshot.gpu for place in places)
        sizes = GpuSizes(gpus, one_node=self._policy.one_node)
        first = sorted(waiting, key=lambda job: self._policy.order(job, history))[:MAX_WAITING]
        found = []
        for job in first:
            demand = self._policy.demand(job, sizes, history.demand_bytes(job), is_timed=True)
            profile = None if pairing is None else pairing.profile(job, history)
            demand = demand if profile is None else replace(demand, profile=profile)
            admitting = [place for place in places if self._rules.admits(place.view, demand, job.id, at_s)]
            numbers = frozenset(place.number for place in admitting)
            found.append(_Waiting(job, demand, numbers, Counter(place.view.server for place in admitting)))
        return found

    def _left_s(self, found: RunningJob) -> float:
        """Time alone that a running job still needs, by history; else what an unknown one takes, or as long again."""
        duration_s = self._history.duration_s(found.job)
        if duration_s is None:
            return max(ASSUMED_DURATION_S / self._pace - found.worked_s, 0.5 * found.worked_s)
        return max(duration_s - found.worked_s, 0.1 * found.worked_s)

    def _best(
        self,
        place: _Shared,
        index: int,
        running: Mapping[int, RunningJob],
        places: Sequence[_Shared],
        queue: Sequence[_Waiting],
        at_s: float,
    ) -> tuple[float, Move] | None:
        """What moving one job is worth at most, in seconds of work, and the move."""
        leaver = running[place.view.residents[index].job_id]
        rule, left_s = self.rule, self._left_s(leaver)
        cost_s = rule.hysteresis * self._history.move_cost(leaver.job).seconds
        if left_s < 2.0 * cost_s:
            return None
        staying = [*place.co_runners[:index], *place.co_runners[index + 1 :]]
        lost = place.speed - self._speed(staying)
        apart = 0.0
        if lost + rule.min_gain <= MAX_GAIN:
            others = [other for other in places if other is not place]
            apart = max((self._gain_at(leaver.job, other, place, index, at_s) for other in others), default=0.0)
        best: tuple[float, Move] | None = None
        if apart - lost >= rule.min_gain and (apart - lost) * left_s >= cost_s:
            text = f"{MOVE_STOP}: {apart - lost:+.2f} jobs' worth of speed on another GPU"
            best = ((apart - lost) * left_s, Move(leaver.job.id, text))
        for waits in queue:
            gained = self._gain_of(waits, place, staying, index, at_s)
            if gained is None:
                continue
            gain, duration_s = gained - lost, self._history.duration_s(waits.job)
            worth = gain * left_s
            if gain < rule.min_gain or worth < cost_s:
                if duration_s is None or gain < -0.05 or left_s < rule.turn_ratio * (duration_s + cost_s):
                    continue
                worth = left_s - duration_s - cost_s
            if best is None or worth > best[0]:
                best = (worth, Move(leaver.job.id, f"{MOVE_STOP}: room for job {waits.job.id}, {gain:+.2f} of speed"))
        return best

    def _gain_at(self, leaver: Job, other: _Shared, place: _Shared, index: int, at_s: float) -> float:
        """Speed gained on another GPU by a job that goes there; 0 if it may not."""
        resident, co_runner = place.view.residents[index], place.co_runners[index]
        if resident.sharing == "exclusive" and other.view.residents:
            return 0.0
        demand = Demand(bytes=resident.promised_bytes, gpus=1, exclusive=resident.sharing == "exclusive")
        profile = co_runner._replace(gpu_memory_bytes=None)
        demand = replace(demand, profile=profile, time_limit_s=leaver.spec.time_limit_s)
        if not self._rules.admits(other.view, demand, resident.job_id, at_s):
            return 0.0
        return self._speed([*other.co_runners, co_runner]) - other.speed

    def _gain_of(
        self,
        waits: _Waiting,
        place: _Shared,
        staying: list[CoRunner],
        index: int,
        at_s: float,
    ) -> float | None:
        """Speed of a job that could start if this resident left; None if it could not, or can without that."""
        demand, job_id = waits.demand, waits.job.id
        have = waits.by_server.get(place.view.server, 0) if demand.one_node else len(waits.admitted_by)
        if have != demand.gpus - 1 or place.number in waits.admitted_by:
            return None
        snapshot = place.view.snapshot
        residents = (*snapshot.residents[:index], *snapshot.residents[index + 1 :])
        view = GpuView(replace(snapshot, residents=residents))
        view.gpu_class = residents_key(staying)
        if not self._rules.admits(view, demand, job_id, at_s):
            return None
        if demand.exclusive or self._pairing is None or not staying:
            return float(demand.gpus)
        judgment = self._pairing.judge(demand.profile, view.gpu_class)
        return None if isinstance(judgment, Refusal) else demand.gpus - 1.0 - judgment


def move_planner(policy: Policy, history: WorkloadHistory, *, pace: float = 1.0) -> MovePlanner | None:
    """The planner of a policy that moves jobs; None for others."""
    if not isinstance(policy, Composition) or policy.moves is None:
        return None
    return MovePlanner(policy, policy.moves, history, pace=pace)
