"""History of workloads, learned from ended attempts: memory, activity, duration, interference.

History and estimate give the memory demand of a job as follows (decision 0037):

- The observed peak of any run is a lower bound for all runs: if the peak plus 5 % exceeds the declared or estimated
  memory, it replaces that.
- Two completed runs whose peaks agree within 5 % are better than an estimate: the larger peak plus 5 % replaces the
  estimate, even if it is lower than the estimate's bound.
- The peak of one completed run plus 10 % is used if there is no estimate.
- Declared memory is never lowered. In all other cases the estimate is used.

Memory is sampled once per second, and the caching allocator does not return memory of its own accord, so a completed
run shows its peak; a run shorter than a minute is assumed not to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cotenant.core.gpu import Sharing
from cotenant.core.job import Attempt, CoRun, Job
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.prediction.bound_calibration import BoundCalibration
from cotenant.scheduling.prediction.durations import (
    ASSUMED_DURATION_S,
    DurationInterval,
    duration_of_runs,
    unknown_left,
)
from cotenant.scheduling.prediction.interference import (
    MEASUREMENT_STD,
    GpuActivity,
    LearnedInterference,
    smact_interval_of_unseen,
)
from cotenant.scheduling.prediction.interference_table import InterferenceTable
from cotenant.scheduling.prediction.move_cost import (
    MoveCost,
    TypicalMove,
    is_wasted,
    move_cost,
    saved_before,
    saving_s,
    typical_move,
    worked_s,
)
from cotenant.scheduling.prediction.workload_record import (
    HEADROOM,
    WorkloadRecord,
    record_co_run,
    record_solo,
    solo_rate_hz,
)
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.scheduling.recovery import ran_out_of_memory
from cotenant.scheduling.telemetry.co_run import MIN_LEARNED_CO_RUN_S

MIN_RUN_S = 60.0
MAX_RUNS = 8
SMACT_SLOWDOWN_STD = 3 * MEASUREMENT_STD
"""Standard deviation of a log slowdown derived from SM activity, which shows only the sum over all jobs on the GPU."""

PLAUSIBLE_SLOWDOWNS = (0.5, 20.0)
"""Slowdowns outside this range are discarded: the two runs probably count steps differently."""


class WorkloadHistory:
    """Learns from ended attempts and predicts jobs for policies (`placement.policy.JobPredictions`).

    The state depends on the attempts and their order alone, so a replay of the journal gives the same state.
    `pace`: seconds of GPU time per second of the daemon's clock; above 1 on a simulated server. `table`: what a study
    measured; it stands for a workload's activity until that was observed here. `max_slowdown`: the bound of jobs that
    request none; None: there is none.
    """

    def __init__(
        self, *, pace: float = 1.0, table: InterferenceTable | None = None, max_slowdown: float | None = None
    ) -> None:
        self.interference = LearnedInterference(table)
        self._calibration = BoundCalibration()
        self._max_slowdown = max_slowdown
        self._min_co_run_s = MIN_LEARNED_CO_RUN_S / pace
        self._min_run_s = MIN_RUN_S / pace
        self._pace = pace
        self.assumed_duration_s = ASSUMED_DURATION_S / pace
        self._records: dict[str, WorkloadRecord] = {}
        self._activities: dict[str, GpuActivity] = {}  # cache, by workload
        self._summary_keys: dict[str, tuple[object, ...]] = {}
        self._learned: dict[int, int] = {}
        self._typical: Sequence[tuple[int, int]] | None = None  # cache
        self._typical_move: TypicalMove | None = None  # cache

    @property
    def slowdown_factor(self) -> float:
        """By which the part of a predicted slowdown above 1 is multiplied, so that jobs keep their bounds."""
        return self._calibration.factor

    def record(self, job: Job) -> WorkloadRecord | None:
        """The record of the workload of `job`; None if no attempt of it has ended."""
        return self._records.get(workload_key(job.spec))

    def activity(self, job: Job) -> GpuActivity:
        """Predicted solo activity of `job` on a GPU."""
        key = workload_key(job.spec)
        found = self._activities.get(key)
        if found is None:
            record = self._records.get(key)
            found = GpuActivity(key) if record is None else record.activity(key)
            table = self.interference.table
            measured = None if table is None else table.workloads.get(key)
            if measured is not None and found.smact is None:
                memory_bytes = found.memory_bytes or measured.memory_bytes
                found = GpuActivity(key, measured.smact, measured.smocc, measured.drama, memory_bytes)
            self._activities[key] = found
        return found

    def duration(self, job: Job) -> DurationInterval | None:
        """`duration_s` with its interval."""
        record = self.record(job)
        return None if record is None else duration_of_runs(record.durations_s)

    def left(self, job: Job, worked_s: float) -> DurationInterval:
        """What `job` has left after so much work, alone on its GPUs."""
        whole = self.duration(job)
        return unknown_left(worked_s, pace=self._pace) if whole is None else whole.left(worked_s)

    def duration_s(self, job: Job) -> float | None:
        """Predicted solo duration of `job`: the median over completed runs; None if unknown."""
        record = self.record(job)
        if record is None or not record.durations_s:
            return None
        return sorted(record.durations_s)[len(record.durations_s) // 2]

    @property
    def typical_bytes(self) -> Sequence[tuple[int, int]]:
        """Of each workload, the largest peak of its newest completed runs on a GPU, and their number."""
        if self._typical is None:
            runs = [record.peaks_bytes for record in self._records.values()]
            self._typical = [(max(peaks), len(peaks)) for peaks in runs if peaks]
        return self._typical

    def move_cost(self, job: Job) -> MoveCost:
        """What a move of `job` costs, by the attempts of its workload; a part that is not known by those of all."""
        known = self.record(job) or WorkloadRecord()
        if self._typical_move is None:
            records = self._records.values()
            self._typical_move = typical_move(
                [record.saves_s for record in records], [record.startups_s for record in records], pace=self._pace
            )
        return move_cost(known.saves_s, known.startups_s, known.unsaved, self._typical_move)

    def demand_bytes(self, job: Job) -> int | None:
        """Memory demand that replaces the declared or estimated one; None if that one is used."""
        record = self.record(job)
        if record is None:
            return None
        known = record.known_bytes()
        stated = demand_bytes(job)
        if stated is None:
            return known
        least = int(record.least_bytes * HEADROOM)
        if least > stated:
            return max(least, known or 0)
        if job.spec.declared_bytes is None and known is not None and record.is_sure() and known < stated:
            return known
        return None

    def learn(self, job: Job, jobs: Mapping[int, Job]) -> str | None:
        """Learn from the attempts of `job` that have ended since the last call; `jobs` must include its neighbors.

        Returns the workload key if predictions for the workload have changed, else None.
        """
        ended = [attempt for attempt in job.attempts[self._learned.get(job.id, 0) :] if attempt.exit is not None]
        if not ended:
            return None
        self._learned[job.id] = ended[-1].number
        return self.learn_attempts(job, ended, jobs)

    def learn_attempts(self, job: Job, ended: Sequence[Attempt], jobs: Mapping[int, Job]) -> str | None:
        """As `learn`, from attempts of `job` that the caller knows to be new."""
        key = workload_key(job.spec)
        before = self._summary_keys.get(key)
        if before is None and key in self._records:
            before = self._records[key].summary_key()
        for attempt in ended:
            self._learn_attempt(job, attempt, key, jobs)
        after = self._summary_keys[key] = self._records[key].summary_key()
        return key if after != before else None

    def _learn_attempt(self, job: Job, attempt: Attempt, key: str, jobs: Mapping[int, Job]) -> None:
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = WorkloadRecord()
        record.least_bytes = max(record.least_bytes, _least_bytes(attempt))
        self._activities.pop(key, None)
        if attempt.startup_s is not None:
            self._typical_move = None
            record.startups_s = [*record.startups_s, attempt.startup_s][-MAX_RUNS:]
        if attempt.exit is not None and attempt.exit.reason == "stopped":
            save_s = saving_s(attempt)
            if save_s is not None:
                self._typical_move = None
                record.saves_s = [*record.saves_s, save_s][-MAX_RUNS:]
            record.unsaved += is_wasted(attempt)
        if attempt.co_runs:
            self._learn_co_runs(job, attempt, record, jobs)
        end = attempt.exit
        if end is not None and end.reason == "exited":
            if end.exit_code == 0:
                self._learn_completed(job, attempt, record, jobs)
            self._calibrate(job, attempt, jobs)

    def _learn_co_runs(self, job: Job, attempt: Attempt, record: WorkloadRecord, jobs: Mapping[int, Job]) -> None:
        long = [co_run for co_run in attempt.co_runs if co_run.seconds >= self._min_co_run_s]
        for co_run in long:
            if not co_run.neighbor_ids:
                record_solo(record, co_run)
        solo_hz = solo_rate_hz(record, attempt.co_runs)
        for co_run in long:
            if co_run.neighbor_ids:
                self._learn_shared(job, co_run, jobs, solo_hz, attempt.placement.sharing)

    def _learn_completed(self, job: Job, attempt: Attempt, record: WorkloadRecord, jobs: Mapping[int, Job]) -> None:
        if attempt.started_at_s is None or attempt.ended_at_s is None:
            return
        ran_s = attempt.ended_at_s - attempt.started_at_s
        if ran_s < self._min_run_s:
            return
        peak = max(attempt.peak_observed_bytes.values(), default=0)
        if peak:
            record.peaks_bytes = [*record.peaks_bytes, peak][-MAX_RUNS:]
            self._typical = None
        record.durations_s = [*record.durations_s, self.worked_s(job, attempt, ran_s, jobs)][-MAX_RUNS:]

    def _calibrate(self, job: Job, attempt: Attempt, jobs: Mapping[int, Job]) -> None:
        """Learn whether a run to its end kept its slowdown bound."""
        bound = self._max_slowdown if job.spec.max_slowdown is None else job.spec.max_slowdown
        if bound is None or attempt.started_at_s is None or attempt.ended_at_s is None:
            return
        ran_s = attempt.ended_at_s - attempt.started_at_s
        if ran_s >= self._min_run_s:
            lost_s = self._lost_to_neighbors_s(job, attempt, jobs)
            self._calibration.learn(ran_s / (ran_s - lost_s) if lost_s < ran_s else math.inf, bound)

    def worked_s(self, job: Job, attempt: Attempt, ran_s: float, jobs: Mapping[int, Job]) -> float:
        """Time alone that `ran_s` of the newest attempt stand for, and the saved ones before it."""
        worked = max(0.0, ran_s - self._lost_to_neighbors_s(job, attempt, jobs))
        for earlier in saved_before(job, attempt) if attempt.number > 1 else ():
            worked += max(0.0, worked_s(earlier, attempt) - self._lost_to_neighbors_s(job, earlier, jobs))
        return worked

    def _lost_to_neighbors_s(self, job: Job, attempt: Attempt, jobs: Mapping[int, Job]) -> float:
        """By the steps it reported, where its rate alone is known, else by predicted slowdowns."""
        shared = [co_run for co_run in attempt.co_runs if co_run.neighbor_ids]
        if not shared:
            return 0.0
        solo_hz = solo_rate_hz(self.record(job), attempt.co_runs)
        lost_s = 0.0
        for co_run in shared:
            slowdown = _by_steps(co_run, solo_hz)
            if slowdown is None:
                slowdown = self._slowdown(job, co_run, jobs, attempt.placement.sharing)
            lost_s += co_run.seconds * (1.0 - 1.0 / max(1.0, slowdown))
        return lost_s

    def _slowdown(self, job: Job, co_run: CoRun, jobs: Mapping[int, Job], sharing: Sharing) -> float:
        group = self._group_activities(job, co_run, jobs)
        return 1.0 if group is None else self.interference.slowdowns(group, sharing)[0]

    def _group_activities(self, job: Job, co_run: CoRun, jobs: Mapping[int, Job]) -> list[GpuActivity] | None:
        """`job` and its mates, or None where one of them is not known any more."""
        group = [self._expected_activity(job)._replace(gpu_memory_bytes=co_run.gpu_memory_bytes)]
        for neighbor_id in co_run.neighbor_ids:
            neighbor = jobs.get(neighbor_id)
            if neighbor is None:
                return None
            group.append(self._expected_activity(neighbor))
        return group

    def _expected_activity(self, job: Job) -> GpuActivity:
        """`activity`; one that was not observed is expected as policies expect it."""
        found = self.activity(job)
        if found.smact is not None:
            return found
        needed_bytes = self.demand_bytes(job) or demand_bytes(job) or found.memory_bytes
        smact = smact_interval_of_unseen(job, needed_bytes).expected
        return found._replace(smact=smact, memory_bytes=found.memory_bytes or needed_bytes)

    def _are_observed(self, group: Sequence[Job]) -> bool:
        return all(self.activity(job).smact is not None for job in group)

    def _learn_shared(
        self, job: Job, co_run: CoRun, jobs: Mapping[int, Job], solo_hz: float | None, sharing: Sharing
    ) -> None:
        """Learn the slowdown of `job` in a co-run with neighbors."""
        group = self._group_activities(job, co_run, jobs)
        if group is None:
            return
        predicted = self.interference.slowdowns(group, sharing)
        slowdown, spread = _by_steps(co_run, solo_hz), MEASUREMENT_STD
        is_observed = self._are_observed([job, *(jobs[neighbor_id] for neighbor_id in co_run.neighbor_ids)])
        if slowdown is None and is_observed and not (co_run.steps_hz and solo_hz):
            slowdown, spread = _by_activity(group, predicted, co_run), SMACT_SLOWDOWN_STD
        if slowdown is None:
            return
        record_co_run(self._records[workload_key(job.spec)], group[1:], co_run, slowdown)
        unknown: Sequence[float | None] = [None] * len(co_run.neighbor_ids)
        self.interference.learn(group, [slowdown, *unknown], spread=spread, predicted=predicted, sharing=sharing)

    def measured(self, job: Job, co_runs: Sequence[CoRun]) -> tuple[CoRun, ...]:
        """`co_runs` of an attempt of `job` with the slowdowns measured by step rates."""
        solo_hz = solo_rate_hz(self.record(job), co_runs)
        return tuple(
            replace(co_run, slowdown=_by_steps(co_run, solo_hz))
            if co_run.neighbor_ids and co_run.slowdown is None
            else co_run
            for co_run in co_runs
        )

    def predicted(self, job: Job, neighbor_ids: Sequence[int], jobs: Mapping[int, Job]) -> float | None:
        """Predicted slowdown of `job` beside these jobs; None if one of them is not known."""
        group = self._group_activities(job, CoRun(neighbor_ids=tuple(neighbor_ids), seconds=0.0), jobs)
        sharing: Sharing = job.attempts[-1].placement.sharing if job.attempts else "time-sliced"
        return None if group is None else self.interference.slowdowns(group, sharing)[0]

    def records(self) -> Mapping[str, WorkloadRecord]:
        """All records, by workload key."""
        return self._records

    def state(self) -> dict[str, Any]:
        """The state as plain values, for `restored`."""
        records = {
            key: {name: getattr(record, name) for name in WorkloadRecord.__slots__}
            for key, record in self._records.items()
        }
        learned = {str(job_id): number for job_id, number in self._learned.items()}
        return {
            "records": records,
            "interference": self.interference.state(),
            "interference_table": self.interference.table_digest,
            "learned": learned,
            "slowdown_factor": self._calibration.state(),
        }

    @classmethod
    def restored(
        cls,
        state: Mapping[str, Any],
        *,
        pace: float = 1.0,
        table: InterferenceTable | None = None,
        max_slowdown: float | None = None,
    ) -> WorkloadHistory:
        """The history with a state that `state` returned."""
        found = cls(pace=pace, table=table, max_slowdown=max_slowdown)
        found._calibration = BoundCalibration(state.get("slowdown_factor", 1.0))
        found._records = {key: WorkloadRecord(**record) for key, record in state["records"].items()}
        learned_with = state.get("interference_table", "")
        found.interference = LearnedInterference.restored(state["interference"], table, learned_with=learned_with)
        found._learned = {int(job_id): number for job_id, number in state["learned"].items()}
        return found


def _least_bytes(attempt: Attempt) -> int:
    """Lower bound of the attempt's memory need: the observed peak, or in use plus requested when it ran out."""
    seen = max(attempt.peak_observed_bytes.values(), default=0)
    end = attempt.exit
    if end is None or not ran_out_of_memory(end) or end.oom.tried_bytes is None or end.oom.in_use_bytes is None:
        return seen
    return max(seen, end.oom.tried_bytes + end.oom.in_use_bytes)


def _by_steps(co_run: CoRun, solo_hz: float | None) -> float | None:
    """Slowdown by step rates; None if one is missing, or if the ratio is implausible."""
    if not co_run.steps_hz or not solo_hz:
        return None
    slowdown = solo_hz / co_run.steps_hz
    return slowdown if PLAUSIBLE_SLOWDOWNS[0] <= slowdown <= PLAUSIBLE_SLOWDOWNS[1] else None


def _by_activity(group: Sequence[GpuActivity], predicted: Sequence[float], co_run: CoRun) -> float | None:
    """Slowdown of the first of `group`, if all are off by the same factor as the GPU's total SM activity."""
    if not co_run.smact:
        return None
    expected = sum([(activity.smact or 0.0) / slowdown for activity, slowdown in zip(group, predicted, strict=True)])
    return predicted[0] * expected / co_run.smact
