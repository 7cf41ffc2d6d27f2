"""`cotenant ls`, also `ps` and `queue`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cotenant.cli.common import Format, Json, NoHeader, Socket, gpu_names, new_client
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import UnknownName
from cotenant.core.units import format_bytes, format_duration

RECENT = 20
"""Jobs that are over and still shown without --all."""

OVER = ("COMPLETED", "FAILED", "OOM", "TIMEOUT", "CANCELLED", "LOST")
STATES = {
    "PENDING": "PD",
    "HELD": "H",
    "STARTING": "ST",
    "RUNNING": "R",
    "COMPLETED": "CD",
    "FAILED": "F",
    "OOM": "OOM",
    "TIMEOUT": "TO",
    "CANCELLED": "CA",
    "LOST": "LO",
}
COLUMNS = (
    Column(key="id", title="JOB", right=True),
    Column(key="name", title="NAME"),
    Column(key="user", title="USER"),
    Column(key="state", title="ST"),
    Column(key="gpu", title="GPU"),
    Column(key="promised", title="PROMISED", right=True),
    Column(key="seen", title="SEEN", right=True),
    Column(key="time", title="TIME", right=True),
    Column(key="reason", title="REASON"),
)

All = Annotated[bool, typer.Option("-a", "--all", help=f"All jobs; without, the last {RECENT} of those that are over.")]
Active = Annotated[bool, typer.Option("--active", help="Only jobs that are not over.")]
State = Annotated[
    str | None, typer.Option("-s", "--state", metavar="S,...", help="Only jobs in these states: PD, R, FAILED, ...")
]


def command(
    *,
    every: All = False,
    active: Active = False,
    state: State = None,
    form: Format = None,
    no_header: NoHeader = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """List jobs, oldest first.

    ST is PD (pending), H (held), ST (starting), R (running), CD (completed), F (failed), OOM, TO (time limit),
    CA (cancelled) or LO (lost). PROMISED and SEEN are GPU memory on each GPU: set aside, and in use at the most.

      cotenant ls                         what runs, waits, and has just ended
      cotenant ls -s R,PD                 only running and pending jobs
      cotenant ls --no-header --format id,state
    """
    wanted = None if state is None else {_state(each.strip()) for each in state.split(",")}
    found = new_client(socket).jobs(active=active)
    jobs = [each for each in found if wanted is None or each["state"] in wanted]
    shown = jobs if every or wanted is not None else recent(jobs)
    if json:
        emit_json({"jobs": shown})
        return
    print_table([_row(each) for each in shown], COLUMNS, only=form, header=not no_header)
    if len(shown) < len(jobs):
        note(f"hint: {len(jobs) - len(shown)} older jobs are over; --all lists them")


def recent(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Jobs that are not over, and the newest of the others."""
    over = [each["id"] for each in jobs if each["state"] in OVER]
    hidden = set(over[:-RECENT])
    return [each for each in jobs if each["id"] not in hidden]


def _state(text: str) -> str:
    for name, short in STATES.items():
        if text.upper() in (name, short):
            return name
    raise UnknownName("state", text, [*STATES, *STATES.values()])


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": str(job["id"]),
        "name": job["name"],
        "user": job["user"],
        "state": job["state_short"],
        "gpu": gpu_names(job),
        "promised": format_bytes(job["promised_bytes"] or job["need_bytes"]),
        "seen": format_bytes(job["observed_bytes"]),
        "time": format_duration(job["running_s"]),
        "reason": job["reason"],
    }
