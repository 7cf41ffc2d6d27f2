"""The thread that owns the manager and the journal: every event is kept before anything is done because of it.

Events that come together are kept in one transaction, as far as their order against the decisions between them does
not matter: those that only add knowledge (submitted, estimated, started, exited). Requests of clients that change a
job are kept one by one. Starts and ends are on disk before anybody is told or anything is started because of them, and
not before that: what is decided next brings them there with itself. Estimates come there with what is kept next: one
that a power cut takes is asked for again.

When the journal cannot be written (a full disk), requests are refused with its error. What has already happened, an
attempt's end for one, waits in memory and is kept as soon as it can be; until then nothing is decided or started.
Attempts are not touched by any of this.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cotenant.core.errors import BackendError, JournalError, NoSuchJob
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    Command,
    EstimateReady,
    JobCancelled,
    JobUpdated,
    Journaled,
    Launch,
    RequestEstimate,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.job import Attempt, AttemptExit, Job, JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, Engine, Journal
from cotenant.daemon.api.job_specs import with_changes
from cotenant.daemon.api.submission import SubmissionHandler
from cotenant.daemon.api.waiters import Waiters
from cotenant.daemon.estimation.pool import EstimatePool
from cotenant.daemon.journal_writer import JournalWriter
from cotenant.daemon.messages import (
    CHANGES,
    Input,
    JobChange,
    Query,
    Report,
    SubmitRequest,
    WaitRequest,
    batches,
    check_change,
    resolve,
)
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH = 512
RETRY_S = 0.5
"""Between two attempts to write to a journal that fails."""


class ControlLoop:
    """Runs the manager. Methods may be called from any thread; answers come through futures.

    What `launch_env` gives is laid over the environment of an attempt; `on_exit` is called after an attempt has ended.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        journal: Journal,
        engine: Engine,
        now: Callable[[], float],
        tick_s: float,
        launch_env: Callable[[JobSpec, Placement], Mapping[str, str]],
        on_exit: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._keeper = JournalWriter(journal)
        self._engine = engine
        self._now = now
        self._tick_s = tick_s
        self._launch_env = launch_env
        self._on_exit = on_exit
        self._estimates: EstimatePool | None = None
        self._inbox: queue.SimpleQueue[Input | None] = queue.SimpleQueue()
        self._sample_lock = threading.Lock()
        self._newest_sample: ServerSampled | None = None
        self._backlog: deque[Report] = deque()
        self._unsaved_launches: list[Launch] = []
        self._broken = False
        self._watches = Waiters(manager.jobs)
        self._submissions = SubmissionHandler(manager, now)
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self.failed: Callable[[], None] = lambda: None
        self.on_end: Callable[[Job], None] = lambda _: None
        self.failed_under_mps: Callable[[Job, Attempt, float], bool] = lambda *_: False

    def start(self, estimates: EstimatePool, found: Sequence[Report], commands: Sequence[Command]) -> None:
        """Begin, with what was found of earlier attempts and what the restored manager asks for."""
        self.prepare(estimates, found, commands)
        self._thread.start()

    def prepare(self, estimates: EstimatePool, found: Sequence[Report], commands: Sequence[Command]) -> None:
        """As `start`, without a thread: the caller takes every `turn` itself."""
        self._estimates = estimates
        for report in found:
            self._inbox.put(report)
        self._act(commands)

    def put(self, report: Report) -> None:
        """Something has happened."""
        self._inbox.put(report)

    def sampled(self, event: ServerSampled) -> None:
        """A reading of the GPUs; while the loop is busy only the newest is kept."""
        with self._sample_lock:
            waiting = self._newest_sample is not None
            self._newest_sample = event
        if not waiting:
            self._inbox.put(event)

    def submit(self, specs: Sequence[JobSpec]) -> Future[list[int]]:
        """Queue `specs`, all or none; their ids, once durable."""
        return self.submit_and_query(specs, lambda _, ids: ids)

    def submit_and_query(self, specs: Sequence[JobSpec], look: Callable[[Manager, list[int]], T]) -> Future[T]:
        """As `submit`; then what `look` returns of the manager, which knows the jobs by now, and of their ids."""
        request: SubmitRequest[T] = SubmitRequest(tuple(specs), look)
        self._inbox.put(request)
        return request.answer

    def change(self, change: JobChange) -> Future[Job]:
        """Cancel, hold or release."""
        self._inbox.put(change)
        return change.answer

    def ask(self, question: Callable[[Manager], T]) -> Future[T]:
        """What `question` returns of the manager."""
        request: Query[T] = Query(question)
        self._inbox.put(request)
        return request.answer

    def watch(self, watch: WaitRequest) -> Future[Job]:
        """The job, once it is as far as `watch` says. Cancel the future to stop waiting."""
        self._inbox.put(watch)
        return watch.answer

    @property
    def journal_error(self) -> JournalError | None:
        """Why the journal cannot be written at present, or None."""
        return self._keeper.error

    def close(self) -> None:
        """Finish what has come in, then end."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def is_consistent(self) -> bool:
        """Whether the manager, once closed, holds what the journal holds: nothing failed, nothing is yet to be kept."""
        return not (self._unsaved_launches or self._backlog or self._broken or self._thread.is_alive())

    # -- taking in

    def _run(self) -> None:
        try:
            while self.turn():
                pass
        except Exception:  # the state in memory can no longer be trusted: end, and restart from the journal
            logger.exception("the daemon's loop failed")
            self._broken = True
            self.failed()

    def turn(self) -> bool:
        """Take in what is there, or wait a tick for it; False at the end."""
        blocked = bool(self._backlog or self._unsaved_launches)
        inputs = self._drain(RETRY_S if blocked else self._tick_s)
        if blocked:
            self._catch_up()
        if not inputs:
            self._handle([Tick(at_s=self._now(), cause="clock")])
        for group in batches(each for each in inputs if each is not None):
            self._take(group)
        if self._keeper.flush():
            self._watches.answer()
        return None not in inputs

    def _drain(self, timeout_s: float) -> list[Input | None]:
        found: list[Input | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._inbox.get(timeout=timeout_s))
            while len(found) < MAX_BATCH:
                found.append(self._inbox.get_nowait())
        return found

    def _take(self, group: Sequence[Input]) -> None:
        first = group[0]
        if isinstance(first, Query):
            # A question changes nothing: whatever its error is, it is the asker's.
            resolve(first.answer, lambda: first.question(self._manager), refusals=Exception)
        elif isinstance(first, WaitRequest):
            self._watches.add(first)
        elif isinstance(first, ServerSampled):
            with self._sample_lock:
                newest, self._newest_sample = self._newest_sample, None
            if newest is not None:
                self._handle([newest])
        elif isinstance(first, JobChange):
            resolve(first.answer, lambda: self._change(first))
        else:
            self._keep_and_handle(group)

    def _change(self, change: JobChange) -> Job:
        job = self._manager.jobs.get(change.job_id)
        if job is None:
            raise NoSuchJob(f"no job {change.job_id}", hint="see `cotenant ls`")
        check_change(change.kind, job)
        self._ensure_writable()
        event: Journaled
        if change.kind == "update":
            spec = with_changes(job.spec, change.fields, job.id)
            self._submissions.check_update(job, spec)
            event = JobUpdated(at_s=self._now(), cause=change.cause, job_id=job.id, spec=spec)
        else:
            event = CHANGES[change.kind](at_s=self._now(), cause=change.cause, job_id=job.id)
        self._keeper.append([event])
        if isinstance(event, JobCancelled) and self._estimates is not None:
            self._estimates.cancel(job.id)
        self._handle([event])
        return self._manager.jobs[job.id]

    def _keep_and_handle(self, group: Sequence[Input]) -> None:
        """Keep and handle submissions and reports; refuse or postpone them if the journal fails."""
        submits = [each for each in group if isinstance(each, SubmitRequest)]
        reports: list[Report] = [
            each for each in group if isinstance(each, (EstimateReady, AttemptStarted, AttemptExited))
        ]
        if self._backlog or self._unsaved_launches:
            self._postpone(reports)
            reports = []
        if reports:
            reports = [self._witnessed(each) for each in reports]
        accepted = self._submissions.accepted(submits)
        submitted = [event for _, events in accepted for event in events]
        events: list[Journaled] = []
        events += submitted
        events += reports
        try:
            self._ensure_writable()
            self._keeper.append(events, durable=bool(submitted))
        except JournalError as error:
            self._submissions.reset_ids()
            for request, _ in accepted:
                request.answer.set_exception(error)
            self._postpone(reports)
            return
        self._handle(events)
        for request, mine in accepted:
            look = partial(request.look, self._manager, [each.job_id for each in mine])
            resolve(request.answer, look, refusals=Exception)  # they are queued, whatever comes of looking at them
        self._after(events)

    def _witnessed(self, report: Report) -> Report:
        """`report` on our own clock, and with what samples showed.

        A runner tells the time of the wall clock, which may have been set since we started: a start that seemed a day
        old would count as past any time limit.
        """
        if isinstance(report, EstimateReady):
            return report
        job = self._manager.jobs.get(report.job_id)
        attempt = None if job is None else job.last_attempt
        if job is not None and attempt is not None and attempt.number == report.attempt:
            since_s = attempt.placed_at_s if attempt.started_at_s is None else attempt.started_at_s
            report = replace(report, at_s=min(max(report.at_s, since_s), max(self._now(), since_s)))
            if isinstance(report, AttemptExited) and report.exit.reason == "exited" and report.exit.exit_code != 0:
                fault = self.failed_under_mps(job, attempt, report.at_s - since_s)
                report = replace(report, exit=replace(report.exit, mps_fault=fault))
        return self._manager.with_telemetry(report) if isinstance(report, AttemptExited) else report

    def _after(self, events: Sequence[Journaled]) -> None:
        if any(isinstance(event, AttemptExited) for event in events):
            # Its memory is free now: a reading says so to those who wait for it.
            self._on_exit()

    # -- keeping

    def _ensure_writable(self) -> None:
        """Raise the journal's error while decisions wait to be kept: what comes later must not be kept before them."""
        if self._unsaved_launches:
            self._catch_up()
        if self._unsaved_launches and self._keeper.error is not None:
            raise self._keeper.error

    def _postpone(self, reports: Sequence[Report]) -> None:
        self._backlog.extend(reports)

    def _catch_up(self) -> None:
        """Keep and do what had to wait, as far as the journal lets us."""
        try:
            if self._unsaved_launches:
                self._keeper.append([launch.placed for launch in self._unsaved_launches])
                waiting, self._unsaved_launches = self._unsaved_launches, []
                self._launch(waiting)
            while self._backlog and not self._unsaved_launches:
                report = self._witnessed(self._backlog[0])
                self._keeper.append([report])
                self._backlog.popleft()
                self._handle([report])
                self._after([report])
        except JournalError:
            return

    # -- acting

    def _handle(self, events: Sequence[Any]) -> None:
        """Hand events to the manager and do what it says.

        Samples and ticks only lead to decisions, and there is no use in those while they cannot be kept.
        """
        commands: list[Command] = []
        for event in events:
            if self._unsaved_launches and isinstance(event, (ServerSampled, Tick)):
                continue
            commands += self._manager.handle(event)
        self._act(commands)
        if self._keeper.flush():
            for job in self._manager.take_ended():
                self.on_end(job)

    def _act(self, commands: Sequence[Command]) -> None:
        launches = [each for each in commands if isinstance(each, Launch)]
        for command in commands:
            if isinstance(command, RequestEstimate) and self._estimates is not None:
                self._estimates.request(command.job_id, command.spec)
            elif isinstance(command, Stop):
                ref = AttemptRef(job_id=command.job_id, attempt=command.attempt)
                self._engine.stop(ref, reason=command.cause, grace_s=command.grace_s)
        if not launches:
            return
        try:
            self._keeper.append([launch.placed for launch in launches])
        except JournalError:
            self._unsaved_launches += launches
            return
        self._launch(launches)

    def _launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            placed = launch.placed
            try:
                env = self._launch_env(launch.spec, placed.placement)
                self._engine.launch(launch.spec, placed.attempt, placed.placement, env)
            except BackendError as error:
                self._inbox.put(
                    AttemptExited(
                        at_s=self._now(),
                        cause=f"engine {self._engine.name}",
                        job_id=placed.job_id,
                        attempt=placed.attempt,
                        exit=AttemptExit(exit_code=None, signal=None, reason="not-started", detail=error.message),
                        peak_observed_bytes={},
                    )
                )
