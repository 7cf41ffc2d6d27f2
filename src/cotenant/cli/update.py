"""`cotenant update`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from cotenant.cli import slurm_times
from cotenant.cli.common import JobIds, Json, Socket, for_each, new_client
from cotenant.cli.job_builder import parse_slowdown
from cotenant.cli.slurm_options import (
    DEPENDENCIES,
    parse_dependencies,
    parse_gpus,
    parse_option,
    parse_priority,
    resolve_dependencies,
)
from cotenant.core.errors import UsageError
from cotenant.core.units import parse_bytes, parse_duration

NONE = "none"

Name = Annotated[str | None, typer.Option("-J", "--job-name", metavar="NAME", help="Another name.")]
Gpus = Annotated[str | None, typer.Option("-G", "--gpus", metavar="N", help="GPUs it needs.")]
GpuMem = Annotated[
    str | None, typer.Option("--gpu-mem", metavar="SIZE", help="Memory on each GPU; none has it estimated.")
]
Exclusive = Annotated[bool | None, typer.Option("--exclusive/--no-exclusive", help="Share its GPUs with nobody.")]
Share = Annotated[
    Literal["auto", "none", "time", "mps", "mig"] | None,
    typer.Option("--sharing", help="How it shares; as for submit."),
]
Slowdown = Annotated[
    str | None, typer.Option("--max-slowdown", metavar="X", help="Most it may be slowed down; or none.")
]
Time = Annotated[str | None, typer.Option("-t", "--time", metavar="TIME", help="Time limit; or none.")]
TimeSlot = Annotated[
    str | None, typer.Option("--time-slice", metavar="TIME", help="Makes room for others after so long; or none.")
]
Dependency = Annotated[
    str | None, typer.Option("-d", "--dependency", metavar="KIND:ID,...", help="What it waits for instead; or none.")
]
Begin = Annotated[str | None, typer.Option("--begin", metavar="TIME", help="Not before; or none.")]
Nice = Annotated[int | None, typer.Option("--nice", metavar="N", help="Above 0 after others, below before them.")]
Priority = Annotated[int | None, typer.Option("--priority", metavar="N", help="Larger is earlier.")]
Requeue = Annotated[bool | None, typer.Option("--requeue/--no-requeue", help="Again if the machine goes down.")]
Retries = Annotated[
    int | None, typer.Option("--retries", metavar="N", min=0, help="Tries again after failures but for memory.")
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", min=1, max=100, metavar="N", help="Runs allowed if it runs out of memory."),
]
Notify = Annotated[
    str | None, typer.Option("--notify", metavar="COMMAND|URL", help="What is told when it is over; or none.")
]
Progress = Annotated[
    str | None, typer.Option("--progress", metavar="PATTERN", help="How its output tells of steps; or none.")
]

_STAYS = "what a job runs, where and with which environment stays: cancel it and submit it anew"
_FIXED = {
    "array": "its tasks are jobs already: submit another array",
    "chdir": _STAYS,
    "error": _STAYS,
    "estimator": "give its memory with --gpu-mem, or submit it anew",
    "export": _STAYS,
    "hold": "`cotenant hold` and `cotenant release` do that",
    "output": _STAYS,
}
"""Options of `submit` that come too late."""


def _fixed(name: str, *spellings: str) -> Any:
    def refuse(value: Any) -> None:
        if value not in (None, False):
            raise UsageError(f"--{name} of a job cannot be updated", hint=_FIXED[name])

    return typer.Option(*spellings, f"--{name}", hidden=True, callback=refuse)


def command(
    jobs: JobIds,
    *,
    job_name: Name = None,
    gpus: Gpus = None,
    gpu_mem: GpuMem = None,
    exclusive: Exclusive = None,
    share: Share = None,
    slowdown: Slowdown = None,
    time: Time = None,
    time_slot: TimeSlot = None,
    dependency: Dependency = None,
    begin: Begin = None,
    nice: Nice = None,
    priority: Priority = None,
    requeue: Requeue = None,
    retries: Retries = None,
    max_attempts: MaxAttempts = None,
    notify: Notify = None,
    progress: Progress = None,
    json: Json = False,
    socket: Socket = None,
    array: Annotated[str | None, _fixed("array", "-a")] = None,  # noqa: ARG001 (refused by their callbacks)
    chdir: Annotated[str | None, _fixed("chdir", "-D")] = None,  # noqa: ARG001
    error: Annotated[str | None, _fixed("error", "-e")] = None,  # noqa: ARG001
    estimator: Annotated[str | None, _fixed("estimator")] = None,  # noqa: ARG001
    export: Annotated[str | None, _fixed("export")] = None,  # noqa: ARG001
    hold: Annotated[bool, _fixed("hold", "-H")] = False,  # noqa: ARG001
    output: Annotated[str | None, _fixed("output", "-o")] = None,  # noqa: ARG001
) -> int:
    """Change what jobs that wait have asked for. What they run, where and as whom stays.

    cotenant update 17 --gpu-mem 12G --time 2:00:00
    cotenant update 17 18 --priority 5
    cotenant update 17 --dependency none --begin none
    """
    plain = {
        "name": job_name,
        "gpus": None if gpus is None else parse_gpus(gpus),
        "exclusive": exclusive,
        "priority": parse_priority(nice, priority),
        "requeue": requeue,
        "retries": retries,
        "max_attempts": max_attempts,
    }
    texts = {
        "--gpu-mem": gpu_mem,
        "--max-slowdown": slowdown,
        "--time": time,
        "--time-slice": time_slot,
        "--begin": begin,
        "--notify": notify,
        "--progress": progress,
    }
    fields = {
        **{field: value for field, value in plain.items() if value is not None},
        **_sharing(share, exclusive=exclusive),
        **_read(texts),
        **({} if dependency is None else parse_dependencies(None if dependency == NONE else dependency)),
    }
    if not fields:
        raise UsageError("nothing to change", hint="see `cotenant update --help`")
    client = new_client(socket)
    if any(fields.get(each) for each in DEPENDENCIES.values()):
        fields = resolve_dependencies(fields, client.ids)
    return for_each(client, jobs, lambda job_id: client.update(job_id, fields), json=json)


def _sharing(share: str | None, *, exclusive: bool | None) -> dict[str, Any]:
    """Fields for `--sharing`: to share, in whichever way, ends being alone, unless that is asked for as well."""
    if share is None:
        return {}
    if share == "none":
        if exclusive is False:
            raise UsageError("--sharing none and --no-exclusive exclude each other", hint="leave out one of them")
        return {"exclusive": True, "share": "auto"}
    return {"exclusive": bool(exclusive), "share": share}


def _read(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Fields by what is written for options: None for `none`, which takes a wish back; absent where nothing is."""
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "--gpu-mem": ("declared_bytes", parse_bytes),
        "--max-slowdown": ("max_slowdown", _bound),
        "--time": ("time_limit_s", parse_duration),
        "--time-slice": ("time_slice_s", parse_duration),
        "--begin": ("begin_at_s", slurm_times.parse_begin_from_now),
        "--notify": ("notify", str),
        "--progress": ("progress", str),
    }
    given = {option: text for option, text in texts.items() if text is not None}
    return {
        readers[option][0]: None if text == NONE else parse_option(option, text, readers[option][1])
        for option, text in given.items()
    }


def _bound(text: str) -> float | None:
    try:
        return parse_slowdown(float(text))
    except ValueError as error:
        raise UsageError(f"`{text}` is no number", hint="write e.g. 1.5, or none") from error
