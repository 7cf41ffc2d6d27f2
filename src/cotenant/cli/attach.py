"""`cotenant attach`."""

from __future__ import annotations

import sys

from cotenant.cli.common import JobId, Json, Socket, new_client, one_job
from cotenant.cli.output import emit_json, note
from cotenant.cli.run import stream


def command(job: JobId, *, json: Json = False, socket: Socket = None) -> int:
    """Follow a job's output and errors to its end, and exit as it does. Ctrl-C detaches: the job goes on.

    What it has written so far comes first. The exit code is the job's own, as with `wait`. With --json the output goes
    to stderr.

      cotenant attach 17
    """
    client = new_client(socket)
    job_id = one_job(client, job)
    try:
        view = stream(client, job_id, sys.stderr.buffer if json else sys.stdout.buffer)
    except KeyboardInterrupt:
        note(f"detached; job {job} goes on")
        raise
    if json:
        emit_json({"job": view})
    if view["state"] != "COMPLETED":
        note(f"job {view['label']}: {view['reason']}")
    return int(view["exit_code"])
