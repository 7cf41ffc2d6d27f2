"""Runs the jobs of a group together on one GPU: start barrier, refill, and what they use of the host meanwhile.

All jobs warm up and wait for each other. Whatever ends the run, their processes are gone when it returns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cotenant.engines.held_process import POLL_S, HeldProcess, HeldProcessResult
from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.campaign import CampaignSetup, record_of, start_job, window_of
from cotenant.measurement.interrupts import deferred_signals
from cotenant.measurement.job_list import JobGroup, MeasureJob
from cotenant.measurement.listeners import listening
from cotenant.measurement.result_table import write_samples
from cotenant.osutil.procfs import UsageSample, session_usage

HOST_INTERVAL_S = 0.25
"""Between two readings of /proc for each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One job of a run, with what its probe wrote and what its processes used.

    Attributes:
        host: CPU time and memory of its processes over time.
        run_s: from the end of the start barrier to the end of its last step; None where it has none.
        starts: how often it was started; above 1 with refill.
    """

    job: MeasureJob
    record: Mapping[str, Any]
    peak_process_bytes: int | None = None
    host: tuple[UsageSample, ...] = ()
    run_s: float | None = None
    starts: int = 1

    @property
    def window_s(self) -> tuple[float, float] | None:
        """Begin and end of its timed training."""
        return window_of(self.record)


@dataclass(slots=True, kw_only=True)
class _Place:
    """A place in the group: its job, its first run, and the run that refills it."""

    position: int
    job: MeasureJob
    env: Mapping[str, str]
    run: HeldProcess
    host: list[UsageSample] = field(default_factory=list)
    ended: HeldProcessResult | None = None
    in_time: bool = True
    refill: HeldProcess | None = None
    starts: int = 1


def run_together(
    jobs: Sequence[MeasureJob],
    environments: Sequence[Mapping[str, str]],
    group: JobGroup,
    repeat: int,
    setup: CampaignSetup,
) -> tuple[list[GroupMember], tuple[float, float] | None, MeasuredUsage]:
    """(The jobs in order, the time in which all of them trained, the GPU's usage in that time)."""
    folder = setup.out / group.folder / group.run_folder(repeat)
    folder.mkdir(parents=True, exist_ok=True)
    places: list[_Place] = []
    with setup.watch or nullcontext(), listening(setup.listeners, folder):
        try:
            for position, (job, env) in enumerate(zip(jobs, environments, strict=True), start=1):
                run = start_job(job, setup, folder, tag=str(position), env=env, barrier=True)
                places.append(_Place(position=position, job=job, env=env, run=run))
            go_s = _start_together(places, folder)
            _watch(places, group, setup, folder)
        finally:
            with deferred_signals():
                for place in places:
                    if place.refill is not None:
                        place.refill.release()
                    if place.ended is None:
                        place.ended = place.run.release()
    ended = [place.ended for place in places if place.ended is not None]
    records = [
        record_of(end, in_time=place.in_time, limit_s=place.job.limit_s)
        for place, end in zip(places, ended, strict=True)
    ]
    for place, record in zip(places, records, strict=True):
        (folder / f"{place.position}.json").write_text(json.dumps(dict(record), indent=1) + "\n")
    members = [
        GroupMember(
            job=place.job,
            record=record,
            peak_process_bytes=None
            if setup.watch is None
            else setup.watch.usage(end.pids, None, None).peak_process_bytes,
            host=tuple(place.host),
            run_s=_run_s(record, go_s),
            starts=place.starts,
        )
        for place, record, end in zip(places, records, ended, strict=True)
    ]
    overlap = overlap_of(members)
    usage = MeasuredUsage()
    if setup.watch is not None:
        write_samples(folder / "gpu.csv", setup.watch.samples)
        usage = setup.watch.usage({pid for end in ended for pid in end.pids}, None, overlap)
    return members, overlap, usage


def _start_together(places: Sequence[_Place], folder: Path) -> float:
    """Wait until every job has warmed up, exited or timed out; then let the waiting ones continue. When that was."""
    end_s = time.monotonic() + max(place.job.limit_s for place in places)
    waiting = list(places)
    while waiting and time.monotonic() < end_s:
        waiting = [
            place for place in waiting if not (place.run.is_ready or (folder / f"{place.position}.warm").exists())
        ]
        time.sleep(POLL_S)
    go_s = time.time()
    for place in places:
        (folder / f"{place.position}.go").touch()
    return go_s


def _watch(places: Sequence[_Place], group: JobGroup, setup: CampaignSetup, folder: Path) -> None:
    """Read the host's usage until all first runs have ended; with fixed work, let each go as soon as it is done."""
    next_s = time.monotonic()
    while any(place.ended is None for place in places):
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + HOST_INTERVAL_S
            for place in places:
                if place.ended is None and not place.run.is_ready:
                    place.host.append(session_usage(place.run.process.pid))
        running = [place for place in places if place.ended is None and not _is_over(place)]
        if group.until == "seconds":
            # Each holds its memory until all are done, so that the GPU's memory is that of the whole group.
            if not running:
                for place in places:
                    place.host.append(session_usage(place.run.process.pid))
                return
        else:
            for place in places:
                _let_go(place, group, setup, folder, others_run=any(other is not place for other in running))
        time.sleep(POLL_S)


def _is_over(place: _Place) -> bool:
    """Whether the first run has answered, ended, or is out of time; the last is noted."""
    if place.run.is_ready:
        return True
    place.in_time = not place.run.is_overdue(place.job.limit_s)
    return not place.in_time


def _let_go(place: _Place, group: JobGroup, setup: CampaignSetup, folder: Path, *, others_run: bool) -> None:
    if place.ended is None and _is_over(place):
        place.host.append(session_usage(place.run.process.pid))
        place.ended = place.run.release()
    if place.ended is None or group.until != "refill":
        return
    if place.refill is not None and place.refill.is_ready:
        place.refill.release()
        place.refill = None
    failed = place.ended.answer is None or place.ended.answer.get("outcome") != "ok"
    if place.refill is None and others_run and not failed:
        place.starts += 1
        tag = f"{place.position}-again"
        # `start_job` removes `tag.go`; the new run does not wait for anybody.
        place.refill = start_job(place.job, setup, folder, tag=tag, env=place.env)


def _run_s(record: Mapping[str, Any], go_s: float) -> float | None:
    ended = record.get("step_ended_s") or []
    return ended[-1] - go_s if ended and ended[-1] > go_s else None


def overlap_of(members: Sequence[GroupMember]) -> tuple[float, float] | None:
    """The interval in which all had warmed up and none had stopped; None if there is none."""
    windows = [member.window_s for member in members]
    known = [window for window in windows if window is not None]
    if len(known) < len(windows):
        return None
    begin_s, end_s = max(window[0] for window in known), min(window[1] for window in known)
    return (begin_s, end_s) if end_s > begin_s else None


def host_within(samples: Sequence[UsageSample], window: tuple[float, float] | None) -> tuple[float | None, int | None]:
    """(CPU cores used in the mean, largest resident bytes) within a window; None where no sample is near.

    CPU time is interpolated between samples: a window may be shorter than their distance.
    """
    if window is None or not samples:
        return None, None
    begin_s, end_s = max(window[0], samples[0].at_s), min(window[1], samples[-1].at_s)
    if end_s < begin_s:
        return None, None
    inside = [sample for sample in samples if begin_s <= sample.at_s <= end_s]
    around = inside or [next(sample for sample in samples if sample.at_s >= end_s)]
    rss_bytes = max(sample.rss_bytes for sample in around)
    if end_s == begin_s:
        return None, rss_bytes
    return max(0.0, _cpu_at(samples, end_s) - _cpu_at(samples, begin_s)) / (end_s - begin_s), rss_bytes


def _cpu_at(samples: Sequence[UsageSample], at_s: float) -> float:
    """CPU seconds at a time between the first and the last sample."""
    for before, after in pairwise(samples):
        if before.at_s <= at_s <= after.at_s:
            part = (at_s - before.at_s) / (after.at_s - before.at_s) if after.at_s > before.at_s else 0.0
            return before.cpu_s + part * (after.cpu_s - before.cpu_s)
    return samples[-1].cpu_s
