"""Runs the jobs of a list one after the other on one GPU, each in its own process."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cotenant.core.errors import CotenantError, UsageError
from cotenant.engines.held_process import HeldProcess, HeldProcessResult
from cotenant.gpus.gpu_sampler import GpuSampler, MeasuredUsage, driver_version
from cotenant.measurement.data_card import write_card
from cotenant.measurement.job_list import JobGroup, JobList, MeasureJob
from cotenant.measurement.result_table import COLUMNS, ResultTable, row_of
from cotenant.osutil.locks import LockHeldError, hold_lock
from cotenant.tracing.process.program import Program, find_program

PROBE = Path(__file__).with_name("probe.py")
LOCK_NAME = ".lock"
HISTORY_ENTRIES = 200_000
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled", "TQDM_DISABLE": "1"}

Say = Callable[[str], None]


class RunTracker(Protocol):
    """Logs runs elsewhere while they go on."""

    def tracking(
        self, group: JobGroup, repeat: int, watch: GpuSampler | None
    ) -> AbstractContextManager[list[dict[str, object]]]:
        """Log a run during a `with` block, which puts the rows of its jobs into the list; must not raise."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSetup:
    """Where and how jobs run.

    Attributes:
        out: folder of the results.
        python: interpreter of the jobs.
        watch: samples the GPU; None without a driver, `no_watch` says why.
        limit_s: wall-clock limit of the whole campaign; None for no limit.
        gpu_name: name of the GPU in tables.
        probe: the program that runs and measures a job; `env` is added to its environment.
        listeners: commands that run beside each group, by name.
        tracker: logs the runs of groups while they go on.
        is_simulated: the GPU is simulated, and so are ways to share it.
    """

    out: Path
    python: str
    watch: GpuSampler | None
    no_watch: str = ""
    limit_s: float | None = None
    gpu_name: str = ""
    probe: Path = PROBE
    env: Mapping[str, str] = field(default_factory=dict)
    listeners: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tracker: RunTracker | None = None
    is_simulated: bool = False

    def tracking(self, group: JobGroup, repeat: int) -> AbstractContextManager[list[dict[str, object]]]:
        """The block in which a run of `group` is logged."""
        return nullcontext([]) if self.tracker is None else self.tracker.tracking(group, repeat, self.watch)

    def plain_env(self) -> dict[str, str]:
        """Environment of a process: ours, offline, with the sampled GPU only."""
        visible = None if self.watch is None else self.watch.visible
        one = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return {**_OFFLINE, **os.environ, **one, **self.env}

    def program(self, job: MeasureJob) -> Program:
        """The program of the job."""
        workdir = str(Path(job.script).parent)
        return find_program(job.command, workdir=workdir, env=os.environ, python=self.python)


def run_campaign(jobs: JobList, setup: CampaignSetup, *, resume: bool, say: Say) -> Iterator[dict[str, object]]:
    """Rows of `DIR/rows.csv` as they are measured; with `resume`, existing rows are skipped.

    All jobs run once before any runs twice. A failed job gets a row, too.

    Raises:
        UsageError: the folder has results and `resume` is False.
    """
    with open_table(setup.out / "rows.csv", COLUMNS, resume=resume) as table:
        done = {(row["job"], int(row["repeat"])) for row in table.rows()}
        driver = driver_version()
        wanted = [
            (job, repeat)
            for repeat in range(1, max(job.repeats for job in jobs.jobs) + 1)
            for job in jobs.jobs
            if repeat <= job.repeats
        ]
        waiting = [(job, repeat) for job, repeat in wanted if (job.name, repeat) not in done]
        began_s = time.monotonic()
        write_card(setup.out, jobs, table.rows(), setup.no_watch)
        try:
            for number, (job, repeat) in enumerate(waiting, start=1):
                left_s = None if setup.limit_s is None else setup.limit_s - (time.monotonic() - began_s)
                if left_s is not None and left_s <= 0:
                    say(f"{len(waiting) - number + 1} runs left at the time limit; continue with `--resume`")
                    return
                row = _measure(job, repeat, setup, driver, left_s)
                if row is None:
                    say(f"stopped {job.name} at the time limit of the campaign; continue with `--resume`")
                    return
                table.add(row)
                yield row
        finally:
            write_card(setup.out, jobs, table.rows(), setup.no_watch)


