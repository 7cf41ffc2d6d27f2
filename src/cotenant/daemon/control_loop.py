"""The thread that owns the manager and the journal. Every event is journaled before anything is done because of it.

Submissions and reports (estimated, started, exited) that arrive together share one transaction: their order relative to
the decisions between them does not matter. Changes of jobs by clients get one transaction each. Starts and exits are on
disk before a client sees them or a launch depends on them, but not earlier: the next decision syncs
them. Estimates are synced with whatever is written next; one that a power cut takes is made again.

When the journal cannot be written (a full disk), requests are refused with its error, except cancellations, for which
space is set aside. What has already happened, such as the exit of an attempt, waits in memory and is written as soon as
possible; until then nothing is decided or launched. Running attempts are not affected. An event that can never be
written is replaced by one without its payload, and one that cannot be applied is set aside, see `quarantine`, so that
it affects its own job only.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from cotenant.core.errors import CotenantError, JournalError
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    Command,
    EstimateReady,
    JobCancelled,
    JobSubmitted,
    Journaled,
    ServerSampled,
    Tick,
)
from cotenant.core.job import Job, JobSpec, Running, Starting
from cotenant.core.ports import Engine, Journal
from cotenant.daemon.api.submission import SubmissionHandler
from cotenant.daemon.api.waiters import Waiters
from cotenant.daemon.command_executor import CommandExecutor, EstimateSource
from cotenant.daemon.evidence import EvidenceCollector
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.job_changes import JobChanges
from cotenant.daemon.job_verbs import ChangeEvent
from cotenant.daemon.journal_writer import JournalWriter, UnwritableEventError
from cotenant.daemon.messages import (
    BulkChange,
    JobChange,
    Message,
    Query,
    Report,
    SubmitRequest,
    WaitRequest,
    batches,
    is_reading,
    refuse,
    resolve,
)
from cotenant.daemon.quarantine import Quarantine, refused, without_payload
from cotenant.daemon.services.base import AttemptService
from cotenant.daemon.storage_quota import StorageQuota
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
"""Between two attempts to write to a journal that fails."""

_Accepted = tuple[SubmitRequest[Any], list[JobSubmitted]]


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
        quota: StorageQuota | None = None,
        on_exit: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager = manager
        self._journal = JournalWriter(journal)
        self._inbox = inbox
        self._services = services
        self._now = now
        self._tick_s = tick_s
        self._on_exit = on_exit
        self._on_failure = on_failure
        self._backlog: deque[Report] = deque()
        self._failed = False
        self._waiters = Waiters(manager)
        self._submissions = SubmissionHandler(
            manager, now, quota=quota, taken_ids=lambda: [event.job_id for event in journal.quarantined()]
        )
        self._changes = JobChanges(manager, self._submissions, now, journal.pruned_jobs)
        self._quarantine = Quarantine(manager, journal, now)
        self._evidence = EvidenceCollector(manager, services, now, self.running_jobs)
        self._executor = CommandExecutor(
            journal=self._journal, engine=engine, estimates=estimates, services=services, inbox=inbox, now=now
        )
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self, recovered: Sequence[Report], commands: Sequence[Command]) -> None:
        """Start the thread, with the events of recovered attempts and the commands of the restored manager."""
        self.prepare(recovered, commands)
        self._thread.start()

    def prepare(self, recovered: Sequence[Report], commands: Sequence[Command]) -> None:
        """Like `start`, without a thread: the caller calls `turn`."""
        for report in recovered:
            self._inbox.put(report)
        self._executor.execute(commands)

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

    def change_many(self, change: BulkChange) -> Future[list[CotenantError | None]]:
        """Apply a verb to many jobs in one transaction."""
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
        return not (self._executor.has_unsaved or self._backlog or self._failed or self._thread.is_alive())

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
        is_blocked = bool(self._backlog or self._executor.has_unsaved)
        messages = self._inbox.get_batch(RETRY_S if is_blocked else self._tick_s)
        if is_blocked:
            self._catch_up()
        if not messages and not self._quarantine.is_paused:
            self._handle([Tick(at_s=self._now(), cause="clock")])
        for batch in batches(message for message in messages if message is not None):
            try:
                self._process(batch)
            except Exception as error:  # noqa: BLE001 (one batch must not end the service for all)
                self._survive(batch, error)
        if self._journal.flush():
            self._waiters.answer()
        return None not in messages

    def _process(self, batch: Sequence[Message]) -> None:
        first = batch[0]
        if isinstance(first, Query):
            # A query changes nothing, so any exception of it goes to its caller.
            resolve(first.answer, lambda: first.function(self._manager), expected=Exception)
        elif isinstance(first, WaitRequest):
            self._waiters.add(first)
        elif isinstance(first, ServerSampled):
            newest = self._inbox.take_sample()
            admitted = None if newest is None else self._quarantine.admitted(newest)
            if admitted is not None and self._handle([admitted]) is None:
                self._quarantine.decided()
        elif isinstance(first, JobChange):
            resolve(first.answer, lambda: self._change(first))
        elif isinstance(first, BulkChange):
            resolve(first.answer, lambda: self._change_many(first))
        else:
            self._process_facts(batch)

    def _change(self, change: JobChange) -> Job:
        event = self._changes.event(change.verb, change.job_id, change.cause, change.fields)
        self._journal_changes([event])
        problem = self._handle([event])
        if problem is not None:
            raise refused(problem)
        return self._manager.jobs[change.job_id]

    def _change_many(self, change: BulkChange) -> list[CotenantError | None]:
        events, problems = self._changes.events(change.verb, change.job_ids, change.cause)
        if events:
            self._journal_changes(events)
            self._handle(events, one_decision=True)
        return problems

    def _journal_changes(self, events: Sequence[ChangeEvent]) -> None:
        """Journal changes by clients; cancellations also on a full disk.

        Raises:
            JournalError: none was written.
        """
        urgent = all(isinstance(event, JobCancelled) for event in events)
        try:
            self._ensure_writable()
        except JournalError:
            if not urgent:
                raise
            # Decisions that could not be written were not acted on, and are made again once the disk has room.
            self._executor.resume(self._quarantine.rebuild())
        self._journal.append(events, urgent=urgent)
        for event in events:
            if isinstance(event, JobCancelled):
                self._executor.cancel_estimate(event.job_id)

    def _process_facts(self, batch: Sequence[Message]) -> None:
        """Journal and handle submissions and reports; refuse or postpone them if the journal fails."""
        submits = [message for message in batch if isinstance(message, SubmitRequest)]
        reports: list[Report] = [
            message for message in batch if isinstance(message, (EstimateReady, AttemptStarted, AttemptExited))
        ]
        if self._backlog or self._executor.has_unsaved:
            self._backlog.extend(reports)
            reports = []
        reports = [self._with_evidence(report) for report in reports]
        try:
            accepted = self._submissions.accepted(submits)
        except Exception as error:
            logger.exception("submissions cannot be checked")
            for message in submits:
                if not message.answer.done():
                    message.answer.set_exception(refused(error))
            self._submissions.reset_ids()
            accepted = []
        self._commit(accepted, reports)

    def _commit(self, accepted: Sequence[_Accepted], reports: Sequence[Report]) -> None:
        submitted = [event for _, events in accepted for event in events]
        events: list[Journaled] = [*submitted, *reports]
        try:
            self._ensure_writable()
            self._journal.append(events, durable=bool(submitted), urgent=not submitted)
        except UnwritableEventError as error:
            self._commit_apart(accepted, reports, error)
            return
        except JournalError as error:
            self._submissions.reset_ids()
            for request, _ in accepted:
                request.answer.set_exception(error)
            self._backlog.extend(reports)
            return
        problem = self._handle(events)
        for request, own_events in accepted:
            if problem is not None and any(event.job_id not in self._manager.jobs for event in own_events):
                request.answer.set_exception(refused(problem))
                continue
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
            logger.error("a report cannot be journaled", extra={"fields": {"job": report.job_id, "why": error.message}})
            replacement = without_payload(report, "cannot be journaled", self._now())
            if replacement is not None:
                self._commit([], [replacement])

    def _with_evidence(self, report: Report) -> Report:
        if isinstance(report, EstimateReady):
            self._executor.estimated(report)
        return self._evidence.complete(report)

    def _after(self, events: Sequence[Journaled]) -> None:
        if any(isinstance(event, AttemptExited) for event in events):
            self._on_exit()
            self._services.reconcile(self.running_jobs)

    # -- journaling

    def _ensure_writable(self) -> None:
        """Raise the journal's error while decisions wait to be journaled: later events must not overtake them."""
        if self._executor.has_unsaved:
            self._catch_up()
        if self._executor.has_unsaved and self._journal.error is not None:
            raise self._journal.error

    def _catch_up(self) -> None:
        """Journal and execute what had to wait, as far as the journal permits."""
        try:
            try:
                self._executor.save()
            except UnwritableEventError as error:
                self._recover(None, error)
            while self._backlog and not self._executor.has_unsaved:
                report = self._with_evidence(self._backlog[0])
                try:
                    self._journal.append([report], urgent=True)
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

    def _handle(self, events: Sequence[Any], *, one_decision: bool = False) -> Exception | None:
        """Hand events to the manager and execute its commands; returns what an event made the manager raise.

        Samples and ticks only lead to decisions, which are useless while they cannot be journaled.
        """
        commands: list[Command] = []
        problem: Exception | None = None
        decide = not self._executor.has_unsaved
        if self._journal.uses_reserve:
            events, decide, one_decision = [event for event in events if not is_reading(event)], False, True
        for group in [events] if one_decision and events else [[event] for event in events]:
            if not decide and is_reading(group[0]):
                continue
            try:
                commands += self._manager.handle_batch(group, decide=decide or not one_decision)
            except Exception as error:  # noqa: BLE001 (one event must not end the service for all)
                problem = error
                self._executor.execute(commands)  # what the events before it led to
                commands = []
                self._recover(group[-1], error)
                break  # the events after it are in the journal, and the restored manager has them
        try:
            self._executor.execute(commands)
        except UnwritableEventError as error:
            self._recover(None, error)
        if self._journal.flush():
            for job in self._manager.take_ended():
                self._services.job_done(job)
        return problem

    def _recover(self, event: Any, error: Exception) -> None:
        """Go on after `event` made the manager raise `error`; None: after a decision that cannot be carried out."""
        # A tick is in no journal: there is no event to set aside.
        successor, commands = self._quarantine.failed(event or Tick(at_s=self._now(), cause="clock"), error)
        if successor is not None:
            self._journal.append([successor], urgent=True)
            commands += self._manager.handle_batch([successor], decide=False)
        self._executor.resume(commands)

    def _survive(self, batch: Sequence[Message], error: Exception) -> None:
        """Go on after an exception outside the manager: answer who waits, and restore the manager from the journal."""
        logger.error("the control loop failed on a message", exc_info=error)
        refuse(batch, refused(error))
        self._executor.resume(self._quarantine.rebuild())
