"""`cotenant update`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from cotenant.cli import times
from cotenant.cli.common import JobIds, Json, Socket, for_each, new_client
from cotenant.cli.jobspec import slowdown_bound
from cotenant.cli.words import DEPENDENCIES, dependencies, gpu_count, with_ids
from cotenant.core.errors import UsageError
from cotenant.core.units import parse_bytes, parse_duration

NONE = "none"

Name = Annotated[str | None, typer.Option("-J", "--job-name", help="Another name.")]
Gpus = Annotated[str | None, typer.Option("-G", "--gpus", metavar="N", help="GPUs it needs.")]
GpuMem = Annotated[
    str | None, typer.Option("--gpu-mem", metavar="SIZE", help="Memory on each GPU; none has it estimated.")
]
Exclusive = Annotated[bool | None, typer.Option("--exclusive/--no-exclusive", help="Share its GPUs with nobody.")]
Slowdown = Annotated[str | None, typer.Option("--slowdown", metavar="X", help="Most it may be slowed down; or none.")]
Time = Annotated[str | None, typer.Option("-t", "--time", metavar="TIME", help="Time limit; or none.")]
Dependency = Annotated[
    str | None, typer.Option("-d", "--dependency", metavar="KIND:ID,...", help="What it waits for instead; or none.")
]
Begin = Annotated[str | None, typer.Option("--begin", metavar="TIME", help="Not before; or none.")]
Nice = Annotated[int | None, typer.Option("--nice", metavar="N", help="Above 0 after others, below before them.")]
Priority = Annotated[int | None, typer.Option("--priority", metavar="N", help="Larger is earlier.")]
Requeue = Annotated[bool | None, typer.Option("--requeue/--no-requeue", help="Again if the machine goes down.")]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", min=1, max=100, metavar="N", help="Runs allowed if it runs out of memory."),
]


def command(
    jobs: JobIds,
    *,
    job_name: Name = None,
    gpus: Gpus = None,
    gpu_mem: GpuMem = None,
    exclusive: Exclusive = None,
    slowdown: Slowdown = None,
    time: Time = None,
    dependency: Dependency = None,
    begin: Begin = None,
    nice: Nice = None,
    priority: Priority = None,
    requeue: Requeue = None,
    max_attempts: MaxAttempts = None,
    json: Json = False,
    socket: Socket = None,
) -> int:
    """Change what jobs that wait have asked for. What they run, where and as whom stays.

    cotenant update 17 --gpu-mem 12G --time 2:00:00
    cotenant update 17 18 --priority 5
    cotenant update 17 --dependency none --begin none
    """
    if nice is not None and priority is not None:
        raise UsageError("--nice and --priority say the same", hint="leave out one of them")
    fields: dict[str, Any] = {
        "name": job_name,
        "gpus": None if gpus is None else gpu_count(gpus),
        "exclusive": exclusive,
        "priority": -nice if nice is not None else priority,
        "requeue": requeue,
        "max_attempts": max_attempts,
    }
    fields = {key: value for key, value in fields.items() if value is not None}
    if gpu_mem is not None:
        fields["declared_bytes"] = None if gpu_mem == NONE else parse_bytes(gpu_mem)
    if slowdown is not None:
        fields["slowdown_bound"] = None if slowdown == NONE else slowdown_bound(_number(slowdown))
    if time is not None:
        fields["time_limit_s"] = None if time == NONE else parse_duration(time)
    if begin is not None:
        now = datetime.now().astimezone()
        fields["begin_at_s"] = None if begin == NONE else times.begin_at_s(begin, now)
    if dependency is not None:
        fields |= dependencies(None if dependency == NONE else dependency)
    if not fields:
        raise UsageError("nothing to change", hint="see `cotenant update --help`")
    client = new_client(socket)
    if any(fields.get(each) for each in DEPENDENCIES.values()):
        fields = with_ids(fields, client.ids)
    return for_each(client, jobs, lambda job_id: client.update(job_id, fields), json=json)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"`--slowdown={text}` is no number", hint="write e.g. 1.5, or none") from error
