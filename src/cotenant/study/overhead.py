"""What monitoring costs a training job: `cotenant study overhead`.

Source: thesis, section 3.3.3, table 3.2 and figures 3.2 to 3.4; PMDLT (EuroMLSys 2023). There every tool ran once after
the other; here the tools of a repeat run in random order, and a tool is compared with the run without one of the same
repeat, so that a machine that warms up or is busy for a while does not decide.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from cotenant.core import stats
from cotenant.core.errors import CotenantError, UsageError
from cotenant.gpus.gpu_sampler import GpuSampler, MeasuredUsage
from cotenant.measurement.campaign import open_table, utc_now
from cotenant.measurement.result_table import write_samples
from cotenant.study.process_usage import SessionProcess
from cotenant.study.tools import MONITORING_TOOLS, NO_TOOL, MonitoringTool, Run, run_environment

JOBS_FOLDER = Path(__file__).parent / "jobs"
SAMPLE_INTERVAL_S = 0.5
"""Between two readings of /proc; the reading process is the same for every tool."""
TOOL_START_S = 1.0
"""A tool beside the job that is ready runs this long before the job starts, so that its start is not in an epoch."""
TOOL_READY_S = 30.0
TOOL_STOP_S = 30.0
EPOCHS_VARIABLE = "COTENANT_STUDY_EPOCHS"

GPU_METRICS = ("smact", "smocc", "drama", "power_w")
GPU_INTERVAL_S = 1.0
"""Between two readings of the GPU, for every tool alike: as far apart as those of the tools."""

COLUMNS: Mapping[str, str] = {
    "job": "name of the job",
    "tool": "name of the monitoring tool; `none` for the job alone",
    "repeat": "1 for the first round of all tools",
    "outcome": "ok, failed (how in `message`), timeout, or missing (the tool is not on this machine)",
    "message": "",
    "epochs": "recorded epochs; 0 if the script records none",
    "epoch_s": "median seconds per epoch after the first; without epochs, of the whole run",
    "run_s": "from the job's start to its end, and a tool around it",
    "after_s": "from the end of the last epoch to the end of job and tool: reports that the tool writes",
    "output_bytes": "files that the tool wrote",
    "cpu_s": "CPU seconds of the job, with a tool around it",
    "tool_cpu_s": "CPU seconds of a tool beside the job",
    "peak_rss_bytes": "largest resident memory of the job's processes, with a tool around it",
    "tool_peak_rss_bytes": "the same of a tool beside the job",
    **dict.fromkeys(GPU_METRICS, "mean of the GPU from the first epoch to the last; empty on a CPU"),
    "device": "cpu, or the GPU's name",
    "at": "when it ended, UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """A job of the study: the command runs in the job's Python.

    Attributes:
        args: arguments of the script. timeout_s: a run that takes longer is killed.
    """

    name: str
    script: str
    args: tuple[str, ...] = ()
    timeout_s: float = 3600.0


def light_job(device: str, *, epochs: int) -> StudyJob:
    """The CNN on MNIST; on a CPU an epoch is a tenth as long."""
    images = "6000" if device == "cpu" else "60000"
    args = ("--epochs", str(epochs), "--images", images, "--device", device)
    return StudyJob(name="light", script=str(JOBS_FOLDER / "mnist_cnn.py"), args=args)


def heavy_job(device: str, *, epochs: int) -> StudyJob:
    """ResNet-50 on images of 224 pixels; an epoch is 1,000 batches of 32 on a GPU, two of 8 on a CPU."""
    size = ("--batches", "2", "--batch-size", "8") if device == "cpu" else ("--batches", "1000", "--batch-size", "32")
    args = ("--epochs", str(epochs), *size, "--device", device)
    return StudyJob(name="heavy", script=str(JOBS_FOLDER / "resnet.py"), args=args)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadStudy:
    """What to run.

    Attributes:
        out: folder of the results. python: interpreter of the jobs.
        tools: names in `MONITORING_TOOLS`; `none` is always among them.
        device: as the rows say it.
        watch: samples the GPU that jobs train on; None on a CPU.
        seed: of the order of the tools within a repeat.
        limit_s: no run begins later than this after the start; None for no limit.
    """

    out: Path
    python: str
    jobs: tuple[StudyJob, ...]
    tools: tuple[str, ...]
    repeats: int
    device: str
    watch: GpuSampler | None = None
    seed: int = 0
    limit_s: float | None = None

    def order(self, job: StudyJob, repeat: int) -> list[str]:
        """Tools in the order in which they run in a repeat."""
        names = list(dict.fromkeys((NO_TOOL, *self.tools)))
        random.Random(f"{self.seed} {job.name} {repeat}").shuffle(names)  # noqa: S311 (no secret)
        return names


def run_overhead(study: OverheadStudy, *, resume: bool, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Rows of `DIR/overhead.csv` as they are measured; existing ones are skipped with `resume`.

    A tool that is not on this machine has one row, which says so. Each job runs once before the first repeat, without a
    row, to fill caches. Every job runs under every tool once before any runs twice, so that a time limit leaves whole
    repeats.

    Raises:
        UsageError: the folder has results and `resume` is False, or a tool is not known.
        CotenantError: the job cannot be started, or fails in the run before the first repeat.
    """
    tools = {name: MONITORING_TOOLS.get(name) for name in study.order(study.jobs[0], 1)}
    with open_table(study.out / "overhead.csv", COLUMNS, resume=resume, same={"device": study.device}) as table:
        done = {(row["job"], row["tool"], row["repeat"]) for row in table.rows()}
        missing = {name: tool.missing() for name, tool in tools.items() if tool.missing()}
        for job in study.jobs:
            for name, reason in missing.items():
                if (job.name, name, "1") not in done:
                    row = _row(job, name, 1, study, outcome="missing", message=reason)
                    table.add(row)
                    yield row
        waiting = [
            (job, name, repeat)
            for repeat in range(1, study.repeats + 1)
            for job in study.jobs
            for name in study.order(job, repeat)
            if name not in missing and (job.name, name, str(repeat)) not in done
        ]
        began_s = time.monotonic()
        for job in dict.fromkeys(job for job, _, _ in waiting):
            say(f"{job.name}: one run to fill caches, then {sum(found is job for found, _, _ in waiting)} runs")
            first = _measure(job, NO_TOOL, tools[NO_TOOL], 0, study)
            if first["outcome"] == "failed":
                log = study.out / job.name / f"{NO_TOOL}-0" / "job.log"
                raise CotenantError(f"`{job.name}` fails without a tool, {first['message']}", hint=f"see `{log}`")
        for number, (job, name, repeat) in enumerate(waiting):
            if study.limit_s is not None and time.monotonic() - began_s >= study.limit_s:
                say(f"{len(waiting) - number} runs left at the time limit; continue with `--resume`")
                return
            row = _measure(job, name, tools[name], repeat, study)
            table.add(row)
            yield row


