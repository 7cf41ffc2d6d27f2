"""Meters the GPU time, memory, SM activity and energy of each attempt, integrated from sample to sample.

Attribution between two samples of a GPU (decision 0041):

- GPU time is charged to every attempt that is placed there, with memory or without: its promise keeps others out.
- GPU energy is the difference of the energy counter. Without a counter, or if it went back (the driver was reloaded),
  it is the mean of the two power readings times the interval. If the samples are stale, too, it is unknown.
- Idle energy, the lowest power ever read without any process times the interval, is divided equally; it counts as 0
  until such a sample exists. The rest is divided by SM share. An attempt without memory there has none.
- SM shares are those that the driver reports per process. If it does not report all of them, or reports only zeros,
  they are the solo SM activities of the workloads. If one of these is unknown, too, shares are equal, and SM activity
  is not attributed.
- Foreign processes count as one more job; their share is charged to no attempt.
- After a gap longer than samples stay fresh, time is attributed to the attempts present before and after it, and energy
  only if the same processes were present.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.events import AttemptSample
from cotenant.core.gpu import GpuSample
from cotenant.core.job import USAGE_FIELDS, Job, ResourceUsage

Key = tuple[int, int]
"""Job id and attempt number."""

MAX_POWER_W = 5000.0
"""Upper bound of the power of a GPU: a counter that exceeds it is wrong."""

NO_USAGE = ResourceUsage()

FOREIGN: Key = (0, 0)
"""Stands for all foreign processes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The last reading of a GPU: time, energy and power if they are numbers, and who is charged for what follows."""

    at_s: float
    energy_j: float | None
    power_w: float | None
    present: frozenset[Key]


class UsageMeter:
    """Accumulates the resource usage of every watched attempt.

    `pace`: seconds of GPU time per second of the daemon's clock; above 1 on a simulated server, whose GPU time and
    energy are the ones reported. `smact_of`: the solo SM activity of a job, if known.
    """

    def __init__(
        self, *, stale_after_s: float, pace: float = 1.0, smact_of: Callable[[Job], float | None] = lambda _: None
    ) -> None:
        self._stale_after_s = stale_after_s
        self._pace = pace
        self._smact_of = smact_of
        self._usage: dict[Key, ResourceUsage] = {}
        self._last: dict[str, _Reading] = {}
        self._idle_w: dict[str, float] = {}

    def watch(self, key: Key) -> None:
        """Meter this attempt until `forget`; usage that it already has is retained."""
        self._usage.setdefault(key, NO_USAGE)

    def forget(self, key: Key) -> None:
        """Drop an attempt that has ended."""
        self._usage.pop(key, None)

    def usage(self, key: Key) -> ResourceUsage | None:
        """Usage of a watched attempt; None if no GPU was sampled since it was placed."""
        found = self._usage.get(key)
        return found if found is not None and found.gpu_s else None

    def note(
        self,
        uuid: str,
        sample: GpuSample,
        observed: Sequence[AttemptSample],
        jobs: Mapping[int, Job],
        *,
        has_foreign: bool,
        placed: Collection[Key] = (),
    ) -> None:
        """Add a sample of a GPU and of the attempts on it.

        `has_foreign`: foreign processes hold memory there, too. `placed`: attempts that may use it, observed or not.
        """
        seen = {(attempt.job_id, attempt.attempt): attempt for attempt in observed}
        active = frozenset((*seen, FOREIGN) if has_foreign else seen)
        present = active.union(placed)
        now = _Reading(sample.at_s, _number(sample.energy_j), _number(sample.power_w), present)
        before = self._last.get(uuid)
        self._last[uuid] = now
        if not active and now.power_w is not None:
            self._idle_w[uuid] = min(now.power_w, self._idle_w.get(uuid, math.inf))
        if before is None or not present or not now.at_s > before.at_s:
            return
        fresh = now.at_s - before.at_s <= self._stale_after_s
        counted = present if fresh else present & before.present
        seconds = (now.at_s - before.at_s) * self._pace
        energy_j = _energy_j(before, now, seconds, fresh=fresh) if fresh or present == before.present else None
        shares, known = self._shares(active, seen, sample, jobs)
        idle_j = 0.0 if energy_j is None else min(energy_j, self._idle_w.get(uuid, 0.0) * seconds)
        smact = _number(sample.smact) if known else None
        for key in counted - {FOREIGN}:
            if key not in self._usage:
                continue
            metered = energy_j is not None
            share = shares.get(key, 0.0)
            judged = smact is not None and key in seen  # before its first kernel, it has no activity to average
            self._usage[key] += ResourceUsage(
                gpu_s=seconds,
                gpu_share_s=seconds / len(present),
                byte_s=seen[key].used_bytes * seconds if key in seen else 0.0,
                sm_s=min(1.0, smact or 0.0) * share * seconds if judged else 0.0,
                sm_known_s=seconds if judged else 0.0,
                energy_j=idle_j / len(present) + ((energy_j or 0.0) - idle_j) * share,
                idle_energy_j=idle_j / len(present),
                metered_s=seconds if metered else 0.0,
            )

    def _shares(
        self, active: frozenset[Key], seen: Mapping[Key, AttemptSample], sample: GpuSample, jobs: Mapping[int, Job]
    ) -> tuple[dict[Key, float], bool]:
        """The share of the GPU's work by attempt that holds memory, with sum 1, and whether the shares are known."""
        if len(active) == 1:
            return dict.fromkeys(active, 1.0), True
        for weights in (
            _driver_weights(seen, sample, has_foreign=FOREIGN in active),
            self._solo_weights(active, jobs),
        ):
            total = sum(weights.values())
            if total > 0:
                return {key: weight / total for key, weight in weights.items()}, True
        return {key: 1.0 / len(active) for key in active}, False

    def _solo_weights(self, active: frozenset[Key], jobs: Mapping[int, Job]) -> dict[Key, float]:
        """Solo SM activities; empty if one is not known."""
        alone = {key: None if key == FOREIGN else _number(self._smact_of(jobs[key[0]])) for key in active}
        known = {key: smact for key, smact in alone.items() if smact is not None}
        return known if len(known) == len(alone) else {}

    def state(self) -> dict[str, Any]:
        """The state as plain values, for `restore`."""
        return {
            "usage": [[*key, [getattr(usage, name) for name in USAGE_FIELDS]] for key, usage in self._usage.items()],
            "last": {
                uuid: [last.at_s, last.energy_j, last.power_w, sorted(last.present)]
                for uuid, last in self._last.items()
            },
            "idle_w": dict(self._idle_w),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; attempts that are not watched are skipped.

        Raises:
            ValueError, TypeError, KeyError: `state` did not come from `state()`; nothing was restored.
        """
        usage = {
            (int(job_id), int(number)): ResourceUsage(**dict(zip(USAGE_FIELDS, map(float, values), strict=True)))
            for job_id, number, values in state["usage"]
        }
        last = {
            uuid: _Reading(
                float(at_s), energy_j, power_w, frozenset((int(job), int(number)) for job, number in present)
            )
            for uuid, (at_s, energy_j, power_w, present) in state["last"].items()
        }
        idle_w = {uuid: float(watts) for uuid, watts in state["idle_w"].items()}
        self._usage |= {key: restored for key, restored in usage.items() if key in self._usage}
        self._last |= last
        self._idle_w |= idle_w


def _energy_j(before: _Reading, now: _Reading, seconds: float, *, fresh: bool) -> float | None:
    """Energy of the GPU in the `seconds` between two readings; None if unknown."""
    if before.energy_j is not None and now.energy_j is not None:
        spent_j = now.energy_j - before.energy_j
        if 0.0 <= spent_j <= MAX_POWER_W * seconds:
            return spent_j
    powers = [reading.power_w for reading in (before, now) if reading.power_w is not None]
    return sum(powers) / len(powers) * seconds if fresh and powers else None


def _driver_weights(seen: Mapping[Key, AttemptSample], sample: GpuSample, *, has_foreign: bool) -> dict[Key, float]:
    """SM shares as reported by the driver; empty if one is missing."""
    weights: dict[Key, float] = {}
    for key, observed in seen.items():
        sm = _number(observed.sm)
        if sm is None:
            return {}
        weights[key] = sm
    if has_foreign:
        sm_shares = [_number(process.sm) for process in sample.processes]
        if None in sm_shares:
            return {}
        weights[FOREIGN] = max(0.0, sum(sm for sm in sm_shares if sm is not None) - sum(weights.values()))
    return weights


def _number(value: float | None) -> float | None:
    """`value` if it is finite and at least 0, else None: NaN and negative readings count as unknown."""
    return value if value is not None and 0.0 <= value < math.inf else None
