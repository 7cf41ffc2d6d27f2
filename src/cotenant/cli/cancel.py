"""`cotenant cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from cotenant.cli.common import Json, Socket, complete_ids, for_each, new_client
from cotenant.core.errors import UsageError

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB...]", autocompletion=complete_ids, help="Ids of jobs, arrays, tasks."),
]
All = Annotated[bool, typer.Option("-a", "--all", help="All jobs that are not over.")]


def command(jobs: Jobs = None, *, every: All = False, json: Json = False, socket: Socket = None) -> int:
    """Stop jobs that run, take out of the queue those that wait.

    A job that runs gets SIGTERM, and SIGKILL with its whole process tree after a grace.

      cotenant cancel 17 18
      cotenant cancel 17_[3-5]         three tasks of an array
      cotenant cancel --all
    """
    if bool(jobs) == every:
        raise UsageError("which jobs?", hint="give ids, or --all")
    client = new_client(socket)
    # The newest first: who waits for a job is cancelled before it, and nobody starts on what became free.
    refs = jobs or [job["label"] for job in reversed(client.jobs(active=True))]
    return for_each(client, refs, client.cancel, json=json)
