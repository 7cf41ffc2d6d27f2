"""`cotenant sbatch`: queues a batch script with sbatch's own command line, its header and its answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import cotenant
from cotenant.cli.common import Connection
from cotenant.cli.jobs.directives import parse_directive_text
from cotenant.cli.jobs.job_builder import build_job
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.options import cli_argument, cli_command, parameters_of
from cotenant.cli.output import emit_json, note, print_line
from cotenant.cli.slurm_verbs.options import resolve_dependencies
from cotenant.cli.slurm_verbs.sbatch_options import SbatchRequest, read_settings
from cotenant.cli.slurm_verbs.target import SLURM_OPTIONS, choose_target
from cotenant.core.errors import UsageError
from cotenant.jobfiles.python_commands import SHELLS
from cotenant.jobfiles.sbatch import InvalidWord, SbatchOption, Setting, environment_settings, split_options

GROUPS = (JobRequest, LaunchOptions)
MAX_SCRIPT_CHARS = 100_000
"""A longer script is run where it lies: the kernel passes no word of 128 KiB to a program."""

_OWN = (
    "estimator",
    "gpu-mem",
    "host",
    "max-slowdown",
    "notify",
    "progress",
    "retries",
    "sharing",
    "slurm-env",
    "socket",
)
OWN = {
    **{name: SbatchOption(name=name) for name in (*_OWN, "to")},
    "json": SbatchOption(name="json", value="none"),
    **SLURM_OPTIONS,
}
"""Options of ours that sbatch does not have."""


@cli_command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@cli_argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[SCRIPT [ARGS]...]",
    help="A batch script; without one it is read from stdin.",
)
@click.option("--json", is_flag=True, help="Print one JSON value instead of text.")
@click.option("--socket", metavar="PATH", help="Socket of the daemon; also $COTENANT_SOCKET.")
@click.option("--help", "wants_help", is_flag=True, help="Show this message and exit.")
@click.pass_context
def command(ctx: click.Context, words: Sequence[str], *, json: bool, socket: str | None, wants_help: bool) -> int:
    """Queue a batch script as Slurm's sbatch does: its options, its #SBATCH lines, its answer.

    Options of sbatch with an effect; all others are accepted with a warning that says why they have none:

      -a -b -c -d -D -e -G -H -J -n -o -t -Q -W --exclusive --export --gpus-per-node
      --gpus-per-task --gres --nice --parsable --requeue --test-only --wrap

    Options of `cotenant submit`:

      --gpu-mem --estimator --sharing --max-slowdown --notify --progress --retries
      --slurm-env --socket --host --json

    The command line wins over variables such as SBATCH_TIMELIMIT, and these win over the script's #SBATCH lines.

    A shell script is copied at submission, so you may change it afterwards. Its output goes to slurm-ID.out in the
    current folder.

    With --to slurm, or where Slurm is installed and no daemon answers, the script goes to Slurm, with all options of
    its sbatch. The Python commands in it are estimated; sbatch then requests shards of a GPU in place of a whole one,
    where the site has shards, adds a comment, and prints both. A script that runs out of GPU memory is submitted again
    with more.

      --add shards|comment|nothing    what to add to the request
      --gpu NAME, --shard-size SIZE   the memory of a shard
      --dry-run                       print the command, submit nothing
      --no-estimate, --no-watch       no estimate; no process that watches the script

      cotenant sbatch train.sh
      cotenant sbatch --parsable -a 1-10%2 --gres=gpu:1 sweep.sh
      cotenant sbatch -t 2:00:00 --wrap "python train.py"
    """
    try:
        settings, end = split_options(words, OWN)
    except InvalidWord as error:
        raise UsageError(error.message, hint="see `cotenant sbatch --help`") from error
    own = {setting.option.name: setting.value for setting in settings if setting.option.name in OWN}
    sbatch_settings = [setting for setting in settings if setting.option.name not in OWN]
    slurm = None if wants_help else choose_target(own.get("to"), names_daemon=_names_daemon(socket, own))
    if slurm is not None:
        from cotenant.cli.slurm_verbs.submit import submit_to_slurm

        return submit_to_slurm(slurm, sbatch_settings, words[end:], own, json=json or "json" in own)
    for name in own.keys() & SLURM_OPTIONS.keys():
        raise UsageError(f"`--{name}` is for a Slurm cluster", hint="add --to slurm, or leave it out")
    request = _read(sbatch_settings)
    if wants_help or request.behaviors & {"help", "usage"}:
        print(ctx.get_help())
        return 0
    if "version" in request.behaviors:
        print_line(f"cotenant {cotenant.__version__}")
        return 0
    environment = _read(environment_settings(os.environ))
    for setting, why in (*environment.unused, *request.unused):
        note(f"sbatch: warning: `{setting}` is ignored: {why}")
    connection = Connection(
        socket=None if not (socket or own.get("socket")) else Path(socket or str(own["socket"])), host=own.get("host")
    )
    job, behaviors = _job(words[end:], environment.values, {**request.values, **_own_values(own)})
    return _submit(job, behaviors | environment.behaviors | request.behaviors, connection, json=json or "json" in own)


def _names_daemon(socket: str | None, own: Mapping[str, str | None]) -> bool:
    return socket is not None or not own.keys().isdisjoint(("socket", "host"))


def _read(settings: Sequence[Setting]) -> SbatchRequest:
    def refuse(setting: Setting, error: UsageError) -> None:
        raise UsageError(f"`{setting.written}`: {error.message}", hint=error.hint) from error

    return read_settings(settings, GROUPS, on_error=refuse)


def _own_values(own: Mapping[str, str | None]) -> dict[str, Any]:
    """Values of our own options, by field."""
    by_spelling = {
        spelling: (field, option)
        for group in GROUPS
        for field, option in parameters_of(group).items()
        for spelling in option.opts
    }
    values = {}
    for name, text in own.items():
        if f"--{name}" in by_spelling:
            field, option = by_spelling[f"--{name}"]
            try:
                values[field] = option.type.convert(text, option, None)
            except click.BadParameter as error:
                raise UsageError(f"`--{name}`: {error.message.rstrip('.')}".replace("'", "`")) from error
    return values


def _job(
    words: Sequence[str], environment: Mapping[str, Any], line: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """The job that a script and the options describe, and options about the command in the script's header.

    The command line wins over the environment, and that over the header. Source: sbatch(1), "INPUT ENVIRONMENT
    VARIABLES".
    """
    given = {**environment, **line}
    behaviors: frozenset[str] = frozenset()
    if "wrap" in given:
        if words:
            raise UsageError("script arguments are not permitted with --wrap")
    else:
        name, path, text = read_script(words)
        header = parse_directive_text(path or name, text, *GROUPS)
        for warning in header.warnings:
            note(f"sbatch: warning: {warning}")
        behaviors = header.behaviors
        given = {"name": name, **header.values, **given, "command": _command(text, path, words[1:])}
    array = given.get("array") is not None
    given.setdefault("output", "slurm-%A_%a.out" if array else "slurm-%j.out")
    launch_fields = parameters_of(LaunchOptions).keys()
    launch = LaunchOptions(**{field: value for field, value in given.items() if field in launch_fields})
    base = JobRequest(**{field: value for field, value in given.items() if field not in launch_fields})
    return build_job(base, replace(launch, command=tuple(launch.command))), behaviors


def read_script(words: Sequence[str]) -> tuple[str, str | None, str]:
    """Name, path and text of the batch script; without a word, of the one on stdin.

    Raises:
        UsageError: it cannot be read, or is no script.
    """
    if not words:
        return "sbatch", None, _checked(sys.stdin.read())
    path = Path(words[0])
    try:
        return path.name, str(path.absolute()), _checked(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"unable to open file {words[0]}: {(error.strerror or str(error)).lower()}") from error


def _checked(text: str) -> str:
    if not text.startswith("#!"):
        raise UsageError(
            "this does not look like a batch script: the first line must name an interpreter",
            hint="begin it with #!/bin/sh, or use `cotenant submit`",
        )
    return text


def _command(text: str, path: str | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """Argv for the script: the text itself for a shell, its file for another interpreter."""
    interpreter = text.partition("\n")[0][2:].strip().split(None, 1)
    words = [interpreter[0], *interpreter[1:]] if interpreter else ["/bin/sh"]
    if os.path.basename(words[0]) == "env" and len(words) > 1:  # noqa: PTH119 (a name, not a path to follow)
        words = words[1].removeprefix("-S").split()
    if os.path.basename(words[0]) in SHELLS and len(text) <= MAX_SCRIPT_CHARS:  # noqa: PTH119
        return (*words, "-c", text, path or "sbatch", *arguments)
    if path is None:
        raise UsageError(f"a script for {words[0]} cannot be read from stdin", hint="write it to a file")
    return (*words, path, *arguments)


def _submit(job: dict[str, Any], behaviors: frozenset[str] | set[str], connection: Connection, *, json: bool) -> int:
    client = connection.client()
    views = client.submit([resolve_dependencies(job, client.ids)], dry_run="test-only" in behaviors)
    first = views[0]
    if "test-only" in behaviors:
        starts = first["decision"] == "start"
        when = (
            f"to start now on GPU {', '.join(map(str, first['gpu_indices']))}"
            if starts
            else f"would wait: {first['reason']}"
        )
        note(f"sbatch: Job {when}")
        return 0
    if json:
        emit_json({"job": first} if len(views) == 1 else {"job": first, "jobs": views})
    elif "parsable" in behaviors:
        print_line(str(first["id"]))
    elif "quiet" not in behaviors:
        print_line(f"Submitted batch job {first['id']}")
    if "wait" in behaviors:
        sys.stdout.flush()
        return max(int(client.wait(view["id"])["exit_code"]) for view in views)
    return 0
