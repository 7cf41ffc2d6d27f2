"""`cotenant history`: finished jobs, and what they used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from cotenant.cli.common import Connection, TableOptions, connection_options, table_options
from cotenant.cli.completion import complete_states
from cotenant.cli.jobs.history_groups import print_users, print_workloads, usage_cells
from cotenant.cli.jobs.ls import parse_states
from cotenant.cli.options import cli_command, cli_option, json_option, option, option_group
from cotenant.cli.output import Column, emit_json, note
from cotenant.cli.parameter_types import Parsed, integer
from cotenant.cli.slurm_verbs.times import parse_past_until_now
from cotenant.core.units import counted, format_bytes, format_duration

COLUMNS = (
    Column(key="id", title="JOB", right=True),
    Column(key="name", title="NAME"),
    Column(key="user", title="USER"),
    Column(key="state", title="ST"),
    Column(key="gpus", title="GPUS", right=True),
    Column(key="ended", title="ENDED"),
    Column(key="waited", title="WAITED", right=True),
    Column(key="time", title="TIME", right=True),
    Column(key="promised", title="PROMISED", right=True),
    Column(key="peak", title="PEAK", right=True),
    Column(key="efficiency", title="EFF", right=True),
    Column(key="gpu_hours", title="GPU-H", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="energy", title="ENERGY", right=True),
    Column(key="attempts", title="TRIES", right=True),
    Column(key="reason", title="REASON"),
)

ADVICE_COLUMNS = (*COLUMNS[:3], Column(key="advice", title="ADVICE"))
DEFAULT_LAST = 100

_PAST = Parsed("time", parse_past_until_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which finished jobs are listed."""

    SECTION = "Filters"

    states: str | None = option(
        "-s",
        "--state",
        type=Parsed("states", parse_states),
        metavar="S,...",
        shell_complete=complete_states,
        help="Only these outcomes: CD, F, OOM.",
    )
    user: str | None = option("-u", "--user", metavar="NAME", help="Only jobs of this user.")
    name: str | None = option("-J", "--job-name", metavar="NAME", help="Only jobs of this name.")
    since_s: float | None = option(
        "--since",
        type=_PAST,
        metavar="TIME",
        help="Only jobs that ended after 2026-11-21, 2026-11-21T16:00, 2days ago.",
    )
    until_s: float | None = option("--until", type=_PAST, metavar="TIME", help="Only jobs that ended before TIME.")
    last: int | None = option(
        "-n", "--last", type=integer(minimum=1), metavar="N", help="Only the newest N.  [default: 100]"
    )

    def query(self) -> dict[str, Any]:
        """The filters as the daemon takes them, but for `last`."""
        return {
            "states": self.states,
            "user": self.user,
            "name": self.name,
            "since_s": self.since_s,
            "until_s": self.until_s,
        }


@cli_command()
@option_group("selection", HistoryFilter)
@cli_option(
    "--by",
    type=click.Choice(["user", "workload"]),
    help="Print sums by user, or what was learned of each workload, in place of jobs.",
)
@cli_option("--advice", is_flag=True, help="Print what each run says about how to submit the job next time.")
@table_options
@json_option
@connection_options
def command(
    selection: HistoryFilter, *, by: str | None, advice: bool, table: TableOptions, json: bool, connection: Connection
) -> None:
    """List finished jobs, oldest first, with what they requested and what they used.

    Columns of jobs:

      PROMISED       memory reserved on each GPU for the last attempt
      PEAK, EFF      the most it used, and the ratio of PEAK to PROMISED
      WAITED, TIME   time in the queue, retries included; run time of the last attempt
      GPU-H          GPU hours of all attempts
      SMACT, ENERGY  its share of its GPUs' activity and energy

    --by user prints sums of all jobs, running ones included. GPU-H counts an hour for each GPU and job; SHARE-H divides
    an hour that n jobs share by n; IDLE is the part of the energy that idle GPUs would have used.

    --by workload prints what the daemon has learned of each workload, alone and beside others. SENSITIVITY is how much
    more it slows down than its SM activity predicts, AGGRESSIVENESS how much more it slows down its neighbors. Rows of
    pairs show the slowdown itself.

    --advice prints what to change when you submit the job again: a job that declared too much, would fit a MIG
    instance, or shared well with another.

      cotenant history -n 20
      cotenant history --since "2days ago" -s F,OOM
      cotenant history --by user --since "30days ago"
    """
    client = connection.client()
    if by is not None:
        groups = client.usage(by, last=selection.last, **selection.query())
        if json:
            emit_json({by: groups})
        else:
            (print_users if by == "user" else print_workloads)(groups, table)
        return
    jobs = client.jobs(over=1, last=selection.last or DEFAULT_LAST, **selection.query())
    if json:
        emit_json({"jobs": [{**job, "memory_efficiency": efficiency(job)} for job in jobs]})
        return
    if advice:
        rows = [{**_row(job), "advice": sentence} for job in jobs for sentence in job["advice"]]
        table.print(rows, ADVICE_COLUMNS)
        if jobs and not rows and not table.no_header:
            _explain_no_advice(jobs)
        return
    table.print([_row(job) for job in jobs], COLUMNS)
    if not table.no_header:
        _print_total(jobs)


def efficiency(job: Mapping[str, Any]) -> float | None:
    """Peak memory as a ratio of the promised memory; None if either is unknown."""
    if not job["promised_bytes"] or job["observed_bytes"] is None:
        return None
    return float(job["observed_bytes"] / job["promised_bytes"])


def _explain_no_advice(jobs: Sequence[Mapping[str, Any]]) -> None:
    from cotenant.scheduling.advice import MIN_RUN_S

    judged = sum((job["running_s"] or 0.0) >= MIN_RUN_S for job in jobs)
    long_enough = f"{judged} of {counted(len(jobs), 'job')} ran for {format_duration(MIN_RUN_S)} or longer"
    note(f"no advice: {long_enough}, and shorter runs are not judged")


def _print_total(jobs: Sequence[Mapping[str, Any]]) -> None:
    known = [job for job in jobs if efficiency(job) is not None and job["running_s"]]
    promised = sum(job["promised_bytes"] * job["gpus"] * job["running_s"] for job in known)
    used = sum(job["observed_bytes"] * job["gpus"] * job["running_s"] for job in known)
    if promised:
        jobs_text = counted(len(known), "job")
        note(f"{jobs_text} used {used / promised:.0%} of the promised memory, weighted by size and time")


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    ratio = efficiency(job)
    return {
        "id": job["label"],
        "name": job["name"],
        "user": job["user"],
        "state": job["state_short"],
        "gpus": str(job["gpus"]),
        "ended": job["ended_at"][:19] + "Z",
        "waited": format_duration(job["waited_s"]),
        "time": format_duration(job["running_s"]),
        "promised": format_bytes(job["promised_bytes"]),
        "peak": format_bytes(job["observed_bytes"]),
        "efficiency": "-" if ratio is None else f"{ratio:.0%}",
        **usage_cells(job["usage"]),
        "attempts": str(job["attempts"]),
        "reason": job["reason"],
    }
