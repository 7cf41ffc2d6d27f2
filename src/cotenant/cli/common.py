"""What several verbs share: the connection to a daemon, tables, and acting on each of several jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.cli.completion import complete_job_ids
from cotenant.cli.options import CONNECTION, cli_argument, flag, option, option_group
from cotenant.cli.output import Column, emit_json, note, print_line, print_table, report_error
from cotenant.cli.parameter_types import PATH
from cotenant.core.errors import CotenantError, DaemonUnreachable, UsageError
from cotenant.daemon.client import Client, error_of

MAX_CHANGES = 20
"""Jobs that a verb changed, and jobs that it could not change, that get a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The daemon that a verb talks to."""

    SECTION = CONNECTION

    socket: Path | None = option(
        "--socket", type=PATH, metavar="PATH", help="Socket of the daemon; also $COTENANT_SOCKET."
    )
    host: str | None = option(
        "--host", metavar="HOST[:PORT]", help="Daemon on the network; needs a token; also $COTENANT_HOST."
    )

    @property
    def is_remote(self) -> bool:
        """Whether the daemon is reached over the network, and so may run on another machine."""
        return self.socket is None and bool(self.host or os.environ.get("COTENANT_HOST"))

    def client(self) -> Client:
        """The client for the daemon that the options or the environment name.

        Raises:
            UsageError: the options name two daemons.
        """
        if self.host is not None and self.socket is not None:
            raise UsageError("--host and --socket name two daemons", hint="leave out one of them")
        if self.host is not None:
            os.environ["COTENANT_HOST"] = self.host
        return Client(None if self.socket is None else self.socket.absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConnection:
    """The daemon on this machine."""

    SECTION = CONNECTION

    socket: Path | None = option(
        "--socket", type=PATH, metavar="PATH", help="Socket of the daemon on this machine; also $COTENANT_SOCKET."
    )

    def client(self) -> Client:
        """The client for the daemon at that socket."""
        return Client(None if self.socket is None else self.socket.absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Which columns of a table are printed."""

    SECTION = "Output"

    columns: str | None = option("--format", metavar="A,B,...", help="Columns to print, in this order.")
    no_header: bool = flag("--no-header", help="Leave out the line of titles.")

    def print(self, rows: Sequence[Mapping[str, str]], columns: Sequence[Column]) -> None:
        """Print `rows` in the columns that the options ask for."""
        print_table(rows, columns, only=self.columns, header=not self.no_header)


connection_options = option_group("connection", Connection)
local_connection_options = option_group("connection", LocalConnection)
table_options = option_group("table", TableOptions)
job_argument = cli_argument(
    "job",
    metavar="JOB",
    shell_complete=complete_job_ids,
    help="Id of a job, or of a task of an array: 17, 17_3.",
)


def job_ids_argument(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the argument `jobs`, any number of ids."""
    return cli_argument(
        "jobs",
        nargs=-1,
        required=required,
        metavar="JOB..." if required else "[JOB...]",
        shell_complete=complete_job_ids,
        help="Ids of jobs, arrays (17) and their tasks (17_3, 17_[3-5]).",
    )


jobs_argument = job_ids_argument(required=True)


def one_job(client: Client, ref: str) -> int:
    """The id of the one job that `ref` names.

    Raises:
        UsageError: `ref` names an array, not a task of it.
    """
    ids = client.ids([ref])
    if len(ids) > 1:
        raise UsageError(f"job {ref} is an array of {len(ids)} tasks", hint=f"name one of them, e.g. {ref}_1")
    return ids[0]


def update_jobs(client: Client, refs: Sequence[str], fields: Mapping[str, object], *, json: bool) -> int:
    """Change fields of every job that `refs` name, and print its state after it; otherwise as `change_jobs`."""
    found, failures = _resolvable(client, refs)
    views: list[Mapping[str, Any]] = []
    for job_id in client.ids(found) if found else []:
        try:
            views.append(client.update(job_id, fields))
        except CotenantError as error:
            failures.append(error)
    return report_changes(views, failures, json=json)


def change_jobs(client: Client, refs: Sequence[str], verb: str, *, json: bool) -> int:
    """Apply a verb without fields to all jobs that `refs` name, and print the state of each job after it.

    The daemon gets them in one request: it decides the order, so that no job starts on what another one frees.
    A failure does not stop the others. The result is the exit code of the first failure, or 0.

    Raises:
        CotenantError: the only job was not changed; or the daemon cannot be reached.
    """
    found, failures = _resolvable(client, refs)
    views, problems = client.change_many(verb, found) if found else ([], [])
    return report_changes(views, [*failures, *map(error_of, problems)], json=json)


def _resolvable(client: Client, refs: Sequence[str]) -> tuple[list[str], list[CotenantError]]:
    """The references that name jobs of the caller, and why each of the others does not."""
    found: list[str] = []
    failures: list[CotenantError] = []
    for ref in refs:
        try:
            client.ids([ref])
            found.append(ref)
        except DaemonUnreachable:
            raise
        except CotenantError as error:
            failures.append(error)
    return found, failures


def report_changes(views: Sequence[Mapping[str, Any]], failures: Sequence[CotenantError], *, json: bool) -> int:
    """Print the states of jobs after a change of many, oldest first, and its failures; the exit code.

    Of more than `MAX_CHANGES` jobs, those in the same state are counted, in one line.

    Raises:
        CotenantError: the only failure, if no job was changed.
    """
    if len(failures) == 1 and not views:
        raise failures[0]
    views = sorted(views, key=lambda view: int(view["id"]))
    if not json:
        for line in _change_lines(views):
            print_line(line)
    return report_outcome(views, failures, json=json)


def _change_lines(views: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(views) <= MAX_CHANGES:
        return [f"job {view['label']}: {view['reason']}" for view in views]
    labels: dict[str, list[str]] = {}
    for view in views:
        labels.setdefault(view["reason"], []).append(view["label"])
    return [f"{_named(found)}: {reason}" for reason, found in labels.items()]


def _named(labels: Sequence[str]) -> str:
    return f"job {labels[0]}" if len(labels) == 1 else f"{len(labels)} jobs between {labels[0]} and {labels[-1]}"


def report_outcome(views: Sequence[Mapping[str, Any]], failures: Sequence[CotenantError], *, json: bool) -> int:
    """Print the first failures of a change of many jobs, and with `json` all of its results; the exit code."""
    for failure in failures[:MAX_CHANGES]:
        report_error(failure)
    if len(failures) > MAX_CHANGES:
        note(f"error: {len(failures) - MAX_CHANGES} more jobs were not changed; --json lists them")
    if json:
        errors = [
            {"kind": type(failure).__name__, "message": failure.message, "hint": failure.hint} for failure in failures
        ]
        emit_json({"jobs": views, "errors": errors})
    return failures[0].exit_code if failures else 0


def gpu_names(job: Mapping[str, Any]) -> str:
    """`0`, `0,3`, or a dash: the GPUs of a job's newest attempt, by display index."""
    pairs = zip(job["gpu_indices"], job["gpu_uuids"], strict=True)
    return ",".join(uuid if index is None else str(index) for index, uuid in pairs) or "-"
