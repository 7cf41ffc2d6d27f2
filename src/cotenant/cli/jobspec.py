"""From a command line to the job that the daemon is asked to queue: the options of `submit` and `run`."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cotenant.cli import directives, output_files, times
from cotenant.cli.output import note
from cotenant.cli.words import dependencies, environment, gpu_count, gres_count
from cotenant.core import radfile
from cotenant.core.errors import JobFileError, UsageError
from cotenant.core.units import parse_bytes, parse_duration

RadMemory = Literal["measured", "horus", "faketensor", "gpumemnet", "none"]

Command = Annotated[
    list[str],
    typer.Argument(metavar="SCRIPT|COMMAND [ARGS]...", help="A .py or .sh script, a .rad job file, or a command."),
]
Name = Annotated[
    str | None, typer.Option("-J", "--job-name", metavar="NAME", help="Name of the job; by default the script's.")
]
Gpus = Annotated[
    str | None, typer.Option("-G", "--gpus", metavar="N", help="GPUs the job needs; TYPE:N is read as N.  [default: 1]")
]
Gres = Annotated[str | None, typer.Option("--gres", metavar="gpu:N", help="The same, as Slurm spells it.")]
GpuMem = Annotated[
    str | None,
    typer.Option("--gpu-mem", metavar="SIZE", help="Memory it needs on each GPU, e.g. 12G. Estimated if not given."),
]
Exclusive = Annotated[bool | None, typer.Option("--exclusive", help="Share its GPUs with nobody.")]
Share = Annotated[
    Literal["auto", "none", "time", "mps", "mig"] | None,
    typer.Option(
        "--share", help="auto: as the policy likes; none is --exclusive; time: in turns; mps; mig: an instance alone."
    ),
]
Slowdown = Annotated[
    float | None,
    typer.Option("--slowdown", metavar="X", help="Most it may be slowed down by neighbors: 1.5 is half as long again."),
]
Estimator = Annotated[str | None, typer.Option("--estimator", metavar="NAME", help="Who estimates its memory.")]
Time = Annotated[
    str | None, typer.Option("-t", "--time", metavar="TIME", help="Time limit: MM, MM:SS, HH:MM:SS, D-HH:MM.")
]
Dependency = Annotated[
    str | None,
    typer.Option(
        "-d",
        "--dependency",
        metavar="KIND:ID[:ID...],...",
        help="Start after others: afterok (completed), afterany (ended), afternotok (failed); or singleton.",
    ),
]
Array = Annotated[
    str | None,
    typer.Option("-a", "--array", metavar="1-10%2", help="A job for each number; %2: at most 2 run at once."),
]
Begin = Annotated[
    str | None, typer.Option("--begin", metavar="TIME", help="Not before: now+2hours, 16:00, 2026-11-21T16:00.")
]
Hold = Annotated[bool | None, typer.Option("-H", "--hold", help="Hold it until it is released.")]
Requeue = Annotated[
    bool | None, typer.Option("--requeue/--no-requeue", help="Run it again if the machine goes down under it.")
]
Retries = Annotated[
    int | None,
    typer.Option("--retries", metavar="N", min=0, help="Tries again after failures but for memory."),
]
TimeSlot = Annotated[
    str | None,
    typer.Option(
        "--time-slot", metavar="TIME", help="After so long, if others wait: save your state, end, and go behind them."
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="File for its output; %j is the id, %x the name, %A_%a array and index."
    ),
]
Error = Annotated[
    str | None, typer.Option("-e", "--error", metavar="FILE", help="File for its errors; by default with the output.")
]
Chdir = Annotated[Path | None, typer.Option("-D", "--chdir", metavar="DIR", help="Folder to run it in.")]
Nice = Annotated[
    int | None, typer.Option("--nice", metavar="N", help="Run it after (above 0) or before (below) others.")
]
Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", help="The opposite of --nice: larger is earlier.")
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export", metavar="ALL|NONE|VARS", help="Environment it gets: ALL, NONE, A,B=1 or ALL,B=1.  [default: ALL]"
    ),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts", min=1, max=100, metavar="N", help="Runs allowed if it runs out of GPU memory.  [default: 4]"
    ),
]
Notify = Annotated[
    str | None, typer.Option("--notify", metavar="COMMAND|URL", help="Run, or send to, this when it is over.")
]
Progress = Annotated[
    str | None,
    typer.Option(
        "--progress",
        metavar="PATTERN",
        help=r"How its output tells of steps: tqdm, or e.g. 'step (\d+)' or '(?P<rate>[\d.]+)it/s'.",
    ),
]
Rad = Annotated[
    RadMemory | None,
    typer.Option("--rad-memory", help="Memory of a .rad file to declare; none: estimate it.  [default: measured]"),
]

CONTEXT = {"allow_interspersed_args": False}
"""For the commands: what follows the script is the script's, options too."""


