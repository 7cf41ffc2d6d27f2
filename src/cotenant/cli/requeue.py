"""`cotenant requeue`."""

from __future__ import annotations

from cotenant.cli.common import JobIds, Json, Socket, for_each, new_client


def command(jobs: JobIds, *, json: Json = False, socket: Socket = None) -> int:
    """Run jobs again: those that are over at once, those that run after they were stopped.

    A job that runs gets SIGTERM, as with `cancel`, and goes back to the queue. What was learned of its memory is kept,
    and its attempts so far no longer count against --max-attempts.

      cotenant requeue 17 18
    """
    client = new_client(socket)
    return for_each(client, jobs, client.requeue, json=json)
