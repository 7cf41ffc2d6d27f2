"""Discrete-event simulation: jobs arrive, wait, run, slow each other down, run out of memory and end.

Nothing ticks. Between two events every job runs at a constant speed. When the speeds on a GPU change, only its jobs get
new events, and their old events become stale. The policy is the daemon's own, and so is recovery from OOM.

A policy observes what a daemon would: promises, memory held so far, and activity averaged over a window. True peaks,
durations and slowdowns are known to the simulation only.

Not modeled: CPUs, disks, the links between GPUs of one server, and the time that a decision takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop
from typing import Any

from cotenant.core.job import Job
from cotenant.core.placement import Placement
from cotenant.gpus.power_model import PowerModel
from cotenant.scheduling.demand import never_fits
from cotenant.scheduling.moves import MovePlanner
from cotenant.scheduling.placement.policy import Placer
from cotenant.scheduling.repartition import RepartitionPlanner
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.attempt_plans import AttemptPlans
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.event_queue import BEGIN_WORK, MILESTONE, WAKE, EventQueue
from cotenant.sim.engine.faults import FaultInjector, check_faults
from cotenant.sim.engine.history_feed import HistoryFeed
from cotenant.sim.engine.layouts import LayoutChanger, MigSlots
from cotenant.sim.engine.moves import Handler, Mover, ignore_change, ignore_event
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.overruns import OverrunGuard
from cotenant.sim.engine.records import COMPLETED, FAILED, JobColumns
from cotenant.sim.engine.requeues import Requeues
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.engine.sim_gpu import SimGpu
from cotenant.sim.engine.speeds import SpeedCache, SpeedUpdater
from cotenant.sim.engine.time_slices import TimeSlices
from cotenant.sim.interference import Interference
from cotenant.sim.trace import SECOND_GROWTH_S, Trace

MAX_IDLE_DECISIONS = 1000
"""After this many decisions without a launch, with nothing running and nothing to come, pending jobs never start."""


class Simulation:
    """One run of a trace on a cluster under a policy; call `run` once, then read its columns.

    Attributes:
        columns: what became of each job.
        idle_while_waiting_s: GPU seconds in which a GPU was empty while a job was pending.
        event_count: events that changed something; `decisions`: how often the policy decided.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        placer: Placer,
        job_of: Callable[[int], Job],
        interference: Interference,
        *,
        config: SimulationConfig,
        power_of: Callable[[str], PowerModel],
        history_feed: HistoryFeed | None = None,
        planner: MovePlanner | None = None,
        repartition: tuple[RepartitionPlanner, Sequence[MigSlots]] | None = None,
    ) -> None:
        check_faults(config, trace, len(cluster.slots))
        self.trace, self.cluster, self.config = trace, cluster, config
        self.columns = JobColumns(len(trace))
        self.gpus = [SimGpu(slot, power_of(slot.gpu_type), record=config.record) for slot in cluster.slots]
        self._by_uuid = {gpu.device.uuid: gpu for gpu in self.gpus}
        self._memory_sizes = sorted((gpu.total_bytes for gpu in self.gpus), reverse=True)
        self._placer = placer
        self._job_of = job_of
        self._history_feed = history_feed
        self._events: EventQueue[Any] = EventQueue()
        self._pending: dict[int, Job] = {}  # by number in the trace, as the next
        self._placed_before: set[int] = set()
        self._empty_gpus = len(self.gpus)
        self._running = self._idle_decisions = self.event_count = self.decisions = 0
        self.idle_while_waiting_s = self.now_s = 0.0
        self._speeds = SpeedCache(interference)
        self._plans = AttemptPlans(trace, config, self._speeds, cluster)
        self._observations = Observations(placer, self._wake_at, config, len(self.gpus))
        self._updater = SpeedUpdater(self._speeds, self._observations, self._schedule_milestone)
        self._requeues = Requeues(
            config, self.columns, self._events, history_feed, leave=self._leave, reconsider=self._reconsider
        )
        put_back = self._requeues.put_back
        faults = FaultInjector(config, self._plans, self._observations, self._events, self._requeues.interrupt)
        self._slices = TimeSlices(config, self._plans, self._events, put_back)
        world = (config, self._observations, self._events, self._updater)
        guard = OverrunGuard(*world, self._close_intervals, self._requeues.without_result)
        self._guard = None if config.overrun.action == "report" else guard
        self._mover = Mover(planner, history_feed, self._plans, *world) if planner and history_feed else None
        self._changed = ignore_change if self._mover is None else self._mover.changed
        moves = () if self._mover is None else self._mover.handlers(self.gpus, self._pending, put_back)
        attempts = (self._begin_work, self._milestone, self._requeue, self._wake)
        self.layouts: LayoutChanger | None = None
        if repartition is not None:
            self.layouts = LayoutChanger(*repartition, self.gpus, self._observations, self._events)
        move_handlers = moves or (ignore_event, ignore_event)
        layout_handler = ignore_event if self.layouts is None else self.layouts.done
        others = (faults.fail, faults.repair, self._slices.end, guard.check, *move_handlers, layout_handler)
        self._handlers: tuple[Handler, ...] = (*attempts, *others)
        for gpu in self.gpus:
            placer.update(self._observations.snapshot(gpu, 0.0))
            faults.schedule_first(gpu)

    def place_running(self, number: int, placement: Placement) -> None:
        """Before the run: this job is at work already, at its full size."""
        gpus = [self._by_uuid[uuid] for uuid in placement.gpu_uuids]
        attempt = RunningAttempt(number, self._job_of(number), placement, gpus, 0.0)
        self._placed_before.add(number)
        self._running += 1
        self.columns.attempts[number] = 1
        self.columns.start_s[number] = 0.0
        self._plans.fill(attempt, first=True, delay_s=0.0)
        attempt.is_active = True
        attempt.visible_s = 0.0
        attempt.milestone_s = attempt.work_s
        attempt.held_bytes = attempt.peak_bytes
        attempt.speed = 0.0
        for gpu in gpus:
            self._empty_gpus -= not gpu.residents
            gpu.residents.append(attempt)
            gpu.active.append(attempt)
            gpu.held_bytes += attempt.held_bytes
        self._updater.update(gpus, 0.0)
        for gpu in gpus:
            self._placer.update(self._observations.snapshot(gpu, 0.0))

    # The loop.

    def run(self) -> None:
        """Process events until no job can make progress."""
        submits, heap, observations = self.trace.submit_s, self._events.heap, self._observations
        pending, slices, never_s = self._pending, self._slices, math.inf
        count, number = len(submits), 0
        submit_s = submits[0] if count else never_s
        while True:
            at_s = heap[0][0] if heap else never_s
            if pending and observations.next_recheck_s < at_s:
                at_s = observations.next_recheck_s
            arrives = submit_s <= at_s
            if arrives:
                at_s = submit_s
            if at_s == never_s:
                break
            if pending:
                absent = 0 if self.layouts is None else self.layouts.absent
                self.idle_while_waiting_s += (at_s - self.now_s) * (self._empty_gpus - absent)
            self.now_s = at_s
            if arrives:
                number = self._arrive(number, at_s)
                submit_s = submits[number] if number < count else never_s
            elif not self._process_events(at_s) and not observations.is_changing:
                continue
            if pending:
                self._decide(at_s)
                if pending and slices.over:
                    slices.give_way(at_s)
            if not self._running and number >= count and self._is_over():
                break
        for gpu in self.gpus:
            gpu.advance(max(self.now_s, gpu.since_s))

    def _arrive(self, number: int, at_s: float) -> int:
        """Queue the jobs submitted at `at_s`, from this number on; the number of the first later job."""
        if self._observations.next_recheck_s < at_s:  # due while no job was pending
            self._observations.recheck(math.nextafter(at_s, 0.0))
        submits = self.trace.submit_s
        while number < len(submits) and submits[number] == at_s:
            if number not in self._placed_before:
                self._enqueue(number, self._job_of(number))
            number += 1
            self.event_count += 1
        return number

    def _process_events(self, at_s: float) -> bool:
        """Process what is due, in the order in which it was scheduled; False if all of it was stale."""
        is_any_current = self._observations.next_recheck_s <= at_s and self._observations.recheck(at_s)
        heap, handlers = self._events.heap, self._handlers
        while heap and heap[0][0] == at_s:
            _, _, kind, subject, version = heappop(heap)
            if kind <= MILESTONE:
                if subject.version != version:
                    continue
                self.event_count += 1
            if handlers[kind](subject, at_s) is not False:
                is_any_current = True
        return is_any_current

    def _is_over(self) -> bool:
        self._idle_decisions += bool(self._pending)
        return not self._requeues.waiting and (not self._pending or self._idle_decisions > MAX_IDLE_DECISIONS)

    def _wake_at(self, at_s: float) -> None:
        self._events.put(at_s, WAKE, None)

    def _wake(self, _subject: None, at_s: float) -> None:
        self._observations.woken(at_s)

    def _schedule_milestone(self, at_s: float, attempt: RunningAttempt) -> None:
        self._events.put(at_s, MILESTONE, attempt, attempt.version)

    def _requeue(self, subject: tuple[int, Job], _at_s: float) -> None:
        self._requeues.waiting -= 1
        self._enqueue(*subject)

    def _enqueue(self, number: int, job: Job) -> None:
        if never_fits(job, self._memory_sizes) is not None:
            return  # the daemon holds such jobs
        self._pending[number] = job
        self._placer.add(job)
        if self._history_feed is not None:
            self._history_feed.queued(job)
        self._changed(self.now_s)

    # Decisions.

    def _decide(self, at_s: float) -> None:
        if self.layouts is not None:
            self.layouts.look(self._pending, at_s)
        self._observations.update_placer(at_s)
        self.decisions += 1
        for placement in self._placer.decide(at_s):
            self._launch(placement, at_s)
        if self._pending:
            self._observations.wake(self._placer.wakes_at_s, at_s)

    def _launch(self, placement: Placement, at_s: float) -> None:
        number, columns = placement.job_id - 1, self.columns
        gpus = [self._by_uuid[uuid] for uuid in placement.gpu_uuids]
        attempt = RunningAttempt(number, self._pending.pop(number), placement, gpus, at_s)
        if self._history_feed is not None:
            self._history_feed.started(attempt)
        self._plans.fill(attempt, first=not columns.attempts[number])
        columns.alone_s[number] = attempt.delay_s + attempt.work_s
        self._running += 1
        self._idle_decisions = 0
        columns.attempts[number] += 1
        if math.isnan(columns.start_s[number]):
            columns.start_s[number] = at_s
        self._requeues.launched(number, at_s)
        if placement.sharing == "exclusive" and self._is_predetermined(attempt):
            speed = min([self._speeds.solo_speed(attempt, gpu) for gpu in gpus]) * attempt.network_factor
            self._empty_gpus -= len(gpus)
            for gpu in gpus:
                gpu.residents.append(attempt)
            self._schedule_milestone(at_s + attempt.delay_s + attempt.work_s / speed, attempt)
            return
        for gpu in gpus:
            gpu.advance(at_s)
            self._empty_gpus -= not gpu.residents
            gpu.residents.append(attempt)
            gpu.settle(at_s)
        self._events.put(at_s + attempt.delay_s, BEGIN_WORK, attempt, attempt.version)
        self._slices.started(attempt, at_s)
        self._changed(at_s)
        if self._guard is not None:
            self._guard.changed(gpus, at_s)

    def _is_predetermined(self, attempt: RunningAttempt) -> bool:
        """Whether nothing can happen to an exclusive attempt before its end, so that one event suffices."""
        for gpu in attempt.gpus:
            if gpu.residents or attempt.peak_bytes > gpu.total_bytes:
                return False
        return self.config.fault_every_s is None and self.config.time_slice_s is None and self._mover is None

    # Attempts.

    def _begin_work(self, attempt: RunningAttempt, at_s: float) -> None:
        """The launch delay is over: the attempt allocates its memory and starts to work."""
        profile, attempt.since_s, attempt.milestone_s = attempt.profile, at_s, attempt.work_s
        if profile is not None and not self._grow(attempt, profile.first_peak_bytes, at_s):
            return
        attempt.is_active = True
        attempt.speed = 0.0
        attempt.visible_s = self._observations.next_reading_s(at_s)
        attempt.resident = None
        attempt.is_full_size = profile is None or profile.peak_bytes <= profile.first_peak_bytes
        if not attempt.is_full_size:
            attempt.milestone_s = max(attempt.done_s, min(SECOND_GROWTH_S, 0.5 * attempt.work_s))
        self._close_intervals(attempt.gpus, at_s)
        attempt.co_run_since_s = at_s
        for gpu in attempt.gpus:
            gpu.active.append(attempt)
        self._placer.mark_active(attempt.job.id, attempt.visible_s)
        self._updater.update(attempt.gpus, at_s)

    def _milestone(self, attempt: RunningAttempt, at_s: float) -> None:
        """The attempt grows, or completes."""
        if not attempt.is_active:  # it had its GPUs to itself all the time
            for gpu in attempt.gpus:
                gpu.residents.remove(attempt)
                gpu.add_exclusive_attempt(attempt, at_s, attempt.peak_bytes)
            self._ended(attempt, at_s)
            self._completed(attempt, at_s)
            return
        attempt.done_s += attempt.speed * (at_s - attempt.since_s)
        attempt.since_s = at_s
        if attempt.is_full_size or attempt.profile is None:
            self._leave(attempt, at_s)
            self._completed(attempt, at_s)
            return
        attempt.is_full_size = True
        attempt.milestone_s = attempt.work_s
        if self._grow(attempt, attempt.profile.peak_bytes, at_s):
            self._updater.reschedule(attempt, at_s)
            for gpu in attempt.gpus:
                gpu.settle(at_s)

    def _grow(self, attempt: RunningAttempt, to_bytes: int, at_s: float) -> bool:
        """Allocate memory on all its GPUs; False if one has too little, which ends the attempt with an OOM."""
        wanted_bytes = to_bytes - attempt.held_bytes
        for gpu in attempt.gpus:
            if wanted_bytes > gpu.total_bytes - gpu.held_bytes:
                self._close_intervals(attempt.gpus, at_s)
                self._requeues.out_of_memory(attempt, gpu, wanted_bytes, at_s)
                return False
        for gpu in attempt.gpus:
            gpu.advance(at_s)
            gpu.held_bytes += wanted_bytes
        attempt.held_bytes = to_bytes
        attempt.resident = None
        if to_bytes > attempt.placement.promised_bytes:
            for gpu in attempt.gpus:
                self._observations.gpu_changed(gpu)
            if self._guard is not None:
                self._guard.changed(attempt.gpus, at_s)
        return True

    def _close_intervals(self, gpus: Sequence[SimGpu], at_s: float) -> None:
        """The attempts at work on these GPUs are about to change."""
        if self._history_feed is not None:
            self._history_feed.close_intervals(gpus, at_s)

    def _reconsider(self, jobs: Iterable[Job]) -> None:
        """Add these pending jobs again: their predictions have changed."""
        for job in jobs:
            self._placer.add(job)

    def _leave(self, attempt: RunningAttempt, at_s: float) -> None:
        """Free its memory and its GPUs, and speed up its neighbors."""
        attempt.version += 1
        self._close_intervals(attempt.gpus, at_s)
        for gpu in attempt.gpus:
            gpu.advance(at_s)
            gpu.residents.remove(attempt)
            if attempt.is_active and not attempt.is_paused:
                gpu.active.remove(attempt)
            gpu.held_bytes -= attempt.held_bytes
        self._ended(attempt, at_s)
        self._updater.update(attempt.gpus, at_s)
        if self._guard is not None:
            self._guard.changed(attempt.gpus, at_s)

    def _ended(self, attempt: RunningAttempt, at_s: float) -> None:
        for gpu in attempt.gpus:
            self._empty_gpus += not gpu.residents
            gpu.record_run(attempt, at_s)
        self._running -= 1
        self.columns.run_s[attempt.number] += at_s - attempt.placed_s
        self._placer.release(attempt.job.id)
        self._changed(at_s)
        if attempt.number in self._placed_before:  # the placer knows it from snapshots only
            for gpu in attempt.gpus:
                self._observations.gpu_changed(gpu)

    def _completed(self, attempt: RunningAttempt, at_s: float) -> None:
        failed = bool(self.trace.failed[attempt.number])
        if self._history_feed is not None:
            self._reconsider(self._history_feed.completed(attempt, at_s, failed=failed))
        self.columns.outcome[attempt.number] = FAILED if failed else COMPLETED
        self.columns.end_s[attempt.number] = at_s
