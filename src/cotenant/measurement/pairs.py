"""Measures collocation: step times of jobs alone and of pairs on one GPU, time-sliced or under MPS.

Both jobs of a pair warm up, wait for each other, and then train for the same time. Only steps that begin and end while
both train count.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError, UsageError
from cotenant.engines.held_process import POLL_S, HeldProcess
from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.campaign import CampaignSetup, Say, open_table, record_of, start_job, window_of
from cotenant.measurement.job_list import JobList, MeasureJob

COLUMNS: Mapping[str, str] = {
    "mode": "alone, time-sliced or mps",
    "job": "",
    "partner": "the other job; empty if alone",
    "position": "1 or 2: which of a pair this is",
    "outcome": "as of rows.csv",
    "message": "",
    "step_s": "median step time within the overlap",
    "steps_timed": "steps in that median",
    "overlap_s": "time in which both were past their warm-up; alone: in which it was",
    "alone_step_s": "of the job alone",
    "slowdown": "step_s / alone_step_s",
    "peak_reserved_bytes": "by torch",
    "peak_device_bytes": "NVML, the whole GPU above what was in use before; the same for both of a pair",
    "smact": "NVML GPM SM activity within the overlap",
    "power_w": "within the overlap",
    "energy_j": "within the overlap",
}
DEFAULT_SECONDS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRun:
    """One job of a run."""

    job: MeasureJob
    record: Mapping[str, Any]

    @property
    def window_s(self) -> tuple[float, float] | None:
        """Begin and end of its timed training."""
        return window_of(self.record)


def run_pairs(jobs: JobList, setup: CampaignSetup, *, mps: bool, resume: bool, say: Say) -> Iterator[dict[str, object]]:
    """Rows of `DIR/pairs.csv`: one per job alone, then two per pair. Existing rows are skipped.

    Raises:
        UsageError: the list has no pairs, or the folder has results and `resume` is False.
        CotenantError: MPS cannot be started.
    """
    if not jobs.pairs:
        raise UsageError(f"{jobs.path}: no `[[pair]]`", hint='write `[[pair]]` and `jobs = ["a", "b"]`')
    table = open_table(setup.out / "pairs.csv", COLUMNS, resume=resume)
    mode = "mps" if mps else "time-sliced"
    by_name = {job.name: job for job in jobs.jobs}
    wanted: list[tuple[str, tuple[str, ...]]] = [
        ("alone", (name,)) for name in dict.fromkeys(name for pair in jobs.pairs for name in pair)
    ]
    wanted += [(mode, pair) for pair in jobs.pairs]
    existing = table.rows()
    done = {(row["mode"], row["job"], row["partner"]) for row in existing}
    alone = {row["job"]: float(row["step_s"]) for row in existing if row["mode"] == "alone" and row["step_s"]}
    began_s = time.monotonic()
    with mps_server(setup) if mps else nullcontext(dict[str, str]()) as env:
        for how, names in wanted:
            if (how, names[0], names[1] if len(names) > 1 else "") in done:
                continue
            if setup.limit_s is not None and time.monotonic() - began_s >= setup.limit_s:
                say("time limit reached before all pairs were run; continue with `--resume`")
                return
            for row in _together([by_name[name] for name in names], how, setup, env if how == mode else {}, alone):
                table.add(row)
                if how == "alone" and row["step_s"]:
                    alone[str(row["job"])] = float(str(row["step_s"]))
                yield row


def _together(
    jobs: Sequence[MeasureJob], mode: str, setup: CampaignSetup, env: Mapping[str, str], alone: Mapping[str, float]
) -> list[dict[str, object]]:
    """Run jobs concurrently; one row each."""
    folder = setup.out / ("-with-".join(job.name for job in jobs))
    folder.mkdir(exist_ok=True)
    timed = [replace(job, seconds=job.seconds or DEFAULT_SECONDS) for job in jobs]
    with setup.watch or nullcontext():
        runs: list[HeldProcess] = []
        try:
            for position, job in enumerate(timed, start=1):
                runs.append(start_job(job, setup, folder, tag=f"{mode}-{position}", env=env))
            start_together(runs, [folder / f"{mode}-{position}" for position in range(1, len(runs) + 1)], timed)
            in_time = [run.wait(job.limit_s) for run, job in zip(runs, timed, strict=True)]
        finally:
            ended = [run.release() for run in runs]
    parts = [
        PairRun(job=job, record=record_of(end, in_time=ok, limit_s=job.limit_s))
        for job, end, ok in zip(timed, ended, in_time, strict=True)
    ]
    for position, part in enumerate(parts, start=1):
        (folder / f"{mode}-{position}.json").write_text(json.dumps(dict(part.record), indent=1) + "\n")
    overlap = overlap_of(parts)
    pids = {pid for end in ended for pid in end.pids}
    usage = MeasuredUsage() if setup.watch is None else setup.watch.usage(pids, None, overlap)
    return pair_rows(parts, mode, overlap, usage, alone)


def start_together(runs: Sequence[HeldProcess], tags: Sequence[Path], jobs: Sequence[MeasureJob]) -> None:
    """Wait until every job has warmed up, exited or timed out; then let the waiting ones continue."""
    end_s = time.monotonic() + max(job.limit_s for job in jobs)
    waiting = list(zip(runs, tags, strict=True))
    while waiting and time.monotonic() < end_s:
        waiting = [(run, tag) for run, tag in waiting if not (run.is_ready or tag.with_suffix(".warm").exists())]
        time.sleep(POLL_S)
    for tag in tags:
        tag.with_suffix(".go").touch()


def overlap_of(parts: Sequence[PairRun]) -> tuple[float, float] | None:
    """The interval in which all had warmed up and none had stopped; None if there is none."""
    windows = [part.window_s for part in parts]
    known = [window for window in windows if window is not None]
    if len(known) < len(windows):
        return None
    begin_s, end_s = max(window[0] for window in known), min(window[1] for window in known)
    return (begin_s, end_s) if end_s > begin_s else None


def pair_rows(
    parts: Sequence[PairRun],
    mode: str,
    overlap: tuple[float, float] | None,
    usage: MeasuredUsage,
    alone: Mapping[str, float],
) -> list[dict[str, object]]:
    """A row for each job of a run."""
    rows = []
    for position, part in enumerate(parts):
        times = step_times_within(part.record, overlap)
        step_s = round(statistics.median(times), 6) if times else None
        before_s = alone.get(part.job.name)
        row: dict[str, object] = {
            "mode": mode,
            "job": part.job.name,
            "partner": "" if len(parts) == 1 else parts[1 - position].job.name,
            "position": position + 1,
            "outcome": part.record.get("outcome"),
            "message": part.record.get("message"),
            "step_s": step_s,
            "steps_timed": len(times),
            "overlap_s": None if overlap is None else round(overlap[1] - overlap[0], 3),
            "alone_step_s": step_s if mode == "alone" else before_s,
            "slowdown": None,
            "peak_reserved_bytes": part.record.get("peak_reserved_bytes"),
            "peak_device_bytes": usage.peak_device_bytes,
            "smact": usage.smact,
            "power_w": usage.power_w,
            "energy_j": usage.energy_j,
        }
        if mode != "alone" and step_s is not None and before_s:
            row["slowdown"] = round(step_s / before_s, 4)
        rows.append({name: row[name] for name in COLUMNS})
    return rows


def step_times_within(record: Mapping[str, Any], window: tuple[float, float] | None) -> list[float]:
    """Durations of the steps that began and ended in `window`."""
    if window is None:
        return []
    ended = [at_s for at_s in record.get("step_ended_s") or () if window[0] <= at_s <= window[1]]
    return [after - before for before, after in pairwise(ended)]


def pair_line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    who = row["job"] + (f" with {row['partner']}" if row["partner"] else "")
    if row["step_s"] is None:
        return f"{row['mode']:<12} {who:<40} {row['outcome']} {row['message'] or ''}".rstrip()
    slower = "" if row["slowdown"] is None else f"  {row['slowdown']:.2f} x alone"
    return f"{row['mode']:<12} {who:<40} {row['step_s'] * 1000:8.1f} ms/step{slower}"


@contextlib.contextmanager
def mps_server(setup: CampaignSetup) -> Iterator[dict[str, str]]:
    """A private MPS server for the duration of a `with` block; gives the environment of its clients.

    Raises:
        CotenantError: MPS is not installed, or does not start.
    """
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        raise CotenantError("no `nvidia-cuda-mps-control` on the PATH", hint="leave out `--mps`")
    folder = (setup.out / "mps").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    ours = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    env = {**setup.plain_env(), **ours}
    # The MPS daemon inherits these descriptors: a pipe of ours would never reach its end.
    done = subprocess.run([program, "-d"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise CotenantError(f"`{program} -d` ended with exit code {done.returncode}", hint=f"see `{folder}`")
    try:
        yield ours
    finally:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([program], env=env, input=b"quit\n", stdout=subprocess.DEVNULL, timeout=30, check=False)
