"""Executes the commands of the manager: placements are journaled first, then launched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cotenant.core.errors import BackendError, CotenantError, DiskFullError, JournalError
from cotenant.core.events import (
    AttemptExited,
    AttemptIdle,
    Command,
    EstimateReady,
    Launch,
    Pause,
    Repartition,
    RepartitionEnded,
    RepartitionStarted,
    ReportIdleness,
    RequestEstimate,
    Resume,
    Stop,
)
from cotenant.core.job import AttemptExit, ExitReason, JobSpec
from cotenant.core.ports import AttemptRef, Engine
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.journal_writer import JournalWriter, UnwritableEventError
from cotenant.daemon.services.base import AttemptService

logger = logging.getLogger(__name__)


class EstimateSource(Protocol):
    """Makes estimates in the background and puts `EstimateReady` into the inbox."""

    def request(self, job_id: int, spec: JobSpec) -> None:
        """Begin to estimate `spec`."""
        ...

    def cancel(self, job_id: int) -> None:
        """Stop the estimate of a job; it delivers nothing any more."""
        ...


class CommandExecutor:
    """Requests estimates, launches and stops attempts. Used in the control loop's thread only.

    `repartition(started, is_resumed)` begins a repartition, whose end comes by the inbox; None: there is no way to.
    """

    def __init__(
        self,
        *,
        journal: JournalWriter,
        engine: Engine,
        estimates: EstimateSource,
        services: AttemptService,
        inbox: Inbox,
        now: Callable[[], float],
        repartition: Callable[[RepartitionStarted, bool], None] | None = None,
    ) -> None:
        self._journal = journal
        self._engine = engine
        self._estimates = estimates
        self._services = services
        self._inbox = inbox
        self._now = now
        self._repartition_gpu = repartition
        self._repartitioning: set[RepartitionStarted] = set()
        self._unsaved: list[Launch] = []
        self._estimating: set[int] = set()

    @property
    def has_unsaved(self) -> bool:
        """Whether launches wait until their placements can be journaled."""
        return bool(self._unsaved)

    def execute(self, commands: Sequence[Command]) -> None:
        """Execute `commands`; launches whose placements cannot be journaled now wait for `save`.

        Raises:
            UnwritableEventError: a placement can never be journaled; all other commands are executed, or wait.
        """
        launches = [command for command in commands if isinstance(command, Launch)]
        for command in commands:
            if isinstance(command, RequestEstimate):
                self._estimating.add(command.job_id)
                self._estimates.request(command.job_id, command.spec)
            elif isinstance(command, (Stop, Pause, Resume)):
                self._signal(command)
            elif isinstance(command, ReportIdleness):
                self._report_idleness(command)
            elif isinstance(command, Repartition):
                self._repartition(command)
        self._unsaved += launches
        try:
            self.save()
        except UnwritableEventError:
            raise
        except JournalError:
            return

    def _signal(self, command: Stop | Pause | Resume) -> None:
        ref = AttemptRef(job_id=command.job_id, attempt=command.attempt)
        if isinstance(command, Stop):
            grace_s, checkpoint = command.grace_s, command.checkpoint
            self._engine.stop(ref, reason=command.cause, grace_s=grace_s, checkpoint=checkpoint)
        elif isinstance(command, Pause):
            logger.warning("an attempt is paused", extra={"fields": {"job": command.job_id, "why": command.cause}})
            self._engine.pause(ref)
        else:
            self._engine.resume(ref)

    def _repartition(self, command: Repartition) -> None:
        """Journal it and begin it. Where that is not possible, it is over at once, with the reason."""
        started = command.started
        if started in self._repartitioning:
            return  # the manager was restored from the journal meanwhile
        error = None
        if self._repartition_gpu is None:
            error = "this daemon changes no MIG layouts"
        elif not command.is_resumed:
            try:
                self._journal.append([started])
            except JournalError as problem:
                error = f"it was not begun: {problem.message}"
        if self._repartition_gpu is not None and error is None:
            fields = {"gpu": started.gpu_uuid, "after": ", ".join(started.after), "why": started.cause}
            logger.info("a GPU is repartitioned", extra={"fields": fields})
            self._repartitioning.add(started)
            self._repartition_gpu(started, command.is_resumed)
            return
        ended = RepartitionEnded(
            at_s=self._now(),
            cause="repartition",
            job_id=started.job_id,
            gpu_uuid=started.gpu_uuid,
            gpu_index=started.gpu_index,
            layout=started.before,
            error=error,
        )
        self._inbox.put(ended)

    def repartitioned(self, event: RepartitionEnded) -> None:
        """A repartition is over."""
        same = {started for started in self._repartitioning if started.gpu_uuid == event.gpu_uuid}
        self._repartitioning -= same
        if event.error is not None:
            fields = {"gpu": event.gpu_uuid, "why": event.error, "layout": ", ".join(event.layout)}
            logger.warning("a GPU was not repartitioned", extra={"fields": fields})

    def _report_idleness(self, command: ReportIdleness) -> None:
        """Journal it and notify the user. A journal that fails has no room for it: the attempt is idle all the same."""
        event = command.event
        try:
            self._journal.append([event], durable=False)
        except JournalError as error:
            logger.warning("not journaled", extra={"fields": {"job": event.job_id, "why": error.message}})
        if isinstance(event, AttemptIdle):
            idle_s = event.at_s - event.idle_since_s
            logger.info("an attempt is idle", extra={"fields": {"job": event.job_id, "seconds": round(idle_s)}})
            self._services.attempt_idle(command.spec, event)

    def resume(self, commands: Iterable[Command]) -> None:
        """Execute the commands of a restored manager: estimates that are being made are not requested again."""
        self._unsaved.clear()  # never launched, and the restored manager decides anew
        self.execute(
            [
                command
                for command in commands
                if not (isinstance(command, RequestEstimate) and command.job_id in self._estimating)
            ]
        )

    def save(self) -> None:
        """Journal and launch what had to wait.

        Raises:
            UnwritableEventError: a placement can never be journaled. It is forgotten here, and the manager has to be
                restored; the others are launched, or wait.
            JournalError: the journal failed; all wait.
        """
        if not self._unsaved:
            return
        try:
            self._journal.append([launch.placed for launch in self._unsaved])
        except UnwritableEventError:
            self._save_apart()
            return
        waiting, self._unsaved = self._unsaved, []
        self._launch(waiting)

    def _save_apart(self) -> None:
        """Like `save`, with a transaction for each placement."""
        problem: UnwritableEventError | None = None
        while self._unsaved:
            try:
                self._journal.append([self._unsaved[0].placed])
            except UnwritableEventError as error:
                problem = error
                del self._unsaved[0]
            except JournalError:
                if problem is None:
                    raise
                break
            else:
                self._launch([self._unsaved.pop(0)])
        if problem is not None:
            raise problem

    def estimated(self, event: EstimateReady) -> None:
        """An estimate was delivered."""
        self._estimating.discard(event.job_id)

    def cancel_estimate(self, job_id: int) -> None:
        """Stop the estimate of a job."""
        self._estimating.discard(job_id)
        self._estimates.cancel(job_id)

    def _launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            placed = launch.placed
            try:
                env = self._services.prepare(launch.spec, placed.placement)
                self._engine.launch(launch.spec, placed.attempt, placed.placement, env)
            except Exception as error:
                detail = error.message if isinstance(error, CotenantError) else f"{type(error).__name__}: {error}"
                if not isinstance(error, BackendError):
                    logger.exception("an attempt could not be launched", extra={"fields": {"job": placed.job_id}})
                reason: ExitReason = "not-started"
                if isinstance(error, DiskFullError):
                    # Every waiting job would fail like this one, so nothing is launched until there is room.
                    reason = "never-ran"
                    self._journal.disk_is_full(detail)
                self._inbox.put(
                    AttemptExited(
                        at_s=self._now(),
                        cause=f"engine {self._engine.name}",
                        job_id=placed.job_id,
                        attempt=placed.attempt,
                        exit=AttemptExit(exit_code=None, signal=None, reason=reason, detail=detail),
                        peak_observed_bytes={},
                    )
                )
