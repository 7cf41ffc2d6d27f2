"""The one place where a job changes its state: events in, commands out. Pure; time comes with the events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from cotenant.core.errors import NoSuchJob
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    Command,
    EstimateReady,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Journaled,
    Launch,
    RequestEstimate,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.gpu import Resident, ServerSnapshot
from cotenant.core.job import Attempt, Done, Held, Job, JobState, Queued, Running, Starting
from cotenant.core.placement import Placement, Wait
from cotenant.scheduling import recovery
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.explain import explanation, open_dependencies
from cotenant.scheduling.ledger import Ledger, need_bytes, never_fits
from cotenant.scheduling.policy import Policy
from cotenant.scheduling.telemetry import Telemetry

__all__ = ["Manager", "ManagerConfig"]


class Manager:
    """Jobs, and what is known of the server. The same events give the same commands and the same jobs.

    Events that come twice, late or out of order change nothing: an attempt is started and ended once, by its
    number. A job that can never fit on the GPUs there are is held; this follows from the newest inventory, so it is
    not in the journal, and it ends by itself when such a GPU appears.
    """

    def __init__(self, policy: Policy, config: ManagerConfig | None = None) -> None:
        self._policy = policy
        self._config = config or ManagerConfig()
        self._jobs: dict[int, Job] = {}
        self._queued: set[int] = set()
        self._live: set[int] = set()
        self._misfits: dict[int, Queued] = {}  # with the state to go back to
        self._dependents: dict[int, list[int]] = {}
        self._telemetry = Telemetry(stale_after_s=self._config.stale_after_s, window_s=self._config.window_s)
        self._waits: dict[int, Wait] = {}
        self._limit_asked_at_s: dict[int, float] = {}
        self._last_at_s = 0.0

    @property
    def jobs(self) -> Mapping[int, Job]:
        """All jobs ever submitted, by id; a view that follows."""
        return MappingProxyType(self._jobs)

    def handle(self, event: Event) -> list[Command]:
        """Take in `event`; what to do now, in this order.

        Every `Launch` carries an `AttemptPlaced` that is already applied here and must be kept before acting.
        """
        queued_before = len(self._queued)
        commands = self._apply(event)
        if isinstance(event, ServerSampled):
            self._telemetry.add(event, self._jobs)
        commands += self._stop_overdue(event.at_s)
        if self._worth_deciding(event, queued_before):
            commands += self._decide(event)
        return commands

    def restore(self, events: Iterable[Journaled]) -> list[Command]:
        """Fold kept events without deciding anything, then ask again for what may have been lost in between.

        That is: estimates still missing, and stops that were asked for. Attempts that were `Starting` or `Running`
        are the engine's to find.
        """
        for event in events:
            self._apply(event)
        at_s = self._last_at_s
        commands: list[Command] = []
        for job in self._jobs.values():
            if not job.is_done and self._lacks_estimate(job):
                commands.append(self._request(job, at_s, "restart"))
            attempt = job.last_attempt
            if job.id in self._live and attempt is not None and attempt.stop_asked is not None:
                commands.append(self._stop(job, at_s, attempt.stop_asked))
        return commands

    def witnessed(self, event: AttemptExited) -> AttemptExited:
        """`event` as it should be kept: with the peaks and the least free memory near the end, from samples.

        What the event already says stays.
        """
        job = self._jobs.get(event.job_id)
        attempt = job.last_attempt if job is not None else None
        uuids = attempt.placement.gpu_uuids if attempt is not None and attempt.number == event.attempt else ()
        return self._telemetry.witnessed(event, uuids)

    def snapshot(self, at_s: float) -> ServerSnapshot:
        """The GPUs as a policy would see them at `at_s`."""
        residents: dict[str, list[Resident]] = {}
        for job_id in sorted(self._live):
            job = self._jobs[job_id]
            attempt = job.attempts[-1]
            for uuid in attempt.placement.gpu_uuids:
                blank = Resident(
                    job_id=job_id,
                    attempt=attempt.number,
                    promised_bytes=attempt.placement.promised_bytes,
                    observed_bytes=None,
                    sharing=attempt.placement.sharing,
                    placed_at_s=attempt.placed_at_s,
                    slowdown_bound=job.spec.slowdown_bound,
                )
                resident = self._telemetry.resident(job_id, attempt.number, uuid, blank=blank)
                residents.setdefault(uuid, []).append(resident)
        return self._telemetry.snapshot(at_s, {uuid: tuple(found) for uuid, found in residents.items()})

    def explain(self, job_id: int) -> Wait:
        """Why the job waits, or where it is: a sentence, and a verdict per GPU that was looked at.

        Raises:
            NoSuchJob: there is none with this id.
        """
        job = self._jobs.get(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}")
        indices = {gpu.uuid: gpu.index for gpu in self._telemetry.gpus}
        pending = "waits for its memory estimate"
        if self._may_start(job):
            place = sum(1 for each in self._queued if each <= job_id)
            pending = f"number {place} of {len(self._queued)} in the queue, looked at with the next reading of the GPUs"
        wait = self._waits.get(job_id)
        return explanation(job, wait=wait, pending=pending, jobs=self._jobs, indices=indices)

    # What each event does. Depends on the event and the jobs alone: replay takes the same path.

    def _apply(self, event: Event) -> list[Command]:
        match event:
            case ServerSampled() | Tick():
                return []
            case JobSubmitted():
                commands = self._submitted(event)
            case EstimateReady():
                commands = self._estimated(event)
            case AttemptPlaced():
                commands = self._placed(event)
            case AttemptStarted():
                commands = self._started(event)
            case AttemptExited():
                commands = self._exited(event)
            case JobCancelled():
                commands = self._cancelled(event)
            case JobHeld():
                commands = self._held(event)
            case JobReleased():
                commands = self._released(event)
        self._last_at_s = max(self._last_at_s, event.at_s)
        return commands

    def _submitted(self, event: JobSubmitted) -> list[Command]:
        if event.job_id in self._jobs:
            return []
        job = Job(
            id=event.job_id, spec=event.spec, submitted_at_s=event.at_s, state=Queued(since_s=event.at_s), attempts=()
        )
        self._set(job)
        for each in event.spec.after:
            self._dependents.setdefault(each, []).append(job.id)
        for each in event.spec.after:
            if each not in self._jobs or each == job.id:
                return self._end(job, Done(outcome="cancelled", at_s=event.at_s, reason=f"dependency {each} unknown"))
            state = self._jobs[each].state
            if isinstance(state, Done) and state.outcome != "completed":
                return self._end(job, _without(each, state, event.at_s))
        return [self._request(job, event.at_s, "submitted")] if self._lacks_estimate(job) else []

    def _estimated(self, event: EstimateReady) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or job.is_done:
            return []
        if event.estimate is None and job.estimate is not None:
            return []
        error = event.error or ("no estimate" if event.estimate is None else None)
        self._set(replace(job, estimate=event.estimate, estimate_error=error))
        return []

    def _placed(self, event: AttemptPlaced) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or not isinstance(job.state, Queued) or event.attempt != len(job.attempts) + 1:
            return []
        attempt = Attempt(number=event.attempt, placement=event.placement, placed_at_s=event.at_s)
        self._set(replace(job, state=Starting(attempt=event.attempt), attempts=(*job.attempts, attempt)))
        self._telemetry.watch(job.id, attempt.number)
        return []

    def _started(self, event: AttemptStarted) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or job.state != Starting(attempt=event.attempt):
            return []
        attempt = replace(job.attempts[-1], started_at_s=event.at_s, process=event.process)
        self._set(_with_last(job, attempt, Running(attempt=event.attempt)))
        return []

    def _exited(self, event: AttemptExited) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or job.state not in (Starting(attempt=event.attempt), Running(attempt=event.attempt)):
            return []
        attempt = replace(
            job.attempts[-1],
            ended_at_s=event.at_s,
            exit=event.exit,
            peak_observed_bytes=dict(event.peak_observed_bytes),
        )
        job = _with_last(job, attempt, job.state)
        self._telemetry.forget(job.id, attempt.number)
        self._limit_asked_at_s.pop(job.id, None)
        what = recovery.verdict(job)
        if isinstance(what, recovery.Retry):
            state = Queued(since_s=event.at_s, reason=what.reason)
            self._set(replace(job, state=state, floor_bytes=what.floor_bytes, exclusive_retry=what.exclusive))
            return []
        return self._end(job, Done(outcome=what.outcome, at_s=event.at_s, code=what.code, reason=what.reason))

    def _cancelled(self, event: JobCancelled) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or job.is_done:
            return []
        if job.id not in self._live:
            return self._end(job, Done(outcome="cancelled", at_s=event.at_s, reason="on request"))
        job = _with_last(job, replace(job.attempts[-1], stop_asked="cancelled"), job.state)
        self._set(job)
        return [self._stop(job, event.at_s, "cancelled")]

    def _held(self, event: JobHeld) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or not (isinstance(job.state, Queued) or job.id in self._misfits):
            return []
        self._misfits.pop(job.id, None)
        self._set(replace(job, state=Held(since_s=event.at_s, reason=event.cause)))
        return []

    def _released(self, event: JobReleased) -> list[Command]:
        job = self._jobs.get(event.job_id)
        if job is None or not isinstance(job.state, Held) or job.id in self._misfits:
            return []
        self._set(replace(job, state=Queued(since_s=event.at_s)))
        return []

    def _end(self, job: Job, done: Done) -> list[Command]:
        """Finish `job` and, where it did not complete, all that wait for it."""
        ended = [(job, done)]
        while ended:
            each, state = ended.pop()
            self._set(replace(each, state=state))
            waiting = (self._jobs[found] for found in self._dependents.pop(each.id, ()))
            for dependent in waiting:
                if dependent.is_done or dependent.id in self._live:
                    continue
                if state.outcome != "completed":
                    ended.append((dependent, _without(each.id, state, state.at_s)))
                elif not open_dependencies(dependent, self._jobs):
                    self._now_waits(dependent, state.at_s)
        return []

    def _now_waits(self, job: Job, at_s: float) -> None:
        """Its dependencies are met: it waits for a place from now on."""
        if job.id in self._misfits:
            self._misfits[job.id] = Queued(since_s=at_s)
        elif isinstance(job.state, Queued):
            self._set(replace(job, state=Queued(since_s=at_s)))

    def _set(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._queued.discard(job.id)
        self._live.discard(job.id)
        match job.state:
            case Queued():
                self._queued.add(job.id)
            case Starting() | Running():
                self._live.add(job.id)
                self._waits.pop(job.id, None)
            case Held() | Done():
                self._waits.pop(job.id, None)
        if job.is_done:
            self._misfits.pop(job.id, None)

    # What follows from time and from the server.

    def _stop_overdue(self, at_s: float) -> list[Command]:
        """Stops for attempts past their time limit; asked again should an attempt outlive several times its grace."""
        commands: list[Command] = []
        for job_id in sorted(self._live):
            job = self._jobs[job_id]
            limit_s, since_s = job.spec.time_limit_s, job.attempts[-1].started_at_s
            if limit_s is None or since_s is None or at_s - since_s < limit_s:
                continue
            asked_at_s = self._limit_asked_at_s.get(job_id)
            if asked_at_s is None or at_s - asked_at_s >= 6 * self._config.stop_grace_s:
                self._limit_asked_at_s[job_id] = at_s
                commands.append(self._stop(job, at_s, "timeout"))
        return commands

    def _worth_deciding(self, event: Event, queued_before: int) -> bool:
        if not self._queued and not self._misfits:
            return False
        if isinstance(event, (AttemptPlaced, AttemptStarted, JobHeld)):
            return False
        if isinstance(event, (JobSubmitted, EstimateReady, JobReleased)):
            return queued_before <= self._config.eager_queue and event.job_id in self._queued
        return True

    def _decide(self, event: Event) -> list[Command]:
        self._hold_misfits(event.at_s)
        queue = [job for job_id in self._queued if self._may_start(job := self._jobs[job_id])]
        if not queue:
            return []
        queue.sort(key=lambda job: (job.submitted_at_s, job.id))
        server = self.snapshot(event.at_s)
        ledger = Ledger(server)
        commands: list[Command] = []
        for answer in self._policy.decide(queue, server):
            job = self._jobs[answer.job_id]
            if isinstance(answer, Placement):
                broken = ledger.admit(answer, job.spec.gpus)
                if broken is None and job.id in self._queued:
                    commands.append(self._launch(job, answer, event))
                    continue
                reason = f"policy `{self._policy.name}` erred: {broken or 'placed twice'}"
                self._waits[job.id] = Wait(job_id=job.id, reason=reason)
            else:
                self._waits[job.id] = answer
        return commands

    def _may_start(self, job: Job) -> bool:
        known = not self._lacks_estimate(job) or need_bytes(job) is not None
        return known and not open_dependencies(job, self._jobs)

    def _hold_misfits(self, at_s: float) -> None:
        totals = sorted((gpu.memory_total_bytes for gpu in self._telemetry.gpus), reverse=True)
        if not totals:
            return
        for job_id in sorted(self._queued | self._misfits.keys()):
            job = self._jobs[job_id]
            why = never_fits(job, totals)
            if why is not None and isinstance(job.state, Queued):
                self._misfits[job_id] = job.state
                self._set(replace(job, state=Held(since_s=at_s, reason=why)))
            elif why is None and job_id in self._misfits:
                self._set(replace(job, state=self._misfits.pop(job_id)))

    def _launch(self, job: Job, placement: Placement, event: Event) -> Launch:
        placed = AttemptPlaced(
            at_s=event.at_s,
            cause=f"policy {self._policy.name}",
            job_id=job.id,
            attempt=len(job.attempts) + 1,
            placement=placement,
        )
        self._placed(placed)
        return Launch(at_s=event.at_s, cause=placed.cause, spec=job.spec, placed=placed)

    def _lacks_estimate(self, job: Job) -> bool:
        return self._config.estimate and job.estimate is None and job.estimate_error is None

    def _request(self, job: Job, at_s: float, cause: str) -> RequestEstimate:
        return RequestEstimate(at_s=at_s, cause=cause, job_id=job.id, spec=job.spec)

    def _stop(self, job: Job, at_s: float, cause: str) -> Stop:
        attempt = job.attempts[-1].number
        return Stop(at_s=at_s, cause=cause, job_id=job.id, attempt=attempt, grace_s=self._config.stop_grace_s)


def _with_last(job: Job, attempt: Attempt, state: JobState) -> Job:
    return replace(job, attempts=(*job.attempts[:-1], attempt), state=state)


def _without(job_id: int, state: Done, at_s: float) -> Done:
    word = "failed" if state.outcome != "cancelled" else "cancelled"
    return Done(outcome="cancelled", at_s=at_s, reason=f"dependency {job_id} {word}")
