"""`cotenant pack`: many jobs share the GPUs of one allocation, or of a machine without a daemon."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.jobs.job_builder import build_job
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.options import cli_argument, cli_command, parameters_of
from cotenant.cli.output import emit_json, note, print_line
from cotenant.core.errors import EMPTY_HINT, CotenantError, UsageError
from cotenant.core.units import counted, format_bytes, format_duration, format_energy, parse_duration
from cotenant.jobfiles.sbatch import InvalidWord, SbatchOption, Setting, split_options

if TYPE_CHECKING:
    from cotenant.slurm.installation import SlurmInstallation
    from cotenant.slurm.pack import PackJob, PackResult

_VALUES = ("folder", "margin", "part", "policy", "policy-options", "simulate", "to")
OWN = {
    **{name: SbatchOption(name=name) for name in _VALUES},
    **{name: SbatchOption(name=name, value="none") for name in ("dry-run", "here", "json")},
}
MARGIN = "2:00"
REQUEUE_TIMEOUT_S = 60.0
GRACE_SHARE = 0.75
"""Of the margin, how much a job gets between SIGTERM and SIGKILL."""
DEPENDENCIES = ("after", "after_any", "after_failed", "singleton")


@cli_command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@cli_argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[FILE | -a INDICES SCRIPT [ARGS]... | --wrap COMMAND]",
    help="A file with one job a line; without one it is read from stdin.",
)
@click.option("--json", is_flag=True, help="Print one JSON value instead of text.")
@click.option("--help", "wants_help", is_flag=True, help="Show this message and exit.")
@click.pass_context
def command(ctx: click.Context, words: Sequence[str], *, json: bool, wants_help: bool) -> int:
    """Run a list of jobs that share the GPUs of one allocation of Slurm, or of this machine.

    Each line of the file is what follows `cotenant submit`: a script or a command, after options such as --gpu-mem 8G.
    Empty lines and lines that begin with # are skipped. With -a, the words after the options are one job, an array.
    --wrap is one job as well, or with -a an array, of a command for the shell.

    Where Slurm is installed, pack submits one job to it, with the sbatch options given here (default: --gres=gpu:1).
    Inside an allocation (sbatch, srun, salloc), with --here, or without Slurm, the jobs start at once, under a daemon
    of their own. It uses only the GPUs in CUDA_VISIBLE_DEVICES, and stops after the last job.

    A folder, jobs.pack for jobs.txt, holds the output of the jobs and records which have ended: the same command runs
    the others. --margin before the time limit of the allocation, jobs get SIGTERM to write a checkpoint, and the
    allocation is requeued. Exit code: 0 if all completed, 1 if one failed, 75 if some have not ended.

    Own options:

      --folder DIR                    folder of output and records
      --margin TIME                   before the time limit  [default: 2:00]
      --policy NAME                   as of the daemon; --policy-options NAME=VALUE,...
      --simulate GPUS                 simulated GPUs, e.g. 1xA100-40GB
      --part I/N                      run every N-th job; by default by the tasks of srun
      --to slurm|daemon, --here       submit to Slurm; run here and now
      --dry-run                       print the sbatch command

      cotenant pack jobs.txt
      cotenant pack -t 4:00:00 -p gpu --gres=gpu:2 jobs.txt
      cotenant pack -a 1-20 train.py --seed-from-index
      srun -N 2 --gres=gpu:4 cotenant pack jobs.txt
      ssh host cotenant pack --here jobs.txt
    """
    try:
        settings, end = split_options(words, OWN)
    except InvalidWord as error:
        raise UsageError(error.message, hint="see `cotenant pack --help`") from error
    if wants_help or any(setting.option.name in ("help", "usage") for setting in settings):
        print(ctx.get_help())
        return 0
    own = {setting.option.name: setting.value for setting in settings if setting.option.name in OWN}
    options = [setting for setting in settings if setting.option.name not in OWN]
    text, name = _list_of(options, words[end:])
    options = [setting for setting in options if setting.option.name not in ("array", "wrap")]
    folder = Path(own.get("folder") or f"{name}.pack").absolute()
    jobs = read_jobs(text, folder)
    json = json or "json" in own
    slurm = None if "here" in own or "SLURM_JOB_ID" in os.environ else _slurm(own)
    if slurm is not None:
        return _submit(slurm, options, text, folder, own, json=json)
    if options:
        raise UsageError(
            f"`{options[0]}` is for Slurm, and these jobs start here", hint="leave it out, or write it into the lines"
        )
    return _run(jobs, folder, own, json=json)


def _list_of(options: Sequence[Setting], words: Sequence[str]) -> tuple[str, str]:
    """The list of jobs as text, and its name."""
    given = {setting.option.name: str(setting.value) for setting in options}
    array = ["--array", given["array"]] if "array" in given else []
    if "wrap" in given:
        if words:
            raise UsageError("script arguments are not permitted with --wrap")
        return shlex.join([*array, "--wrap", given["wrap"]]) + "\n", "wrap"
    if array:
        if not words:
            raise UsageError("`--array` needs a script or a command", hint="cotenant pack -a 1-10 train.py")
        return shlex.join([*array, *words]) + "\n", Path(words[0]).stem
    if len(words) > 1:
        raise UsageError(
            f"one list of jobs is taken, found `{words[1]}` after it", hint="options stand before the file"
        )
    if not words or words[0] == "-":
        return sys.stdin.read(), "stdin"
    if not words[0]:
        raise UsageError("the file of jobs has no name", hint=EMPTY_HINT)
    path = Path(words[0])
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape"), path.stem
    except OSError as error:
        raise UsageError(f"unable to open file {path}: {(error.strerror or str(error)).lower()}") from error


def read_jobs(text: str, folder: Path) -> list[PackJob]:
    """The jobs of a list, with their output in `folder` unless they name files.

    Raises:
        UsageError: a line is wrong, or there is none; the message names the line.
    """
    from cotenant.slurm.pack import PackJob
    from cotenant.slurm.pack_progress import read_lines

    jobs = []
    for line in read_lines(text):
        try:
            body = _job_of(shlex.split(line.text))
        except (CotenantError, ValueError) as error:
            message = error.message if isinstance(error, CotenantError) else str(error).lower()
            hint = error.hint if isinstance(error, CotenantError) else None
            raise UsageError(f"line {line.number}: {message}", hint=hint) from error
        is_array = "array" in body
        if body["stdout_path"] is None:
            name = f"{line.number}_%a.out" if is_array else f"{line.number}.out"
            output = f"{str(folder).replace('%', '%%')}/{name}"
            body |= {"stdout_path": output, "stderr_path": body["stderr_path"] or output}
        tasks = tuple(body["array"]["tasks"]) if is_array else (None,)
        jobs.append(PackJob(line=line, body=body, tasks=tasks))
    if not jobs:
        raise UsageError("the list has no jobs", hint="write one job a line, as after `cotenant submit`")
    return jobs


def _job_of(words: Sequence[str]) -> dict[str, Any]:
    """The body of a submission for the words after `cotenant submit`."""
    from cotenant.cli.jobs.submit import submit

    try:
        values = submit.make_context("submit", list(words)).params
    except click.ClickException as error:
        raise UsageError(error.format_message().rstrip(".").replace("'", "`")) from error
    request = JobRequest(**{name: values[name] for name in parameters_of(JobRequest)})
    launch = LaunchOptions(**{name: values[name] for name in parameters_of(LaunchOptions)})
    # In an allocation the job is Slurm's: its variables stay as they are (decision 0064).
    in_allocation = "SLURM_JOB_ID" in os.environ and launch.slurm_env is None
    body = build_job(request, replace(launch, slurm_env="none") if in_allocation else launch)
    if any(body.get(name) for name in DEPENDENCIES):
        raise UsageError("dependencies are not possible in a pack", hint="write two packs, one after the other")
    return body


def _slurm(own: Mapping[str, str | None]) -> SlurmInstallation | None:
    from cotenant.cli.slurm_verbs.target import TARGET_VARIABLE
    from cotenant.slurm.installation import find_installation

    named = own.get("to") or os.environ.get(TARGET_VARIABLE)
    if named not in (None, "", "slurm", "daemon"):
        raise UsageError(f"`--to` must be slurm or daemon, got `{named}`")
    if named == "daemon":
        return None
    try:
        return find_installation()
    except UsageError:
        if named == "slurm":
            raise
        return None


def _submit(
    slurm: SlurmInstallation,
    options: Sequence[Setting],
    text: str,
    folder: Path,
    own: Mapping[str, str | None],
    *,
    json: bool,
) -> int:
    """Submit one job of Slurm that runs the pack."""
    from cotenant.slurm.gpu_request import GPU_OPTIONS
    from cotenant.slurm.installation import literal_path
    from cotenant.slurm.plan import words_of
    from cotenant.slurm.submission import run_sbatch

    given = {setting.option.name for setting in options}
    added = [] if given & set(GPU_OPTIONS) else ["--gres=gpu:1"]
    added += [] if "job-name" in given else [f"--job-name={folder.stem}"]
    added += [] if "output" in given else [f"--output={literal_path(folder)}/slurm-%j.out"]
    added += ["--requeue"] if not given & {"requeue", "no-requeue"} else []
    added += ["--open-mode=append"]
    listed = folder / "jobs.txt"
    again = [f"--{name}={own[name]}" for name in ("margin", "policy", "policy-options", "simulate") if name in own]
    inner = [sys.executable, "-m", "cotenant", "pack", "--here", f"--folder={folder}", *again, str(listed)]
    # The variable says that this pack may requeue its allocation: it is the whole of it.
    wrap = f"COTENANT_PACK_REQUEUES=1 exec {shlex.join(inner)}"
    line = [*added, *(word for setting in options for word in words_of(setting)), f"--wrap={wrap}"]
    if "dry-run" in own:
        shown = shlex.join(["sbatch", *line])
        if json:
            emit_json({"id": None, "line": shown, "folder": str(folder)})
        else:
            print_line(shown)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    listed.write_text(text, encoding="utf-8", errors="surrogateescape")

    def announce(job_id: str) -> None:
        if json:
            emit_json({"id": job_id, "line": shlex.join(["sbatch", *line]), "folder": str(folder)})
        else:
            print_line(f"Submitted batch job {job_id}: output and progress in {folder}")
        sys.stdout.flush()

    return run_sbatch(slurm, line, on_id=announce)[1]


def _run(jobs: Sequence[PackJob], folder: Path, own: Mapping[str, str | None], *, json: bool) -> int:
    """Run the jobs here."""
    from cotenant.slurm.installation import find_installation
    from cotenant.slurm.pack import Pack, allocation_rest, visible_gpus
    from cotenant.slurm.pack_progress import PackProgress
    from cotenant.slurm.private_daemon import PackSettings, PrivateDaemon

    part = _part(own.get("part"))
    mine = jobs[part[0] :: part[1]]
    margin_s = parse_duration(own.get("margin") or MARGIN)
    settings = PackSettings(
        visible=visible_gpus(),
        simulate=own.get("simulate"),
        policy=own.get("policy"),
        policy_options=_policy_options(own.get("policy-options") or ""),
        stop_grace_s=GRACE_SHARE * margin_s,
    )
    if "dry-run" in own:
        gpus = "all GPUs of this machine" if settings.visible is None else f"GPU {settings.visible}"
        print_line(f"{counted(sum(len(job.tasks) for job in mine), 'job')} on {gpus}")
        return 0
    job_id = os.environ.get("SLURM_JOB_ID")
    slurm = None if job_id is None else find_installation()

    def remaining_s() -> float | None:
        return None if slurm is None or job_id is None else allocation_rest(slurm, job_id)

    def started(daemon: PrivateDaemon) -> None:
        gpus = ", ".join(f"{gpu['index']} ({gpu['name']})" for gpu in daemon.client.gpus())
        _note(f"jobs share GPU {gpus}; see them with: cotenant ls --socket {daemon.client.socket_file}")

    progress = PackProgress(folder, part)
    try:
        pack = Pack(
            mine, progress, settings, remaining_s=remaining_s, margin_s=margin_s, report=_report_job, warn=_note
        )
        result = pack.run(started)
    finally:
        progress.close()
    _summarize(result, folder, json=json)
    if result.is_time_over and slurm is not None and job_id is not None and os.environ.get("COTENANT_PACK_REQUEUES"):
        _note(f"job {job_id} is requeued for {counted(result.left, 'job')}")
        if subprocess.run([slurm.program("scontrol"), "requeue", job_id], check=False).returncode == 0:
            # Slurm ends this process. If it ended by itself before, the job could count as failed, and not be requeued.
            time.sleep(REQUEUE_TIMEOUT_S)
    return result.exit_code


def _policy_options(text: str) -> dict[str, str | float]:
    """Options of a policy in `warmup_s=0,max_jobs=4`; the daemon checks their names and values."""
    options: dict[str, str | float] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"`--policy-options` must be NAME=VALUE,..., got `{part}`", hint="e.g. warmup_s=0")
        number = re.fullmatch(r"-?\d{1,15}(\.\d{1,9})?", value)
        options[name] = value if number is None else float(value) if number[1] else int(value)
    return options


def _part(text: str | None) -> tuple[int, int]:
    """Which jobs this process takes: (from 0, of how many)."""
    if text is None:
        under_srun = "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_NTASKS", "1") != "1"
        return (int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])) if under_srun else (0, 1)
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"`--part` must be I/N with I from 1 to N, got `{text}`", hint="e.g. --part 1/3")
    return int(match[1]) - 1, int(match[2])


def _note(text: str) -> None:
    """Say something; an output that a full disk does not take ends no pack."""
    with contextlib.suppress(OSError):
        note(f"pack: {text}")


def _report_job(entry: Mapping[str, Any]) -> None:
    index = "" if entry["index"] is None else f"_{entry['index']}"
    seen = f", {format_bytes(entry['seen_bytes'])} seen" if entry["seen_bytes"] is not None else ""
    _note(f"line {entry['line']}{index} {entry['state']} after {format_duration(entry['running_s'])}{seen}")


def _summarize(result: PackResult, folder: Path, *, json: bool) -> None:
    completed = sum(entry["state"] == "COMPLETED" for entry in result.done)
    energies = [entry["energy_j"] for entry in result.done if entry["energy_j"] is not None]
    energy_j = sum(energies) if energies else None
    if json:
        emit_json(
            {
                "folder": str(folder),
                "before": result.before,
                "completed": completed,
                "failed": len(result.done) - completed,
                "left": result.left,
                "reason": result.why or None,
                "energy_j": energy_j,
                "jobs": result.done,
            }
        )
        return
    print_line(
        f"{completed} completed, {len(result.done) - completed} failed, {result.before} done before, {result.left} left"
        f"{f' ({result.why})' if result.why else ''}; energy {format_energy(energy_j)}; output in {folder}"
    )
