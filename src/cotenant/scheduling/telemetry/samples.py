"""Recent GPU samples and the telemetry of live attempts.

Sample windows are lost at a restart and refill with the next samples; the telemetry of attempts is saved by `state`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cotenant.core.events import AttemptExited, AttemptSample, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample, GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import CoRun, Job, ResourceUsage
from cotenant.scheduling.demand import MAX_IDLE_BYTES
from cotenant.scheduling.overrun import GpuHoldings
from cotenant.scheduling.telemetry.co_run import MIN_CO_RUN_S, CoRunSampler
from cotenant.scheduling.telemetry.usage import UsageMeter

Key = tuple[int, int]
"""Job id and attempt number."""

MAX_SAMPLES = 256
"""Samples per GPU that are retained at most, whatever the length of the window."""

NEAR_END_S = 10.0
"""A sample at most this long before or after an exit counts as near the end."""

WARMUP_S = 15.0
"""Co-runs skip this time after a new resident appears: it loads data and autotunes kernels."""


@dataclass(slots=True)
class _ObservedPeak:
    """Observed memory use of one attempt on one GPU.

    Attributes:
        at_s: time of the first sample that showed it.
        latest_at_s: time of the newest one.
        recent_bytes: the most since `recent_since_s`, which moves on every `NEAR_END_S`; `before_bytes`: the most in
            the `NEAR_END_S` before that.
    """

    at_s: float
    peak_bytes: int
    latest_at_s: float = -math.inf
    recent_since_s: float = -math.inf
    recent_bytes: int = 0
    before_bytes: int = 0

    def add(self, used_bytes: int, at_s: float) -> None:
        """Add what a sample shows."""
        self.peak_bytes = max(self.peak_bytes, used_bytes)
        self.latest_at_s = at_s
        if at_s - self.recent_since_s >= NEAR_END_S:
            is_adjacent = at_s - self.recent_since_s < 2 * NEAR_END_S
            self.before_bytes = self.recent_bytes if is_adjacent else 0
            self.recent_since_s, self.recent_bytes = at_s, used_bytes
        else:
            self.recent_bytes = max(self.recent_bytes, used_bytes)

    def near_bytes(self, at_s: float) -> int:
        """The most that it held in the last `NEAR_END_S` or up to twice as long; 0 where it was seen in no sample."""
        return 0 if abs(at_s - self.latest_at_s) > NEAR_END_S else max(self.recent_bytes, self.before_bytes)


@dataclass(slots=True)
class _Low:
    """The least value since `since_s`, which moves on every window, and in the window before that."""

    since_s: float = -math.inf
    recent_bytes: int = 0
    before_bytes: int = 0

    def add(self, value_bytes: int, at_s: float, window_s: float) -> None:
        if not 0 <= at_s - self.since_s < window_s:
            self.since_s, self.before_bytes, self.recent_bytes = at_s, self.recent_bytes, value_bytes
        else:
            self.recent_bytes = min(self.recent_bytes, value_bytes)

    @property
    def low_bytes(self) -> int:
        """0 before the second window."""
        return min(self.recent_bytes, self.before_bytes)


class Telemetry:
    """A bounded window of samples per GPU, and memory peaks, co-runs and usage per live attempt.

    `pace`: seconds of GPU time per second of the daemon's clock; above 1 on a simulated server. `smact_of`: the solo SM
    activity of a job, if known.

    Attributes:
        gpus: the newest inventory, in display order.
    """

    def __init__(
        self,
        *,
        stale_after_s: float,
        window_s: float,
        pace: float = 1.0,
        smact_of: Callable[[Job], float | None] = lambda _: None,
    ) -> None:
        self._meter = UsageMeter(stale_after_s=stale_after_s, pace=pace, smact_of=smact_of)
        self._pace = pace
        self.gpus: tuple[Gpu, ...] = ()
        self._totals_bytes: dict[str, int] = {}
        self._stale_after_s = stale_after_s
        self._window_s = window_s
        self._windows: dict[str, deque[GpuSample]] = {}
        self._tuples: dict[str, tuple[GpuSample, ...]] = {}
        self._foreign_bytes_by_gpu: dict[str, int | None] = {}
        self._steady_foreign: dict[str, _Low] = {}
        self._seen: dict[Key, dict[str, _ObservedPeak]] = {}
        self._seen_before_end: dict[Key, dict[str, _ObservedPeak]] = {}  # of attempts that ended a moment ago
        self._co_runs: dict[Key, CoRunSampler] = {}

    def add(self, event: ServerSampled, jobs: Mapping[int, Job]) -> None:
        """Add a sample of all GPUs. Memory that no attempt in `jobs` holds on its own GPUs is foreign."""
        self.gpus = event.gpus
        self._totals_bytes = {gpu.uuid: gpu.memory_total_bytes for gpu in event.gpus}
        ours: dict[str, int] = {}
        present: dict[str, list[AttemptSample]] = {}
        for observed in event.observed:
            if observed.used_bytes > 0 and _is_ours(observed, jobs, event.at_s):
                uuid = observed.gpu_uuid
                present.setdefault(uuid, []).append(observed)
                ours[uuid] = ours.get(uuid, 0) + observed.used_bytes
                self._record_peak((observed.job_id, observed.attempt), uuid, observed.used_bytes, event.at_s)
        placed = self._placed(jobs)
        for key, on_gpu in list(self._seen_before_end.items()):
            if not any(peak.near_bytes(event.at_s) for peak in on_gpu.values()):
                del self._seen_before_end[key]
        for gpu in event.gpus:
            sample = event.samples.get(gpu.uuid)
            if sample is not None and self._append(gpu.uuid, sample):
                here = present.get(gpu.uuid, [])
                if here:
                    self._add_co_runs(gpu.uuid, sample, here, jobs)
                foreign_bytes = self._foreign_bytes_by_gpu[gpu.uuid] = _foreign_bytes(
                    sample, gpu, ours.get(gpu.uuid, 0)
                )
                self._steady_foreign.setdefault(gpu.uuid, _Low()).add(foreign_bytes or 0, event.at_s, self._window_s)
                self._meter.note(
                    gpu.uuid,
                    sample,
                    here,
                    jobs,
                    has_foreign=(foreign_bytes or 0) > MAX_IDLE_BYTES,
                    placed=placed.get(gpu.uuid, ()),
                )

    def _placed(self, jobs: Mapping[int, Job]) -> dict[str, list[Key]]:
        """The live attempts by UUID of the GPUs that they are placed on."""
        found: dict[str, list[Key]] = {}
        for job_id, number in self._seen:
            for uuid in jobs[job_id].attempts[number - 1].placement.gpu_uuids:
                found.setdefault(uuid, []).append((job_id, number))
        return found

    def hide_instances(self, gpu_uuid: str) -> None:
        """Take the MIG instances of a GPU out of the inventory, until the next sample shows some."""
        self.gpus = tuple(gpu for gpu in self.gpus if gpu.mig_parent != gpu_uuid)

    def _add_co_runs(self, uuid: str, sample: GpuSample, present: list[AttemptSample], jobs: Mapping[int, Job]) -> None:
        """Add the interval since the last sample to the co-runs of the attempts on this GPU.

        The first GPU of a job stands for all of its GPUs.
        """
        window = self._windows[uuid]
        seconds = sample.at_s - window[-2].at_s if len(window) > 1 else 0.0
        seen = [self._seen.get((observed.job_id, observed.attempt), {}).get(uuid) for observed in present]
        newest_s = max((peak.at_s for peak in seen if peak is not None), default=sample.at_s)
        if not 0 < seconds <= self._stale_after_s or sample.at_s - newest_s < WARMUP_S / self._pace:
            return
        group = tuple(sorted(observed.job_id for observed in present))
        for observed in present:
            if jobs[observed.job_id].attempts[-1].placement.gpu_uuids[0] != uuid:
                continue
            co_runs = self._co_runs.get((observed.job_id, observed.attempt))
            if co_runs is not None:
                co_runs.add_sample(group, seconds, sample, observed.steps_hz, observed.steps_s)
                co_runs.gpu_memory_bytes = self._totals_bytes.get(uuid)

    def _record_peak(self, key: Key, uuid: str, used_bytes: int, at_s: float) -> None:
        on_gpu = self._seen.get(key)
        if on_gpu is None:
            return
        seen = on_gpu.get(uuid)
        if seen is None:
            seen = on_gpu[uuid] = _ObservedPeak(at_s, used_bytes)
        seen.add(used_bytes, at_s)

    def _append(self, uuid: str, sample: GpuSample) -> bool:
        """Append `sample` unless it is out of order; if the clock was set back, the window starts anew."""
        window = self._windows.setdefault(uuid, deque(maxlen=MAX_SAMPLES))
        if window and sample.at_s < window[-1].at_s:
            if window[-1].at_s - sample.at_s <= self._stale_after_s:
                return False
            window.clear()
        window.append(sample)
        while sample.at_s - window[0].at_s > self._window_s:
            window.popleft()
        self._tuples.pop(uuid, None)
        return True

    def watch(self, job_id: int, attempt: int) -> None:
        """Collect telemetry of this attempt until `forget`."""
        self._seen[job_id, attempt] = {}
        self._co_runs[job_id, attempt] = CoRunSampler(job_id, min_s=MIN_CO_RUN_S / self._pace)
        self._meter.watch((job_id, attempt))

    def forget(self, job_id: int, attempt: int) -> None:
        """Drop the telemetry of an attempt that has ended, but what it held a moment ago."""
        seen = self._seen.pop((job_id, attempt), None)
        if seen:
            self._seen_before_end[job_id, attempt] = seen
        self._co_runs.pop((job_id, attempt), None)
        self._meter.forget((job_id, attempt))

    def usage(self, job_id: int, attempt: int) -> ResourceUsage | None:
        """Usage of a live attempt so far; None if no GPU was sampled since it was placed."""
        return self._meter.usage((job_id, attempt))

    def current_co_run(self, job_id: int, attempt: int) -> CoRun | None:
        """The current co-run of a live attempt; None while it is shorter than `MIN_CO_RUN_S`."""
        co_runs = self._co_runs.get((job_id, attempt))
        return co_runs.current() if co_runs is not None else None

    def co_runs(self, job_id: int, attempt: int) -> tuple[CoRun, ...]:
        """The co-runs of a live attempt, longest first."""
        co_runs = self._co_runs.get((job_id, attempt))
        return co_runs.co_runs() if co_runs is not None else ()

    def solo_smact(self, job_id: int, attempt: int) -> float | None:
        """SM activity of the GPU while a live attempt ran alone on it; None if that time is too short."""
        co_runs = self._co_runs.get((job_id, attempt))
        return co_runs.solo_smact() if co_runs is not None else None

    def peaks_bytes(self, job_id: int, attempt: int) -> dict[str, int]:
        """Peak memory of a live attempt in bytes, by UUID of the GPUs where samples showed it."""
        return {uuid: seen.peak_bytes for uuid, seen in self._seen.get((job_id, attempt), {}).items()}

    def first_seen_s(self, job_id: int, attempt: int) -> float | None:
        """When a sample first showed a live attempt on a GPU; None if none has."""
        return min((seen.at_s for seen in self._seen.get((job_id, attempt), {}).values()), default=None)

    def holdings(self, uuid: str, at_s: float, resident_ids: Collection[int]) -> GpuHoldings:
        """What was held on a GPU shortly before `at_s`, where these jobs are placed."""
        return GpuHoldings(
            uuid=uuid,
            total_bytes=self._totals_bytes.get(uuid, 0),
            foreign_bytes=self._steady_foreign.get(uuid, _Low()).low_bytes,
            held_bytes=self._held_near(uuid, at_s),
            resident_ids=resident_ids,
        )

    def _held_near(self, uuid: str, at_s: float) -> dict[Key, int]:
        """The most bytes that each attempt held on a GPU shortly before `at_s`, ended ones included."""
        found = {}
        for key, on_gpu in (*self._seen_before_end.items(), *self._seen.items()):
            held = on_gpu[uuid].near_bytes(at_s) if uuid in on_gpu else 0
            if held:
                found[key] = held
        return found

    def with_telemetry(self, event: AttemptExited, uuids: Iterable[str]) -> AttemptExited:
        """`event` completed from samples: peaks, free memory near the end, co-runs, usage. Values that it has stay."""
        oom = event.exit.oom
        least = self._least_free(uuids, event.at_s)
        if oom.free_bytes is None and least is not None:
            oom = replace(oom, free_bytes=least[0], total_bytes=least[1])
        peaks = {**self.peaks_bytes(event.job_id, event.attempt), **event.peak_observed_bytes}
        noted = self._co_runs.get((event.job_id, event.attempt))
        co_runs = event.co_runs or (noted.co_runs() if noted is not None else ())
        usage = event.usage or self.usage(event.job_id, event.attempt)
        attempt_exit = event.exit if oom is event.exit.oom else replace(event.exit, oom=oom)
        return replace(event, exit=attempt_exit, peak_observed_bytes=peaks, co_runs=co_runs, usage=usage)

    def state(self) -> dict[str, Any]:
        """The telemetry of live attempts as plain values, without the windows of samples."""
        return {
            "seen": [
                [*key, {uuid: [peak.at_s, peak.peak_bytes] for uuid, peak in on_gpu.items()}]
                for key, on_gpu in self._seen.items()
            ],
            "spells": [[*key, co_runs.state()] for key, co_runs in self._co_runs.items()],
            "meter": self._meter.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; attempts that are not watched are skipped.

        Raises:
            ValueError, TypeError, KeyError: `state` did not come from `state()`.
        """
        self._meter.restore(state["meter"])
        for job_id, attempt, on_gpu in state["seen"]:
            if (job_id, attempt) in self._seen:
                seen = {uuid: _ObservedPeak(float(at_s), int(peak)) for uuid, (at_s, peak) in on_gpu.items()}
                self._seen[job_id, attempt] = seen
        for job_id, attempt, saved in state["spells"]:
            co_runs = self._co_runs.get((job_id, attempt))
            if co_runs is not None:
                co_runs.restore(saved)

    def _least_free(self, uuids: Iterable[str], at_s: float) -> tuple[int, int] | None:
        readings = []
        for uuid in uuids:
            total_bytes = self._totals_bytes.get(uuid, -1)  # of a GPU that is gone nothing is plausible
            for sample in reversed(self._windows.get(uuid, ())):
                if at_s - sample.at_s > NEAR_END_S:
                    break  # windows are in order of time, and may have thousands of older samples
                used_bytes = sample.used_bytes
                is_near = abs(at_s - sample.at_s) <= NEAR_END_S  # false of a sample from the future, and of NaN
                if is_near and used_bytes is not None and _is_bytes(used_bytes, total_bytes):
                    readings.append((total_bytes - used_bytes, total_bytes))
        return min(readings, default=None)

    def observed(self, resident: Resident, uuid: str) -> Resident:
        """`resident` with its observed memory on that GPU."""
        seen = self._seen.get((resident.job_id, resident.attempt), {}).get(uuid)
        if seen is None:
            return resident
        return replace(resident, observed_bytes=seen.peak_bytes, first_active_at_s=seen.at_s)

    def snapshot(self, at_s: float, residents: Mapping[str, tuple[Resident, ...]]) -> ServerSnapshot:
        """All GPUs at `at_s`. `foreign_bytes` is None if the newest sample is stale, missing or implausible."""
        gpus = tuple(self.gpu_snapshot(gpu, at_s, residents.get(gpu.uuid, ())) for gpu in self.gpus)
        return ServerSnapshot(at_s=at_s, gpus=gpus)

    def gpu_snapshot(self, gpu: Gpu, at_s: float, residents: tuple[Resident, ...]) -> GpuSnapshot:
        """One GPU of `snapshot`."""
        return GpuSnapshot(
            gpu=gpu,
            samples=self._samples(gpu.uuid),
            residents=residents,
            foreign_bytes=self._fresh_foreign_bytes(gpu.uuid, at_s),
        )

    def fresh_until_s(self) -> float:
        """The time when the first of the newest samples becomes stale; infinite without samples."""
        newest = (self._windows[gpu.uuid][-1].at_s for gpu in self.gpus if self._windows.get(gpu.uuid))
        return min(newest, default=math.inf) + self._stale_after_s

    def latest(self, uuid: str) -> GpuSample | None:
        """The newest sample of a GPU, or None before the first."""
        window = self._windows.get(uuid)
        return window[-1] if window else None

    def _samples(self, uuid: str) -> tuple[GpuSample, ...]:
        found = self._tuples.get(uuid)
        if found is None:
            found = self._tuples[uuid] = tuple(self._windows.get(uuid, ()))
        return found

    def _fresh_foreign_bytes(self, uuid: str, at_s: float) -> int | None:
        window = self._windows.get(uuid)
        # A sample from the future means that the clock was set; it counts as stale. `not <=` is also true of NaN.
        if not window or not abs(at_s - window[-1].at_s) <= self._stale_after_s:
            return None
        return self._foreign_bytes_by_gpu.get(uuid)


def _is_ours(seen: AttemptSample, jobs: Mapping[int, Job], at_s: float) -> bool:
    """Whether the attempt was placed on that GPU and had not ended before the sample.

    A process on a GPU that its job was not given, or one that survives its attempt, is foreign: it has no promise.
    """
    job = jobs.get(seen.job_id)
    if job is None or not 0 < seen.attempt <= len(job.attempts):
        return False
    attempt = job.attempts[seen.attempt - 1]
    over = attempt.ended_at_s is not None and attempt.ended_at_s < at_s
    return seen.gpu_uuid in attempt.placement.gpu_uuids and not over


def _foreign_bytes(sample: GpuSample, gpu: Gpu, ours_bytes: int) -> int | None:
    """Memory of foreign processes. Processes are read after the total, so `ours_bytes` may exceed it: then 0."""
    if not _is_bytes(sample.used_bytes, gpu.memory_total_bytes) or sample.used_bytes is None:
        return None
    return max(0, sample.used_bytes - ours_bytes)


def _is_bytes(value: object, total_bytes: int) -> bool:
    return isinstance(value, int) and 0 <= value <= total_bytes
