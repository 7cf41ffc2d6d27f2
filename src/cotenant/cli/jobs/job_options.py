"""The options of `submit` and `run`, which lines in a script may hold too (see `directives`); `update` has most.

A field that is named as in `core.job.JobSpec` holds the value of that field; None: the option was not given.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click

from cotenant.cli.completion import complete_estimators
from cotenant.cli.options import argument, option
from cotenant.cli.parameter_types import NONE, PATH, Cleared, OrNone, Parsed, integer, number
from cotenant.cli.slurm_verbs.options import parse_dependencies, parse_gpus, parse_gres
from cotenant.cli.slurm_verbs.times import parse_array, parse_begin_from_now, parse_time_limit
from cotenant.core.errors import UsageError
from cotenant.core.job import CheckpointSignal, SlurmEnv
from cotenant.core.units import parse_duration, parse_gpu_memory, shortened

RadEstimate = Literal["measured", "horus", "faketensor", "gpumemnet", "none"]

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]+)?")
_DURATION = Parsed("duration", parse_duration)


def _parse_limit(text: str) -> float | Cleared:
    limit_s = parse_time_limit(text)
    return NONE if limit_s is None else limit_s


def parse_checkpoint_signal(text: str) -> tuple[str, float | None]:
    """Signal and time to save of `USR1@120`; the signal may have its prefix.

    Raises:
        UsageError: it is something else.
    """
    word, at, grace = text.partition("@")
    name = word.strip().upper().removeprefix("SIG")
    if name not in get_args(CheckpointSignal):
        known = ", ".join(get_args(CheckpointSignal))
        raise UsageError(
            f"`{shortened(word)}` is no signal for a checkpoint (known: {known})", hint="write e.g. `USR1@120`"
        )
    if not at:
        return name, None
    grace_s = float(grace) if _SECONDS.fullmatch(grace) else math.nan
    if not 0 < grace_s < math.inf:
        raise UsageError(f"`{shortened(grace)}` is no time to save, in seconds", hint="write e.g. `USR1@120`")
    return name, grace_s


_TEXT = OrNone(click.STRING)
_SCHEDULING, _FAILURES, _PROCESS = "Scheduling", "Failures", "Process"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a pending job may still change. `none` clears what an earlier request or a line in the script had set."""

    SECTION = "Resources"

    gpus: int | None = option(
        "-G",
        "--gpus",
        type=Parsed("gpus", parse_gpus),
        metavar="N",
        help="GPUs the job needs; of TYPE:N only N counts.  [default: 1]",
    )
    gres: int | None = option(
        "--gres", type=Parsed("gres", parse_gres), metavar="gpu:N", help="The same as --gpus N, as Slurm spells it."
    )
    declared_bytes: int | Cleared | None = option(
        "--gpu-mem",
        type=OrNone(Parsed("size", parse_gpu_memory)),
        metavar="SIZE",
        help="Memory it needs on each GPU: 12G, or 12000 in MiB; none: it is estimated.  [default: none]",
    )
    exclusive: bool | None = option("--exclusive/--no-exclusive", help="Share its GPUs with no other job.")
    sharing: str | None = option(
        "--sharing",
        type=click.Choice(["auto", "none", "time", "mps", "mig"]),
        help="auto: the policy decides; none: as --exclusive; time: time-sliced; mps; mig: an instance of its own.",
    )
    max_slowdown: float | Cleared | None = option(
        "--max-slowdown",
        type=OrNone(number(minimum=1)),
        metavar="X",
        help="Largest slowdown by neighbors it accepts: at 1.5, a step takes half as long again; or `none`.",
    )
    time_limit_s: float | Cleared | None = option(
        "-t",
        "--time",
        type=OrNone(Parsed("duration", _parse_limit)),
        metavar="TIME",
        section=_SCHEDULING,
        help="Time limit: MM, MM:SS, HH:MM:SS, D-HH:MM; or `none`.",
    )
    time_slice_s: float | Cleared | None = option(
        "--time-slice",
        type=OrNone(_DURATION),
        metavar="TIME",
        section=_SCHEDULING,
        help="After TIME, if others wait: SIGTERM to checkpoint, then requeue last; or `none`.",
    )
    dependency: Mapping[str, Any] | Cleared | None = option(
        "-d",
        "--dependency",
        type=OrNone(Parsed("dependency", parse_dependencies)),
        metavar="KIND:ID[:ID...],...",
        section=_SCHEDULING,
        help="Start after others: afterok (completed), afterany (ended), afternotok (failed), singleton; or `none`.",
    )
    begin_at_s: float | Cleared | None = option(
        "-b",
        "--begin",
        type=OrNone(Parsed("time", parse_begin_from_now)),
        metavar="TIME",
        section=_SCHEDULING,
        help="Do not start before now+2hours, 16:00, 2026-11-21T16:00; or `none`.",
    )
    nice: int | None = option(
        "--nice",
        type=integer(),
        metavar="N",
        section=_SCHEDULING,
        help="Lower the priority by N; a negative N raises it.",
    )
    priority: int | None = option(
        "--priority", type=integer(), metavar="N", section=_SCHEDULING, help="Priority; larger starts earlier."
    )
    requeue: bool | None = option(
        "--requeue/--no-requeue",
        section=_FAILURES,
        help="Requeue it if the machine goes down, or its allocation ends, while it runs.  [default: no-requeue]",
    )
    checkpointable: bool | None = option(
        "--checkpointable/--no-checkpointable",
        section=_SCHEDULING,
        help="It may be moved: after a signal, by default TERM, it saves its state and exits with code 85, to continue "
        "with the same command.",
    )
    checkpoint_signal: tuple[str, float | None] | None = option(
        "--checkpoint-signal",
        type=Parsed("signal", parse_checkpoint_signal),
        metavar="SIGNAL[@SECONDS]",
        section=_SCHEDULING,
        help="--checkpointable with another signal, TERM, INT, USR1 or USR2, and another time to save.  "
        "[default: TERM@120]",
    )
    retries: int | None = option(
        "--retries",
        type=integer(minimum=0),
        metavar="N",
        section=_FAILURES,
        help="Retries after failures other than OOM.  [default: 0]",
    )
    max_attempts: int | None = option(
        "--max-attempts",
        type=integer(minimum=1, maximum=100),
        metavar="N",
        section=_FAILURES,
        help="Attempts allowed if it runs out of GPU memory.  [default: 4]",
    )
    name: str | None = option(
        "-J", "--job-name", metavar="NAME", section=_PROCESS, help="Name of the job.  [default: the script's]"
    )
    notify: str | Cleared | None = option(
        "--notify",
        type=_TEXT,
        metavar="COMMAND|URL",
        section=_PROCESS,
        help="When it is over, or idle, run this command or send a POST to this URL; or `none`.",
    )
    progress: str | Cleared | None = option(
        "--progress",
        type=_TEXT,
        metavar="PATTERN",
        section=_PROCESS,
        help=r"How its output shows steps: tqdm, or e.g. 'step (\d+)' or '(?P<rate>[\d.]+)it/s'; or `none`.",
    )

    def fields(self) -> dict[str, Any]:
        """Fields of a job, with dependencies as they were written; None where `none` clears one.

        Raises:
            UsageError: two options contradict each other.
        """
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields = {name: None if value is NONE else value for name, value in given.items() if value is not None}
        for name in ("gres", "nice", "dependency", "exclusive", "sharing", "checkpointable", "checkpoint_signal"):
            fields.pop(name, None)
        if self.gpus is None and self.gres is not None:
            fields["gpus"] = self.gres
        if self.nice is not None:
            if self.priority is not None:
                raise UsageError("--nice and --priority exclude each other", hint="leave out one of them")
            fields["priority"] = -self.nice
        if self.dependency is not None:
            fields |= parse_dependencies(None) if isinstance(self.dependency, Cleared) else self.dependency
        return fields | self._sharing_fields() | self._checkpoint_fields()

    def _checkpoint_fields(self) -> dict[str, Any]:
        if self.checkpoint_signal is None:
            return {} if self.checkpointable is None else {"checkpoint_signal": "TERM" if self.checkpointable else None}
        if self.checkpointable is False:
            raise UsageError(
                "--checkpoint-signal and --no-checkpointable exclude each other", hint="leave out one of them"
            )
        name, grace_s = self.checkpoint_signal
        return {"checkpoint_signal": name} | ({} if grace_s is None else {"checkpoint_grace_s": grace_s})

    def _sharing_fields(self) -> dict[str, Any]:
        """`exclusive` and `sharing`; a way of sharing ends being alone, unless --exclusive is given as well."""
        if self.sharing is None:
            return {} if self.exclusive is None else {"exclusive": self.exclusive}
        if self.sharing != "none":
            return {"exclusive": bool(self.exclusive), "sharing": self.sharing}
        if self.exclusive is False:
            raise UsageError("--sharing none and --no-exclusive exclude each other", hint="leave out one of them")
        return {"exclusive": True, "sharing": "auto"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What is fixed once a job is submitted."""

    SECTION = "Process"

    command: Sequence[str] = argument(
        default=(),
        nargs=-1,
        metavar="SCRIPT|COMMAND [ARGS]...",
        type=click.UNPROCESSED,
        help="A .py or .sh script, a .rad job file, or a command.",
    )
    estimator: str | None = option(
        "--estimator",
        metavar="NAME",
        section=JobRequest.SECTION,
        shell_complete=complete_estimators,
        help="Estimator of its memory; by default the daemon's.",
    )
    model_summary: Path | None = option(
        "--model-summary",
        type=PATH,
        metavar="FILE",
        section=JobRequest.SECTION,
        help="Printed summary of its model (torchinfo, torchsummary, Keras): estimate from it if the command cannot be "
        "traced.",
    )
    batch_size: int | None = option(
        "--batch-size",
        type=integer(minimum=1),
        metavar="N",
        section=JobRequest.SECTION,
        help="Samples of a step, for an estimate from the summary of its model.",
    )
    run_anyway: bool | None = option(
        "--run-anyway",
        is_flag=True,
        section=_FAILURES,
        help="Run it even if an import or its syntax failed in the estimate.",
    )
    array: Mapping[str, Any] | None = option(
        "-a",
        "--array",
        type=Parsed("array", parse_array),
        metavar="1-10%2",
        section=_SCHEDULING,
        help="One job for each index; %2: at most 2 run at once.",
    )
    hold: bool | None = option("-H", "--hold", is_flag=True, section=_SCHEDULING, help="Hold it until it is released.")
    output: str | None = option(
        "-o", "--output", metavar="FILE", help="File for stdout; %j is the id, %x the name, %A_%a array and index."
    )
    error: str | None = option("-e", "--error", metavar="FILE", help="File for stderr; by default that of stdout.")
    stdin: str | None = option("-i", "--input", metavar="FILE", help="File for stdin.  [default: /dev/null]")
    chdir: Path | None = option("-D", "--chdir", type=PATH, metavar="DIR", help="Working directory.")
    export: str | None = option(
        "--export", metavar="ALL|NONE|VARS", help="Environment variables: ALL, NONE, A,B=1 or ALL,B=1.  [default: ALL]"
    )
    wrap: str | None = option("--wrap", metavar="COMMAND", help="Run this line in sh, in place of a script.")
    slurm_env: SlurmEnv | None = option(
        "--slurm-env",
        type=click.Choice(["none", "job", "all"]),
        help="Variables of Slurm it gets: none; job: SLURM_JOB_ID and the like; all: also those that launchers such as "
        "mpirun and Lightning act on.  [default: job]",
    )
    ntasks: int | None = option("-n", "--ntasks", type=integer(minimum=1), metavar="N", hidden=True)
    cpus_per_task: int | None = option("-c", "--cpus-per-task", type=integer(minimum=1), metavar="N", hidden=True)
    rad_estimate: RadEstimate | None = option(
        "--rad-estimate",
        type=click.Choice(["measured", "horus", "faketensor", "gpumemnet", "none"]),
        section=JobRequest.SECTION,
        help="Figure of a .rad file to declare as memory; none: estimate it.  [default: measured]",
    )
