"""`cotenant submit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cotenant.cli.common import Json, Socket, new_client
from cotenant.cli.job_builder import CONTEXT, with_job_options
from cotenant.cli.output import emit_json, note, print_line
from cotenant.cli.slurm_options import resolve_dependencies
from cotenant.core.units import format_bytes

__all__ = ["CONTEXT", "command"]

Parsable = Annotated[bool, typer.Option("--parsable", help="Print the id of the job and nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and queue nothing.")]


@with_job_options
def command(
    job: dict[str, Any],
    *,
    parsable: Parsable = False,
    dry_run: DryRun = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Queue a job: a script, a command or a .rad file.

    Its GPU memory is estimated before it starts, unless --gpu-mem says it. Options come before the script;
    what follows the script belongs to the script.

      cotenant submit train.py --epochs 3            with the python on your PATH
      cotenant submit -J big --gpus 2 train.py       two GPUs, and a name
      cotenant submit --gpu-mem 12G -t 2:00:00 -- torchrun train.py
      cotenant submit -d afterok:17 evaluate.py      once job 17 has completed
      cotenant submit -a 1-10%2 sweep.py             ten jobs, two at a time
      cotenant submit --dry-run train.py             estimate it; would it start?
      cotenant submit bert.rad                       a job file of CARMA

    Options may stand in the script, in lines `#COTENANT --gpus 2` before its first command; those of `#SBATCH`
    that mean something here count too. The command line wins. $COTENANT_ARRAY_TASK_ID tells tasks of an array apart.

    A .rad file's memory is declared as measured; --rad-estimate chooses another of its figures. Its line
    `conda activate NAME` becomes part of the command, which then runs in a login shell of bash.
    """
    client = new_client(socket)
    views = client.submit([resolve_dependencies(job, client.ids)], dry_run=dry_run)
    view = views[0]
    if json:
        emit_json({"job": view} if len(views) == 1 else {"job": view, "jobs": views})
    elif dry_run:
        _print_preview(view)
    elif parsable:
        print(view["id"])
    elif len(views) > 1:
        tasks = f"{len(views)} tasks, {view['label']} to {views[-1]['label']}"
        print_line(f"submitted array {view['id']} ({view['name']}) of {tasks}")
        note(f"hint: one of them: cotenant show {view['label']}; all: cotenant wait {view['id']}")
    else:
        print_line(f"submitted job {view['id']} ({view['name']}): {view['reason']}")
        note(f"hint: its output: cotenant logs -f {view['id']}; why it waits: cotenant explain {view['id']}")


def _print_preview(view: Mapping[str, Any]) -> None:
    """What would happen, in the shape of `explain`."""
    estimate = view["estimate"]
    if estimate is None:
        print_line(f"memory: not known ({view['estimate_error']})")
    else:
        parts = ", ".join(f"{format_bytes(estimate[f'{part}_bytes'])} {part}" for part in ("device", "margin"))
        print_line(
            f"memory: {format_bytes(estimate['bound_bytes'])} per GPU ({parts}; estimator {estimate['estimator']})"
        )
    if view["decision"] == "start":
        where = ", ".join(str(each) for each in view["gpu_indices"])
        print_line(
            f"would start now on GPU {where} ({view['sharing']}), {format_bytes(view['promised_bytes'])} promised"
        )
        return
    print_line(f"would wait: {view['reason']}")
    for each in view["rejections"]:
        print_line(f"  GPU {each['gpu']}  {each['rule']}  {each['reason']}")
