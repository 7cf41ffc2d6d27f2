"""Measures collocation: step times of jobs alone and of groups of jobs on one GPU, time-sliced, under MPS or on MIG.

All jobs of a group warm up, wait for each other, and then train for the same time. Only steps that begin and end while
all of them train count.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.stats import median
from cotenant.engines.held_process import POLL_S, HeldProcess
from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.campaign import CampaignSetup, Say, open_table, record_of, start_job, utc_now, window_of
from cotenant.measurement.job_list import ALONE, JobGroup, JobList, MeasureJob
from cotenant.measurement.result_table import write_samples
from cotenant.measurement.sharing import open_sharing

COLUMNS: Mapping[str, str] = {
    "group": "names of the jobs, joined by +",
    "sharing": "alone, time-sliced, mps, mps:PERCENT (of the SMs for each job) or mig:PROFILES",
    "repeat": "1 for the first run",
    "position": "of the job in the group, from 1",
    "job": "",
    "partners": "the other jobs, joined by +; empty if alone",
    "outcome": "as of rows.csv",
    "message": "",
    "step_s": "median step time within the overlap",
    "steps_timed": "steps in that median",
    "overlap_s": "time in which all were past their warm-up; alone: in which it was",
    "alone_step_s": "of the job alone, the median of its repeats",
    "slowdown": "step_s / alone_step_s",
    "peak_reserved_bytes": "by torch",
    "peak_process_bytes": "NVML, the job's processes",
    "peak_device_bytes": "NVML, the whole GPU above what was in use before; the same for all of a group",
    "smact": "SM activity of the GPU within the overlap, 0..1; also of the whole group, as all columns below",
    "smocc": "SM occupancy",
    "drama": "DRAM activity",
    "gract": "activity of the graphics engine",
    "tensor": "activity of the tensor cores",
    "fp32": "activity of the FP32 units",
    "power_w": "mean power",
    "energy_j": "energy",
    "gpu": "name; `simulated` before that of a simulated one, empty without a driver",
    "at": "when it ended, UTC",
}
OF_GPU = ("smact", "smocc", "drama", "gract", "tensor", "fp32", "power_w", "energy_j")
DEFAULT_SECONDS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One job of a run, with what its probe wrote and the memory of its processes."""

    job: MeasureJob
    record: Mapping[str, Any]
    peak_process_bytes: int | None = None

    @property
    def window_s(self) -> tuple[float, float] | None:
        """Begin and end of its timed training."""
        return window_of(self.record)


def run_groups(
    jobs: JobList, setup: CampaignSetup, *, table: str, repeats: int = 1, resume: bool, say: Say
) -> Iterator[dict[str, object]]:
    """Rows of `DIR/<table>`: one per job alone, then one per job of each group. Existing runs are skipped.

    A group whose way to share cannot be set up has rows that say why.

    Raises:
        UsageError: the list has no groups, or the folder has results and `resume` is False.
    """
    if not jobs.groups:
        raise UsageError(f"{jobs.path}: no `[[pair]]` and no `[[group]]`", hint='write `[[pair]]`, `jobs = ["a", "b"]`')
    rows = open_table(setup.out / table, COLUMNS, resume=resume)
    by_name = {job.name: job for job in jobs.jobs}
    names = dict.fromkeys(name for group in jobs.groups for name in group.jobs)
    wanted = [*(JobGroup(jobs=(name,), sharing=ALONE) for name in names), *jobs.groups]
    existing = rows.rows()
    done = {(row["group"], row["sharing"], int(row["repeat"])) for row in existing}
    alone: dict[str, list[float]] = {}
    for found in existing:
        if found["sharing"] == ALONE and found["step_s"]:
            alone.setdefault(found["job"], []).append(float(found["step_s"]))
    began_s = time.monotonic()
    for repeat in range(1, repeats + 1):
        for group in wanted:
            if (group.name, group.sharing, repeat) in done:
                continue
            if setup.limit_s is not None and time.monotonic() - began_s >= setup.limit_s:
                say("time limit reached before all groups were run; continue with `--resume`")
                return
            known = {name: median(times) for name, times in alone.items()}
            for row in run_group([by_name[name] for name in group.jobs], group, repeat, setup, known):
                rows.add(row)
                if group.sharing == ALONE and row["step_s"]:
                    alone.setdefault(group.jobs[0], []).append(float(str(row["step_s"])))
                yield row


def run_group(
    jobs: Sequence[MeasureJob], group: JobGroup, repeat: int, setup: CampaignSetup, alone: Mapping[str, float]
) -> list[dict[str, object]]:
    """Run jobs concurrently; one row each."""
    timed = [replace(job, seconds=job.seconds or DEFAULT_SECONDS) for job in jobs]
    try:
        with open_sharing(group, setup) as environments:
            members, overlap, usage = _together(timed, environments, group, repeat, setup)
    except CotenantError as error:
        failed = {"outcome": "not-shared", "message": error.message}
        members, overlap, usage = [GroupMember(job=job, record=failed) for job in timed], None, MeasuredUsage()
    return group_rows(members, group, repeat, overlap, usage, alone, gpu=setup.gpu_name)


