"""From options to the body of a submission."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from cotenant.cli.jobs.directives import parse_directives
from cotenant.cli.jobs.job_command import parse_command
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.output import note
from cotenant.cli.slurm_verbs.options import exported_environment, parse_dependencies
from cotenant.core.errors import UsageError
from cotenant.engines.slurm_environment import submitted_environment

_Options = TypeVar("_Options", JobRequest, LaunchOptions)

CONTEXT = {"allow_interspersed_args": False}
"""Context settings of a verb that takes a job: all that follows the script is the script's, options too."""

_DEFAULTS: Mapping[str, Any] = {
    "exclusive": False,
    "sharing": "auto",
    "priority": 0,
    "requeue": False,
    "retries": 0,
    "max_attempts": 4,
    "time_limit_s": None,
    "time_slice_s": None,
    "checkpoint_signal": None,
    "checkpoint_grace_s": 120.0,
    "max_slowdown": None,
    "begin_at_s": None,
    "notify": None,
    "progress": None,
    "model_summary": None,
    "batch_size": None,
}
"""Fields of a submission that neither options nor lines of the script set."""


def build_job(request: JobRequest, launch: LaunchOptions) -> dict[str, Any]:
    """Fields of `JobSpec` from the options, the lines in the script, and defaults; dependencies as they were written.

    Raises:
        UsageError: options contradict each other, or the script, the command or the folder does not exist.
        JobFileError: a line in the script is wrong.
    """
    if bool(launch.command) == (launch.wrap is not None):
        missing = "both a script and --wrap given" if launch.command else "`SCRIPT|COMMAND` is missing"
        raise UsageError(missing, hint="name a script or a command, or give --wrap")
    directives = _directives(launch.command[0]) if launch.command else {}
    request, launch = _overlay(request, directives), _overlay(launch, directives)
    workdir = _workdir(launch.chdir)
    words = launch.command or ("sh", "-c", launch.wrap or "")
    argv, name, from_file = parse_command(words, launch.rad_estimate or "measured", moved=launch.chdir is not None)
    slurm_env = launch.slurm_env or "job"
    if slurm_env != "all":
        _warn_of_tasks(launch)
    stdout = _output_path(launch.output, workdir)
    defaults = {
        "name": name if launch.command else "wrap",
        **_DEFAULTS,
        **parse_dependencies(None),
        **from_file,
    }
    fixed = {
        "command": argv,
        "workdir": str(workdir),
        "env": submitted_environment(
            exported_environment(launch.export or "ALL", os.environ),
            slurm_env,
            folder=str(Path().absolute()),
            tasks=launch.ntasks,
            cpus_per_task=launch.cpus_per_task,
        ),
        "slurm_env": slurm_env,
        "estimator": launch.estimator,
        "hold": bool(launch.hold),
        "run_anyway": bool(launch.run_anyway),
        "stdin_path": None if launch.stdin is None else str(workdir / launch.stdin),
        "stdout_path": stdout,
        "stderr_path": stdout if launch.error is None else _output_path(launch.error, workdir),
        "umask": _umask(),
    }
    array = {} if launch.array is None else {"array": launch.array}
    return defaults | request.fields() | fixed | array | _summary_fields(launch, from_file)


def _summary_fields(launch: LaunchOptions, from_file: Mapping[str, Any]) -> dict[str, Any]:
    """`model_summary` and `batch_size` as far as options give them; both count over those of a job file.

    Raises:
        UsageError: there is no such file, or one is given without the other.
    """
    fields: dict[str, Any] = {}
    if launch.model_summary is not None:
        path = launch.model_summary.absolute()
        if not path.is_file():
            raise UsageError(f"`--model-summary`: no such file: `{path}`")
        fields["model_summary"] = str(path)
    if launch.batch_size is not None:
        fields["batch_size"] = launch.batch_size
    found = {**from_file, **fields}
    if fields and found.get("model_summary") is None:
        raise UsageError(
            "`--batch-size` needs `--model-summary`", hint="a script has its batch size among its arguments"
        )
    if fields and found.get("batch_size") is None:
        raise UsageError("`--model-summary` needs `--batch-size`", hint="memory depends on it")
    return fields


def _warn_of_tasks(launch: LaunchOptions) -> None:
    for spelling, count in (("--ntasks", launch.ntasks), ("--cpus-per-task", launch.cpus_per_task)):
        if count is not None and count > 1:
            note(f"warning: `{spelling}={count}` only sets a variable, with --slurm-env all: CPUs are not reserved")


def _directives(script: str) -> dict[str, Any]:
    """Values of options, by field, that lines at the top of the script ask for."""
    path = Path(script)
    if not path.is_file():  # reading a FIFO would wait for its writer; what a command is without a file is found later
        return {}
    if path.suffix not in (".py", ".sh") and not ("/" in script and _has_shebang(path)):
        return {}
    found = parse_directives(path, JobRequest, LaunchOptions)
    for warning in found.warnings:
        note(f"warning: {warning}")
    return dict(found.values)


def _overlay(options: _Options, directives: dict[str, Any]) -> _Options:
    """`options`, with values of `directives` where the command line gave none."""
    names = [field.name for field in dataclasses.fields(options) if getattr(options, field.name) is None]
    return dataclasses.replace(options, **{name: directives[name] for name in names if name in directives})


def _has_shebang(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _workdir(chdir: Path | None) -> Path:
    try:
        workdir = (chdir or Path()).absolute()
    except FileNotFoundError as error:
        raise UsageError("the current folder no longer exists", hint="cd to one that exists") from error
    if not workdir.is_dir():
        raise UsageError(f"`{workdir}` is not a folder")
    return workdir


def _umask() -> int:
    current = os.umask(0o077)  # umask(2) has no call that only reads it
    os.umask(current)
    return current


def _output_path(text: str | None, workdir: Path) -> str | None:
    """`text` in `workdir`, whose own `%` are not marks for the daemon to expand."""
    return None if text is None else str(Path(str(workdir).replace("%", "%%")) / text)
