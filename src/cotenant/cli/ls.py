"""`cotenant ls`, also `ps` and `queue`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cotenant.cli.common import Format, Json, NoHeader, Socket, gpu_names, new_client
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import UnknownName
from cotenant.core.units import format_bytes, format_duration
from cotenant.daemon.api.states import SHORT

RECENT = 20
WAITING = 200
"""Jobs that are over, and that wait, and are shown without --all."""

WAIT = ("PENDING", "HELD")
OVER = ("COMPLETED", "FAILED", "OOM", "TIMEOUT", "CANCELLED", "LOST")
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

All = Annotated[
    bool, typer.Option("-a", "--all", help=f"All jobs, not only {WAITING} that wait and {RECENT} that are over.")
]
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
    wanted = None if state is None else {state_named(each.strip()) for each in state.split(",")}
    told = new_client(socket).overview(
        active=active,
        states=None if wanted is None else ",".join(sorted(wanted)),
        max_waiting=None if every or wanted else WAITING,
        max_done=None if every or wanted else RECENT,
    )
    if json:
        emit_json({"jobs": told["jobs"], "counts": told["counts"]})
        return
    print_table([_row(each) for each in told["jobs"]], COLUMNS, only=form, header=not no_header)
    if wanted is None and not every:
        _tell_hidden(told["jobs"], told["counts"], over=not active)


def _tell_hidden(shown: Sequence[Mapping[str, Any]], counts: Mapping[str, int], *, over: bool) -> None:
    for states, words in (((*WAIT,), "wait"), (OVER if over else (), "are over")):
        hidden = sum(counts.get(each, 0) for each in states) - sum(each["state"] in states for each in shown)
        if hidden > 0:
            note(f"hint: {hidden} more jobs {words}; --all lists them")


def state_named(text: str) -> str:
    """The long name of a state that may be given by its short one.

    Raises:
        UnknownName: there is none of this name.
    """
    for name, short in SHORT.items():
        if text.upper() in (name, short):
            return name
    raise UnknownName("state", text, [*SHORT, *sorted(set(SHORT.values()) - set(SHORT))])


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": job["label"],
        "name": job["name"],
        "user": job["user"],
        "state": job["state_short"],
        "gpu": gpu_names(job),
        "promised": format_bytes(job["promised_bytes"] or job["need_bytes"]),
        "seen": format_bytes(job["observed_bytes"]),
        "time": format_duration(job["running_s"]),
        "reason": job["reason"],
    }
