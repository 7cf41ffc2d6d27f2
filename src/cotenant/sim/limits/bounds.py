"""Lower bounds on the makespan of any schedule. Needs scipy (`[sim]`).

The bound is the larger of two. First, no job ends before its submission plus its run time alone. Second, for any
release time r, the jobs submitted from r on need a minimum of GPU time, however they share GPUs. That minimum is the
optimum of a linear program whose columns are the sets of jobs that fit one GPU together; a set gives its members the
speeds of the interference model, and every job's work must be covered at the least GPU time. Columns are generated as
they are priced in. The dual is used, scaled until no set violates it, so the bound is valid even if the program was not
solved to optimality.

Relaxations: jobs may be preempted and split at will; a job of several GPUs counts as work on each; only the memory of
the first 200 s counts; there are no waits and no failures; launch delays, in which a job slows no other, are free.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.errors import CotenantError, UsageError
from cotenant.scheduling.prediction.interference import MAX_TOTAL_SPEED
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import Interference, standard
from cotenant.sim.trace import JobProfile, Trace

MAX_SET_SIZE = 4  # larger sets are bounded, not enumerated
RELEASES = 8
ADDED_AT_ONCE = 200
MAX_ROUNDS = 60
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanBound:
    """A bound that no schedule can beat.

    Attributes:
        makespan_s: from first submission to last end; the larger of the two below.
        critical_path_s: end of the last job if all started when submitted.
        work_s: release time plus the GPU time of the jobs submitted from then on, over the GPUs; the best release.
        release_s: that release time. scale: of the dual; 1 if the program was solved exactly.
    """

    makespan_s: float
    critical_path_s: float
    work_s: float
    release_s: float
    scale: float


def makespan_bound(
    trace: Trace, cluster: Cluster, *, interference: Interference | None = None, config: SimulationConfig | None = None
) -> MakespanBound:
    """A lower bound on the makespan of `trace` on `cluster`, under time slicing and this interference.

    Raises:
        UsageError: the GPUs are of several types, MIG instances or not of the reference type; jobs have no profile; or
            sensitivities are drawn.
    """
    config = config or SimulationConfig()
    if not len(trace):
        raise UsageError(f"trace `{trace.name}` has no jobs")
    types = {slot.gpu_type for slot in cluster.slots}
    if len(types) != 1 or any(slot.is_mig for slot in cluster.slots):
        raise UsageError(f"no bound for `{cluster.text}`", hint="bounds are for whole GPUs of one type")
    if config.reference_gpu not in (None, *types):
        raise UsageError(f"no bound for `{cluster.text}` with run times of `{config.reference_gpu}`")
    if not trace.has_profiles:
        raise UsageError(f"trace `{trace.name}` has jobs without activity profiles")
    if config.sensitivity_sd > 0:
        raise UsageError("no bound with sensitivities: some jobs are slowed down less than the model says")
    first_s = trace.submit_s[0]
    critical_s = max(submit + run for submit, run in zip(trace.submit_s, trace.duration_s, strict=True)) - first_s
    sets = _Sets(trace.profiles, cluster, interference or standard())
    delays_s = config.first_delays(len(trace))
    work_s = [
        (duration_s - min(delay_s, config.delay_share * duration_s)) * gpus
        for duration_s, delay_s, gpus in zip(trace.duration_s, delays_s, trace.gpus, strict=True)
    ]
    best = (-math.inf, 0.0, 1.0)
    for release_s in _releases(trace):
        needed_s = [0.0] * len(trace.profiles)
        for number, submit_s in enumerate(trace.submit_s):
            if submit_s >= release_s:
                needed_s[trace.profile_of[number]] += work_s[number]
        gpu_s, scale = sets.least_gpu_time(needed_s)
        best = max(best, (release_s - first_s + gpu_s / len(cluster), release_s, scale))
    return MakespanBound(
        makespan_s=max(critical_s, best[0]),
        critical_path_s=critical_s,
        work_s=best[0],
        release_s=best[1],
        scale=best[2],
    )


def _releases(trace: Trace) -> list[float]:
    times = sorted(set(trace.submit_s))
    step = max(1, len(times) // RELEASES)
    return times[::step][:RELEASES]


class _Sets:
    """All sets of up to `MAX_SET_SIZE` kinds of jobs that fit one GPU together, and their speeds."""

    def __init__(self, profiles: Sequence[JobProfile], cluster: Cluster, interference: Interference) -> None:
        self._np = _optional_module("numpy")
        self._kinds = [activity_of(profile) for profile in profiles]
        self._bytes = [min(profile.first_peak_bytes, profile.peak_bytes) for profile in profiles]
        self._total_bytes = max(slot.gpu.memory_total_bytes for slot in cluster.slots)
        self._gpu_type = cluster.slots[0].gpu_type
        self._model = interference
        rows: list[list[tuple[int, float]]] = []
        for size in range(1, MAX_SET_SIZE + 1):
            for members in itertools.combinations_with_replacement(range(len(profiles)), size):
                if self._fits(members):
                    speeds = interference.speeds([self._kinds[i] for i in members], self._gpu_type, "time-sliced")
                    rows.append(list(zip(members, speeds, strict=True)))
        np = self._np
        self._speeds = np.zeros((len(rows), len(profiles)))  # by set and kind, summed over the copies of a kind
        for row, members_of in enumerate(rows):
            for kind, speed in members_of:
                self._speeds[row, kind] += speed
        self._pool = [row for row, members_of in enumerate(rows) if len(members_of) <= 2]

    def _fits(self, members: Sequence[int]) -> bool:
        """Whether the set fits the memory of a GPU; a job alone always counts."""
        return sum(self._bytes[i] for i in members) <= self._total_bytes or len(members) == 1

    def least_gpu_time(self, needed_s: Sequence[float]) -> tuple[float, float]:
        """A lower bound on GPU seconds for this work by kind, and the scale of its dual."""
        np = self._np
        needed = np.array(needed_s)
        wanted = needed > 0
        if not wanted.any():
            return 0.0, 1.0
        unit = needed.sum()
        prices = np.zeros(len(needed))
        for _ in range(MAX_ROUNDS):
            prices[wanted] = self._duals(needed[wanted] / unit, wanted)
            worth = self._speeds @ prices
            violated = np.flatnonzero(worth > 1.0 + TOLERANCE)
            fresh = [
                row for row in violated[np.argsort(-worth[violated])][:ADDED_AT_ONCE] if row not in set(self._pool)
            ]
            if not fresh:
                break
            self._pool += fresh
        scale = max(1.0, float((self._speeds @ prices).max()), self._worth_of_larger(prices.tolist()))
        return float(needed @ prices) / scale, scale

    def _duals(self, needed: Any, wanted: Any) -> Any:
        """Dual prices of a second of work of each wanted kind, with the columns in the pool."""
        linprog = _optional_module("scipy.optimize").linprog
        np = self._np
        columns = self._speeds[self._pool][:, wanted]
        columns = columns[columns.any(axis=1)]
        found = linprog(np.ones(len(columns)), A_ub=-columns.T, b_ub=-needed, method="highs")
        if not found.success:
            raise CotenantError(f"the linear program of the bound failed: {found.message}")
        return np.maximum(0.0, -found.ineqlin.marginals)

    def _worth_of_larger(self, prices: Sequence[float]) -> float:
        """An upper bound on the value of any set of more than `MAX_SET_SIZE` jobs.

        Such a set has only jobs that fit beside `MAX_SET_SIZE` of the smallest; its speeds sum to at most
        `MAX_TOTAL_SPEED`, and its SM activity to at most 1. The value under these two limits is a linear program, and
        each value of its second dual gives a bound: the minimum is taken. Jobs of price 0 only slow the others down.
        """
        worthy = [i for i, price in enumerate(prices) if price > 0]
        others_bytes = MAX_SET_SIZE * min(self._bytes[i] for i in worthy)
        fitting = [i for i in worthy if self._bytes[i] + others_bytes <= self._total_bytes]
        priced = [(prices[i], self._kinds[i].smact) for i in fitting]
        if not priced:
            return 0.0
        duals = [step / 50 for step in range(101)]
        return min(
            MAX_TOTAL_SPEED * max(0.0, *(price - dual * smact for price, smact in priced)) + dual for dual in duals
        )


def _optional_module(name: str) -> Any:
    """A module of numpy or scipy.

    Raises:
        CotenantError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CotenantError("bounds on schedules need numpy and scipy", hint="pip install 'cotenant[sim]'") from error
