"""The state machine of jobs. The state depends on the events alone, so a replay gives the same state."""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.core.events import (
    AttemptBusy,
    AttemptExited,
    AttemptIdle,
    AttemptPlaced,
    AttemptStarted,
    Command,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobSubmitted,
    JobUpdated,
    Journaled,
    RequestEstimate,
    Stop,
)
from cotenant.core.fast_constructor import fast_replace
from cotenant.core.job import Attempt, Done, Held, Job, JobState, Queued, Running, Starting
from cotenant.scheduling.checkpoints import GOES_ON, REQUEUE
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.dependencies import all_dependencies, open_dependencies, unsatisfiable_reason
from cotenant.scheduling.overrun import charges
from cotenant.scheduling.recovery import after_exit, is_forgiven


class JobTable:
    """All jobs; no other class changes the state of a job.

    Attributes:
        jobs: by id; `last_at_s`: time of the newest event.
        queued, live: ids of the jobs that are queued, and of those that are starting or running.
        unsatisfiable: jobs held because no GPU is large enough, with the state to return to, by id.
    """

    def __init__(self, config: ManagerConfig) -> None:
        self._config = config
        self.jobs: dict[int, Job] = {}
        self.queued: set[int] = set()
        self.live: set[int] = set()
        self.unsatisfiable: dict[int, Queued] = {}
        self.last_at_s = 0.0
        self._dependents: dict[int, list[int]] = {}
        self._same_name: dict[tuple[int, str], set[int]] = {}  # unfinished jobs, by uid and job name
        self._singletons: dict[tuple[int, str], set[int]] = {}  # those of `_same_name` that are singletons
        self._unfinished: dict[str, int] = {}
        self._changed: dict[int, None] = {}
        self._ended: list[int] = []

    def apply(self, event: Journaled) -> list[Command]:
        """Apply `event` and return the commands that follow from it."""
        commands: list[Command] = []  # repartitions change no job
        match event:
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
            case JobUpdated():
                commands = self._updated(event)
            case JobRequeued():
                commands = self._requeued(event)
            case AttemptIdle() | AttemptBusy():
                commands = self._idleness(event)
        self.last_at_s = max(self.last_at_s, event.at_s)
        return commands

    def load(self, jobs: Iterable[Job]) -> None:
        """Load the jobs of a snapshot, in order of their ids, before any event."""
        for job in jobs:
            self._register(job)
            self._set(job)
            self.last_at_s = max(self.last_at_s, job.submitted_at_s)

    def forget(self, job_ids: Iterable[int]) -> None:
        """Drop done jobs without open dependents from memory; the journal still has them."""
        for job_id in job_ids:
            job = self.jobs.pop(job_id)
            self._dependents.pop(job_id, None)
            self._changed.pop(job_id, None)
            for needed in all_dependencies(job.spec):
                if needed in self._dependents:
                    self._dependents[needed].remove(job_id)

    def export(self) -> list[Job]:
        """All jobs for a snapshot, ordered by id, without holds of unsatisfiable jobs; the inverse of `load`."""
        return [
            fast_replace(job, state=self.unsatisfiable[job_id]) if job_id in self.unsatisfiable else job
            for job_id, job in sorted(self.jobs.items())
        ]

    def unfinished(self, user: str) -> int:
        """The number of jobs of this user that are not done."""
        return self._unfinished.get(user, 0)

    def take_changed(self) -> list[int]:
        """Ids of jobs whose state or readiness may have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def take_ended(self) -> list[int]:
        """Ids of jobs that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def older_singletons(self, job: Job) -> set[int]:
        """Ids of the older jobs that a `singleton` job waits for; empty for other jobs."""
        if not job.spec.singleton:
            return set()
        return {older_id for older_id in self._same_name.get(_name_key(job), ()) if older_id < job.id}

    def is_blocked(self, job: Job) -> bool:
        """Whether the job waits for dependencies or older singletons."""
        return bool(open_dependencies(job, self.jobs)) or bool(self.older_singletons(job))

    def lacks_estimate(self, job: Job) -> bool:
        """Whether the job still waits for the answer of an estimator."""
        return self._config.estimate and job.estimate is None and job.estimate_error is None

    def request(self, job: Job, at_s: float, cause: str) -> RequestEstimate:
        """The command to estimate `job`."""
        return RequestEstimate(at_s=at_s, cause=cause, job_id=job.id, spec=job.spec)

    def stop(self, job: Job, at_s: float, cause: str) -> Stop:
        """The command to stop the newest attempt of `job`."""
        attempt, spec, grace_s = job.attempts[-1].number, job.spec, self._config.stop_grace_s
        checkpoint = spec.checkpoint_signal is not None and cause.startswith(GOES_ON)
        if checkpoint:
            grace_s = spec.checkpoint_grace_s
        return Stop(at_s=at_s, cause=cause, job_id=job.id, attempt=attempt, grace_s=grace_s, checkpoint=checkpoint)

    def hold_unsatisfiable(self, job: Job, why: str, at_s: float) -> None:
        """Hold a queued job that can never fit. The hold follows from the inventory, so it is not journaled."""
        if isinstance(job.state, Queued):
            self.unsatisfiable[job.id] = job.state
            self._set(fast_replace(job, state=Held(since_s=at_s, reason=why)))

    def requeue_satisfiable(self, job: Job) -> None:
        """Queue a job again that `hold_unsatisfiable` held."""
        self._set(fast_replace(job, state=self.unsatisfiable.pop(job.id)))

    # Handlers of events.

    def _submitted(self, event: JobSubmitted) -> list[Command]:
        if event.job_id in self.jobs:
            return []
        state: JobState = Queued(since_s=event.at_s)
        if event.spec.hold:
            state = Held(since_s=event.at_s, reason="submitted on hold")
        job = Job(id=event.job_id, spec=event.spec, submitted_at_s=event.at_s, state=state)
        self._register(job)
        self._set(job)
        unsatisfiable = unsatisfiable_reason(job.spec, self.jobs, job.id)
        if unsatisfiable is not None:
            return self._end(job, Done(outcome="cancelled", at_s=event.at_s, reason=unsatisfiable))
        return [self.request(job, event.at_s, "submitted")] if self.lacks_estimate(job) else []

    def _estimated(self, event: EstimateReady) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or job.is_done or (event.estimate is None and job.estimate is not None):
            return []
        error = event.error or ("no estimate" if event.estimate is None else None)
        job = fast_replace(job, estimate=event.estimate, estimate_error=error)
        if event.is_fatal and not job.spec.run_anyway and job.id not in self.live:
            return self._end(job, Done(outcome="failed", at_s=event.at_s, code=1, reason=f"not started: {error}"))
        self._set(job)
        return []

    def _placed(self, event: AttemptPlaced) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or not isinstance(job.state, Queued) or event.attempt != len(job.attempts) + 1:
            return []
        attempt = Attempt(number=event.attempt, placement=event.placement, placed_at_s=event.at_s)
        self._set(fast_replace(job, state=Starting(attempt=event.attempt), attempts=(*job.attempts, attempt)))
        return []

    def _started(self, event: AttemptStarted) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or job.state != Starting(attempt=event.attempt):
            return []
        attempt = fast_replace(job.attempts[-1], started_at_s=event.at_s, process=event.process)
        self._set(_with_last_attempt(job, attempt, Running(attempt=event.attempt)))
        return []

    def _exited(self, event: AttemptExited) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or job.state not in (Starting(attempt=event.attempt), Running(attempt=event.attempt)):
            return []
        attempt = fast_replace(
            job.attempts[-1],
            ended_at_s=event.at_s,
            exit=event.exit,
            peak_observed_bytes=dict(event.peak_observed_bytes),
            co_runs=event.co_runs,
            usage=event.usage,
            overruns=event.overruns,
            startup_s=event.startup_s,
            idle_since_s=None,
            idle_s=_idle_s(job.attempts[-1], event.at_s),
        )
        if is_forgiven(attempt):
            self._charge(event, job)
        after = after_exit(job, attempt)
        if isinstance(after.state, Done):
            return self._end(after, after.state)
        self._set(after)
        return []

    def _charge(self, event: AttemptExited, victim: Job) -> None:
        """Charge the attempts that exceeded their promise for the usage of the attempt that ended because of them."""
        for overrun, charge in charges(
            event.overruns, event.usage, victim_id=victim.id, victim_uid=victim.spec.uid, at_s=event.at_s
        ):
            job = self.jobs.get(overrun.job_id)
            if job is not None and 0 < overrun.attempt <= len(job.attempts):
                attempts = list(job.attempts)
                charged = attempts[overrun.attempt - 1]
                attempts[overrun.attempt - 1] = fast_replace(charged, charges=(*charged.charges, charge))
                self._set(fast_replace(job, attempts=tuple(attempts)))

    def _cancelled(self, event: JobCancelled) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or job.is_done:
            return []
        if job.id not in self.live:
            return self._end(job, Done(outcome="cancelled", at_s=event.at_s, reason="on request"))
        return [self._request_stop(job, event.at_s, "cancelled")]

    def _held(self, event: JobHeld) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or not (isinstance(job.state, Queued) or job.id in self.unsatisfiable):
            return []
        self.unsatisfiable.pop(job.id, None)
        self._set(fast_replace(job, state=Held(since_s=event.at_s, reason=event.cause)))
        return []

    def _released(self, event: JobReleased) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or not isinstance(job.state, Held) or job.id in self.unsatisfiable:
            return []
        self._set(fast_replace(job, state=Queued(since_s=event.at_s)))
        return []

    def _updated(self, event: JobUpdated) -> list[Command]:
        old = self.jobs.get(event.job_id)
        if old is None or not isinstance(old.state, (Queued, Held)):
            return []
        self._unregister(old)
        job = fast_replace(old, spec=event.spec)
        same_estimate_request = (old.spec.declared_bytes, old.spec.estimator) == (
            job.spec.declared_bytes,
            job.spec.estimator,
        )
        if not same_estimate_request:
            job = fast_replace(job, estimate=None, estimate_error=None)
        self._register(job)
        self._set(job)
        unsatisfiable = unsatisfiable_reason(job.spec, self.jobs, job.id)
        if unsatisfiable is not None:
            return self._end(job, Done(outcome="cancelled", at_s=event.at_s, reason=unsatisfiable))
        if same_estimate_request or not self.lacks_estimate(job):
            return []
        return [self.request(job, event.at_s, "updated")]

    def _requeued(self, event: JobRequeued) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None:
            return []
        if job.is_done:
            self._back_to_queue(job, event.at_s, event.cause)
            self._changed.update(dict.fromkeys(self._dependents.get(job.id, ())))
            return [self.request(job, event.at_s, "requeued")] if self.lacks_estimate(job) else []
        if job.id in self.live and job.attempts[-1].stop_reason is None:
            return [self._request_stop(job, event.at_s, REQUEUE)]
        return []

    def _idleness(self, event: AttemptIdle | AttemptBusy) -> list[Command]:
        job = self.jobs.get(event.job_id)
        if job is None or job.state != Running(attempt=event.attempt):
            return []
        attempt = job.attempts[-1]
        if isinstance(event, AttemptIdle):
            attempt = fast_replace(attempt, idle_since_s=event.idle_since_s)
        else:
            attempt = fast_replace(attempt, idle_since_s=None, idle_s=_idle_s(attempt, event.at_s))
        self._set(_with_last_attempt(job, attempt, job.state))
        return []

    # Shared steps.

    def _request_stop(self, job: Job, at_s: float, why: str) -> Stop:
        job = _with_last_attempt(job, fast_replace(job.attempts[-1], stop_reason=why), job.state)
        self._set(job)
        return self.stop(job, at_s, why)

    def _back_to_queue(self, job: Job, at_s: float, reason: str) -> None:
        self._set(fast_replace(job, state=Queued(since_s=at_s, reason=reason), uncounted_attempts=len(job.attempts)))

    def _end(self, job: Job, done: Done) -> list[Command]:
        """End `job`, and cancel the jobs whose dependencies can no longer be met."""
        ended = [(job, done)]
        while ended:
            done_job, state = ended.pop()
            self._set(done_job if done_job.state is state else fast_replace(done_job, state=state))
            # In order of ids: `core.snapshot` does not store the order of registration, and a replay must agree.
            for dependent in [self.jobs[job_id] for job_id in sorted(self._dependents.get(done_job.id, ()))]:
                if dependent.is_done or dependent.id in self.live:
                    continue
                unsatisfiable = unsatisfiable_reason(dependent.spec, self.jobs, dependent.id)
                if unsatisfiable is not None:
                    ended.append((dependent, Done(outcome="cancelled", at_s=state.at_s, reason=unsatisfiable)))
                elif not open_dependencies(dependent, self.jobs):
                    self._restart_wait(dependent, state.at_s)
        return []

    def _restart_wait(self, job: Job, at_s: float) -> None:
        """Its dependencies are met: its waiting time for GPUs starts now."""
        if job.id in self.unsatisfiable:
            self.unsatisfiable[job.id] = Queued(since_s=at_s)
        elif isinstance(job.state, Queued):
            self._set(fast_replace(job, state=Queued(since_s=at_s)))

    def _register(self, job: Job) -> None:
        """Index `job` by its dependencies."""
        for dependency in all_dependencies(job.spec):
            self._dependents.setdefault(dependency, []).append(job.id)

    def _unregister(self, job: Job) -> None:
        for dependency in all_dependencies(job.spec):
            self._dependents[dependency].remove(job.id)
        self._remove_from_same_name(job)

    def _remove_from_same_name(self, job: Job) -> None:
        same_name = self._same_name.get(_name_key(job), set())
        if job.id not in same_name:
            return
        same_name.remove(job.id)
        singletons = self._singletons.get(_name_key(job), set())
        singletons.discard(job.id)
        self._changed.update(dict.fromkeys(singletons))
        if not same_name:
            self._same_name.pop(_name_key(job), None)
            self._singletons.pop(_name_key(job), None)

    def _set(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        was_open = old is not None and not old.is_done
        self._unfinished[job.spec.user] = self._unfinished.get(job.spec.user, 0) + (not job.is_done) - was_open
        self.jobs[job.id] = job
        self._changed[job.id] = None
        self.queued.discard(job.id)
        self.live.discard(job.id)
        match job.state:
            case Queued():
                self.queued.add(job.id)
            case Starting() | Running():
                self.live.add(job.id)
            case Done():
                self.unsatisfiable.pop(job.id, None)
            case Held():
                pass
        if job.is_done:
            if was_open:
                self._ended.append(job.id)
            self._remove_from_same_name(job)
        else:
            self._same_name.setdefault(_name_key(job), set()).add(job.id)
            if job.spec.singleton:
                self._singletons.setdefault(_name_key(job), set()).add(job.id)


def _idle_s(attempt: Attempt, at_s: float) -> float:
    """Seconds for which an attempt has been idle until `at_s`."""
    return attempt.idle_s + (0.0 if attempt.idle_since_s is None else max(0.0, at_s - attempt.idle_since_s))


def _name_key(job: Job) -> tuple[int, str]:
    return job.spec.uid, job.spec.name


def _with_last_attempt(job: Job, attempt: Attempt, state: JobState) -> Job:
    return fast_replace(job, attempts=(*job.attempts[:-1], attempt), state=state)
