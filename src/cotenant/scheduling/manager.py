"""The scheduler: applies events to jobs and telemetry, drives the policy, and returns commands. It does no I/O.

`job_table` applies events to jobs, `admission` selects the jobs that may be placed, `policy_driver` drives the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    ReportIdleness,
    ServerSampled,
    Tick,
)
from cotenant.core.gpu import Gpu, GpuSnapshot, ServerSnapshot
from cotenant.core.job import CoRun, Job, JobSpec, Queued, ResourceUsage
from cotenant.core.placement import Deferral, Placement
from cotenant.core.snapshot import ManagerSnapshot
from cotenant.scheduling.admission import AdmissionControl
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.explain import CoRunStatus, explanation
from cotenant.scheduling.fit_check import FitCheck, Supply
from cotenant.scheduling.idle_watch import IdleWatch
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.move_watch import MoveWatch
from cotenant.scheduling.moves import move_planner
from cotenant.scheduling.overrun import find_overruns
from cotenant.scheduling.overrun_watch import OverrunWatch
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.policy_driver import GpuOccupancy, PolicyDriver
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.recovery import ran_out_of_memory
from cotenant.scheduling.repartition import repartition_planner
from cotenant.scheduling.repartition_watch import RepartitionWatch
from cotenant.scheduling.restart import restart_commands
from cotenant.scheduling.telemetry.samples import Telemetry
from cotenant.scheduling.time_limits import TimeLimits

__all__ = ["Manager", "ManagerConfig"]


class Manager:
    """Deterministic scheduler of one server: the same events give the same commands and the same jobs.

    Duplicate, late and out-of-order events have no effect, because attempt numbers identify starts and exits. A job
    that fits on no GPU of the server is held. The hold follows from the newest inventory, so it is not journaled, and
    the job is queued again when a large enough GPU appears.
    """

    def __init__(self, policy: Policy, config: ManagerConfig | None = None) -> None:
        self._policy, self._config = policy, config or ManagerConfig()
        pace, table, bound = self._config.pace, self._config.interference, getattr(policy, "max_slowdown", None)
        self._history_options: dict[str, Any] = {"pace": pace, "table": table, "max_slowdown": bound}
        self.supply = Supply()
        self.reset()

    def reset(self) -> None:
        """Forget everything, as before the first event. `restore` may follow."""
        self._table = JobTable(self._config)
        self._admission = AdmissionControl(self._table, self._config)
        self._fit_check = FitCheck(self._table, one_node=getattr(self._policy, "one_node", False))
        self._watched_attempts: dict[int, int] = {}  # attempt number by id of live job
        self._telemetry = Telemetry(
            stale_after_s=self._config.stale_after_s,
            window_s=max(self._config.window_s, getattr(self._policy, "window_s", None) or 0.0),
            pace=self._config.pace,
            smact_of=lambda job: self._history.activity(job).smact,
        )
        self._history = WorkloadHistory(**self._history_options)
        self._repartitions = RepartitionWatch(pace=self._config.pace)
        self._bind_history()
        config, grace_s = self._config, self._config.stop_grace_s
        self._overruns = OverrunWatch(config.overrun, stop_grace_s=grace_s)
        self._idle = IdleWatch(config.idle, stale_after_s=config.stale_after_s, stop_grace_s=grace_s, pace=config.pace)
        self._time_limits = TimeLimits(self._config)
        self._at_s = 0.0

    def _bind_history(self) -> None:
        self._driver = PolicyDriver(self._policy, self._table, self._telemetry, self._history)
        pace, seen = self._config.pace, (self._table, self._admission, self._telemetry, self._history, self._driver)
        self._moves = MoveWatch(move_planner(self._policy, self._history, pace=pace), *seen, pace=pace)
        planner = repartition_planner(self._policy, self._config.repartition, self._history, pace=pace)
        self._repartitions.bind(planner, *seen[:3], self._driver)

    @property
    def jobs(self) -> Mapping[int, Job]:
        """A live, read-only view of the jobs in memory, by id."""
        return MappingProxyType(self._table.jobs)

    def handle(self, event: Event) -> list[Command]:
        """Apply `event` and return the commands to execute, in order.

        The `AttemptPlaced` of every `Launch` is already applied; the caller journals it before it launches.
        """
        queued_before = len(self._table.queued)
        if isinstance(event, ServerSampled):
            event = self._repartitions.visible(event)
        commands = self._apply(event)
        if isinstance(event, ServerSampled):
            self._telemetry.add(event, self._table.jobs)
            self._driver.sampled()
            commands += self._overruns.commands(lambda: self._driver.snapshot(event.at_s).gpus, event.at_s)
            commands += self._idle_commands(event)
        commands += self._stop_overdue(event.at_s)
        if isinstance(event, ServerSampled):
            commands += self._moves.commands(event.at_s, self._is_suspended)
        if self._is_decision_due(event, queued_before):
            commands += self._decide(event)
        return commands

    def handle_batch(self, events: Sequence[Event], *, decide: bool = True) -> list[Command]:
        """Apply `events` with at most one decision, at the end, and return the commands to execute, in order."""
        if len(events) == 1 and decide:
            return self.handle(events[0])
        applied, decisive = (events[:-1], events[-1:]) if decide else (events, ())
        commands = [command for event in applied for command in self._apply(event)]
        return commands + [command for event in decisive for command in self.handle(event)]

    def restore(self, events: Iterable[Journaled], since: ManagerSnapshot | None = None) -> list[Command]:
        """Replay journaled `events` without placing jobs, and return the commands that a crash may have lost.

        The engine finds the attempts that were `Starting` or `Running`. `since` is the snapshot before the events.
        """
        if since is not None:
            self._table.load(since.jobs)
            self._repartitions.load(since.repartitions)
            self._table.last_at_s = since.last_at_s
            self._history = WorkloadHistory.restored(since.history, **self._history_options)
            self._bind_history()
        for event in events:
            self._table.apply(event)
            self._learn(event)
        self._table.take_ended()
        self._propagate_changes(self._table.last_at_s)
        return restart_commands(self._table, self._repartitions, self._table.last_at_s)

    def snapshot(self) -> ManagerSnapshot:
        """The state after the events so far; `restore` takes it and the events after it."""
        table, pending = self._table, tuple(self._repartitions.pending.values())
        state = self._history.state()
        return ManagerSnapshot(last_at_s=table.last_at_s, jobs=table.export(), history=state, repartitions=pending)

    def telemetry_state(self) -> dict[str, Any]:
        """The telemetry of live attempts as plain values, for `restore_telemetry`."""
        return {**self._telemetry.state(), "idle": self._idle.state()}

    def restore_telemetry(self, state: Mapping[str, Any]) -> None:
        """Restore telemetry that was saved before a restart; attempts that have ended since are skipped.

        Raises:
            ValueError, TypeError, KeyError: `state` did not come from `telemetry_state`.
        """
        self._telemetry.restore(state)
        self._idle.restore(state.get("idle", ()))

    def usage(self, job: Job, number: int) -> ResourceUsage | None:
        """Resource usage of an attempt, so far if it is live; None if no sample showed it on a GPU."""
        attempt = job.attempts[number - 1]
        return attempt.usage if attempt.exit is not None else self._telemetry.usage(job.id, number)

    def observed_bytes(self, job: Job) -> int | None:
        """The most that the newest attempt of a job holds on one GPU; None if no sample showed it."""
        return max(self._telemetry.peaks_bytes(job.id, len(job.attempts)).values(), default=None)

    def co_runs(self, job: Job, number: int) -> tuple[CoRun, ...]:
        """Co-runs of an attempt, with measured slowdowns."""
        attempt = job.attempts[number - 1]
        if attempt.exit is not None:
            return attempt.co_runs
        return self._history.measured(job, self._telemetry.co_runs(job.id, number))

    def co_run_status(self, job: Job) -> CoRunStatus | None:
        """Slowdown of a live job in its current co-run; None if it is not live or has no neighbors."""
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
        """What ended attempts have taught about each workload."""
        return self._history

    def take_ended(self) -> list[Job]:
        """Jobs that have ended since the last call, except those that ended in replayed events."""
        return [self._table.jobs[job_id] for job_id in self._table.take_ended() if self._table.jobs[job_id].is_done]

    def queue(self) -> list[Job]:
        """The jobs offered to the policy, oldest first."""
        return self._admission.offered()

    @property
    def last_at_s(self) -> float:
        """Time of the newest journaled event, in seconds; 0 before the first."""
        return self._table.last_at_s

    def over_quota(self, specs: Sequence[JobSpec], *, besides: int = 0) -> str | None:
        """Why the user's quota refuses these jobs; None if it does not. `besides`: further submissions in progress."""
        return self._admission.over_quota(specs, besides=besides)

    def older_singletons(self, job: Job) -> set[int]:
        """Ids of the older jobs that a `singleton` job waits for."""
        return self._table.older_singletons(job)

    def with_telemetry(self, event: AttemptExited) -> AttemptExited:
        """`event` to be journaled, with telemetry: memory peaks, least free memory near the end, co-runs, usage.

        Values that the event already has are not replaced.
        """
        job = self._table.jobs.get(event.job_id)
        attempt = job.last_attempt if job is not None else None
        uuids = attempt.placement.gpu_uuids if attempt is not None and attempt.number == event.attempt else ()
        event = self._telemetry.with_telemetry(event, uuids)
        if job is None:
            return event
        if attempt is not None and uuids and event.startup_s is None and attempt.started_at_s is not None:
            first_s = self._telemetry.first_seen_s(job.id, attempt.number)
            startup_s = None if first_s is None else max(0.0, first_s - attempt.started_at_s)
            event = replace(event, startup_s=startup_s)
        if uuids and not event.overruns and ran_out_of_memory(event.exit):
            driver, at_s = self._driver, event.at_s
            holdings = [self._telemetry.holdings(uuid, at_s, driver.resident_ids(uuid)) for uuid in uuids]
            event = replace(event, overruns=find_overruns(holdings, self._table.jobs, victim_id=job.id))
        return replace(event, co_runs=self._history.measured(job, event.co_runs)) if event.co_runs else event

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The newest inventory, in display order."""
        return self._telemetry.gpus

    def gpu_occupancies(self) -> Iterator[GpuOccupancy]:
        """What each GPU holds, in the order of `gpus`."""
        return self._driver.occupancies()

    def gpu_snapshot(self, gpu: Gpu, at_s: float) -> GpuSnapshot:
        """One GPU as the policy would see it at `at_s`."""
        return self._driver.gpu_at(gpu, at_s)

    def server_snapshot(self, at_s: float) -> ServerSnapshot:
        """All GPUs as the policy would see them at `at_s`."""
        return self._driver.snapshot(at_s)

    def explain(self, job_id: int) -> Deferral:
        """Why the job waits, or where it runs: a sentence, and a rejection for each GPU that was considered.

        Raises:
            NoSuchJob: no job has this id.
        """
        job = self._table.jobs.get(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}")
        is_live = job_id in self._table.live
        return explanation(
            job,
            refusal=self._admission.refusal(job, self._at_s) if isinstance(job.state, Queued) else None,
            wait=self._driver.explain(job_id),
            supply="; ".join(filter(None, (self.supply.why_none, self._repartitions.note()))),
            pending=lambda: self._admission.pending(job_id),
            indices={gpu.uuid: gpu.index for gpu in self._telemetry.gpus} if is_live else {},
            peak_bytes=(is_live and self.observed_bytes(job)) or 0,
            co_run_status=self.co_run_status(job) if is_live else None,
            is_paused=self._overruns.is_paused(job_id, len(job.attempts)),
            idle=self._idle.status(job, self._at_s) if is_live else None,
        )

    def _apply(self, event: Event) -> list[Command]:
        self._at_s = max(self._at_s, event.at_s)
        if isinstance(event, (ServerSampled, Tick)):
            self._admission.follow((), event.at_s)
            return []
        commands = self._table.apply(event)
        self._learn(event)
        self._propagate_changes(event.at_s)
        return commands

    def _learn(self, event: Journaled) -> None:
        """Update the workload history with an ended attempt; reconsider jobs of its workload if that changed."""
        self._repartitions.apply(event)
        job = self._table.jobs.get(event.job_id) if isinstance(event, AttemptExited) else None
        if (
            isinstance(event, AttemptExited)
            and job is not None
            and job.attempts
            and job.attempts[-1].number == event.attempt
        ):
            key = self._history.learn(job, self._table.jobs)
            if key is not None:
                self._driver.learned(key)

    def _propagate_changes(self, at_s: float) -> None:
        """Update admission, policy driver and telemetry for the jobs that have changed."""
        changed = self._table.take_changed()
        for job_id in changed:
            job = self._table.jobs[job_id]
            if job.attempts:
                self._watch_attempt(job)
                self._driver.follow(job)
        self._fit_check.add(changed)
        self._admission.follow(changed, at_s)

    def _watch_attempt(self, job: Job) -> None:
        number = len(job.attempts) if job.id in self._table.live else None
        watched = self._watched_attempts.get(job.id)
        if watched == number:
            return
        if watched is not None:
            del self._watched_attempts[job.id]
            self._time_limits.forget(job.id)
            self._telemetry.forget(job.id, watched)
        if number is not None:
            self._watched_attempts[job.id] = number
            self._time_limits.watch(job)
            self._telemetry.watch(job.id, number)

    # Idle attempts, time limits and placement.

    def _idle_commands(self, event: ServerSampled) -> list[Command]:
        """Reports of attempts that are idle now or no longer, already applied, and stops of those idle for too long."""
        live = [self._table.jobs[job_id] for job_id in sorted(self._table.live)]
        commands = self._idle.commands(event, live, is_exempt=self._is_suspended)
        for command in commands:
            if isinstance(command, ReportIdleness):
                self._apply(command.event)
        return commands

    def _is_suspended(self, job: Job) -> bool:
        """Whether its attempt is paused, or saves its state because it is being stopped."""
        is_ending = self._time_limits.is_stopping(job.id) or self._moves.is_moving(job)
        return is_ending or self._overruns.is_paused(job.id, len(job.attempts))

    def _stop_overdue(self, at_s: float) -> list[Command]:
        """Stops for attempts past their time limit, or near the end of their time slice while other jobs wait."""
        overdue = self._time_limits.overdue(self._table.jobs, at_s, others_wait=bool(self._driver.waiting))
        return [replace(self._table.stop(job, at_s, why), grace_s=grace_s) for job, why, grace_s in overdue]

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
        commands: list[Command] = [*self._repartitions.commands(event.at_s)]
        for placement in self._driver.decide(event.at_s):
            if self._driver.admit(placement, event.at_s):
                commands.append(self._launch(self._table.jobs[placement.job_id], placement, event))
        return commands

    def _hold_unsatisfiable(self, at_s: float) -> None:
        """Hold queued jobs that fit on no GPU of the server; queue held ones again if a new GPU fits them."""
        if self._fit_check.update(self._repartitions.possible_gpus(), at_s, self.supply.longest_s):
            self._propagate_changes(at_s)
            self._fit_check.done()

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
