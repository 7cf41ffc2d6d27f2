"""Journals events, hands them to the manager, and executes the commands that follow.

When the journal cannot be written (a full disk), requests are refused with its error, except cancellations, for which
space is set aside. What has already happened, such as the exit of an attempt, waits in memory and is written as soon as
possible; until then nothing is decided or launched. Running attempts are not affected. An event that can never be
written is replaced by one without its payload, and one that cannot be applied is set aside, see `quarantine`, so that
it affects its own job only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cotenant.core.errors import JournalError
from cotenant.core.events import (
    AttemptExited,
    Command,
    EstimateReady,
    JobCancelled,
    JobSubmitted,
    Journaled,
    RepartitionEnded,
    Tick,
)
from cotenant.core.job import Job
from cotenant.daemon.command_executor import CommandExecutor
from cotenant.daemon.evidence import EvidenceCollector
from cotenant.daemon.job_verbs import ChangeEvent
from cotenant.daemon.journal_writer import JournalWriter, UnwritableEventError
from cotenant.daemon.messages import Report, SubmitRequest, is_reading, resolve
from cotenant.daemon.quarantine import Quarantine, refused, without_payload
from cotenant.daemon.services.base import AttemptService
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

AcceptedSubmit = tuple[SubmitRequest[Any], list[JobSubmitted]]
"""A request, and the events of its jobs."""


class EventCommitter:
    """Used in the control loop's thread only.

    `running_jobs` returns the jobs with an attempt at the moment. `on_exit` is called after an attempt ended,
    `forget_ids` when the ids given to submissions were not used. `wall` is the clock of the engine's reports.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        journal: JournalWriter,
        executor: CommandExecutor,
        quarantine: Quarantine,
        services: AttemptService,
        running_jobs: Callable[[], list[Job]],
        forget_ids: Callable[[], None],
        now: Callable[[], float],
        on_exit: Callable[[], None],
        wall: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._journal = journal
        self._executor = executor
        self._quarantine = quarantine
        self._services = services
        self._running_jobs = running_jobs
        self._forget_ids = forget_ids
        self._now = now
        self._on_exit = on_exit
        self._evidence = EvidenceCollector(manager, services, now, running_jobs, wall)
        self._backlog: deque[Report] = deque()

    @property
    def is_blocked(self) -> bool:
        """Whether reports or launches wait until the journal can be written."""
        return bool(self._backlog or self._executor.has_unsaved)

    def journal_changes(self, events: Sequence[ChangeEvent]) -> None:
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

    def commit(self, accepted: Sequence[AcceptedSubmit], reports: Sequence[Report]) -> None:
        """Journal and handle submissions and reports; refuse or postpone them if the journal fails."""
        if self.is_blocked:
            self._backlog.extend(reports)
            reports = []
        self._commit(accepted, [self._with_evidence(report) for report in reports])

    def _commit(self, accepted: Sequence[AcceptedSubmit], reports: Sequence[Report]) -> None:
        submitted = [event for _, events in accepted for event in events]
        events: list[Journaled] = [*submitted, *reports]
        try:
            self._ensure_writable()
            self._journal.append(events, durable=bool(submitted), urgent=not submitted)
        except UnwritableEventError as error:
            self._commit_apart(accepted, reports, error)
            return
        except JournalError as error:
            self._forget_ids()
            for request, _ in accepted:
                request.answer.set_exception(error)
            self._backlog.extend(reports)
            return
        problem = self.handle(events)
        for request, own_events in accepted:
            if problem is not None and any(event.job_id not in self._manager.jobs for event in own_events):
                request.answer.set_exception(refused(problem))
                continue
            query = partial(request.query, self._manager, [event.job_id for event in own_events])
            resolve(request.answer, query, expected=Exception)  # the jobs are queued, whatever the query raises
        self._after(events)

    def _commit_apart(
        self, accepted: Sequence[AcceptedSubmit], reports: Sequence[Report], error: UnwritableEventError
    ) -> None:
        """Commit each request and report alone, so that only the one that cannot be written is refused or replaced."""
        if len(accepted) + len(reports) > 1:
            for one in accepted:
                self._commit([one], [])
            for report in reports:
                self._commit([], [report])
            return
        for request, _ in accepted:
            self._forget_ids()
            request.answer.set_exception(error)
        for report in reports:
            logger.error("a report cannot be journaled", extra={"fields": {"job": report.job_id, "why": error.message}})
            replacement = without_payload(report, "cannot be journaled", self._now())
            if replacement is not None:
                self._commit([], [replacement])

    def _ensure_writable(self) -> None:
        """Raise the journal's error while decisions wait to be journaled: later events must not overtake them."""
        if self._executor.has_unsaved:
            self.catch_up()
        if self._executor.has_unsaved and self._journal.error is not None:
            raise self._journal.error

    def catch_up(self) -> None:
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
                self.handle([report])
                self._after([report])
        except JournalError:
            return

    def _with_evidence(self, report: Report) -> Report:
        if isinstance(report, EstimateReady):
            self._executor.estimated(report)
        elif isinstance(report, RepartitionEnded):
            self._executor.repartitioned(report)
        return self._evidence.complete(report)

    def _after(self, events: Sequence[Journaled]) -> None:
        if any(isinstance(event, AttemptExited) for event in events):
            self._on_exit()
            self._services.reconcile(self._running_jobs)

    def handle(self, events: Sequence[Any], *, one_decision: bool = False) -> Exception | None:
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

    def rebuild(self) -> None:
        """Restore the manager from the journal, after an exception outside of it."""
        self._executor.resume(self._quarantine.rebuild())