@contextmanager
def open_table(
    path: Path, columns: Mapping[str, str], *, resume: bool, same: Mapping[str, str] | None = None
) -> Iterator[ResultTable]:
    """The table at `path`, created with its folder if missing; no other process measures into the folder meanwhile.

    `same`: columns in which all rows agree, e.g. the name of the GPU: rows of two are not mixed.

    Raises:
        UsageError: it exists and `resume` is False, it has rows that differ in `same`, or another process measures into
            its folder.
        CotenantError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = hold_lock(path.parent / LOCK_NAME)
    except LockHeldError as error:
        raise UsageError(
            f"process {error.holder} is measuring into `{path.parent}`",
            hint="wait until it ends, or choose another folder with `--out`",
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CotenantError(
            f"cannot write into `{path.parent}`: {reason}", hint="choose another folder with `--out`"
        ) from error
    try:
        if path.exists() and not resume:
            raise UsageError(
                f"`{path}` exists already", hint="continue it with `--resume`, or choose another folder with `--out`"
            )
        table = ResultTable(path, tuple(columns))
        for name, wanted in (same or {}).items():
            others = {row[name] for row in table.rows()} - {wanted}
            if others:
                raise UsageError(
                    f"`{path}` has rows of the {name} `{others.pop()}`, and this is `{wanted}`",
                    hint="choose another folder with `--out`",
                )
        yield table
    finally:
        os.close(lock)


def _measure(
    job: MeasureJob, repeat: int, setup: CampaignSetup, driver: str | None, left_s: float | None
) -> dict[str, object] | None:
    """One run; None if the campaign's time limit ended it."""
    folder = setup.out / job.name
    folder.mkdir(exist_ok=True)
    limit_s = job.limit_s if left_s is None else min(job.limit_s, left_s)
    with setup.watch or nullcontext():
        run = start_job(job, setup, folder, tag=f"run-{repeat}")
        try:
            in_time = run.wait(limit_s)
            end = setup.watch.read() if setup.watch is not None and in_time else None
        finally:
            ended = run.release()
    if not in_time and limit_s < job.limit_s:
        return None
    record = record_of(ended, in_time=in_time, limit_s=limit_s)
    usage = MeasuredUsage() if setup.watch is None else setup.watch.usage(ended.pids, end, window_of(record))
    record.update(
        job=job.name,
        repeat=repeat,
        command=shlex.join(job.command),
        env=dict(job.env),
        at=utc_now(),
        usage=asdict(usage),
        elapsed_s=round(ended.elapsed_s, 3),
    )
    (folder / f"run-{repeat}.json").write_text(json.dumps(record, indent=1) + "\n")
    return row_of(job, repeat, record, usage, driver=driver)


def start_job(
    job: MeasureJob,
    setup: CampaignSetup,
    folder: Path,
    *,
    tag: str,
    env: Mapping[str, str] | None = None,
    barrier: bool = False,
) -> HeldProcess:
    """Start a job under the probe; it writes `tag.answer.json` and `tag.log` in `folder`.

    With a `barrier` it writes `tag.warm` after its warm-up, and waits for `tag.go`.
    """
    program = setup.program(job)
    history = job.history and not barrier
    request = {
        "program": {"kind": program.kind, "target": program.target, "args": list(program.args)},
        "steps": job.steps,
        "warmup_steps": job.warmup_steps,
        "seconds": job.seconds if barrier else None,
        "simulated": job.simulated,
        "barrier": barrier,
        "warm_path": str((folder / f"{tag}.warm").resolve()),
        "go_path": str((folder / f"{tag}.go").resolve()),
        "history_entries": HISTORY_ENTRIES if history else 0,
        "history_path": str((folder / f"{tag}.history.json.gz").resolve()),
        "snapshot_path": str((folder / f"{tag}.snapshot.pickle.gz").resolve()) if job.snapshot else None,
    }
    for name in ("warm_path", "go_path"):
        Path(str(request[name])).unlink(missing_ok=True)
    request_path = (folder / f"{tag}.request.json").resolve()
    request_path.write_text(json.dumps(request))
    answer = (folder / f"{tag}.answer.json").resolve()
    return HeldProcess(
        [program.python, str(setup.probe), str(request_path), str(answer)],
        workdir=str(Path(job.script).parent),
        env={**setup.plain_env(), **job.env, **(env or {})},
        log=folder / f"{tag}.log",
        answer=answer,
    )


def record_of(ended: HeldProcessResult, *, in_time: bool, limit_s: float) -> dict[str, Any]:
    """The answer of a probe; if there is none, the outcome by exit code and log."""
    if ended.answer is not None:
        return ended.answer
    message = ended.failure(in_time=in_time, limit_s=limit_s)
    return {"outcome": "crashed" if in_time else "timeout", "message": message}


def window_of(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """End of the warm-up and end of the last step, in seconds since the epoch."""
    ended = record.get("step_ended_s") or []
    first = max(0, int(record.get("warmup_steps", 1)) - 1)
    return (ended[first], ended[-1]) if len(ended) > first + 1 else None


def default_python() -> str:
    """The interpreter that runs jobs by default: this one."""
    return sys.executable


def utc_now() -> str:
    """Now, as tables write it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
