"""What several commands share: options, the client, and doing something to each of several jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cotenant.cli.output import emit_json, report_error
from cotenant.core.errors import CotenantError
from cotenant.daemon.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Socket = Annotated[
    Path | None,
    typer.Option("--socket", metavar="PATH", help="The daemon's socket; also $COTENANT_SOCKET."),
]
JobId = Annotated[int, typer.Argument(metavar="JOB", min=1, help="Id of a job.")]
JobIds = Annotated[list[int], typer.Argument(metavar="JOB...", min=1, help="Ids of jobs.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="Leave out the line of titles.")]
Format = Annotated[str | None, typer.Option("--format", metavar="A,B,...", help="Columns to print, in this order.")]


def new_client(socket: Path | None) -> Client:
    """The client for `--socket`, or for the socket that is in effect without it."""
    return Client(socket.absolute() if socket is not None else None)


def for_each(ids: Sequence[int], act: Callable[[int], Mapping[str, Any]], *, json: bool) -> int:
    """Do `act` to every job, the others too if it fails for one, and say where each is then.

    Gives the exit code of the first failure, or 0.
    """
    done: list[Mapping[str, Any]] = []
    failed: list[CotenantError] = []
    for job_id in ids:
        try:
            done.append(act(job_id))
        except CotenantError as error:
            if len(ids) == 1:
                raise
            failed.append(error)
            report_error(error)
            continue
        if not json:
            print(f"job {job_id}: {done[-1]['reason']}")
    if json:
        errors = [{"kind": type(each).__name__, "message": each.message, "hint": each.hint} for each in failed]
        emit_json({"jobs": done, "errors": errors})
    return failed[0].exit_code if failed else 0


def gpu_names(job: Mapping[str, Any]) -> str:
    """`0`, `0,3`, or a dash: the GPUs of a job's newest attempt, by display index."""
    pairs = zip(job["gpu_indices"], job["gpu_uuids"], strict=True)
    return ",".join(uuid if index is None else str(index) for index, uuid in pairs) or "-"
