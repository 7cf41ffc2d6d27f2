"""Measures collocation: step times of jobs alone and of groups of jobs on one GPU, time-sliced, under MPS or on MIG.

All jobs of a group warm up, wait for each other, and then train. Only steps that begin and end while all of them train
count for step times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.job import JobSpec
from cotenant.core.stats import mean_of_known, median
from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.campaign import CampaignSetup, Say, open_table, utc_now
from cotenant.measurement.group_run import GroupMember, host_within, run_together
from cotenant.measurement.job_list import ALONE, JobGroup, JobList, MeasureJob
from cotenant.measurement.sharing import open_sharing
from cotenant.scheduling.prediction.workloads import workload_key

OF_GPU: Mapping[str, str] = {
    "smact": "SM activity of the GPU within the overlap, 0..1; also of the whole group, as all columns below",
    "smocc": "SM occupancy",
    "drama": "DRAM activity",
    "gract": "activity of the graphics engine",
    "tensor": "activity of the tensor cores",
    "fp32": "activity of the FP32 units",
    "pcie_tx_bytes_s": "from the GPU over PCIe; no driver reports it by process",
    "pcie_rx_bytes_s": "to the GPU over PCIe",
    "power_w": "mean power",
    "energy_j": "energy",
}
"""Columns of the GPU's own readings."""
COLUMNS: Mapping[str, str] = {
    "group": "names of the jobs, joined by +",
    "sharing": "alone, time-sliced, mps, mps:PERCENT (of the SMs for each job) or mig:PROFILES",
    "until": "seconds, steps (its place stays empty) or refill (it is started again until all have ended once)",
    "repeat": "1 for the first run",
    "position": "of the job in the group, from 1",
    "job": "",
    "workload": "key of the job's command, as the daemon's history has it",
    "partners": "the other jobs, joined by +; empty if alone",
    "outcome": "as of rows.csv; also not-shared (the way to share could not be set up) and interrupted",
    "message": "",
    "step_s": "median step time within the overlap",
    "steps_timed": "steps in that median",
    "epoch_s": "step_s times the job's `epoch_steps`",
    "run_s": "from the end of the start barrier to the end of the last step",
    "steps_run": "steps in that time",
    "starts": "how often it was started; above 1 with refill",
    "overlap_s": "time in which all were past their warm-up; alone: in which it was",
    "alone_step_s": "of the job alone, the median of its repeats",
    "slowdown": "step_s / alone_step_s",
    "host_cpu_cores": "CPU cores that the job's processes used within the overlap, in the mean",
    "host_rss_bytes": "largest resident memory of the job's processes within the overlap",
    "job_energy_j": "the job's part of `energy_j`, by what its steps take alone; in equal parts if not known",
    "peak_reserved_bytes": "by torch",
    "peak_process_bytes": "NVML, the job's processes",
    "peak_device_bytes": "NVML, the whole GPU above what was in use before; the same for all of a group",
    **OF_GPU,
    "gpu_memory_bytes": "of the whole GPU",
    "gpu": "name; `simulated` before that of a simulated one, empty without a driver",
    "at": "when it ended, UTC",
}
DEFAULT_SECONDS = 6.0
INTERRUPTED = "interrupted"
SIMULATED = "simulated"
"""Before the name of a GPU that is none."""


class AloneRun(NamedTuple):
    """A job alone: median step time, and mean power of the GPU (None where it is not read)."""

    step_s: float
    power_w: float | None


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
    with open_table(setup.out / table, COLUMNS, resume=resume, same={"gpu": setup.gpu_name}) as rows:
        by_name = {job.name: job for job in jobs.jobs}
        names = dict.fromkeys(name for group in jobs.groups for name in group.jobs)
        wanted = [*(JobGroup(jobs=(name,), sharing=ALONE) for name in names), *jobs.groups]
        existing = rows.rows()
        done = {
            (row["group"], row["sharing"], row["until"], int(row["repeat"]))
            for row in existing
            if row["outcome"] != INTERRUPTED
        }
        alone: dict[str, list[AloneRun]] = {}
        for found in existing:
            _add_alone(alone, found)
        began_s = time.monotonic()
        for repeat in range(1, repeats + 1):
            for group in wanted:
                if (group.name, group.sharing, group.until, repeat) in done:
                    continue
                if setup.limit_s is not None and time.monotonic() - began_s >= setup.limit_s:
                    say("time limit reached before all groups were run; continue with `--resume`")
                    return
                known = {name: _median_run(runs) for name, runs in alone.items()}
                members = [by_name[name] for name in group.jobs]
                try:
                    with setup.tracking(group, repeat) as tracked:
                        measured = run_group(members, group, repeat, setup, known)
                        tracked.extend(measured)
                except (KeyboardInterrupt, SystemExit):  # the command line raises SystemExit for SIGTERM and SIGHUP
                    failed = {"outcome": INTERRUPTED, "message": "stopped by a signal"}
                    stopped = [GroupMember(job=job, record=failed) for job in members]
                    for row in group_rows(stopped, group, repeat, None, MeasuredUsage(), known, gpu=setup.gpu_name):
                        rows.add(row)
                    raise
                for row in measured:
                    rows.add(row)
                    _add_alone(alone, row)
                    yield row


def _add_alone(alone: dict[str, list[AloneRun]], row: Mapping[str, object]) -> None:
    if row["sharing"] == ALONE and row["step_s"]:
        power_w = float(str(row["power_w"])) if row["power_w"] not in (None, "") else None
        alone.setdefault(str(row["job"]), []).append(AloneRun(float(str(row["step_s"])), power_w))


