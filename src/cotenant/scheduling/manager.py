"""Events in, commands out: the jobs, what is known of the server, and the policy between them. Pure.

What an event does to a job is in `jobs.py`, which of them may be placed in `eligible.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cotenant.core.errors import NoSuchJob
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    Command,
    EstimateReady,
    Event,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobUpdated,
    Journaled,
    Launch,
    ServerSampled,
    Tick,
)
from cotenant.core.gpu import Gpu, ServerSnapshot
from cotenant.core.job import CoRun, Job, JobSpec, Queued, ResourceUsage
from cotenant.core.placement import Deferral, Placement
from cotenant.core.snapshot import ManagerSnapshot
from cotenant.scheduling.admission import AdmissionControl
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.demand import never_fits
from cotenant.scheduling.explain import CoRunStatus, explanation
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.policy_driver import PolicyDriver
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.recovery import is_time_slice_over
from cotenant.scheduling.telemetry.samples import Telemetry

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
        self._table = JobTable(self._config)
        self._admission = AdmissionControl(self._table, self._config)
        self._watched_attempts: dict[int, int] = {}  # the attempt of each live job
        self._telemetry = Telemetry(
            stale_after_s=self._config.stale_after_s,
            window_s=self._config.window_s,
            pace=self._config.pace,
            smact_of=lambda job: self._history.activity(job).smact,
        )
        self._history = WorkloadHistory(pace=self._config.pace)
        self._driver = PolicyDriver(policy, self._table, self._telemetry, self._history)
        self._time_limited: set[int] = set()  # live jobs that have a time limit
        self._stop_sent_at_s: dict[int, float] = {}
        self._at_s = 0.0
        self._unchecked: set[int] = set()  # jobs to compare with the GPUs and MIG instances there are
        self._totals_bytes: list[int] = []  # largest first
        self._instances_bytes: list[int] = []
        self._checked_gpus: tuple[Gpu, ...] = ()

    @property
    def jobs(self) -> Mapping[int, Job]:
        """All jobs ever submitted, by id; a view that follows."""
        return MappingProxyType(self._table.jobs)

    def handle(self, event: Event) -> list[Command]:
        """Take in `event`; what to do now, in this order.

        Every `Launch` carries an `AttemptPlaced` that is already applied here and must be kept before acting.
        """
        queued_before = len(self._table.queued)
        commands = self._apply(event)
        if isinstance(event, ServerSampled):
            self._telemetry.add(event, self._table.jobs)
            self._driver.sampled()
        commands += self._stop_overdue(event.at_s)
        if self._is_decision_due(event, queued_before):
            commands += self._decide(event)
        return commands

    def restore(self, events: Iterable[Journaled], since: ManagerSnapshot | None = None) -> list[Command]:
        """Fold kept events without deciding anything, then ask again for what may have been lost in between.

        That is: estimates still missing, and stops that were asked for. Attempts that were `Starting` or `Running`
        are the engine's to find. `since` is what the events before these amount to.
        """
        if since is not None:
            self._table.load(since.jobs)
            self._table.last_at_s = since.last_at_s
            self._history = WorkloadHistory.restored(since.history, pace=self._config.pace)
            self._driver = PolicyDriver(self._policy, self._table, self._telemetry, self._history)
        for event in events:
            self._table.apply(event)
            if isinstance(event, AttemptExited):
                self._learn(event)
        at_s = self._table.last_at_s
        self._table.take_ended()
        self._propagate_changes(at_s)
        commands: list[Command] = []
        for job in self._table.jobs.values():
            if not job.is_done and self._table.lacks_estimate(job):
                commands.append(self._table.request(job, at_s, "restart"))
            attempt = job.last_attempt
            if job.id in self._table.live and attempt is not None and attempt.stop_reason is not None:
                commands.append(self._table.stop(job, at_s, attempt.stop_reason))
        return commands

    def snapshot(self) -> ManagerSnapshot:
        """What the events taken in so far amount to: with it, `restore` needs only the later ones."""
        return ManagerSnapshot(
            last_at_s=self._table.last_at_s, jobs=self._table.export(), history=self._history.state()
        )

    def telemetry_state(self) -> dict[str, Any]:
        """What was seen of attempts that are not over, as plain values; `restore_telemetry` goes on from there."""
        return self._telemetry.state()

    def restore_telemetry(self, state: Mapping[str, Any]) -> None:
        """Go on from what was seen before a restart; of attempts that are over, nothing is taken over.

        Raises:
            ValueError, TypeError, KeyError: it is nothing that `telemetry_state` gave.
        """
        self._telemetry.restore(state)

    def usage(self, job: Job, number: int) -> ResourceUsage | None:
        """What an attempt has taken of its GPUs, so far if it is not over; None if it was not seen there."""
        attempt = job.attempts[number - 1]
        return attempt.usage if attempt.exit is not None else self._telemetry.usage(job.id, number)

    def co_runs(self, job: Job, number: int) -> tuple[CoRun, ...]:
        """What an attempt did in each company, with the slowdowns that it measured."""
        attempt = job.attempts[number - 1]
        if attempt.exit is not None:
            return attempt.co_runs
        return self._history.measured(job, self._telemetry.co_runs(job.id, number))

    def co_run_status(self, job: Job) -> CoRunStatus | None:
        """How a job that runs fares in its present company; None for one that does not run, or is alone."""
        if job.id not in self._table.live:
            return None
        neighbor_ids = self._driver.neighbor_ids(job)
        if not neighbor_ids:
            return None
        number = len(job.attempts)
        current = self._telemetry.current_co_run(job.id, number)
        measured = None
        if current is not None and current.neighbor_ids == neighbor_ids:
            measured = self._history.measured(job, [*self._telemetry.co_runs(job.id, number), current])[-1].slowdown
        predicted = self._history.predicted(job, neighbor_ids, self._table.jobs)
        return CoRunStatus(neighbor_ids=self.redact_ids(job, neighbor_ids), predicted=predicted, measured=measured)

    def redact_ids(self, job: Job, neighbor_ids: Iterable[int]) -> tuple[int | None, ...]:
        """`neighbor_ids` as the user of `job` may see them: None for jobs of other users."""
        jobs = self._table.jobs
        return tuple(
            job_id if job_id in jobs and jobs[job_id].spec.uid == job.spec.uid else None for job_id in neighbor_ids
        )

    @property
    def history(self) -> WorkloadHistory:
        """What was learned from attempts that ended."""
        return self._history

    def take_ended(self) -> list[Job]:
        """Jobs that have ended since the last call; those of a restored journal are not among them."""
        return [self._table.jobs[job_id] for job_id in self._table.take_ended() if self._table.jobs[job_id].is_done]

    def queue(self) -> list[Job]:
        """The jobs that the policy is asked about, oldest first."""
        return self._admission.offered()

    @property
    def last_at_s(self) -> float:
        """Time of the newest event that was kept; 0 before the first."""
        return self._table.last_at_s

    def over_quota(self, specs: Sequence[JobSpec], *, besides: int = 0) -> str | None:
        """Why these jobs of one user may not be submitted, or None; `besides` more of theirs are on their way."""
        user, quota = specs[0].user, self._config.quota_of(specs[0].user)
        open_jobs = self._table.unfinished(user) + besides
        if quota.max_unfinished is not None and open_jobs + len(specs) > quota.max_unfinished:
            limit = f"{user} may have {quota.max_unfinished} unfinished jobs"
            return f"{limit}, has {open_jobs}, submits {len(specs)} more"
        max_gpus = max(spec.gpus for spec in specs)
        if quota.gpus is not None and max_gpus > quota.gpus:
            return f"{user} may have {quota.gpus} GPUs at once, {max_gpus} requested"
        return None

    def older_singletons(self, job: Job) -> set[int]:
        """Older jobs that a `singleton` has to wait for."""
        return self._table.older_singletons(job)

    def with_telemetry(self, event: AttemptExited) -> AttemptExited:
        """`event` as it should be kept: with the peaks and the least free memory near the end, from samples.

        What the event already says stays.
        """
        job = self._table.jobs.get(event.job_id)
        attempt = job.last_attempt if job is not None else None
        uuids = attempt.placement.gpu_uuids if attempt is not None and attempt.number == event.attempt else ()
        event = self._telemetry.with_telemetry(event, uuids)
        return event if job is None else replace(event, co_runs=self._history.measured(job, event.co_runs))

    def server_snapshot(self, at_s: float) -> ServerSnapshot:
        """The GPUs as a policy would see them at `at_s`."""
        return self._driver.snapshot(at_s)

    def explain(self, job_id: int) -> Deferral:
        """Why the job waits, or where it is: a sentence, and a verdict per GPU that was looked at.

        Raises:
            NoSuchJob: there is none with this id.
        """
        job = self._table.jobs.get(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}")
        is_live = job_id in self._table.live
        return explanation(
            job,
            refusal=self._admission.refusal(job, self._at_s) if isinstance(job.state, Queued) else None,
            wait=self._driver.explain(job_id),
            pending=lambda: self._admission.pending(job_id),
            indices={gpu.uuid: gpu.index for gpu in self._telemetry.gpus} if is_live else {},
            peak_bytes=max(self._telemetry.peaks_bytes(job_id, len(job.attempts)).values(), default=0)
            if is_live
            else 0,
            co_run_status=self.co_run_status(job) if is_live else None,
        )

    def _apply(self, event: Event) -> list[Command]:
        self._at_s = max(self._at_s, event.at_s)
        if isinstance(event, (ServerSampled, Tick)):
            self._admission.follow((), event.at_s)
            return []
        commands = self._table.apply(event)
        if isinstance(event, AttemptExited):
            self._learn(event)
        self._propagate_changes(event.at_s)
        return commands

    def _learn(self, event: AttemptExited) -> None:
        """What the end of an attempt teaches of its kind of work; the jobs of that kind are looked at again."""
        job = self._table.jobs.get(event.job_id)
        if job is not None and job.attempts and job.attempts[-1].number == event.attempt:
            key = self._history.learn(job, self._table.jobs)
            if key is not None:
                self._driver.learned(key)

    def _propagate_changes(self, at_s: float) -> None:
        """Bring what is kept beside the jobs in line with those that have changed."""
        changed = self._table.take_changed()
        for job_id in changed:
            job = self._table.jobs[job_id]
            if job.attempts:
                self._watch_attempt(job)
                self._driver.follow(job)
        self._unchecked.update(changed)
        self._admission.follow(changed, at_s)

    def _watch_attempt(self, job: Job) -> None:
        number = len(job.attempts) if job.id in self._table.live else None
        watched = self._watched_attempts.get(job.id)
        if watched == number:
            return
        if watched is not None:
            del self._watched_attempts[job.id]
            self._time_limited.discard(job.id)
            self._telemetry.forget(job.id, watched)
            self._stop_sent_at_s.pop(job.id, None)
        if number is not None:
            self._watched_attempts[job.id] = number
            if job.spec.time_limit_s is not None or job.spec.time_slice_s is not None:
                self._time_limited.add(job.id)
            self._telemetry.watch(job.id, number)

    # What follows from time and from the server.

    def _stop_overdue(self, at_s: float) -> list[Command]:
        """Stops for attempts past their time limit, or past their time slot while others wait for a place.

        Asked again should an attempt outlive several times its grace.
        """
        commands: list[Command] = []
        for job_id in sorted(self._time_limited):
            job = self._table.jobs[job_id]
            attempt = job.attempts[-1]
            if attempt.started_at_s is None:
                continue
            limit_s = job.spec.time_limit_s
            if limit_s is not None and at_s - attempt.started_at_s >= limit_s:
                why, grace_s = "timeout", self._config.stop_grace_s
            elif self._driver.waiting and is_time_slice_over(job, attempt, at_s):
                why, grace_s = "time slot over", self._config.time_slice_grace_s
            else:
                continue
            sent_at_s = self._stop_sent_at_s.get(job_id)
            if sent_at_s is None or at_s - sent_at_s >= 6 * grace_s:
                self._stop_sent_at_s[job_id] = at_s
                commands.append(replace(self._table.stop(job, at_s, why), grace_s=grace_s))
        return commands

    def _is_decision_due(self, event: Event, queued_before: int) -> bool:
        if not self._table.queued and not self._table.unsatisfiable:
            return False
        if isinstance(event, (AttemptPlaced, AttemptStarted, JobHeld)):
            return False
        if isinstance(event, (JobSubmitted, EstimateReady, JobReleased, JobUpdated)):
            return queued_before <= self._config.eager_queue and event.job_id in self._table.queued
        return True

    def _decide(self, event: Event) -> list[Command]:
        self._hold_unsatisfiable(event.at_s)
        self._driver.offer(*self._admission.take_changes())
        commands: list[Command] = []
        for placement in self._driver.decide(event.at_s):
            if self._driver.admit(placement, event.at_s):
                commands.append(self._launch(self._table.jobs[placement.job_id], placement, event))
        return commands

    def _hold_unsatisfiable(self, at_s: float) -> None:
        """Hold the jobs that can never fit, and queue those again for which a GPU has appeared."""
        gpus = self._telemetry.gpus
        table = self._table
        if gpus is not self._checked_gpus:
            self._checked_gpus = gpus
            totals = sorted((gpu.memory_total_bytes for gpu in gpus), reverse=True)
            instances = sorted((gpu.memory_total_bytes for gpu in gpus if gpu.mig_profile is not None), reverse=True)
            if totals != self._totals_bytes or instances != self._instances_bytes:
                self._unchecked |= table.queued | table.unsatisfiable.keys()
                self._totals_bytes, self._instances_bytes = totals, instances
        totals, instances = self._totals_bytes, self._instances_bytes
        if not totals or not self._unchecked:
            return
        for job_id in sorted(self._unchecked & (table.queued | table.unsatisfiable.keys())):
            job = table.jobs[job_id]
            why = never_fits(job, instances if job.spec.sharing == "mig" else totals)
            if why is not None:
                table.hold_unsatisfiable(job, why, at_s)
            elif job_id in table.unsatisfiable:
                table.requeue_satisfiable(job)
        self._propagate_changes(at_s)
        self._unchecked.clear()

    def _launch(self, job: Job, placement: Placement, event: Event) -> Launch:
        placed = AttemptPlaced(
            at_s=event.at_s,
            cause=f"policy {self._policy.name}",
            job_id=job.id,
            attempt=len(job.attempts) + 1,
            placement=placement,
        )
        self._apply(placed)
        return Launch(at_s=event.at_s, cause=placed.cause, spec=job.spec, placed=placed)
