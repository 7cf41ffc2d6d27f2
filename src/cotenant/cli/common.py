"""What several commands share: options, the client, and doing something to each of several jobs."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cotenant.cli.output import emit_json, print_line, report_error
from cotenant.core.errors import CotenantError, DaemonUnreachable, UsageError
from cotenant.daemon.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Socket = Annotated[
    Path | None,
    typer.Option("--socket", metavar="PATH", help="The daemon's socket; also $COTENANT_SOCKET."),
]

LocalSocket = Annotated[
    Path | None,
    typer.Option("--socket", metavar="PATH", help="Socket of the daemon on this machine; also $COTENANT_SOCKET."),
]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST[:PORT]", help="A daemon on the network, for a token; also $COTENANT_HOST."),
]

COMPLETED = 200
COMPLETION_S = 2.0
"""Jobs that completion offers, and the longest a shell waits for them."""
_UNSAFE = re.compile(r"[^\w.,+=@%-]+")


def complete_ids(incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin like this, newest first, for the completion of shells; none without a daemon.

    A shell evaluates what it is given, and names may be another user's: of these only letters and digits are left.
    """
    try:
        jobs = Client(timeout_s=COMPLETION_S).jobs(last=COMPLETED)
    except CotenantError:
        return []
    labels = [(each["label"], f"{_UNSAFE.sub('_', each['name'])} {each['state'].lower()}") for each in reversed(jobs)]
    return [each for each in labels if each[0].startswith(incomplete)]


JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", autocompletion=complete_ids, help="Id of a job, or of a task of an array: 17, 17_3."),
]
JobIds = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", autocompletion=complete_ids, help="Ids of jobs, arrays (17) and their tasks (17_3, 17_[3-5])."
    ),
]
NoHeader = Annotated[bool, typer.Option("--no-header", help="Leave out the line of titles.")]
Format = Annotated[str | None, typer.Option("--format", metavar="A,B,...", help="Columns to print, in this order.")]


def new_client(socket: Path | None) -> Client:
    """The client for `--socket`, or for the daemon that is in effect without it."""
    return Client(socket.absolute() if socket is not None else None)


def with_host(act: Callable[..., Any]) -> Callable[..., Any]:
    """`act` with the option `--host`, if it has `--socket` for whichever daemon there is; else as it was."""
    parameters = dict(inspect.signature(act, eval_str=True).parameters)
    if "socket" not in parameters or parameters["socket"].annotation != Socket or "host" in parameters:
        return act

    @functools.wraps(act)
    def command(*, host: str | None = None, **given: Any) -> Any:
        if host is not None:
            if given.get("socket") is not None:
                raise UsageError("--host and --socket name two daemons", hint="leave out one of them")
            os.environ["COTENANT_HOST"] = host  # as if it had been there: completion and clients look there
        return act(**given)

    parameters["host"] = inspect.Parameter("host", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Host)
    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in parameters.values()}
    return command


def one_job(client: Client, ref: str) -> int:
    """The id of the one job that is meant.

    Raises:
        UsageError: an array is meant, not a task of it.
    """
    ids = client.ids([ref])
    if len(ids) > 1:
        raise UsageError(f"job {ref} is an array of {len(ids)} tasks", hint=f"name one of them, e.g. {ref}_1")
    return ids[0]


def for_each(client: Client, refs: Sequence[str], act: Callable[[int], Mapping[str, Any]], *, json: bool) -> int:
    """Do `act` to every job that is meant, the others too if it fails for one, and say where each is then.

    Gives the exit code of the first failure, or 0.

    Raises:
        CotenantError: it failed, and for the only job; or nobody answers.
    """
    done: list[Mapping[str, Any]] = []
    failed: list[CotenantError] = []
    for ref in refs:
        try:
            ids = client.ids([ref])
        except DaemonUnreachable:
            raise
        except CotenantError as error:
            failed.append(error)
            continue
        for job_id in ids:
            try:
                done.append(act(job_id))
            except CotenantError as error:
                failed.append(error)
                continue
            if not json:
                print_line(f"job {done[-1]['label']}: {done[-1]['reason']}")
    if len(failed) == 1 and not done:
        raise failed[0]
    for each in failed:
        report_error(each)
    if json:
        errors = [{"kind": type(each).__name__, "message": each.message, "hint": each.hint} for each in failed]
        emit_json({"jobs": done, "errors": errors})
    return failed[0].exit_code if failed else 0


def gpu_names(job: Mapping[str, Any]) -> str:
    """`0`, `0,3`, or a dash: the GPUs of a job's newest attempt, by display index."""
    pairs = zip(job["gpu_indices"], job["gpu_uuids"], strict=True)
    return ",".join(uuid if index is None else str(index) for index, uuid in pairs) or "-"
