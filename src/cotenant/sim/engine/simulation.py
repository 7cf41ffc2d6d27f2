"""A server or cluster made of numbers: jobs come, wait, run, slow each other down, run out of memory, end.

Nothing ticks. Between two events every job works at a constant speed, so what lies between them is arithmetic:
when the speeds of a GPU's jobs change, only they get new end times, and the old ones in the queue are stale.
The policy is the daemon's own, and so is what follows from running out of memory.

What a policy sees is what a daemon would: promises, the memory seen so far, activity averaged over a window. What
it cannot see (true peaks, durations, what company costs) is only in here.

Not modeled: CPUs and disks; which GPUs of one server talk fast; how long a decision takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop
from typing import Any

from cotenant.core.job import Job
from cotenant.core.placement import Placement
from cotenant.scheduling.placement.memory_demand import never_fits
from cotenant.scheduling.placement.policy import Placer
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import EventQueue
from cotenant.sim.engine.faults import FaultInjector
from cotenant.sim.engine.history_feed import HistoryFeed
from cotenant.sim.engine.job_columns import COMPLETED, FAILED, NEVER_STARTED, OUT_OF_MEMORY, OUTCOMES, JobColumns
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.recovery import job_after_oom
from cotenant.sim.engine.sim_gpu import RunningAttempt, SimGpu
from cotenant.sim.engine.speed_updater import SpeedUpdater
from cotenant.sim.engine.speeds import SpeedCache
from cotenant.sim.interference import Interference
from cotenant.sim.power import PowerModel
from cotenant.sim.trace import SECOND_GROWTH_S, Trace

__all__ = ["COMPLETED", "FAILED", "NEVER_STARTED", "OUTCOMES", "OUT_OF_MEMORY", "Simulation"]

ACTIVE, NEXT, REQUEUE, WAKE, FAULT, REPAIRED = range(6)

MAX_IDLE_DECISIONS = 1000
"""With nothing running and nothing to come, so many looks without a launch mean that who waits will wait for ever."""


class Simulation(JobColumns):
    """One run of a trace on a cluster under a policy. `run` once; then its columns tell what became of each job.

    Attributes:
        idle_while_waiting_s: GPU seconds with nobody on the GPU though some job waited.
        happened: events that changed something; `decisions`: times the policy was asked.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        placing: Placer,
        job_of: Callable[[int], Job],
        interference: Interference,
        *,
        config: SimulationConfig,
        power_of: Callable[[str], PowerModel],
        learner: HistoryFeed | None = None,
    ) -> None:
        super().__init__(len(trace))
        self.trace = trace
        self.cluster = cluster
        self.config = config
        self.cards = [SimGpu(slot, power_of(slot.gpu_type), record=config.record) for slot in cluster.slots]
        self._by_uuid = {card.gpu.uuid: card for card in self.cards}
        self._totals_bytes = sorted((card.total_bytes for card in self.cards), reverse=True)
        self._placing = placing
        self._job_of = job_of
        self._speeds = SpeedCache(interference)
        self._learner = learner
        self._events: EventQueue[Any] = EventQueue()
        self._waiting: dict[int, Job] = {}  # by number in the trace, as the next two
        self._oom_at_s: dict[int, float] = {}
        self._seated: set[int] = set()
        self._live = 0
        self._empty = len(self.cards)
        self._away = 0  # jobs on their way back to the queue
        self._vain_looks = 0
        self.idle_while_waiting_s = 0.0
        self.event_count = 0
        self.decisions = 0
        self.now_s = 0.0
        self._plans = AttemptPlans(trace, config, self._speeds, cluster)
        self._shown = Observations(placing, self._wake_at, config, len(self.cards))
        self._pace = SpeedUpdater(self._speeds, self._shown, self._next_at)
        faults = FaultInjector(
            config,
            self._plans,
            self._shown,
            fault_at=lambda at_s, card: self._events.put(at_s, FAULT, card),
            repaired_at=lambda at_s, card: self._events.put(at_s, REPAIRED, card),
            interrupt=self._interrupt,
        )
        self._happens = (self._begins, self._next, self._comes_back, self._wakes, faults.happens, faults.repaired)
        for card in self.cards:
            placing.update(self._shown.snapshot(card, 0.0))
            faults.await_first(card)

    def seat(self, number: int, placement: Placement) -> None:
        """Before the run: this job is at work already, at its full size."""
        cards = [self._by_uuid[uuid] for uuid in placement.gpu_uuids]
        live = RunningAttempt(number, self._job_of(number), placement, cards, 0.0)
        self._seated.add(number)
        self._live += 1
        self.attempts[number] = 1
        self.start_s[number] = 0.0
        self._plans.fill(live, first=True, delay_s=0.0)
        live.active = True
        live.seen_s = 0.0
        live.next_s = live.work_s
        live.held_bytes = live.profile.peak_bytes if live.profile is not None else 0
        live.speed = 0.0
        for card in cards:
            self._empty -= not card.residents
            card.residents.append(live)
            card.active.append(live)
            card.held_bytes += live.held_bytes
        self._pace.rate(cards, 0.0)
        for card in cards:
            self._placing.update(self._shown.snapshot(card, 0.0))

    # The loop.

    def run(self) -> None:
        """Let everything happen, until nothing more will."""
        submits, heap, shown = self.trace.submit_s, self._events.heap, self._shown
        count, number = len(submits), 0
        while True:
            at_s = heap[0][0] if heap else math.inf
            if self._waiting and shown.next_look_s < at_s:
                at_s = shown.next_look_s
            arrives = number < count and submits[number] <= at_s
            if arrives:
                at_s = submits[number]
            elif at_s == math.inf:
                break
            if self._waiting:
                self.idle_while_waiting_s += (at_s - self.now_s) * self._empty
            self.now_s = at_s
            if arrives:
                number = self._arrive(number, at_s)
            elif not self._happen(at_s) and not shown.moving:
                continue
            if self._waiting:
                self._decide(at_s)
            if not self._live and number >= count and self._is_over():
                break
        for card in self.cards:
            card.advance(max(self.now_s, card.since_s))

    def _arrive(self, number: int, at_s: float) -> int:
        """Jobs come, from this number on; the number of the first that comes later."""
        if self._shown.next_look_s < at_s:  # nobody waited, so nobody looked
            self._shown.look(math.nextafter(at_s, 0.0))
        submits = self.trace.submit_s
        while number < len(submits) and submits[number] == at_s:
            if number not in self._seated:
                self._queue(number, self._job_of(number))
            number += 1
            self.event_count += 1
        return number

    def _happen(self, at_s: float) -> bool:
        """What is due, in the order in which it was planned; False if all of it has been overtaken."""
        anything = self._shown.next_look_s <= at_s and self._shown.look(at_s)
        heap, happens = self._events.heap, self._happens
        while heap and heap[0][0] == at_s:
            _, _, kind, subject, version = heappop(heap)
            if kind <= NEXT:
                if subject.version != version:
                    continue
                self.event_count += 1
            happens[kind](subject, at_s)
            anything = True
        return anything

    def _is_over(self) -> bool:
        self._vain_looks += bool(self._waiting)
        return not self._away and (not self._waiting or self._vain_looks > MAX_IDLE_DECISIONS)

    def _wake_at(self, at_s: float) -> None:
        self._events.put(at_s, WAKE, None)

    def _wakes(self, _nobody: None, at_s: float) -> None:
        self._shown.woke(at_s)

    def _next_at(self, at_s: float, live: RunningAttempt) -> None:
        self._events.put(at_s, NEXT, live, live.version)

    def _comes_back(self, who: tuple[int, Job], _at_s: float) -> None:
        self._away -= 1
        self._queue(*who)

    def _queue(self, number: int, job: Job) -> None:
        if never_fits(job, self._totals_bytes) is not None:
            return  # a daemon holds it, so that it stands in nobody's way
        self._waiting[number] = job
        self._placing.add(job)
        if self._learner is not None:
            self._learner.waits(job)

    # Deciding.

    def _decide(self, at_s: float) -> None:
        self._shown.tell(at_s)
        self.decisions += 1
        for placement in self._placing.decide(at_s):
            self._launch(placement, at_s)
        if self._waiting:
            self._shown.wake(self._placing.wakes_at_s, at_s)

    # What happens to attempts.

    def _launch(self, placement: Placement, at_s: float) -> None:
        number = placement.job_id - 1
        cards = [self._by_uuid[uuid] for uuid in placement.gpu_uuids]
        live = RunningAttempt(number, self._waiting.pop(number), placement, cards, at_s)
        if self._learner is not None:
            live.known = self._learner.starts(live.job)
        self._plans.fill(live, first=not self.attempts[number])
        self.alone_s[number] = live.delay_s + live.work_s
        self._live += 1
        self._vain_looks = 0
        self.attempts[number] += 1
        if math.isnan(self.start_s[number]):
            self.start_s[number] = at_s
        failed_at_s = self._oom_at_s.pop(number, None)
        if failed_at_s is not None:
            self.retry_wait_s[number] += at_s - failed_at_s
        if placement.sharing == "exclusive" and self._needs_no_look(live):
            speed = min([self._speeds.alone(live, card) for card in cards]) * live.links
            self._empty -= len(cards)
            for card in cards:
                card.residents.append(live)
            self._next_at(at_s + live.delay_s + live.work_s / speed, live)
            return
        for card in cards:
            card.advance(at_s)
            self._empty -= not card.residents
            card.residents.append(live)
            card.settle(at_s)
        self._events.put(at_s + live.delay_s, ACTIVE, live, live.version)

    def _needs_no_look(self, live: RunningAttempt) -> bool:
        """Whether nothing can happen between its launch and its end."""
        peak_bytes = live.profile.peak_bytes if live.profile is not None else 0
        for card in live.cards:
            if card.residents or peak_bytes > card.total_bytes:
                return False
        return self.config.fault_every_s is None

    def _begins(self, live: RunningAttempt, at_s: float) -> None:
        """Its launch delay is over: it takes its memory and starts to work."""
        profile, live.since_s, live.next_s = live.profile, at_s, live.work_s
        if profile is not None and not self._grow(live, profile.first_peak_bytes, at_s):
            return
        live.active = True
        live.speed = 0.0
        live.seen_s = self._shown.shown_s(at_s)
        live.resident = None
        live.grown = profile is None or profile.peak_bytes <= profile.first_peak_bytes
        if not live.grown:
            live.next_s = max(live.done_s, min(SECOND_GROWTH_S, 0.5 * live.work_s))
        if self._learner is not None:
            self._learner.note(live.cards, at_s)
        live.co_run_since_s = at_s
        for card in live.cards:
            card.active.append(live)
        self._placing.seen(live.job.id, live.seen_s)
        self._pace.rate(live.cards, at_s)

    def _next(self, live: RunningAttempt, at_s: float) -> None:
        """It has come to where it grows, or to its end."""
        if not live.active:  # it had its GPUs to itself all the time
            held_bytes = live.profile.peak_bytes if live.profile is not None else 0
            for card in live.cards:
                card.residents.remove(live)
                card.was_alone(live, at_s, held_bytes)
            self._ended(live, at_s)
            self._completed(live, at_s)
            return
        live.done_s += live.speed * (at_s - live.since_s)
        live.since_s = at_s
        if live.grown or live.profile is None:
            self._leave(live, at_s)
            self._completed(live, at_s)
            return
        live.grown = True
        live.next_s = live.work_s
        if self._grow(live, live.profile.peak_bytes, at_s):
            self._pace.go_on(live, at_s)
            for card in live.cards:
                card.settle(at_s)

    def _grow(self, live: RunningAttempt, to_bytes: int, at_s: float) -> bool:
        """Take memory on all its GPUs; False if one has not enough, which ends the attempt: who asks, dies."""
        wanted_bytes = to_bytes - live.held_bytes
        for card in live.cards:
            if wanted_bytes > card.total_bytes - card.held_bytes:
                self._out_of_memory(live, card, wanted_bytes, at_s)
                return False
        for card in live.cards:
            card.advance(at_s)
            card.held_bytes += wanted_bytes
        live.held_bytes = to_bytes
        live.resident = None
        if to_bytes > live.placement.promised_bytes:
            for card in live.cards:
                self._shown.changed(card)
        return True

    def _out_of_memory(self, live: RunningAttempt, card: SimGpu, wanted_bytes: int, at_s: float) -> None:
        number = live.number
        job = job_after_oom(live, card, wanted_bytes, at_s)
        self._leave(live, at_s)
        if self._learner is not None:
            self._learn(self._learner.ended(job))
        self.ooms[number] += 1
        self.lost_s[number] += at_s - live.placed_s
        if job.is_done:
            self.outcome[number] = OUT_OF_MEMORY
            self.end_s[number] = at_s
            return
        self._oom_at_s[number] = at_s
        self._queue_again(number, job, at_s)

    def _queue_again(self, number: int, job: Job, at_s: float) -> None:
        self._away += 1
        self._events.put(at_s + self.config.restart_s, REQUEUE, (number, job))

    def _learn(self, again: Iterable[Job]) -> None:
        """More is known: these jobs may need something else, and go somewhere else."""
        for job in again:
            self._placing.add(job)

    def _interrupt(self, live: RunningAttempt, at_s: float) -> None:
        """Its GPU went down: what it did since its last checkpoint is lost."""
        self._leave(live, at_s)
        self.lost_s[live.number] += at_s - live.placed_s
        self._queue_again(live.number, live.job, at_s)

    def _leave(self, live: RunningAttempt, at_s: float) -> None:
        """Give its memory and its GPUs back, and let its company speed up."""
        live.version += 1
        if self._learner is not None:
            self._learner.note(live.cards, at_s)
        for card in live.cards:
            card.advance(at_s)
            card.residents.remove(live)
            if live.active:
                card.active.remove(live)
            card.held_bytes -= live.held_bytes
        self._ended(live, at_s)
        self._pace.rate(live.cards, at_s)

    def _ended(self, live: RunningAttempt, at_s: float) -> None:
        for card in live.cards:
            self._empty += not card.residents
        self._live -= 1
        self.run_s[live.number] += at_s - live.placed_s
        self._placing.release(live.job.id)
        if live.number in self._seated:  # the policy did not place it, and knows it from snapshots only
            for card in live.cards:
                self._shown.changed(card)

    def _completed(self, live: RunningAttempt, at_s: float) -> None:
        if self._learner is not None:
            self._learn(self._learner.completed(live, at_s, failed=bool(self.trace.failed[live.number])))
        self.outcome[live.number] = FAILED if self.trace.failed[live.number] else COMPLETED
        self.end_s[live.number] = at_s