def with_job_options(act: Callable[..., Any]) -> Callable[..., Any]:
    """`act`, called with the job that the options describe as its first argument, and with its own options."""
    shared = inspect.signature(describe, eval_str=True).parameters
    own = list(inspect.signature(act, eval_str=True).parameters.values())[1:]

    @functools.wraps(act)
    def command(**given: Any) -> Any:
        job = describe(**with_directives({name: given.pop(name) for name in shared}))
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
    known = {name: each.annotation for name, each in inspect.signature(describe, eval_str=True).parameters.items()}
    found = directives.read(script, directives.options_of(known))
    for each in found.warnings:
        note(f"warning: {each}")
    return {name: found.values.get(name) if value is None else value for name, value in given.items()}


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def describe(
    *,
    command: Command,
    job_name: Name = None,
    gpus: Gpus = None,
    gres: Gres = None,
    gpu_mem: GpuMem = None,
    exclusive: Exclusive = None,
    share: Share = None,
    slowdown: Slowdown = None,
    estimator: Estimator = None,
    time: Time = None,
    dependency: Dependency = None,
    array: Array = None,
    begin: Begin = None,
    hold: Hold = None,
    output: Output = None,
    error: Error = None,
    chdir: Chdir = None,
    nice: Nice = None,
    priority: Priority = None,
    export: Export = None,
    requeue: Requeue = None,
    retries: Retries = None,
    time_slot: TimeSlot = None,
    max_attempts: MaxAttempts = None,
    notify: Notify = None,
    progress: Progress = None,
    rad_memory: Rad = None,
) -> dict[str, Any]:
    """The job as the daemon wants it: fields of `JobSpec`, with jobs to wait for as they were written.

    Raises:
        UsageError: something cannot be understood, or the script or command does not exist.
    """
    workdir = _workdir(chdir)
    if nice is not None and priority is not None:
        raise UsageError("--nice and --priority say the same", hint="leave out one of them")
    told: dict[str, Any] = {"gpus": 1, "declared_bytes": None, "source": None}
    if command[0].endswith(".rad"):
        argv, name, from_file = _from_rad(command, rad_memory or "measured")
        told |= from_file
    else:
        argv = resolve(command, os.environ.get("PATH", os.defpath), moved=chdir is not None)
        name = Path(command[0]).stem
    count = gpu_count(gpus) if gpus is not None else gres_count(gres)
    stdout = _path(output, workdir)
    job = {
        "command": argv,
        "workdir": str(workdir),
        "env": environment(export or "ALL", os.environ),
        "name": job_name or name,
        "estimator": estimator,
        "exclusive": bool(exclusive) or share == "none",
        "share": share if share is not None and share != "none" else "auto",
        "priority": -nice if nice is not None else priority or 0,
        "time_limit_s": None if time is None else parse_duration(time),
        "slowdown_bound": slowdown_bound(slowdown),
        **dependencies(dependency),
        "begin_at_s": None if begin is None else times.begin_at_s(begin, datetime.now().astimezone()),
        "hold": bool(hold),
        "requeue": bool(requeue),
        "retries": retries or 0,
        "slot_s": None if time_slot is None else parse_duration(time_slot),
        "notify": notify,
        "progress": progress,
        "max_attempts": max_attempts or 4,
        "stdout_path": stdout,
        "stderr_path": stdout if error is None else _path(error, workdir),
        "umask": _umask(),
        **told,
    }
    output_files.warn({job["stdout_path"], job["stderr_path"]})
    if array is not None:
        tasks, limit = times.array_tasks(array)
        job["array"] = {"tasks": tasks, "limit": limit}
    job |= {} if count is None else {"gpus": count}
    return job | ({} if gpu_mem is None else {"declared_bytes": parse_bytes(gpu_mem)})


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