def _together(
    jobs: Sequence[MeasureJob],
    environments: Sequence[Mapping[str, str]],
    group: JobGroup,
    repeat: int,
    setup: CampaignSetup,
) -> tuple[list[GroupMember], tuple[float, float] | None, MeasuredUsage]:
    folder = setup.out / group.folder / group.run_folder(repeat)
    folder.mkdir(parents=True, exist_ok=True)
    with setup.watch or nullcontext():
        runs: list[HeldProcess] = []
        try:
            for position, (job, env) in enumerate(zip(jobs, environments, strict=True), start=1):
                runs.append(start_job(job, setup, folder, tag=str(position), env=env))
            start_together(runs, [folder / str(position) for position in range(1, len(runs) + 1)], jobs)
            in_time = [run.wait(job.limit_s) for run, job in zip(runs, jobs, strict=True)]
        finally:
            ended = [run.release() for run in runs]
    records = [
        record_of(end, in_time=ok, limit_s=job.limit_s) for job, end, ok in zip(jobs, ended, in_time, strict=True)
    ]
    for position, record in enumerate(records, start=1):
        (folder / f"{position}.json").write_text(json.dumps(dict(record), indent=1) + "\n")
    overlap = overlap_of([GroupMember(job=job, record=record) for job, record in zip(jobs, records, strict=True)])
    memory: list[int | None] = [None] * len(jobs)
    usage = MeasuredUsage()
    if setup.watch is not None:
        write_samples(folder / "gpu.csv", setup.watch.samples)
        memory = [setup.watch.usage(end.pids, None, None).peak_process_bytes for end in ended]
        usage = setup.watch.usage({pid for end in ended for pid in end.pids}, None, overlap)
    members = [
        GroupMember(job=job, record=record, peak_process_bytes=held)
        for job, record, held in zip(jobs, records, memory, strict=True)
    ]
    return members, overlap, usage


def start_together(runs: Sequence[HeldProcess], tags: Sequence[Path], jobs: Sequence[MeasureJob]) -> None:
    """Wait until every job has warmed up, exited or timed out; then let the waiting ones continue."""
    end_s = time.monotonic() + max(job.limit_s for job in jobs)
    waiting = list(zip(runs, tags, strict=True))
    while waiting and time.monotonic() < end_s:
        waiting = [(run, tag) for run, tag in waiting if not (run.is_ready or tag.with_suffix(".warm").exists())]
        time.sleep(POLL_S)
    for tag in tags:
        tag.with_suffix(".go").touch()


def overlap_of(members: Sequence[GroupMember]) -> tuple[float, float] | None:
    """The interval in which all had warmed up and none had stopped; None if there is none."""
    windows = [member.window_s for member in members]
    known = [window for window in windows if window is not None]
    if len(known) < len(windows):
        return None
    begin_s, end_s = max(window[0] for window in known), min(window[1] for window in known)
    return (begin_s, end_s) if end_s > begin_s else None


def group_rows(
    members: Sequence[GroupMember],
    group: JobGroup,
    repeat: int,
    overlap: tuple[float, float] | None,
    usage: MeasuredUsage,
    alone: Mapping[str, float],
    *,
    gpu: str = "",
) -> list[dict[str, object]]:
    """A row for each job of a run."""
    rows = []
    for position, member in enumerate(members):
        times = step_times_within(member.record, overlap)
        step_s = round(statistics.median(times), 6) if times else None
        before_s = alone.get(member.job.name)
        row: dict[str, object] = {
            **{name: getattr(usage, name) for name in OF_GPU},
            "group": group.name,
            "sharing": group.sharing,
            "repeat": repeat,
            "position": position + 1,
            "job": member.job.name,
            "partners": "+".join(other.job.name for i, other in enumerate(members) if i != position),
            "outcome": member.record.get("outcome"),
            "message": member.record.get("message"),
            "step_s": step_s,
            "steps_timed": len(times),
            "overlap_s": None if overlap is None else round(overlap[1] - overlap[0], 3),
            "alone_step_s": step_s if group.sharing == ALONE else before_s,
            "slowdown": None,
            "peak_reserved_bytes": member.record.get("peak_reserved_bytes"),
            "peak_process_bytes": member.peak_process_bytes,
            "peak_device_bytes": usage.peak_device_bytes,
            "gpu": gpu,
            "at": utc_now(),
        }
        if group.sharing != ALONE and step_s is not None and before_s:
            row["slowdown"] = round(step_s / before_s, 4)
        rows.append({name: row[name] for name in COLUMNS})
    return rows


def step_times_within(record: Mapping[str, Any], window: tuple[float, float] | None) -> list[float]:
    """Durations of the steps that began and ended in `window`."""
    if window is None:
        return []
    ended = [at_s for at_s in record.get("step_ended_s") or () if window[0] <= at_s <= window[1]]
    return [after - before for before, after in pairwise(ended)]


def group_line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    who = row["job"] + (f" with {row['partners']}" if row["partners"] else "")
    if row["step_s"] is None:
        return f"{row['sharing']:<12} {who:<40} {row['outcome']} {row['message'] or ''}".rstrip()
    slower = "" if row["slowdown"] is None else f"  {row['slowdown']:.2f} x alone"
    return f"{row['sharing']:<12} {who:<40} {row['step_s'] * 1000:8.1f} ms/step{slower}"
