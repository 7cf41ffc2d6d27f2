"""`cotenant run`."""

from __future__ import annotations

import sys
import threading
from typing import IO, Any

from cotenant.cli.common import Json, Socket, new_client
from cotenant.cli.job_builder import CONTEXT, with_job_options
from cotenant.cli.output import emit_json, note
from cotenant.cli.slurm_options import resolve_dependencies
from cotenant.core.errors import CotenantError, UsageError
from cotenant.daemon.client import Client

__all__ = ["CONTEXT", "command"]


@with_job_options
def command(job: dict[str, Any], *, json: Json = False, socket: Socket = None) -> int:
    """Submit a job, stream its output, and exit as it does.

    The exit code is the job's own; 124 if it reached its time limit, 128 + N if signal N ended it. Ctrl-C cancels
    the job. The options are those of `submit`. With --json the job's output goes to stderr.

      cotenant run train.py --epochs 3
      cotenant run --gpu-mem 8G -t 30 -- python -m train
    """
    client = new_client(socket)
    if job.get("array") is not None:
        raise UsageError("an array has many outputs, `run` shows one", hint="submit it, then: cotenant wait ID")
    view = client.submit([resolve_dependencies(job, client.ids)])[0]
    job_id = view["id"]
    try:
        note(f"job {job_id}: {view['reason']}")
        view = stream(client, job_id, sys.stderr.buffer if json else sys.stdout.buffer)
    except (KeyboardInterrupt, BrokenPipeError):
        note(f"job {job_id}: {_cancel(client, job_id)}")
        raise
    if json:
        emit_json({"job": view})
    if view["state"] != "COMPLETED":
        note(f"job {job_id}: {view['reason']}")
    return int(view["exit_code"])


def stream(client: Client, job_id: int, stdout: IO[bytes]) -> dict[str, Any]:
    """Copy both streams until the job is over; its view then."""
    broken = threading.Event()
    copies = [
        threading.Thread(target=_copy, args=(client, job_id, stream, to, broken), daemon=True)
        for stream, to in (("stdout", stdout), ("stderr", sys.stderr.buffer))
    ]
    for each in copies:
        each.start()
    # Joined in short steps: a plain join would not let Ctrl-C through.
    while any(each.is_alive() for each in copies):
        for each in copies:
            each.join(timeout=0.1)
        if broken.is_set():
            raise BrokenPipeError
    return client.wait(job_id)


def _copy(client: Client, job_id: int, stream: str, to: IO[bytes], broken: threading.Event) -> None:
    try:
        for piece in client.logs(job_id, stream=stream, follow=True):
            to.write(piece)
            to.flush()
    except BrokenPipeError:
        broken.set()
    except CotenantError as error:
        note(f"the {stream} of job {job_id} broke off: {error.message}")


def _cancel(client: Client, job_id: int) -> str:
    """Cancel, and say how that went."""
    try:
        client.cancel(job_id)
    except CotenantError as error:
        return f"could not be cancelled: {error.message}"
    return "cancelled"
