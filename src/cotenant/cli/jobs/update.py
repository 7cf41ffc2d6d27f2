"""`cotenant update`: other values for the options of jobs that wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from cotenant.cli.common import Connection, connection_options, jobs_argument, update_jobs
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.options import Option, cli_command, json_option, option_group, parameters_of
from cotenant.cli.slurm_verbs.options import DEPENDENCIES, resolve_dependencies
from cotenant.core.errors import UsageError

_FIXED = "command, folder and environment of a job cannot be changed: cancel it and submit it again"
_HINTS = {
    "array": "its tasks are jobs already: submit another array",
    "estimator": "declare its memory with --gpu-mem, or submit it again",
    "hold": "use `cotenant hold` and `cotenant release`",
}


def refuse_launch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: options of `submit` that come too late are understood, and refused with what to do instead."""
    for field, parameter in parameters_of(LaunchOptions).items():
        if isinstance(parameter, Option):
            parameter.hidden, parameter.expose_value = True, False
            parameter.callback = _refusal(max(parameter.opts, key=len), _HINTS.get(field, _FIXED))
            vars(function).setdefault("__click_params__", []).append(parameter)
    return function


def _refusal(spelling: str, hint: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # noqa: ARG001 (click's signature)
        if value is not None:
            raise UsageError(f"{spelling} of a job cannot be updated", hint=hint)

    return refuse


def without_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: help texts name no defaults, which are those of a submission. What is not given stays as it is."""
    for parameter in vars(function)["__click_params__"]:
        if isinstance(parameter, Option) and parameter.help is not None:
            parameter.help = re.sub(r"\s*\[default: .*?\]", "", parameter.help)
    return function


@cli_command()
@jobs_argument
@without_defaults
@option_group("request", JobRequest)
@json_option
@connection_options
@refuse_launch_options
def command(jobs: Sequence[str], request: JobRequest, *, json: bool, connection: Connection) -> int:
    """Change the request of pending jobs. What is not given stays, as does what they run, where and as which user.

    cotenant update 17 --gpu-mem 12G --time 2:00:00
    cotenant update 17 18 --priority 5
    cotenant update 17 --dependency none --begin none
    """
    fields = request.fields()
    if not fields:
        raise UsageError("nothing to change", hint="see `cotenant update --help`")
    client = connection.client()
    if any(fields.get(name) for name in DEPENDENCIES.values()):
        fields = resolve_dependencies(fields, client.ids)
    return update_jobs(client, jobs, fields, json=json)
