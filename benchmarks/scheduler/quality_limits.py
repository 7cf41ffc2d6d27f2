"""Lower bounds on makespan, the interference model of the goals, and refits of the policies' law. For `quality.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cotenant.core.gpu import Sharing
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import Interference, TrueActivity
from cotenant.sim.interference.model import DEFAULT_GPU, PairCosts
from cotenant.sim.interference.sources import MeasuredCosts, SmactCosts
from cotenant.sim.interference.tables import measured
from cotenant.sim.trace import Trace
from cotenant.sim.traces.carma import measured_a100

LARGEST_SET = 4
RELEASED = (0.0, 0.3, 0.5, 0.7, 0.85)
"""Positions in the queue: the jobs submitted after each one bound the makespan, whatever ran before."""


class AsTheGoalWasSet:
    """Measured pairs, else 1.94 x SMACT^4.44 of the partner; costs add up, without a ceiling."""

    def __init__(self) -> None:
        self._sources: tuple[PairCosts, ...] = (MeasuredCosts(measured("A100")), SmactCosts())

    def speeds(
        self,
        members: Sequence[TrueActivity],
        gpu_type: str = DEFAULT_GPU,  # noqa: ARG002 - of the protocol
        sharing: Sharing = "time-sliced",  # noqa: ARG002
    ) -> list[float]:
        """Speed of each member."""
        return [
            1.0 / (1.0 + sum(self._cost(victim, mate) for place, mate in enumerate(members) if place != own))
            for own, victim in enumerate(members)
        ]

    def _cost(self, victim: TrueActivity, partner: TrueActivity) -> float:
        return next(cost.slowdown for source in self._sources if (cost := source.cost(victim, partner)) is not None)


def fitted_law(rows: Sequence[tuple[str, float]]) -> tuple[float, float, float]:
    """Fit (factor, power of SMACT, power of memory / 8 GiB) of a partner to its victims' speeds, by least squares.

    `rows` are (partner, speed of its victim).
    """
    from scipy.optimize import least_squares

    profiles = [measured_a100()[partner].profile for partner, _ in rows]

    def misses(law: Any) -> list[float]:
        costs = [
            math.exp(law[0]) * profile.smact ** law[1] * (profile.peak_bytes / 2**33) ** law[2] for profile in profiles
        ]
        return [1.0 / (1.0 + cost) - min(1.0, speed) for cost, (_, speed) in zip(costs, rows, strict=True)]

    factor, power, of_memory = least_squares(misses, [0.0, 2.0, 0.5]).x
    return math.exp(factor), float(power), float(of_memory)


def least_makespan(trace: Trace, gpus: Cluster, world: Interference, bound: float) -> float:
    """Lower bound on the makespan in seconds, with at most four jobs per GPU and a slowdown of at most `bound` each.

    The relaxation: jobs can be preempted and migrated freely, nothing fails, launches take no time, and a multi-GPU job
    is independent work on each of its GPUs.
    """
    critical_s = max(at_s + s for at_s, s in zip(trace.submit_s, trace.duration_s, strict=True))
    found_s = critical_s
    for part in RELEASED:
        release_s = trace.submit_s[int(part * (len(trace) - 1))]
        work_s: dict[int, float] = {}
        for number in range(len(trace)):
            if trace.submit_s[number] >= release_s:
                kind = trace.profile_of[number]
                work_s[kind] = work_s.get(kind, 0.0) + trace.duration_s[number] * trace.gpus[number]
        found_s = max(found_s, release_s + least_gpu_time(trace, gpus, world, work_s, bound).gpu_s / len(gpus))
    return found_s


class LeastGpuTime(NamedTuple):
    """The least GPU time for some work, and its prices: what more of it would cost.

    Attributes:
        work: GPU seconds per second of work of each profile.
        slowdown: GPU seconds that one second more in which jobs of a profile may hold a GPU would save.
    """

    gpu_s: float
    work: Mapping[int, float]
    slowdown: Mapping[int, float]


def least_gpu_time(
    trace: Trace, gpus: Cluster, world: Interference, work_s: Mapping[int, float], bound: float
) -> LeastGpuTime:
    """The relaxation for `work_s` of each profile: a linear program over the time spent in each set of jobs."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csc_matrix, vstack

    kinds = sorted(work_s)
    sets = job_sets(trace, gpus, world, kinds)
    rows = [kind for members, _ in sets for kind in members]
    columns = [place for place, (members, _) in enumerate(sets) for _ in members]
    speeds = [speed for _, set_speeds in sets for speed in set_speeds]
    shape = (len(kinds), len(sets))
    done = csc_matrix((speeds, (rows, columns)), shape=shape)
    limits, at_most = -done, -np.array([work_s[kind] for kind in kinds])
    if bound < math.inf:
        present = csc_matrix((np.ones(len(rows)), (rows, columns)), shape=shape)
        limits, at_most = vstack([limits, present - bound * done]).tocsc(), np.append(at_most, np.zeros(len(kinds)))
    solved = linprog(np.ones(len(sets)), A_ub=limits, b_ub=at_most, method="highs")
    prices = [-float(price) for price in solved.ineqlin.marginals] + [0.0] * len(kinds)
    work = dict(zip(kinds, prices, strict=False))
    slowdown = dict(zip(kinds, prices[len(kinds) :], strict=False))
    return LeastGpuTime(float(solved.fun), work, slowdown)


def job_sets(
    trace: Trace, gpus: Cluster, world: Interference, kinds: Sequence[int]
) -> list[tuple[tuple[int, ...], Sequence[float]]]:
    """Every set of up to four jobs that fits a GPU, as indices into `kinds`, with the speeds of its members."""
    slot = gpus.slots[0]
    jobs = [activity_of(trace.profiles[kind]) for kind in kinds]
    sizes = [trace.profiles[kind].first_peak_bytes for kind in kinds]
    found: list[tuple[tuple[int, ...], Sequence[float]]] = []

    def grow(members: tuple[int, ...], left_bytes: int) -> None:
        for place in range(members[-1] if members else 0, len(kinds)):
            if sizes[place] <= left_bytes:
                larger = (*members, place)
                found.append((larger, world.speeds([jobs[member] for member in larger], slot.gpu_type)))
                if len(larger) < LARGEST_SET:
                    grow(larger, left_bytes - sizes[place])

    grow((), slot.gpu.memory_total_bytes)
    return found
