"""From a command line to the job that the daemon is asked to queue: the options of `submit` and `run`."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cotenant.cli import directives, output_files, slurm_times
from cotenant.cli import job_options as options
from cotenant.cli.job_command import parse_command
from cotenant.cli.output import note
from cotenant.cli.slurm_options import (
    exported_environment,
    parse_dependencies,
    parse_gpus,
    parse_gres,
    parse_option,
    parse_priority,
)
from cotenant.core.errors import UsageError
from cotenant.core.units import parse_bytes, parse_duration

CONTEXT = {"allow_interspersed_args": False}
"""For the commands: what follows the script is the script's, options too."""


def with_job_options(act: Callable[..., Any]) -> Callable[..., Any]:
    """`act`, called with the job that the options describe as its first argument, and with its own options."""
    shared = inspect.signature(build_job, eval_str=True).parameters
    own = list(inspect.signature(act, eval_str=True).parameters.values())[1:]

    @functools.wraps(act)
    def command(**given: Any) -> Any:
        job = build_job(**with_directives({name: given.pop(name) for name in shared}))
        return act(job, **given)

    parameters = [*shared.values(), *own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def with_directives(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with what the script's own lines ask for, where the command line is silent.

    Raises:
        JobFileError: such a line cannot be understood.
    """
    script = Path(given["command"][0])
    if script.suffix not in (".py", ".sh") and not ("/" in given["command"][0] and _is_script(script)):
        return dict(given)
    known = {name: each.annotation for name, each in inspect.signature(build_job, eval_str=True).parameters.items()}
    found = directives.parse_directives(script, directives.directive_options(known))
    for each in found.warnings:
        note(f"warning: {each}")
    return {name: found.values.get(name) if value is None else value for name, value in given.items()}


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def build_job(
    *,
    command: options.Command,
    job_name: options.Name = None,
    gpus: options.Gpus = None,
    gres: options.Gres = None,
    gpu_mem: options.GpuMem = None,
    exclusive: options.Exclusive = None,
    share: options.Share = None,
    slowdown: options.Slowdown = None,
    estimator: options.Estimator = None,
    time: options.Time = None,
    dependency: options.Dependency = None,
    array: options.Array = None,
    begin: options.Begin = None,
    hold: options.Hold = None,
    output: options.Output = None,
    error: options.Error = None,
    chdir: options.Chdir = None,
    nice: options.Nice = None,
    priority: options.Priority = None,
    export: options.Export = None,
    requeue: options.Requeue = None,
    retries: options.Retries = None,
    time_slot: options.TimeSlot = None,
    max_attempts: options.MaxAttempts = None,
    notify: options.Notify = None,
    progress: options.Progress = None,
    rad_memory: options.Rad = None,
) -> dict[str, Any]:
    """The job as the daemon wants it: fields of `JobSpec`, with jobs to wait for as they were written.

    Raises:
        UsageError: something cannot be understood, or the script or command does not exist.
    """
    workdir = _workdir(chdir)
    ahead = parse_priority(nice, priority)
    argv, name, told = parse_command(command, rad_memory or "measured", moved=chdir is not None)
    job = {
        "command": argv,
        "workdir": str(workdir),
        "env": exported_environment(export or "ALL", os.environ),
        "name": job_name or name,
        "estimator": estimator,
        "exclusive": bool(exclusive) or share == "none",
        "share": share if share is not None and share != "none" else "auto",
        "priority": ahead or 0,
        "time_limit_s": parse_option("--time", time, parse_duration),
        "max_slowdown": parse_slowdown(slowdown),
        **parse_dependencies(dependency),
        "begin_at_s": parse_option("--begin", begin, slurm_times.parse_begin_from_now),
        "hold": bool(hold),
        "requeue": bool(requeue),
        "retries": retries or 0,
        "time_slice_s": parse_option("--time-slice", time_slot, parse_duration),
        "notify": notify,
        "progress": progress,
        "max_attempts": max_attempts or 4,
        **_output_paths(output, error, workdir),
        "umask": _umask(),
        **told,
    }
    # What these say is of the job only where they are given: a .rad file may have said it.
    wished = {
        "array": parse_option("--array", array, _array),
        "gpus": parse_gpus(gpus) if gpus is not None else parse_gres(gres),
        "declared_bytes": parse_option("--gpu-mem", gpu_mem, parse_bytes),
    }
    output_files.warn({job["stdout_path"], job["stderr_path"]})
    return job | {field: value for field, value in wished.items() if value is not None}


def _array(text: str) -> dict[str, Any]:
    tasks, limit = slurm_times.parse_array(text)
    return {"tasks": tasks, "limit": limit}


def _workdir(chdir: Path | None) -> Path:
    try:
        workdir = (chdir or Path()).absolute()
    except FileNotFoundError as gone:
        raise UsageError("the folder you are in is gone", hint="cd to one that exists") from gone
    if not workdir.is_dir():
        raise UsageError(f"`{workdir}` is not a folder")
    return workdir


def _umask() -> int:
    found = os.umask(0o077)  # which can only be asked by setting another
    os.umask(found)
    return found


def parse_slowdown(bound: float | None) -> float | None:
    """`bound`, if it can be kept.

    Raises:
        UsageError: it is below 1, or no number.
    """
    if bound is not None and not 1 <= bound < math.inf:
        raise UsageError(
            f"a slowdown of {bound:g} cannot be kept", hint="1 is no slowdown at all, 1.5 half as long again"
        )
    return bound


def _output_paths(output: str | None, error: str | None, workdir: Path) -> dict[str, str | None]:
    stdout = _path(output, workdir)
    return {"stdout_path": stdout, "stderr_path": stdout if error is None else _path(error, workdir)}


def _path(text: str | None, workdir: Path) -> str | None:
    """`text` in `workdir`, whose own name is no pattern."""
    return None if text is None else str(Path(str(workdir).replace("%", "%%")) / text)
