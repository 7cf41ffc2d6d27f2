"""What a job does in each group of jobs that it shares a GPU with, added up interval by interval.

The daemon adds an interval for every GPU sample, the simulator one for every change on a GPU; both report co-runs by
the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSample
from cotenant.core.job import CoRun

Group = tuple[int, ...]
"""Ids of all jobs on a GPU, the job in question among them, ascending."""

MAX_CO_RUNS = 12
"""An attempt reports its longest co-runs, this many at most."""

MIN_CO_RUN_S = 10.0
"""A shorter co-run is not reported: its means are noise."""

MIN_LEARNED_CO_RUN_S = 30.0
"""A workload's history learns nothing from a shorter co-run."""

MIN_READ_SHARE = 0.8
"""A measure has no mean if it was read for less than this share of the time: the rest may have been different."""

_co_run: Callable[..., CoRun] = fast_constructor(CoRun)

# Places in the list of sums of a group: the time, then sum and time of each measure, then steps and their time.
_SECONDS, _SMACT, _SMOCC, _DRAMA, _STEPS, _STEPS_S = 0, 1, 3, 5, 7, 8
_SUMS = 9
_NO_SUMS = (0.0,) * _SUMS


class CoRunAccumulator:
    """The co-runs of one attempt.

    `min_s`: shorter co-runs are left out of all answers.

    Attributes:
        gpu_memory_bytes: memory of its GPU; None until known.
    """

    __slots__ = ("_job_id", "_min_s", "_sums", "gpu_memory_bytes")

    def __init__(self, job_id: int, *, min_s: float = MIN_CO_RUN_S, gpu_memory_bytes: int | None = None) -> None:
        self.gpu_memory_bytes = gpu_memory_bytes
        self._job_id = job_id
        self._min_s = min_s
        self._sums: dict[Group, list[float]] = {}

    def add_interval(
        self,
        group: Group,
        seconds: float,
        smact: float | None = None,
        smocc: float | None = None,
        drama: float | None = None,
        steps: float = 0.0,
        steps_s: float = 0.0,
    ) -> None:
        """Add `seconds` in `group`, with the mean activity of the GPU in that time (None where not known).

        `steps` are training steps of the job, taken in `steps_s` seconds; 0 and 0 where not known.
        """
        sums = self._sums.get(group)
        if sums is None:
            if len(self._sums) >= 4 * MAX_CO_RUNS:
                del self._sums[min(self._sums, key=lambda known: self._sums[known][_SECONDS])]
            sums = self._sums[group] = [0.0] * _SUMS
        sums[0] += seconds
        if smact is not None:
            sums[1] += smact * seconds
            sums[2] += seconds
        if smocc is not None:
            sums[3] += smocc * seconds
            sums[4] += seconds
        if drama is not None:
            sums[5] += drama * seconds
            sums[6] += seconds
        if steps_s:
            sums[7] += steps
            sums[8] += steps_s

    def co_runs(self) -> tuple[CoRun, ...]:
        """The longest co-runs, longest first."""
        longest = sorted([(-sums[0], group) for group, sums in self._sums.items() if sums[0] >= self._min_s])
        return tuple([self._report(group, self._sums[group]) for _, group in longest[:MAX_CO_RUNS]])

    def co_run(self, group: Group) -> CoRun | None:
        """The co-run in `group`; None if it is too short."""
        sums = self._sums.get(group)
        return None if sums is None or sums[0] < self._min_s else self._report(group, sums)

    def solo_smact(self, running_s: float = 0.0, running_smact: float = 0.0) -> float | None:
        """Mean SM activity while the job had the GPU to itself, to two digits; None if not known, or too short.

        `running_s` at `running_smact` counts as an interval that has not been added yet.
        """
        sums = self._sums.get((self._job_id,), _NO_SUMS)
        seconds = sums[_SECONDS] + running_s
        read_s = sums[_SMACT + 1] + running_s
        if not read_s or seconds < self._min_s or read_s < MIN_READ_SHARE * seconds:
            return None
        return round((sums[_SMACT] + running_smact * running_s) / read_s, 2)

    def _report(self, group: Group, sums: Sequence[float]) -> CoRun:
        return _co_run(
            neighbor_ids=tuple([job_id for job_id in group if job_id != self._job_id]),
            seconds=sums[_SECONDS],
            smact=_mean(sums, _SMACT),
            smocc=_mean(sums, _SMOCC),
            drama=_mean(sums, _DRAMA),
            steps_hz=sums[_STEPS] / sums[_STEPS_S] if sums[_STEPS_S] else None,
            gpu_memory_bytes=self.gpu_memory_bytes,
        )

    def state(self) -> list[list[Any]]:
        """All sums as plain values."""
        return [[group, sums] for group, sums in self._sums.items()]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Continue from what `state` gave.

        Raises:
            ValueError, TypeError: `state` has another shape.
        """
        restored: dict[Group, list[float]] = {}
        for group, sums in state:
            if len(sums) != _SUMS:
                raise ValueError(f"{_SUMS} sums wanted, got {len(sums)}")
            restored[tuple(int(job_id) for job_id in group)] = [float(value) for value in sums]
        self._sums.update(restored)


class CoRunSampler(CoRunAccumulator):
    """Adds intervals from periodic GPU samples and the step rates that jobs report."""

    __slots__ = ("_group", "_sampled_at_s", "_since_s")

    def __init__(self, job_id: int, *, min_s: float = MIN_CO_RUN_S) -> None:
        super().__init__(job_id, min_s=min_s)
        self._group: Group | None = None
        self._since_s = math.inf
        self._sampled_at_s = -math.inf

    def add_sample(
        self, group: Group, seconds: float, sample: GpuSample, steps_hz: float | None, steps_s: float | None = None
    ) -> None:
        """Add the `seconds` before `sample`, in which the job was in `group`.

        `steps_hz` is its step rate over the last `steps_s`, None standing for `seconds`. A rate that reaches back into
        another group is left out.
        """
        began_s = sample.at_s - seconds
        if group != self._group or began_s > self._sampled_at_s + 1e-6:
            self._group, self._since_s = group, began_s
        self._sampled_at_s = sample.at_s
        is_of_group = steps_s is None or 0 < steps_s <= sample.at_s - self._since_s + 1e-6
        is_read = is_of_group and steps_hz is not None and 0 < steps_hz < math.inf
        span_s = (seconds if steps_s is None else steps_s) if is_read else 0.0
        self.add_interval(
            group,
            seconds,
            _finite(sample.smact),
            _finite(sample.smocc),
            _finite(sample.drama),
            (steps_hz or 0.0) * span_s if is_read else 0.0,
            span_s,
        )

    def current(self) -> CoRun | None:
        """The co-run in the group of the newest sample; None if it is too short, or there is no sample."""
        return None if self._group is None else self.co_run(self._group)


def _mean(sums: Sequence[float], measure: int) -> float | None:
    read_s = sums[measure + 1]
    return sums[measure] / read_s if read_s and read_s >= MIN_READ_SHARE * sums[_SECONDS] else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
