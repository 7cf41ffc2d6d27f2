"""`cotenant submit` and `cotenant run`: queue a job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from cotenant.cli import output_files
from cotenant.cli.common import Connection, connection_options
from cotenant.cli.jobs.job_builder import CONTEXT, build_job
from cotenant.cli.jobs.job_details import print_rejections
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.jobs.job_output import report_end, stream_output
from cotenant.cli.jobs.stdin_relay import StdinRelay
from cotenant.cli.options import cli_command, cli_option, json_option, option_group
from cotenant.cli.output import emit_json, hint, note, print_line
from cotenant.cli.slurm_verbs.options import resolve_dependencies
from cotenant.cli.slurm_verbs.sbatch_options import accept_sbatch_options
from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.units import format_bytes
from cotenant.daemon.client import Client


@accept_sbatch_options
@cli_command(context_settings=CONTEXT)
@option_group("request", JobRequest)
@option_group("launch", LaunchOptions)
@cli_option("--parsable", is_flag=True, help="Print the id of the job and nothing else.")
@cli_option("--dry-run", is_flag=True, help="Show the decision and the estimate; queue nothing.")
@json_option
@connection_options
def submit(
    request: JobRequest, launch: LaunchOptions, *, parsable: bool, dry_run: bool, json: bool, connection: Connection
) -> None:
    """Queue a job: a script, a command or a .rad file.

    Its GPU memory is estimated before it starts, unless --gpu-mem declares it. Options come before the script;
    what follows the script belongs to the script.

      cotenant submit train.py --epochs 3            with the python on your PATH
      cotenant submit -J big --gpus 2 train.py       two GPUs, and a name
      cotenant submit --gpu-mem 12G -t 2:00:00 -- torchrun train.py
      cotenant submit -d afterok:17 evaluate.py      once job 17 has completed
      cotenant submit -a 1-10%2 sweep.py             ten jobs, two at a time
      cotenant submit --dry-run train.py             estimate it; would it start?
      cotenant submit bert.rad                       a job file of CARMA

    Its output goes to `cotenant-%j.out` in its folder (%j is its id; arrays: `cotenant-%A_%a.out`), unless -o names
    another file; `cotenant logs` prints it, too.

    Options may stand in the script, in lines `#COTENANT --gpus 2` before its first command; `#SBATCH` options that have
    a meaning here count too. The command line wins. $COTENANT_ARRAY_TASK_ID holds the index of a task of an array.

    The memory of a .rad file is declared as measured; --rad-estimate selects another of its figures. Its line
    `conda activate NAME` becomes part of the command, which then runs in a login shell of bash.
    """
    job = _described(request, launch, connection)
    if not connection.is_remote:
        job |= output_files.default(job)
    client = connection.client()
    views = client.submit([resolve_dependencies(job, client.ids)], dry_run=dry_run)
    view = views[0]
    from cotenant.cli.jobs.checkpoint_advice import habit_view  # reads Python, which other verbs need not load

    habit = None if parsable else habit_view(job, is_remote=connection.is_remote)
    if json:
        emit_json({"job": view, **({} if len(views) == 1 else {"jobs": views}), "checkpoints": habit})
    elif dry_run:
        _print_preview(view)
    elif parsable:
        print(view["id"])
    elif len(views) > 1:
        tasks = f"{len(views)} tasks, {view['label']} to {views[-1]['label']}"
        print_line(f"submitted array {view['id']} ({view['name']}) of {tasks}")
        hint(f"one task: cotenant show {view['label']}; all: cotenant wait {view['id']}")
    else:
        print_line(f"submitted job {view['id']} ({view['name']}): {view['reason']}")
        hint(f"output: cotenant logs -f {view['id']}; why it waits: cotenant explain {view['id']}")
    if habit is not None and habit["advice"] is not None and not json:
        hint(habit["advice"])


@accept_sbatch_options
@cli_command(context_settings=CONTEXT)
@option_group("request", JobRequest)
@option_group("launch", LaunchOptions)
@json_option
@connection_options
def run(request: JobRequest, launch: LaunchOptions, *, json: bool, connection: Connection) -> int:
    """Submit a job, stream its output, and exit with its exit code.

    The exit code is the job's own; 124 if it reached its time limit, 128 + N if signal N ended it. Ctrl-C cancels
    the job. The options are those of `submit`. With --json the job's output goes to stderr. The job reads the stdin of
    this command, from a pipe or a file, unless the daemon is on another machine; each attempt reads it from the start.

      cotenant run train.py --epochs 3
      cotenant run --gpu-mem 8G -t 30 -- python -m train
    """
    job = _described(request, launch, connection)
    if "array" in job:
        raise UsageError("`run` streams one output, and an array has several", hint="submit it, then: cotenant wait ID")
    client = connection.client()
    with StdinRelay(0) as relay:
        if not connection.is_remote and job["stdin_path"] is None:
            job["stdin_path"] = relay.path
        view = client.submit([resolve_dependencies(job, client.ids)])[0]
        job_id = view["id"]
        try:
            note(f"job {job_id}: {view['reason']}")
            view = stream_output(client, job_id, sys.stderr.buffer if json else sys.stdout.buffer)
        except (KeyboardInterrupt, BrokenPipeError):
            note(f"job {job_id}: {_cancel(client, job_id)}")
            raise
    return report_end(view, json=json)


def _described(request: JobRequest, launch: LaunchOptions, connection: Connection) -> dict[str, Any]:
    """The job; with warnings about its output files if the daemon is on this machine."""
    job = build_job(request, launch)
    if not connection.is_remote:
        output_files.warn({job["stdout_path"], job["stderr_path"]})
    return job


def _cancel(client: Client, job_id: int) -> str:
    """Cancel the job; the result as text."""
    try:
        client.cancel(job_id)
    except CotenantError as error:
        return f"could not be cancelled: {error.message}"
    return "cancelled"


def _print_preview(view: Mapping[str, Any]) -> None:
    """The decision and the estimate, in the shape of `explain`."""
    estimate = view["estimate"]
    if estimate is None:
        print_line(f"memory: unknown ({view['estimate_error']})")
    else:
        parts = ", ".join(f"{format_bytes(estimate[f'{part}_bytes'])} {part}" for part in ("device", "margin"))
        print_line(
            f"memory: {format_bytes(estimate['bound_bytes'])} per GPU ({parts}; estimator {estimate['estimator']})"
        )
    if view["decision"] == "start":
        where = ", ".join(map(str, view["gpu_indices"]))
        promised = format_bytes(view["promised_bytes"])
        print_line(f"would start now on GPU {where} ({view['sharing']}), {promised} promised")
        return
    print_line(f"would wait: {view['reason']}")
    print_rejections(view["rejections"])
