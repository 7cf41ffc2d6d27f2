"""`cotenant events`."""

from __future__ import annotations

from cotenant.cli.common import JobId, Json, Socket, new_client, one_job
from cotenant.cli.output import emit_json, print_line
from cotenant.core.units import format_duration


def command(job: JobId, *, json: Json = False, socket: Socket = None) -> None:
    """What became of a job: every transition, with its time and its reason, as the journal has it.

    cotenant events 17
    cotenant events 17_3 --json
    """
    client = new_client(socket)
    job_id = one_job(client, job)
    told = client.events(job_id)
    if json:
        emit_json({"id": job_id, "events": told})
        return
    before_s: float | None = None
    for each in told:
        gap = "" if before_s is None else f"+{format_duration(max(0.0, each['at_s'] - before_s))}"
        print_line(f"{each['at']}  {gap:>8}  {each['state'] or '-':<8}  {each['text']}")
        before_s = each["at_s"]
