"""Verbs about a job's output and its end: `logs`, `attach` and `wait`."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from cotenant.cli.common import Connection, connection_options, job_argument, jobs_argument, one_job
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, note, print_line
from cotenant.cli.parameter_types import Parsed, integer
from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.units import format_duration, parse_duration
from cotenant.daemon.client import Client

WAIT_FIELDS = "id,label,reason,exit_code"
RELIST_S = 5.0
"""While `wait` waits for one job, others end: so often they are looked up together."""


@cli_command()
@job_argument
@cli_option("-f", "--follow", is_flag=True, help="Continue until the job is over, across all its attempts.")
@cli_option("-e", "--stderr", "is_stderr", is_flag=True, help="Print its stderr instead of its stdout.")
@cli_option("--attempt", type=integer(minimum=1), metavar="N", help="Print this attempt; by default the last.")
@json_option
@connection_options
def logs(job: str, *, follow: bool, is_stderr: bool, attempt: int | None, json: bool, connection: Connection) -> None:
    """Print the output of a job.

    cotenant logs 17              its output so far
    cotenant logs -f 17           and what follows, to its end; Ctrl-C does not stop the job
    cotenant logs -e --attempt 1 17
    """
    if json and follow:
        raise UsageError("--json and --follow exclude each other", hint="wait first: cotenant wait")
    stream = "stderr" if is_stderr else "stdout"
    client = connection.client()
    job_id = one_job(client, job)
    chunks = client.logs(job_id, stream=stream, follow=follow, attempt=attempt)
    if json:
        emit_json({"id": job_id, "stream": stream, "text": b"".join(chunks).decode(errors="replace")})
        return
    view = client.job(job_id)
    if not view["attempts"]:
        note(f"job {view['label']} has not started: {view['reason']}")
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


@cli_command()
@job_argument
@json_option
@connection_options
def attach(job: str, *, json: bool, connection: Connection) -> int:
    """Follow a job's stdout and stderr to its end, and exit with its exit code. Ctrl-C detaches: the job continues.

    Its output so far comes first. The exit code is the job's own, as with `wait`. With --json its output goes to
    stderr.

      cotenant attach 17
    """
    client = connection.client()
    job_id = one_job(client, job)
    try:
        view = stream_output(client, job_id, sys.stderr.buffer if json else sys.stdout.buffer)
    except KeyboardInterrupt:
        note(f"detached; job {job} continues")
        raise
    return report_end(view, json=json)


@cli_command()
@jobs_argument
@cli_option(
    "--timeout",
    "timeout_s",
    type=Parsed("time", parse_duration),
    metavar="TIME",
    help="Give up after TIME, 10 (minutes) or 2:00:00, with exit code 1.",
)
@json_option
@connection_options
def wait(jobs: Sequence[str], *, timeout_s: float | None, json: bool, connection: Connection) -> int:
    """Wait until jobs are over, and exit with the exit code of the first that did not complete, or with 0.

    The exit code is the job's own; 124 if it reached its time limit, 128 + N if signal N ended it, 143 if it was
    cancelled. Ctrl-C does not stop the jobs.

      cotenant wait 17 && cotenant submit evaluate.py
      cotenant wait 17 18 19
    """
    client = connection.client()
    job_ids = [job_id for ref in jobs for job_id in client.ids([ref])]
    views = []
    for view in wait_in_order(client, job_ids, timeout_s=timeout_s, fields=None if json else WAIT_FIELDS):
        if view["exit_code"] is None:
            raise CotenantError(f"job {view['label']} is not over after {format_duration(timeout_s)}: {view['reason']}")
        views.append(view)
        if not json:
            print_line(f"job {view['label']}: {view['reason']}")
    if json:
        emit_json({"jobs": views})
    return next((int(view["exit_code"]) for view in views if view["exit_code"] != 0), 0)


def wait_in_order(
    client: Client, job_ids: Sequence[int], *, timeout_s: float | None, fields: str | None
) -> Iterator[Mapping[str, Any]]:
    """The views of jobs, in this order, as each is over; after `timeout_s` as they are then.

    `fields`: the fields of the views that the caller reads, with commas; None for all.
    """
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    over: dict[int, Mapping[str, Any]] = {}
    listed_at_s = -math.inf
    for number, job_id in enumerate(job_ids):
        is_last = number == len(job_ids) - 1
        if job_id not in over and not is_last and time.monotonic() - listed_at_s >= RELIST_S:
            # One request for all that are over: one for each of an array of 10,000 would take half a minute.
            ended = client.jobs(over=1, after=min(job_ids[number:]) - 1, fields=fields)
            over = {int(view["id"]): view for view in ended}
            listed_at_s = time.monotonic()
        left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        yield over.get(job_id) or client.wait(job_id, timeout_s=left_s)


def report_end(view: dict[str, Any], *, json: bool) -> int:
    """Print how a job ended; its exit code."""
    if json:
        emit_json({"job": view})
    if view["state"] != "COMPLETED":
        note(f"job {view['label']}: {view['reason']}")
    if not json:
        for sentence in view.get("advice", ()):
            note(f"job {view['label']}: {sentence}")
    return int(view["exit_code"])


def stream_output(client: Client, job_id: int, stdout: IO[bytes]) -> dict[str, Any]:
    """Copy stdout and stderr of a job to `stdout` and our stderr until it is over; its view then.

    Raises:
        BrokenPipeError: the reader of `stdout` is gone.
    """
    broken = threading.Event()
    view = client.job(job_id)
    is_one_file = view["stdout_path"] is not None and view["stdout_path"] == view["stderr_path"]
    copies = [
        threading.Thread(target=_copy, args=(client, job_id, stream, target, broken), daemon=True)
        for stream, target in (("stdout", stdout), ("stderr", sys.stderr.buffer))
        if stream == "stdout" or not is_one_file
    ]
    for copy in copies:
        copy.start()
    # `Thread.join` without a timeout would delay Ctrl-C until the thread ends: signals are handled between bytecodes.
    while any(copy.is_alive() for copy in copies):
        for copy in copies:
            copy.join(timeout=0.1)
        if broken.is_set():
            raise BrokenPipeError
    return client.wait(job_id)


def _copy(client: Client, job_id: int, stream: str, target: IO[bytes], broken: threading.Event) -> None:
    try:
        for chunk in client.logs(job_id, stream=stream, follow=True):
            target.write(chunk)
            target.flush()
    except BrokenPipeError:
        broken.set()
    except CotenantError as error:
        note(f"the {stream} of job {job_id} broke off: {error.message}")
