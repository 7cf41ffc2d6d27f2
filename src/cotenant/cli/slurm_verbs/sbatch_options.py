"""What each option of sbatch means here: one table for `#SBATCH` lines, `cotenant sbatch` and `cotenant submit`.

Most name a field of our own options and have its values. The rest is taken and has no effect, with a warning that says
why, because a script that runs on a cluster should run here unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from cotenant.cli.options import Option, parameters_of
from cotenant.core.errors import UsageError
from cotenant.jobfiles.sbatch import OPTIONS, Setting

FIELDS: Mapping[str, str] = {
    "array": "array",
    "begin": "begin_at_s",
    "chdir": "chdir",
    "cpus-per-task": "cpus_per_task",
    "dependency": "dependency",
    "error": "error",
    "exclusive": "exclusive",
    "export": "export",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gres": "gres",
    "hold": "hold",
    "input": "stdin",
    "job-name": "name",
    "job_name": "name",
    "nice": "nice",
    "no-requeue": "requeue",
    "ntasks": "ntasks",
    "output": "output",
    "requeue": "requeue",
    "time": "time_limit_s",
    "workdir": "chdir",
    "wrap": "wrap",
}
"""Fields of `JobRequest` and `LaunchOptions` by the option that sets them."""

BEHAVIORS = frozenset(("help", "parsable", "quiet", "test-only", "usage", "verbose", "version", "wait"))
"""Options about the command itself, not about the job."""

_UNUSED = {
    "there is one queue": "partition",
    "there are no accounts": "account qos wckey reservation licenses mcs-label",
    "this machine is the only node": (
        "nodelist exclude nodefile constraint clusters cluster-constraint batch contiguous switches use-min-nodes "
        "spread-job reboot prefer no-kill wait-all-nodes ntasks-per-node gpus-per-socket"
    ),
    "only GPU memory is reserved, see --gpu-mem": "mem mem-per-cpu mem-per-gpu mem-bind tmp",
    "CPUs are not reserved": (
        "cpus-per-gpu mincpus cores-per-socket sockets-per-node threads-per-core extra-node-info core-spec thread-spec "
        "cpu-freq overcommit hint distribution ntasks-per-core ntasks-per-socket ntasks-per-gpu"
    ),
    "use --notify": "mail-type mail-user",
    "use --sharing and --exclusive": "oversubscribe share",
    "jobs get SIGTERM, and SIGKILL after a grace period": "signal",
    "output files are truncated by each attempt": "open-mode",
}
UNUSED = {name: why for why, names in _UNUSED.items() for name in names.split()}
DEFAULT_REASON = "it has no meaning here"
DEFAULT_NICE = "100"
"""Of `--nice` without a value. Source: sbatch(1)."""


@dataclass(slots=True)
class SbatchRequest:
    """What options of sbatch ask for.

    Attributes:
        values: by field of `JobRequest` and `LaunchOptions`.
        behaviors: names of options about the command itself.
        unused: options without effect, and why.
    """

    values: dict[str, Any] = field(default_factory=dict)
    behaviors: set[str] = field(default_factory=set)
    unused: list[tuple[Setting, str]] = field(default_factory=list)


def read_settings(
    settings: Iterable[Setting],
    groups: tuple[type, ...],
    *,
    on_error: Callable[[Setting, UsageError], None],
) -> SbatchRequest:
    """The meaning of `settings`, for the option groups that have the fields; `on_error` is called for wrong values."""
    options = {name: option for group in groups for name, option in parameters_of(group).items()}
    request = SbatchRequest()
    per_task: int | None = None
    for setting in settings:
        name = setting.option.name
        try:
            if name in BEHAVIORS:
                request.behaviors.add(name)
            elif name == "gpus-per-task":
                per_task = options["gpus"].type.convert(setting.value, None, None)
            elif name in FIELDS and FIELDS[name] in options:
                request.values[FIELDS[name]] = _value(setting, options[FIELDS[name]])
            elif (why := why_unused(name, setting.value)) is not None:
                request.unused.append((setting, why))
        except click.BadParameter as error:
            on_error(setting, UsageError(error.message.rstrip(".").replace("'", "`")))
        except UsageError as error:
            on_error(setting, error)
    if per_task is not None:
        request.values["gpus"] = per_task * request.values.get("ntasks", 1)
    return request


def _value(setting: Setting, option: click.Parameter) -> Any:
    name, text = setting.option.name, setting.value
    if name in ("hold", "requeue", "no-requeue"):
        return name != "no-requeue"
    if name == "exclusive":
        if text is not None:
            raise UsageError(f"`{text}` is not supported, give no value")
        return True
    if name == "nice" and text is None:
        text = DEFAULT_NICE
    return option.type.convert(text, None, None)


def why_unused(name: str, value: str | None) -> str | None:
    """Why an option has no effect; None if it requests what is the case anyway."""
    if name == "nodes":
        return None if value in ("1", "1-1") else UNUSED["nodelist"]
    return UNUSED.get(name, DEFAULT_REASON)


_VALUES: Mapping[str, dict[str, Any]] = {
    "required": {},
    "optional": {"is_flag": False, "flag_value": ""},  # with a flag_value, click does not insist on a value
    "none": {"is_flag": True},
}


def accept_sbatch_options(command: click.Command) -> click.Command:
    """Let `command` take those options of sbatch that have no effect, hidden from its help text, with a warning."""
    taken = {spelling for parameter in command.params for spelling in (*parameter.opts, *parameter.secondary_opts)}
    for option in OPTIONS.values():
        spellings = [f"--{option.name}", *([f"-{option.letter}"] if option.letter else [])]
        free = [spelling for spelling in spellings if spelling not in taken]
        if spellings[0] not in free or option.name in BEHAVIORS or option.name in FIELDS:
            continue
        command.params.append(
            Option(
                [f"sbatch_{option.name.replace('-', '_')}", *free],
                hidden=True,
                expose_value=False,
                callback=_warning(spellings[0]),
                **_VALUES[option.value],
            )
        )
    return command


def _warning(spelling: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def warn(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # noqa: ARG001 (click's signature)
        if value in (None, False):
            return
        text = None if value in (True, "") else value
        why = why_unused(spelling[2:], text)
        if why is not None:
            from cotenant.cli.output import note

            note(f"warning: `{spelling if text is None else f'{spelling}={text}'}` is ignored: {why}")

    return warn
