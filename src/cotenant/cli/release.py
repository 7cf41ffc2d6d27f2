"""`cotenant release`."""

from __future__ import annotations

from cotenant.cli.common import JobIds, Json, Socket, for_each, new_client


def command(jobs: JobIds, *, json: Json = False, socket: Socket = None) -> int:
    """Let held jobs start.

    cotenant release 17 18
    cotenant release 17_3      one task of an array
    """
    client = new_client(socket)
    return for_each(client, jobs, client.release, json=json)