def slowdown_bound(bound: float | None) -> float | None:
    """`bound`, if it can be kept.

    Raises:
        UsageError: it is below 1, or no number.
    """
    if bound is not None and not 1 <= bound < math.inf:
        raise UsageError(
            f"a slowdown of {bound:g} cannot be kept", hint="1 is no slowdown at all, 1.5 half as long again"
        )
    return bound


def resolve(words: Sequence[str], path: str, *, moved: bool) -> list[str]:
    """Argv for a script or a command: scripts with their interpreter, commands by the absolute path of the program.

    `path` is searched for programs. `moved`: the job will run in another folder than this one.

    Raises:
        UsageError: there is no such file or program.
    """
    word, rest = words[0], list(words[1:])
    file = Path(word)
    shown = str(file.absolute()) if moved else word
    if file.suffix in (".py", ".sh"):
        if not file.is_file():
            raise _no_such_file(file)
        interpreters = ("python", "python3") if file.suffix == ".py" else ("bash",)
        return [_program(interpreters, path), shown, *rest]
    if "/" in word:
        if not file.is_file():
            raise _no_such_file(file)
        if not os.access(file, os.X_OK):
            raise UsageError(f"`{word}` is not executable", hint=f"chmod +x {word}, or name its interpreter")
        return [str(file.absolute()), *rest]
    found = shutil.which(word, path=path)
    if found is None:
        here = f"`./{word}` is in this folder" if file.is_file() else None
        raise UsageError(f"no such command: `{word}`", hint=here or "scripts need their ending: `train.py`")
    return [found, *rest]


def _no_such_file(file: Path) -> UsageError:
    if file.is_dir():
        return UsageError(f"`{file}` is a folder", hint="name the script in it")
    with contextlib.suppress(OSError):
        names = [each.name for each in file.parent.iterdir()]
        close = difflib.get_close_matches(file.name, names, n=1)
        if close:
            return UsageError(f"no such file: `{file}`", hint=f"did you mean `{file.with_name(close[0])}`?")
    return UsageError(f"no such file: `{file}`")


def _program(names: Sequence[str], path: str) -> str:
    for name in names:
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    raise UsageError(f"no `{names[0]}` on the PATH")


def _from_rad(words: Sequence[str], choice: RadMemory) -> tuple[list[str], str, dict[str, Any]]:
    """argv, name and further fields from a `.rad` file."""
    if len(words) > 1:
        raise UsageError(f"a .rad file holds the whole command, but `{words[1]}` follows it")
    path = Path(words[0])
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise JobFileError(str(path), line, "is not UTF-8 text") from error
    rad = radfile.parse(text, str(path))
    declared = None if choice == "none" else rad.memory_bytes[choice]
    if choice != "none" and declared is None:
        note(f"{path}: {choice} could not tell the memory; it will be estimated")
    return list(rad.argv), path.stem, {"gpus": rad.gpus, "declared_bytes": declared, "source": str(path.absolute())}


def _path(text: str | None, workdir: Path) -> str | None:
    """`text` in `workdir`, whose own name is no pattern."""
    return None if text is None else str(Path(str(workdir).replace("%", "%%")) / text)
