"""Feeds the daemon's own history with what would have been seen of attempts in a simulated world.

A daemon learns when an attempt ends, from its peak, how long it ran, and what the GPU showed in each company. The same
is worked out here from the constant stretches between events. Of a gang, its first GPU is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.job import Attempt, AttemptExit, CoRun, Job
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.sim.engine.sim_gpu import RunningAttempt, SimGpu

_spell: Callable[..., CoRun] = fast_constructor(CoRun)

MAX_CO_RUNS = 12
MIN_CO_RUN_S = 10.0

MAX_CACHED_JOBS = 10_000

ENDED_WELL = AttemptExit(exit_code=0, signal=None, reason="exited")
ENDED_BADLY = AttemptExit(exit_code=1, signal=None, reason="exited")

ACTIVITY_STEP = 0.02
"""A kind of work whose activity is known better by less than this is not looked at again."""


class HistoryFeed:
    """A history, and the jobs that wait by what they do, so that they are looked at again when more is known.

    `reports_steps`: jobs tell their step rate; then a history need not infer slowdowns from SM activity. Without
    `minds_company`, what jobs do alone is noted, and not what they do to each other.
    """

    def __init__(
        self,
        history: WorkloadHistory,
        job_of: Callable[[int], Job],
        count: int,
        *,
        reports_steps: bool = False,
        minds_company: bool = True,
    ) -> None:
        self.history = history
        self._jobs = _JobCache(job_of, count)
        self._tells_steps = reports_steps
        self._minds_company = minds_company
        self._waiting: dict[str, dict[int, Job]] = {}
        self._known: dict[str, tuple[object, ...]] = {}

    def waits(self, job: Job) -> None:
        """`job` is in the queue."""
        self._jobs.keep(job)
        self._waiting.setdefault(workload_key(job.spec), {})[job.id] = job

    def starts(self, job: Job) -> Callable[[], GpuActivity]:
        """`job` is not in the queue any longer; what is known of its work, whenever it is asked for."""
        self._waiting[workload_key(job.spec)].pop(job.id, None)
        return partial(self.history.activity, job)

    def note(self, cards: Sequence[SimGpu], at_s: float) -> None:
        """The company on these GPUs changes: add what was seen since it changed last."""
        for card in cards:
            if self._minds_company or len(card.active) < 2:
                self._add(card, at_s)
                continue
            for each in card.active:
                if each.cards[0] is card:
                    each.co_run_since_s = at_s

    def _add(self, card: SimGpu, at_s: float) -> None:
        members = card.active
        everybody: tuple[int, ...] | None = None
        for live in members:
            seconds = at_s - live.co_run_since_s
            if live.cards[0] is not card or seconds <= 0.0:
                continue
            if everybody is None:
                everybody = tuple(sorted([each.job.id for each in members]))
            sums = live.company.get(everybody)
            if sums is None:
                sums = live.company[everybody] = [0.0, 0.0, 0.0, 0.0, 0.0]
            sums[0] += seconds
            sums[1] += card.smact * seconds
            sums[2] += card.smocc * seconds
            sums[3] += card.drama * seconds
            sums[4] += live.speed * seconds
            live.co_run_since_s = at_s

    def completed(self, live: RunningAttempt, at_s: float, *, failed: bool) -> list[Job]:
        """An attempt ran to its end; jobs that wait and may go somewhere else now."""
        held_bytes = live.held_bytes
        if not live.active and live.activity is not None:  # it had its GPUs alone, and nobody looked
            held_bytes = live.profile.peak_bytes if live.profile is not None else 0
            activity, seconds = live.activity, at_s - live.placed_s - live.delay_s
            means = (activity.smact, activity.smocc or 0.0, activity.drama or 0.0, 1.0)
            live.company[live.job.id,] = [seconds, *(each * seconds for each in means)]
        attempt = Attempt(
            number=len(live.job.attempts) + 1,
            placement=live.placement,
            placed_at_s=live.placed_s,
            started_at_s=live.placed_s,
            peak_observed_bytes={each.gpu.uuid: held_bytes for each in live.cards} if held_bytes else {},
            ended_at_s=at_s,
            exit=ENDED_BADLY if failed else ENDED_WELL,
            co_runs=self._spells(live),
        )
        return self._look_again(live.job, self.history.take_in(live.job, (attempt,), self._jobs))

    def ended(self, job: Job) -> list[Job]:
        """The last attempt of `job` is over; jobs that wait and may go somewhere else now."""
        return self._look_again(job, self.history.learn(job, self._jobs))

    def _look_again(self, job: Job, key: str | None) -> list[Job]:
        """Jobs that wait to do the work of that key, of which `job` taught something."""
        if key is None:
            return []
        now = self._summary(job)
        if self._known.get(key) == now:
            return []
        self._known[key] = now
        return list(self._waiting.get(key, {}).values())

    def _summary(self, job: Job) -> tuple[object, ...]:
        """What a policy may go by, roughly: equal before and after means that nobody need look again."""
        activity = self.history.activity(job)
        smact = None if activity.smact is None else round(activity.smact / ACTIVITY_STEP)
        plain = replace(job, min_memory_bytes=0) if job.min_memory_bytes else job
        return (self.history.need_bytes(plain), smact, activity.drama is None)

    def _spells(self, live: RunningAttempt) -> tuple[CoRun, ...]:
        longest = sorted([(-sums[0], everybody) for everybody, sums in live.company.items() if sums[0] >= MIN_CO_RUN_S])
        co_runs = []
        for minus_s, everybody in longest[:MAX_CO_RUNS]:
            _, smact_s, smocc_s, drama_s, steps = live.company[everybody]
            co_runs.append(
                _spell(
                    neighbor_ids=tuple([each for each in everybody if each != live.job.id]),
                    seconds=-minus_s,
                    smact=smact_s / -minus_s,
                    smocc=smocc_s / -minus_s,
                    drama=drama_s / -minus_s,
                    steps_hz=steps / -minus_s if self._tells_steps else None,
                    gpu_memory_bytes=live.cards[0].total_bytes,
                )
            )
        return tuple(co_runs)


class _JobCache(Mapping[int, Job]):
    """All jobs of a trace by id, made when asked for; the newest are kept."""

    def __init__(self, job_of: Callable[[int], Job], count: int) -> None:
        self._job_of = job_of
        self._count = count
        self._made: dict[int, Job] = {}

    def __getitem__(self, job_id: int) -> Job:
        found = self._made.get(job_id)
        if found is None:
            if job_id not in self:
                raise KeyError(job_id)
            found = self._job_of(job_id - 1)
            self.keep(found)
        return found

    def keep(self, job: Job) -> None:
        """It will be asked for."""
        if len(self._made) >= MAX_CACHED_JOBS:
            self._made.clear()
        self._made[job.id] = job

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and 0 < job_id <= self._count

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, self._count + 1))

    def __len__(self) -> int:
        return self._count
