"""`cotenant wait`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cotenant.cli.common import JobIds, Json, Socket, new_client
from cotenant.cli.output import emit_json, print_line
from cotenant.cli.slurm_options import parse_option
from cotenant.core.errors import CotenantError
from cotenant.core.units import format_duration, parse_duration

Timeout = Annotated[
    str | None,
    typer.Option("--timeout", metavar="TIME", help="Give up after this long, with exit code 1."),
]


def command(jobs: JobIds, *, timeout: Timeout = None, json: Json = False, socket: Socket = None) -> int:
    """Wait until jobs are over, and exit as the first of them that did not complete, or with 0.

    The exit code is the job's own; 124 if it reached its time limit, 128 + N if signal N ended it, 143 if it was
    cancelled. Ctrl-C leaves the jobs alone.

      cotenant wait 17 && cotenant submit evaluate.py
      cotenant wait 17 18 19
    """
    limit_s = parse_option("--timeout", timeout, parse_duration)
    client = new_client(socket)
    end_s = None if limit_s is None else time.monotonic() + limit_s
    views = []
    for job_id in (each for ref in jobs for each in client.ids([ref])):
        left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        view = client.wait(job_id, timeout_s=left_s)
        if view["exit_code"] is None:
            raise CotenantError(f"job {view['label']} is not over after {format_duration(limit_s)}: {view['reason']}")
        views.append(view)
        if not json:
            print_line(f"job {view['label']}: {view['reason']}")
    if json:
        emit_json({"jobs": views})
    return next((int(view["exit_code"]) for view in views if view["exit_code"] != 0), 0)
