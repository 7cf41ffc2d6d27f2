"""What was read of the GPUs lately, and whose memory it is. Forgotten at a restart; the next sample brings it back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cotenant.core.events import AttemptExited, AttemptSample, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample, GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import CoRun, Job, ResourceUsage
from cotenant.scheduling.demand import MAX_IDLE_BYTES
from cotenant.scheduling.telemetry.co_run import MIN_CO_RUN_S, CoRunSampler
from cotenant.scheduling.telemetry.usage import UsageMeter

Key = tuple[int, int]
"""Job id and attempt number."""

MAX_SAMPLES = 256
NEAR_END_S = 10.0


@dataclass(slots=True)
class _ObservedPeak:
    """What one attempt was seen to hold on one GPU."""

    at_s: float
    peak_bytes: int


WARMUP_S = 15.0
"""What a GPU does in the first seconds of a resident says nothing of the time after: data is loaded, kernels tuned."""


class Telemetry:
    """A bounded window of samples for every GPU, and what was seen of every live attempt.

    `pace`: seconds of the GPUs' time in one of ours; above 1 on a simulated server. `smact_of`: what a job does to a
    GPU alone, if that is known.

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
        self._seen: dict[Key, dict[str, _ObservedPeak]] = {}
        self._co_runs: dict[Key, CoRunSampler] = {}

    def add(self, event: ServerSampled, jobs: Mapping[int, Job]) -> None:
        """Take in a reading. Memory that is not of an attempt of `jobs` on its own GPU is a stranger's."""
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
        for gpu in event.gpus:
            sample = event.samples.get(gpu.uuid)
            if sample is not None and self._append(gpu.uuid, sample):
                here = present.get(gpu.uuid, [])
                if here:
                    self._add_co_runs(gpu.uuid, sample, here, jobs)
                foreign_bytes = self._foreign_bytes_by_gpu[gpu.uuid] = _foreign_bytes(
                    sample, gpu, ours.get(gpu.uuid, 0)
                )
                self._meter.note(gpu.uuid, sample, here, jobs, has_foreign=(foreign_bytes or 0) > MAX_IDLE_BYTES)

    def _add_co_runs(self, uuid: str, sample: GpuSample, present: list[AttemptSample], jobs: Mapping[int, Job]) -> None:
        """Who was there with whom since the last sample, and what the GPU did; a job's first GPU stands for all."""
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
            on_gpu[uuid] = _ObservedPeak(at_s, used_bytes)
        elif used_bytes > seen.peak_bytes:
            seen.peak_bytes = used_bytes

    def _append(self, uuid: str, sample: GpuSample) -> bool:
        """Append `sample` unless it is out of order; a clock that was set back starts the window afresh."""
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
        """Remember what is seen of this attempt until it is forgotten."""
        self._seen[job_id, attempt] = {}
        self._co_runs[job_id, attempt] = CoRunSampler(job_id, min_s=MIN_CO_RUN_S / self._pace)
        self._meter.watch((job_id, attempt))

    def forget(self, job_id: int, attempt: int) -> None:
        """Drop what was seen of an attempt that has ended."""
        self._seen.pop((job_id, attempt), None)
        self._co_runs.pop((job_id, attempt), None)
        self._meter.forget((job_id, attempt))

    def usage(self, job_id: int, attempt: int) -> ResourceUsage | None:
        """What a live attempt has taken so far; None if it was not seen on a GPU."""
        return self._meter.usage((job_id, attempt))

    def current_co_run(self, job_id: int, attempt: int) -> CoRun | None:
        """What a live attempt does in the company that it has now; None until that has lasted for a while."""
        co_runs = self._co_runs.get((job_id, attempt))
        return co_runs.current() if co_runs is not None else None

    def co_runs(self, job_id: int, attempt: int) -> tuple[CoRun, ...]:
        """What a live attempt did in each company, longest first."""
        co_runs = self._co_runs.get((job_id, attempt))
        return co_runs.co_runs() if co_runs is not None else ()

    def solo_smact(self, job_id: int, attempt: int) -> float | None:
        """SM activity of the GPU while a live attempt had it to itself; None if it has not for long enough."""
        co_runs = self._co_runs.get((job_id, attempt))
        return co_runs.solo_smact() if co_runs is not None else None

    def peaks_bytes(self, job_id: int, attempt: int) -> dict[str, int]:
        """Most bytes seen of a live attempt, by GPU UUID; a GPU where it was not seen is absent."""
        return {uuid: seen.peak_bytes for uuid, seen in self._seen.get((job_id, attempt), {}).items()}

    def with_telemetry(self, event: AttemptExited, uuids: Iterable[str]) -> AttemptExited:
        """`event` with what samples showed filled in where it says nothing: peaks, and free memory near the end."""
        oom = event.exit.oom
        least = self._least_free(uuids, event.at_s)
        if oom.free_bytes is None and least is not None:
            oom = replace(oom, free_bytes=least[0], total_bytes=least[1])
        peaks = {**self.peaks_bytes(event.job_id, event.attempt), **event.peak_observed_bytes}
        noted = self._co_runs.get((event.job_id, event.attempt))
        co_runs = event.co_runs or (noted.co_runs() if noted is not None else ())
        usage = event.usage or self.usage(event.job_id, event.attempt)
        return replace(
            event, exit=replace(event.exit, oom=oom), peak_observed_bytes=peaks, co_runs=co_runs, usage=usage
        )

    def state(self) -> dict[str, Any]:
        """What is known of live attempts, as plain values; the windows of samples are not, for they come anew."""
        return {
            "seen": [
                [*key, {uuid: [peak.at_s, peak.peak_bytes] for uuid, peak in on_gpu.items()}]
                for key, on_gpu in self._seen.items()
            ],
            "spells": [[*key, co_runs.state()] for key, co_runs in self._co_runs.items()],
            "meter": self._meter.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state` with the attempts that are watched.

        Raises:
            ValueError, TypeError, KeyError: it is no such state.
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
        totals = self._totals_bytes
        readings = (
            (totals[uuid] - sample.used_bytes, totals[uuid])
            for uuid in uuids
            if uuid in totals
            for sample in self._windows.get(uuid, ())
            if _is_bytes(sample.used_bytes, totals[uuid]) and abs(at_s - sample.at_s) <= NEAR_END_S
            if sample.used_bytes is not None
        )
        return min(readings, default=None)

    def observed(self, resident: Resident, uuid: str) -> Resident:
        """`resident` with what was observed of it on that GPU."""
        seen = self._seen.get((resident.job_id, resident.attempt), {}).get(uuid)
        if seen is None:
            return resident
        return replace(resident, observed_bytes=seen.peak_bytes, first_active_at_s=seen.at_s)

    def snapshot(self, at_s: float, residents: Mapping[str, tuple[Resident, ...]]) -> ServerSnapshot:
        """All GPUs at `at_s`. Strangers' use is None where the newest sample is stale, absent or nonsense."""
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
        """When the first of the readings that are in use now goes stale; infinite if there is none."""
        newest = (self._windows[gpu.uuid][-1].at_s for gpu in self.gpus if self._windows.get(gpu.uuid))
        return min(newest, default=math.inf) + self._stale_after_s

    def _samples(self, uuid: str) -> tuple[GpuSample, ...]:
        found = self._tuples.get(uuid)
        if found is None:
            found = self._tuples[uuid] = tuple(self._windows.get(uuid, ()))
        return found

    def _fresh_foreign_bytes(self, uuid: str, at_s: float) -> int | None:
        window = self._windows.get(uuid)
        # A sample from the future means a clock was set: no better than an old one. Written so that NaN fails.
        if not window or not abs(at_s - window[-1].at_s) <= self._stale_after_s:
            return None
        return self._foreign_bytes_by_gpu.get(uuid)


def _is_ours(seen: AttemptSample, jobs: Mapping[int, Job], at_s: float) -> bool:
    """Whether the attempt was placed on that GPU and had not ended before the sample.

    A job that strayed from its GPU, or a process that outlived its attempt, is a stranger: nothing is promised to it.
    """
    job = jobs.get(seen.job_id)
    if job is None or not 0 < seen.attempt <= len(job.attempts):
        return False
    attempt = job.attempts[seen.attempt - 1]
    over = attempt.ended_at_s is not None and attempt.ended_at_s < at_s
    return seen.gpu_uuid in attempt.placement.gpu_uuids and not over


def _foreign_bytes(sample: GpuSample, gpu: Gpu, ours_bytes: int) -> int | None:
    """Bytes of others. Processes are read a moment after the total, so ours may exceed it a little: then 0."""
    if not _is_bytes(sample.used_bytes, gpu.memory_total_bytes) or sample.used_bytes is None:
        return None
    return max(0, sample.used_bytes - ours_bytes)


def _is_bytes(value: object, total_bytes: int) -> bool:
    return isinstance(value, int) and 0 <= value <= total_bytes