def _measure(job: StudyJob, name: str, tool: MonitoringTool, repeat: int, study: OverheadStudy) -> dict[str, object]:
    folder = (study.out / job.name / f"{name}-{repeat}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp(prefix="ct-"))
    epochs_path = folder / "epochs.jsonl"
    run = Run(folder=folder, job=(study.python, job.script, *job.args), scratch=scratch)
    env = {**run_environment(), EPOCHS_VARIABLE: str(epochs_path)}
    workdir = str(Path(job.script).parent)
    command = tool.command(run)
    beside = None if tool.around else SessionProcess(command, env, str(folder), folder / "tool.out")
    training = SessionProcess(command if tool.around else run.job, env, workdir, folder / "job.log")
    try:
        if beside is not None:
            beside.start()
            _wait_until_ready(tool, run, beside)
            time.sleep(TOOL_START_S)
        with study.watch or nullcontext():
            training.start()
            in_time = _watch(training, beside, job.timeout_s)
        died = beside is not None and beside.poll() is not None
    finally:
        training.stop(0.0)
        if beside is not None:
            beside.stop(TOOL_STOP_S)
        shutil.rmtree(scratch, ignore_errors=True)
    ended_s = max(process.ended_s or 0.0 for process in (training, beside) if process is not None)
    outcome, message = "ok", ""
    if not in_time:
        outcome, message = "timeout", f"stopped after {job.timeout_s:g} s"
    elif training.code:
        outcome, message = "failed", f"exit code {training.code}: {_last_line(folder / 'job.log')}"
    elif died:
        outcome, message = "failed", f"the tool ended early: {_last_line(folder / 'tool.out')}"
    elif tool.job_failure is not None and (failure := tool.job_failure(run)):
        outcome, message = "failed", failure
    epochs = read_epochs(epochs_path)
    run_s = (training.ended_s or ended_s) - training.began_s
    times = [ended - began for began, ended in epochs]
    _write_samples(folder / "samples.csv", training, beside)
    gpu = MeasuredUsage()
    if study.watch is not None:
        write_samples(folder / "gpu.csv", study.watch.samples)
        gpu = study.watch.usage((), None, (epochs[0][0], epochs[-1][1]) if epochs else None)
    return _row(
        job, name, repeat, study,
        outcome=outcome,
        message=message,
        epochs=len(epochs),
        epoch_s=round(stats.median(times[1:] or times), 6) if times else round(run_s, 6),
        run_s=round(run_s, 3),
        after_s=round(ended_s - epochs[-1][1], 3) if epochs else None,
        output_bytes=output_bytes(folder),
        cpu_s=round(training.cpu_s, 3),
        tool_cpu_s=None if beside is None else round(beside.cpu_s, 3),
        peak_rss_bytes=training.peak_rss_bytes,
        tool_peak_rss_bytes=None if beside is None else beside.peak_rss_bytes,
        **{name: getattr(gpu, name) for name in GPU_METRICS},
    )  # fmt: skip


def _wait_until_ready(tool: MonitoringTool, run: Run, beside: SessionProcess) -> None:
    """Wait until the tool has started up, at most `TOOL_READY_S`, or has ended."""
    end_s = time.monotonic() + TOOL_READY_S
    while tool.is_ready is not None and not tool.is_ready(run) and beside.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)


