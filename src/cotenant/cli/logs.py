"""`cotenant logs`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cotenant.cli.common import JobId, Json, Socket, new_client, one_job
from cotenant.cli.output import emit_json
from cotenant.core.errors import UsageError

Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job is over, over all its attempts.")]
Stderr = Annotated[bool, typer.Option("-e", "--stderr", help="Its errors instead of its output.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, metavar="N", help="One attempt; by default the last.")]


def command(
    job: JobId,
    *,
    follow: Follow = False,
    stderr: Stderr = False,
    attempt: Attempt = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Print what a job has written.

    cotenant logs 17              its output so far
    cotenant logs -f 17           and what comes, until it ends; Ctrl-C leaves the job alone
    cotenant logs -e --attempt 1 17
    """
    if json and follow:
        raise UsageError("--json and --follow do not go together", hint="wait first: cotenant wait")
    stream = "stderr" if stderr else "stdout"
    client = new_client(socket)
    job_id = one_job(client, job)
    pieces = client.logs(job_id, stream=stream, follow=follow, attempt=attempt)
    if json:
        emit_json({"id": job_id, "stream": stream, "text": b"".join(pieces).decode(errors="replace")})
        return
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