def _median_run(runs: Sequence[AloneRun]) -> AloneRun:
    return AloneRun(median(run.step_s for run in runs), mean_of_known(run.power_w for run in runs))


def run_group(
    jobs: Sequence[MeasureJob], group: JobGroup, repeat: int, setup: CampaignSetup, alone: Mapping[str, AloneRun]
) -> list[dict[str, object]]:
    """Run jobs concurrently; one row each.

    Raises:
        CotenantError: results cannot be written.
    """
    timed = [_timed(job, group) for job in jobs]
    try:
        with open_sharing(group, setup) as environments:
            members, overlap, usage = run_together(timed, environments, group, repeat, setup)
    except CotenantError as error:
        failed = {"outcome": "not-shared", "message": error.message}
        members, overlap, usage = [GroupMember(job=job, record=failed) for job in timed], None, MeasuredUsage()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CotenantError(
            f"cannot write results in `{setup.out}`: {reason}", hint="make room, then continue with `--resume`"
        ) from error
    gpu_memory_bytes = None if setup.watch is None else setup.watch.gpu.memory_total_bytes
    rows = group_rows(members, group, repeat, overlap, usage, alone, gpu=setup.gpu_name)
    return [{**row, "gpu_memory_bytes": gpu_memory_bytes} for row in rows]


def _timed(job: MeasureJob, group: JobGroup) -> MeasureJob:
    """The job as it runs in the group: the start barrier needs a step before it."""
    seconds = (job.seconds or DEFAULT_SECONDS) if group.until == "seconds" else None
    return replace(job, seconds=seconds, warmup_steps=max(1, job.warmup_steps))


def group_rows(
    members: Sequence[GroupMember],
    group: JobGroup,
    repeat: int,
    overlap: tuple[float, float] | None,
    usage: MeasuredUsage,
    alone: Mapping[str, AloneRun],
    *,
    gpu: str = "",
) -> list[dict[str, object]]:
    """A row for each job of a run."""
    times = [step_times_within(member.record, overlap) for member in members]
    energies = _job_energies(members, times, usage.energy_j, alone)
    return [
        dict.fromkeys(COLUMNS)
        | {
            **{name: getattr(usage, name) for name in OF_GPU},
            **_job_cells(member, times[i], group, overlap, alone.get(member.job.name)),
            "group": group.name,
            "sharing": group.sharing,
            "until": group.until,
            "repeat": repeat,
            "position": i + 1,
            "partners": "+".join(other.job.name for j, other in enumerate(members) if j != i),
            "overlap_s": None if overlap is None else round(overlap[1] - overlap[0], 3),
            "job_energy_j": energies[i],
            "peak_device_bytes": usage.peak_device_bytes,
            "gpu": gpu,
            "at": utc_now(),
        }
        for i, member in enumerate(members)
    ]


def _job_cells(
    member: GroupMember,
    times: Sequence[float],
    group: JobGroup,
    overlap: tuple[float, float] | None,
    alone: AloneRun | None,
) -> dict[str, object]:
    """The columns of one job."""
    job, record = member.job, member.record
    step_s = round(statistics.median(times), 6) if times else None
    slowdown = None
    if group.sharing != ALONE and step_s is not None and alone is not None:
        slowdown = round(step_s / alone.step_s, 4)
    cores, rss_bytes = host_within(member.host, overlap)
    warmup = int(record.get("warmup_steps", job.warmup_steps + 1)) - 1  # the first step after the barrier counts here
    return {
        "job": job.name,
        "workload": _workload(job),
        "outcome": record.get("outcome"),
        "message": record.get("message"),
        "step_s": step_s,
        "steps_timed": len(times),
        "epoch_s": None if step_s is None or job.epoch_steps is None else round(step_s * job.epoch_steps, 3),
        "run_s": None if member.run_s is None else round(member.run_s, 3),
        "steps_run": None if member.run_s is None else len(record.get("step_ended_s") or ()) - warmup,
        "starts": member.starts,
        "alone_step_s": step_s if group.sharing == ALONE else None if alone is None else alone.step_s,
        "slowdown": slowdown,
        "host_cpu_cores": None if cores is None else round(cores, 3),
        "host_rss_bytes": rss_bytes,
        "peak_reserved_bytes": record.get("peak_reserved_bytes"),
        "peak_process_bytes": member.peak_process_bytes,
    }


def _workload(job: MeasureJob) -> str:
    """The key under which the daemon knows the job where it is submitted as `python SCRIPT ARGS`."""
    command, workdir = ("python", job.script, *job.args), str(Path(job.script).parent)
    return workload_key(JobSpec(command=command, workdir=workdir, env={}, user="", uid=0, name=job.name))


def _job_energies(
    members: Sequence[GroupMember],
    times: Sequence[Sequence[float]],
    energy_j: float | None,
    alone: Mapping[str, AloneRun],
) -> list[float | None]:
    """The energy of the overlap, divided in proportion to what the steps of each job take alone.

    No driver reports energy by process; a second of training alone stands for its power alone.
    """
    if energy_j is None:
        return [None] * len(members)
    known = [alone.get(member.job.name) for member in members]
    if all(run is not None and run.power_w is not None for run in known):
        parts = [
            len(ended) * run.step_s * run.power_w
            for ended, run in zip(times, known, strict=True)
            if run is not None and run.power_w is not None
        ]
    else:
        parts = [1.0] * len(members)
    total = sum(parts)
    return [round(energy_j * part / total, 3) if total else None for part in parts]


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
