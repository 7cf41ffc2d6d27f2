"""The thread that owns the manager and the journal. Every event is journaled before anything is done because of it.

Submissions and reports (estimated, started, exited) that arrive together share one transaction: their order relative to
the decisions between them does not matter. Changes of jobs by clients get one transaction each. Starts and exits are on
disk before a client sees them or a launch depends on them, but not earlier: the next decision syncs them. Estimates are
synced with whatever is written next; one that a power cut takes is made again.

`event_committer` writes the events, and says what happens when the journal cannot be written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from cotenant.core.errors import CotenantError, JournalError, NoSuchJob
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    Command,
    EstimateReady,
    RepartitionEnded,
    RepartitionStarted,
    ServerSampled,
    Tick,
)
from cotenant.core.job import Job, JobSpec, Running, Starting
from cotenant.core.ports import Engine, Journal
from cotenant.daemon.api.submission.submission_handler import SubmissionHandler
from cotenant.daemon.command_executor import CommandExecutor, EstimateSource
from cotenant.daemon.event_committer import EventCommitter
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.job_changes import JobChanges
from cotenant.daemon.journal_writer import JournalWriter
from cotenant.daemon.messages import (
    BulkChange,
    JobChange,
    Message,
    Query,
    Report,
    SubmitRequest,
    WaitRequest,
    batches,
    refuse,
    resolve,
)
from cotenant.daemon.quarantine import Quarantine, refused
from cotenant.daemon.services.base import AttemptService
from cotenant.daemon.storage_quota import StorageQuota
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
"""Between two attempts to write to a journal that fails."""


class ControlLoop:
    """Runs the manager on the messages of `inbox`. Methods may be called from any thread; answers come by futures.

    `services` accompany every attempt; `repartition` is that of `CommandExecutor`. `on_exit` is called in this thread
    after an attempt ended, `on_failure` when the loop ends by an exception: the state in memory can no longer be
    trusted. `wall` is the clock of the engine's reports.
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
        repartition: Callable[[RepartitionStarted, bool], None] | None = None,
        on_failure: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._manager = manager
        self._journal = JournalWriter(journal)
        self._inbox = inbox
        self._now = now
        self._tick_s = tick_s
        self._on_failure = on_failure
        self._failed = False
        self._waiters = _Waiters(manager)
        self._submissions = SubmissionHandler(
            manager, now, quota=quota, taken_ids=lambda: [event.job_id for event in journal.quarantined()]
        )
        self._changes = JobChanges(manager, self._submissions, now, journal.pruned_jobs)
        self._quarantine = Quarantine(manager, journal, now)
        self._executor = CommandExecutor(
            journal=self._journal,
            engine=engine,
            estimates=estimates,
            services=services,
            inbox=inbox,
            now=now,
            repartition=repartition,
        )
        self._committer = EventCommitter(
            manager=manager,
            journal=self._journal,
            executor=self._executor,
            quarantine=self._quarantine,
            services=services,
            running_jobs=self.running_jobs,
            forget_ids=self._submissions.reset_ids,
            now=now,
            on_exit=on_exit,
            wall=wall,
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
        return not (self._committer.is_blocked or self._failed or self._thread.is_alive())

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
        is_blocked = self._committer.is_blocked
        messages = self._inbox.get_batch(RETRY_S if is_blocked else self._tick_s)
        if is_blocked:
            self._committer.catch_up()
        if not messages and not self._quarantine.is_paused:
            self._committer.handle([Tick(at_s=self._now(), cause="clock")])
        for batch in batches(message for message in messages if message is not None):
            try:
                self._process(batch)
            except Exception as error:  # noqa: BLE001 (one batch must not end the service for all)
                self._survive(batch, error)
        self._journal.probe()
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
            if admitted is not None and self._committer.handle([admitted]) is None:
                self._quarantine.decided()
        elif isinstance(first, JobChange):
            resolve(first.answer, lambda: self._change(first))
        elif isinstance(first, BulkChange):
            resolve(first.answer, lambda: self._change_many(first))
        else:
            self._process_facts(batch)

    def _change(self, change: JobChange) -> Job:
        event = self._changes.event(change.verb, change.job_id, change.cause, change.fields)
        self._committer.journal_changes([event])
        problem = self._committer.handle([event])
        if problem is not None:
            raise refused(problem)
        return self._manager.jobs[change.job_id]

    def _change_many(self, change: BulkChange) -> list[CotenantError | None]:
        events, problems = self._changes.events(change.verb, change.job_ids, change.cause)
        if events:
            self._committer.journal_changes(events)
            self._committer.handle(events, one_decision=True)
        return problems

    def _process_facts(self, batch: Sequence[Message]) -> None:
        """Check submissions, and commit them with the reports."""
        submits = [message for message in batch if isinstance(message, SubmitRequest)]
        reports: list[Report] = [
            message
            for message in batch
            if isinstance(message, (EstimateReady, AttemptStarted, AttemptExited, RepartitionEnded))
        ]
        try:
            accepted = self._submissions.accepted(submits)
        except Exception as error:
            logger.exception("submissions cannot be checked")
            for message in submits:
                if not message.answer.done():
                    message.answer.set_exception(refused(error))
            self._submissions.reset_ids()
            accepted = []
        self._committer.commit(accepted, reports)

    def _survive(self, batch: Sequence[Message], error: Exception) -> None:
        """Go on after an exception outside the manager: answer who waits, and restore the manager from the journal."""
        logger.error("the control loop failed on a message", exc_info=error)
        refuse(batch, refused(error))
        self._committer.rebuild()


class _Waiters:
    """Wait requests by job. Used in the control loop's thread only."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._waiting: dict[int, list[WaitRequest]] = {}

    def add(self, request: WaitRequest) -> None:
        """Add a request; for an unknown job its answer is `NoSuchJob`."""
        if request.job_id not in self._manager.jobs:
            request.answer.set_exception(_unknown(request.job_id))
            return
        self._waiting.setdefault(request.job_id, []).append(request)

    def answer(self) -> None:
        """Answer the requests whose job has come far enough, and drop cancelled ones."""
        jobs = self._manager.jobs
        for job_id in list(self._waiting):
            job = jobs.get(job_id)
            waiting = []
            for request in self._waiting.pop(job_id):
                if job is None:  # its submission was set aside, see `daemon.quarantine`
                    if request.answer.set_running_or_notify_cancel():
                        request.answer.set_exception(_unknown(job_id))
                elif request.reached(job):
                    # False if the client has gone meanwhile.
                    if request.answer.set_running_or_notify_cancel():
                        request.answer.set_result(job)
                elif not request.answer.cancelled():
                    waiting.append(request)
            if waiting:
                self._waiting[job_id] = waiting


def _unknown(job_id: int) -> NoSuchJob:
    return NoSuchJob(f"no job {job_id}", hint="see `cotenant ls`")
