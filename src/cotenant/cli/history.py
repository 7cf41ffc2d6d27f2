"""`cotenant history`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from cotenant.cli import slurm_times
from cotenant.cli.common import Format, Json, NoHeader, Socket, new_client
from cotenant.cli.history_groups import print_users, print_workloads, usage_cells
from cotenant.cli.ls import state_named
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.slurm_options import parse_option
from cotenant.core.units import format_bytes, format_duration

COLUMNS = (
    Column(key="id", title="JOB", right=True),
    Column(key="name", title="NAME"),
    Column(key="user", title="USER"),
    Column(key="state", title="ST"),
    Column(key="gpus", title="GPUS", right=True),
    Column(key="ended", title="ENDED"),
    Column(key="waited", title="WAITED", right=True),
    Column(key="time", title="TIME", right=True),
    Column(key="asked", title="ASKED", right=True),
    Column(key="seen", title="SEEN", right=True),
    Column(key="efficiency", title="EFF", right=True),
    Column(key="gpu_hours", title="GPU-H", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="energy", title="ENERGY", right=True),
    Column(key="attempts", title="TRIES", right=True),
    Column(key="reason", title="REASON"),
)

State = Annotated[str | None, typer.Option("-s", "--state", metavar="S,...", help="Only these outcomes: CD, F, OOM.")]
User = Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Only jobs of this user.")]
Name = Annotated[str | None, typer.Option("-J", "--job-name", metavar="NAME", help="Only jobs of this name.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Ended after: 2026-11-21, 2026-11-21T16:00, or 2days ago.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Ended before.")]
Last = Annotated[
    int | None, typer.Option("-n", "--last", min=1, metavar="N", help="Only the newest so many.  [default: 100]")
]
By = Annotated[
    Literal["user", "workload"] | None,
    typer.Option("--by", help="Sums by user, or what is known of each kind of work, in place of jobs."),
]
LAST = 100


def command(
    *,
    state: State = None,
    user: User = None,
    job_name: Name = None,
    since: Since = None,
    until: Until = None,
    last: Last = None,
    by: By = None,
    form: Format = None,
    no_header: NoHeader = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Jobs that are over, oldest first, with what they asked for and what they used.

    ASKED is the GPU memory promised on each GPU in the last attempt, SEEN the most that was in use, and EFF the
    share of it: little means that others could have had the rest. TIME is how long the last attempt ran. GPU-H are
    hours on GPUs over all attempts, SMACT and ENERGY the job's own part of what these did and used.

    With --by user: the sums of all jobs, those that run among them. GPU-H counts an hour for each GPU and job, OWN-H an
    hour that n jobs share 1/n for each; IDLE is the part of the energy that the GPUs would have used without any work.
    With --by work: what is known of each kind of work, alone and beside others; SUFFERS and INFLICTS are how many
    times as long it takes, and others take, than their SM activity says; under a company, than alone.

      cotenant history -n 20
      cotenant history --since "2days ago" -s F,OOM
      cotenant history --by user --since "30days ago"
    """
    past_s = functools.partial(slurm_times.parse_past, now=datetime.now().astimezone())
    client = new_client(socket)
    filters: dict[str, Any] = {
        "states": None if state is None else ",".join(state_named(each.strip()) for each in state.split(",")),
        "user": user,
        "name": job_name,
        "since_s": parse_option("--since", since, past_s),
        "until_s": parse_option("--until", until, past_s),
    }
    if by is not None:
        found = client.usage(by, last=last, **filters)
        if json:
            emit_json({by: found})
        else:
            (print_users if by == "user" else print_workloads)(found, form=form, header=not no_header)
        return
    jobs = client.jobs(over=1, last=last or LAST, **filters)
    if json:
        emit_json({"jobs": [{**each, "memory_efficiency": efficiency(each)} for each in jobs]})
        return
    print_table([_row(each) for each in jobs], COLUMNS, only=form, header=not no_header)
    if not no_header:
        _sum_up(jobs)


def efficiency(job: Mapping[str, Any]) -> float | None:
    """Share of the promised memory that was seen in use, 0..1 and more; None where either is not known."""
    if not job["promised_bytes"] or job["observed_bytes"] is None:
        return None
    return float(job["observed_bytes"] / job["promised_bytes"])


def _sum_up(jobs: Sequence[Mapping[str, Any]]) -> None:
    known = [(each, part) for each in jobs if (part := efficiency(each)) is not None and each["running_s"]]
    held = sum(each["promised_bytes"] * each["gpus"] * each["running_s"] for each, _ in known)
    used = sum(each["observed_bytes"] * each["gpus"] * each["running_s"] for each, _ in known)
    if held:
        counted = "job" if len(known) == 1 else "jobs"
        note(f"{used / held:.0%} of the memory promised to {len(known)} {counted}, weighed by size and time, was used")


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    part = efficiency(job)
    return {
        "id": job["label"],
        "name": job["name"],
        "user": job["user"],
        "state": job["state_short"],
        "gpus": str(job["gpus"]),
        "ended": job["ended_at"][:19] + "Z",
        "waited": format_duration(job["queueing_s"]),
        "time": format_duration(job["running_s"]),
        "asked": format_bytes(job["promised_bytes"]),
        "seen": format_bytes(job["observed_bytes"]),
        "efficiency": "-" if part is None else f"{part:.0%}",
        **usage_cells(job["usage"]),
        "attempts": str(job["attempts"]),
        "reason": job["reason"],
    }
