"""The linear program behind `relaxation`: sets of jobs on GPUs in spans of time, generated as they are priced in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from benchmarks.scheduler.quality_limits import job_sets
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.interference import Interference
from cotenant.sim.trace import Trace

BOUND = 1.5
EXEMPT = 0.05
"""Share of the jobs that may exceed the bound."""
ADDED_PER_SPAN = 12
MAX_ROUNDS = 40
GAP = 0.002
"""The program is solved when its bound is this close to its optimum."""
UNDONE_COST = 20.0
"""Mean JCT, in seconds per second of work that is left undone: a program without a solution has one at this price."""


class _Job(NamedTuple):
    """A job; `work_s` on each GPU begins at `from_s` at the earliest, after a launch of `delay_s`."""

    kind: int
    gpus: int
    submit_s: float
    from_s: float
    work_s: float
    delay_s: float
    alone_s: float


class JobSets:
    """All sets of kinds of jobs that fit a GPU, as arrays of places: its kind, speed, and number among equal kinds."""

    def __init__(self, trace: Trace, gpus: Cluster, world: Interference) -> None:
        kinds = sorted(set(trace.profile_of))
        found = job_sets(trace, gpus, world, kinds)
        self.sets = [tuple(kinds[place] for place in members) for members, _ in found]
        owner = [number for number, members in enumerate(self.sets) for _ in members]
        self.owner = np.array(owner)
        self.kind = np.array([kind for members in self.sets for kind in members])
        self.speed = np.array([speed for _, speeds in found for speed in speeds])
        self.copy = np.array(
            [members[:place].count(kind) for members in self.sets for place, kind in enumerate(members)]
        )
        self.first: Any = np.searchsorted(self.owner, np.arange(len(self.sets)))
        self.places_of = {kind: np.flatnonzero(self.kind == kind) for kind in kinds}
        self.slowest = {kind: float(self.speed[places].min()) for kind, places in self.places_of.items()}

    def best(
        self, jobs_of: Mapping[int, Sequence[int]], work: Any, held: Any, count: int
    ) -> tuple[float, list[list[tuple[int, float]]]]:
        """The highest value of a set, and the best sets as (job, speed); a job is worth work x speed - held."""
        value = np.full(len(self.kind), -np.inf)
        chosen: Any = np.zeros(len(self.kind), dtype=int)
        for kind, numbers in jobs_of.items():
            places = self.places_of[kind]
            jobs = np.array(numbers)
            worth = work[jobs][:, None] * self.speed[places] - held[jobs][:, None]
            ranked = np.argsort(-worth, axis=0)
            copies = self.copy[places]
            possible = copies < len(jobs)
            rank = ranked[np.minimum(copies, len(jobs) - 1), np.arange(len(places))]
            value[places] = np.where(possible, worth[rank, np.arange(len(places))], -np.inf)
            chosen[places] = jobs[rank]
        totals = np.add.reduceat(value, self.first)
        top = np.argpartition(-totals, min(count, len(totals) - 1))[:count]
        columns = []
        for number in top[np.argsort(-totals[top])]:
            if totals[number] > 0.0:
                members = range(self.first[number], self.first[number] + len(self.sets[number]))
                columns.append([(int(chosen[place]), float(self.speed[place])) for place in members])
        return max(0.0, float(totals.max())), columns


class _Rows:
    """Rows `coefficients x variables <= limit`, as lists of (row, column, value)."""

    def __init__(self) -> None:
        self.limits: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def add(self, limit: float, *entries: tuple[int, float]) -> int:
        """A new row; its number."""
        self.limits.append(limit)
        for column, value in entries:
            self.put(len(self.limits) - 1, column, value)
        return len(self.limits) - 1

    def put(self, row: int, column: int, value: float) -> None:
        """An entry of a row."""
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)


class Solved(NamedTuple):
    """A lower bound, and the optimum of the program over the sets that were generated, which is not below it.

    `undone_s`: GPU seconds of work that the program could not place: if there are some, no schedule is so short.
    """

    bound: float
    optimum: float
    undone_s: float


class RelaxedSchedule:
    """The linear program; `limit_s`: all ends until then, and the mean end of a job is minimized. None: the makespan.

    Variables: for how long a set is on GPUs in a span; when a job ends; what is left undone; how much of a job is
    exempt from the bound. A job ends no earlier than half of its work after the mean time of its work, since no job
    works faster than alone, and no earlier than it has held its GPUs. Work x in a span of length L counts from the
    beginning of the span, plus the tangent of x^2 / 2 at x = L, where a solution has more than L / 2 there.
    """

    def __init__(self, trace: Trace, gpus: Cluster, sets: JobSets, step_s: float, limit_s: float | None) -> None:
        self._sets, self._is_jct = sets, limit_s is not None
        self._count = len(gpus)
        self._jobs = jobs = _jobs_of(trace)
        last_s = max(job.from_s for job in jobs) if limit_s is None else limit_s
        count = max(1, math.ceil(last_s / step_s))
        self._starts = [last_s * number / count for number in range(count)]
        self._ends = [*self._starts[1:], last_s]
        if limit_s is None:  # the last span is as long as it must be
            self._starts.append(last_s)
            self._ends.append(math.inf)
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._rows = _Rows()
        self._columns: list[tuple[int, list[tuple[int, float]], int]] = []
        self._known: set[tuple[int, tuple[int, ...]]] = set()
        self._in_span: dict[tuple[int, int], int] = {}
        self._tangents: dict[tuple[int, int], tuple[int, float]] = {}
        self._add_variables_and_rows()
        for span in range(len(self._starts)):
            for number in self._jobs_in(span):
                self._place(span, [(number, 1.0)])

    def _add_variables_and_rows(self) -> None:
        jobs, rows, undone_cost = self._jobs, self._rows, UNDONE_COST / len(self._jobs)
        end = [self._variable(1.0 / len(jobs) if self._is_jct else 0.0) for _ in jobs]
        self._undone = [self._variable(undone_cost if self._is_jct else UNDONE_COST) for _ in jobs]
        exempt = [self._variable(0.0, 1.0) for _ in jobs]
        self._last_length = self._variable(0.0 if self._is_jct else 1.0)
        self._work, self._held, self._capacity, self._mean, self._present = [], [], [], [], []
        for number, job in enumerate(jobs):
            within_s = BOUND * job.alone_s - job.delay_s
            beyond_s = max(0.0, job.work_s / self._sets.slowest[job.kind] - within_s)
            self._work.append(rows.add(-job.work_s * job.gpus, (self._undone[number], -1.0)))
            self._held.append(rows.add(within_s * job.gpus, (exempt[number], -beyond_s * job.gpus)))
            self._mean.append(rows.add(-job.work_s / 2.0, (end[number], -1.0)))
            self._present.append(rows.add(-job.from_s, (end[number], -1.0)))
        rows.add(EXEMPT * len(jobs), *[(column, 1.0) for column in exempt])
        for start_s, end_s in zip(self._starts, self._ends, strict=True):
            entry = (self._last_length, -float(self._count))
            is_last = end_s == math.inf
            self._capacity.append(rows.add(0.0, entry) if is_last else rows.add(self._count * (end_s - start_s)))

    def _variable(self, cost: float, upper: float = math.inf) -> int:
        self._costs.append(cost)
        self._upper.append(upper)
        return len(self._costs) - 1

    def _jobs_in(self, span: int) -> list[int]:
        return [number for number, job in enumerate(self._jobs) if job.from_s < self._ends[span] - 1e-6]

    def _from_s(self, span: int, number: int) -> float:
        """When a job may begin to work in a span."""
        return max(self._starts[span], self._jobs[number].from_s)

    def _place(self, span: int, members: list[tuple[int, float]]) -> bool:
        """A new variable: how long this set is on a GPU in this span; False if there is one."""
        key = (span, tuple(sorted(number for number, _ in members)))
        if key in self._known:
            return False
        self._known.add(key)
        column, put = self._variable(0.0), self._rows.put
        self._columns.append((span, members, column))
        put(self._capacity[span], column, 1.0)
        for number, speed in members:
            job = self._jobs[number]
            put(self._work[number], column, -speed)
            put(self._held[number], column, 1.0)
            if self._is_jct:
                put(self._mean[number], column, speed * self._from_s(span, number) / (job.work_s * job.gpus))
                put(self._present[number], column, 1.0 / job.gpus)
            if (span, number) in self._in_span:
                put(self._in_span[span, number], column, 1.0)
            if (span, number) in self._tangents:
                row, factor = self._tangents[span, number]
                put(row, column, factor * speed)
        return True

    def solve(self) -> Solved:
        """Generate sets and rows until the bound is close to the optimum."""
        best = -math.inf
        for _ in range(MAX_ROUNDS):
            found = self._optimum()
            is_changed = self._add_rows(found.x)
            bound, is_grown = self._price(found)
            best = max(best, bound)
            undone_s = sum(found.x[column] for column in self._undone)
            if not (is_changed or is_grown) or (not is_changed and found.fun - best <= GAP * abs(found.fun)):
                break
        before_s = 0.0 if self._is_jct else self._starts[-1]
        return Solved(before_s + best, before_s + float(found.fun), float(undone_s))

    def _optimum(self) -> Any:
        rows = self._rows
        shape = (len(rows.limits), len(self._costs))
        matrix = coo_matrix((rows.values, (rows.rows, rows.columns)), shape=shape).tocsc()
        bounds = np.column_stack([np.zeros(len(self._costs)), self._upper])
        found = linprog(self._costs, A_ub=matrix, b_ub=rows.limits, bounds=bounds, method="highs")
        if found.status != 0:
            raise AssertionError(f"the linear program was not solved: {found.message}")
        return found

    def _add_rows(self, x: Any) -> bool:
        """Rows that the solution violates: a job on more GPUs than it has, and tangents."""
        held_s: dict[tuple[int, int], float] = {}
        worked_s: dict[tuple[int, int], float] = {}
        for span, members, column in self._columns:
            if x[column] > 1e-7:
                for number, speed in members:
                    held_s[span, number] = held_s.get((span, number), 0.0) + x[column]
                    worked_s[span, number] = worked_s.get((span, number), 0.0) + x[column] * speed
        new_in_span, new_tangents = set(), set()
        for (span, number), seconds in held_s.items():
            job = self._jobs[number]
            length_s = min(self._ends[span], self._starts[span] + x[self._last_length]) - self._from_s(span, number)
            if seconds > job.gpus * length_s + 1e-3 and (span, number) not in self._in_span:
                new_in_span.add((span, number))
            work_s = worked_s[span, number] / job.gpus
            if self._is_jct and work_s > length_s / 2.0 + 1e-3 and (span, number) not in self._tangents:
                new_tangents.add((span, number))
        self._add_in_span(new_in_span)
        self._add_tangents(new_tangents)
        return bool(new_in_span or new_tangents)

    def _add_in_span(self, found: set[tuple[int, int]]) -> None:
        """Rows: a job is on no more GPUs at once than it has."""
        for span, number in found:
            gpus = self._jobs[number].gpus
            if self._ends[span] < math.inf:
                row = self._rows.add(gpus * (self._ends[span] - self._from_s(span, number)))
            else:
                row = self._rows.add(0.0, (self._last_length, -float(gpus)))
            self._in_span[span, number] = row
        for span, members, column in self._columns:
            for number, _ in members:
                if (span, number) in found:
                    self._rows.put(self._in_span[span, number], column, 1.0)

    def _add_tangents(self, found: set[tuple[int, int]]) -> None:
        """Rows: the work of a job in a span counts from no earlier than it can be done."""
        for span, number in found:
            job = self._jobs[number]
            length_s = self._ends[span] - self._from_s(span, number)
            later = self._variable(0.0)
            self._rows.put(self._mean[number], later, 1.0)
            row = self._rows.add(length_s**2 / (2.0 * job.work_s), (later, -1.0))
            self._tangents[span, number] = (row, length_s / (job.work_s * job.gpus))
        for span, members, column in self._columns:
            for number, speed in members:
                if (span, number) in found:
                    row, factor = self._tangents[span, number]
                    self._rows.put(row, column, factor * speed)

    def _price(self, found: Any) -> tuple[float, bool]:
        """A lower bound by the dual, and whether sets were added that may improve the solution."""
        prices = np.zeros(len(self._rows.limits))
        prices[: len(found.ineqlin.marginals)] = -found.ineqlin.marginals  # rows that are new have none yet
        held = prices[self._held] + prices[self._present] / np.array([job.gpus for job in self._jobs])
        bound, scale, is_grown = float(found.fun), 1.0, False
        for span in range(len(self._starts)):
            jobs_of: dict[int, list[int]] = {}
            work_prices, held_prices = np.zeros(len(self._jobs)), held.copy()
            for number in self._jobs_in(span):
                job = self._jobs[number]
                jobs_of.setdefault(job.kind, []).append(number)
                later = self._from_s(span, number) / (job.work_s * job.gpus) if self._is_jct else 0.0
                work_prices[number] = prices[self._work[number]] - later * prices[self._mean[number]]
                if (span, number) in self._in_span:
                    held_prices[number] += prices[self._in_span[span, number]]
                if (span, number) in self._tangents:
                    row, factor = self._tangents[span, number]
                    work_prices[number] -= factor * prices[row]
            if not jobs_of:
                continue
            value, columns = self._sets.best(jobs_of, work_prices, held_prices, ADDED_PER_SPAN)
            excess = max(0.0, value - prices[self._capacity[span]])
            if excess > 1e-9:
                for members in columns:
                    worth = sum(work_prices[number] * speed - held_prices[number] for number, speed in members)
                    if worth > prices[self._capacity[span]] + 1e-9:
                        is_grown |= self._place(span, members)
            if self._ends[span] < math.inf:
                bound -= self._count * (self._ends[span] - self._starts[span]) * excess
            else:
                scale = 1.0 + self._count * excess
        return bound / scale, is_grown


def _jobs_of(trace: Trace) -> list[_Job]:
    config = SimulationConfig()
    found = []
    for number, drawn_s in enumerate(config.first_delays(len(trace))):
        alone_s, submit_s = trace.duration_s[number], trace.submit_s[number]
        delay_s = min(drawn_s, config.delay_share * alone_s)
        found.append(
            _Job(
                kind=trace.profile_of[number],
                gpus=trace.gpus[number],
                submit_s=submit_s,
                from_s=submit_s + delay_s,
                work_s=alone_s - delay_s,
                delay_s=delay_s,
                alone_s=alone_s,
            )
        )
    return found
