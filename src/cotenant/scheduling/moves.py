"""Which running job is moved: stopped, so that it continues where the policy places it next.

Only a job that can save its state is moved, and only for one of these gains, which are in jobs' worth of speed, times
the GPUs of a job:

- *Apart*: it and its neighbors are faster by `min_gain` in all if it goes to other GPUs.
- *Room*: it leaves its GPUs, with room for it elsewhere or not, and a job that waits and lacks these GPUs starts. A job
  of several GPUs leaves them to several jobs of one GPU at once, too: a single one gains less than it loses.
- *Turn*: the same without a gain in speed, if the job that waits needs `turn_ratio` times less time, by history.

The gain in speed, over the time that the job runs on, must be `hysteresis` times what the move costs on all of its
GPUs. That time is what is expected (`prediction.durations`); a turn takes the upper end for the job that waits. A job
is moved at most `max_moves` times, stays where it is for `min_run_s`, and is not moved again once it has failed to save
its state. One job is moved at a time, because every move changes what the next one is worth. A job of several GPUs is
moved as one, and is as slow as on the slowest of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cotenant.core.gpu import GpuSnapshot
from cotenant.core.job import Attempt, Job
from cotenant.scheduling.checkpoints import MOVE_STOP, is_moved, is_saved
from cotenant.scheduling.demand import Demand, GpuSizes
from cotenant.scheduling.placement.composition import Composition, MoveRule
from cotenant.scheduling.placement.pairing import CoRunner, LearningPairingRule
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.placement.rules import AdmissionRules, fits
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.recovery import effective_sharing
from cotenant.scheduling.server_speeds import Place, Residents, ServerSpeeds, SpeedPredictor

MAX_GAIN = 1.0
"""A job that comes to a GPU adds no more speed than it has alone."""
ROUNDING = 1e-9
"""More than sums of speeds differ by the order of their terms."""
MAX_WAITING = 32
"""So many jobs that wait are looked at, in the order of the policy."""
MAX_TURN_LOSS = 0.05
"""Of speed, for a turn."""


class RunningJob(NamedTuple):
    """A job on GPUs.

    Attributes:
        ran_s: of its newest attempt.
        worked_s: the time alone that this attempt stands for, and those whose work it continues.
    """

    job: Job
    ran_s: float
    worked_s: Callable[[], float]


class Move(NamedTuple):
    """A job to stop, and why: `reason` begins with `MOVE_STOP`."""

    job_id: int
    reason: str


def running_job(
    history: WorkloadHistory, job: Job, attempt: Callable[[], Attempt], ran_s: float, jobs: Mapping[int, Job]
) -> RunningJob:
    """A job whose newest attempt has run for `ran_s`; `attempt()` is that with its co-runs until now."""
    return RunningJob(job, ran_s, lambda: history.worked_s(job, attempt(), ran_s, jobs))


class _Waiting(NamedTuple):
    """A job that waits.

    Attributes:
        admitted_by: numbers of the GPUs that admit it now; `by_server`: how many of them each server has.
        duration_s: time alone that it needs, by history, the upper end of the interval; None if not known.
        jobs: how many jobs with this demand wait; `job` is the first of them.
    """

    job: Job
    demand: Demand
    admitted_by: frozenset[int]
    by_server: Mapping[str, int]
    duration_s: float | None
    jobs: int = 1

    @property
    def is_small(self) -> bool:
        """Whether it shares one GPU."""
        return self.demand.gpus == 1 and not self.demand.exclusive and self.demand.bytes is not None

    @property
    def is_admitted(self) -> bool:
        """Whether it finds all of its GPUs as things are."""
        most = max(self.by_server.values(), default=0) if self.demand.one_node else len(self.admitted_by)
        return most >= self.demand.gpus

    def lacks(self, server: str) -> int:
        """How many GPUs it lacks, of that server if all must be of one."""
        return self.demand.gpus - (self.by_server.get(server, 0) if self.demand.one_node else len(self.admitted_by))


class _Leaver(NamedTuple):
    """A job that may be moved.

    Attributes:
        demand: on each of its next GPUs. `left`: the residents of its GPUs without it.
        co_runner: what it is on the first of its GPUs.
        lost: speed lost when it leaves. `left_s`: time alone that it still needs, by history at least.
        cost_s: what the gain must exceed, in seconds of one GPU.
        targets: where it may go, with the speed gained there alone, the best first; and `admitted`: whether it may, by
            number; both as far as looked up.
    """

    job: Job
    demand: Demand
    co_runner: CoRunner
    left: Mapping[int, Residents]
    lost: float
    left_s: float
    cost_s: float
    targets: list[tuple[float, Place]]
    admitted: dict[int, bool]


class _Worth(NamedTuple):
    """What a move is worth, in seconds of work, and the move."""

    seconds: float
    move: Move


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
        self._predictor = SpeedPredictor(history.interference, policy.sharing)

    def plan(
        self,
        gpus: Sequence[GpuSnapshot],
        running: Mapping[int, RunningJob],
        waiting: Sequence[Job],
        reserved: Mapping[str, int],
        at_s: float,
    ) -> Move | None:
        """The move that is worth most; None if none is worth its cost.

        `running`: the jobs that may be moved or lose a neighbor; a GPU with others, e.g. one that saves its state, is
        left alone. `waiting`: those offered to the policy. `reserved`: for which job GPUs are reserved, by UUID.
        """
        movable = [found for found in running.values() if self._is_movable(found)]
        if not movable:
            return None
        server = ServerSpeeds(gpus, self._predictor, reserved)
        leavers = [leaver for found in movable if (leaver := self._leaver(found, server, running)) is not None]
        if not leavers:
            return None
        queue = self._queue(waiting, server, frozenset(reserved.values()), at_s)
        worths = [worth for leaver in leavers for worth in self._worths(leaver, server, queue, at_s)]
        several = [waits for waits in queue if waits.is_small]
        if sum([waits.jobs for waits in several]) > 1:
            worths += [worth for leaver in leavers if (worth := self._room_for_several(leaver, server, several, at_s))]
        return max(worths, key=lambda worth: worth.seconds).move if worths else None

    def is_movable(self, job: Job) -> bool:
        """Whether it may be moved once it has run for `min_run_s`."""
        if job.spec.checkpoint_signal is None:
            return False
        moved = [attempt for attempt in job.attempts if is_moved(attempt)]
        return len(moved) < self.rule.max_moves and all(is_saved(attempt) for attempt in moved)

    def _is_movable(self, found: RunningJob) -> bool:
        return found.ran_s >= self.rule.min_run_s / self._pace and self.is_movable(found.job)

    def _leaver(self, found: RunningJob, server: ServerSpeeds, running: Mapping[int, RunningJob]) -> _Leaver | None:
        """None if it has too little left to do, or shares a GPU with a job that is being stopped."""
        job, numbers = found.job, server.places_of.get(found.job.id, ())
        neighbors = [job_id for number in numbers for job_id in server.places[number].residents]
        if not numbers or not all(job_id in running for job_id in neighbors):
            return None
        left_s = self._history.left(job, found.worked_s()).expected_s
        cost_s = self.rule.hysteresis * self._history.move_cost(job).seconds
        if left_s < 2.0 * cost_s:
            return None
        first = server.places[numbers[0]]
        resident = next(resident for resident in first.view.residents if resident.job_id == job.id)
        co_runner = first.residents[job.id]
        demand = Demand(
            gpus=len(numbers),
            bytes=resident.promised_bytes,
            exclusive=resident.sharing == "exclusive",
            sharing=effective_sharing(job),
            profile=co_runner._replace(gpu_memory_bytes=None),
            time_limit_s=job.spec.time_limit_s,
            one_node=self._policy.one_node and len(numbers) > 1,
        )
        left = {number: server.without(number, job.id) for number in numbers}
        return _Leaver(job, demand, co_runner, left, -server.gain(left), left_s, cost_s * len(numbers), [], {})

    def _queue(
        self, waiting: Sequence[Job], server: ServerSpeeds, reserved_for: Collection[int], at_s: float
    ) -> list[_Waiting]:
        """The first jobs that wait for GPUs, and which of these they would get; equal ones together."""
        history, pairing, places = self._history, self._pairing, server.places
        sizes = GpuSizes((place.view.snapshot.gpu for place in places), one_node=self._policy.one_node)
        first = sorted(waiting, key=lambda job: self._policy.order(job, history))[:MAX_WAITING]
        found: dict[tuple[Demand, bool], _Waiting] = {}
        for job in first:
            demand = self._policy.demand(job, sizes, history.demand_bytes(job), is_timed=True)
            demand = demand if pairing is None else replace(demand, profile=pairing.profile(job, history))
            key = (demand, job.id in reserved_for)
            if key in found:
                found[key] = found[key]._replace(jobs=found[key].jobs + 1)
                continue
            admitting = [
                place
                for place in places
                if fits(place.view, demand) and self._rules.admits(place.view, demand, job.id, at_s)
            ]
            numbers = frozenset(place.number for place in admitting)
            by_server = Counter(place.view.server for place in admitting)
            whole = history.duration(job)
            duration_s = None if whole is None else whole.high_s
            found[key] = _Waiting(job, demand, numbers, by_server, duration_s)
        return [waits for waits in found.values() if not waits.is_admitted]

    def _worths(
        self, leaver: _Leaver, server: ServerSpeeds, queue: Sequence[_Waiting], at_s: float
    ) -> Iterable[_Worth]:
        """What moving one job is worth: apart from its neighbors, and for each job that waits."""
        rule, job_id = self.rule, leaver.job.id
        if leaver.lost + rule.min_gain <= MAX_GAIN * leaver.demand.gpus:
            gain = self._elsewhere(leaver, leaver.left, server, at_s, at_least=leaver.lost + rule.min_gain)
            if gain >= rule.min_gain and gain * leaver.left_s >= leaver.cost_s:
                text = f"{MOVE_STOP}: {gain:+.2f} jobs' worth of speed on {_another(leaver)}"
                yield _Worth(gain * leaver.left_s, Move(job_id, text))
        for waits in queue:
            changed = self._room(waits, leaver, server, at_s)
            if changed is None:
                continue
            gain = max(server.gain(changed), self._elsewhere(leaver, changed, server, at_s))
            seconds = gain * leaver.left_s
            if gain < rule.min_gain or seconds < leaver.cost_s:
                short_s, left_s = waits.duration_s, leaver.left_s
                is_turn = short_s is not None and left_s >= rule.turn_ratio * (short_s + leaver.cost_s)
                if not is_turn or short_s is None or gain < -MAX_TURN_LOSS:
                    continue
                seconds = left_s - short_s - leaver.cost_s
            yield _Worth(seconds, Move(job_id, f"{MOVE_STOP}: room for job {waits.job.id}, {gain:+.2f} of speed"))

    def _room_for_several(
        self, leaver: _Leaver, server: ServerSpeeds, queue: Sequence[_Waiting], at_s: float
    ) -> _Worth | None:
        """What it is worth that a job of several GPUs leaves them to jobs of one GPU; None if too little."""
        if leaver.demand.gpus == 1:
            return None
        changed, started = dict(leaver.left), 0
        views = {number: server.draft(number, leaver.job.id) for number in leaver.left}
        for waits in queue:
            demand, needed = waits.demand, waits.demand.bytes or 0
            for _ in range(waits.jobs):
                admit = (n for n, view in views.items() if self._rules.admits(view, demand, waits.job.id, at_s))
                number = next(admit, None)
                if number is None:
                    break
                started += 1
                stand_in = -started  # equal jobs are told apart by it
                changed[number] = {**changed[number], stand_in: _co_runner(demand)}
                server.join(views[number], stand_in, needed, changed[number], at_s)
        if started < 2:
            return None
        gain = max(server.gain(changed), self._elsewhere(leaver, changed, server, at_s))
        if gain < self.rule.min_gain or gain * leaver.left_s < leaver.cost_s:
            return None
        text = f"{MOVE_STOP}: room for {started} jobs that wait, {gain:+.2f} of speed"
        return _Worth(gain * leaver.left_s, Move(leaver.job.id, text))

    def _elsewhere(
        self,
        leaver: _Leaver,
        changed: Mapping[int, Residents],
        server: ServerSpeeds,
        at_s: float,
        *,
        at_least: float = 0.0,
    ) -> float:
        """Speed gained by `changed` residents and by the job on the best GPUs for it; -inf if there is no room.

        Also -inf if a job of one GPU adds less than `at_least` wherever there is room.
        """
        demand, admitted = leaver.demand, leaver.admitted
        chosen: dict[str, list[Place]] = {}
        for added, place in self._targets(leaver, server):
            if demand.gpus == 1 and added < at_least - ROUNDING:
                break
            number = place.number
            if number in changed and changed[number] is not leaver.left.get(number):
                continue
            is_admitted = admitted.get(number)
            if is_admitted is None:
                view = server.vacated(number, leaver.job.id) if number in leaver.left else place.view
                is_admitted = admitted[number] = self._rules.admits(view, demand, leaver.job.id, at_s)
            if not is_admitted:
                continue
            group = chosen.setdefault(place.view.server if demand.one_node else "", [])
            group.append(place)
            if len(group) == demand.gpus:
                joined = {
                    found.number: {**changed.get(found.number, found.residents), leaver.job.id: leaver.co_runner}
                    for found in group
                }
                return server.gain({**changed, **joined})
        return -math.inf

    def _targets(self, leaver: _Leaver, server: ServerSpeeds) -> Sequence[tuple[float, Place]]:
        """GPUs with memory for it, those first where most is gained; a gang may stay on some of its own."""
        demand, found = leaver.demand, leaver.targets
        if found:
            return found
        others = [
            place
            for place in server.places
            if fits(place.view, demand) and place.number not in leaver.left
            if not (demand.exclusive and place.residents)
        ]
        ranked = [
            (-added, place.number) for place, added in zip(others, server.added(others, leaver.co_runner), strict=True)
        ]
        if demand.gpus > 1:
            for number, residents in leaver.left.items():
                added = server.added_beside(server.places[number], residents, leaver.co_runner)
                ranked.append((-added, number))
        found += [(-lost, server.places[number]) for lost, number in sorted(ranked)]
        return found

    def _room(
        self, waits: _Waiting, leaver: _Leaver, server: ServerSpeeds, at_s: float
    ) -> Mapping[int, Residents] | None:
        """The residents of all GPUs that change if a job that waits starts in place of this; None if it cannot."""
        demand, job_id = waits.demand, waits.job.id
        freed: dict[str, list[int]] = {}
        for number in leaver.left:
            if number not in waits.admitted_by:
                freed.setdefault(server.places[number].view.server if demand.one_node else "", []).append(number)
        for host, numbers in freed.items():
            lacks = waits.lacks(host)
            if lacks > len(numbers):
                continue
            views = {number: server.vacated(number, leaver.job.id) for number in numbers}
            taken = [
                number
                for number, view in views.items()
                if fits(view, demand) and self._rules.admits(view, demand, job_id, at_s)
            ]
            if len(taken) < lacks:
                continue
            ready = [
                number
                for number in waits.admitted_by
                if not demand.one_node or server.places[number].view.server == host
            ]
            changed = dict(leaver.left)
            for number in (*ready, *taken[:lacks]):
                changed[number] = {**changed.get(number, server.places[number].residents), job_id: _co_runner(demand)}
            return changed
        return None


def _co_runner(demand: Demand) -> CoRunner:
    return demand.profile if isinstance(demand.profile, CoRunner) else CoRunner(gpus=demand.gpus)


def _another(leaver: _Leaver) -> str:
    return "another GPU" if leaver.demand.gpus == 1 else "other GPUs"


def move_planner(policy: Policy, history: WorkloadHistory, *, pace: float = 1.0) -> MovePlanner | None:
    """The planner of a policy that moves jobs; None for others."""
    if not isinstance(policy, Composition) or policy.moves is None:
        return None
    return MovePlanner(policy, policy.moves, history, pace=pace)