def _row(job: StudyJob, tool: str, repeat: int, study: OverheadStudy, **values: object) -> dict[str, object]:
    known = {"job": job.name, "tool": tool, "repeat": repeat, "device": study.device, "at": utc_now(), **values}
    return {name: known.get(name) for name in COLUMNS}


def _watch(training: SessionProcess, beside: SessionProcess | None, timeout_s: float) -> bool:
    """Sample until the job ends; whether it did in time."""
    limit_s = time.monotonic() + timeout_s
    next_s = time.monotonic()
    while training.poll() is None:
        now_s = time.monotonic()
        if now_s >= limit_s:
            return False
        if now_s >= next_s:
            training.sample()
            if beside is not None:
                beside.sample()
            next_s = now_s + SAMPLE_INTERVAL_S
        time.sleep(0.02)
    if beside is not None:
        beside.sample()
    return True


def read_epochs(path: Path) -> list[tuple[float, float]]:
    """Begin and end of the epochs that a script recorded; lines that are not such records are skipped."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            began_s, ended_s = float(record["began_s"]), float(record["ended_s"])
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            continue
        if 0.0 <= began_s < ended_s < float("inf"):
            found.append((began_s, ended_s))
    return found


OURS = frozenset({"epochs.jsonl", "gpu.csv", "job.log", "samples.csv"})
"""Files of a run that the study writes, not the tool."""


def output_bytes(folder: Path) -> int:
    """Bytes of the tool's files in the folder of a run."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.parent != folder or path.name not in OURS)


def _write_samples(path: Path, training: SessionProcess, beside: SessionProcess | None) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("process", "at_s", "cpu_s", "rss_bytes"))
        for name, process in (("job", training), ("tool", beside)):
            for sample in () if process is None else process.samples:
                writer.writerow(
                    (name, f"{sample.at_s - training.began_s:.3f}", f"{sample.cpu_s:.2f}", sample.rss_bytes)
                )


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no output"


SHIPPED: Mapping[str, Callable[..., StudyJob]] = {"light": light_job, "heavy": heavy_job}


def resolve_jobs(names: Sequence[str], command: Sequence[str], *, device: str, epochs: int) -> tuple[StudyJob, ...]:
    """The shipped jobs of these names and the script of `command`, with its arguments; all shipped ones without either.

    Raises:
        UsageError: there is no such job or script, or it has the name of a shipped job.
    """
    for name in names:
        if name not in SHIPPED:
            raise UsageError(f"no job `{name}`", hint=f"shipped are {', '.join(SHIPPED)}; a script is an argument")
    wanted = dict.fromkeys(names) if names or command else dict.fromkeys(SHIPPED)
    jobs = [SHIPPED[name](device, epochs=epochs) for name in wanted]
    if command:
        script = Path(command[0])
        if not script.is_file():
            raise UsageError(f"no script `{script}`", hint="options of the study stand before the script")
        if script.stem in SHIPPED:
            raise UsageError(f"`{script}` has the name of a shipped job", hint="results are stored by name; rename it")
        jobs.append(StudyJob(name=script.stem, script=str(script.resolve()), args=tuple(command[1:])))
    return tuple(jobs)
