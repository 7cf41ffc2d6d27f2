"""The thread that owns the manager and the journal. Every event is journaled before anything is done because of it.

Submissions and reports (estimated, started, exited) that arrive together share one transaction: their order relative to
the decisions between them does not matter. Changes of jobs by clients get one transaction each. Starts and exits are on
disk before anybody learns of them or anything is launched because of them, but not earlier: the next decision syncs
them. Estimates are synced with whatever is written next; one that a power cut takes is made again.

When the journal cannot be written (a full disk), requests are refused with its error. What has already happened, such
as the exit of an attempt, waits in memory and is written as soon as possible; until then nothing is decided or
launched. Running attempts are not affected. An event that can never be written is replaced by one without its payload,
so that it affects its own job only.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from cotenant.core.errors import BackendError, JournalError, NoSuchJob
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    Command,
    EstimateReady,
    JobCancelled,
    JobSubmitted,
    Journaled,
    Launch,
    RequestEstimate,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.job import AttemptExit, Job, JobSpec, Running, Starting
from cotenant.core.ports import AttemptRef, Engine, Journal
from cotenant.daemon.api.submission import SubmissionHandler
from cotenant.daemon.api.waiters import Waiters
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.job_verbs import JOB_VERBS
from cotenant.daemon.journal_writer import JournalWriter, UnwritableEventError
from cotenant.daemon.messages import JobChange, Message, Query, Report, SubmitRequest, WaitRequest, batches, resolve
from cotenant.daemon.services.base import AttemptService
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
"""Between two attempts to write to a journal that fails."""

_Accepted = tuple[SubmitRequest[Any], list[JobSubmitted]]


class EstimateSource(Protocol):
    """Makes estimates in the background and puts `EstimateReady` into the inbox."""

    def request(self, job_id: int, spec: JobSpec) -> None:
        """Begin to estimate `spec`."""
        ...

    def cancel(self, job_id: int) -> None:
        """Stop the estimate of a job; it delivers nothing any more."""
        ...


class ControlLoop:
    """Runs the manager on the messages of `inbox`. Methods may be called from any thread; answers come by futures.

    `services` accompany every attempt. `on_exit` is called in this thread after an attempt ended, `on_failure` when the
    loop ends by an exception: the state in memory can no longer be trusted.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        journal: Journal,
        engine: Engine,
        inbox: Inbox,
        estimates: EstimateSource,
        services: AttemptService,
        now: Callable[[], float],
        tick_s: float,
        on_exit: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager = manager
        self._journal = JournalWriter(journal)
        self._engine = engine
        self._inbox = inbox
        self._estimates = estimates
        self._services = services
        self._now = now
        self._tick_s = tick_s
        self._on_exit = on_exit
        self._on_failure = on_failure
        self._backlog: deque[Report] = deque()
        self._unsaved_launches: list[Launch] = []
        self._failed = False
        self._waiters = Waiters(manager.jobs)
        self._submissions = SubmissionHandler(manager, now)
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self, recovered: Sequence[Report], commands: Sequence[Command]) -> None:
        """Start the thread, with the events of recovered attempts and the commands of the restored manager."""
        self.prepare(recovered, commands)
        self._thread.start()

    def prepare(self, recovered: Sequence[Report], commands: Sequence[Command]) -> None:
        """Like `start`, without a thread: the caller calls `turn`."""
        for report in recovered:
            self._inbox.put(report)
        self._execute(commands)

    def submit(self, specs: Sequence[JobSpec]) -> Future[list[int]]:
        """Queue `specs`, all or none; the answer is their ids, once they are on disk."""
        return self.submit_and_query(specs, lambda _, ids: ids)

    def submit_and_query(self, specs: Sequence[JobSpec], query: Callable[[Manager, list[int]], T]) -> Future[T]:
        """Like `submit`; the answer is `query(manager, ids)`, called when the manager has the jobs."""
        request: SubmitRequest[T] = SubmitRequest(tuple(specs), query)
        self._inbox.put(request)
        return request.answer

    def change(self, change: JobChange) -> Future[Job]:
        """Apply a verb to a job."""
        self._inbox.put(change)
        return change.answer

    def query(self, function: Callable[[Manager], T]) -> Future[T]:
        """Call `function(manager)` in the loop's thread."""
        request: Query[T] = Query(function)
        self._inbox.put(request)
        return request.answer

    def wait(self, request: WaitRequest) -> Future[Job]:
        """The job, once it is as far as `request` says. Cancel the future to stop waiting."""
        self._inbox.put(request)
        return request.answer

    @property
    def journal_error(self) -> JournalError | None:
        """Why the journal cannot be written at present, or None."""
        return self._journal.error

    def close(self) -> None:
        """Process the messages so far, then end."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def is_consistent(self) -> bool:
        """Whether, after `close`, the manager's state is exactly what the journal's events lead to."""
        return not (self._unsaved_launches or self._backlog or self._failed or self._thread.is_alive())

    def running_jobs(self) -> list[Job]:
        """Jobs with an attempt at the moment. Call it in the loop's thread, or before `start`."""
        return [job for job in self._manager.jobs.values() if isinstance(job.state, (Starting, Running))]

    # -- receiving

    def _run(self) -> None:
        try:
            while self.turn():
                pass
        except Exception:
            logger.exception("the control loop failed")
            self._failed = True
            self._on_failure()

    def turn(self) -> bool:
        """Process the messages that are there, or wait a tick for one; returns False at the end."""
        is_blocked = bool(self._backlog or self._unsaved_launches)
        messages = self._inbox.get_batch(RETRY_S if is_blocked else self._tick_s)
        if is_blocked:
            self._catch_up()
        if not messages:
            self._handle([Tick(at_s=self._now(), cause="clock")])
        for batch in batches(message for message in messages if message is not None):
            self._process(batch)
        if self._journal.flush():
            self._waiters.answer()
        return None not in messages

    def _process(self, batch: Sequence[Message]) -> None:
        first = batch[0]
        if isinstance(first, Query):
            # A query changes nothing, so any exception of it belongs to whoever asked.
            resolve(first.answer, lambda: first.function(self._manager), expected=Exception)
        elif isinstance(first, WaitRequest):
            self._waiters.add(first)
        elif isinstance(first, ServerSampled):
            newest = self._inbox.take_sample()
            if newest is not None:
                self._handle([newest])
        elif isinstance(first, JobChange):
            resolve(first.answer, lambda: self._change(first))
        else:
            self._process_facts(batch)

    def _change(self, change: JobChange) -> Job:
        job = self._manager.jobs.get(change.job_id)
        if job is None:
            raise NoSuchJob(f"no job {change.job_id}", hint="see `cotenant ls`")
        verb = JOB_VERBS[change.verb]
        verb.check(job)
        self._ensure_writable()
        spec = verb.new_spec(job, change.fields)
        if spec is not job.spec:
            self._submissions.check_update(job, spec)
        event = verb.new_event(job, spec, at_s=self._now(), cause=change.cause)
        self._journal.append([event])
        if isinstance(event, JobCancelled):
            self._estimates.cancel(job.id)
        self._handle([event])
        return self._manager.jobs[job.id]

    def _process_facts(self, batch: Sequence[Message]) -> None:
        """Journal and handle submissions and reports; refuse or postpone them if the journal fails."""
        submits = [message for message in batch if isinstance(message, SubmitRequest)]
        reports: list[Report] = [
            message for message in batch if isinstance(message, (EstimateReady, AttemptStarted, AttemptExited))
        ]
        if self._backlog or self._unsaved_launches:
            self._backlog.extend(reports)
            reports = []
        reports = [self._with_evidence(report) for report in reports]
        self._commit(self._submissions.accepted(submits), reports)

    def _commit(self, accepted: Sequence[_Accepted], reports: Sequence[Report]) -> None:
        submitted = [event for _, events in accepted for event in events]
        events: list[Journaled] = [*submitted, *reports]
        try:
            self._ensure_writable()
            self._journal.append(events, durable=bool(submitted))
        except UnwritableEventError as error:
            self._commit_apart(accepted, reports, error)
            return
        except JournalError as error:
            self._submissions.reset_ids()
            for request, _ in accepted:
                request.answer.set_exception(error)
            self._backlog.extend(reports)
            return
        self._handle(events)
        for request, own_events in accepted:
            query = partial(request.query, self._manager, [event.job_id for event in own_events])
            resolve(request.answer, query, expected=Exception)  # the jobs are queued, whatever the query raises
        self._after(events)

    def _commit_apart(
        self, accepted: Sequence[_Accepted], reports: Sequence[Report], error: UnwritableEventError
    ) -> None:
        """Commit each request and report alone, so that only the one that cannot be written is refused or replaced."""
        if len(accepted) + len(reports) > 1:
            for one in accepted:
                self._commit([one], [])
            for report in reports:
                self._commit([], [report])
            return
        for request, _ in accepted:
            self._submissions.reset_ids()
            request.answer.set_exception(error)
        for report in reports:
            replacement = self._without_payload(report, error)
            if replacement is not None:
                self._commit([], [replacement])

    def _without_payload(self, report: Report, error: UnwritableEventError) -> Report | None:
        """`report` reduced to what a journal can hold; None if there is nothing left to reduce."""
        logger.error("a report cannot be journaled", extra={"fields": {"job": report.job_id, "why": error.message}})
        reduced: Report | None = None
        if isinstance(report, EstimateReady):
            reduced = dataclasses.replace(report, estimate=None, error="the estimate cannot be journaled")
        elif isinstance(report, AttemptExited):
            end = AttemptExit(exit_code=None, signal=None, reason="lost", detail="its exit cannot be journaled")
            reduced = AttemptExited(
                at_s=self._now(),
                cause=report.cause,
                job_id=report.job_id,
                attempt=report.attempt,
                exit=end,
                peak_observed_bytes={},
            )
        return None if reduced == report else reduced

    def _with_evidence(self, report: Report) -> Report:
        """`report` on the daemon's clock, with what services and telemetry know of an exit.

        A runner stamps its reports with the wall clock, which may have been set since the daemon started: a start that
        seemed a day old would exceed any time limit.
        """
        if isinstance(report, EstimateReady):
            return report
        job = self._manager.jobs.get(report.job_id)
        attempt = None if job is None else job.last_attempt
        if job is not None and attempt is not None and attempt.number == report.attempt:
            since_s = attempt.placed_at_s if attempt.started_at_s is None else attempt.started_at_s
            report = dataclasses.replace(report, at_s=min(max(report.at_s, since_s), max(self._now(), since_s)))
            if isinstance(report, AttemptExited):
                report = self._services.ended(job, attempt, report, self.running_jobs)
        return self._manager.with_telemetry(report) if isinstance(report, AttemptExited) else report

    def _after(self, events: Sequence[Journaled]) -> None:
        if any(isinstance(event, AttemptExited) for event in events):
            self._on_exit()
            self._services.reconcile(self.running_jobs)

    # -- journaling

    def _ensure_writable(self) -> None:
        """Raise the journal's error while decisions wait to be journaled: later events must not overtake them."""
        if self._unsaved_launches:
            self._catch_up()
        if self._unsaved_launches and self._journal.error is not None:
            raise self._journal.error

    def _catch_up(self) -> None:
        """Journal and execute what had to wait, as far as the journal permits."""
        try:
            if self._unsaved_launches:
                self._journal.append([launch.placed for launch in self._unsaved_launches])
                waiting, self._unsaved_launches = self._unsaved_launches, []
                self._launch(waiting)
            while self._backlog and not self._unsaved_launches:
                report = self._with_evidence(self._backlog[0])
                try:
                    self._journal.append([report])
                except UnwritableEventError as error:
                    self._backlog.popleft()
                    self._commit_apart([], [report], error)
                    continue
                self._backlog.popleft()
                self._handle([report])
                self._after([report])
        except JournalError:
            return

    # -- executing

    def _handle(self, events: Sequence[Any]) -> None:
        """Hand events to the manager and execute its commands.

        Samples and ticks only lead to decisions, which are useless while they cannot be journaled.
        """
        commands: list[Command] = []
        for event in events:
            if self._unsaved_launches and isinstance(event, (ServerSampled, Tick)):
                continue
            commands += self._manager.handle(event)
        self._execute(commands)
        if self._journal.flush():
            for job in self._manager.take_ended():
                self._services.job_done(job)

    def _execute(self, commands: Sequence[Command]) -> None:
        launches = [command for command in commands if isinstance(command, Launch)]
        for command in commands:
            if isinstance(command, RequestEstimate):
                self._estimates.request(command.job_id, command.spec)
            elif isinstance(command, Stop):
                ref = AttemptRef(job_id=command.job_id, attempt=command.attempt)
                self._engine.stop(ref, reason=command.cause, grace_s=command.grace_s)
        if not launches:
            return
        try:
            self._journal.append([launch.placed for launch in launches])
        except JournalError:
            self._unsaved_launches += launches
            return
        self._launch(launches)

    def _launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            placed = launch.placed
            try:
                env = self._services.prepare(launch.spec, placed.placement)
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
